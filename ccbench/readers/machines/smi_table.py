"""The tables of ``nvidia-smi topo``: from pasted text to rows of cells.

Seen in the wild and read here: terminal colours around the heading, tabs turned into blanks, a missing heading, lines
indented or quoted, a table cut anywhere, several tables in one text. Cells are found by what they say, never by their
column on the screen. A row whose X stands in its own column is a row whatever the words of its vendor (MX, XL, HSW).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from ccbench.findings import SourceWarning
from ccbench.readers.lines import ranges
from ccbench.topology.classes import links_per_gpu
from ccbench.topology.graph import TopologyClass

HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
"""The columns behind the matrix, in the only order they come in."""

CPU, NUMA, GPU_NUMA = HEADINGS

MOST_TABLES = 1000
"""Tables that are looked at; a text has a few, and only the first of a kind is used."""

# Paths without NVLink, nearest first; SOC is what drivers up to 2017 called SYS. Then cells of topo -p2p.
_PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
_STATUSES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
_NVLINKS = re.compile(r"NV([0-9]{1,3})", re.ASCII)
CELL = rf"(?:NV[0-9]{{1,3}}|X|{'|'.join(_PATHS + _STATUSES)})"
_LABEL = re.compile(CELL, re.ASCII)
_LABELS = re.compile(f"{CELL}+", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][\w+#*/-]{0,15}", re.ASCII)
_DEVICE = re.compile(
    r"GPU[0-9]{1,3}|NIC[0-9]{1,3}|[A-Za-z][A-Za-z_.-]*[0-9][\w.-]{0,40}", re.ASCII
)
_NAMES = re.compile(r"(?:GPU|NIC)[0-9]{1,3}|\S+", re.ASCII)
_NUMBERED = re.compile(r"(?:GPU|NIC)[0-9]{1,3}", re.ASCII)
_QUOTES = " \t>|#"
_HEADING_LINE = re.compile(r"(?:[^\w]*|.*\btopo\b.*?)\b(?=GPU[0-9])", re.ASCII)
_BEHIND = re.compile(
    r"CPU\s?Affinity|NUMA\s?Affinity|GPU\s?NUMA\s?ID|(?:(?<=\s\s)|(?<=\t))[A-Z]\w*(?: [A-Z]\w*)?"
)
_LONGEST_LINE = 20_000


@dataclass
class Row:
    """One device's row: its matrix cells and what stands behind them, as printed."""

    name: str
    line: int
    cells: list[str] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    cut: bool = False


@dataclass
class LabelMatrix:
    """One matrix; ``columns`` is empty until known where the text has no heading."""

    columns: list[str]
    affinities: list[str]
    line: int
    rows: list[Row] = field(default_factory=list)

    @property
    def is_p2p(self) -> bool:
        """True if the cells are peer-to-peer statuses; an empty or one-GPU table has none."""
        labels = {cell for row in self.rows for cell in row.cells} - {"X"}
        return bool(labels) and labels <= set(_STATUSES)

    def row_of(self, name: str, words: list[str], number: int) -> Row | None:
        """Return the row of a device whose line goes on with ``words``; None where that is no row."""
        width = len(self.columns) or len(words)
        row = Row(name, number)
        for place, word in enumerate(words):
            labels = labels_of(word) or [word]
            if len(row.cells) >= width or not (self.columns or labels_of(word)):
                row.rest = words[place:]
                break
            row.cells += labels
        own = self.columns.index(name) if name in self.columns else None
        stands = "X" in row.cells if own is None else row.cells[own : own + 1] == ["X"]
        # The end of the text may cut a row before its X; what other rows say it may say too.
        said = {cell for earlier in self.rows for cell in earlier.cells}
        known = all(cell in said or labels_of(cell) for cell in row.cells)
        is_row = (stands or known) and all(map(_WORD.fullmatch, row.cells))
        return row if row.cells and is_row else None


def labels_of(word: str) -> list[str]:
    """Return the labels glued together in ``word`` (``PXBNODE``); empty where it is anything else."""
    return _LABEL.findall(word) if _LABELS.fullmatch(word) else []


def tables_of(lines: list[str]) -> tuple[list[LabelMatrix], list[SourceWarning]]:
    """Return every table in the text, and what could not be read in them."""
    tables: list[LabelMatrix] = []
    warnings: list[SourceWarning] = []
    for number, line in enumerate(lines, 1):
        if len(tables) > MOST_TABLES:
            text = f"more than {MOST_TABLES} tables: what follows is not read"
            warnings.append(SourceWarning("unsupported", text, number))
            break
        if len(line) > _LONGEST_LINE:
            warnings.append(SourceWarning("damaged_line", f"{len(line)} characters", number))
            continue
        _take(tables, line, number)
    tables = [table for table in tables if table.rows]
    _finish(tables, lines, warnings)
    unknown = Counter(
        cell
        for table in tables
        for row in table.rows
        for cell in row.cells
        if not labels_of(cell)
    )
    for word, count in unknown.items():
        first = next(row for table in tables for row in table.rows if word in row.cells)
        cells = "1 cell" if count == 1 else f"{count} cells"
        text = (
            f"path {word!r} is not known; kept as printed in {cells}, first in row {first.name}"
        )
        warnings.append(SourceWarning("unknown_spelling", text, first.line))
    return tables, warnings


def _take(tables: list[LabelMatrix], line: str, number: int) -> None:
    """Read one line: a row, a heading, or the rest of a row that a terminal wrapped."""
    words, table = line.lstrip(_QUOTES).split(), tables[-1] if tables else None
    if not words:
        return
    columns = table.columns if table else []
    if _NUMBERED.fullmatch(words[0]) or words[0] in columns:
        row = (table or LabelMatrix([], [], number)).row_of(words[0], words[1:], number)
        if row is not None:
            if table is None or any(earlier.name == row.name for earlier in table.rows):
                # The heading is missing, or a second matrix follows the first, its heading lost.
                table = LabelMatrix(list(columns), table.affinities if table else [], number)
                tables.append(table)
            table.rows.append(row)
            return
    start = _HEADING_LINE.match(line)
    if start:
        heading = line[start.end() :]
        found = (match.start() for match in _BEHIND.finditer(heading))
        begin = next((at for at in found if not _DEVICE.match(heading[at:])), len(heading))
        # Names may be glued together, as GPU0GPU1.
        names = _NAMES.findall(heading[:begin])
        if all(map(_DEVICE.fullmatch, names)):
            behind = _BEHIND.findall(f"  {heading[begin:]}")
            tables.append(LabelMatrix(names, [*map(_heading, behind)], number))
    elif table and table.rows and labels_of(words[0]) and words[1:2] != ["="]:  # of the legend
        row = table.rows[-1]
        missing = max(len(columns) - len(row.cells), 0)
        row.cells, row.rest = row.cells + words[:missing], row.rest + words[missing:]


def _heading(printed: str) -> str:
    """Return the heading behind the matrix that ``printed`` means; those of vendors by the words they have."""
    words = printed.upper()
    if "NUMA" in words and ("GPU" in words or "ID" in words):
        return GPU_NUMA
    if "NUMA" in words or "MEM" in words:
        return NUMA
    return CPU if "CPU" in words or "CORES" in words else printed


def _finish(tables: list[LabelMatrix], lines: list[str], warnings: list[SourceWarning]) -> None:
    """Name the columns of tables without heading, and drop half a word that the text's end cut."""
    for table in tables:
        width = max(len(row.cells) for row in table.rows)
        if not table.columns:
            names = [row.name for row in table.rows]
            table.columns = (
                names[:width]
                if len(names) >= width
                else [f"GPU{index}" for index in range(width)]
            )
    end = next((number for number in range(len(lines), 0, -1) if lines[number - 1].strip()), 0)
    if not tables:
        return
    table, row = tables[-1], tables[-1].rows[-1]
    short = len(row.cells) < len(table.columns)
    if row.line != end or (len(table.rows) >= len(table.columns) and not short):
        return
    ends_in_word = end == len(lines) and lines[-1] == lines[-1].rstrip()
    row.cut = ends_in_word or short
    # Half a word at the very end says something wrong (NV1 of NV12, 0-23,4 of 0-23,48-71): leave it out.
    if ends_in_word or (short and not labels_of(row.cells[-1])):
        (row.rest or row.cells).pop()
    warnings.append(SourceWarning("truncated", f"the text ends in row {row.name}", row.line))


class Matrix:
    """A table in terms of GPUs and NICs; contradictions and damage go to ``warnings``.

    names: GPU or NIC as printed -> our device's name. labels: (row, column) -> cell, both directions where
    either was printed, without the diagonal. between_gpus: the same of GPUs, by index. nvlinks: (GPU, GPU) ->
    the number that NV# prints, above 0. unread: GPUs with a path to another whose word is not known. cells:
    GPU -> its affinity cells by heading, None where empty or damaged; printed rows only.
    """

    def __init__(self, table: LabelMatrix, warnings: list[SourceWarning]) -> None:
        self.table, self.warnings = table, warnings
        columns = dict.fromkeys(table.columns)
        self.gpus = [name for name in columns if name.startswith("GPU")]
        named = dict.fromkeys([*columns, *(row.name for row in table.rows)])
        self.nics = [name for name in named if not name.startswith("GPU")]
        self.names = {gpu: f"gpu{index}" for index, gpu in enumerate(self.gpus)}
        self.names |= {nic: f"nic{index}" for index, nic in enumerate(self.nics)}
        self.cells = {
            row.name: self._affinity_cells(row) for row in table.rows if row.name in self.gpus
        }
        self.labels = self._labels()
        index = {name: position for position, name in enumerate(self.gpus)}
        self.between_gpus = {
            (index[row_name], index[column_name]): label
            for (row_name, column_name), label in self.labels.items()
            if row_name in index and column_name in index
        }
        counts = {pair: _NVLINKS.fullmatch(label) for pair, label in self.between_gpus.items()}
        self.nvlinks = {
            pair: int(match[1]) for pair, match in counts.items() if match and int(match[1])
        }
        unread = [pair for pair, label in self.between_gpus.items() if not labels_of(label)]
        self.unread = {gpu for pair in unread for gpu in pair}

    def _labels(self) -> dict[tuple[str, str], str]:
        """Cells by row and column; of two that differ by direction each is kept."""
        table, warnings = self.table, self.warnings
        printed: dict[tuple[str, str], str] = {}
        for row in table.rows:
            for column, label in zip(table.columns, row.cells, strict=False):
                if (column == row.name) != (label == "X"):
                    text = f"{row.name}: {label} stands in the column of {column}"
                    warnings.append(SourceWarning("contradiction", text, row.line))
                elif column != row.name:
                    printed[row.name, column] = label
            whole = len(row.cells) >= len(table.columns) or row.cut
            if not whole and not row.name.startswith("NIC"):
                text = f"row {row.name} has {len(row.cells)} of {len(table.columns)} cells"
                warnings.append(SourceWarning("damaged_line", text, row.line))
        both = dict(printed)
        for (row_name, column_name), label in printed.items():
            back = both.setdefault((column_name, row_name), label)
            if back != label and row_name < column_name:
                text = f"{row_name} to {column_name} is {label}, back it is {back}"
                warnings.append(SourceWarning("contradiction", text, table.line))
        return both

    def _affinity_cells(self, row: Row) -> dict[str, str | None]:
        """Return the cells behind the matrix by heading; none where a cell is empty, so that it is not known which."""
        headings, words = self.table.affinities, row.rest
        cells: dict[str, str | None] = dict.fromkeys(headings)
        if len(row.cells) < len(self.table.columns) or len(words) != len(headings):
            return cells
        for heading, word in zip(headings, words, strict=True):
            if word == "N/A" or ranges(word) is not None:
                cells[heading] = word
            else:
                text = f"row {row.name}: {heading} is {word!r}, which is no list of numbers; left out"
                self.warnings.append(SourceWarning("damaged_line", text, row.line))
        return cells

    def nvlinks_per_gpu(self, topology_class: TopologyClass) -> list[int | None] | None:
        """Return NVLinks of each GPU: the sum over its peers, or NV# itself where all lead to switches.

        None for a GPU with a path that could not be read. Where the class is open, NV# of two GPUs is the
        same both ways; of more it is not stated.
        """
        if topology_class is TopologyClass.UNKNOWN and len(self.gpus) > 2:
            return None
        totals = links_per_gpu(self.nvlinks, len(self.gpus))
        switched = topology_class is TopologyClass.NVSWITCH
        if switched:
            totals = [0] * len(self.gpus)
            for (gpu, _), links in self.nvlinks.items():
                totals[gpu] = max(totals[gpu], links)
        return [
            None if gpu in self.unread and not (switched and total) else total
            for gpu, total in enumerate(totals)
        ]
