"""Overlap in a step: queues and buckets of gradients, weights gathered ahead, pipeline schedules, and the
closed forms that a search uses."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.plan.pipeline import (
    Gradients,
    Pipeline,
    bubble_seconds,
    bucketed,
    even_gradients_exposed,
    exposed_hops,
    gathered_exposed,
    gradients_sent,
    in_series,
    order_of,
    pipeline_seconds,
    queue,
    simulate,
    textbook,
)

EXAMPLE = Gradients(96, 12, 1e-3, 500e-3)

_seconds = st.floats(0, 100, allow_nan=False)


@pytest.mark.parametrize(
    ("bucket", "startup", "seconds"),
    [
        # One by one only the first gradient is computed alone.
        (1, 0.0, 576.001),
        (12, 0.0, 0.012 + 576),
        (12, 0.5, 0.012 + 96 * 0.5),
        # Everything in one message, all of it start-up: nothing overlaps, and one communication is left.
        (1152, 0.5, 1.152 + 0.5),
    ],
)
def test_buckets_help_as_far_as_communication_is_start_up(
    bucket: int, startup: float, seconds: float
) -> None:
    assert bucketed(EXAMPLE, bucket, startup).seconds == pytest.approx(seconds)


def test_without_a_stated_start_up_both_ends_are_told_after_the_577152_ms_in_series() -> None:
    series, *overlapped = textbook(EXAMPLE)
    assert series.seconds == pytest.approx(577.152)
    assert [one.startup_seconds for one in overlapped if one.bucket == 12] == [0.0, 0.5]
    stated = Gradients(96, 12, 1e-3, 0.5, startup_seconds=0.4, buckets=(12, 96))
    ways = [(one.bucket, one.startup_seconds) for one in textbook(stated)]
    assert ways[1:] == [(1, 0.4), (12, 0.4), (96, 0.4)]


@given(
    st.integers(1, 20),
    st.integers(1, 6),
    st.floats(1e-6, 1),
    st.floats(1e-6, 1),
    st.floats(0, 1),
    st.integers(1, 130),
)
def test_a_step_in_buckets_is_between_the_longer_of_its_parts_and_their_sum(
    layers: int, per_layer: int, compute: float, communicate: float, share: float, bucket: int
) -> None:
    gradients = Gradients(layers, per_layer, compute, communicate)
    one = bucketed(gradients, bucket, share * communicate)
    assert one.seconds <= in_series(gradients).seconds * (1 + 1e-9)
    assert one.seconds >= max(one.computing_seconds, one.communicating_seconds) * (1 - 1e-9)
    assert one.hidden_seconds + one.exposed_seconds == pytest.approx(one.communicating_seconds)


@given(st.lists(st.tuples(_seconds, _seconds), max_size=30))
def test_a_queue_sends_one_after_the_other_and_nothing_before_it_is_ready(
    messages: list[tuple[float, float]],
) -> None:
    free = 0.0
    for (ready, taken), one in zip(messages, queue(messages), strict=True):
        assert one.begin_seconds == max(free, ready)
        assert one.end_seconds == one.begin_seconds + taken
        free = one.end_seconds


@given(st.integers(1, 60), _seconds, _seconds)
def test_the_closed_form_of_even_buckets_is_the_queue(
    count: int, taken: float, computing: float
) -> None:
    behind = max(0.0, gradients_sent(count, taken, computing)[-1].end_seconds - computing)
    assert even_gradients_exposed(count, taken, computing) == pytest.approx(behind, abs=1e-9)


def test_gradients_hide_behind_the_rest_of_the_backward_pass() -> None:
    # Ten buckets of 1 s behind 20 s: only the last one shows. Of 3 s the stream never waits after the first.
    assert even_gradients_exposed(10, 1.0, 20.0) == pytest.approx(1.0)
    assert even_gradients_exposed(10, 3.0, 20.0) == pytest.approx(2.0 + 30.0 - 20.0)
    assert even_gradients_exposed(0, 3.0, 20.0) == 0.0


@given(st.integers(1, 40), st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 5))
def test_gathered_weights_show_the_first_gather_and_what_is_slower_than_a_layer(
    layers: int, gather: float, layer: float, after: float
) -> None:
    expected = gather + (layers - 1) * max(0.0, gather - layer)
    assert gathered_exposed(layers, gather, layer) == pytest.approx(expected)
    # With gradients on the same stream no shorter than either of the two.
    seconds = layers * layer + gathered_exposed(layers, gather, layer, after)
    assert seconds >= layers * layer + gather - 1e-9
    assert seconds >= layers * max(layer, gather + after) - 1e-9


def alike(stages: int, micro_batches: int, chunks: int = 1, **more: float) -> Pipeline:
    """Stages that take 1 s forward and 2 s backward for a micro-batch, dealt to their chunks."""
    each = (1.0 / chunks,) * stages, (2.0 / chunks,) * stages
    return Pipeline(micro_batches, chunks, *each, **more)  # type: ignore[arg-type]  # hops are the only floats


def end_of(pipeline: Pipeline) -> float:
    """When the last interval ends."""
    return max(one.end_seconds for one in simulate(pipeline))


@pytest.mark.parametrize(
    ("stages", "micro_batches", "chunks"), [(4, 8, 1), (4, 8, 2), (8, 64, 4), (1, 5, 1)]
)
def test_the_bubble_is_the_published_share(
    stages: int, micro_batches: int, chunks: int
) -> None:
    # Narayanan et al. 2021, sections 2.2.1 and 2.2.2: (p - 1) / m of the computing, and a v-th of that.
    pipeline = alike(stages, micro_batches, chunks)
    computing = micro_batches * 3.0
    share = (stages - 1) / micro_batches / chunks
    assert bubble_seconds(pipeline) / computing == pytest.approx(share)
    assert pipeline_seconds(pipeline) == pytest.approx(computing * (1 + share))


_rates = st.floats(0.1, 10)


@given(
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 3),
    _rates,
    _rates,
    st.floats(1.0, 1.5),
    st.booleans(),
)
def test_without_messages_the_closed_form_is_what_the_simulation_finds(
    stages: int,
    rounds: int,
    chunks: int,
    forward: float,
    backward: float,
    last: float,
    gpipe: bool,
) -> None:
    chunks = 1 if stages == 1 or gpipe else chunks
    # The last stage has the head besides: the others are alike, as in a real pipeline.
    factors = (1.0,) * (stages - 1) + (last,)
    forwards = tuple(forward * factor for factor in factors)
    backwards = tuple(backward * factor for factor in factors)
    pipeline = Pipeline(rounds * stages, chunks, forwards, backwards, all_forward_first=gpipe)
    assert end_of(pipeline) == pytest.approx(pipeline_seconds(pipeline))


@given(
    st.integers(2, 8), st.integers(1, 4), st.integers(1, 3), st.floats(0.0, 0.3), st.booleans()
)
def test_hops_cost_what_the_closed_form_says_at_the_most(
    stages: int, rounds: int, chunks: int, hop: float, overlapped: bool
) -> None:
    hop /= chunks
    pipeline = alike(stages, rounds * stages, chunks, hop_seconds=hop, overlapped=overlapped)
    found, said = end_of(pipeline), pipeline_seconds(pipeline)
    assert found <= said * (1 + 1e-9)
    if overlapped:
        assert found == pytest.approx(said)
    else:
        # The ends of the pipeline have one neighbour only.
        assert said - found <= hop * exposed_hops(pipeline) / 2 + 1e-9


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.floats(0, 0.2))
def test_a_stage_does_every_chunk_once_each_way_one_at_a_time_and_after_its_input(
    stages: int, rounds: int, chunks: int, hop: float
) -> None:
    chunks = 1 if stages == 1 else chunks
    intervals = simulate(alike(stages, rounds * stages, chunks, hop_seconds=hop))
    ends = {
        (
            interval.work,
            interval.stage,
            interval.chunk,
            interval.micro_batch,
        ): interval.end_seconds
        for interval in intervals
    }
    assert len(intervals) == len(ends) == 2 * stages * chunks * rounds * stages
    assert {interval.chunk for interval in intervals} == set(range(chunks))
    assert {interval.micro_batch for interval in intervals} == set(range(rounds * stages))
    for stage in range(stages):
        for one, then in pairwise(
            interval for interval in intervals if interval.stage == stage
        ):
            assert then.begin_seconds >= one.end_seconds - 1e-9
    for one in intervals:
        if one.work == "forward" and one.stage > 0:
            came = ends["forward", one.stage - 1, one.chunk, one.micro_batch]
            assert one.begin_seconds >= came + hop - 1e-9


def test_the_first_stage_of_1f1b_has_as_many_micro_batches_under_way_as_stages() -> None:
    order = order_of(alike(4, 8), 0)
    assert [work for work, _, _ in order[:6]] == ["forward"] * 4 + ["backward", "forward"]
