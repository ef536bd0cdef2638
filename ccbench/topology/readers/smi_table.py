"""The tables of ``nvidia-smi topo``: from pasted text to rows of cells, whatever happened on the way.

Seen in the wild and read here: terminal colours around the heading, tabs turned into blanks or lost, names or
cells glued together, a heading without its leading tab, behind a shell prompt, or missing, lines indented or
quoted, rows wrapped by a terminal, a table cut anywhere, several tables in one text. Cells are found by what
they say, never by their column on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ccbench.topology.classes import MOST_LINKS, links_per_gpu
from ccbench.topology.graph import Notice, TopologyClass
from ccbench.topology.text import overlap, ranges

PATHS = ("PIX", "PXB", "PHB", "NODE", "SYS", "SOC")
"""Paths without NVLink, nearest first; SOC is what drivers up to 2017 called SYS."""

STATUSES = ("OK", "CNS", "GNS", "TNS", "NS", "DR", "U")
"""Cells of ``topo -p2p``."""

HEADINGS = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")
"""The columns behind the matrix, in the only order they come in."""

CPU, NUMA, GPU_NUMA = HEADINGS
_NVLINKS = re.compile(r"NV([0-9]{1,3})", re.ASCII)

_BY_SQUEEZED = {heading.replace(" ", ""): heading for heading in HEADINGS}
_LABEL = re.compile(r"NV[0-9]{1,3}|X|" + "|".join(PATHS + STATUSES), re.ASCII)
_WORD = re.compile(r"[A-Z][A-Z0-9]{1,7}", re.ASCII)
_AFFINITY = re.compile(r"[-0-9,]+|N/A", re.ASCII)
_DEVICE = re.compile(
    r"GPU[0-9]{1,3}|NIC[0-9]{1,3}|mlx[0-9]_(?:bond_)?[0-9]{1,3}|[A-Za-z][A-Za-z_.-]*[0-9][\w.-]*"
)
_HEADING_SPLIT = re.compile(r"\s*(CPU\s?Affinity|NUMA\s?Affinity|GPU\s?NUMA\s?ID)\s*")
_ROW = re.compile(r"[\s>|#]*([A-Za-z][\w.-]{0,40})(?=\s|$)")
_ROW_NAME = re.compile(r"(?:GPU|NIC)[0-9]{1,3}", re.ASCII)
_PROMPT = re.compile(r"[^\w]*|.*\btopo\b.*", re.DOTALL)
_LONGEST_LINE = 20_000

MOST_TABLES = 1000
"""Tables that are looked at; a text has a few, and only the first of a kind is used."""


@dataclass
class Row:
    """One device's row: its matrix cells and what stands behind them, as printed."""

    name: str
    line: int
    cells: list[str] = field(default_factory=list)
    rest: str = ""
    cut: bool = False


@dataclass
class Table:
    """One matrix; ``columns`` is empty until known where the text has no heading."""

    columns: list[str]
    affinities: list[str]
    line: int
    rows: list[Row] = field(default_factory=list)

    @property
    def is_p2p(self) -> bool:
        """Whether the cells are peer-to-peer statuses; an empty or one-GPU table is not."""
        labels = {cell for row in self.rows for cell in row.cells} - {"X"}
        return bool(labels) and labels <= set(STATUSES)

    @property
    def is_finished(self) -> bool:
        """Whether every column has its row."""
        return len(self.rows) >= len(self.columns)


def labels_of(token: str) -> list[str]:
    """The labels glued together in ``token`` (``PXBNODE``); empty where it is anything else."""
    found, position = [], 0
    while position < len(token):
        match = _LABEL.match(token, position)
        if match is None:
            return []
        found.append(match[0])
        position = match.end()
    return found


def tables_of(lines: list[str]) -> tuple[list[Table], list[Notice]]:
    """Every table in the text, and what could not be read in them."""
    scanner = _Scanner()
    for number, line in enumerate(lines, 1):
        if len(scanner.tables) > MOST_TABLES:
            text = f"more than {MOST_TABLES} tables: what follows is not read"
            scanner.notices.append(Notice("unsupported", text, number))
            break
        if len(line) <= _LONGEST_LINE:
            scanner.take(line, number)
        elif scanner.open:
            scanner.notices.append(Notice("damaged_line", f"a line of {len(line)} characters", number))
    scanner.finish(lines)
    return scanner.tables, scanner.notices


class _Scanner:
    """Goes through the lines once; a table is open between its heading and the first line that is no row."""

    def __init__(self) -> None:
        self.tables: list[Table] = []
        self.notices: list[Notice] = []
        self.open = False

    def take(self, line: str, number: int) -> None:
        row = self._row(line, number)
        if row is not None:
            self._add(row)
            return
        heading = _heading(line)
        if heading is not None:
            self.tables.append(Table(*heading, line=number))
            self.open = True
        elif self.open and line.strip():
            self.open = self._continues(line, number)

    def _row(self, line: str, number: int) -> Row | None:
        match = _ROW.match(line)
        if match is None:
            return None
        table = self.tables[-1] if self.open else None
        name = match[1]
        if not _ROW_NAME.fullmatch(name) and (table is None or name not in table.columns):
            return None
        row = Row(name, number)
        self._fill(row, line[match.end() :])
        in_table = table is not None and bool(table.rows)
        if row.cells or (in_table and not row.rest.strip()):
            return row
        return None

    def _fill(self, row: Row, text: str) -> None:
        """The labels at the front are cells, the rest stands behind them."""
        position = 0
        for match in re.finditer(r"\S+", text):
            token = match[0]
            labels = labels_of(token)
            if not labels and self._is_unknown_cell(row, token, text, match.end()):
                message = f"{row.name}: path {token!r} is not known"
                self.notices.append(Notice("unknown_spelling", message, row.line))
                labels = [token]
            if not labels:
                break
            row.cells += labels
            position = match.end()
        row.rest = text[position:]

    def _is_unknown_cell(self, row: Row, token: str, text: str, end: int) -> bool:
        """Whether ``token`` is a path with a word that is not known.

        Behind other cells any word is. Right behind a row's name only where a label follows: headings start
        with names of devices, and a sentence that starts with one goes on without labels.
        """
        if row.cells:
            return _WORD.fullmatch(token) is not None
        following = text[end:].split(maxsplit=1)
        is_name = _ROW_NAME.fullmatch(token) or token in ("CPU", "NUMA")
        return self.open and not is_name and len(token) <= 40 and bool(following and labels_of(following[0]))

    def _add(self, row: Row) -> None:
        if self.open:
            table = self.tables[-1]
            if any(known.name == row.name for known in table.rows):
                # A second matrix right behind the first, its heading lost.
                table = Table(list(table.columns), list(table.affinities), row.line)
                self.tables.append(table)
        else:
            table = Table([], [], row.line)
            self.tables.append(table)
            self.open = True
        table.rows.append(row)

    def _continues(self, line: str, number: int) -> bool:
        """Takes the line as a wrapped part of the heading or of the last row; False ends the table."""
        table = self.tables[-1]
        if not table.rows:
            more = _names(line)
            if more is None:
                return False
            table.columns += more[0]
            table.affinities += more[1]
            return True
        row, missing = table.rows[-1], len(table.columns) - len(table.rows[-1].cells)
        first = line.split()[0]
        if missing > 0 and labels_of(first):
            rest = Row(row.name, number)
            self._fill(rest, line)
            row.cells += rest.cells
            row.rest = rest.rest
            return True
        if missing <= 0 and table.affinities and _AFFINITY.fullmatch(first):
            row.rest += "\t" + line
            return True
        return False

    def finish(self, lines: list[str]) -> None:
        """Names the columns of tables without heading, and finds the row that the text's end cut."""
        for table in self.tables:
            width = max((len(row.cells) for row in table.rows), default=0)
            if table.columns and width > len(table.columns):
                self.notices.append(
                    Notice("damaged_line", f"{width} cells under a shorter heading", table.line)
                )
                table.columns = []
            if not table.columns:
                table.columns = _columns_of_rows(table)
        last = next((number for number in range(len(lines), 0, -1) if lines[number - 1].strip()), 0)
        if not self.tables or not self.tables[-1].rows:
            return
        table = self.tables[-1]
        row = table.rows[-1]
        short = len(row.cells) < len(table.columns)
        if row.line == last and (not table.is_finished or short):
            self._cut(table, row, lines[last - 1], short)

    def _cut(self, table: Table, row: Row, line: str, short: bool) -> None:
        ends_in_token = line == line.rstrip()
        last = row.cells[-1] if row.cells else ""
        is_nvlink = last.startswith(
            "NV"
        )  # NV1 of NV18 at the end of a full row where affinities should follow
        row.cut = ends_in_token or short
        # Half a word at the very end says something wrong (NV1 of NV12, 0-23,4 of 0-23,48-71): leave it out.
        if ends_in_token and row.rest.strip():
            row.rest = row.rest[: len(row.rest.rstrip()) - len(row.rest.split()[-1])]
        elif (
            ends_in_token and row.cells and (short or not labels_of(last) or (table.affinities and is_nvlink))
        ):
            dropped = row.cells.pop()
            self.notices = [n for n in self.notices if n.line != row.line or n.kind != "unknown_spelling"]
            self.notices.append(Notice("truncated", f"the text ends in {dropped!r}: not used", row.line))
            return
        self.notices.append(Notice("truncated", f"the text ends in row {row.name}", row.line))


def _columns_of_rows(table: Table) -> list[str]:
    """Columns where the heading is missing: the rows' names, or GPU0, GPU1, ... as many as cells."""
    width = max((len(row.cells) for row in table.rows), default=0)
    names = [row.name for row in table.rows]
    return names[:width] if len(names) >= width else [f"GPU{index}" for index in range(width)]


def _heading(line: str) -> tuple[list[str], list[str]] | None:
    start = line.find("GPU")
    while start >= 0 and not _ROW_NAME.match(line, start):
        start = line.find("GPU", start + 1)
    if start < 0 or not _PROMPT.fullmatch(line[:start]):
        return None
    found = _names(line[start:])
    return found if found and found[0] and found[0][0].startswith("GPU") else None


def _names(text: str) -> tuple[list[str], list[str]] | None:
    """Column names and affinity headings of a line; None when it holds anything else."""
    parts = _HEADING_SPLIT.split(text)
    if any(part.strip() for part in parts[2::2]):
        return None
    affinities = [_BY_SQUEEZED["".join(part.split())] for part in parts[1::2]]
    names: list[str] = []
    for token in parts[0].split():
        position = 0
        while position < len(token):
            match = _DEVICE.match(token, position)
            if match is None or labels_of(token):
                return None
            names.append(match[0])
            position = match.end()
    if not names and not affinities:
        return None
    return names, affinities


class Matrix:
    """A table in terms of GPUs and NICs; contradictions and damage go to ``notices``.

    names: GPU or NIC as printed -> our device's name. labels: (row, column) -> cell, both directions where
    either was printed, without the diagonal. between_gpus: the same of GPUs, by index. nvlinks: (GPU, GPU) ->
    the number that NV# prints, above 0. unread: GPUs with a path to another whose word is not known. cells:
    GPU -> its affinity cells by heading, None where empty or damaged; printed rows only.
    """

    def __init__(self, table: Table, notices: list[Notice]) -> None:
        self.table = table
        columns = dict.fromkeys(table.columns)
        self.gpus = [name for name in columns if name.startswith("GPU")]
        self.nic_columns = [name for name in columns if not name.startswith("GPU")]
        nic_rows = [row.name for row in table.rows if not row.name.startswith("GPU")]
        self.nic_row_count = len(nic_rows)
        self.nics = list(dict.fromkeys([*self.nic_columns, *nic_rows]))
        self.names = {gpu: f"gpu{index}" for index, gpu in enumerate(self.gpus)}
        self.names |= {nic: f"nic{index}" for index, nic in enumerate(self.nics)}
        strangers = [row for row in table.rows if row.name not in self.names]
        notices += [Notice("contradiction", f"row {row.name} has no column", row.line) for row in strangers]
        without = [name for name in nic_rows if name not in columns]
        if without:
            text = f"NIC columns cut out: rows {', '.join(without[:8])} have none"
            notices.append(Notice("damaged_line", text, table.line))
        self.cells = {
            row.name: _affinity_cells(row, table, notices) for row in table.rows if row.name in self.gpus
        }
        _note_overlapping(self.cells, table.line, notices)
        self.labels = _labels(table, notices)
        index = {name: position for position, name in enumerate(self.gpus)}
        self.between_gpus = {
            (index[one], index[other]): label
            for (one, other), label in self.labels.items()
            if one in index and other in index
        }
        counts = {pair: _NVLINKS.fullmatch(label) for pair, label in self.between_gpus.items()}
        self.nvlinks = {pair: int(match[1]) for pair, match in counts.items() if match and int(match[1])}
        self.unread = {
            gpu for pair, label in self.between_gpus.items() if not labels_of(label) for gpu in pair
        }

    def nvlinks_per_gpu(self, topology_class: TopologyClass) -> list[int | None] | None:
        """NVLinks of each GPU: the sum over its peers, or NV# itself where all lead to switches.

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


def _labels(table: Table, notices: list[Notice]) -> dict[tuple[str, str], str]:
    printed: dict[tuple[str, str], str] = {}
    for row in table.rows:
        for column, label in zip(table.columns, row.cells, strict=False):
            if (column == row.name) != (label == "X"):
                text = f"{row.name}: {label} stands in the column of {column}"
                notices.append(Notice("contradiction", text, row.line))
            elif column != row.name:
                printed[row.name, column] = label
        whole = len(row.cells) >= len(table.columns) or row.cut
        if not whole and not row.name.startswith("NIC"):
            text = f"row {row.name} has {len(row.cells)} of {len(table.columns)} cells"
            notices.append(Notice("damaged_line", text, row.line))
        most = max((int(match[1]) for cell in row.cells if (match := _NVLINKS.fullmatch(cell))), default=0)
        if most > MOST_LINKS:
            text = f"{row.name}: NV{most}, where no GPU known has more than {MOST_LINKS} NVLinks"
            notices.append(Notice("contradiction", text, row.line))
    both = dict(printed)
    for (one, other), label in printed.items():
        back = both.setdefault((other, one), label)
        if back != label and one < other:
            text = f"{one} to {other} is {label}, back it is {back}"
            notices.append(Notice("contradiction", text, table.line))
    return both


def _affinity_cells(row: Row, table: Table, notices: list[Notice]) -> dict[str, str | None]:
    """The cells behind the matrix by heading. An empty cell shows only where tabs were kept."""
    tokens: list[str | None] = list(row.rest.split())
    wanted = table.affinities
    if not wanted or len(row.cells) < len(table.columns):
        return dict.fromkeys(wanted)
    before = row.rest[: len(row.rest) - len(row.rest.lstrip())]
    if tokens and before.count("\t") >= 2 and len(tokens) < len(wanted):
        tokens.insert(0, None)
    if len(tokens) > len(wanted):
        text = f"{row.name}: {len(tokens)} cells behind the matrix under {len(wanted)} headings"
        notices.append(Notice("damaged_line", text, row.line))
    if len(tokens) == 2 and len(wanted) == 3 and re.search(r"\S[ ]*\t[ ]*\t[ ]*\t", row.rest.rstrip()):
        tokens.insert(1, None)
    cells = dict(zip(wanted, [*tokens, *[None] * len(wanted)], strict=False))
    for heading, cell in cells.items():
        if cell is not None and cell != "N/A" and ranges(cell) is None:
            notices.append(Notice("damaged_line", f"{row.name}: {heading} {cell!r} is no list", row.line))
            cells[heading] = None
    return cells


def _note_overlapping(
    cells: Mapping[str, Mapping[str, str | None]], line: int, notices: list[Notice]
) -> None:
    """Different CPU lists name different NUMA nodes and so no CPU twice, unless one was damaged."""
    lists = {text: ranges(text) for row in cells.values() if (text := row.get(CPU)) and text != "N/A"}
    # Bounded, because every two lists are compared: no machine has more NUMA nodes with GPUs.
    found = [(text, numbers) for text, numbers in lists.items() if numbers and len(numbers) <= 512][:64]
    for position, (text, numbers) in enumerate(found):
        for other, others in found[:position]:
            if overlap(numbers, others):
                message = f"CPU Affinity {other} and {text} share CPUs: one of them is damaged"
                notices.append(Notice("damaged_line", message, line))
