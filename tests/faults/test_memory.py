"""More memory than there is: the case says how much it would take, and takes nothing."""

from __future__ import annotations

import os
import re
from typing import Any

from ccbench.cases import Case, Sampling, Status
from ccbench.machine.host import available_memory_bytes
from ccbench.runner.workers.team import WorkerTeam
from tests.faults import traces
from tests.faults.conftest import Bench


def test_a_case_too_large_is_out_of_memory_and_the_sweep_goes_on(bench: Bench, figure: Any) -> None:
    suite = bench.suite({"collective": ["all_reduce", "barrier"], "size": "8 TiB", "dtype": "float64"})
    ended = bench.run(suite)
    assert ended.code == 5
    row = ended.row("all_reduce")
    assert row["status"] == Status.OUT_OF_MEMORY.value
    found = re.fullmatch(r"needs (\d+) bytes on 2 ranks, (\d+) are to be had", row["detail"])
    assert found is not None
    needed, had = map(int, found.groups())
    assert needed >= 2 * 2 * 2**43  # input and output of two ranks
    assert had <= (available_memory_bytes() or 1 << 62) * 1.5
    assert ended.row("barrier")["status"] == Status.OK.value
    figure(row["detail"])


def test_a_case_too_large_allocates_nothing_and_keeps_its_team(figure: Any) -> None:
    team = WorkerTeam("cpu", 2)
    small = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 2)
    sampling = Sampling(rounds=1, budget_seconds=0.02, warmup_seconds=0.002)
    assert team.run(small, sampling).status is Status.OK
    leader = traces.leader_of(os.getpid())
    before = [_virtual_bytes(pid) for pid in (leader, *team.pids)]
    measurement = team.run(
        Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 1 << 42, 1 << 40, 2), sampling
    )
    assert measurement.status is Status.OUT_OF_MEMORY
    assert team.usable()
    grown = sum(_virtual_bytes(pid) for pid in (leader, *team.pids)) - sum(before)
    assert grown < 1 << 26
    assert team.run(small, sampling).status is Status.OK
    team.close()
    figure(f"asked for {1 << 43} bytes of buffers: address space grew by {grown} bytes")


def _virtual_bytes(pid: int) -> int:
    words = (traces.PROC / str(pid) / "statm").read_text().split()
    return int(words[0]) * os.sysconf("SC_PAGE_SIZE")
