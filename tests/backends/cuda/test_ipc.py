"""One process for each rank: handles, barriers, and the whole way with CUDA emulated in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ccbench.backends.cuda.ipc import BUFFERS, HANDLE_BYTES, WORK, HandleBoard
from ccbench.machine.host import single_threaded

ROOT = Path(__file__).resolve().parents[3]


def test_every_handle_has_a_place_of_its_own() -> None:
    board = HandleBoard(3)
    handles = {
        (rank, which): bytes([7 * rank + which + 1] * HANDLE_BYTES)
        for rank in range(3)
        for which in (WORK, BUFFERS)
    }
    for (rank, which), handle in handles.items():
        board.write(rank, which, handle)
    assert all(board.read(rank, which) == handle for (rank, which), handle in handles.items())


def test_ranks_in_processes_of_their_own_reduce_and_gather_right() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.cuda.ipc_on_cpu"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**single_threaded(os.environ), "PYTHONPATH": str(ROOT)},
        timeout=120,
        check=False,
    )
    lines = [line.strip() for line in done.stdout.splitlines()]
    statuses = [line.split()[0] for line in lines]
    assert statuses == ["ok"] * 4 + ["out_of_memory", "ok", "unsupported"], (done.stdout, done.stderr)
    assert lines[-1].endswith("CUDA does not start: CudaError: cudaError 46")
    ok = [line.split() for line in lines if line.startswith("ok")]
    assert [wrong for _, wrong, *_ in ok] == ["0"] * 5
    # Of streaming the first launch is enqueued before the devices start, of the others all.
    assert [behind for _, _, behind, *_ in ok] == ["1", *(launches for _, _, _, launches, *_ in ok[1:])]
    assert all("loopback" in line for line in lines if line.startswith("ok"))  # three ranks on two devices
