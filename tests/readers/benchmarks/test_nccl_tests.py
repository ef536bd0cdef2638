from __future__ import annotations

import pytest

from ccbench.readers.benchmarks.log import (
    ImportedTable,
    LogOutcome,
    checked,
)
from ccbench.readers.benchmarks.nccl_tests import read, recognises
from tests.readers.benchmarks.nccl_tests_outputs import (
    SIZES,
    output,
)

WHOLE = output()


def table_of(text: str) -> ImportedTable:
    (table,) = read(text).tables
    return table


def test_a_whole_output_gives_everything_it_says() -> None:
    log = read(WHOLE)
    table = table_of(WHOLE)
    assert recognises(WHOLE)
    assert (log.tool, log.library, log.outcome) == ("nccl-tests", "NCCL", LogOutcome.COMPLETE)
    assert log.versions == {"nccl-tests": "2.17.1", "CUDA": "13.0", "NCCL": "2.28.9"}
    assert (table.collective, table.ranks, table.nodes, table.mode) == (
        "all_reduce",
        8,
        1,
        "streaming",
    )
    assert len(log.devices) == 8
    assert (log.devices[3].host, log.devices[3].device, log.devices[3].bus_id) == (
        "box0",
        3,
        "0000:13:00",
    )
    assert log.devices[3].model == "NVIDIA H100 80GB HBM3"
    assert table.facts["iterations"] == 20
    assert table.facts["warmup_iterations"] == 1
    assert [(row.size_bytes, row.in_place) for row in table.rows] == [
        (s, p) for s in SIZES for p in (False, True)
    ]
    assert checked(log) == log
    assert not log.warnings


def test_secrets_beside_the_variables_are_not_taken() -> None:
    log = read(
        "NCCL_DEBUG=INFO AWS_SECRET_ACCESS_KEY=abc TOKEN=def ./all_reduce_perf\n" + WHOLE
    )
    assert log.environment == {"NCCL_DEBUG": "INFO"}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "# OSU MPI Allreduce Latency Test v7.4\n# Size       Avg Latency(us)\n4        9.10\n",
        " size(B) count(elems) type time:avg(us) algbw(GB/s) busbw(GB/s)\n 8 2 fp32 63.52 0.00 0.00\n",
        "| payload | busbw | algbw |\n| ---: | ---: | ---: |\n| 32KiB | 1.44GBps | 0.82GBps |\n",
        '{"name":"allgather", "kernel":1, "algBw":291.52, "busBw":255.08, "size":1073741824, "time":3683}\n',
    ],
)
def test_other_texts_are_not_recognised_and_can_be_read(text: str) -> None:
    assert not recognises(text)
    assert read(text).outcome in (LogOutcome.UNKNOWN, LogOutcome.COMPLETE, LogOutcome.CUT)
