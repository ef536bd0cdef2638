"""What an nccl-tests table says only by its figures: the collective, the ranks, how the run ended.

Counts: NVIDIA/nccl-tests src/*.cu (count is size / item for collectives on whole buffers, size / item / ranks
for those on one block per rank). Old all_gather and reduce_scatter: NVIDIA/nccl-tests#44.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ccbench.dtypes import ITEM_BYTES
from ccbench.machine.flags import Flag
from ccbench.results.importers.log import DeviceLine, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.ranks import ranks_that_fit
from ccbench.topology.graph import Notice

if TYPE_CHECKING:
    from ccbench.results.importers.nccl_tests import OpenRun, OpenTable

_BLOCKED_OLD = ("all_gather", "reduce_scatter")
_ALIGNED_BYTES = 16
"""nccl-tests rounds one rank's block down to this (src/all_gather.cu and others)."""


def ranks_of_devices(devices: Sequence[DeviceLine]) -> int | None:
    """Ranks of one communicator: the largest rank and one more, or of the largest group of a split run.

    None without devices, and where every line says rank 0: then each process measured by itself.
    """
    if not devices:
        return None
    groups = [device.group for device in devices]
    if len(set(groups)) > 1:
        return max(map(groups.count, groups))
    largest = max(device.rank for device in devices)
    return None if largest == 0 and len(devices) > 1 else largest + 1


def nodes_of_devices(devices: Sequence[DeviceLine], ranks: int | None) -> int | None:
    """Hosts of the ranks; of a list with gaps only where ranks follow device numbers, as launchers do."""
    if not devices or ranks is None:
        return None
    hosts = len({device.host for device in devices})
    if len({device.rank for device in devices}) >= ranks or len({device.group for device in devices}) > 1:
        return hosts
    per_host = max(device.device or 0 for device in devices) + 1
    aligned = all(device.device is not None and device.rank % per_host == device.device for device in devices)
    return ranks // per_host if aligned and ranks % per_host == 0 and ranks // per_host >= hosts else None


def ranks_of_figures(rows: Sequence[ImportedRow], collective: str) -> int | None:
    """Ranks as counts of one block say them, else the only number of ranks that the printed rates allow."""
    blocks = _blocks(rows)
    if blocks is not None and blocks > 1:
        return blocks
    possible = ranks_that_fit(rows, collective) or ()
    return possible[0] if len(possible) == 1 else None


def _blocks(rows: Sequence[ImportedRow]) -> int | None:
    """size / (count x item): 1 for whole buffers, the ranks for collectives on one block per rank."""
    found: set[int | None] = set()
    for row in rows:
        item = ITEM_BYTES.get(row.dtype)
        if item and row.count and row.size_bytes:
            ratio, rest = divmod(row.size_bytes, row.count * item)
            found.add(None if rest else ratio)
    return found.pop() if len(found) == 1 else None


def likely_collective(rows: Sequence[ImportedRow], columns: Sequence[str], ranks: int | None) -> str:
    """The one collective that columns, op, root, count and in-place checks leave over; "" where several do.

    columns: those before the figures, by name. Versions before 2.11 have neither op nor root for all_gather,
    and a column for the op that stays blank for all-to-all.
    """
    blocks = _blocks(rows)
    ops = {row.op for row in rows}
    if blocks is None or (len(ops) > 1 and ops & {"", "none"}):
        return ""
    reduces = bool(ops - {"", "none"})
    if "type" in columns and "redop" not in columns and "root" not in columns:
        return "all_gather"
    if max(row.root for row in rows) >= 0:
        return "" if blocks > 1 else "reduce" if reduces else "broadcast"
    # nccl-tests cannot check all-to-all and send-receive in place, and says N/A there.
    inside = [row.wrong_elements is not None for row in rows if row.in_place]
    checked = any(row.wrong_elements is not None for row in rows)
    outside_only = bool(inside) and not any(inside) and checked
    if blocks == 1 and not reduces:
        return "send_recv" if ops == {"none"} else ""
    if blocks == 1:
        # The send-receive ring prints an op too; its busbw is algbw.
        algbw, busbw = max((row.algbw or 0.0, row.busbw or 0.0) for row in rows)
        if algbw != busbw or ranks == 1 or not algbw:
            return "all_reduce"
        if outside_only or (ranks is not None and ranks > 2):
            return "send_recv"
        return "all_reduce" if any(inside) else ""
    if reduces:
        return "reduce_scatter"
    if ("redop" in columns and ops == {""}) or outside_only:
        return "all_to_all"
    return "all_gather" if any(inside) else ""


def with_sizes_of_today(
    rows: Sequence[ImportedRow], collective: str, ranks: int | None
) -> tuple[ImportedRow, ...]:
    """Rows whose algbw counts one rank's bytes, flagged; a size of one rank's bytes is multiplied.

    Only for all_gather and reduce_scatter, and only where the figures say so: busbw = algbw x (ranks - 1)
    and time x algbw = one rank's bytes, in the row with the largest rate, which has the most digits.
    """
    telling = [row for row in rows if row.algbw and row.busbw and row.seconds]
    if collective not in _BLOCKED_OLD or ranks is None or ranks < 2 or not telling:
        return tuple(rows)
    size_is_whole = _blocks(rows) == ranks
    row = max(telling, key=lambda one: one.algbw or 0.0)
    algbw, busbw, seconds = row.algbw or 0.0, row.busbw or 0.0, row.seconds or 0.0
    moved = row.size_bytes / ranks if size_is_whole else row.size_bytes
    old_rates = math.isclose(busbw, algbw * (ranks - 1), rel_tol=0.02)
    if not old_rates or not math.isclose(algbw * 1e9 * seconds, moved, rel_tol=0.05):
        return tuple(rows)
    if size_is_whole:
        return tuple(replace(one, flags=(*one.flags, Flag.ALGBW_PER_RANK)) for one in rows)
    return tuple(
        replace(
            one,
            size_bytes=one.size_bytes * ranks,
            flags=(*one.flags, Flag.SIZE_PER_RANK),
            extra={**one.extra, "printed_size_bytes": one.size_bytes},
        )
        for one in rows
    )


def table_outcome(table: OpenTable, run: OpenRun) -> tuple[Outcome, list[Notice]]:
    """The outcome of one table, and what contradicts the closing lines where it is cut.

    Complete needs a closing line, no hole, every size that the settings announce, and rows whose mean is
    the closing average.
    """
    if table.has_hole or not table.rows:
        return Outcome.CUT, []
    rates = [row.busbw for row in table.rows if row.busbw is not None]
    if table.average is not None and rates:
        # nccl-tests averages all placements of all sizes before rounding, and prints six digits.
        mean = sum(rates) / len(rates)
        room = max(0.01, *(row.half_units[2] or 0.0 for row in table.rows))
        if not math.isclose(table.average, mean, rel_tol=1e-3, abs_tol=room):
            text = f"the closing average is {table.average:g} GB/s, the rows' is {mean:g}: rows are missing"
            return Outcome.CUT, [Notice("contradiction", text, table.line)]
    missing = _missing_sizes(table.rows, run)
    if missing:
        return Outcome.CUT, [Notice("truncated", missing, table.line)]
    if table.average is None and not table.concluded and table.wrong_values is None:
        return Outcome.CUT, []
    return Outcome.COMPLETE, []


def log_outcome(
    tables: Sequence[ImportedTable], has_started: bool, hang: str, crash: str
) -> tuple[Outcome, str]:
    """The outcome of the file and one line of detail.

    A crash counts wherever it is reported; a report of a hang only where the tables did not end well, since
    connections may be retried and then succeed.
    """
    complete = bool(tables) and all(table.outcome is Outcome.COMPLETE for table in tables)
    if crash:
        return Outcome.CRASHED, crash
    if hang and not complete:
        return Outcome.HUNG, hang
    if complete:
        return Outcome.COMPLETE, ""
    if not tables and not has_started:
        return Outcome.UNKNOWN, ""
    if not any(table.rows for table in tables):
        return Outcome.CUT, "the header is there and no row follows"
    return Outcome.CUT, "rows or closing lines are missing"


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
