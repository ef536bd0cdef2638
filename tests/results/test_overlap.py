"""What a row says of a computation and a collective at the same time."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases import OVERLAP, OVERLAP_PARTS, Measurement, Status
from ccbench.results.rows import measurement_of, row_of

from .samples import measured


def overlapped(
    computing: tuple[float, ...], communicating: tuple[float, ...], together: tuple[float, ...]
) -> Measurement:
    """Samples of the three launches; those of both parts meanwhile are as long as both together."""
    one = measured(
        samples_seconds=together,
        group_names=OVERLAP_PARTS,
        group_samples_seconds=(computing, communicating, together, together),
        rank_samples_seconds=(),
        round_samples=(len(together),),
    )
    return replace(one, case=replace(one.case, mode=OVERLAP, overlap_with="matmul"))


@pytest.mark.parametrize(
    ("computing", "communicating", "together", "hidden"),
    [
        (1.0, 1.0, 1.0, 1.0),  # wholly hidden
        (1.0, 1.0, 2.0, 0.0),  # one after the other
        (1.0, 1.0, 1.25, 0.75),
        (4.0, 1.0, 4.5, 0.5),  # half of the shorter one
        (1.0, 1.0, 3.0, -1.0),  # worse than one after the other
    ],
)
def test_efficiency_is_the_share_of_the_shorter_that_was_hidden(
    computing: float, communicating: float, together: float, hidden: float
) -> None:
    row = row_of(overlapped((computing,) * 8, (communicating,) * 8, (together,) * 8), None, 0.95)
    found = [row[name] for name in ("overlap_efficiency", "overlap_low", "overlap_high")]
    assert found == pytest.approx([hidden] * 3)


@given(st.lists(st.tuples(*[st.floats(0.5, 2)] * 3), min_size=6, max_size=30))
def test_the_interval_holds_the_median_and_never_more_than_everything_is_hidden(
    samples: list[tuple[float, float, float]],
) -> None:
    computing, communicating, longer = (tuple(column) for column in zip(*samples, strict=True))
    together = tuple(max(sample) for sample in samples)
    row = row_of(overlapped(computing, communicating, together), None, 0.95)
    assert row["overlap_low"] <= row["overlap_efficiency"] <= row["overlap_high"] <= 1 + 1e-9
    assert len(longer) == len(together)


def test_both_together_have_no_bandwidth_and_come_back_as_they_were() -> None:
    one = overlapped((1.0,) * 8, (1.0,) * 8, (1.5,) * 8)
    row = row_of(one, None, 0.95)
    assert (row["algbw_GB_s"], row["busbw_GB_s"]) == (None, None)
    assert row["median_seconds"] == 1.5
    assert row["group_names"] == list(OVERLAP_PARTS)
    assert measurement_of(row).case == one.case


@pytest.mark.parametrize(
    "odd",
    [
        overlapped((1.0,) * 7, (1.0,) * 8, (1.5,) * 8),
        overlapped((0.0,) * 8, (1.0,) * 8, (1.0,) * 8),
        overlapped((1.0,) * 8, (math.nan,) * 8, (1.0,) * 8),
        overlapped((math.inf,) * 8, (1.0,) * 8, (1.0,) * 8),
        replace(overlapped((1.0,) * 8, (1.0,) * 8, (1.5,) * 8), status=Status.FAILED),
        replace(overlapped((1.0,) * 8, (1.0,) * 8, (1.5,) * 8), group_samples_seconds=()),
    ],
)
def test_what_cannot_be_told_is_left_open(odd: Measurement) -> None:
    assert row_of(odd, None, 0.95)["overlap_efficiency"] is None
