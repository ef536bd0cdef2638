"""Reads the text of NVIDIA's nccl-tests and its ports: every version, whole or damaged.

A text that holds nothing of nccl-tests gives a log without tables and a notice that says so: ``read`` takes
any text and raises nothing. Forms: github.com/NVIDIA/nccl-tests src/common.cu, src/util.cu.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from ccbench.collectives import COLLECTIVES
from ccbench.machine.flags import Flag
from ccbench.results.importers.columns import row_of
from ccbench.results.importers.lines import Line, failures, source_lines, whole
from ccbench.results.importers.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.nccl_tests_columns import (
    Cells,
    Layout,
    guessed_layout,
    header_layout,
    is_figure,
    is_whole_header,
    likely_collective,
    log_outcome,
    nodes_of_devices,
    ranks_of_devices,
    ranks_of_figures,
    row_cells,
    table_outcome,
    with_sizes_of_today,
    without_cut_rate,
)
from ccbench.results.importers.words import LibraryLines, communicator, dtype_name, program_collective
from ccbench.topology.graph import Notice
from ccbench.topology.text import Figure, figure

_MARKS = re.compile(
    "Avg bus bandwidth|nccl-tests version|rccl-tests: Version|Collective test starting|minBytes"
)
_LOOKED_AT = 4000
"""Lines of a text that ``recognises`` looks at, messages of the library not counted."""

_DEVICE = re.compile(
    r"Rank\s{1,9}(?P<rank>\d{1,9})\s{1,9}(?:Group\s{1,9}(?P<group>\d{1,9})\s{1,9})?"
    r"Pid\s{1,12}(?P<process_id>\d{1,12})\s{1,9}on\s{1,64}(?P<host>\S{1,255})\s{1,9}"
    r"device\s{1,9}(?P<device>\d{1,6})\s{1,9}\[(?P<bus_id>[0-9A-Fa-fx:.]{1,32})\]\s{0,9}(?P<model>.{0,120})"
)
_NUMBERS_OF_DEVICE = {"rank", "group", "process_id", "device"}
_SETTINGS = {
    "nThread": "threads",
    "nGpus": "gpus_per_thread",
    "nGpus(perProc)": "gpus_per_thread",
    "minBytes": "minimum_bytes",
    "maxBytes": "maximum_bytes",
    "step": "step",
    "warmup iters": "warmup_iterations",
    "agg iters": "aggregated_iterations",
    "iters": "iterations",
    "validation": "validation",
    "graph": "graph_launches",
    "unalign": "misaligned_elements",
}
"""Words of the line of settings, and the facts they become."""

_SETTING = re.compile(
    rf"({'|'.join(map(re.escape, _SETTINGS))}):?\s{{1,4}}(\d{{1,20}})(?:\((factor|bytes)\))?"
)
_STARTING = re.compile(r"Collective test (starting|concluded): (\S{1,80})")
_AVERAGE = re.compile(r"Avg bus bandwidth\s{0,12}:\s{0,12}(\S{1,40})")
_WRONG_VALUES = re.compile(r"Out of bounds values\s{0,12}:\s{0,12}(\d{1,12})")
_LOWERED = re.compile(r"Reducing maxBytes to (\d{1,20})")
_HOLE = re.compile(r"\[?(?:\.{3,6}|\u2026)\]?|.{0,40}\(?truncated.{0,60}|<snip>|\[snip\]", re.IGNORECASE)
_REMARK = re.compile(r"(\d{1,20}) B (in|out of) place: ([a-z_]{2,20})\s?(.{0,200})")
_WRITTEN = re.compile(
    r"written by ccbench: backend (?P<backend>\S{1,40})(?: (?P<backend_version>\S{1,60}))?"
    r", algorithm (?P<algorithm>\S{1,60}), protocol (?P<protocol>\S{1,40}), mode (?P<mode>[^\s,]{1,40})"
)
_PLACED = re.compile(r"(\d{1,7}) ranks? on (\d{1,7}) nodes?;")
_COMMENT = re.compile(r"\s{0,200}#+[ \t]?")
_RANK_TAG = re.compile(r"\[\d{1,6}\]")
_RULES = dict.fromkeys(range(9472, 9600), " ") | {ord("|"): " ", ord("\u00a0"): " "}
"""Box-drawing characters and bars stand between cells and mean nothing."""
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
    has_hole: bool = False
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
    written: dict[str, str] = field(default_factory=dict)
    ranks: int | None = None
    nodes: int | None = None
    started: bool = False
    tables: list[OpenTable] = field(default_factory=list)


class Tables:
    """Takes lines in order; ``finish`` gives the runs. Broken lines become notices and never raise."""

    def __init__(self) -> None:
        self.runs = [OpenRun()]
        self.notices: list[Notice] = []
        self._placement_above = ""

    @property
    def _run(self) -> OpenRun:
        return self.runs[-1]

    @property
    def _table(self) -> OpenTable | None:
        return self._run.tables[-1] if self._run.tables else None

    def finish(self) -> list[OpenRun]:
        """The runs that say anything, after the last line."""
        for run in self.runs:
            if not run.tables and (run.config or run.started):  # it ended before its table began
                run.tables.append(OpenTable(None, 0))
        return [run for run in self.runs if run.tables or run.devices]

    def take(self, line: Line) -> None:
        """One line."""
        if line.message:
            self._learn(line.text)
            return
        comment = _COMMENT.match(line.text)
        text = line.text[comment.end() :] if comment else line.text
        words = text.translate(_RULES).split()
        if not words:
            return
        is_number = words[0][0].isdigit()
        if is_number and (self._maybe_row(line, text, words) or self._remark(text)):
            return
        if self._header(line, text, words) or self._footer(line, text) or self._preamble(text):
            return
        self._placement_above = text if "-place" in text else ""
        if is_number:
            self._headless(line, words)
        elif (self._run.tables or not comment) and len(text) < 120 and _HOLE.fullmatch(text.strip()):
            if self._table is not None and not self._table.closed:
                self._table.has_hole = True
            self.notices.append(Notice("truncated", "lines were left out of the source here", line.number))

    def _learn(self, message: str) -> None:
        ranks, nodes = communicator(message)
        self._run.ranks = max(filter(None, (self._run.ranks, ranks)), default=None)
        self._run.nodes = max(filter(None, (self._run.nodes, nodes)), default=None)

    def _new_run(self) -> OpenRun:
        """The run that a line of a header belongs to: another one, once the last has a table."""
        if self._run.tables:
            self.runs.append(OpenRun())
        return self._run

    def _preamble(self, text: str) -> bool:
        """A line of a run's header, or of what stands around its tables."""
        if device := _DEVICE.search(text) if "Pid" in text else None:
            said: dict[str, Any] = {name: one for name, one in device.groupdict().items() if one}
            said |= {name: int(said[name]) for name in _NUMBERS_OF_DEVICE & said.keys()}
            self._new_run().devices[DeviceLine(**said)] = None
        elif settings := _SETTING.findall(text) if "minBytes" in text else ():
            config: dict[str, Any] = {_SETTINGS[word]: int(value) for word, value, _ in settings}
            config.update(("step_unit", unit) for _, _, unit in settings if unit)
            self._new_run().config = config
        elif program := _STARTING.search(text):
            starts = program[1] == "starting"
            run = self._new_run() if starts else self._run
            run.started = run.started or starts
            run.programs.append(program[2])
            if self._table and not starts:
                self._table.concluded = self._table.closed = True
        elif written := _WRITTEN.match(text):
            self._run.written |= {name: value for name, value in written.groupdict().items() if value}
        elif placed := _PLACED.match(text):
            self._run.ranks, self._run.nodes = int(placed[1]), int(placed[2])
        elif lowered := _LOWERED.search(text):
            self._run.config["maximum_bytes"] = int(lowered[1])
        elif "Blocking Enabled:" in text:
            self._run.config["blocking"] = True
        else:
            return False
        return True

    def _header(self, line: Line, text: str, words: list[str]) -> bool:
        layout = header_layout(words) if "bw" in text.lower() else None
        if layout is None:
            return False
        # rccl-tests can leave a placement out (-O), and says so only above the header.
        only_in_place = "in-place" in self._placement_above and "out-of-place" not in self._placement_above
        self._run.tables.append(OpenTable(layout, line.number, line.text, only_in_place))
        return True

    def _footer(self, line: Line, text: str) -> bool:
        average, wrong = _AVERAGE.search(text), _WRONG_VALUES.search(text)
        if average is None and wrong is None:
            return False
        table = self._table or OpenTable(None, line.number)
        if not self._run.tables:
            self._run.tables.append(table)
        if wrong is not None:
            table.wrong_values = int(wrong[1])
        if average is not None:
            printed = figure(average[1].removesuffix("GB/s"))
            table.average, table.closed = printed.value if printed else None, True
        return True

    def _maybe_row(self, line: Line, text: str, words: list[str]) -> bool:
        words = [word for word in words if not _RANK_TAG.fullmatch(word)]
        table = self._table
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
        self._row(line, without_cut_rate(cells) if line.unfinished else cells)
        return True

    def _open(self, guessed: Layout, number: int) -> None:
        """Make room for a row whose columns no header names: the open table where there is one."""
        table = self._table
        if table is None or table.closed:
            self._run.tables.append(OpenTable(guessed, number))
        elif table.layout is None:
            table.layout = guessed

    def _headless(self, line: Line, words: list[str]) -> None:
        """Figures that are no row, where rows stand: what is left of one."""
        open_here = self._table is not None and not self._table.closed
        if open_here and sum(map(is_figure, words)) >= _FEWEST_WORDS:
            self.notices.append(Notice("damaged_line", "figures without the start of their row", line.number))

    def _row(self, line: Line, cells: Cells) -> None:
        table = self._run.tables[-1]
        if cells.missing and _only_in_place(line, table, cells):
            table.rows += _placements(replace(cells, missing=0), line.number, (True,))
            return
        if cells.missing:
            text = f"{cells.missing} columns of a row are missing"
            self.notices.append(Notice("damaged_line", text, line.number))
            if not cells.figures and not cells.head.get("type"):
                return
        table.rows += _placements(cells, line.number, (True,) if table.only_in_place else (False, True))

    def _remark(self, text: str) -> bool:
        """A remark of ccbench's own tables on a case: its flags, or its status where it has no figures."""
        remark = _REMARK.match(text)
        table = self._table
        if remark is None or table is None or not table.rows:
            return False
        size, in_place, word, more = int(remark[1]), remark[2] == "in", remark[3], remark[4].strip()
        are_flags = word == "flags"
        extra = {"status": word, **({"detail": more} if more else {})}
        for index in range(len(table.rows) - 1, max(-1, len(table.rows) - 3), -1):
            row = table.rows[index]
            if row.in_place is in_place and row.size_bytes == size:
                flags = tuple(dict.fromkeys((*row.flags, *more.split()))) if are_flags else row.flags
                kept = row.extra if are_flags else {**row.extra, **extra}
                table.rows[index] = replace(row, flags=flags, extra=kept)
                return True
        if are_flags:
            return False
        nothing: dict[str, Any] = dict.fromkeys(("seconds", "algbw", "busbw", "wrong_elements"))
        nothing |= {"half_units": (None, None, None), "in_place": in_place, "extra": extra}
        table.rows.append(replace(table.rows[-1], **nothing))
        return True


def _only_in_place(line: Line, table: OpenTable, cells: Cells) -> bool:
    """Return whether the figures of one placement stand under the second: the first was left blank."""
    if len(cells.figures) != 1 or table.layout is None or cells.missing != len(table.layout.placements[-1]):
        return False
    rate = table.header.lower().find("busbw")
    first = line.text.find(" " + cells.figures[0].get("time", "\0") + " ")
    return rate >= 0 and first > rate


def _placements(cells: Cells, line: int, places: Iterable[bool]) -> list[ImportedRow]:
    """The placements of one row; placements that print nothing are left out, unless none prints anything."""
    head = dict(cells.head)
    doubts = {Flag.INCOMPLETE: cells.missing, Flag.SURPLUS_COLUMNS: cells.surplus}
    start: dict[str, Any] = {
        "size_bytes": whole(head.pop("size")) or 0,
        "count": whole(head.pop("count", "")),
        "dtype": dtype_name(head.pop("type", "")),
        "op": head.pop("redop", "").lower(),
        "root": int(head.pop("root", "") or -1),
        "flags": tuple(flag for flag, is_so in doubts.items() if is_so),
    }
    head["timestamp"] = " ".join(cells.tail)
    start["extra"] = {name: word for name, word in head.items() if word}
    rows = []
    for printed, in_place in zip(cells.figures, places, strict=False):
        found: dict[str, Figure | None] = {name: figure(word) for name, word in printed.items()}
        time, wrong, error = (found.pop(name, None) for name in ("time", "wrong", "error"))
        measured = {**found, "seconds": time.over(1e6) if time else None, "largest_error": error}
        wrong_elements = int(wrong.value) if wrong else None
        row = row_of(line, measured, **start, in_place=in_place, wrong_elements=wrong_elements)
        rows.append(row)
    telling = [row for row in rows if (row.seconds, row.algbw, row.busbw) != (None, None, None)]
    return telling or rows[:1] or [row_of(line, {}, **start)]


def recognises(text: str) -> bool:
    """Return whether ``text`` is of nccl-tests or its ports, judged by its own words or a row's figures."""
    tables = Tables()
    for line in islice((line for line in _lines(text) if not line.message), _LOOKED_AT):
        if "time:avg" in line.text:  # nccom-test, whose rows and closing line look the same
            return False
        if _MARKS.search(line.text):
            return True
        tables.take(line)
        if any(table.layout for table in tables.runs[-1].tables):
            return True
    return False


def _lines(text: str) -> Iterable[Line]:
    return source_lines(text, is_whole_header if "size" in text and "algbw" in text else None)


def read(text: str) -> ImportedLog:
    """The log that ``text`` is; see the module. Sizes are today's nccl-tests sizes, figures as printed."""
    tables, said = Tables(), LibraryLines()
    around: list[Line] = []
    for line in _lines(text):
        tables.take(line)
        if line.message or not (line.text[:1].isspace() or line.text[:1].isdigit()):
            said.take(line)
            around.append(line)
    runs = tables.finish()
    program = next(filter(None, (program_collective(line.text) for line in around)), "")
    built = [_built(table, run, program, said.environment) for run in runs for table in run.tables]
    notices = [*tables.notices, *(notice for _, found in built for notice in found)]
    kept = tuple(table for table, _ in built)
    outcome, detail = log_outcome(kept, bool(runs), *failures(around))
    if outcome in (Outcome.HUNG, Outcome.CRASHED):
        kept = tuple(t if t.outcome is Outcome.COMPLETE else replace(t, outcome=outcome) for t in kept)
    if not kept and not runs and not said.versions:
        notices.append(Notice("unsupported", "no line of nccl-tests is in this text"))
    is_rccl = any("rccl-tests" in line.text or "RCCL version" in line.text for line in around)
    return ImportedLog(
        tool="rccl-tests" if is_rccl else "nccl-tests",
        library="RCCL" if is_rccl else "NCCL" if kept or "NCCL" in said.versions else "",
        tables=kept,
        devices=tuple(dict.fromkeys(device for run in runs for device in run.devices)),
        versions=said.versions,
        environment=said.environment,
        hints=said.hints,
        notices=tuple(sorted(notices, key=lambda notice: notice.line or 0)),
        outcome=outcome,
        detail=detail,
    )


def _built(
    table: OpenTable, run: OpenRun, program: str, environment: dict[str, str]
) -> tuple[ImportedTable, list[Notice]]:
    devices = list(run.devices)
    named = next(filter(None, map(program_collective, run.programs)), "") or program
    listed = run.ranks or ranks_of_devices(devices)
    columns = table.layout.head if table.layout is not None else ()
    collective = named or likely_collective(table.rows, columns, listed)
    told = dict(run.config)
    told |= {key: value for key, value in run.written.items() if key in ("backend", "backend_version")}
    if collective and not named:
        told["collective_from"] = "figures"
    if table.wrong_values is not None:
        told["out_of_bounds"] = table.wrong_values
    ranks = listed
    shown = ranks_of_figures(table.rows, collective)
    if shown is not None and (listed is None or shown > listed):  # lists of devices are often cut
        ranks, told["ranks_from"] = shown, "figures"
    nodes = run.nodes or nodes_of_devices(devices, ranks)
    if nodes and ranks and not run.nodes and len({device.rank for device in devices}) < ranks:
        told["nodes_from"] = "device numbers"
    rows = table.rows
    if collective in COLLECTIVES and not COLLECTIVES[collective].reduces:
        # Versions without a column for the op leave it out of collectives that have none.
        rows = [row if row.op else replace(row, op="none") for row in rows]
    outcome, notices = table_outcome(table, run)
    launched = (
        "graph" if run.config.get("graph_launches") else "isolated" if run.config.get("blocking") else ""
    )
    built = ImportedTable(
        collective,
        with_sizes_of_today(rows, collective, ranks),
        ranks,
        nodes,
        run.written.get("algorithm") or _forced(environment, "ALGO"),
        run.written.get("protocol") or _forced(environment, "PROTO"),
        run.written.get("mode") or launched or "streaming",
        table.average,
        outcome,
        table.line,
        told,
    )
    return built, notices


def _forced(environment: dict[str, str], what: str) -> str:
    """The one algorithm or protocol that NCCL_ALGO or NCCL_PROTO allows; lists and exclusions force none."""
    value = environment.get(f"NCCL_{what}", "")
    return value.lower() if value.isalnum() else "default"
