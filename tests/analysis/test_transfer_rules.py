"""Rates of copies and transfers as tools print them, and what may be said of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ccbench.analysis.diagnose import Outcome
from tests.analysis.test_machine_rules import UP, answer, ibstat

RULE = "-" * 87


def perftest(
    device: str, *rows: str, title: str = "RDMA_Write BW Test", unit: str = "Gb/sec"
) -> str:
    return "\n".join(
        [
            RULE,
            f"                    {title}",
            f" Dual-port       : OFF\t\tDevice         : {device}",
            " Number of qps   : 4\t\tTransport type : IB",
            " Connection type : RC\t\tUsing SRQ      : OFF",
            " Mtu             : 4096[B]",
            " Link type       : IB",
            RULE,
            " local address: LID 0x11 QPN 0x0051 PSN 0x1a2b3c",
            " remote address: LID 0x12 QPN 0x0052 PSN 0x4d5e6f",
            RULE,
            f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]",
            *rows,
            RULE,
            "",
        ]
    )


FAST = " 1048576    5000             392.10             391.50             0.046671"
SLOW = " 1048576    5000             98.20              97.60              0.011635"
SMALL = " 2          5000             0.14               0.12               7.500000"


def kinds(given: object) -> list[str]:
    return [finding.kind for finding in given.diagnoses]  # type: ignore[attr-defined]


def test_a_nic_that_reaches_its_port_is_nothing_wrong(tmp_path: Path) -> None:
    given = answer(tmp_path, ibstat(UP, UP) + perftest("mlx5_0", SMALL, FAST))
    assert given.outcome is Outcome.NOTHING_WRONG
    assert given.diagnoses[0].subject == (
        "mlx5_0 reached 48.94 GB/s with RDMA_Write, 98 % of its port's 400 Gb/s"
    )
    assert "rates of transfers" in {part.form for part in given.evidence.parts}


def test_a_nic_far_below_its_port_is_a_problem(tmp_path: Path) -> None:
    given = answer(tmp_path, ibstat(UP, UP) + perftest("mlx5_1", SLOW))
    assert given.outcome is Outcome.PROBLEM
    assert "mlx5_1 reached 12.2 GB/s with RDMA_Write, 24 % of its port's 400" in given.sentence


def test_without_its_port_nobody_can_say(tmp_path: Path) -> None:
    given = answer(tmp_path, perftest("mlx5_1", SLOW))
    assert given.outcome is Outcome.CANNOT_SAY
    assert "mlx5_1 reached 12.2 GB/s" in given.sentence
    assert "ibstat" in given.diagnoses[0].advice


def test_small_messages_say_nothing_of_a_port(tmp_path: Path) -> None:
    given = answer(tmp_path, ibstat(UP) + perftest("mlx5_0", SMALL))
    assert given.outcome is Outcome.CANNOT_SAY
    assert kinds(given) == ["transfer_rates"]


def test_a_nic_unlike_the_others_is_named(tmp_path: Path) -> None:
    texts = [perftest(f"mlx5_{number}", FAST) for number in range(3)]
    given = answer(tmp_path, "".join(texts) + perftest("mlx5_3", SLOW))
    assert (
        "mlx5_3 reached 12.2 GB/s with RDMA_Write, where others reach 48.94" in given.sentence
    )
    assert kinds(given)[0] == "transfer_uneven"


def test_megabytes_are_of_two_to_the_twenty_and_both_directions_are_two_ports(
    tmp_path: Path,
) -> None:
    row = " 1048576    5000             92000.00           91000.00\t\t   0.091000"
    text = perftest("mlx5_0", row, title="RDMA_Read Bidirectional BW Test", unit="MB/sec")
    (note,) = answer(tmp_path, ibstat(UP) + text).diagnoses
    # 91,000 messages of 1 MiB a second, of 100 GB/s.
    assert note.subject == (
        "mlx5_0 reached 95.42 GB/s with RDMA_Read in both directions together, 95 % of its port's 800 Gb/s"
    )


def test_rows_of_other_tables_are_no_transfers(tmp_path: Path) -> None:
    osu = "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)  Min\n65536   9.1   8.0\n"
    given = answer(tmp_path, perftest("mlx5_0", FAST) + osu)
    assert len(given.evidence.of("transfer_rate")) == 1


def test_a_cut_table_has_its_whole_rows(tmp_path: Path) -> None:
    text = perftest("mlx5_0", FAST, SLOW)
    given = answer(
        tmp_path, text[: text.index("5000             98.20") + 6].replace("\n", "\r\n")
    )
    assert [line.values["rate"] for line in given.evidence.of("transfer_rate")] == ["48.9375"]


NIXL = f"""\
{"*" * 80}
NIXLBench Configuration
{"*" * 80}
Backend (--backend=[UCX,GDS,POSIX])                         : UCX
Op type (--op_type=[READ,WRITE])                            : WRITE
{"-" * 80}
Block Size (B)      Batch Size     B/W (GB/Sec)   Avg Lat. (us)  Avg Prep (us)  P99 Prep (us)
{"-" * 80}
4096                1              0.310000       13.2           60.0           62.0
8388608             1              46.100000      181.9          61.0           64.0
"""


@pytest.mark.parametrize(
    "text",
    [
        NIXL,
        NIXL.replace(
            "B/W (GB/Sec)   Avg Lat. (us)  Avg Prep (us)",
            "Avg Lat. (us)  B/W (MiB/Sec)  B/W (GB/Sec)",
        )
        .replace("46.100000      181.9          61.0  ", "181.9          43964.4        46.1  ")
        .replace(
            "0.310000       13.2           60.0  ", "13.2           295.6          0.31  "
        ),
    ],
    ids=["new", "old"],
)
def test_nixlbench_is_read_by_the_names_of_its_columns(text: str, tmp_path: Path) -> None:
    given = answer(tmp_path, text)
    assert given.outcome is Outcome.CANNOT_SAY
    assert "nixlbench reached 46.1 GB/s with UCX WRITE" in given.sentence


DEEP_EP = """\
[config] num_tokens=4096, hidden=7168, num_topk=8
[tuning] SMs 24, NVL chunk 8, RDMA chunk 16: 40.10 GB/s (RDMA), 131.20 GB/s (NVL)
[tuning] Best dispatch (FP8): SMs 24, NVL chunk 20, RDMA chunk 16, 44.87 GB/s (RDMA), 146.47 GB/s (NVL)
[tuning] Best combine: SMs 24, NVL chunk 4, RDMA chunk 12: 43.20 GB/s (RDMA), 141.10 GB/s (NVL)
"""


def test_deep_ep_states_its_best_rates_and_no_verdict(tmp_path: Path) -> None:
    given = answer(tmp_path, DEEP_EP)
    assert given.outcome is Outcome.CANNOT_SAY
    assert "DeepEP reached 44.87 GB/s with dispatch (FP8), RDMA" in given.sentence
    assert given.diagnoses[0].count == 4


def test_a_rank_of_deep_ep_unlike_the_others_is_named(tmp_path: Path) -> None:
    lines = [
        f"[rank {rank}] Dispatch bandwidth: {9.5 if rank == 2 else 41.2} GB/s, avg_t=180.10 us | "
        "Combine bandwidth: 42.60 GB/s, avg_t=340.20 us"
        for rank in range(4)
    ]
    given = answer(tmp_path, "\n".join(lines))
    assert (
        "rank 2 reached 9.5 GB/s with low latency, dispatch, where others reach 41.2"
        in given.sentence
    )


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
