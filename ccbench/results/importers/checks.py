"""Rows whose own figures contradict each other are kept and flagged.

Three printed figures and a size are tied twice (NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = size / time,
and busbw = algbw x the collective's factor. Printed figures are rounded, so a row is in order when some
figures within half a unit of the last printed digit fulfil both.

Sizes of outputs that print one rank's block, once it is known how many ranks there were.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ccbench.collectives import COLLECTIVES
from ccbench.machine.flags import Flag
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable

_SLACK = 1e-4
"""Relative room beyond the printed rounding: tools may compute rates from times that they rounded."""


def checked(log: ImportedLog) -> ImportedLog:
    """``log`` with a flag on every row whose figures contradict each other; figures and order stay.

    What a row does not print, and ties whose factor is not known (collective or ranks not said), are not
    checked. Running it twice changes nothing more.
    """
    return replace(log, tables=tuple(_checked_table(table) for table in log.tables))


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """busbw / algbw of a collective on these ranks; None where either is not known or nothing moves."""
    row = COLLECTIVES.get(collective)
    if row is None or ranks is None or ranks < 1 or not row.moves_data:
        return None
    return row.bus_factor(ranks)


def _checked_table(table: ImportedTable) -> ImportedTable:
    factor = bus_factor(table.collective, table.ranks)
    return replace(table, rows=tuple(_checked_row(row, factor, table.ranks) for row in table.rows))


def _checked_row(row: ImportedRow, factor: float | None, ranks: int | None) -> ImportedRow:
    found = [
        flag for flag in row.flags if flag not in (Flag.ALGBW_CONTRADICTS_TIME, Flag.BUSBW_CONTRADICTS_ALGBW)
    ]
    moved: float | None = row.size_bytes
    if Flag.ALGBW_PER_RANK in row.flags or Flag.SIZE_PER_RANK in row.flags:
        # NVIDIA/nccl-tests#44: algbw = size / ranks / time, busbw = algbw x (ranks - 1).
        factor = None if ranks is None else float(ranks - 1)
        moved = None if ranks is None else row.size_bytes / ranks
    if Flag.SIZE_NOT_STATED in row.flags:
        moved = None
    if moved is not None and not _algbw_fits(row, moved):
        found.append(Flag.ALGBW_CONTRADICTS_TIME)
    if factor is not None and not _busbw_fits(row, factor):
        found.append(Flag.BUSBW_CONTRADICTS_ALGBW)
    return row if tuple(found) == row.flags else replace(row, flags=tuple(found))


def _algbw_fits(row: ImportedRow, moved_bytes: float) -> bool:
    if row.seconds is None or row.algbw is None:
        return True
    low, high = _around(row.seconds, row.half_units[0])
    slow, fast = _around(row.algbw, row.half_units[1])
    return _within(moved_bytes, low * slow * 1e9, high * fast * 1e9)


def _busbw_fits(row: ImportedRow, factor: float) -> bool:
    if row.algbw is None or row.busbw is None:
        return True
    slow, fast = _around(row.algbw, row.half_units[1])
    low, high = _around(row.busbw, row.half_units[2])
    return slow * factor * (1 - _SLACK) <= high and low <= fast * factor * (1 + _SLACK)


def _around(value: float, half_unit: float | None) -> tuple[float, float]:
    room = half_unit or 0.0
    return max(value - room, 0.0), value + room


def _within(value: float, low: float, high: float) -> bool:
    return math.isfinite(high) and low * (1 - _SLACK) <= value <= high * (1 + _SLACK)


def with_whole_sizes(table: ImportedTable) -> ImportedTable:
    """``table`` with nccl-tests' sizes in the rows that hold a block's, once its ranks are known.

    Without ranks, and without such rows, it is returned as it is; running it twice changes nothing more.
    """
    if table.ranks is None or not any(Flag.SIZE_OF_ONE_BLOCK in row.flags for row in table.rows):
        return table
    return replace(table, rows=tuple(_whole(row, table.ranks) for row in table.rows))


def _whole(row: ImportedRow, ranks: int) -> ImportedRow:
    if Flag.SIZE_OF_ONE_BLOCK not in row.flags:
        return row
    flags = tuple(flag for flag in row.flags if flag != Flag.SIZE_OF_ONE_BLOCK)
    return replace(row, size_bytes=row.size_bytes * ranks, flags=flags)
