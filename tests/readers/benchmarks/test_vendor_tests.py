"""A test of a vendor: Amazon's nccom-test."""

from __future__ import annotations

from ccbench.readers.benchmarks import readers
from ccbench.readers.benchmarks.log import LogOutcome
from tests.readers.benchmarks.logs import text_of

nccom = readers()["nccom-test"]


def test_every_row_of_a_published_table_is_read() -> None:
    text = text_of({"file": "awkward_trn1_nccom_all_reduce.txt"})
    printed = [line.split() for line in text.splitlines()[1:] if not line.startswith("Avg")]
    log = nccom.read(text)
    (table,) = log.tables
    assert [(row.size_bytes, row.dtype, row.seconds) for row in table.rows] == [
        (int(cells[0]), "float32", float(cells[3]) / 1e6) for cells in printed
    ]
    assert len(table.rows) == 17
    assert (log.outcome, log.warnings, table.collective) == (LogOutcome.COMPLETE, (), "")
