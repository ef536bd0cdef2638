"""Rates of copies as nvbandwidth prints them, and what may be said of them."""

from __future__ import annotations

from pathlib import Path

from ccbench.analysis.diagnose import Outcome
from tests.analysis.test_machine_rules import answer


def nvbandwidth(name: str, heading: str, *rows: str) -> str:
    columns = "".join(f"{gpu:10d}" for gpu in range(4))
    return (
        f"Running {name}.\n{heading}\n {columns}\n"
        + "".join(f" {row}\n" for row in rows)
        + f"\nSUM {name} 9\n\n"
    )


TO_HOST = "0     55.10     55.20      6.40     55.00"


def test_a_gpu_slow_to_its_host_is_named(tmp_path: Path) -> None:
    text = nvbandwidth(
        "device_to_host_memcpy_ce",
        "memcpy CE CPU(row) <- GPU(column) bandwidth (GB/s)",
        TO_HOST,
    )
    given = answer(tmp_path, "nvbandwidth Version: v0.8\n" + text)
    assert given.outcome is Outcome.PROBLEM
    assert (
        "1 of 4 GPUs slow to the host: GPU 2 6.4 GB/s in device_to_host_memcpy_ce, where 55.1 GB/s is usual"
        in given.sentence
    )
