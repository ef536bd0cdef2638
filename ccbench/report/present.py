"""Results as rows and columns, and their forms: text of a width, Markdown, CSV, JSON and rows of the page.

A column says once what a row has there, how people read it, and how programs call it. Text that comes from
files and machines is made safe here: one line of printable characters everywhere, no markup in Markdown, no
formula in CSV.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from ccbench.units import plain

GAP = "  "
LONGEST_CELL = 32
"""Of a column that may be cut where the screen is narrow."""

IN_EVERY_ROW = 10
MOST_DISPENSABLE = 5
"""Columns kept no more than this go before one that tells rows apart leaves the rows."""

_SPECIAL_IN_MARKDOWN = re.compile(r"[\\`*\[\]$~#|<>&]")
_MENTION = re.compile(r"([@#])(?=\w)")
_EMPHASIS = re.compile(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "|": "&#124;", "$": "&#36;"}


@dataclass(frozen=True)
class ShownColumn:
    """One column, of people's forms where it has a title, of programs' where it has a name.

    keep: the larger, the longer the column stays on a narrow screen; from IN_EVERY_ROW on it stays in the
    rows even where all say the same. tells: it tells rows apart and is neither cut nor dropped; without room
    it becomes a line above its rows. name: key in JSON and heading in CSV; says the unit. value: attribute of
    a row (dots for inner ones), key of a mapping, or a function of it, else ``name``; None where there is
    none, which ``absent`` says to people. form: text of a value. show: text of a row whose cell says more
    than its value.
    """

    title: str = ""
    right: bool = True
    keep: int = 7
    tells: bool = False
    value: str | Callable[[Any], Any] = ""
    form: Callable[[Any], str] = str
    name: str = ""
    absent: str = "-"
    show: Callable[[Any], str] | None = None

    def at(self, row: Any) -> Any:
        """Value of ``row``; None where there is none."""
        value = self.value or self.name
        if not isinstance(value, str):
            return value(row)
        for name in value.split("."):
            row = row.get(name) if isinstance(row, Mapping) else getattr(row, name)
            if row is None:
                break
        return row

    def text(self, row: Any) -> str:
        """Cell of ``row`` for people."""
        if self.show is not None:
            return self.show(row)
        value = self.at(row)
        return self.absent if value is None else self.form(value)


@dataclass(frozen=True)
class Table:
    """Rows of as many texts as there are columns. text: one or two sentences that explain it."""

    columns: tuple[ShownColumn, ...]
    rows: Sequence[Sequence[str]]
    title: str = ""
    text: str = ""


def columns(*titles: str) -> tuple[ShownColumn, ...]:
    """Columns of ``titles``, aligned right but for those that begin with ``<``."""
    return tuple(
        ShownColumn(title.removeprefix("<"), right=not title.startswith("<"))
        for title in titles
    )


def named(*names: str) -> tuple[ShownColumn, ...]:
    """Columns for programs alone, of attributes; the name is the last part of a path."""
    return tuple(ShownColumn(name=name.rpartition(".")[2], value=name) for name in names)


def table_of(
    columns: Iterable[ShownColumn], rows: Iterable[Any], title: str = "", text: str = ""
) -> Table:
    """Texts of ``rows`` in the columns that people see."""
    shown = tuple(column for column in columns if column.title)
    return Table(shown, [[column.text(row) for column in shown] for row in rows], title, text)


def filled(table: Table) -> Table:
    """``table`` without the columns in which no row has a text."""
    kept = [any(cells) for cells in zip(*table.rows, strict=True)]
    rows = [tuple(compress(row, kept)) for row in table.rows]
    return replace(table, columns=tuple(compress(table.columns, kept)), rows=rows)


def documents(columns: Iterable[ShownColumn], rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Values of each row by the columns' names, for JSON, which has no infinity: that is null."""
    keys = [column for column in columns if column.name]
    rows_of_values = [{column.name: column.at(row) for column in keys} for row in rows]
    return [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        for values in rows_of_values
    ]


def values_of(row: Any, *names: str) -> dict[str, Any]:
    """Attributes of ``row`` by their names; of a path, by its last part."""
    return documents(named(*names), [row])[0]


def beyond(rows: Sized, most: int, rest: str = "and {} more") -> list[str]:
    """A line that counts the rows beyond the first ``most``, where there are any."""
    more = len(rows) - most
    return [rest.format(more)] if more > 0 else []


def first(lines: Sequence[str], most: int, rest: str = "and {} more") -> list[str]:
    """The first ``most`` of ``lines``, and a line that counts the others where there are any."""
    return [*lines[:most], *beyond(lines, most, rest)]


def aligned(table: Table) -> list[str]:
    """Header and rows for a screen, uncut."""
    cells = [[column.title for column in table.columns], *table.rows]
    widths = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    return [
        GAP.join(
            cell.rjust(size) if column.right else cell.ljust(size)
            for cell, size, column in zip(row, widths, table.columns, strict=True)
        ).rstrip()
        for row in cells
    ]


def fitted(table: Table, width: int) -> tuple[list[str], tuple[str, ...]]:
    """Header and rows no wider than ``width``, and the titles of columns that were left out for that.

    First what every row shares moves into a line above, then the least important columns go, then what tells
    rows apart becomes a line above their rows.
    """
    rows = [
        [
            cell if column.tells else plain(cell, LONGEST_CELL)
            for cell, column in zip(row, table.columns, strict=True)
        ]
        for row in table.rows
    ]
    cells = dict(zip(table.columns, zip(*rows, strict=True), strict=True)) if rows else {}
    left, shared, dropped, headings = list(cells), [], [], []

    def is_too_wide() -> bool:
        sizes = [max(map(len, (column.title, *cells[column]))) for column in left]
        return sum(sizes) + len(GAP) * (len(sizes) - 1) > width

    if is_too_wide() and len(rows) > 1:
        # Of the whole texts: reasons that begin alike may differ where a cell ends.
        whole = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
        alike = [column for column in left if len({*whole[column]}) == 1]
        for column in [column for column in alike if column.keep < IN_EVERY_ROW]:
            left.remove(column)
            text = whole[column][0]
            shared += [f"{column.title} {text}"] if text not in ("", "-") else []
    # Two columns stay whatever the width: what is shown, and what it is of.
    while is_too_wide() and len(left) > 2:
        least = min(left, key=lambda column: column.keep)
        telling = [column for column in left if column.tells]
        if telling and least.keep > MOST_DISPENSABLE:
            headings.append(telling[0])
            left.remove(telling[0])
        else:
            dropped.append(least.title)
            left.remove(least)
    above = [
        " ".join(
            f"{column.title} {cells[column][place]}" if column.right else cells[column][place]
            for column in headings
            if cells[column][place]
        )
        for place in range(len(rows))
    ]
    grid = Table(tuple(left), list(zip(*(cells[column] for column in left), strict=True)))
    lines = wrapped("every row: " + ", ".join(dict.fromkeys(shared)), width) if shared else []
    # A heading stands above the first of the rows that share it.
    for place, line in enumerate(aligned(grid)):
        if place and above[place - 1] != (above[place - 2] if place > 1 else ""):
            lines += folded(f"- {above[place - 1]}", width)
        lines.append(line if len(line) <= width else line[: width - 1] + "…")
    return lines, tuple(dropped)


def fitted_lines(table: Table, width: int) -> list[str]:
    """Lines of ``fitted`` and, where columns were left out, one that names them."""
    lines, dropped = fitted(table, width)
    return lines + (
        wrapped(f"not shown for want of width: {', '.join(dropped)}", width) if dropped else []
    )


def wrapped(text: object, width: int) -> list[str]:
    """``text`` on lines of at most ``width`` characters, safe to print."""
    return textwrap.wrap(plain(text, 2000), width)


WORD = 16
"""Characters that two lines may lose at the end of the first."""


def two_lines(head: str, advice: str, width: int) -> list[str]:
    """``head`` and the clauses of ``advice`` that fit, on two lines of ``width`` at most; the first one always."""
    clauses = advice.split("; ") if advice else []
    for count in range(len(clauses), 0, -1):
        lines = wrapped(f"{head}. Do: {'; '.join(clauses[:count])}", width)
        if len(lines) <= 2:
            return lines
    if clauses:
        cure = f". Do: {clauses[0]}"
        room = max(2 * width - len(cure) - WORD, WORD)
        head = textwrap.shorten(head, room, placeholder=" …") + cure
    return textwrap.wrap(head, width, max_lines=2, placeholder=" …")


def hanging(text: object, width: int) -> list[str]:
    """``wrapped`` text, all lines but the first indented."""
    return textwrap.wrap(plain(text, 2000), width, subsequent_indent="  ")


def folded(line: str, width: int) -> list[str]:
    """``line`` as it stands where it fits, else folded with its indentation."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, width, subsequent_indent=indent + "  ")


def markdown(text: object, longest: int = 200) -> str:
    """``plain`` text that Markdown shows as it is, in a table's cell too.

    Underscores inside words are left alone: they are in every collective's name and mean nothing there.
    """
    # A zero-width space after @ and # keeps people and issues from being mentioned.
    line = _MENTION.sub("\\1\u200b", plain(text, longest))
    line = _SPECIAL_IN_MARKDOWN.sub(
        lambda match: _ENTITIES.get(match[0], "\\" + match[0]), line
    )
    return _EMPHASIS.sub(r"\\_", line)


def markdown_table(table: Table, longest: int = 200) -> str:
    """Header and rows; the title and the text are the caller's to place."""
    lines = [
        "| " + " | ".join(markdown(column.title) for column in table.columns) + " |",
        "| " + " | ".join("---:" if column.right else "---" for column in table.columns) + " |",
    ]
    lines += [
        "| " + " | ".join(markdown(cell, longest) or " " for cell in row) + " |"
        for row in table.rows
    ]
    return "\n".join(lines)


def csv_of(columns: Sequence[ShownColumn], rows: Iterable[Any]) -> str:
    """Rows as CSV (RFC 4180): numbers in full precision, empty where there is no value."""

    def cell(value: object) -> str:
        if value is None:
            return ""
        if isinstance(value, str):
            return csv_text(value)
        # A float's repr is the shortest text that reads back as the same number.
        return str(value).lower() if isinstance(value, bool) else repr(value)

    sink = io.StringIO()
    keys = [column for column in columns if column.name]
    writer = csv.writer(sink, lineterminator="\r\n")
    writer.writerow([column.name for column in keys])
    writer.writerows([cell(column.at(row)) for column in keys] for row in rows)
    return sink.getvalue()


def csv_text(text: object) -> str:
    """Text for a CSV cell that no spreadsheet takes for a formula (CWE-1236): those get an apostrophe.

    Only for text; a negative number is written as a number.
    """
    line = " ".join(str(text).encode("utf-8", "replace").decode().replace("\0", "").split())
    return "'" + line if line[:1] in ("=", "+", "-", "@") else line
