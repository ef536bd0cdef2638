"""nccl-tests' lines put together into runs, tables and rows, whatever stands between them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.machine.flags import Flag
from ccbench.results.importers.log import DeviceLine, ImportedRow
from ccbench.results.importers.readers import nccl_tests_facts as facts
from ccbench.results.importers.readers.nccl_tests_columns import (
    Cells,
    Layout,
    extended_layout,
    figure,
    guessed_layout,
    half_unit,
    header_layout,
    is_figure,
    row_cells,
    whole,
    without_cut_rate,
)
from ccbench.results.importers.readers.nccl_tests_lines import Line
from ccbench.results.importers.readers.words import DTYPES, dtype_name
from ccbench.topology.graph import Notice

_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,12}:\s{0,12}(\S{1,40})")
_WRONG_VALUES = re.compile(r"Out of bounds values\s{0,12}:\s{0,12}(\d{1,12})")
_LOWERED = re.compile(r"Reducing maxBytes to (\d{1,20})")
_HOLE = re.compile(r"\[?(?:\.{3,6}|\u2026)\]?|.{0,40}\(?truncated.{0,60}|<snip>|\[snip\]", re.IGNORECASE)
_REMARK = re.compile(r"(\d{1,20}) B (in|out of) place: ([a-z_]{2,20})\s?(.{0,200})")
_WRITTEN = re.compile(
    r"written by ccbench: backend (\S{1,40})(?: (\S{1,60}))?, algorithm (\S{1,60}), protocol (\S{1,40})"
    r", mode ([^\s,]{1,40})"
)
FLAGS_WORD = "flags"
"""Stands where a remark has a status: what follows are flags of the case."""
_PLACED = re.compile(r"(\d{1,7}) ranks? on (\d{1,7}) nodes?;")
_RANK_TAG = re.compile(r"\[\d{1,6}\]")
_SHORTEST_LINE = 3
"""Characters of the shortest line that means anything: three points for lines left out."""
_FEWEST_WORDS = 4
"""Words of the shortest row: a size and three figures."""


@dataclass
class OpenTable:
    """A table while its lines are read."""

    layout: Layout | None
    line: int
    header: str = ""
    only_in_place: bool = False
    rows: list[ImportedRow] = field(default_factory=list)
    holes: list[int] = field(default_factory=list)
    average: float | None = None
    wrong_values: int | None = None
    concluded: bool = False
    closed: bool = False


@dataclass
class OpenRun:
    """One start of the program while its lines are read: what its header says, and its tables."""

    config: dict[str, Any] = field(default_factory=dict)
    devices: dict[DeviceLine, None] = field(default_factory=dict)
    programs: list[str] = field(default_factory=list)
    written: dict[str, Any] = field(default_factory=dict)
    ranks: int | None = None
    nodes: int | None = None
    started: bool = False
    concluded: bool = False
    tables: list[OpenTable] = field(default_factory=list)

    @property
    def table(self) -> OpenTable | None:
        """The table that is being read."""
        return self.tables[-1] if self.tables else None


class Tables:
    """Takes lines in order; ``finish`` gives the runs. Broken lines become notices and never raise."""

    def __init__(self) -> None:
        self.runs = [OpenRun()]
        self.notices: list[Notice] = []
        self._placement_above = ""
        self._pending: tuple[Line, list[str], Cells] | None = None

    def finish(self) -> list[OpenRun]:
        """The runs that say anything, after the last line."""
        self._close_pending()
        for run in self.runs:
            if not run.tables and (run.config or run.started):  # it ended before its table began
                run.tables.append(OpenTable(None, 0))
        return [run for run in self.runs if run.tables or run.config or run.devices or run.started]

    def take(self, line: Line) -> None:
        """One line, that is no message of the library."""
        if len(line.text) < _SHORTEST_LINE and self._pending is None:
            return
        words = line.cells()
        if self._wrapped(line, words) or not words:
            return
        if words[0][0].isdigit() and (self._maybe_row(line, words) or self._remark(line)):
            return
        if self._header(line, words) or self._footer(line) or self._preamble(line):
            return
        self._placement_above = line.text if "-place" in line.text else ""
        if words[0][0].isdigit():
            self._headless(line, words)
        elif (
            (self.runs[-1].tables or not line.commented)
            and len(line.text) < 120
            and _HOLE.fullmatch(line.text.strip())
        ):
            self._hole(line)

    def learn(self, text: str) -> None:
        """A message of the library: ranks and nodes of its communicator."""
        ranks, nodes = facts.communicator(text)
        run = self.runs[-1]
        run.ranks = max(filter(None, (run.ranks, ranks)), default=None)
        run.nodes = max(filter(None, (run.nodes, nodes)), default=None)

    def _run_for_preamble(self) -> OpenRun:
        run = self.runs[-1]
        if run.tables:
            self.runs.append(OpenRun())
        return self.runs[-1]

    def _preamble(self, line: Line) -> bool:
        if device := facts.device_line(line.text):
            self._run_for_preamble().devices[device] = None
        elif config := facts.config_facts(line.text):
            run = self._run_for_preamble()
            run.config = config
        elif program := facts.started_program(line.text):
            run = self._run_for_preamble() if program[0] == "starting" else self.runs[-1]
            run.started = run.started or program[0] == "starting"
            run.concluded = program[0] == "concluded"
            run.programs.append(program[1])
            if run.table and run.concluded:
                run.table.concluded = run.table.closed = True
        elif written := _WRITTEN.match(line.text):
            names = ("backend", "backend_version", "algorithm", "protocol", "mode")
            self.runs[-1].written |= {k: v for k, v in zip(names, written.groups(), strict=True) if v}
        elif placed := _PLACED.match(line.text):
            self.runs[-1].ranks, self.runs[-1].nodes = int(placed[1]), int(placed[2])
        elif lowered := _LOWERED.search(line.text):
            self.runs[-1].config["maximum_bytes"] = int(lowered[1])
        elif "Blocking Enabled:" in line.text:
            self.runs[-1].config["blocking"] = True
        else:
            return False
        return True

    def _header(self, line: Line, words: list[str]) -> bool:
        lowered = line.text.lower()
        if "busbw" not in lowered and "algbw" not in lowered:
            return False
        layout = header_layout(words)
        if layout is None:
            return False
        self._close_pending()
        # rccl-tests can leave a placement out (-O), and says so only above the header.
        only_in_place = "in-place" in self._placement_above and "out-of-place" not in self._placement_above
        self.runs[-1].tables.append(OpenTable(layout, line.number, line.text, only_in_place))
        return True

    def _footer(self, line: Line) -> bool:
        run = self.runs[-1]
        average, wrong = _AVERAGE.search(line.text), _WRONG_VALUES.search(line.text)
        if average is None and wrong is None:
            return False
        self._close_pending()
        if run.table is None:
            run.tables.append(OpenTable(None, line.number))
        table = run.tables[-1]
        if wrong is not None:
            table.wrong_values = int(wrong[1])
        if average is not None:
            table.average = figure(average[1].removesuffix("GB/s"))
            table.closed = True
        return True

    def _hole(self, line: Line) -> None:
        self._close_pending()
        table = self.runs[-1].table
        if table is not None and not table.closed:
            table.holes.append(line.number)
        self.notices.append(Notice("truncated", "lines were left out of the source here", line.number))

    def _wrapped(self, line: Line, words: list[str]) -> bool:
        """Whether this line is the rest of the row, or of the header, before it."""
        table = self.runs[-1].table
        if table is None or table.layout is None:
            return False
        if self._pending is not None:
            return self._continued(words, table.layout)
        longer = None if table.rows else extended_layout(table.layout, words)
        if longer is None:
            return False
        table.layout = longer
        return True

    def _continued(self, words: list[str], layout: Layout) -> bool:
        """Joins words to the row that waits for them, at a blank or inside of a figure.

        Figures may come in several pieces; other words must complete the row.
        """
        if self._pending is None or "type" not in layout.head or not words:
            return False
        if len(words) > 2 and words[2].lower() in DTYPES and words[0].isdecimal():  # a row of its own
            return False
        first, before, waiting = self._pending
        for joined in ([*before, *words], [*before[:-1], before[-1] + "".join(words[:1]), *words[1:]]):
            cells = row_cells(joined, layout)
            if cells is None or cells.surplus or cells.missing >= waiting.missing:
                continue
            if cells.missing and not all(map(is_figure, words)):
                continue
            if cells.missing:
                self._pending = first, joined, cells
            else:
                self._pending = None
                self._row(first, cells)
            return True
        return False

    def _maybe_row(self, line: Line, words: list[str]) -> bool:
        words = [word for word in words if word[0] != "[" or not _RANK_TAG.fullmatch(word)]
        table = self.runs[-1].table
        layout = table.layout if table is not None and not table.closed else None
        if len(words) < (_FEWEST_WORDS if layout is None or "type" not in layout.head else 2):
            return False
        cells = row_cells(words, layout) if layout is not None else None
        if cells is None or (cells.surplus and not cells.figures):
            guessed = guessed_layout(words)
            if guessed is not None:
                self._open(guessed, line.number)
                cells = row_cells(words, guessed)
        if cells is None or (cells.missing and cells.surplus and not cells.figures):
            return False
        self._close_pending()
        if line.cut:
            cells = without_cut_rate(cells)
        if cells.missing:
            self._pending = line, words, cells
        else:
            self._row(line, cells)
        return True

    def _open(self, guessed: Layout, number: int) -> None:
        """Makes room for a row whose columns no header names: the open table where there is one."""
        table = self.runs[-1].table
        if table is None or table.closed:
            self._close_pending()
            self.runs[-1].tables.append(OpenTable(guessed, number))
        elif table.layout is None:
            table.layout = guessed

    def _headless(self, line: Line, words: list[str]) -> None:
        """Figures that are no row, where rows stand: what is left of one."""
        table = self.runs[-1].table
        if table is not None and not table.closed and sum(map(is_figure, words)) >= _FEWEST_WORDS:
            self.notices.append(Notice("damaged_line", "figures without the start of their row", line.number))

    def _close_pending(self) -> None:
        if self._pending is not None:
            line, _, cells = self._pending
            self._pending = None
            self._row(line, cells)

    def _row(self, line: Line, cells: Cells) -> None:
        table = self.runs[-1].tables[-1]
        if cells.missing and self._only_in_place(line, table, cells):
            table.rows += imported_rows(replace(cells, missing=0), line.number, (True,))
            return
        if cells.missing:
            text = f"{cells.missing} columns of a row are missing"
            self.notices.append(Notice("damaged_line", text, line.number))
            if not cells.figures and not cells.head.get("type"):
                return
        table.rows += imported_rows(cells, line.number, (True,) if table.only_in_place else (False, True))

    def _only_in_place(self, line: Line, table: OpenTable, cells: Cells) -> bool:
        """Whether the figures of one placement stand under the second: the first was left blank."""
        if (
            len(cells.figures) != 1
            or table.layout is None
            or cells.missing != len(table.layout.placements[-1])
        ):
            return False
        rate = table.header.lower().find("busbw")
        first = line.text.find(" " + cells.figures[0].get("time", "\0") + " ")
        return rate >= 0 and first > rate

    def _remark(self, line: Line) -> bool:
        """A remark of ccbench's own tables on a case that has no figures."""
        remark = _REMARK.match(line.text)
        table = self.runs[-1].table
        if remark is None or table is None or not table.rows:
            return False
        last, in_place = table.rows[-1], remark[2] == "in"
        if remark[3] == FLAGS_WORD:
            return _flagged(table, int(remark[1]), in_place, remark[4].split())
        extra = {"status": remark[3], **({"detail": remark[4].strip()} if remark[4].strip() else {})}
        for position in range(max(0, len(table.rows) - 2), len(table.rows)):
            row = table.rows[position]
            if row.in_place is in_place and row.size_bytes == int(remark[1]):
                table.rows[position] = replace(row, extra={**row.extra, **extra})
                return True
        empty = replace(last, in_place=in_place, seconds=None, algbw=None, busbw=None, wrong_elements=None)
        table.rows.append(replace(empty, half_units=(None, None, None), extra=extra))
        return True


def _flagged(table: OpenTable, size_bytes: int, in_place: bool, flags: Iterable[str]) -> bool:
    """Give the newest row of that size and placement its flags; whether there is one."""
    for position in range(len(table.rows) - 1, max(-1, len(table.rows) - 3), -1):
        row = table.rows[position]
        if row.in_place is in_place and row.size_bytes == size_bytes:
            known = dict.fromkeys((*row.flags, *flags))
            table.rows[position] = replace(row, flags=tuple(known))
            return True
    return False


def imported_rows(cells: Cells, line: int, places: Iterable[bool] = (False, True)) -> list[ImportedRow]:
    """The placements of one row; placements that print nothing are left out, unless none prints anything."""
    kind = cells.head.get("type", "")
    op = cells.head.get("redop", "").lower()
    root = cells.head.get("root", "")
    flags = (Flag.INCOMPLETE,) * bool(cells.missing) + (Flag.SURPLUS_COLUMNS,) * bool(cells.surplus)
    other = {k: v for k, v in cells.head.items() if k not in ("size", "count", "type", "redop", "root") and v}
    if cells.tail:
        other["timestamp"] = " ".join(cells.tail)
    start = ImportedRow(
        whole(cells.head["size"]) or 0,
        whole(cells.head["count"]) if "count" in cells.head else None,
        dtype_name(kind),
        op,
        int(root) if root else -1,
        False,
        None,
        None,
        None,
        flags=flags,
        line=line,
        extra=other,
    )
    rows = [_placement(start, figures, where) for figures, where in zip(cells.figures, places, strict=False)]
    return [row for row in rows if _prints_something(row)] or rows[:1] or [start]


def _placement(start: ImportedRow, figures: dict[str, str], in_place: bool) -> ImportedRow:
    printed = [figures.get(name, "") for name in ("time", "algbw", "busbw")]
    values, halves = [figure(token) for token in printed], [half_unit(token) for token in printed]
    extra = dict(start.extra)
    for name, token in figures.items():
        if name == "error":
            extra["largest_error"] = figure(token)
        elif name not in ("time", "algbw", "busbw", "wrong"):
            extra[name] = figure(token)
    wrong = figure(figures.get("wrong", ""))
    return replace(
        start,
        in_place=in_place,
        seconds=None if values[0] is None else values[0] / 1e6,
        algbw=values[1],
        busbw=values[2],
        wrong_elements=None if wrong is None else int(wrong),
        half_units=(None if halves[0] is None else halves[0] / 1e6, halves[1], halves[2]),
        extra={key: value for key, value in extra.items() if value is not None},
    )


def _prints_something(row: ImportedRow) -> bool:
    return any(value is not None for value in (row.seconds, row.algbw, row.busbw))
