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
from typing import NamedTuple

from ccbench.machine.flags import Flag
from ccbench.results.importers.log import ImportedLog, ImportedRow, ImportedTable, row_of
from ccbench.results.importers.words import (
    GIBI,
    LARGEST_SIZE,
    Line,
    collective_name,
    dtype_name,
    op_of,
    source_lines,
    whole,
)
from ccbench.topology.text import Figure, figure
from ccbench.units import DURATION_UNITS, SIZE_UNITS, parse_size

_CONTEXT_LINES = 12
"""Lines of text before a table that may say what it is about."""

_MOST_COLUMNS = 40
_RULE_CELL = re.compile(r":?-+:?")
_MARKUP = re.compile(r"[`*]{1,3}(?=\S)|(?<=\S)[`*]{1,3}|(?<!\w)_{1,2}(?=\w)|(?<=\w)_{1,2}(?!\w)|<br ?/?>|~")
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


class _Group(NamedTuple):
    """Columns whose headings agree in this stand for one measurement.

    variant: what a heading says besides kind, unit, ranks and nodes.
    """

    ranks: int | None
    nodes: int | None
    variant: str
    in_place: bool


class _Facts(NamedTuple):
    """Facts of a row: by its cells, else by its column's heading, else in the text above the table."""

    collective: str
    ranks: int | None
    nodes: int | None
    algorithm: str
    protocol: str
    settings: tuple[tuple[str, str], ...]


def recognises(text: str) -> bool:
    """Return whether ``text`` has a Markdown table with rates or times in it."""
    return any(True for _ in figure_tables(text))


def read(text: str) -> ImportedLog:
    """Every table of figures on the page; other tables are passed over."""
    return ImportedLog(tool="markdown-table", tables=tuple(figure_tables(text)))


def figure_tables(text: str) -> Iterator[ImportedTable]:
    """One table for each group of columns and each collective, ranks, nodes and algorithm in it."""
    for page in _pages(text):
        roles = [_role(page, index) for index in range(len(page.headings))]
        groups: dict[_Group, list[int]] = {}
        for index, role in enumerate(roles):
            if role in ("busbw", "algbw", "rate", "seconds"):
                groups.setdefault(_group(page.headings[index]), []).append(index)
        for group, columns in groups.items():
            found: dict[_Facts, list[ImportedRow]] = {}
            for line, cells in page.rows:
                said = {role: cells[i] for i, role in reversed(list(enumerate(roles))) if role}
                facts = _facts(page, said, group, page.headings[columns[0]])
                row = _row(page, roles, columns, line, cells, group.in_place, facts.collective)
                if row is not None:
                    found.setdefault(facts, []).append(row)
            for facts, rows in found.items():
                told = {"variant": group.variant, "environment": dict(facts.settings)}
                yield ImportedTable(
                    rows=tuple(rows),
                    line=page.line,
                    facts={name: one for name, one in told.items() if one},
                    **{name: one for name, one in facts._asdict().items() if name != "settings"},
                )


def _pages(text: str) -> Iterator[_Page]:
    """Every table of ``text``: a line of headings, a rule of as many cells, rows until one does not fit."""
    lines = list(source_lines(text)) if "|" in text else []
    context: list[str] = []
    index = 0
    while index < len(lines):
        headings = _cells(lines[index])
        rule = _cells(lines[index + 1]) if index + 1 < len(lines) else ()
        begins = len(headings) >= 2 and len(rule) == len(headings) and all(map(_RULE_CELL.fullmatch, rule))
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


def _cells(line: Line) -> tuple[str, ...]:
    """The cells of a line, none where it has no bar or too many."""
    if "|" not in line.text:
        return ()
    stripped = line.text.strip()
    cells = tuple(cell.strip() for cell in stripped.removeprefix("|").removesuffix("|").split("|"))
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
    rates = sum(_rate(cell, "") is not None for cell in cells)
    if not rates or 2 * rates < len(cells):
        return ""
    named = [role for role, words in _ROLES[1:3] if words.search(_bare(page.context))]
    return named[0] if len(named) == 1 else "rate"


def _group(heading: str) -> _Group:
    variant = re.sub(r"\s+", " ", _KNOWN_WORDS.sub(" ", heading).strip(" ,;:-"))
    in_place = "in-place" in heading.lower().replace(" ", "-").replace("out-of-place", "")
    return _Group(_one(_RANKS, heading), _one(_NODES, heading), variant, in_place)


def _one(pattern: re.Pattern[str], text: str) -> int | None:
    """The one number that ``text`` names so."""
    found = {int(one) for one in pattern.findall(text)}
    return (found.pop() if len(found) == 1 else None) or None


def _collective(text: str) -> str:
    """The one collective that ``text`` names, in ccbench's word; "" where it names none or several."""
    found = {collective_name(match) for match in _COLLECTIVE.findall(text)}
    return found.pop() if len(found) == 1 else ""


def _facts(page: _Page, said: dict[str, str], group: _Group, heading: str) -> _Facts:
    # The text above speaks of other things too: only what follows "over" is of the figures.
    over = " ".join(re.findall(r"\bover \d{1,7} ?\w{1,12}", page.context))
    forced = dict(_SETTING.findall(" ".join((heading, *said.values()))))
    # What the library picked is of the plain column; another variant may have picked something else.
    picked = said.get("algorithm", "").lower() if not group.variant else ""
    return _Facts(
        _collective(said.get("collective", "")) or _collective(heading) or _collective(page.context),
        whole(said.get("ranks", "")) or group.ranks or _one(_RANKS, over),
        whole(said.get("nodes", "")) or group.nodes or _one(_NODES, over),
        picked or forced.get("NCCL_ALGO", "").lower() or "default",
        said.get("protocol", "").lower() or forced.get("NCCL_PROTO", "").lower() or "default",
        tuple(forced.items()),
    )


def _row(
    page: _Page,
    roles: list[str],
    columns: list[int],
    line: int,
    cells: tuple[str, ...],
    in_place: bool,
    collective: str,
) -> ImportedRow | None:
    figures = {}
    for index in columns:
        printed = _seconds if roles[index] == "seconds" else _rate
        figures[roles[index]] = printed(cells[index], page.headings[index])
    if not any(figures.values()):
        return None
    if "size" in roles:
        at = roles.index("size")
        size_bytes = _size(cells[at], page.headings[at])
        if size_bytes is None:
            return None
    else:
        payloads = {_size(first or second, "") for first, second in _PAYLOAD.findall(page.context)}
        size_bytes = payloads.pop() if len(payloads) == 1 else None
    rate = figures.pop("rate", None)
    doubts = {Flag.SIZE_NOT_STATED: size_bytes is None, Flag.RATE_KIND_UNKNOWN: rate is not None}
    dtype = cells[roles.index("dtype")] if "dtype" in roles else ""
    return row_of(
        line,
        {**figures, "rate_gb_per_second": rate},
        size_bytes=size_bytes or 0,
        dtype=dtype_name(dtype),
        op=op_of(collective, ""),
        in_place=in_place,
        flags=tuple(flag for flag, is_so in doubts.items() if is_so),
        extra={page.headings[i]: cells[i] for i, role in enumerate(roles) if role == "ratio"},
    )


def _quantity(cell: str) -> tuple[str, str]:
    """(number, unit) where the cell is one quantity and nothing else; else nothing of both."""
    match = _QUANTITY.fullmatch(cell)
    return (match[1].replace(",", ""), match[2]) if match else ("", "")


def _rate(cell: str, heading: str) -> Figure | None:
    """A rate in 1e9 bytes per second; the unit (GB/s, GBps, GiB/s, Gb/s) stands in the cell or the heading.

    Under a heading that says bandwidth and no unit it is GB/s, nccl-tests' unit; small b is a bit.
    """
    number, unit = _quantity(cell)
    named = _RATE_UNIT.fullmatch(unit) if unit else _RATE_UNIT.search(heading)
    found = figure(number)
    if found is None or (
        named is None and (unit or not re.search(r"bw\b|bandwidth", heading, re.IGNORECASE))
    ):
        return None
    if named is None:
        return found
    factor = SIZE_UNITS[f"{named[1]}B"] / 1e9 / (1 if named[2] == "B" else 8)
    return found if factor == 1.0 else found.times(GIBI if factor == GIBI else factor)


def _seconds(cell: str, heading: str) -> Figure | None:
    """A time in seconds; a number without a unit, in the cell or the heading, is none."""
    number, unit = _quantity(cell)
    named = _UNIT_IN_HEADING.search(heading)
    seconds = _SECONDS_OF_UNIT.get(unit or (named[1] if named else ""))
    found = figure(number)
    return found.over(float(1 / seconds)) if found and seconds else None


def _size(cell: str, heading: str) -> int | None:
    """Bytes of a payload such as 32KiB, 1 GB or, under a heading with the unit, 64; None where it is none."""
    number, unit = _quantity(cell)
    named = _UNIT_IN_HEADING.search(heading)
    try:
        found = parse_size(f"{number} {unit or (named[1] if named else 'B')}") if number else None
    except ValueError:
        return None
    return found if found is not None and found <= LARGEST_SIZE else None
