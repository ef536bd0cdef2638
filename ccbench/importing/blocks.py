"""Sizes of outputs that print one rank's block, once it is known how many ranks there were."""

from __future__ import annotations

from dataclasses import replace

from ccbench.importing.log import ImportedRow, ImportedTable

SIZE_OF_ONE_BLOCK = "size_of_one_block"
"""Flag of a row whose size_bytes is that of one rank's block, because the output does not say how many ranks.

MPI benchmarks print the block of all-gather, all-to-all, gather and scatter, nccl-tests the whole buffer.
"""


def with_whole_sizes(table: ImportedTable) -> ImportedTable:
    """``table`` with nccl-tests' sizes in the rows that hold a block's, once its ranks are known.

    Without ranks, and without such rows, it is returned as it is; running it twice changes nothing more.
    """
    if table.ranks is None or not any(SIZE_OF_ONE_BLOCK in row.flags for row in table.rows):
        return table
    return replace(table, rows=tuple(_whole(row, table.ranks) for row in table.rows))


def _whole(row: ImportedRow, ranks: int) -> ImportedRow:
    if SIZE_OF_ONE_BLOCK not in row.flags:
        return row
    flags = tuple(flag for flag in row.flags if flag != SIZE_OF_ONE_BLOCK)
    return replace(row, size_bytes=row.size_bytes * ranks, flags=flags)
