"""Meaning of an nccl-tests table's columns and figures: by its header, else by rows that have none.

Forms met (github.com/NVIDIA/nccl-tests src/common.cu and src/util.cu, 2017 to 2026): ``bytes N type op``
with ``res``; ``size count type [redop] [root]`` with ``error``; the same with ``#wrong``; ``cputime`` for
``time`` (-C); i_min i_max i_p99 i_cv% after each placement (-I); #bitdiff; a timestamp of two words at the
end (-S); one placement instead of two. Counts: src/*.cu (count is size / item for collectives on whole
buffers, size / item / ranks for those on one block per rank). Old all_gather and reduce_scatter:
NVIDIA/nccl-tests#44.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, takewhile

from ccbench.dtypes import ITEM_BYTES
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import (
    DeviceLine,
    ImportedRow,
    checked_row,
    ranks_that_fit,
)
from ccbench.readers.benchmarks.words import DTYPES, is_rate, whole
from ccbench.readers.lines import figure

_NAMES = {
    "size": "size bytes",
    "count": "count n elements elems",
    "type": "type dtype datatype",
    "redop": "redop op",
    "time": "time cputime latency",
    "error": "error errors res",
}
COLUMN_OF_WORD = {word: name for name, words in _NAMES.items() for word in words.split()}
"""Columns by the words with which versions and ports head them."""
_MEASURED = ("time", "algbw", "busbw")
_WORD = re.compile(r"[A-Za-z][\w.+-]{0,31}")
_UNIT = re.compile(r"\([^()]{0,20}\)$")
_ABSENT = re.compile(r"n/?a|-?nan|-?inf(?:inity)?|null|none|-{1,3}", re.IGNORECASE)
_LARGEST_ROOT = 10_000
_FEWEST_GUESSED = 6


@dataclass(frozen=True)
class ColumnLayout:
    """Columns of a table, left to right; two placements are out of place, then in place.

    unread: words after them that are not read: a date and a time.
    """

    head: tuple[str, ...]
    placements: tuple[tuple[str, ...], ...]
    unread: int = 0


@dataclass(frozen=True)
class Cells:
    """One row taken apart. figures: per placement, column -> token; whole placements only.

    head: columns before the figures, as printed; "" where the row leaves one blank. missing: columns that the
    row should have and has not. surplus: words after the last column.
    """

    head: dict[str, str]
    figures: tuple[dict[str, str], ...]
    missing: int = 0
    surplus: tuple[str, ...] = ()


def header_layout(words: list[str]) -> ColumnLayout | None:
    """The layout that a header line gives, or None where the words are no header of this form."""
    # ``#wrong`` names the column wrong, ``algbw(GB/s)`` algbw.
    bare = (_UNIT.sub("", word.lower()).strip("#*:,") for word in words)
    names = [COLUMN_OF_WORD.get(word, word) for word in bare if word]
    if "size" in names[1:]:  # a second table stands beside this one
        names = names[: names.index("size", 1)]
    if not {"size", "algbw", "busbw"} <= set(names) or names[0] != "size":
        return None
    start = min(names.index(name) for name in _MEASURED if name in names)
    if any("time" in name for name in names[:start]):  # time:avg and the like: another tool's
        return None
    stamps = names.count("timestamp")
    placements: list[list[str]] = []
    for name in names[start : len(names) - stamps]:
        if name == names[start]:
            placements.append([])
        placements[-1].append(name)
    return ColumnLayout(tuple(names[:start]), tuple(map(tuple, placements)), 2 * stamps)


def guessed_layout(words: list[str]) -> ColumnLayout | None:
    """The layout of a row without a header: size, count, a known type, perhaps redop and root, figures.

    Only a layout in which every placement's time x algbw is the size, or one rank's part of it, is taken.
    """
    if len(words) < _FEWEST_GUESSED or words[2].lower() not in DTYPES:
        return None
    size, count = whole(words[0]), whole(words[1])
    has_op = _is_word(words[3])
    rest = words[4 if has_op else 3 :]
    if size is None or count is None or not all(map(is_figure, rest)):
        return None
    moved = {size, count * ITEM_BYTES[DTYPES[words[2].lower()]]}
    rooted = _is_root(rest[0])
    figures = rest[rooted:]
    for columns, placements in ((4, 2), (4, 1), (3, 2), (3, 1)):
        if len(figures) == columns * placements and all(
            _agrees(time, algbw, moved)
            for time, algbw in zip(figures[::columns], figures[1::columns], strict=True)
        ):
            # Old versions print the largest error (2e-07, 0e+00), new ones the number of wrong elements.
            last = figures[3] if columns == 4 else ""
            checked = ("error" if "e-" in last or "e+" in last else "wrong",) if last else ()
            options = [
                name for name, is_there in (("redop", has_op), ("root", rooted)) if is_there
            ]
            head = ("size", "count", "type", *options)
            return ColumnLayout(head, ((*_MEASURED, *checked),) * placements)
    return None


def _agrees(time: str, algbw: str, moved_bytes: set[int]) -> bool:
    """Return whether printed time (us) x algbw (GB/s) can be one of these sizes, given the digits."""
    seconds, rate = figure(time), figure(algbw)
    if seconds is None or rate is None:
        return seconds is rate and time != "-1"
    return any(is_rate(size, seconds.over(1e6), rate, 1e-3) for size in moved_bytes)


def row_cells(words: list[str], layout: ColumnLayout) -> Cells | None:
    """A line's words in the columns of ``layout``; None where the line is no row of it."""
    head: dict[str, str] = {}
    position = 0
    measured = sum(map(len, layout.placements))
    for name in layout.head:
        word = words[position] if position < len(words) else ""
        if name in ("size", "count"):
            if whole(word) is None:
                return None
            belongs = True
        elif name in ("type", "redop"):
            belongs = _is_word(word)
        else:
            # A column that this row leaves blank has no word before the figures.
            belongs = _is_root(word) if name == "root" else len(words) - position > measured
        head[name] = word if belongs else ""
        position += bool(head[name])
    printed = list(takewhile(_is_measured, words[position:]))
    rest = words[position + len(printed) :]
    figures: list[dict[str, str]] = []
    for columns in layout.placements:
        if len(printed) < len(columns):
            missing = measured - sum(map(len, figures)) - len(printed)
            return Cells(head, tuple(figures), missing, tuple(rest))
        figures.append(dict(zip(columns, printed, strict=False)))
        del printed[: len(columns)]
    return Cells(head, tuple(figures), surplus=tuple((printed + rest)[layout.unread :]))


def without_cut_rate(cells: Cells) -> Cells:
    """``cells`` without the last placement where its last word is a rate that lost digits.

    For a last line that nothing ends: both rates are printed with the same decimals.
    """
    if not cells.figures or cells.missing or cells.surplus:
        return cells
    last = cells.figures[-1]
    decimals = {len(last.get(name, "").partition(".")[2]) for name in ("algbw", "busbw")}
    if list(last)[-1] not in ("algbw", "busbw") or len(decimals) == 1:
        return cells
    return Cells(cells.head, cells.figures[:-1], missing=1)


def _is_word(word: str) -> bool:
    return (_WORD.fullmatch(word) is not None and not is_figure(word)) or word.lower() == "none"


def _is_root(word: str) -> bool:
    number = whole(word)
    return word == "-1" or (number is not None and number < _LARGEST_ROOT)


def is_figure(token: str) -> bool:
    """Return whether ``token`` can stand among figures: a number, a word for none, or -1 for no root."""
    return token == "-1" or _is_measured(token)


def _is_measured(token: str) -> bool:
    """Return whether ``token`` can be a time, a rate or a count; N/A and the like stand for none."""
    return (
        figure(token) is not None
        or whole(token) is not None
        or _ABSENT.fullmatch(token) is not None
    )


# -- figures, and what follows from them --------------------------------------------------------------------

_BLOCKED_OLD = ("all_gather", "reduce_scatter")


def ranks_of_devices(devices: Sequence[DeviceLine]) -> int | None:
    """Ranks of one communicator: the largest rank and one more, or of the largest group of a split run.

    None without devices, and where processes each say the same rank, as those that measured by themselves do.
    """
    if not devices or _repeats_ranks(devices):
        return None
    groups = [device.group for device in devices]
    if len(set(groups)) > 1:
        return max(map(groups.count, groups))
    return max(device.rank for device in devices) + 1


def _repeats_ranks(devices: Sequence[DeviceLine]) -> bool:
    return len({(device.group, device.rank) for device in devices}) < len(devices)


def lists_of_devices(devices: list[DeviceLine]) -> list[list[DeviceLine]]:
    """The devices of each run, in order, where ranks are listed again in other processes; else all of them.

    Runs of as many ranks each are told apart by process, by host, or else by where ranks begin at 0 again.
    """
    starts = accumulate(device.rank == 0 for device in devices)
    for places in (
        [(device.host, device.process_id) for device in devices],
        [device.host for device in devices],
        [*starts],
    ):
        lists: dict[object, list[DeviceLine]] = {}
        for place, device in zip(places, devices, strict=True):
            lists.setdefault(place, []).append(device)
        ranks = [sorted(device.rank for device in own) for own in lists.values()]
        if ranks and all(own == [*range(len(own))] == ranks[0] != [0] for own in ranks):
            return [*lists.values()]
    return [devices]


def nodes_of_devices(devices: Sequence[DeviceLine], ranks: int | None) -> int | None:
    """Hosts of the ranks; of a list with gaps only where ranks follow device numbers, as launchers do.

    The last rank must be listed then: its device is the last of a host.
    """
    if not devices or ranks is None or _repeats_ranks(devices) or not devices[0].host:
        return None
    hosts = len({device.host for device in devices})
    listed = {device.rank for device in devices}
    if len(listed) >= ranks or len({device.group for device in devices}) > 1:
        return hosts
    per_host = max(device.device or 0 for device in devices) + 1
    aligned = all(device.rank % per_host == device.device for device in devices)
    nodes, rest = divmod(ranks, per_host)
    return nodes if ranks - 1 in listed and aligned and not rest and nodes >= hosts else None


def ranks_of_figures(rows: Sequence[ImportedRow], collective: str) -> int | None:
    """Ranks as counts of one block say them, else the only number of ranks that the printed rates allow."""
    blocks = _blocks(rows)
    if blocks is not None and blocks > 1:
        return blocks
    possible = ranks_that_fit(rows, collective) or ()
    return possible[0] if len(possible) == 1 else None


def _blocks(rows: Sequence[ImportedRow]) -> int | None:
    """size / (count x item): 1 for whole buffers, the ranks for collectives on one block per rank."""
    ratios: set[int | None] = set()
    for row in rows:
        item = ITEM_BYTES.get(row.dtype)
        if item and row.count and row.size_bytes:
            ratio, rest = divmod(row.size_bytes, row.count * item)
            ratios.add(None if rest else ratio)
    return ratios.pop() if len(ratios) == 1 else None


def likely_collective(
    rows: Sequence[ImportedRow], columns: Sequence[str], ranks: int | None
) -> str:
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

    Only for all_gather and reduce_scatter, and only where the figures say so, in the row with the largest
    rate, which has the most digits: they contradict each other as they are, and agree with the flag.
    """
    if collective not in _BLOCKED_OLD or ranks is None or ranks < 2 or not rows:
        return tuple(rows)
    is_whole = _blocks(rows) == ranks
    flag, factor = (Flag.ALGBW_PER_RANK, 1) if is_whole else (Flag.SIZE_PER_RANK, ranks)
    of_today = tuple(
        replace(row, size_bytes=row.size_bytes * factor, flags=(*row.flags, flag))
        for row in rows
    )
    as_printed, flagged = max(
        zip(rows, of_today, strict=True), key=lambda pair: pair[0].algbw or 0.0
    )
    contradicts = (
        Flag.BUSBW_CONTRADICTS_ALGBW in checked_row(as_printed, collective, ranks).flags
    )
    agrees = contradicts and checked_row(flagged, collective, ranks) == flagged
    return of_today if agrees and as_printed.seconds else tuple(rows)
