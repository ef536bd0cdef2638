"""Faults of sums on inexact data are named: which rank, in which launch, and in which type it adds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import pytest

from ccbench.cases.axes import Case, InexactData
from ccbench.cases.measurement import Rounding, Status
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.schedules import algorithms_of
from tests.backends.measuring import SAMPLING, case_of
from tests.faults.traces import cpu_team

RANKS, NUMBER = 4, 10


def cases(*names: str, root: int, dtypes: tuple[str, ...] = ("float32",)) -> Iterator[Case]:
    """Cases of 16 KiB of every algorithm of collectives, types and seeds."""
    for seed in range(1, NUMBER + 1):
        for name in names:
            for algorithm in algorithms_of(name):
                row, dtype = collective(name), dtypes[seed % len(dtypes)]
                yield case_of(
                    "cpu",
                    name,
                    algorithm,
                    RANKS,
                    (16 << 10) // item_bytes(dtype) // (RANKS if row.blocked else 1),
                    dtype=dtype,
                    root=root if row.rooted else -1,
                    inexact=InexactData(seed=seed),
                )


def measured(
    monkeypatch: pytest.MonkeyPatch, fault: str, cases: Iterator[Case]
) -> Iterator[Rounding]:
    """What bits say of the first of ``cases``, by a team with the fault; timed launches are right all the same."""
    monkeypatch.setenv("CCBENCH_FAULT", fault)
    team = cpu_team(RANKS)
    try:
        for case in islice(cases, NUMBER):
            measurement = team.run(case, SAMPLING)
            assert measurement.status is Status.OK, measurement.detail
            yield measurement.rounding
    finally:
        team.close()


@pytest.mark.exhaustive
def test_a_rank_that_adds_in_another_order_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for rounding in measured(monkeypatch, "reordered:rank=2", cases("all_reduce", root=2)):
        assert rounding.differing_over_ranks
        assert rounding.differing_over_launches == 0
        assert rounding.first_difference.startswith("rank 2, unlike rank ")


EVERYWHERE = ("all_reduce", "reduce_scatter", "reduce")


@pytest.mark.exhaustive
def test_a_rank_whose_order_changes_from_launch_to_launch_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rounding in measured(monkeypatch, "racing:rank=3", cases(*EVERYWHERE, root=3)):
        assert rounding.differing_over_launches
        assert rounding.differing_over_ranks in (0, None)
        assert rounding.first_difference.startswith("rank 3, launch 2 of 4: ")


def test_a_bit_that_flips_is_named_with_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    types = ("float32", "float64", "bfloat16", "float16")
    for rounding in measured(
        monkeypatch, "flipped:rank=1", cases(*EVERYWHERE, root=1, dtypes=types)
    ):
        assert rounding.first_difference.startswith(
            "rank 1, launch 2 of 4: one bit (0) of one element, at place "
        )
        assert rounding.differing_over_launches
        assert rounding.differing_over_launches < 0.002


def test_sums_in_bfloat16_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for rounding in measured(
        monkeypatch,
        "bfloat16:rank=all",
        cases(*EVERYWHERE, root=0, dtypes=("float32", "float64")),
    ):
        assert rounding.accumulation.startswith("bfloat16, ")
        assert rounding.first_difference == ""
        assert rounding.correctly_rounded_share is not None
        assert rounding.correctly_rounded_share < 0.1
