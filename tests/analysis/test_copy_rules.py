"""Rates of copies as nvbandwidth and TransferBench print them, and what may be said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.analysis.diagnose import Outcome
from tests.analysis.test_machine_rules import answer


def kinds(given: object) -> list[str]:
    return [finding.kind for finding in given.diagnoses]  # type: ignore[attr-defined]


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


def test_gpus_alike_to_their_host_are_a_note_beside_pairs_and_else_no_verdict(
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


def encoded() -> str:
    matrix = [row.split()[1:] for row in PAIRS]
    matrix[1][3] = "48.2"
    tests = [
        {
            "name": "host_to_device_memcpy_ce",
            "status": "Passed",
            "bandwidth_matrix": [TO_HOST.split()[1:]],
        },
        {
            "name": "device_to_device_memcpy_read_ce",
            "status": "Passed",
            "bandwidth_matrix": matrix,
            "sum": 4000.5,
        },
        {"name": "device_to_device_latency_sm", "status": "Passed", "bandwidth_matrix": matrix},
        {"name": "multinode_bisect_write_ce", "status": "Waived"},
    ]
    return json.dumps(
        {"nvbandwidth": {"version": "v0.8", "Driver Version": "570.1", "testcases": tests}},
        indent=3,
    )


def test_the_json_of_nvbandwidth_says_the_same(tmp_path: Path) -> None:
    given = answer(tmp_path, encoded())
    assert kinds(given)[:2] == ["pair_uneven", "host_link_slow"]
    assert "1 -> 3 48.2 GB/s" in given.sentence
    assert len(given.evidence.of("peer_bandwidth")) == 12
    assert {line.line for line in given.evidence.of("host_bandwidth")} == {
        encoded().split("\n").index('            "name": "host_to_device_memcpy_ce",') + 1
    }


@pytest.mark.parametrize(
    "text",
    [
        encoded()[:-40],
        '{"nvbandwidth": {"testcases": [{"name": "host_to_device_memcpy_ce", "bandwidth_matrix": 4}, 5]}}',
        '{"nvbandwidth": [1]}',
        '{"nvbandwidth":' + "[" * 100_000,
    ],
    ids=["cut", "no matrix", "no object", "deep"],
)
def test_damaged_json_gives_no_rates(text: str, tmp_path: Path) -> None:
    given = answer(tmp_path, text)
    assert not given.evidence.of("peer_bandwidth", "host_bandwidth")


TRANSFER_BENCH = """\
TransferBench v1.50
Bytes Per Direction 268435456
Unidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)
 SRC+EXE\\DST    CPU 00    CPU 01       GPU 00    GPU 01    GPU 02
  CPU 00  ->     90.10     70.00        54.10     53.00     11.00
  CPU 01  ->     70.10     91.00        51.10     54.30     12.10

  GPU 00  ->     55.10     52.00      2100.00     57.10     57.20
  GPU 01  ->     52.00     55.20        57.30   2100.00     57.10
  GPU 02  ->     12.00     13.10        57.30     57.20   2100.00
                           CPU->CPU  CPU->GPU  GPU->CPU  GPU->GPU
Averages (During UniDir):     80.10     40.35     40.77     57.74

Bidirectional copy peak bandwidth GB/s [Local read / Remote write] (GPU-Executor: GFX)
     SRC\\DST    CPU 00    CPU 01       GPU 00    GPU 01    GPU 02
  GPU 00  ->     40.10     40.00          N/A     50.00     50.10
  GPU 00 <-      40.10     40.00          N/A     50.00     50.10
  GPU 00 <->     80.20     80.00          N/A    100.00    100.20
"""


def test_transfer_bench_states_pairs_and_hosts(tmp_path: Path) -> None:
    given = answer(tmp_path, TRANSFER_BENCH)
    pairs = given.evidence.of("peer_bandwidth")
    assert [
        (p.values["first"], p.values["second"], p.values["rate"])
        for p in pairs
        if p.values["direction"] == "Uni"
    ] == [
        ("0", "1", "57.10"),
        ("0", "2", "57.20"),
        ("1", "0", "57.30"),
        ("1", "2", "57.10"),
        ("2", "0", "57.30"),
        ("2", "1", "57.20"),
    ]
    assert [p.values["rate"] for p in pairs if p.values["direction"] == "Bi"] == [
        "100.00",
        "100.20",
    ]
    # The nearest of both processors counts.
    assert (
        "GPU 2 12.1 GB/s in unidirectional copies from host to GPU, where 54.1 GB/s"
        in given.sentence
    )
    assert kinds(given).count("host_link_slow") == 2


def test_a_cut_row_of_transfer_bench_is_left_out(tmp_path: Path) -> None:
    text = TRANSFER_BENCH[: TRANSFER_BENCH.index("     57.20   2100")]
    pairs = answer(tmp_path, text).evidence.of("peer_bandwidth")
    assert {pair.values["first"] for pair in pairs} == {"0", "1"}
