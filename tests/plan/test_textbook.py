"""The field's textbook example of why overlap matters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.plan.pipeline import Gradients, bucketed, in_series, textbook

EXAMPLE = Gradients(96, 12, 1e-3, 500e-3)


def test_in_series_96_layers_of_12_gradients_take_577152_ms() -> None:
    assert in_series(EXAMPLE).seconds == pytest.approx(577.152)
    assert textbook(EXAMPLE)[0].seconds == pytest.approx(577.152)


def test_overlapped_one_by_one_only_the_first_gradient_is_computed_alone() -> None:
    assert bucketed(EXAMPLE, 1, 0.0).seconds == pytest.approx(576.001)


def test_buckets_help_as_far_as_communication_is_start_up() -> None:
    assert bucketed(EXAMPLE, 12, 0.0).seconds == pytest.approx(0.012 + 576)
    assert bucketed(EXAMPLE, 12, 0.5).seconds == pytest.approx(0.012 + 96 * 0.5)
    # Everything in one message, all of it start-up: nothing overlaps, and one communication is left.
    assert bucketed(EXAMPLE, 1152, 0.5).seconds == pytest.approx(1.152 + 0.5)


def test_without_a_stated_start_up_both_ends_are_told() -> None:
    ends = [one.startup_seconds for one in textbook(EXAMPLE) if one.bucket == 12]
    assert ends == [0.0, 0.5]
    stated = Gradients(96, 12, 1e-3, 0.5, startup_seconds=0.4, buckets=(12, 96))
    assert [(one.bucket, one.startup_seconds) for one in textbook(stated)][1:] == [
        (1, 0.4), (12, 0.4), (96, 0.4),
    ]  # fmt: skip


@given(
    st.integers(1, 20), st.integers(1, 6), st.floats(1e-6, 1), st.floats(1e-6, 1), st.floats(0, 1),
    st.integers(1, 130),
)  # fmt: skip
def test_a_step_is_between_the_longer_of_its_parts_and_their_sum(
    layers: int, per_layer: int, compute: float, communicate: float, share: float, bucket: int
) -> None:
    gradients = Gradients(layers, per_layer, compute, communicate)
    one = bucketed(gradients, bucket, share * communicate)
    assert one.seconds <= in_series(gradients).seconds * (1 + 1e-9)
    assert one.seconds >= max(one.computing_seconds, one.communicating_seconds) * (1 - 1e-9)
    assert one.hidden_seconds + one.exposed_seconds == pytest.approx(one.communicating_seconds)


def test_a_start_up_longer_than_the_communication_is_refused() -> None:
    with pytest.raises(UsageError, match="startup 600 ms is a part of communicate 500 ms"):
        Gradients(1, 1, 1e-3, 0.5, startup_seconds=0.6).check()
