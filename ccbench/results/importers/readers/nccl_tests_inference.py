"""What an nccl-tests table says only by its figures: the collective, the ranks, how the run ended.

Counts: NVIDIA/nccl-tests src/*.cu (count is size / item for collectives on whole buffers, size / item / ranks
for those on one block per rank). Old all_gather and reduce_scatter: NVIDIA/nccl-tests#44.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import ITEM_BYTES
from ccbench.machine.flags import Flag
from ccbench.results.importers.log import DeviceLine, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.readers.nccl_tests_tables import OpenRun, OpenTable
from ccbench.topology.graph import Notice

_BLOCKED_OLD = ("all_gather", "reduce_scatter")
_MOST_RANKS = 1 << 20


def ranks_of_devices(devices: Sequence[DeviceLine]) -> int | None:
    """Ranks of one communicator: the largest rank and one more, or of the largest group of a split run.

    None without devices, and where every line says rank 0: then each process measured by itself.
    """
    if not devices:
        return None
    groups = {device.group for device in devices}
    if len(groups) > 1:
        return max(sum(device.group == group for device in devices) for group in groups)
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


def ranks_of_counts(rows: Sequence[ImportedRow]) -> int | None:
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
    blocks = ranks_of_counts(rows)
    ops = {row.op for row in rows}
    if blocks is None or (len(ops) > 1 and ops & {"", "none"}):
        return ""
    reduces = bool(ops - {"", "none"})
    if "type" in columns and "redop" not in columns and "root" not in columns:
        return "all_gather"
    if max(row.root for row in rows) >= 0:
        return "" if blocks > 1 else "reduce" if reduces else "broadcast"
    if blocks == 1:
        return _unrooted_whole(rows, reduces, ops, ranks)
    if reduces:
        return "reduce_scatter"
    if ("redop" in columns and ops == {""}) or _checked_outside_only(rows):
        return "all_to_all"
    return "all_gather" if any(row.in_place and row.wrong_elements is not None for row in rows) else ""


def _unrooted_whole(rows: Sequence[ImportedRow], reduces: bool, ops: set[str], ranks: int | None) -> str:
    """all_reduce or the send-receive ring, whose busbw is algbw; nccl-tests prints an op for both."""
    if not reduces:
        return "send_recv" if ops == {"none"} else ""
    rates = [(row.algbw or 0.0, row.busbw or 0.0) for row in rows]
    algbw, busbw = max(rates)
    if algbw != busbw or ranks == 1 or not algbw:
        return "all_reduce"
    if _checked_outside_only(rows) or (ranks is not None and ranks > 2):
        return "send_recv"
    return "all_reduce" if any(row.in_place and row.wrong_elements is not None for row in rows) else ""


def _checked_outside_only(rows: Sequence[ImportedRow]) -> bool:
    """nccl-tests cannot check all-to-all and send-receive in place, and says N/A there."""
    inside = [row.wrong_elements is not None for row in rows if row.in_place]
    return bool(inside) and not any(inside) and any(row.wrong_elements is not None for row in rows)


def ranks_of_rates(rows: Sequence[ImportedRow], collective: str) -> int | None:
    """The only number of ranks for which busbw / algbw can be the collective's factor, given the rounding."""
    row = COLLECTIVES.get(collective)
    low, high = 0.0, math.inf
    for one in rows:
        if (
            one.algbw
            and one.busbw
            and one.half_units[1]
            and one.half_units[2]
            and one.algbw > one.half_units[1]
        ):
            low = max(low, (one.busbw - one.half_units[2]) / (one.algbw + one.half_units[1]))
            high = min(high, (one.busbw + one.half_units[2]) / (one.algbw - one.half_units[1]))
    if row is None or not row.moves_data or high == math.inf or low >= high:
        return None
    if row.bus_factor(2) == row.bus_factor(3):
        return None
    # Factors are k (n - 1) / n = k - k / n: solved for n, then tried one up and one down.
    ceiling = row.bus_factor(2) * 2
    smallest, largest = ceiling / max(ceiling - low, 1e-12), ceiling / max(ceiling - high, 1e-12)
    if high >= ceiling or largest > _MOST_RANKS:
        return None
    fits = [n for n in range(max(1, int(smallest) - 1), int(largest) + 2) if low <= row.bus_factor(n) <= high]
    return fits[0] if len(fits) == 1 else None


def with_sizes_of_today(
    rows: Sequence[ImportedRow], collective: str, ranks: int | None
) -> tuple[ImportedRow, ...]:
    """Rows whose algbw counts one rank's bytes, flagged; a size of one rank's bytes is multiplied.

    Only for all_gather and reduce_scatter, and only where the figures say so: busbw = algbw x (ranks - 1)
    for the largest rate printed (for two ranks, where size x rate tell it too, by time x algbw = size / 2).
    """
    if collective not in _BLOCKED_OLD or ranks is None or ranks < 2 or not _per_rank_rates(rows, ranks):
        return tuple(rows)
    whole = ranks_of_counts(rows) == ranks
    flag = Flag.ALGBW_PER_RANK if whole else Flag.SIZE_PER_RANK
    changed = []
    for row in rows:
        size = row.size_bytes if whole else row.size_bytes * ranks
        extra = row.extra if whole else {**row.extra, "printed_size_bytes": row.size_bytes}
        changed.append(replace(row, size_bytes=size, flags=(*row.flags, flag), extra=extra))
    return tuple(changed)


def _per_rank_rates(rows: Sequence[ImportedRow], ranks: int) -> bool:
    """Whether the figures are those of the old count; the row with the largest rate has the most digits."""
    telling = [row for row in rows if row.algbw and row.busbw and row.seconds]
    if not telling:
        return False
    row = max(telling, key=lambda one: one.algbw or 0.0)
    algbw, busbw, seconds = row.algbw or 0.0, row.busbw or 0.0, row.seconds or 0.0
    if not math.isclose(busbw, algbw * (ranks - 1), rel_tol=0.02):
        return False
    moved = algbw * 1e9 * seconds
    printed = row.size_bytes / ranks if ranks_of_counts(rows) == ranks else row.size_bytes
    return math.isclose(moved, printed, rel_tol=0.05)


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
