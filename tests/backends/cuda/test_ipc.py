"""One process for each rank: handles, barriers, and the whole way with CUDA emulated in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ccbench.backends.cuda.ipc import NOTE_BYTES, Notes
from ccbench.machine.host import single_threaded

ROOT = Path(__file__).resolve().parents[3]


def test_every_note_has_a_place_of_its_own_and_may_hold_any_bytes() -> None:
    notes = Notes(3)
    written = {rank: (rank, bytes([rank, 0] * (NOTE_BYTES // 2 * rank // 3))) for rank in range(3)}
    for rank, (verdict, text) in written.items():
        notes.write(rank, verdict, text)
    assert {rank: notes.read(rank) for rank in range(3)} == written


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
