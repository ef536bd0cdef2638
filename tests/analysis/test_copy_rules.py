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
PAIRS = [
    "0       N/A    395.10    395.20    395.10",
    "1    395.10       N/A    395.10    395.20",
    "2    395.20    395.10       N/A    395.10",
    "3    395.10    395.20    395.10       N/A",
]


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


def test_gpus_alike_to_their_host_are_no_verdict_and_no_doubt_beside_pairs(
    tmp_path: Path,
) -> None:
    host = nvbandwidth(
        "host_to_device_memcpy_ce",
        "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)",
        TO_HOST.replace("6.40", "55.3"),
    )
    pairs = nvbandwidth(
        "device_to_device_memcpy_read_ce",
        "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        *PAIRS,
    )
    assert answer(tmp_path, host).outcome is Outcome.CANNOT_SAY
    assert answer(tmp_path, host + pairs).outcome is Outcome.NOTHING_WRONG


def test_latencies_are_no_bandwidths(tmp_path: Path) -> None:
    latencies = [row.replace("395", "1450") for row in PAIRS]
    text = nvbandwidth(
        "device_to_device_latency_sm",
        "memory latency SM GPU(row) -> GPU(column) (ns)",
        *latencies,
    )
    assert not answer(tmp_path, text).evidence.of("peer_bandwidth")
