"""MPI's own benchmarks and Gloo's: OSU, IMB, gloo_benchmark."""

from __future__ import annotations

import pytest

from ccbench.readers.benchmarks import readers
from ccbench.readers.benchmarks.log import LogOutcome
from tests.readers.benchmarks import outputs
from tests.readers.benchmarks.logs import text_of

osu = readers()["osu"]


@pytest.mark.parametrize(
    ("name", "version"),
    [
        ("awkward_cpu_osu_allreduce_4n_ring_forced.txt", "5.7.1"),
        ("awkward_cpu_osu_allreduce_archer2.txt", "5.4.1"),
    ],
)
def test_every_row_of_a_published_table_is_read(name: str, version: str) -> None:
    text = text_of({"file": name})
    printed = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    log = osu.read(text)
    (table,) = log.tables
    assert (table.collective, log.versions) == ("all_reduce", {"osu": version})
    assert [(row.size_bytes, row.seconds) for row in table.rows] == [
        (int(size), float(time) / 1e6) for size, time in printed
    ]
    assert len(table.rows) == 19
    assert log.warnings == ()


imb = readers()["imb"]


def test_a_crash_counts_after_the_closing_line_too_and_a_time_out_only_before() -> None:
    log = imb.read(outputs.IMB + "n1: rank 3: Segmentation fault (core dumped)\n")
    assert (log.outcome, "Segmentation fault" in log.detail) == (LogOutcome.CRASHED, True)
    log = imb.read("UCX WARN connection to n2 timed out, retrying\n" + outputs.IMB)
    assert (log.outcome, log.detail) == (LogOutcome.COMPLETE, "")
