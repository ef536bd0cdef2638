"""Markdown pages with tables of figures, as people publish them: several tables, columns in any order.

Columns are told apart by their headings (payload, busbw, algbw, time, GPUs, nodes, algorithm, collective) and
by the units in their cells. A column of rates becomes a table of its own: its heading may name ranks, nodes
or a variant ("4 nodes", "busbw, NVLS off"). A rate whose heading does not say which one it is stays beside
the row and is not taken for busbw. Nothing that the page does not say is filled in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import ImportedLog, ImportedRow, ImportedTable, row_of
from ccbench.readers.benchmarks.words import (
    LARGEST_SIZE,
    LibraryLines,
    LogLine,
    collective_name,
    dtype_name,
    op_of,
    source_lines,
    whole,
)
from ccbench.readers.lines import PrintedFigure, figure
from ccbench.units import DURATION_UNITS, SIZE_UNITS, parse_size

_CONTEXT_LINES = 12
"""Lines of text before a table that may say what it is about."""

_MOST_COLUMNS = 40
_RULE_CELL = re.compile(r":?-+:?")
_MARKUP = re.compile(
    r"[`*]{1,3}(?=\S)|(?<=\S)[`*]{1,3}|(?<!\w)_{1,2}(?=\w)|(?<=\w)_{1,2}(?!\w)|<br ?/?>|~"
)
_QUANTITY = re.compile(
    r"([0-9][0-9,]{0,20}(?:\.[0-9]{1,12})?)[ \t]*([A-Za-zµμ/]{0,8})", re.ASCII | re.IGNORECASE
)
_UNIT_IN_HEADING = re.compile(r"[(\[]([A-Za-zµμ/]{1,8})[)\]]")
_RATE_UNIT = re.compile(r"\b([KMGT]i?)(B|b|bit)(?:/s|ps)")
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
_STATED_RANKS = re.compile(r"\b(\d{1,7}) ranks?\b")
_LIBRARY = re.compile(
    r"(?<![A-Za-z])(NCCL|RCCL|HCCL|NCCOM|Gloo|MPI)(?![A-Za-z])", re.IGNORECASE
)
_DTYPE = re.compile(r"\b(?:b?float\d{1,2}|[bf][fp]\d{1,2}|u?int\d{1,2})\b", re.IGNORECASE)
_NODES = re.compile(r"\b(\d{1,6}) ?nodes?\b", re.IGNORECASE)
_SECONDS_OF_UNIT = {**DURATION_UNITS, "μs": DURATION_UNITS["us"], "usec": DURATION_UNITS["us"]}
_SECONDS_OF_UNIT |= {"msec": DURATION_UNITS["ms"], "sec": Fraction(1)}

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
class _Page:
    """One table. line: of its headings. rows: (line, cells), as many cells as the table has headings.

    context: the lines of text since the table before, newest last. Markup is taken out of all of them.
    """

    line: int
    headings: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]
    context: str


def recognises(text: str) -> bool:
    """Return whether ``text`` has a Markdown table with rates or times in it."""
    return any(True for _ in figure_tables(text))


def read(text: str) -> ImportedLog:
    """Every table of figures on the page; other tables are passed over.

    The library is the one that the page names, where it names no other.
    """
    library_lines = LibraryLines()
    for line in source_lines(text):
        if not _cells(line):
            library_lines.take(line)
    libraries = {name.upper() for name in _LIBRARY.findall(text)}
    library = libraries.pop() if len(libraries) == 1 else ""
    version = (
        re.search(rf"\b{library} v?(\d{{1,3}}(?:\.\d{{1,4}}){{1,3}})\b", text)
        if library
        else None
    )
    return ImportedLog(
        tool="markdown-table",
        library=library,
        tables=tuple(figure_tables(text)),
        versions=({library: version[1]} if version else {}) | library_lines.versions,
        environment=library_lines.environment,
    )


def figure_tables(text: str) -> Iterator[ImportedTable]:
    """One table for each group of columns and each collective, ranks, nodes and algorithm in it."""
    for page in _pages(text):
        roles = [_role(page, index) for index in range(len(page.headings))]
        # Columns whose headings agree in ranks, nodes, placement and all other words but kind and unit stand
        # for one measurement.
        groups: dict[tuple[int | None, int | None, str, bool], list[int]] = {}
        for index, role in enumerate(roles):
            if role in ("busbw", "algbw", "rate", "seconds"):
                heading = page.headings[index]
                variant = re.sub(r"\s+", " ", _KNOWN_WORDS.sub(" ", heading).strip(" ,;:-"))
                in_place = "in-place" in heading.lower().replace(" ", "-").replace(
                    "out-of-place", ""
                )
                group = (_one(_RANKS, heading), _one(_NODES, heading), variant, in_place)
                groups.setdefault(group, []).append(index)
        # The two placements of one measurement are rows of one table.
        by_facts: dict[tuple[tuple[str, Any], ...], list[ImportedRow]] = {}
        for (ranks, nodes, variant, in_place), columns in groups.items():
            for line, cells in page.rows:
                cell_of_role = {
                    role: cells[i] for i, role in reversed(list(enumerate(roles))) if role
                }
                heading = page.headings[columns[0]]
                facts = _facts(page.context, heading, cell_of_role, ranks, nodes, variant)
                row = _row(
                    page, roles, columns, (line, cells), in_place, str(facts["collective"])
                )
                if row is not None:
                    key = (*facts.items(), ("variant", variant))
                    by_facts.setdefault(key, []).append(row)
        for stated, rows in by_facts.items():
            fields = dict(stated)
            table_facts = {
                "variant": fields.pop("variant"),
                "environment": dict(fields.pop("settings")),
            }
            table_facts = {name: value for name, value in table_facts.items() if value}
            rows.sort(key=lambda row: row.line)
            yield ImportedTable(rows=tuple(rows), line=page.line, facts=table_facts, **fields)


def _pages(text: str) -> Iterator[_Page]:
    """Every table of ``text``: a line of headings, a rule of as many cells, rows until one does not fit."""
    lines = list(source_lines(text)) if "|" in text else []
    context: list[str] = []
    index = 0
    while index < len(lines):
        headings = _cells(lines[index])
        rule = _cells(lines[index + 1]) if index + 1 < len(lines) else ()
        begins = (
            len(headings) >= 2
            and len(rule) == len(headings)
            and all(map(_RULE_CELL.fullmatch, rule))
        )
        if not begins or lines[index + 1].number != lines[index].number + 1:
            context = [*context, lines[index].text][-_CONTEXT_LINES:]
            index += 1
            continue
        begin, index = lines[index].number, index + 2
        rows = []
        while index < len(lines) and len(cells := _cells(lines[index])) == len(headings):
            rows.append((lines[index].number, tuple(map(_bare, cells))))
            index += 1
        yield _Page(begin, tuple(map(_bare, headings)), tuple(rows), "\n".join(context))
        context = []


def _cells(line: LogLine) -> tuple[str, ...]:
    """The cells of a line, none where it has no bar or too many."""
    if "|" not in line.text:
        return ()
    stripped = line.text.strip()
    cells = tuple(
        cell.strip() for cell in stripped.removeprefix("|").removesuffix("|").split("|")
    )
    return cells if len(cells) <= _MOST_COLUMNS else ()


def _bare(text: str) -> str:
    """Text without bold, code and "about" signs."""
    return _MARKUP.sub("", text).strip()


def _role(page: _Page, index: int) -> str:
    """Return what the column holds: by its heading, else by its cells, which may be rates; "" for the rest.

    Which rates they are, the text above may say; it does not where it speaks of both kinds.
    """
    for role, words in _ROLES:
        if words.search(page.headings[index]):
            return role
    cells = [cells[index] for _, cells in page.rows]
    rates = sum(_figure(cell, "", "rate") is not None for cell in cells)
    if not rates or 2 * rates < len(cells):
        return ""
    named = [role for role, words in _ROLES[1:3] if words.search(_bare(page.context))]
    return named[0] if len(named) == 1 else "rate"


def _one(pattern: re.Pattern[str], text: str) -> int | None:
    """The one number that ``text`` names so."""
    numbers = {int(digits) for digits in pattern.findall(text)}
    return (numbers.pop() if len(numbers) == 1 else None) or None


def _facts(
    context: str,
    heading: str,
    cell_of_role: dict[str, str],
    ranks: int | None,
    nodes: int | None,
    variant: str,
) -> dict[str, Any]:
    """Facts of a row: by its cells, else by its column's heading, else in the text above the table."""
    # The text above speaks of other things too: only what follows "over" is of the figures.
    over = " ".join(re.findall(r"\bover \d{1,7} ?\w{1,12}", context))
    forced = dict(_SETTING.findall(" ".join((heading, *cell_of_role.values()))))
    # What the library picked is of the plain column; another variant may have picked something else.
    picked = cell_of_role.get("algorithm", "").lower() if not variant else ""
    texts = (cell_of_role.get("collective", ""), heading, context)
    # A text that names several collectives does not tell which one the row is of.
    named = ({collective_name(match) for match in _COLLECTIVE.findall(text)} for text in texts)
    return {
        "collective": next(
            (name for names in named if len(names) == 1 for name in names if name), ""
        ),
        "ranks": whole(cell_of_role.get("ranks", ""))
        or ranks
        or _one(_RANKS, over)
        or _one(_STATED_RANKS, context),
        "nodes": whole(cell_of_role.get("nodes", "")) or nodes or _one(_NODES, over),
        "algorithm": picked or forced.get("NCCL_ALGO", "").lower() or "default",
        "protocol": cell_of_role.get("protocol", "").lower()
        or forced.get("NCCL_PROTO", "").lower()
        or "default",
        "settings": tuple(forced.items()),
    }


def _row(
    page: _Page,
    roles: list[str],
    columns: list[int],
    line_and_cells: tuple[int, tuple[str, ...]],
    in_place: bool,
    collective: str,
) -> ImportedRow | None:
    line, cells = line_and_cells
    printed = {roles[i]: _figure(cells[i], page.headings[i], roles[i]) for i in columns}
    if not any(printed.values()):
        return None
    if "size" in roles:
        at = roles.index("size")
        size_bytes = _size(cells[at], page.headings[at])
        if size_bytes is None:
            return None
    else:
        payloads = {
            _size(first or second, "") for first, second in _PAYLOAD.findall(page.context)
        }
        size_bytes = payloads.pop() if len(payloads) == 1 else None
    rate = printed.pop("rate", None)
    dtypes = {dtype_name(word) for word in _DTYPE.findall(page.context)}
    above = dtypes.pop() if len(dtypes) == 1 else ""
    doubts = {
        Flag.SIZE_NOT_STATED: size_bytes is None,
        Flag.RATE_KIND_UNKNOWN: rate is not None,
    }
    return row_of(
        line,
        {**printed, "rate_gb_per_second": rate},
        size_bytes=size_bytes or 0,
        dtype=dtype_name(cells[roles.index("dtype")]) if "dtype" in roles else above,
        op=op_of(collective, ""),
        in_place=in_place,
        flags=tuple(flag for flag, is_so in doubts.items() if is_so),
        extra={page.headings[i]: cells[i] for i, role in enumerate(roles) if role == "ratio"},
    )


def _quantity(cell: str, heading: str) -> tuple[str, str, str]:
    """(number, unit, unit of the heading) where the cell is one quantity and nothing else; else no number."""
    match, named = _QUANTITY.fullmatch(cell), _UNIT_IN_HEADING.search(heading)
    number, unit = (match[1].replace(",", ""), match[2]) if match else ("", "")
    return number, unit, named[1] if named else ""


def _figure(cell: str, heading: str, role: str) -> PrintedFigure | None:
    """A time in seconds or a rate in 1e9 bytes per second; the unit stands in the cell or the heading.

    A time without a unit is none. A rate (GB/s, GBps, GiB/s, Gb/s) under a heading that says bandwidth and no
    unit is GB/s, nccl-tests' unit; small b is a bit.
    """
    number, unit, above = _quantity(cell, heading)
    quantity = figure(number)
    if quantity is None:
        return None
    if role == "seconds":
        seconds = _SECONDS_OF_UNIT.get(unit or above)
        return quantity.over(float(1 / seconds)) if seconds else None
    named = _RATE_UNIT.fullmatch(unit) if unit else _RATE_UNIT.search(heading)
    if named is None:
        is_plain = not unit and re.search(r"bw\b|bandwidth", heading, re.IGNORECASE)
        return quantity if is_plain else None
    factor = SIZE_UNITS[f"{named[1]}B"] / 1e9 / (1 if named[2] == "B" else 8)
    return quantity if factor == 1.0 else quantity.times(factor)


def _size(cell: str, heading: str) -> int | None:
    """Bytes of a payload such as 32KiB, 1 GB or, under a heading with the unit, 64; None where it is none."""
    number, unit, above = _quantity(cell, heading)
    try:
        size = parse_size(f"{number} {unit or above or 'B'}") if number else None
    except ValueError:
        return None
    return size if size is not None and size <= LARGEST_SIZE else None
