"""Wrong data end to end: a real team, a spoilt result, and what the user is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ccbench.cases import NO_OP, NO_ROOT, Case, Sampling, Status
from ccbench.collectives import COLLECTIVES, Collective
from ccbench.dtypes import item_bytes
from ccbench.runner.workers.team import WorkerTeam
from ccbench.schedules import algorithms_of
from tests.faults.conftest import Bench


@pytest.mark.thinned(1)
@pytest.mark.parametrize("kind", ["element", "nan", "swap", "stale"])
def test_a_spoilt_result_is_reported_with_rank_and_element(bench: Bench, kind: str, figure: Any) -> None:
    suite = bench.suite({"collective": "all_gather"}, {"collective": "all_reduce"}, rounds=2)
    ended = bench.run(suite, fault=f"{kind}:rank=1:collective=all_gather")
    assert ended.code == 1
    row = ended.row("all_gather")
    assert row["status"] == Status.WRONG.value
    assert re.search(r"^rank 1: \d+ wrong, first at element \d+: \S+ instead of \S+$", row["detail"])
    assert row["wrong_elements"] >= 1
    assert "fault_injected" in row["flags"]
    assert row["median_seconds"] != row["median_seconds"], "a wrong result has no speed"
    assert ended.row("all_reduce")["status"] == Status.OK.value
    assert "wrong" in ended.out
    figure(f"{kind}: {row['detail']}")


def test_wrong_elements_of_all_ranks_are_added_up(bench: Bench) -> None:
    """Every rank that has the fault names itself; here only the one that is asked to."""
    ended = bench.run(bench.suite({"collective": "all_reduce"}), fault="element:rank=0")
    row = ended.row("all_reduce")
    assert (ended.code, row["wrong_elements"]) == (1, 1)
    assert row["detail"].startswith("rank 0: 1 wrong, first at element 512: ")


def test_wrong_data_of_what_runs_beside_are_told_from_the_case_s_own(bench: Bench) -> None:
    sweep = {"collective": "all_reduce", "concurrent": "all_gather on all"}
    ended = bench.run(bench.suite(sweep), fault="element:rank=1:collective=all_gather")
    row = ended.row("all_reduce")
    assert (ended.code, row["status"]) == (1, Status.WRONG.value)
    assert re.search(r"^rank 1: 1 wrong, .* in the concurrent all_gather$", row["detail"])


@pytest.mark.exhaustive
def test_ranks_that_do_not_wait_for_each_other_are_caught(
    monkeypatch: pytest.MonkeyPatch, figure: Any
) -> None:
    """The same data launch after launch would hide it: launches with new data and late ranks show it."""
    monkeypatch.setenv("CCBENCH_FAULT", "unsynchronised:rank=all")
    sampling = Sampling(rounds=6, warmup_seconds=0.002, budget_seconds=0.03)
    caught, missed = 0, []
    team = WorkerTeam("cpu", 2)
    try:
        for name, row in COLLECTIVES.items():
            for algorithm in algorithms_of(name):
                for size in (64, 64 << 10) if row.moves_data else (0,):
                    case = _case(row, algorithm, size)
                    seen = [team.run(case, sampling.of_one_round(0)) for _ in range(sampling.rounds)]
                    if any(one.status is Status.WRONG for one in seen):
                        caught += 1
                    else:
                        missed.append(case.label)
    finally:
        team.close()
    assert missed == []
    figure(f"no waits at all: {caught} of {caught} cases called wrong")


def _case(row: Collective, algorithm: str, size_bytes: int) -> Case:
    dtype, op = "float32" if row.moves_data else "uint8", "sum" if row.reduces else NO_OP
    count = row.count_for(size_bytes, 2, item_bytes(dtype))
    root = 0 if row.rooted else NO_ROOT
    size = row.size_bytes(count, 2, item_bytes(dtype))
    return Case("faults", "cpu", row.name, algorithm, dtype, op, size, count, 2, root=root)
