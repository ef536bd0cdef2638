"""Values of another tool's output, before it becomes a run, and tables of it as declared columns.

Every figure is kept as printed and nothing is derived; ``ranks`` marks rows whose figures contradict each
other, and ``runs`` turns them into cases.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ccbench.results.importers.words import (
    Line,
    capped,
    dtype_name,
    failures,
    no_row,
    op_of,
    root_of,
    whole,
    whole_size,
)
from ccbench.topology.graph import SourceWarning
from ccbench.topology.text import Figure, figure


class Outcome(str, Enum):
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
    op: likewise; ``none`` where nothing is reduced. root: -1 where there is none.
    seconds: per launch; None where the row prints no figure. samples_seconds: where the form has them.
    algbw, busbw: as printed, in 1e9 bytes per second; None where not printed.
    half_units: half a unit of the last printed digit of (seconds, algbw, busbw), in the same units as those,
        so that checks know the rounding; None where not printed.
    wrong_elements: None where nothing was checked. flags: see ``ranks``. line: 1-based, of the source.
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
    average_busbw: the closing average as printed. facts: what else the table's own header says.
    """

    collective: str
    rows: tuple[ImportedRow, ...]
    ranks: int | None = None
    nodes: int | None = None
    algorithm: str = "default"
    protocol: str = "default"
    mode: str = "streaming"
    average_busbw: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    line: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class ImportedLog:
    """One file.

    tool: nccl-tests, rccl-tests, osu, imb, torch-all-reduce-bench, param, mscclpp, nccom-test, hccl_test,
        gloo-benchmark. library: what was measured (NCCL, RCCL, Open MPI, ...), "" where not said.
    versions: of tool, library, driver, CUDA, ROCm, plug-ins, by those names.
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
    outcome: Outcome = Outcome.UNKNOWN
    detail: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Reader:
    """Reader of one tool's outputs.

    recognises: returns whether a text is of this tool; never raises. read: returns what the text says; raises
    UsageError where nothing can be made of it.
    """

    name: str
    recognises: Callable[[str], bool]
    read: Callable[[str], ImportedLog]


# -- tables of declared columns -----------------------------------------------------------------------------

_WHOLE = frozenset({"size_bytes", "count", "iterations", "group"})
_TEXT = frozenset({"algorithm", "check_result", "target"})
_FIGURES = ("seconds", "algbw", "busbw")
_NEEDED = frozenset({"size_bytes", "count", *_FIGURES})
"""Names whose cells must be readable, or the line is no row."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    heading: pattern of the whole heading. name: the field of ImportedRow that it holds, else its name in
    ``extra``, in which {} stands for the heading's first word; "" where it is not kept. per: printed units
    in one of ours (seconds, 1e9 bytes per second). words: what its words mean, where they stand for numbers.
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
        if self.name in _TEXT:
            return text
        found = figure(text)
        return found.over(self.per) if found else None


class Columns:
    """The columns that a tool may print."""

    def __init__(self, *columns: Column) -> None:
        self._columns = columns
        groups = (f"(?P<c{index}>{one.heading})" for index, one in enumerate(columns))
        self._pattern = re.compile("|".join(groups), re.IGNORECASE)

    def of(self, text: str) -> tuple[Column, ...]:
        """The columns of a header line, left to right; words between them are passed over."""
        return tuple(self._named(match) for match in self._pattern.finditer(text))

    def only(self, text: str) -> tuple[Column, ...]:
        """As ``of``, but none where the line says anything else."""
        return () if self._pattern.sub("", text).strip() else self.of(text)

    def each(self, headings: Sequence[str]) -> tuple[Column, ...]:
        """A column for each heading; one that is not known keeps its heading as its name."""
        found = ((heading, self._pattern.fullmatch(heading)) for heading in headings)
        return tuple(self._named(match) if match else Column(heading, heading) for heading, match in found)

    def _named(self, match: re.Match[str]) -> Column:
        column = self._columns[int((match.lastgroup or "c0")[1:])]
        if "{}" not in column.name:
            return column
        return Column(column.heading, column.name.format(match[0].split()[0].lower()), column.per)


def cells_of(columns: Sequence[Column], texts: Sequence[str]) -> dict[str, Any] | None:
    """Return what a line's cells hold, by name; None where one lacks, or one that counts cannot be read."""
    if len(columns) != len(texts):
        return None
    cells: dict[str, Any] = {}
    for column, text in zip(columns, texts, strict=True):
        value = column.value(text)
        # Of two columns of one name the first counts: tools print totals after what they are of.
        if value is not None:
            cells.setdefault(column.name, value)
        elif column.name in _NEEDED:
            return None
    return cells if "seconds" in cells or "algbw" in cells else None


def json_record(line: str) -> dict[str, str]:
    """The scalars of the JSON object that ``line`` is, numbers as their digits; empty where it is none."""
    if not line.lstrip().startswith("{"):
        return {}
    try:
        seen = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in seen.items() if isinstance(value, str)}


@dataclass
class OpenTable:
    """A table that is still being read. said: what the lines above it and around it say."""

    line: int
    columns: tuple[Column, ...] = ()
    said: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[Line, dict[str, Any]]] = field(default_factory=list)

    def take(self, line: Line, texts: Sequence[str]) -> list[SourceWarning]:
        """Keep the row that ``line`` is, or return the remark why it is none."""
        # Tables of these tools have columns of one width, so that a last row that nothing ends and that is
        # shorter than the one before has lost digits of its last figure.
        if line.unfinished and self.rows and len(line.text) < len(self.rows[-1][0].text):
            return [SourceWarning("truncated", "the last row has lost its end and was left out", line.number)]
        cells = cells_of(self.columns, texts)
        if cells is None:
            return [no_row(line)]
        self.rows.append((line, cells))
        return []


def row_of(line: int, cells: Mapping[str, Any], **given: Any) -> ImportedRow:
    """The row of these cells, with half a unit of each figure. given: fields that do not stand in cells.

    Cells that are no field of a row become its ``extra``, after what ``given`` has of it.
    """
    known: dict[str, Figure] = {name: cells[name] for name in _FIGURES if cells.get(name) is not None}
    halves = [known[name].half_unit if name in known else None for name in _FIGURES]
    fields = {name: cells[name] for name in ("count", "dtype", "wrong_elements") if name in cells}
    fields |= {name: one.value for name, one in known.items()}
    taken = {*_NEEDED, "dtype", "wrong_elements", ""}
    extra = {
        name: one.value if isinstance(one, Figure) else one
        for name, one in cells.items()
        if name not in taken and one is not None
    }
    size_bytes = given.pop("size_bytes", None)
    return ImportedRow(
        cells.get("size_bytes", 0) if size_bytes is None else size_bytes,
        half_units=(halves[0], halves[1], halves[2]),
        line=line,
        extra={**given.pop("extra", {}), **extra},
        **{**fields, **given},
    )


def block_row(
    line: int, cells: Mapping[str, Any], collective: str, ranks: int | None, **given: Any
) -> ImportedRow:
    """The row of a tool that prints the bytes of one rank's block, as MPI benchmarks do."""
    printed = cells.get("size_bytes", 0)
    size_bytes, flags = whole_size(collective, printed, ranks)
    usual = {"op": op_of(collective, "sum"), "root": root_of(collective)}
    extra = {"printed_size_bytes": printed}
    return row_of(line, cells, size_bytes=size_bytes, flags=flags, extra=extra, **{**usual, **given})


def log_of(
    tool: str,
    lines: Sequence[Line],
    tables: Sequence[ImportedTable],
    warnings: Sequence[SourceWarning],
    otherwise: tuple[Outcome, str] | None = None,
    **fields: Any,
) -> ImportedLog:
    """The log of ``lines``; a failure that they report counts before ``otherwise``, how its rows end."""
    torn = any(warning.kind == "truncated" for warning in warnings)
    hang, crash = failures(lines)
    # A hang before a crash, which the launcher often reports of the processes that it ends.
    failed = (Outcome.HUNG, hang) if hang else (Outcome.CRASHED, crash) if crash else None
    outcome, detail = failed or otherwise or (Outcome.CUT if torn else Outcome.UNKNOWN, "")
    return ImportedLog(
        tool, tables=tuple(tables), warnings=capped(warnings), outcome=outcome, detail=detail, **fields
    )
