"""Pipeline schedules: orders, simulated intervals, and the closed forms that a search uses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.plan.pipeline import (
    Pipeline,
    bubble_seconds,
    exposed_hops,
    order_of,
    pipeline_seconds,
    simulate,
)

_seconds = st.floats(0.1, 10, allow_nan=False)


def alike(stages: int, micro_batches: int, chunks: int = 1, **more: float) -> Pipeline:
    """Stages that take 1 s forward and 2 s backward for a micro-batch, dealt to their chunks."""
    each = (1.0 / chunks,) * stages, (2.0 / chunks,) * stages
    return Pipeline(micro_batches, chunks, *each, **more)  # type: ignore[arg-type]  # hops are the only floats


def end_of(pipeline: Pipeline) -> float:
    """When the last interval ends."""
    return max(one.end_seconds for one in simulate(pipeline))


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"), [(4, 8, 1), (4, 8, 2), (8, 64, 1), (8, 64, 4), (1, 5, 1)]
)
def test_the_bubble_is_the_published_share(stages: int, micro_batches: int, chunks: int) -> None:
    # Narayanan et al. 2021, sections 2.2.1 and 2.2.2: (p - 1) / m of the computing, and a v-th of that.
    pipeline = alike(stages, micro_batches, chunks)
    computing = micro_batches * 3.0
    share = (stages - 1) / micro_batches / chunks
    assert bubble_seconds(pipeline) / computing == pytest.approx(share)
    assert pipeline_seconds(pipeline) == pytest.approx(computing * (1 + share))


@given(
    stages=st.integers(1, 6),
    rounds=st.integers(1, 3),
    chunks=st.integers(1, 3),
    times=st.data(),
    gpipe=st.booleans(),
)
def test_without_messages_the_closed_form_is_what_the_simulation_finds(
    stages: int, rounds: int, chunks: int, times: st.DataObject, gpipe: bool
) -> None:
    chunks = 1 if stages == 1 or gpipe else chunks
    forward = times.draw(_seconds)
    backward = times.draw(_seconds)
    last = times.draw(st.floats(1.0, 1.5))
    # The last stage has the head besides: the others are alike, as in a real pipeline.
    factors = (1.0,) * (stages - 1) + (last,)
    pipeline = Pipeline(
        rounds * stages,
        chunks,
        tuple(forward * factor for factor in factors),
        tuple(backward * factor for factor in factors),
        all_forward_first=gpipe,
    )
    assert end_of(pipeline) == pytest.approx(pipeline_seconds(pipeline))


@given(st.integers(2, 8), st.integers(1, 4), st.integers(1, 3), st.floats(0.0, 0.3), st.booleans())
def test_hops_cost_what_the_closed_form_says_at_the_most(
    stages: int, rounds: int, chunks: int, hop: float, overlapped: bool
) -> None:
    micro_batches = rounds * stages
    hop /= chunks
    pipeline = alike(stages, micro_batches, chunks, hop_seconds=hop, overlapped=overlapped)
    found, said = end_of(pipeline), pipeline_seconds(pipeline)
    assert found <= said * (1 + 1e-9)
    if overlapped:
        assert found == pytest.approx(said)
    else:
        # The ends of the pipeline have one neighbour only.
        assert said - found <= hop * exposed_hops(pipeline) / 2 + 1e-9


@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 3))
def test_a_stage_does_every_chunk_of_every_micro_batch_once_forward_and_backward(
    stages: int, rounds: int, chunks: int
) -> None:
    chunks = 1 if stages == 1 else chunks
    pipeline = alike(stages, rounds * stages, chunks)
    wanted = {
        (work, chunk, number)
        for work in ("forward", "backward")
        for chunk in range(chunks)
        for number in range(rounds * stages)
    }
    for stage in range(stages):
        order = order_of(pipeline, stage)
        assert len(order) == len(wanted)
        assert set(order) == wanted


@given(st.integers(2, 5), st.integers(1, 3), st.integers(1, 3), st.floats(0, 0.2))
def test_no_stage_does_two_things_at_once_or_anything_before_its_input(
    stages: int, rounds: int, chunks: int, hop: float
) -> None:
    pipeline = alike(stages, rounds * stages, chunks, hop_seconds=hop)
    intervals = simulate(pipeline)
    for stage in range(stages):
        mine = [one for one in intervals if one.stage == stage]
        for one, then in pairwise(mine):
            assert then.begin_seconds >= one.end_seconds - 1e-9
    ends = {(one.work, one.stage, one.chunk, one.micro_batch): one.end_seconds for one in intervals}
    for one in intervals:
        if one.work == "forward" and one.stage > 0:
            came = ends["forward", one.stage - 1, one.chunk, one.micro_batch]
            assert one.begin_seconds >= came + hop - 1e-9


def test_the_first_stage_of_1f1b_has_as_many_micro_batches_under_way_as_stages() -> None:
    order = order_of(alike(4, 8), 0)
    assert [work for work, _, _ in order[:6]] == ["forward"] * 4 + ["backward", "forward"]
