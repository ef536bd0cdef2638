"""Reads the text of NVIDIA's nccl-tests and its ports: every version, whole or damaged.

A text that holds nothing of nccl-tests gives a log without tables: ``read`` takes any text and raises nothing.
Forms: github.com/NVIDIA/nccl-tests src/common.cu, src/util.cu.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from typing import Any

from ccbench.dtypes import ITEM_BYTES
from ccbench.findings import SourceWarning
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import (
    DeviceLine,
    ImportedLog,
    ImportedRow,
    ImportedTable,
    LogOutcome,
    log_of,
    row_of,
)
from ccbench.readers.benchmarks.nccl_tests_columns import (
    Cells,
    ColumnLayout,
    guessed_layout,
    header_layout,
    is_figure,
    likely_collective,
    lists_of_devices,
    nodes_of_devices,
    ranks_of_devices,
    ranks_of_figures,
    row_cells,
    with_sizes_of_today,
    without_cut_rate,
)
from ccbench.readers.benchmarks.words import (
    LibraryLines,
    LogLine,
    dtype_name,
    launch_of,
    library_in,
    program_collective,
    source_lines,
    whole,
)
from ccbench.readers.lines import figure
from ccbench.units import plural

_MARKS = re.compile(
    "Avg bus bandwidth|nccl-tests version|rccl-tests: Version|Collective test starting|minBytes"
    "|Test (?:NCCL|CUDA|HIP) failure"
)
_LOOKED_AT = 4000
"""Lines of a text that ``recognises`` looks at, messages of the library not counted."""

_DEVICE = re.compile(
    r"Rank\s{1,9}(?P<rank>\d{1,9})\s{1,9}(?:Group\s{1,9}(?P<group>\d{1,9})\s{1,9})?"
    r"Pid\s{1,12}(?P<process_id>\d{1,12})\s{1,9}on\s{1,64}(?P<host>\S{1,255})\s{1,9}"
    r"device\s{1,9}(?P<device>\d{1,6})\s{1,9}\[(?P<bus_id>[0-9A-Fa-fx:.]{1,32})\]\s{0,9}(?P<model>.{0,120})"
)
_NUMBERS_OF_DEVICE = {"rank", "group", "process_id", "device"}
_DEVICES = re.compile(
    r"\s{0,9}Ranks?\s{1,9}(\d{1,5})\s{0,9}(?:-|\u2013|\u2026|\.{2,6}|to)\s{0,9}(?:Rank\s{1,9})?(\d{1,4})\b"
    r"(?:[\s,:]{1,9}(?:Group|Pid)\s{1,9}\d[\d.-]{0,20})*(?:[\s,:]{1,9}on\s{1,64}([\w.-]{1,255}))?"
    r"(?:\s{1,9}devices?\s{1,9}\d[\s\d.to-]{0,20})?[\s,:]{0,9}(?:\[[^]]{0,64}\])?\s{0,9}((?=.{0,60}[A-Z]\d\d).{3,120})?"
)
"""Rows of a list of devices that a person wrote as one: ranks from and to, host, model."""
_LEFT_OUT = re.compile(r"\s{0,200}[\[(]?(?:\.{3}|\u2026)")
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
_WRONG_VALUES = re.compile(r"Out of bounds values\s{0,12}:\s{0,12}(\d[\d,]{0,15})")
_LOWERED = re.compile(r"Reducing maxBytes to (\d{1,20})")
_HOLE = re.compile(
    r"\[?(?:\.{3,6}|\u2026)\]?|.{0,40}\(?truncated.{0,60}|<snip>|\[snip\]", re.IGNORECASE
)
_REMARK = re.compile(r"(\d{1,20}) B (in|out of) place: ([a-z_]{2,20})\s?(.{0,200})")
_WRITTEN = re.compile(
    r"written by ccbench: backend (?P<backend>\S{1,40})(?: (?P<backend_version>\S{1,60}))?"
    r", algorithm (?P<algorithm>\S{1,60}), protocol (?P<protocol>\S{1,40}), mode (?P<mode>[^\s,]{1,40})"
)
_EACH = re.compile(r"\s(?:-[gt]|--n(?:gpus|threads))[ =]?([1-9]\d{0,3})\b")
_PLACED = re.compile(r"(\d{1,7}) ranks? on (\d{1,7}) nodes?;")
_COMMENT = re.compile(r"\s{0,200}#+[ \t]?")
_RANK_TAG = re.compile(r"\[\d{1,6}\]")
_OF_TEAM = re.compile(r"\bn[rR]anks (\d{1,7})\b(?: nNodes (\d{1,7})\b)?")
_RULES = dict.fromkeys(range(9472, 9600), " ") | {ord("|"): " ", ord("\u00a0"): " "}
"""Box-drawing characters and bars stand between cells and mean nothing."""
_NOT_FINITE = re.compile(r"[-+]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_LARGEST_ERRORS = {
    **{name: 0.0 for name in ITEM_BYTES if "int" in name},
    "float16": 1e-2,
    "bfloat16": 1e-2,
    "float32": 1e-5,
    "float64": 1e-12,
}
"""Largest error that versions with a column for it accept (src/common.cu, DeltaMaxValue)."""
_FEWEST_WORDS = 4
"""Words of the shortest row: a size and three figures."""


@dataclass
class OpenNcclTable:
    """A table while its lines are read."""

    layout: ColumnLayout | None
    line: int
    header: str = ""
    library: str = ""
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
    lines_left_out: int = 0  # the last line of the list, where it says that more followed
    programs: list[str] = field(default_factory=list)
    written: dict[str, str] = field(default_factory=dict)
    ranks: int | None = None
    nodes: int | None = None
    started: bool = False
    tables: list[OpenNcclTable] = field(default_factory=list)


class Tables:
    """Takes lines in order into runs with tables. Broken lines become warnings and never raise."""

    def __init__(self) -> None:
        self.runs = [OpenRun()]
        self.warnings: list[SourceWarning] = []
        self._placement_above = ""
        self._library = ""

    @property
    def _run(self) -> OpenRun:
        return self.runs[-1]

    @property
    def _open(self) -> OpenNcclTable | None:
        """The last table, while rows may follow."""
        table = self._run.tables[-1] if self._run.tables else None
        return table if table is not None and not table.closed else None

    def take(self, line: LogLine) -> None:
        """One line."""
        if line.message:
            if team := _OF_TEAM.search(line.text):
                run = self._run
                run.ranks = max(int(team[1]), run.ranks or 0)
                run.nodes = max(int(team[2] or 0), run.nodes or 0) or None
            return
        comment = _COMMENT.match(line.text)
        text = line.text[comment.end() :] if comment else line.text
        words = text.translate(_RULES).split()
        if not words:
            return
        is_number = words[0][0].isdigit()
        if is_number and (self._row(line, words) or self._remark(text)):
            return
        self._library = library_in(line.text) or self._library
        if self._frame(line, text, words) or self._preamble(line, text):
            return
        self._placement_above = text if "-place" in text else ""
        if is_number:
            # Figures that are no row, where rows stand, are what is left of one.
            if self._open is not None and sum(map(is_figure, words)) >= _FEWEST_WORDS:
                text = "figures without the start of their row"
                self.warnings.append(SourceWarning("damaged_line", text, line.number))
        elif (
            (self._run.tables or not comment)
            and len(text) < 120
            and _HOLE.fullmatch(text.strip())
        ):
            if self._open is not None:
                self._open.has_hole = True
            self.warnings.append(
                SourceWarning("truncated", "lines are left out here", line.number)
            )

    def _new_run(self) -> OpenRun:
        """The run that a line of a header belongs to: another one, once the last has a table."""
        # Batches print one run after the other into one file.
        if self._run.tables:
            self.runs.append(OpenRun())
        return self._run

    def _preamble(self, line: LogLine, text: str) -> bool:
        """A line of a run's header, or of what stands around its tables."""
        if device := _DEVICE.search(text) if "Pid" in text else None:
            fields: dict[str, Any] = {
                name: int(word) if name in _NUMBERS_OF_DEVICE else word
                for name, word in device.groupdict().items()
                if word
            }
            self._new_run().devices[DeviceLine(**fields, line=line.number)] = None
            self._run.lines_left_out = 0
        elif devices := _DEVICES.match(text):
            self._new_run().devices |= dict.fromkeys(
                DeviceLine(
                    rank, host=devices[3] or "", model=devices[4] or "", line=line.number
                )
                for rank in range(int(devices[1]), int(devices[2]) + 1)
            )
        elif self._run.devices and not self._run.tables and _LEFT_OUT.match(text):
            self._run.lines_left_out = line.number
        elif settings := _SETTING.findall(text) if "minBytes" in text else ():
            config: dict[str, Any] = {
                _SETTINGS[word]: int(value) for word, value, _ in settings
            }
            config.update(("step_unit", unit) for _, _, unit in settings if unit)
            self._new_run().config = config
        elif program := _STARTING.search(text):
            starts = program[1] == "starting"
            run = self._new_run() if starts else self._run
            run.started = run.started or starts
            run.programs.append(program[2])
            if run.tables and not starts:
                run.tables[-1].concluded = run.tables[-1].closed = True
        elif written := _WRITTEN.match(text):
            self._run.written |= {
                name: value for name, value in written.groupdict().items() if value
            }
        elif placed := _PLACED.match(text):
            self._run.ranks, self._run.nodes = int(placed[1]), int(placed[2])
        elif lowered := _LOWERED.search(text):
            self._run.config["maximum_bytes"] = int(lowered[1])
        elif "Blocking Enabled:" in text:
            self._run.config["blocking"] = True
        else:
            return False
        return True

    def _frame(self, line: LogLine, text: str, words: list[str]) -> bool:
        """A table's header, or one of its closing lines."""
        tables = self._run.tables
        if layout := header_layout(words) if "bw" in text.lower() else None:
            # rccl-tests can leave a placement out (-O), and says so only above the header.
            above = self._placement_above
            only_in_place = "in-place" in above and "out-of-place" not in above
            table = OpenNcclTable(layout, line.number, line.text, self._library, only_in_place)
            tables.append(table)
            return True
        average, wrong = _AVERAGE.search(text), _WRONG_VALUES.search(text)
        if average is None and wrong is None:
            return False
        if not tables:
            tables.append(OpenNcclTable(None, line.number))
        if wrong is not None:
            tables[-1].wrong_values = max(whole(wrong[1]) or 0, tables[-1].wrong_values or 0)
        if average is not None:
            printed = figure(average[1].removesuffix("GB/s"))
            tables[-1].average, tables[-1].closed = printed.value if printed else None, True
        return True

    def _row(self, line: LogLine, words: list[str]) -> bool:
        words = [word for word in words if not _RANK_TAG.fullmatch(word)]
        layout = self._open.layout if self._open is not None else None
        if len(words) < (_FEWEST_WORDS if layout is None or "type" not in layout.head else 2):
            return False
        cells = row_cells(words, layout) if layout is not None else None
        if cells is None or (cells.surplus and not cells.figures):
            # A row whose columns no header names: of the open table where there is one, else of a new one.
            guessed = guessed_layout(words)
            if guessed is not None:
                if self._open is None:
                    self._run.tables.append(OpenNcclTable(guessed, line.number))
                elif layout is None:
                    self._open.layout = guessed
                cells = row_cells(words, guessed)
        if cells is None or (cells.missing and cells.surplus and not cells.figures):
            return False
        # A last line that nothing ends may have lost digits of its last figure.
        if line.unfinished:
            cells = without_cut_rate(cells)
        table = self._run.tables[-1]
        places = (True,) if table.only_in_place else (False, True)
        if cells.missing:
            text = f"{cells.missing} columns of a row are missing"
            self.warnings.append(SourceWarning("damaged_line", text, line.number))
            if not cells.figures and not cells.head.get("type"):
                return True
        rows = placements(cells, line.number, places)
        if "cputime" in table.header.lower():
            rows = [replace(row, flags=(*row.flags, Flag.CPU_TIME)) for row in rows]
        table.rows += rows
        return True

    def _remark(self, text: str) -> bool:
        """A remark of ccbench's own tables on a case: its flags, or its status where it has no figures."""
        remark = _REMARK.match(text)
        rows = self._run.tables[-1].rows if self._run.tables else []
        if remark is None or not rows:
            return False
        size, in_place, word, more = int(remark[1]), remark[2] == "in", remark[3], remark[4]
        # It follows its row, whose two placements are the last two.
        own = [
            index
            for index in range(max(0, len(rows) - 2), len(rows))
            if (rows[index].size_bytes, rows[index].in_place) == (size, in_place)
        ]
        if not own:
            if word == "flags":
                return False
            rows.append(
                replace(
                    rows[-1],
                    in_place=in_place,
                    seconds=None,
                    algbw=None,
                    busbw=None,
                    wrong_elements=None,
                    half_units=(None, None, None),
                    extra={},
                )
            )
        index = own[-1] if own else -1
        row = rows[index]
        if word == "flags":
            flags = dict.fromkeys((*row.flags, *more.split()))
            rows[index] = replace(row, flags=tuple(flags))
        else:
            extra = {**row.extra, "status": word, "detail": more.strip()}
            rows[index] = replace(row, extra=extra)
        return True


def placements(cells: Cells, line: int, places: Iterable[bool]) -> list[ImportedRow]:
    """The placements of one row; placements that print nothing are left out, unless none prints anything."""
    head, root = cells.head, whole(cells.head.get("root", ""))
    doubts = {Flag.INCOMPLETE: cells.missing, Flag.SURPLUS_COLUMNS: cells.surplus}
    start: dict[str, Any] = {
        "size_bytes": whole(head["size"]) or 0,
        "count": whole(head.get("count", "")),
        "dtype": dtype_name(head.get("type", "")),
        "op": head.get("redop", "").lower(),
        "root": -1 if root is None else root,
        "flags": tuple(flag for flag, is_so in doubts.items() if is_so),
    }
    rows = []
    for printed, in_place in zip(cells.figures, places, strict=False):
        measured = {name: figure(word) for name, word in printed.items()}
        time, wrong = measured.pop("time", None), measured.pop("wrong", None)
        if "error" in measured:
            measured["largest_error"] = measured.pop("error")
        measured["seconds"] = time.over(1e6) if time else None
        wrong_elements = int(wrong.value) if wrong else whole(printed.get("wrong", ""))
        row = row_of(line, measured, **start, in_place=in_place, wrong_elements=wrong_elements)
        why = _why_wrong(printed, row)
        rows.append(
            replace(row, extra={**row.extra, "status": "wrong", "detail": why}) if why else row
        )
    telling = [row for row in rows if (row.seconds, row.algbw, row.busbw) != (None, None, None)]
    return telling or rows[:1] or [row_of(line, {}, **start)]


def _why_wrong(printed: dict[str, str], row: ImportedRow) -> str:
    """Say which cell of a placement shows wrong data without counting them; "" where none does."""
    for name in ("wrong", "error"):
        if _NOT_FINITE.fullmatch(printed.get(name, "")):
            return f"{name} {printed[name]}"
    error = row.extra.get("largest_error", 0.0)
    return (
        f"error {printed['error']}" if error > _LARGEST_ERRORS.get(row.dtype, math.inf) else ""
    )


def recognises(text: str) -> bool:
    """Return whether ``text`` is of nccl-tests or its ports, judged by its own words or a row's figures."""
    tables = Tables()
    for line in islice((line for line in source_lines(text) if not line.message), _LOOKED_AT):
        if "time:avg" in line.text:  # nccom-test, whose rows and closing line look the same
            return False
        if _MARKS.search(line.text):
            return True
        tables.take(line)
        if any(table.layout for table in tables.runs[-1].tables):
            return True
    return False


def read(text: str) -> ImportedLog:
    """The log that ``text`` is; see the module. Sizes are today's nccl-tests sizes, figures as printed."""
    tables, library_lines = Tables(), LibraryLines()
    around: list[LogLine] = []
    for line in source_lines(text):
        tables.take(line)
        # Rows of figures say nothing else, but what another process wrote behind one does.
        if line.message or not (
            line.text.lstrip()[:1].isdigit() and line.text[-1] in "0123456789A"
        ):
            library_lines.take(line)
            around.append(line)
    for run in tables.runs:
        if not run.tables and (run.config or run.started):  # it ended before its table began
            run.tables.append(OpenNcclTable(None, 0))
    begun = [run for run in tables.runs if run.tables or run.devices]
    runs = [own for run in begun for own in _side_by_side(run, tables.warnings)]
    program = next(filter(None, (program_collective(line.text) for line in around)), "")
    commands = {ranks for line in around if (ranks := ranks_of_command(line.text))}
    for run in runs:
        if run.lines_left_out:
            text = "the list of devices is shortened, so that its ranks are not counted"
            tables.warnings.append(SourceWarning("assumed", text, run.lines_left_out))
        # Of several commands nobody says which one printed a run.
        if len(commands) == 1 and run.ranks is None and not run.devices:
            run.ranks = min(commands)
    warnings = tables.warnings
    kept = tuple(
        _built(table, run, program, library_lines.environment, warnings)
        for run in runs
        for table in run.tables
    )
    is_rccl = any("rccl-tests" in line.text or "RCCL version" in line.text for line in around)
    libraries = {table.library.upper() for run in runs for table in run.tables}
    library = libraries.pop() if len(libraries) == 1 else ""
    if not library and (kept or "NCCL" in library_lines.versions):
        library = "NCCL"
    return log_of(
        "rccl-tests" if is_rccl else "nccl-tests",
        around,
        kept,
        sorted(warnings, key=lambda warning: warning.line or 0),
        _ending(kept, bool(runs)),
        library="RCCL" if is_rccl else library,
        devices=tuple(dict.fromkeys(device for run in begun for device in run.devices)),
        **library_lines.shown,
    )


def _side_by_side(run: OpenRun, warnings: list[SourceWarning]) -> list[OpenRun]:
    """Return ``run``, or the runs whose headings stand together in it, each with its own devices and table.

    Programs that were started without MPI each count ranks from 0, and their lines may alternate.
    """
    lists, tables = lists_of_devices(list(run.devices)), run.tables
    if len(lists) == 1:
        return [run]
    runs = "; ".join(
        f"{plural(len(devices), 'rank')} on {', '.join(sorted({d.host for d in devices}))}"
        for devices in lists
    )
    text = f"{len(lists)} runs in this text, started beside each other: {runs}"
    warnings.append(SourceWarning("assumed", text, lists[-1][0].line))
    if sum(bool(table.rows) for table in tables) == 1 < len(tables):
        # Of rows that alternate the first of a size is of one run, its repetition of the next.
        repeats: Counter[tuple[object, ...]] = Counter()
        ended = tables[-1].closed
        alternating = [row for table in tables for row in table.rows]
        tables = [replace(t, rows=[], average=None, concluded=ended) for t in tables]
        for row in alternating:
            case = row.size_bytes, row.dtype, row.op, row.root, row.in_place
            tables[min(repeats[case], len(tables) - 1)].rows.append(row)
            repeats[case] += 1
    # Runs that ended before their table stand first.
    tables = [OpenNcclTable(None, 0) for _ in lists[len(tables) :]] + tables
    bounds = pairwise([*range(len(lists)), len(tables)])
    return [
        replace(run, devices=dict.fromkeys(devices), tables=tables[first:end])
        for devices, (first, end) in zip(lists, bounds, strict=True)
    ]


def ranks_of_command(text: str) -> int | None:
    """Ranks of a launcher's command line with a test behind it: processes times threads times GPUs."""
    before, program, options = text.partition("_perf")
    launch = launch_of(before) if program else None
    if launch is None or launch.ranks is None:
        return None
    return launch.ranks * math.prod(int(count) for count in _EACH.findall(options))


def _built(
    table: OpenNcclTable,
    run: OpenRun,
    program: str,
    environment: dict[str, str],
    warnings: list[SourceWarning],
) -> ImportedTable:
    config, devices, written = run.config, list(run.devices), run.written
    named = next(filter(None, map(program_collective, run.programs)), "") or program
    ranks = listed = run.ranks or (None if run.lines_left_out else ranks_of_devices(devices))
    columns = table.layout.head if table.layout is not None else ()
    collective = named or likely_collective(table.rows, columns, listed)
    shown = ranks_of_figures(table.rows, collective)
    if shown is not None and shown > (listed or 0):  # lists of devices are often cut
        ranks = shown
    sizes = _sizes(table.rows, config)
    outcome = _table_outcome(table, run, sizes, warnings)
    facts = config | (sizes if outcome is LogOutcome.CUT else {})
    if table.library.upper() not in ("", "NCCL"):
        facts["backend"] = table.library
    facts |= {name: written[name] for name in ("backend", "backend_version") if name in written}
    if table.wrong_values is not None:
        facts["out_of_bounds"] = table.wrong_values
    # Without a line of settings: ranks of as many processes launch on one GPU each.
    if len({(device.host, device.process_id) for device in devices}) == len(devices) == listed:
        facts.setdefault("gpus_per_thread", 1)
    launched = "isolated" if config.get("blocking") else "streaming"
    return ImportedTable(
        collective,
        with_sizes_of_today(table.rows, collective, ranks),
        ranks,
        run.nodes or nodes_of_devices(devices, ranks),
        written.get("algorithm") or _forced(environment, "NCCL_ALGO"),
        written.get("protocol") or _forced(environment, "NCCL_PROTO"),
        written.get("mode") or ("graph" if config.get("graph_launches") else launched),
        outcome,
        table.line,
        facts,
    )


def _forced(environment: Mapping[str, str], variable: str) -> str:
    """The one algorithm or protocol that NCCL's variable forces; lists and exclusions force none."""
    value = environment.get(variable, "")
    return value.lower() if value.isalnum() else "default"


def _sizes(rows: Sequence[ImportedRow], config: dict[str, Any]) -> dict[str, int]:
    """Numbers of sizes that the settings announce and that the rows have, as facts; none without settings."""
    smallest, largest, step = (
        config.get(name, 0) for name in ("minimum_bytes", "maximum_bytes", "step")
    )
    by_factor = config.get("step_unit") == "factor"
    if not smallest or not largest or step <= by_factor:
        return {}
    # Products of whole steps may miss their logarithm by a rounding.
    steps = (
        math.log(largest / smallest, step) + 1e-9 if by_factor else (largest - smallest) / step
    )
    lines = {(row.dtype, row.op, row.root, row.line) for row in rows}
    printed = Counter(line[:3] for line in lines)
    return {
        "announced_sizes": math.floor(steps) + 1,
        "printed_sizes": max(printed.values(), default=0),
    }


def _table_outcome(
    table: OpenNcclTable, run: OpenRun, sizes: dict[str, int], warnings: list[SourceWarning]
) -> LogOutcome:
    """The outcome of one table; what contradicts the closing lines where it is cut goes into ``warnings``.

    Complete needs a closing line, no hole, every size that the settings announce, and rows whose mean is
    the closing average. Unknown is a table that is quoted without its settings and closing lines.
    """
    rows = table.rows
    if table.has_hole or not rows:
        return LogOutcome.CUT
    rates = [row.busbw for row in rows if row.busbw is not None]
    if table.average is not None and rates:
        # nccl-tests averages all placements of all sizes before rounding, and prints six digits.
        mean = sum(rates) / len(rates)
        room = max(0.01, *(row.half_units[2] or 0.0 for row in rows))
        if not math.isclose(table.average, mean, rel_tol=1e-3, abs_tol=room):
            text = f"the closing average is {table.average:g} GB/s, the rows' is {mean:g}: rows are missing"
            warnings.append(SourceWarning("contradiction", text, table.line))
            return LogOutcome.CUT
    if sizes and sizes["printed_sizes"] < sizes["announced_sizes"]:
        text = "the settings are of {announced_sizes} sizes, the rows of {printed_sizes}"
        warnings.append(SourceWarning("truncated", text.format(**sizes), table.line))
        return LogOutcome.CUT
    if table.average is not None or table.concluded or table.wrong_values is not None:
        return LogOutcome.COMPLETE
    # Who quotes a table alone, without the settings above it, leaves out the lines below it, too.
    return LogOutcome.CUT if run.config else LogOutcome.UNKNOWN


def _ending(tables: Sequence[ImportedTable], has_started: bool) -> tuple[LogOutcome, str]:
    """The outcome of the file by its tables alone, and one line of detail."""
    if tables and all(table.outcome is LogOutcome.COMPLETE for table in tables):
        return LogOutcome.COMPLETE, ""
    if not tables and not has_started:
        return LogOutcome.UNKNOWN, ""
    if not any(table.rows for table in tables):
        return LogOutcome.CUT, "the header is there and no row follows"
    return LogOutcome.CUT, "rows or closing lines are missing"
