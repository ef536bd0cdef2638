"""Values of another tool's output, before it becomes a run, and tables of it as declared columns.

Every figure is kept as printed; ``runs`` turns rows into cases. Size, time and both rates of a row are tied
twice (NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = size / time, and busbw = algbw x the collective's
factor, a known function of the ranks. Printed figures are rounded, so a row is in order when some figures
within half a unit of the last printed digit fulfil both. Rows whose figures contradict each other are
flagged, and how many ranks there were follows from the rates where nobody says.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.findings import SourceWarning
from ccbench.flags import Flag
from ccbench.readers.benchmarks.words import (
    LogLine,
    capped,
    dtype_name,
    failures,
    is_rate,
    whole,
)
from ccbench.readers.lines import PrintedFigure, figure


class LogOutcome(str, Enum):
    """End of the tool's run, as far as its output tells."""

    COMPLETE = "complete"  # the closing lines are there
    CUT = "cut"  # the text ends, or has a hole, where more should be
    CRASHED = "crashed"  # an error or a signal is reported
    HUNG = "hung"  # a time-out or a watchdog is reported, or the table stops under one
    UNKNOWN = "unknown"  # this form has no closing lines


@dataclass(frozen=True)
class DeviceLine:
    """One rank as a header lists it; None or "" where it does not say. line: 1-based, 0 where not known."""

    rank: int
    group: int | None = None
    process_id: int | None = None
    host: str = ""
    device: int | None = None
    bus_id: str = ""
    model: str = ""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class ImportedRow:
    """One placement (out of place or in place) of one row of a table.

    size_bytes: nccl-tests' size, the largest buffer of one rank. count: None where the form has none.
    dtype: ccbench's name where it has one, else the tool's own word; "" where the form says nothing.
    op: likewise; ``none`` or "" where nothing is reduced. root: -1 where there is none.
    seconds: per launch; None where the row prints no figure. samples_seconds: where the form has them.
    algbw, busbw: as printed, in 1e9 bytes per second; None where not printed.
    half_units: half a unit of the last printed digit of (seconds, algbw, busbw), in the same units as those,
        so that checks know the rounding; None where not printed.
    wrong_elements: None where nothing was checked. flags: see ``checked_row``. line: 1-based, of the source.
    extra: columns that only this form has (minimum, maximum, message rate, standard deviation ...).
    """

    size_bytes: int
    count: int | None = None
    dtype: str = ""
    op: str = ""
    root: int = -1
    in_place: bool = False
    seconds: float | None = None
    algbw: float | None = None
    busbw: float | None = None
    wrong_elements: int | None = None
    samples_seconds: tuple[float, ...] = ()
    half_units: tuple[float | None, float | None, float | None] = (None, None, None)
    flags: tuple[str, ...] = ()
    line: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ImportedTable:
    """Rows of one collective on one set of ranks.

    collective: ccbench's name where it has one, else the tool's own word, "" where the output does not say.
    ranks, nodes: None where the output does not say. algorithm, protocol: ``default`` unless stated or
        forced by an environment variable that the output shows. mode: as in Case.
    facts: what else the table's own header says.
    """

    collective: str
    rows: tuple[ImportedRow, ...]
    ranks: int | None = None
    nodes: int | None = None
    algorithm: str = "default"
    protocol: str = "default"
    mode: str = "streaming"
    outcome: LogOutcome = LogOutcome.UNKNOWN
    line: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ImportedLog:
    """One file.

    tool: nccl-tests, rccl-tests, osu, imb, torch-all-reduce-bench, param, mscclpp, nccom-test, hccl_test,
        ucc_perftest, gloo-benchmark. library: what was measured (NCCL, RCCL, Open MPI, ...), "" where not said.
    versions: of tool, library, CUDA, HIP and ROCm, by those names.
    environment: variables that the output shows (NCCL_*, ...). hints: lines from which the choice of the
        library shows (algorithm, protocol, channels), as printed.
    """

    tool: str
    source: str = ""
    library: str = ""
    tables: tuple[ImportedTable, ...] = ()
    devices: tuple[DeviceLine, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    environment: Mapping[str, str] = field(default_factory=dict, hash=False)
    hints: tuple[str, ...] = ()
    warnings: tuple[SourceWarning, ...] = ()
    outcome: LogOutcome = LogOutcome.UNKNOWN
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class LogReader:
    """Reader of one tool's outputs.

    recognises: returns whether a text is of this tool; never raises. read: returns what the text says; raises
    UsageError where nothing can be made of it.
    """

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[str], ImportedLog]


# -- tables of declared columns -----------------------------------------------------------------------------

_WHOLE = frozenset({"size_bytes", "count"})
_FIGURES = ("seconds", "algbw", "busbw")
NOT_PRINTED = "N/A"
"""Stands where a tool has no value for a column."""
_NEEDED = frozenset({"size_bytes", "count", *_FIGURES})
"""Names whose cells must be readable, or the line is no row."""
_FIELDS = _NEEDED | {"dtype", "wrong_elements"}
"""Names of cells that are fields of a row."""


@dataclass(frozen=True)
class PrintedColumn:
    """One column of a table.

    heading: pattern of the whole heading, without groups. name: the field of ImportedRow that it holds, else
    its name in ``extra``, in which {} stands for the heading; "" where it is not kept. per: printed units in
    one of ours (seconds, 1e9 bytes per second). words: what its words mean, where they stand for numbers.
    """

    heading: str
    name: str
    per: float = 1.0
    words: Mapping[str, int] | None = field(default=None, hash=False)

    def value(self, text: str) -> Any:
        """Return what a cell holds: a Figure in our unit, a number, text; None where it cannot be read."""
        if self.words is not None:
            return self.words.get(text.lower())
        if self.name in _WHOLE:
            return whole(text)
        if self.name == "dtype":
            return dtype_name(text)
        quantity = figure(text)
        return quantity.over(self.per) if quantity else None


class Columns:
    """The columns that a tool may print."""

    def __init__(self, *columns: PrintedColumn) -> None:
        self._columns = columns
        groups = (f"({column.heading})" for column in columns)
        self._pattern = re.compile("|".join(groups), re.IGNORECASE)

    def of(self, text: str) -> tuple[PrintedColumn, ...]:
        """The columns of a header line, left to right; words between them are passed over."""
        matches = self._pattern.finditer(text)
        named = ((self._columns[(match.lastindex or 1) - 1], match[0]) for match in matches)
        return tuple(
            replace(column, name=column.name.format(heading)) for column, heading in named
        )


def cells_of(columns: Sequence[PrintedColumn], texts: Sequence[str]) -> dict[str, Any] | None:
    """Return what a line's cells hold, by name; None where one lacks, or one that counts cannot be read."""
    if len(columns) != len(texts):
        return None
    cells: dict[str, Any] = {}
    for column, text in zip(columns, texts, strict=True):
        value = column.value(text)
        # Of two columns of one name the first counts: tools print totals after what they are of.
        if value is not None:
            cells.setdefault(column.name, value)
        elif column.name in _NEEDED and text != NOT_PRINTED:
            return None
    return cells if "seconds" in cells or "algbw" in cells else None


@dataclass
class OpenTable:
    """A table that is still being read. context: what the lines above it and around it say."""

    line: int
    columns: tuple[PrintedColumn, ...] = ()
    context: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[LogLine, dict[str, Any]]] = field(default_factory=list)


def row_of(line: int, cells: Mapping[str, Any], **more_fields: Any) -> ImportedRow:
    """The row of these cells, with half a unit of each figure. more_fields: fields that do not stand in cells.

    Cells that are no field of a row become its ``extra``, after what ``more_fields`` has of it.
    """
    seconds, algbw, busbw = map(cells.get, _FIGURES)
    values: dict[str, Any] = {
        name: value.value if isinstance(value, PrintedFigure) else value
        for name, value in cells.items()
        if name and value is not None
    }
    fields: dict[str, Any] = {name: values.pop(name) for name in _FIELDS if name in values}
    fields |= more_fields
    fields["extra"] = {**fields.get("extra", {}), **values}
    return ImportedRow(
        size_bytes=fields.pop("size_bytes", 0),
        half_units=(
            seconds and seconds.half_unit,
            algbw and algbw.half_unit,
            busbw and busbw.half_unit,
        ),
        line=line,
        **fields,
    )


def tables_of(rows: Iterable[tuple[ImportedTable, ImportedRow]]) -> list[ImportedTable]:
    """Return the tables of ``rows``, in the order in which they first appear.

    Rows whose tables, themselves without rows, are equal belong together.
    """
    kept: dict[ImportedTable, list[ImportedRow]] = {}
    for table, row in rows:
        kept.setdefault(table, []).append(row)
    return [
        replace(table, rows=tuple(members), line=members[0].line)
        for table, members in kept.items()
    ]


def log_of(
    tool: str,
    lines: Sequence[LogLine],
    tables: Sequence[ImportedTable],
    warnings: Sequence[SourceWarning],
    otherwise: tuple[LogOutcome, str] | None = None,
    **fields: Any,
) -> ImportedLog:
    """The log of ``lines``; a failure that they report counts before ``otherwise``, how its rows end."""
    torn = any(warning.kind == "truncated" for warning in warnings)
    hang, crash = failures(lines)
    if otherwise is not None and otherwise[0] is LogOutcome.COMPLETE:
        hang = ""  # what was retried came to its end
    # A hang before a crash, which the launcher often reports of the processes that it ends.
    failed = (LogOutcome.HUNG, hang) if hang else (LogOutcome.CRASHED, crash) if crash else None
    outcome, detail = (
        failed or otherwise or (LogOutcome.CUT if torn else LogOutcome.UNKNOWN, "")
    )
    return ImportedLog(
        tool,
        tables=tuple(tables),
        warnings=capped(warnings),
        outcome=outcome,
        detail=detail,
        **fields,
    )


MOST_RANKS = 16_384
"""Larger teams are not told apart by printed rates anyway: bus factors differ by less than their rounding."""

_SLACK = 1e-4
"""Relative room beyond the printed rounding: tools may compute rates from times that they rounded."""


@dataclass(frozen=True)
class StatedSystem:
    """Machine as the user gives it, for outputs that do not name theirs.

    machine: a name for the run. devices: of one node, None where no machine was named. nodes: None where
    not said. network: as in the catalog of networks, or empty. source: what names the machine for
    predictions (a catalog name or a file), "" for none. ranks: None where not said. library, dtype: of
    tables that name none, "" where not said. path: what the output shows of the path between GPUs, by name:
    ``channels`` (SHM or P2P), NCCL_P2P_LEVEL, NCCL_P2P_DISABLE.
    """

    machine: str = ""
    devices: int | None = None
    nodes: int | None = None
    network: str = ""
    source: str = ""
    ranks: int | None = None
    library: str = ""
    dtype: str = ""
    path: tuple[tuple[str, str], ...] = ()

    def ranks_on(self, nodes: int | None) -> int | None:
        """The ranks given, else one per device of ``nodes``, of the nodes given, or of one; or None."""
        if self.ranks is not None:
            return self.ranks
        return None if self.devices is None else self.devices * (nodes or self.nodes or 1)


@dataclass(frozen=True)
class LoggedTeam:
    """Ranks and nodes, 0 where nobody knows; where they are from, or why they are not known."""

    ranks: int
    nodes: int
    reason: str


def team_of(table: ImportedTable, system: StatedSystem) -> LoggedTeam:
    """Ranks and nodes of ``table``: as it says, else as the user gave, else as its rates leave possible."""
    if table.ranks is not None and table.ranks > 0:
        return LoggedTeam(table.ranks, _nodes(table, table.ranks, system), "stated")
    possible = ranks_that_fit(table.rows, table.collective)
    fits = ""
    if possible is not None:
        few = " or ".join(map(str, possible)) or "no number of ranks"
        some = few if len(possible) <= 3 else f"{possible[0]} to {possible[-1]}"
        fits = f"busbw / algbw as printed fits {some}"
    ranks = system.ranks_on(table.nodes)
    if ranks is not None and possible and ranks not in possible:
        cure = "give the ranks, or the machine and nodes, this was measured on"
        makes = "--ranks says" if system.ranks else "--machine and --nodes make"
        return LoggedTeam(0, 0, f"{makes} {ranks} ranks, but {fits}; {cure}")
    if ranks is not None:
        return LoggedTeam(ranks, _nodes(table, ranks, system), "given")
    if possible is not None and len(possible) == 1:
        return LoggedTeam(possible[0], _nodes(table, possible[0], system), "from busbw / algbw")
    remark = f" ({fits})" if fits else ""
    return LoggedTeam(
        0,
        0,
        f"the output does not say how many ranks{remark}; give --ranks, or --machine and --nodes",
    )


def ranks_that_fit(rows: Iterable[ImportedRow], name: str) -> tuple[int, ...] | None:
    """The numbers of ranks, 2 to MOST_RANKS, that all printed rates allow; None where rates say nothing.

    The rounding intervals of all rows together often leave one number of ranks only.
    """
    collective = COLLECTIVES.get(name)
    if collective is None or collective.bus_factor(2) == collective.bus_factor(3):
        return None
    low, high = 0.0, math.inf
    for row in rows:
        _, half_algbw, half_busbw = row.half_units
        doubtful = set(row.flags) - {Flag.INCOMPLETE, Flag.SURPLUS_COLUMNS}
        if (
            not row.algbw
            or not row.busbw
            or half_algbw is None
            or half_busbw is None
            or doubtful
        ):
            continue
        low = max(low, (row.busbw - half_busbw) / (row.algbw + half_algbw))
        if row.algbw > half_algbw:
            high = min(high, (row.busbw + half_busbw) / (row.algbw - half_algbw))
    if math.isinf(high) and low == 0.0:
        return None
    teams, factor = range(2, MOST_RANKS + 1), collective.bus_factor
    first = bisect_left(teams, low * (1 - 1e-9), key=factor)
    return tuple(teams[first : bisect_right(teams, high * (1 + 1e-9), key=factor)])


def _nodes(table: ImportedTable, ranks: int, system: StatedSystem) -> int:
    """Nodes as the table says, as the user gave; 0 where nobody knows."""
    if table.nodes is not None and table.nodes > 0:
        return table.nodes
    if (
        system.nodes is not None
        and system.nodes <= ranks <= (system.devices or ranks) * system.nodes
    ):
        return system.nodes
    if system.devices:
        return -(-ranks // system.devices)
    return 1 if ranks == 1 else 0


def checked(log: ImportedLog) -> ImportedLog:
    """``log`` with a flag on every row whose figures contradict each other; figures and order stay.

    What a row does not print, and ties whose factor is not known (collective or ranks not said), are not
    checked. Running it twice changes nothing more.
    """
    tables = (
        replace(
            table,
            rows=tuple(checked_row(row, table.collective, table.ranks) for row in table.rows),
        )
        for table in log.tables
    )
    return replace(log, tables=tuple(tables))


def shares_a_device(devices: Sequence[DeviceLine]) -> bool:
    """Return whether two of the ranks surely had one device: of one process, or at one address with its domain.

    Processes that see one GPU each all call it 0, and addresses repeat in other domains (GH200: 0009:01:00
    and 0019:01:00). NCCL refuses two ranks on a GPU (src/init.cc, "Duplicate GPU detected") unless told.
    """
    named = [device for device in devices if device.host]
    places: list[tuple[object, ...]] = [
        (device.host, device.process_id, device.device)
        for device in named
        if None not in (device.process_id, device.device)
    ]
    places += [(d.host, d.bus_id) for d in named if d.bus_id.count(":") > 1]
    return len({device.rank for device in devices}) == len(devices) and len({*places}) < len(
        places
    )


def with_shared_devices(log: ImportedLog) -> ImportedLog:
    """``log`` with a flag on every row if ranks of one host shared a device, so that no link was measured."""
    if not shares_a_device(log.devices):
        return log
    # A list may name a rank twice, of two runs in one file; all ranks of a table are told apart.
    tables = []
    for table in log.tables:
        rows = (
            replace(row, flags=tuple(dict.fromkeys((*row.flags, Flag.LOOPBACK))))
            for row in table.rows
        )
        shared = len(log.devices) == table.ranks
        tables.append(replace(table, rows=tuple(rows)) if shared else table)
    return replace(log, tables=tuple(tables))


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """busbw / algbw of a collective on these ranks; None where either is not known or nothing moves."""
    row = COLLECTIVES.get(collective)
    if row is None or ranks is None or ranks < 1 or not row.moves_data:
        return None
    return row.bus_factor(ranks)


def checked_row(row: ImportedRow, collective: str, ranks: int | None) -> ImportedRow:
    """``row`` with the flags of ``checked``."""
    own = (Flag.ALGBW_CONTRADICTS_TIME, Flag.BUSBW_CONTRADICTS_ALGBW)
    flags = [flag for flag in row.flags if flag not in own]
    factor = bus_factor(collective, ranks)
    moved: float | None = row.size_bytes
    if Flag.ALGBW_PER_RANK in row.flags or Flag.SIZE_PER_RANK in row.flags:
        # NVIDIA/nccl-tests#44: algbw = size / ranks / time, busbw = algbw x (ranks - 1).
        factor = None if ranks is None else float(ranks - 1)
        moved = None if ranks is None else row.size_bytes / ranks
    seconds, algbw, busbw = (
        None if value is None else PrintedFigure(value, half or 0.0)
        for value, half in zip((row.seconds, row.algbw, row.busbw), row.half_units, strict=True)
    )
    if moved is not None and seconds and algbw and not is_rate(moved, seconds, algbw, _SLACK):
        flags.append(own[0])
    if factor is not None and algbw and busbw:
        room = algbw.half_unit * factor + busbw.half_unit + busbw.value * _SLACK
        if abs(algbw.value * factor - busbw.value) > room:
            flags.append(own[1])
    return row if tuple(flags) == row.flags else replace(row, flags=tuple(flags))


def with_whole_sizes(table: ImportedTable) -> ImportedTable:
    """``table`` with nccl-tests' sizes in the rows that hold a block's, once its ranks are known.

    Without ranks it is returned as it is; running it twice changes nothing more.
    """
    ranks, flag = table.ranks, Flag.SIZE_OF_ONE_BLOCK
    if ranks is None:
        return table
    rows = (
        replace(
            row,
            size_bytes=row.size_bytes * ranks,
            flags=tuple(kept for kept in row.flags if kept != flag),
        )
        if flag in row.flags
        else row
        for row in table.rows
    )
    return replace(table, rows=tuple(rows))
