"""A step over time: pieces of the same numbers as the step, with fewer micro-batches where there are many."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.groups import Layout
from ccbench.plan.pipeline import simulate
from ccbench.plan.shape import make_shape
from ccbench.plan.strategy import Strategy
from ccbench.plan.timeline import (
    BACKWARD_WORK,
    DATA,
    ENDING,
    FORWARD_WORK,
    OPTIMIZER_WORK,
    WAITING,
    Timeline,
    timeline,
)
from tests.plan.test_step import ByRate, step


def test_a_step_without_a_pipeline_is_a_lane_of_computing_and_one_of_what_is_sent() -> None:
    found = timeline(step(Strategy(Layout(tp=2, dp=4), 16, 512)))
    assert found.lanes == ("computing", "sent")
    kinds = [piece.kind for piece in found.pieces]
    assert kinds.count(FORWARD_WORK) == kinds.count(BACKWARD_WORK) == 4
    assert {WAITING, DATA} <= set(kinds)
    sharded = timeline(
        step(Strategy(Layout(dp=4), 16, 512, zero_stage=1, bucket_bytes=2**20), ByRate(1e9))
    )
    assert {DATA, ENDING, OPTIMIZER_WORK} <= {piece.kind for piece in sharded.pieces}


@given(
    st.sampled_from([1, 2]),
    st.sampled_from([1, 4]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1e8, 1e10, 1e12]),
)
def test_without_a_pipeline_the_drawing_ends_exactly_with_its_step(
    tp: int, dp: int, zero: int, overlap: bool, split: bool, rate: float
) -> None:
    strategy = Strategy(
        Layout(tp=tp, dp=dp),
        16,
        512,
        zero_stage=zero,
        bucket_bytes=2**20,
        overlap_gradients=overlap,
        overlap_parameters=overlap,
        overlap_tensor=split,
        sequence_parallel=split and tp > 1,
    )
    drawn = step(strategy, ByRate(rate))
    found = timeline(drawn)
    assert _end(found) == pytest.approx(drawn.seconds, rel=1e-6)
    assert min(piece.begin_seconds for piece in found.pieces) >= 0


def test_of_very_many_buckets_one_piece_stands_for_several() -> None:
    drawn = step(Strategy(Layout(dp=4), 16, 512, bucket_bytes=2**17), ByRate(1e9))
    buckets = sum(line.communication.times for line in drawn.lines)
    found = timeline(drawn)
    pieces = [piece for piece in found.pieces if piece.kind == DATA]
    assert len(pieces) <= 500 < buckets
    sent = sum(piece.end_seconds - piece.begin_seconds for piece in pieces)
    assert sent == pytest.approx(sum(line.total_seconds for line in drawn.lines))
    assert _end(found) == pytest.approx(drawn.seconds, rel=1e-6)


def _end(found: Timeline) -> float:
    return max(piece.end_seconds for piece in found.pieces)


def test_pieces_of_a_lane_do_not_overlap() -> None:
    found = timeline(step(Strategy(Layout(tp=2, pp=4, dp=2), 64, 512)))
    for lane in range(4):
        mine = sorted(
            (piece for piece in found.pieces if piece.lane == lane),
            key=lambda one: one.begin_seconds,
        )
        for one, then in pairwise(mine):
            assert then.begin_seconds >= one.end_seconds - 1e-9


def test_a_long_step_is_drawn_whole_in_phases_each_with_its_time_by_kind() -> None:
    long = step(Strategy(Layout(tp=2, pp=4, dp=2), 512, 512))
    found = timeline(long)
    assert found.in_phases
    assert not found.shortened
    assert found.left_out == ""
    assert _end(found) == pytest.approx(long.seconds, rel=0.01)
    for lane in range(4):
        mine = [piece for piece in found.pieces if piece.lane == lane]
        # Three phases of at most three kinds, and the optimizer.
        assert len(mine) <= 10
        # Wide enough to be seen, though the step has hundreds of passes.
        widths = [piece.end_seconds - piece.begin_seconds for piece in mine]
        assert max(widths) > 0.1 * long.seconds
    simulated = sum(
        interval.end_seconds - interval.begin_seconds for interval in simulate(long.pipeline)
    )
    passed = (FORWARD_WORK, BACKWARD_WORK, WAITING)
    assert sum(
        piece.end_seconds - piece.begin_seconds
        for piece in found.pieces
        if piece.kind in passed
    ) == pytest.approx(simulated)
    short = step(Strategy(Layout(pp=4), 16, 512))
    assert not timeline(short).in_phases
    assert _end(timeline(short)) == pytest.approx(short.seconds, rel=0.01)


def test_a_step_of_very_many_passes_is_shortened_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccbench.plan.timeline.MOST_INTERVALS", 1000)
    found = timeline(step(Strategy(Layout(pp=4), 256, 512)))
    assert found.shortened
    assert (
        found.left_out == "drawn with 16 of 256 micro-batches, for the others do the same again"
    )


def test_of_many_stages_the_first_the_last_and_some_between_are_drawn() -> None:
    strategy = Strategy(Layout(pp=32), 64, 512)
    deep = make_shape({"layers": 32, "hidden": 1024, "heads": 16, "vocabulary": 32000})
    found = timeline(step(strategy, shape=deep))
    assert found.lanes[0] == "stage 0"
    assert "stage 31" in found.lanes
    assert found.left_out == "24 of 32 stages are not shown"


def test_weights_that_every_pass_gathers_are_drawn_behind_it() -> None:
    found = timeline(step(Strategy(Layout(dp=8), 64, 512, zero_stage=3)))
    sent = [piece for piece in found.pieces if piece.kind == DATA]
    assert found.lanes == ("computing", "sent")
    # Eight micro-batches, each with a forward and a backward pass.
    assert len(sent) == 16
