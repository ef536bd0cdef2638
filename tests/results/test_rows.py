"""Rows of measured, imported and overlapped cases, and the schema that they have."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import OVERLAP, OVERLAP_PARTS, Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.results import SCHEMA, SCHEMA_VERSION, Origin, arrow_schema
from ccbench.results.schema import (
    FINE_ENOUGH,
    imported_speed,
    row_of,
)

from .samples import measured

DOCUMENT = Path(__file__).parents[2] / "docs" / "results.md"


def test_the_documented_columns_are_the_schema() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    rows = ["| column | type or unit | meaning |", "| --- | --- | --- |"] + [
        f"| `{column.name}` | {column.unit or column.kind} | {column.meaning} |"
        for column in SCHEMA
    ]
    assert "\n".join(rows) in text
    assert f"(schema version {SCHEMA_VERSION})" in text


def test_a_row_has_exactly_the_columns_of_the_schema() -> None:
    names = {column.name for column in SCHEMA}
    assert set(row_of(measured(), None, 0.95)) == set(_row()) == names
    assert len(names) == len(SCHEMA)


def test_the_arrow_schema_carries_its_version_and_which_columns_may_be_null() -> None:
    schema = arrow_schema()
    assert schema.metadata == {b"ccbench_schema_version": str(SCHEMA_VERSION).encode()}
    assert not schema.field("status").nullable
    assert schema.field("median_seconds").nullable
    assert str(schema.field("rank_samples_seconds").type).startswith("list<")


@pytest.mark.parametrize(
    ("changes", "factor"),
    [({}, 1.5), ({"groups": "rank // 2"}, 1.0), ({"collective": "hypercube"}, None)],
)
def test_bus_bandwidth_is_of_the_ranks_of_one_group_and_of_collectives_with_a_known_factor(
    changes: dict[str, Any], factor: float | None
) -> None:
    measurement = measured()
    row = row_of(replace(measurement, case=replace(measurement.case, **changes)), None, 0.95)
    assert row["algbw_GB_s"] == pytest.approx(4096 / row["median_seconds"] / 1e9)
    expected = None if factor is None else pytest.approx(factor * row["algbw_GB_s"])
    assert row["busbw_GB_s"] == expected


@pytest.mark.parametrize(
    ("waiting", "slowest"),
    [
        # Ranks end together: a late one does not wait while the others wait for it.
        ((2e-5, 0.0, 2e-5, 2e-5), 1),
        ((2e-5, 2e-5, 2e-5, 2e-5), None),
        ((), 2),
    ],
)
def test_the_slowest_rank_is_the_one_that_the_others_wait_for(
    waiting: tuple[float, ...], slowest: int | None
) -> None:
    measurement = measured(rank_waiting_seconds=tuple((seconds,) for seconds in waiting))
    assert row_of(measurement, None, 0.95)["slowest_rank"] == slowest


CASE = Case(
    "nccl-tests", "nccl", "all_reduce", "default", "float32", "sum", 1 << 20, 1 << 18, 8
)
ORIGIN = Origin(
    "log.txt",
    1,
    12,
    "nccl-tests",
    seconds=1e-5,
    algbw=104.86,
    busbw=183.5,
    time_statistic="mean",
)


def _row(
    origin: Origin = ORIGIN, status: Status = Status.OK, case: Case = CASE
) -> dict[str, object]:
    return row_of(Measurement(case, status), None, 0.95, origin)


@given(seconds=st.floats(1e-7, 10), ranks=st.integers(2, 4096), size=st.integers(1, 2**40))
def test_where_rates_are_not_printed_they_follow_from_the_time(
    seconds: float, ranks: int, size: int
) -> None:
    case = replace(CASE, ranks=ranks, size_bytes=size)
    origin = replace(ORIGIN, seconds=seconds, algbw=None, busbw=None)
    speed = imported_speed(Measurement(case, Status.OK), origin)
    assert speed["algbw_GB_s"] == pytest.approx(size / seconds / 1e9)
    assert speed["busbw_GB_s"] == pytest.approx(speed["algbw_GB_s"] * 2 * (ranks - 1) / ranks)


@given(rate=st.floats(FINE_ENOUGH, 1e4), ranks=st.integers(2, 64))
def test_where_no_time_is_printed_it_follows_from_a_rate(rate: float, ranks: int) -> None:
    case = replace(CASE, ranks=ranks)
    origin = replace(ORIGIN, seconds=None, algbw=None, busbw=rate)
    speed = imported_speed(Measurement(case, Status.OK), origin)
    factor = 2 * (ranks - 1) / ranks
    assert speed["median_seconds"] == pytest.approx(case.size_bytes / (rate / factor) / 1e9)
    assert speed["time_statistic"] == "from bandwidth"


def overlapped(
    computing: tuple[float, ...], communicating: tuple[float, ...], together: tuple[float, ...]
) -> Measurement:
    """Samples of the three launches; those of both parts meanwhile are as long as both together."""
    measurement = measured(
        samples_seconds=together,
        group_names=OVERLAP_PARTS,
        group_samples_seconds=(computing, communicating, together, together),
        rank_samples_seconds=(),
        round_samples=(len(together),),
    )
    return replace(
        measurement, case=replace(measurement.case, mode=OVERLAP, overlap_with="matmul")
    )


@given(st.lists(st.tuples(*[st.floats(0.5, 2)] * 3), min_size=6, max_size=30))
def test_the_interval_holds_the_median_and_never_more_than_everything_is_hidden(
    samples: list[tuple[float, float, float]],
) -> None:
    computing, communicating, longer = (tuple(column) for column in zip(*samples, strict=True))
    together = tuple(max(sample) for sample in samples)
    row = row_of(overlapped(computing, communicating, together), None, 0.95)
    assert row["overlap_low"] <= row["overlap_efficiency"] <= row["overlap_high"] <= 1 + 1e-9
    assert len(longer) == len(together)


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
