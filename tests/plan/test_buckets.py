"""Messages on one stream behind computing: queues, buckets of gradients, weights gathered ahead."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.plan.pipeline import (
    even_gradients_exposed,
    gathered_exposed,
    gradients_sent,
    queue,
)

_seconds = st.floats(0, 100, allow_nan=False)


@given(st.lists(st.tuples(_seconds, _seconds), max_size=30))
def test_a_queue_sends_one_after_the_other_and_nothing_before_it_is_ready(
    messages: list[tuple[float, float]],
) -> None:
    sent = queue(messages)
    free = 0.0
    for (ready, taken), one in zip(messages, sent, strict=True):
        assert one.begin_seconds == max(free, ready)
        assert one.end_seconds == one.begin_seconds + taken
        free = one.end_seconds


@given(st.integers(1, 60), _seconds, _seconds)
def test_the_closed_form_of_even_buckets_is_the_queue(count: int, taken: float, computing: float) -> None:
    behind = max(0.0, gradients_sent(count, taken, computing)[-1].end_seconds - computing)
    assert even_gradients_exposed(count, taken, computing) == pytest.approx(behind, abs=1e-9)


@given(st.integers(1, 60), _seconds, _seconds)
def test_more_buckets_of_the_same_bytes_never_show_more(count: int, total: float, computing: float) -> None:
    one = even_gradients_exposed(1, total, computing)
    assert even_gradients_exposed(count, total / count, computing) <= one + 1e-9


@given(st.integers(1, 40), st.floats(0, 5), st.floats(0.01, 5))
def test_weights_gathered_a_layer_ahead_show_the_first_gather_and_what_is_slower_than_a_layer(
    layers: int, gather: float, layer: float
) -> None:
    expected = gather + (layers - 1) * max(0.0, gather - layer)
    assert gathered_exposed(layers, gather, layer) == pytest.approx(expected)


@given(st.integers(1, 40), st.floats(0, 5), st.floats(0.01, 5), st.floats(0, 5))
def test_a_gathered_pass_is_no_shorter_than_its_computing_or_its_messages(
    layers: int, gather: float, layer: float, after: float
) -> None:
    seconds = layers * layer + gathered_exposed(layers, gather, layer, after)
    assert seconds >= layers * layer + gather - 1e-9
    assert seconds >= layers * max(layer, gather + after) - 1e-9


def test_gradients_hide_behind_the_rest_of_the_backward_pass() -> None:
    # Ten buckets of 1 s behind 20 s: only the last one shows. Of 3 s the stream never waits after the first.
    assert even_gradients_exposed(10, 1.0, 20.0) == pytest.approx(1.0)
    assert even_gradients_exposed(10, 3.0, 20.0) == pytest.approx(2.0 + 30.0 - 20.0)
    assert even_gradients_exposed(0, 3.0, 20.0) == 0.0
