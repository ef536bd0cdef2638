"""How an nccl-tests run ended, as far as its output tells: whole, cut, crashed or hung."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ccbench.importing.log import ImportedRow, ImportedTable, Outcome
from ccbench.importing.readers.nccl_tests_tables import OpenRun, OpenTable
from ccbench.topology.graph import Notice

_ALIGNED_BYTES = 16
"""nccl-tests rounds one rank's block down to this (src/all_gather.cu and others)."""


def table_outcome(table: OpenTable, run: OpenRun) -> tuple[Outcome, list[Notice]]:
    """The outcome of one table, and what contradicts the closing lines where it is cut.

    Complete needs a closing line, no hole, every size that the settings announce, and rows whose mean is
    the closing average.
    """
    notices: list[Notice] = []
    if table.holes or not table.rows:
        return Outcome.CUT, notices
    average = _mean_busbw(table.rows)
    if (
        table.average is not None
        and average is not None
        and not _same_average(table.average, average, table.rows)
    ):
        text = f"the closing average is {table.average:g} GB/s, the rows' is {average:g}: rows are missing"
        return Outcome.CUT, [Notice("contradiction", text, table.line)]
    missing = _missing_sizes(table.rows, run)
    if missing:
        return Outcome.CUT, [Notice("truncated", missing, table.line)]
    if table.average is None and not table.concluded and table.wrong_values is None:
        return Outcome.CUT, notices
    return Outcome.COMPLETE, notices


def log_outcome(
    tables: Sequence[ImportedTable], runs: Sequence[OpenRun], failure: str, failure_line: str
) -> tuple[Outcome, str]:
    """The outcome of the file and one line of detail.

    A crash counts wherever it is reported; a report of a hang only where the tables did not end well, since
    connections may be retried and then succeed.
    """
    complete = bool(tables) and all(table.outcome is Outcome.COMPLETE for table in tables)
    if failure == "crashed":
        return Outcome.CRASHED, failure_line
    if failure == "hung" and not complete:
        return Outcome.HUNG, failure_line
    if complete:
        return Outcome.COMPLETE, ""
    if not tables and not runs:
        return Outcome.UNKNOWN, ""
    if not any(table.rows for table in tables):
        return Outcome.CUT, "the header is there and no row follows"
    return Outcome.CUT, "rows or closing lines are missing"


def _mean_busbw(rows: Sequence[ImportedRow]) -> float | None:
    rates = [row.busbw for row in rows if row.busbw is not None]
    return sum(rates) / len(rates) if rates else None


def _same_average(printed: float, mean: float, rows: Sequence[ImportedRow]) -> bool:
    """nccl-tests averages all placements of all sizes before rounding, and prints six digits."""
    room = max((row.half_units[2] or 0.0 for row in rows), default=0.0)
    return math.isclose(printed, mean, rel_tol=1e-3, abs_tol=max(room, 0.01))


def _missing_sizes(rows: Sequence[ImportedRow], run: OpenRun) -> str:
    smallest, largest = run.config.get("minimum_bytes"), run.config.get("maximum_bytes")
    step, unit = run.config.get("step"), run.config.get("step_unit")
    if smallest is None or largest is None or not step:
        return ""
    first, last = rows[0].size_bytes, rows[-1].size_bytes
    room = _ALIGNED_BYTES * 8 * (run.ranks or len(run.devices) or 1)
    if first > max(smallest, 1):
        return f"the settings start at {smallest} B, the rows at {first} B"
    following = (last + room) * step if unit == "factor" else last + room + step
    if ((unit == "factor" and step > 1) or unit == "bytes") and following <= largest:
        return f"the settings end at {largest} B, the rows at {last} B"
    return ""
