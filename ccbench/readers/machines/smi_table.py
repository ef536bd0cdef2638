"""The tables of ``nvidia-smi topo``: from pasted text to rows of cells, whatever happened on the way.

Seen in the wild and read here: terminal colours around the heading, tabs turned into blanks or lost, names or
cells glued together, a heading without its leading tab, behind a shell prompt, or missing, lines indented or
quoted, rows wrapped by a terminal, a table cut anywhere, several tables in one text. Cells are found by what
they say, never by their column on the screen. A row whose X stands in its own column is a row whatever the
words of its vendor (MX, XL, HSW), and headings behind the matrix are known by their cells where their words
are new.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ccbench.findings import SourceWarning
from ccbench.readers.lines import overlap, ranges
from ccbench.topology.classes import links_per_gpu
from ccbench.topology.graph import TopologyClass
from ccbench.units import shown

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
_WORD = re.compile(r"[A-Z][A-Z0-9]{1,7}", re.ASCII)
_ANY_WORD = re.compile(r"[A-Za-z0-9][\w+#*/-]{0,15}", re.ASCII)
_AFFINITY = re.compile(r"[-0-9,]+|N/A", re.ASCII)
_DEVICE = re.compile(
    r"GPU[0-9]{1,3}|NIC[0-9]{1,3}|mlx[0-9]_(?:bond_)?[0-9]{1,3}|[A-Za-z][A-Za-z_.-]*[0-9][\w.-]*"
)
_BY_SQUEEZED = {heading.replace(" ", ""): heading for heading in HEADINGS}
_HEADING_SPLIT = re.compile(r"\s*(CPU\s?Affinity|NUMA\s?Affinity|GPU\s?NUMA\s?ID)\s*")
_HEADING_WORDS = re.compile(r"[A-Z][\w/()#%.-]{0,30}(?: [\w/()#%.-]{1,30}){0,4}")
_HEADING_GAP = re.compile(r"\t+|\s{2,}")
_LEGEND_WORD = re.compile(
    r"[\s>|#]*([A-Za-z][\w+/-]{0,15}#?)\s{0,9}=\s{1,9}(\S.{0,400})", re.ASCII
)
_ROW = re.compile(r"[\s>|#]*([A-Za-z][\w.-]{0,40})(?=\s|$)")
_ROW_NAME = re.compile(r"(?:GPU|NIC)[0-9]{1,3}", re.ASCII)
_FIRST_GPU = re.compile(r"GPU[0-9]", re.ASCII)
_PROMPT = re.compile(r"[^\w]*|.*\btopo\b.*", re.DOTALL)
_LONGEST_LINE = 20_000


@dataclass
class Row:
    """One device's row: its matrix cells and what stands behind them, as printed."""

    name: str
    line: int
    cells: list[str] = field(default_factory=list)
    rest: str = ""
    cut: bool = False


@dataclass
class LabelMatrix:
    """One matrix; ``columns`` is empty until known where the text has no heading."""

    columns: list[str]
    affinities: list[str]
    line: int
    rows: list[Row] = field(default_factory=list)

    @property
    def has_new_headings(self) -> bool:
        """True if a heading behind the matrix is none of HEADINGS."""
        return not set(self.affinities) <= set(HEADINGS)

    @property
    def is_p2p(self) -> bool:
        """True if the cells are peer-to-peer statuses; an empty or one-GPU table has none."""
        labels = {cell for row in self.rows for cell in row.cells} - {"X"}
        return bool(labels) and labels <= set(_STATUSES)


def labels_of(token: str) -> list[str]:
    """Return the labels glued together in ``token`` (``PXBNODE``); empty where it is anything else."""
    return _LABEL.findall(token) if _LABELS.fullmatch(token) else []


def tables_of(lines: list[str]) -> tuple[list[LabelMatrix], list[SourceWarning]]:
    """Return every table in the text, and what could not be read in them."""
    scanner = _Scanner()
    for number, line in enumerate(lines, 1):
        if len(scanner.tables) > MOST_TABLES:
            text = f"more than {MOST_TABLES} tables: what follows is not read"
            scanner.warnings.append(SourceWarning("unsupported", text, number))
            break
        if len(line) <= _LONGEST_LINE:
            scanner.take(line, number)
        elif scanner.open:
            scanner.warnings.append(
                SourceWarning("damaged_line", f"{len(line)} characters", number)
            )
    scanner.finish(lines)
    legend = legend_of(lines)
    for word, rows in scanner.unknown.items():
        if rows:
            meaning = legend.get(word) or legend.get(re.sub(r"[0-9]+$", "#", word))
            text = (
                f"path {word!r} is {meaning!r} by the legend, which no class of ccbench follows from"
                if meaning
                else f"path {word!r} is not known"
            )
            cells = "1 cell" if len(rows) == 1 else f"{len(rows)} cells"
            message = f"{text}; kept as printed in {cells}, first in row {rows[0].name}"
            scanner.warnings.append(SourceWarning("unknown_spelling", message, rows[0].line))
    for table in scanner.tables:
        _name_headings(table, scanner.warnings)
    return scanner.tables, scanner.warnings


def legend_of(lines: list[str]) -> dict[str, str]:
    """Return what the legend of the text says of each word, as ``NV#  = a bonded set of # NVLinks``."""
    matches = (_LEGEND_WORD.fullmatch(line) for line in lines if "=" in line)
    return {match[1]: match[2].strip() for match in matches if match}


def _name_headings(table: LabelMatrix, warnings: list[SourceWarning]) -> None:
    """Give the headings that are none of HEADINGS the name of what their cells are; warn of the others."""
    rows = [row for row in table.rows if row.name.startswith("GPU")]
    cells = [row.rest.split() for row in rows]
    if not table.affinities:
        unnamed = next((row for row in rows if row.rest.strip()), None)
        if unnamed is not None:
            text = f"cells behind the matrix have no heading, as {shown(unnamed.rest.strip())}: not read"
            warnings.append(SourceWarning("unsupported", text, unnamed.line))
        return
    for position, heading in enumerate(table.affinities):
        if heading in HEADINGS:
            continue
        column = {row[position] for row in cells if len(row) > position} - {"N/A"}
        lists = bool(column) and all(ranges(cell) is not None for cell in column)
        upper = heading.upper()
        if lists and "NUMA" in upper and ("ID" in upper.split() or "GPU" in upper.split()):
            name = GPU_NUMA
        elif lists and ("NUMA" in upper or "MEM" in upper):
            name = NUMA
        elif lists and any(not cell.isdigit() for cell in column):
            name = CPU
        else:
            name = ""
        if name and name not in table.affinities:
            table.affinities[position] = name
        elif rows:
            text = f"column {heading} behind the matrix: not read"
            warnings.append(SourceWarning("unsupported", text, table.line))


class _Scanner:
    """Goes through the lines once; a table is open between its heading and the first line that is no row."""

    def __init__(self) -> None:
        self.tables: list[LabelMatrix] = []
        self.warnings: list[SourceWarning] = []
        self.open = False
        # Word -> rows with such cells.
        self.unknown: dict[str, list[Row]] = {}

    def take(self, line: str, number: int) -> None:
        """Read one line: a row, a heading, or a wrapped part of either."""
        table = self.tables[-1] if self.open else None
        match = _ROW.match(line)
        if match and (
            _ROW_NAME.fullmatch(match[1]) or (table is not None and match[1] in table.columns)
        ):
            row = Row(match[1], number)
            self._fill(row, line[match.end() :])
            if row.cells or (table is not None and table.rows and not row.rest.strip()):
                # The heading is missing, or a second matrix follows the first, its heading lost.
                if table is None:
                    table = LabelMatrix([], [], number)
                    self.tables.append(table)
                elif any(earlier.name == row.name for earlier in table.rows):
                    table = LabelMatrix(list(table.columns), list(table.affinities), number)
                    self.tables.append(table)
                table.rows.append(row)
                self.open = True
                return
        # A heading stands alone, or behind a shell prompt and the command.
        start = _FIRST_GPU.search(line)
        heading = (
            _names(line[start.start() :], any_heading=True)
            if start and _PROMPT.fullmatch(line[: start.start()])
            else None
        )
        if heading is not None and heading[0] and heading[0][0].startswith("GPU"):
            self.tables.append(LabelMatrix(*heading, line=number))
            self.open = True
        elif table is not None and line.strip():
            self.open = self._continues(table, line, number)
            # What no row follows was a sentence.
            if not self.open and not table.rows and table.has_new_headings:
                self.tables.remove(table)

    def _fill(self, row: Row, text: str) -> None:
        """Take the labels at the front as cells; the rest stands behind them."""
        position = 0
        width = self._width_of(row.name, text)
        for match in re.finditer(r"\S+", text):
            token = match[0]
            labels = labels_of(token)
            if not labels:
                # Behind other cells any word is a path that is not known. Right behind a row's name only
                # where a label follows or the row has its X: headings start with names of devices, and so
                # do sentences.
                if len(row.cells) < width:
                    is_unknown = _ANY_WORD.fullmatch(token) is not None
                elif row.cells:
                    is_unknown = _WORD.fullmatch(token) is not None
                else:
                    following = text[match.end() :].split(maxsplit=1)
                    is_name = (
                        _ROW_NAME.fullmatch(token)
                        or token in ("CPU", "NUMA")
                        or len(token) > 40
                    )
                    is_unknown = (
                        self.open
                        and not is_name
                        and bool(following and labels_of(following[0]))
                    )
                if not is_unknown:
                    break
                self.unknown.setdefault(token, []).append(row)
                labels = [token]
            row.cells += labels
            position = match.end()
        row.rest = text[position:]

    def _width_of(self, name: str, text: str) -> int:
        """Cells of a row of the open table by its form: X in its own column, a word in each; else 0."""
        columns = self.tables[-1].columns if self.open else []
        if name not in columns:
            return 0
        own = columns.index(name)
        cells = [label for token in text.split() for label in labels_of(token) or [token]]
        words = cells[: len(columns)]
        is_row = cells[own : own + 1] == ["X"] and all(map(_ANY_WORD.fullmatch, words))
        # The end of the text may cut a row before its X; what other rows say it may say too.
        is_row |= own >= len(cells) > 0 and all(
            word in self.unknown or labels_of(word) for word in words
        )
        return len(columns) if is_row else 0

    def _continues(self, table: LabelMatrix, line: str, number: int) -> bool:
        """Take the line as a wrapped part of the heading or of the last row; False ends the table."""
        if not table.rows:
            more = _names(line)
            if more is not None:
                table.columns += more[0]
                table.affinities += more[1]
            return more is not None
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
        """Name the columns of tables without heading, and drop half a word that the text's end cut."""
        for table in self.tables:
            width = max((len(row.cells) for row in table.rows), default=0)
            if table.columns and width > len(table.columns):
                text = f"{width} cells under a shorter heading"
                self.warnings.append(SourceWarning("damaged_line", text, table.line))
                table.columns = []
            if not table.columns:
                names = [row.name for row in table.rows]
                numbered = [f"GPU{index}" for index in range(width)]
                table.columns = names[:width] if len(names) >= width else numbered
        end = next(
            (number for number in range(len(lines), 0, -1) if lines[number - 1].strip()), 0
        )
        if not self.tables or not self.tables[-1].rows:
            return
        table, row = self.tables[-1], self.tables[-1].rows[-1]
        short = len(row.cells) < len(table.columns)
        if row.line != end or (len(table.rows) >= len(table.columns) and not short):
            return
        ends_in_token = lines[end - 1] == lines[end - 1].rstrip()
        row.cut = ends_in_token or short
        last = row.cells[-1] if row.cells else ""
        # NV1 at the end of a full row may be NV18 where affinities should follow.
        half = short or not labels_of(last) or (table.affinities and last.startswith("NV"))
        # Half a word at the very end says something wrong (NV1 of NV12, 0-23,4 of 0-23,48-71): leave it out.
        if ends_in_token and row.rest.strip():
            row.rest = row.rest[: len(row.rest.rstrip()) - len(row.rest.split()[-1])]
        elif ends_in_token and row.cells and half:
            dropped = row.cells.pop()
            if dropped in self.unknown:
                self.unknown[dropped].pop()
            self.warnings.append(
                SourceWarning("truncated", f"ends in {dropped!r}: not used", row.line)
            )
            return
        self.warnings.append(
            SourceWarning("truncated", f"the text ends in row {row.name}", row.line)
        )


def _names(text: str, any_heading: bool = False) -> tuple[list[str], list[str]] | None:
    """Column names and headings behind them; None when the line holds anything else.

    any_heading: take headings besides HEADINGS, which stand behind a gap or behind one of HEADINGS.
    """
    parts = _HEADING_SPLIT.split(text)
    affinities: list[str] = []
    if any_heading:
        pieces = _HEADING_GAP.split(parts[0].strip())
        front = next(
            (
                index
                for index, piece in enumerate(pieces)
                if not all(map(_DEVICE.match, piece.split()))
            ),
            len(pieces),
        )
        # A first word that is no name makes a sentence of the line.
        if front:
            parts[0] = " ".join(pieces[:front])
            affinities += pieces[front:]
    for position, part in enumerate(parts[1:]):
        if position % 2 == 0:
            affinities.append(_BY_SQUEEZED["".join(part.split())])
        elif part.strip():
            affinities += _HEADING_GAP.split(part.strip())
    new = [heading for heading in affinities if heading not in HEADINGS]
    if new and not (any_heading and all(map(_HEADING_WORDS.fullmatch, new))):
        return None
    names: list[str] = []
    for token in parts[0].split():
        # Names may be glued together, as GPU0GPU1; a cell is no name.
        position = 0
        while position < len(token):
            match = _DEVICE.match(token, position)
            if match is None or labels_of(token):
                return None
            names.append(match[0])
            position = match.end()
    return (names, affinities) if names or affinities else None


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
        self.nic_columns = [name for name in columns if not name.startswith("GPU")]
        nic_rows = [row.name for row in table.rows if not row.name.startswith("GPU")]
        self.nic_row_count = len(nic_rows)
        self.nics = list(dict.fromkeys([*self.nic_columns, *nic_rows]))
        self.names = {gpu: f"gpu{index}" for index, gpu in enumerate(self.gpus)}
        self.names |= {nic: f"nic{index}" for index, nic in enumerate(self.nics)}
        strangers = [row for row in table.rows if row.name not in self.names]
        warnings += [
            SourceWarning("contradiction", f"{row.name}: no column", row.line)
            for row in strangers
        ]
        without = [name for name in nic_rows if name not in columns]
        if without:
            text = f"NIC columns cut out: rows {', '.join(without[:8])} have none"
            warnings.append(SourceWarning("damaged_line", text, table.line))
        self.cells = {
            row.name: self._affinity_cells(row) for row in table.rows if row.name in self.gpus
        }
        # Different CPU lists name different NUMA nodes and so no CPU twice, unless one was damaged. Bounded,
        # because every two lists are compared: no machine has more NUMA nodes with GPUs.
        printed = {
            cpus: ranges(cpus)
            for row in self.cells.values()
            if (cpus := row.get(CPU)) and cpus != "N/A"
        }
        affinities = [
            (cpus, numbers)
            for cpus, numbers in printed.items()
            if numbers and len(numbers) <= 512
        ][:64]
        for position, (cpus_text, numbers) in enumerate(affinities):
            for earlier, earlier_numbers in affinities[:position]:
                if overlap(numbers, earlier_numbers):
                    message = f"CPU Affinity {earlier} and {cpus_text} share CPUs: one of them is damaged"
                    warnings.append(SourceWarning("damaged_line", message, table.line))
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
        """The cells behind the matrix by heading. An empty cell shows only where tabs were kept."""
        tokens: list[str | None] = list(row.rest.split())
        headings = self.table.affinities
        if not headings or len(row.cells) < len(self.table.columns):
            return dict.fromkeys(headings)
        before = row.rest[: len(row.rest) - len(row.rest.lstrip())]
        if tokens and before.count("\t") >= 2 and len(tokens) < len(headings):
            tokens.insert(0, None)
        if len(tokens) > len(headings):
            text = f"{row.name}: {len(tokens)} cells behind the matrix under {len(headings)} headings"
            self.warnings.append(SourceWarning("damaged_line", text, row.line))
        if (
            len(tokens) == 2
            and len(headings) == 3
            and re.search(r"\S[ ]*\t[ ]*\t[ ]*\t", row.rest.rstrip())
        ):
            tokens.insert(1, None)
        cells = dict(zip(headings, [*tokens, *[None] * len(headings)], strict=False))
        for heading, cell in cells.items():
            is_list = cell is None or cell == "N/A" or ranges(cell) is not None
            if heading in HEADINGS and not is_list:
                text = f"{row.name}: {heading} {cell!r} is no list"
                self.warnings.append(SourceWarning("damaged_line", text, row.line))
                cells[heading] = None
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
