"""Every fault that ``CCBENCH_FAULT`` asks for is named, has its exit code, and costs its own case alone."""

from __future__ import annotations

import re
import resource
from collections.abc import Callable

import pytest

from ccbench.cases.axes import NO_OP, NO_ROOT, Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.collectives import COLLECTIVES, Collective
from ccbench.dtypes import item_bytes
from ccbench.machine.host import usable_cores
from ccbench.runner.starting import ADDRESSES_PER_CORE, LEAST_ADDRESSES
from ccbench.schedules import algorithms_of
from tests.faults.conftest import QUIET, Bench, rows_of
from tests.faults.traces import cpu_team

EXIT_CODES = {Status.WRONG: 1, Status.TIMED_OUT: 4, Status.FAILED: 5}

SPOILT = r"rank 1: \d+ wrong, first at element \d+: \S+ instead of \S+"

FAULTS = {
    "kill": (Status.FAILED, r"rank 1 \(process \d+\) was killed by SIGKILL while sampling"),
    "raise": (
        Status.FAILED,
        r"rank 1: InjectedError: a fault was asked for by CCBENCH_FAULT \(faults.py:\d+\)",
    ),
    "stop": (
        Status.TIMED_OUT,
        r"timed out: rank 1 \(process \d+\) is stopped by a signal; the others wait for it",
    ),
    "element": (Status.WRONG, SPOILT),
    "nan": (Status.WRONG, SPOILT),
    "swap": (Status.WRONG, SPOILT),
    "stale": (Status.WRONG, SPOILT),
}


def check_fault(bench: Bench, fault: str, backend: str) -> None:
    status, detail = FAULTS[fault]
    suite = bench.suite(
        {"collective": ["all_gather", "all_reduce"]},
        backends=[backend],
        rounds=2,
        time_limit="2 s",
    )
    ended = bench.run(suite, fault=f"{fault}:rank=1:collective=all_gather")
    assert ended.code == EXIT_CODES[status], ended.err
    row = ended.row("all_gather")
    assert row["status"] == status.value
    assert re.fullmatch(detail, row["detail"])
    assert row["median_seconds"] is None, "what failed has no speed"
    assert status.value in ended.out
    if status is Status.WRONG:
        assert row["wrong_elements"] >= 1
    other = ended.row("all_reduce")
    assert other["status"] == Status.OK.value
    assert len(other["round_samples"]) >= 2
    assert "fault_injected" in other["flags"]


@pytest.mark.parametrize(
    "fault",
    ["kill"]
    + [
        pytest.param(one, marks=pytest.mark.exhaustive)
        for one in ("stop", "raise", "stale", "element", "nan", "swap")
    ],
)
def test_a_fault_of_a_rank_is_named_and_the_sweep_goes_on(bench: Bench, fault: str) -> None:
    check_fault(bench, fault, "cpu")


def test_wrong_data_of_what_runs_beside_are_told_from_the_case_s_own(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "element:rank=1:collective=all_gather")
    sweep = {"collective": "all_reduce", "concurrent": "all_gather on all"}
    code = bench.here("run", bench.suite(sweep), *QUIET, "-o", "out")
    (row,) = rows_of(bench.folder / "out")
    assert (code, row["status"], row["wrong_elements"]) == (1, Status.WRONG.value, 1)
    assert re.search(r"^rank 1: 1 wrong, .* in the concurrent all_gather$", row["detail"])


def test_a_misspelt_fault_ends_the_run_before_it_begins(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CCBENCH_FAULT", "slow:rank=x")
    suite = bench.suite({"collective": "all_reduce"})
    assert bench.here("run", suite, *QUIET, "-o", "out") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("ccbench: error: CCBENCH_FAULT: 'slow:rank=x': rank is 'x'")
    assert not (bench.folder / "out").exists()


@pytest.mark.exhaustive
def test_ranks_that_do_not_wait_for_each_other_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same data launch after launch would hide it: launches with new data and late ranks show it."""
    monkeypatch.setenv("CCBENCH_FAULT", "unsynchronised:rank=all")
    sampling = Sampling(rounds=6, warmup_seconds=0.002, budget_seconds=0.03)
    missed = []
    team = cpu_team(2)
    try:
        for name, row in COLLECTIVES.items():
            for algorithm in algorithms_of(name):
                for size in (64, 64 << 10) if row.moves_data else (0,):
                    case = _case(row, algorithm, size)
                    seen = [
                        team.run(case, sampling.of_one_round(0)) for _ in range(sampling.rounds)
                    ]
                    if all(one.status is not Status.WRONG for one in seen):
                        missed.append(case.label)
    finally:
        team.close()
    assert missed == []


def _case(row: Collective, algorithm: str, size_bytes: int) -> Case:
    dtype, op = "float32" if row.moves_data else "uint8", "sum" if row.reduces else NO_OP
    count = row.count_for(size_bytes, 2, item_bytes(dtype))
    root = 0 if row.rooted else NO_ROOT
    size = row.size_bytes(count, 2, item_bytes(dtype))
    return Case("faults", "cpu", row.name, algorithm, dtype, op, size, count, 2, root=root)


def address_space(size_bytes: int) -> Callable[[], None]:
    """``ulimit -v``, to be run in a child."""
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (size_bytes, size_bytes))


def test_a_run_with_too_few_addresses_for_its_libraries_is_refused_in_one_line(
    bench: Bench,
) -> None:
    bench.before_exec = address_space(380 << 20)
    ended = bench.run(bench.suite({"collective": "barrier"}))
    assert ended.code == 2
    (line,) = ended.err.strip().splitlines()
    assert "ulimit -v leaves a process 380 MiB of addresses" in line
    assert "write ulimit -v unlimited" in line


def test_a_rank_that_gets_no_addresses_for_its_buffers_is_out_of_memory_and_the_rest_goes_on(
    bench: Bench,
) -> None:
    limit = LEAST_ADDRESSES + (usable_cores() + 1) * ADDRESSES_PER_CORE
    bench.before_exec = address_space(limit)
    ended = bench.run(
        bench.suite(
            {
                "collective": "all_reduce",
                "size": ["4 KiB", limit // 2 // 4096 * 4096],
                "algorithm": "ring",
            }
        )
    )
    small, large = sorted(ended.rows, key=lambda row: int(row["size_bytes"]))
    assert (small["status"], large["status"]) == ("ok", "out_of_memory")
    assert re.search(
        rf"no memory is to be had .*; ulimit -v leaves a process {limit >> 20} MiB",
        large["detail"],
    )
    assert ended.code == 5
