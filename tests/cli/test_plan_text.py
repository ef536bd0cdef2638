from __future__ import annotations

import pytest

from ccbench.cases import Case
from ccbench.cli.run import MOST_LISTED, plan_lines
from ccbench.model.context import named_context
from ccbench.runner.planning import Plan, RunOptions, plan_suite
from ccbench.suite.model import load_suite, read_suite


def planned(suite: str, machine: str = "hgx-h100") -> Plan:
    return plan_suite(load_suite(suite), RunOptions(machine=machine, only_plan=True))


def numbers(lines: list[str]) -> int:
    """Cases that the lines add up to."""
    return sum(int(line.split(": ")[1].split(" case")[0]) for line in lines[:-1])


def test_few_cases_are_listed_one_by_one() -> None:
    cases = tuple(
        Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4 * count, count, 4) for count in range(1, 4)
    )
    lines = plan_lines(Plan(cases, 0, 0, 0.0, (), named_context("cpu-shared-memory")))
    assert [line.split("  ")[0] for line in lines] == [case.case_id for case in cases]
    assert all(line.endswith("us predicted") for line in lines)


@pytest.mark.thinned(1)
@pytest.mark.parametrize("suite", ["allreduce", "collectives", "p2p", "health", "dtypes"])
def test_many_cases_are_summed_up_and_none_is_lost(suite: str) -> None:
    plan = planned(suite)
    lines = plan_lines(plan)
    assert len(lines) <= MOST_LISTED + 1
    assert lines[-1] == "every case: --json"
    assert numbers(lines) == len(plan.cases) > MOST_LISTED


def test_lines_say_sizes_bytes_and_what_a_machine_should_take() -> None:
    lines = plan_lines(planned("allreduce"))
    ring = next(line for line in lines if line.startswith("nccl all_reduce ring float32 sum, 8 ranks: "))
    assert "14 cases, 8 B to 512 MiB; at most 1 GiB a rank; " in ring
    assert ring.endswith("ms predicted")
    assert any("protocol ll128" in line for line in lines)
    assert any("in place, graph" in line for line in lines)


def test_groups_alone_traffic_and_computations_are_counted() -> None:
    sweep = (
        "sweep: [{collective: all_to_all_v, traffic: [balanced, 'zipf:1', 'hot:0.5'], size: '8:1GiB:2'},"
        "{collective: all_reduce, groups: rank // 2, group_mode: each, size: '8:1GiB:2'},"
        "{collective: all_reduce, mode: overlap, overlap_with: all, size: '8:1GiB:2', concurrent: nothing}]"
    )
    plan = plan_suite(read_suite(sweep), RunOptions(backends=("cpu",), ranks=8, machine="cpu-shared-memory"))
    lines = plan_lines(plan)
    assert numbers(lines) == len(plan.cases)
    assert any("groups rank // 2, group 3 alone: 28 cases" in line for line in lines)
    assert any("traffic zipf:1: " in line for line in lines)
    assert any("overlap, computing memory: 28 cases" in line for line in lines)


@pytest.mark.exhaustive
def test_groups_alone_of_many_cases_are_one_line() -> None:
    sweep = "sweep: {collective: all, groups: rank // 2, group_mode: each, algorithm: all, size: '8:1GiB:2'}"
    plan = plan_suite(read_suite(sweep), RunOptions(backends=("cpu",), ranks=16, machine="cpu-shared-memory"))
    lines = plan_lines(plan)
    assert len(lines) <= MOST_LISTED + 1
    assert any("8 sets of groups at once" in line for line in lines)


def test_pairs_are_counted_by_their_ways() -> None:
    lines = plan_lines(planned("p2p"))
    assert any(", 56 pairs one way: 112 cases" in line for line in lines)
    assert any(", 28 pairs both ways: 56 cases" in line for line in lines)
