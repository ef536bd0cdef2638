"""Markdown's pipe tables as cells, with the text that stands before each."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.importing.readers.lines import Line, source_lines

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
