"""Collectives that a job has at the same time become cases with a concurrent collective."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.cases.axes import Case
from ccbench.readers.traces.events import Communication, ProcessGroup
from ccbench.readers.traces.fold import Fold, JobCase, fold, suite_text
from tests.readers.traces.jobs import WORLD, call, expanded, trace

TP = (ProcessGroup("1", 2, (0, 1), "tp"), ProcessGroup("2", 2, (2, 3), "tp"))
MEBIBYTE = 1 << 20


def beside(
    start: float, seconds: float, *, size_bytes: int = MEBIBYTE, stream: str = "21"
) -> Fold:
    """Fold a job in which all ranks reduce from 0 to 10 ms, and tp groups gather from ``start`` on."""
    records: list[Communication] = []
    for rank in WORLD.ranks:
        records.append(
            call(
                rank,
                size_bytes=MEBIBYTE,
                start_seconds=0.0,
                duration_seconds=0.010,
                stream="20",
            )
        )
        gathered = call(rank, "all_gather", size_bytes, group=TP[rank // 2], stream=stream)
        records.append(
            replace(
                gathered,
                input_bytes=size_bytes // 2,
                start_seconds=start,
                duration_seconds=seconds,
            )
        )
    return fold(trace(records, groups=(WORLD, *TP)))


def concurrent_cases(folded: Fold) -> list[Case]:
    return [overlap.concurrent for overlap in folded.overlaps if overlap.concurrent]


def test_an_all_gather_beside_an_all_reduce_is_a_case_of_both_and_a_suite_asks_for_it() -> None:
    folded = beside(0.002, 0.006)
    (case,) = concurrent_cases(folded)
    assert (case.groups, case.concurrent) == ("rank // 2", "all_reduce on all")
    both = [JobCase(case, folded.overlaps[0].instances)]
    text = suite_text([*folded.cases, *both], "job")
    assert {case_of_suite.label for case_of_suite in expanded(text)} == {
        case_of_suite.case.label for case_of_suite in (*folded.cases, *both)
    }


@pytest.mark.parametrize(
    ("start", "seconds", "stream", "both"),
    [
        (0.009, 0.006, "21", False),  # most of it comes after
        (0.009, 0.001, "21", True),  # within
        (0.002, 0.006, "20", False),  # one stream has one at a time, whatever rounding says
        (0.020, 0.006, "21", False),
    ],
)
def test_only_what_shares_most_of_its_time_is_at_the_same_time(
    start: float, seconds: float, stream: str, both: bool
) -> None:
    assert bool(beside(start, seconds, stream=stream).overlaps) is both


def test_much_smaller_ones_are_told_and_not_asked_for() -> None:
    folded = beside(0.002, 0.006, size_bytes=4096)
    assert [overlap.case.collective for overlap in folded.overlaps] == ["all_reduce"]
    assert not concurrent_cases(folded)
