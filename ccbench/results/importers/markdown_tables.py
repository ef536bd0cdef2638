"""Markdown pages with tables of figures, as people publish them: several tables, columns in any order.

Columns are told apart by their headings (payload, busbw, algbw, time, GPUs, nodes, algorithm, collective) and
by the units in their cells. A column of rates becomes a table of its own: its heading may name ranks, nodes
or a variant ("4 nodes", "busbw, NVLS off"). A rate whose heading does not say which one it is stays beside
the row and is not taken for busbw. Nothing that the page does not say is filled in.

Markdown's pipe tables as cells, with the text that stands before each.

What one cell or heading of a published table says: a size, a rate, a time, a collective, settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.machine.flags import Flag
from ccbench.results.importers.columns import row_of
from ccbench.results.importers.lines import (
    GIBI,
    LARGEST_SIZE,
    Figure,
    Line,
    figure,
    source_lines,
    whole,
)
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, Outcome
from ccbench.results.importers.words import collective_name, dtype_name, op_of
from ccbench.units import parse_size

CONTEXT_LINES = 12
"""Lines of text before a table that may say what it is about."""

MOST_COLUMNS = 40

_RULE_CELL = re.compile(r":?-+:?")


@dataclass(frozen=True)
class PipeRow:
    """One row; as many cells as the table has headings."""

    line: int
    cells: tuple[str, ...]


@dataclass(frozen=True)
class PipeTable:
    """One table. line: of its headings. context: the lines of text since the table before, newest last."""

    line: int
    headings: tuple[str, ...]
    rows: tuple[PipeRow, ...]
    context: str


def pipe_tables(text: str) -> Iterator[PipeTable]:
    """Every table of ``text``: a line of headings, a rule of as many cells, rows until one does not fit."""
    lines = list(source_lines(text)) if "|" in text else []
    context: list[str] = []
    index = 0
    while index < len(lines):
        headings = _cells(lines[index])
        if len(headings) < 2 or not _is_rule(lines, index, len(headings)):
            context = [*context, lines[index].text][-CONTEXT_LINES:]
            index += 1
            continue
        begin, index = lines[index].number, index + 2
        rows = []
        while index < len(lines) and len(cells := _cells(lines[index])) == len(headings):
            rows.append(PipeRow(lines[index].number, cells))
            index += 1
        yield PipeTable(begin, headings, tuple(rows), "\n".join(context))
        context = []


def _is_rule(lines: list[Line], index: int, cells: int) -> bool:
    if index + 1 >= len(lines) or lines[index + 1].number != lines[index].number + 1:
        return False
    rule = _cells(lines[index + 1])
    return len(rule) == cells and all(map(_RULE_CELL.fullmatch, rule))


def _cells(line: Line) -> tuple[str, ...]:
    """The cells of a line, none where it has no bar or too many."""
    if "|" not in line.text:
        return ()
    stripped = line.text.strip()
    cells = tuple(cell.strip() for cell in stripped.removeprefix("|").removesuffix("|").split("|"))
    return cells if len(cells) <= MOST_COLUMNS else ()


_MARKUP = re.compile(r"[`*_]{1,3}(?=\S)|(?<=\S)[`*]{1,3}|<br ?/?>|~")
_DIGIT = re.compile(r"[0-9]")
_QUANTITY = re.compile(
    r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?)[ \t]*([A-Za-zµμ/]{0,8})", re.ASCII | re.IGNORECASE
)
_UNIT_IN_HEADING = re.compile(r"[(\[]([A-Za-zµμ/]{1,8})[)\]]")
_RATE_UNIT_ANYWHERE = re.compile(r"\b([KMGT]i?(?:B/s|Bps|bps|b/s|bit/s))")
_SETTING = re.compile(r"\b((?:NCCL|RCCL|UCX|FI)_[A-Z0-9_]{2,60}) ?= ?([\w.:,^-]{1,100})")
_COLLECTIVE = re.compile(
    r"\b(all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?to[-_ ]?all|broadcast|bcast|"
    r"send[-_ ]?recv)(?![A-Za-z])",
    re.IGNORECASE,
)
_PAYLOAD = re.compile(
    r"(\d{1,6}(?:\.\d{1,3})? ?[KMGT]i?B)[ -]?payload|payload (?:size )?of (\d{1,6} ?[KMGT]i?B)\b"
)
_RANKS = re.compile(r"\b(\d{1,7}) ?(?:gpus?|ranks?|npus?)\b", re.IGNORECASE)
_NODES = re.compile(r"\b(\d{1,6}) ?nodes?\b", re.IGNORECASE)

_RATE_PREFIXES = {"K": 1e-6, "M": 1e-3, "G": 1.0, "T": 1e3}
_TIME_UNITS = {
    "ns": 1e9,
    "us": 1e6,
    "µs": 1e6,
    "μs": 1e6,
    "usec": 1e6,
    "ms": 1e3,
    "msec": 1e3,
    "s": 1.0,
    "sec": 1.0,
}


def without_markup(cell: str) -> str:
    """The cell's text without bold, code and "about" signs."""
    return _MARKUP.sub("", cell).strip()


def _quantity(cell: str) -> tuple[str, str] | None:
    """(number, unit) where the cell is one quantity and nothing else."""
    match = _QUANTITY.fullmatch(without_markup(cell)) if _DIGIT.search(cell) else None
    return (match[1].replace(",", ""), match[2]) if match else None


def _rate_unit(unit: str) -> float | None:
    """1e9 bytes per second in one of a unit such as GB/s, GBps, GiB/s, Gb/s, Gbps; small b is a bit."""
    match = re.fullmatch(r"([KMGT])(i?)(B|b|bit)(?:/s|ps)", unit)
    if match is None:
        return None
    factor = _RATE_PREFIXES[match[1]]
    if match[2]:
        factor = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}[match[1]] / 1e9
    return factor / (1 if match[3] == "B" else 8)


def rate(cell: str, heading: str) -> Figure | None:
    """A rate in 1e9 bytes per second; the unit stands in the cell or in the heading.

    Under a heading that says bandwidth and no unit it is GB/s, nccl-tests' unit.
    """
    quantity = _quantity(cell)
    if quantity is None:
        return None
    number, unit = quantity
    if not unit:
        named = _RATE_UNIT_ANYWHERE.search(heading)
        unit = named[1] if named else "GB/s" if re.search(r"bw\b|bandwidth", heading, re.IGNORECASE) else ""
    factor, found = _rate_unit(unit), figure(number)
    if factor is None or found is None:
        return None
    return found if factor == 1.0 else found.times(GIBI if factor == GIBI else factor)


def seconds(cell: str, heading: str) -> Figure | None:
    """A time in seconds; a number without a unit, in the cell or the heading, is none."""
    quantity = _quantity(cell)
    if quantity is None:
        return None
    number, unit = quantity
    named = _UNIT_IN_HEADING.search(heading)
    divisor = _TIME_UNITS.get(unit or (named[1] if named else ""))
    found = figure(number)
    return found.over(divisor) if found and divisor else None


def size(cell: str, heading: str) -> int | None:
    """Bytes of a payload such as 32KiB, 1 GB or, under a heading with the unit, 64; None where it is none."""
    quantity = _quantity(cell)
    if quantity is None:
        return None
    number, unit = quantity
    if not unit:
        named = _UNIT_IN_HEADING.search(heading)
        unit = named[1] if named else "B"
    try:
        found = parse_size(f"{number} {unit}")
    except ValueError:
        return None
    return found if found <= LARGEST_SIZE else None


def collective_in(text: str) -> str:
    """The one collective that ``text`` names, in ccbench's word; "" where it names none or several."""
    found = {collective_name(match) for match in _COLLECTIVE.findall(text)}
    return found.pop() if len(found) == 1 else ""


def payload_in(text: str) -> int | None:
    """The one payload that ``text`` speaks of, in bytes."""
    found = {size(first or second, "") for first, second in _PAYLOAD.findall(text)}
    return found.pop() if len(found) == 1 else None


def ranks_in(text: str, only: str = "") -> tuple[int | None, int | None]:
    """(ranks, nodes) where ``text`` names one number of each.

    only: a word that must stand before the number, for text that speaks of other things too.
    """
    if only:
        text = " ".join(re.findall(rf"\b{only} \d{{1,7}} ?\w{{1,12}}", text))
    ranks = {int(found) for found in _RANKS.findall(text)}
    nodes = {int(found) for found in _NODES.findall(text)}
    return (ranks.pop() if len(ranks) == 1 else None) or None, (
        nodes.pop() if len(nodes) == 1 else None
    ) or None


def settings_in(text: str) -> tuple[tuple[str, str], ...]:
    """Variables and values such as NCCL_NVLS_ENABLE=0, in the order they stand."""
    return tuple(dict(_SETTING.findall(text)).items())


_ROLES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (role, re.compile(words, re.IGNORECASE))
    for role, words in (
        ("ratio", r"%|speed-?up|slow-?down|\bgain\b|\bratio\b|efficiency"),
        ("busbw", r"bus ?-?bw|bus ?bandwidth"),
        ("algbw", r"alg(?:o|orithm)? ?-?bw|alg(?:o|orithm)? ?bandwidth"),
        ("size", r"payload|\bsize|\bbytes\b"),
        ("seconds", r"\btime\b|latency|duration"),
        ("ranks", r"^#? ?(?:gpus?|ranks?|nranks|processes|world ?size)$"),
        ("nodes", r"^#? ?(?:nodes?|hosts?)$"),
        ("algorithm", r"\balgo(?:rithm)?\b"),
        ("protocol", r"\bproto(?:col)?\b"),
        ("collective", r"collective|operation|^op$|^test$"),
        ("dtype", r"\bd?type\b|datatype"),
    )
)
_KNOWN_WORDS = re.compile(
    r"bus ?-?bw|alg(?:o|orithm)? ?-?bw|(?:bus|alg(?:o|orithm)?) ?bandwidth|bandwidth|time|latency|"
    r"\d+ ?(?:nodes?|gpus?|ranks?)|out[- ]of[- ]place|in[- ]place|\([^)]{0,20}\)|[GM]i?B/s|[GM]Bps|Gbps",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class _Column:
    """A column of figures. variant: what its heading says besides kind, unit, ranks and nodes."""

    index: int
    kind: str
    heading: str
    ranks: int | None
    nodes: int | None
    variant: str

    @property
    def group(self) -> tuple[int | None, int | None, str, bool]:
        """Columns that agree in this stand for one measurement."""
        return (
            self.ranks,
            self.nodes,
            self.variant,
            "in-place" in self.heading.lower().replace(" ", "-").replace("out-of-place", ""),
        )


def recognises(text: str) -> bool:
    """Whether ``text`` has a Markdown table with rates or times in it."""
    return "|" in text and any(True for _ in figure_tables(text))


def read(text: str) -> ImportedLog:
    """Every table of figures on the page; other tables are passed over."""
    return ImportedLog(tool="markdown-table", tables=tuple(figure_tables(text)), outcome=Outcome.UNKNOWN)


def figure_tables(text: str) -> Iterator[ImportedTable]:
    """One table for each group of columns and each collective, ranks, nodes and algorithm in it."""
    for table in pipe_tables(text):
        roles = [_role(table, index) for index in range(len(table.headings))]
        groups: dict[tuple[int | None, int | None, str, bool], list[_Column]] = {}
        for column in _figure_columns(table, roles):
            groups.setdefault(column.group, []).append(column)
        for columns in groups.values():
            yield from _split(table, roles, columns)


def _role(table: PipeTable, index: int) -> str:
    """What the column holds: by its heading, else by its cells, which may be rates; "" for the rest.

    Which rates they are, the text above may say; it does not where it speaks of both kinds.
    """
    heading = without_markup(table.headings[index])
    for role, words in _ROLES:
        if words.search(heading):
            return role
    cells = [row.cells[index] for row in table.rows]
    rates = sum(rate(cell, "") is not None for cell in cells)
    if not rates or 2 * rates < len(cells):
        return ""
    named = [role for role, words in _ROLES[1:3] if words.search(without_markup(table.context))]
    return named[0] if len(named) == 1 else "rate"


def _figure_columns(table: PipeTable, roles: list[str]) -> Iterator[_Column]:
    for index, role in enumerate(roles):
        if role in ("busbw", "algbw", "rate", "seconds"):
            heading = without_markup(table.headings[index])
            ranks, nodes = ranks_in(heading)
            variant = _KNOWN_WORDS.sub(" ", heading).strip(" ,;:-")
            yield _Column(index, role, heading, ranks, nodes, re.sub(r"\s+", " ", variant))


def _split(table: PipeTable, roles: list[str], columns: list[_Column]) -> Iterator[ImportedTable]:
    """The rows of one group of columns, a table for each set of facts that rows state."""
    found: dict[
        tuple[str, int | None, int | None, str, str, tuple[tuple[str, str], ...]], list[ImportedRow]
    ] = {}
    for row in table.rows:
        said = {role: row.cells[i] for i, role in reversed(list(enumerate(roles))) if role}
        facts = _facts(table, said, columns[0])
        made = _row(table, roles, columns, row.cells, said, row.line, facts[0])
        if made is not None:
            found.setdefault(facts, []).append(made)
    for (collective, ranks, nodes, algorithm, protocol, settings), rows in found.items():
        variant = columns[0].variant
        yield ImportedTable(
            collective=collective,
            rows=tuple(rows),
            ranks=ranks,
            nodes=nodes,
            algorithm=algorithm,
            protocol=protocol,
            line=table.line,
            facts={
                **({"variant": variant} if variant else {}),
                **({"environment": dict(settings)} if settings else {}),
            },
        )


def _facts(
    table: PipeTable, said: dict[str, str], column: _Column
) -> tuple[str, int | None, int | None, str, str, tuple[tuple[str, str], ...]]:
    """(collective, ranks, nodes, algorithm, protocol, settings) of a row: its cells, else the text above."""
    context_ranks, context_nodes = ranks_in(table.context, only="over")
    settings = settings_in(" ".join((column.heading, *said.values())))
    # What the library picked is of the plain column; another variant may have picked something else.
    algorithm = without_markup(said.get("algorithm", "")).lower() if not column.variant else ""
    forced = dict(settings)
    return (
        collective_in(said.get("collective", ""))
        or collective_in(column.heading)
        or collective_in(table.context),
        whole(without_markup(said.get("ranks", ""))) or column.ranks or context_ranks,
        whole(without_markup(said.get("nodes", ""))) or column.nodes or context_nodes,
        algorithm or forced.get("NCCL_ALGO", "").lower() or "default",
        without_markup(said.get("protocol", "")).lower() or forced.get("NCCL_PROTO", "").lower() or "default",
        settings,
    )


def _row(
    table: PipeTable,
    roles: list[str],
    columns: list[_Column],
    cells: tuple[str, ...],
    said: dict[str, str],
    line: int,
    collective: str,
) -> ImportedRow | None:
    figures = {}
    for column in columns:
        reader = seconds if column.kind == "seconds" else rate
        figures[column.kind] = reader(cells[column.index], column.heading)
    if not any(figures.values()):
        return None
    at = roles.index("size") if "size" in roles else None
    size_bytes = size(cells[at], table.headings[at]) if at is not None else payload_in(table.context)
    if at is not None and size_bytes is None:
        return None
    time, algbw, busbw = (figures.get(kind) for kind in ("seconds", "algbw", "busbw"))
    unlabelled = figures.get("rate")
    flags = (
        *((Flag.SIZE_NOT_STATED,) if size_bytes is None else ()),
        *((Flag.RATE_KIND_UNKNOWN,) if unlabelled else ()),
    )
    return row_of(
        line,
        {"seconds": time, "algbw": algbw, "busbw": busbw},
        size_bytes=size_bytes or 0,
        dtype=dtype_name(without_markup(said.get("dtype", ""))),
        op=op_of(collective, ""),
        in_place=columns[0].group[3],
        flags=flags,
        extra={
            **({"rate_gb_per_second": unlabelled.value} if unlabelled else {}),
            **{
                without_markup(table.headings[i]): without_markup(cells[i])
                for i, role in enumerate(roles)
                if role == "ratio"
            },
        },
    )
