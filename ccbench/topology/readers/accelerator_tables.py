"""Square tables of labels between accelerators, as rocm-smi and npu-smi print them: a heading, then rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ccbench.topology.graph import Notice

MOST_DEVICES = 1024
"""Columns a heading may have; more is damage."""


@dataclass
class Table:
    """Rows by name; ``columns`` are the names of the heading, ``rest`` what stands behind a row's labels."""

    columns: list[str]
    line: int
    rows: dict[str, list[str]] = field(default_factory=dict)
    rest: dict[str, str] = field(default_factory=dict)
    positions: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = {column: index for index, column in enumerate(self.columns)}

    def label(self, row: str, column: str) -> str | None:
        """The cell, None where the row is missing or too short."""
        cells = self.rows.get(row, [])
        index = self.positions[column]
        return cells[index] if index < len(cells) else None

    def pairs(self) -> Iterable[tuple[str, str, str]]:
        """(row, column, label) of every cell off the diagonal, row by row."""
        for row, cells in self.rows.items():
            for column, label in zip(self.columns, cells, strict=False):
                if row != column:
                    yield row, column, label


def read_table(
    lines: Sequence[tuple[int, str]], names: re.Pattern[str], notices: list[Notice], self_label: str = ""
) -> Table | None:
    """The first table of ``lines`` (number, text) whose heading and rows are names that ``names`` matches.

    A row with too few labels is kept as far as it goes, with a notice; so is a missing row.
    self_label: what the diagonal must show, where that is known.
    """
    table: Table | None = None
    for number, line in lines:
        words = line.split()
        if table is None:
            columns = _heading(words, names)
            table = Table(columns, number) if columns else None
            continue
        if not words or not names.fullmatch(words[0]):
            if table.rows and not words:
                break
            continue
        _add_row(table, number, words, notices, self_label)
    if table is None:
        return None
    missing = [column for column in table.columns if column not in table.rows]
    if missing:
        notices.append(Notice("truncated", f"no row for {', '.join(missing[:8])}", table.line))
    return table


def _heading(words: list[str], names: re.Pattern[str]) -> list[str]:
    columns = []
    for word in words[:MOST_DEVICES]:
        if not names.fullmatch(word):
            break
        columns.append(word)
    # A row starts with a name too, but goes on with labels.
    is_row = len(columns) == 1 and len(words) > 1 and not words[1].startswith(("CPU", "Aff"))
    return columns if columns and not is_row and len(set(columns)) == len(columns) else []


def _add_row(table: Table, number: int, words: list[str], notices: list[Notice], self_label: str) -> None:
    name, cells = words[0], words[1 : len(table.columns) + 1]
    if name in table.rows or name not in table.positions:
        text = f"the row {name} appears twice or has no column; left out"
        notices.append(Notice("damaged_line", text, number))
        return
    if len(cells) < len(table.columns):
        text = f"the row {name} has {len(cells)} of {len(table.columns)} labels"
        notices.append(Notice("truncated", text, number))
    index = table.positions[name]
    if self_label and index < len(cells) and cells[index] != self_label:
        text = f"the row {name} does not show {self_label} under itself; its labels may be shifted"
        notices.append(Notice("damaged_line", text, number))
    table.rows[name] = cells
    table.rest[name] = " ".join(words[len(table.columns) + 1 :])


def symmetric(table: Table, notices: list[Notice]) -> None:
    """A notice for the first pair whose two directions have different labels."""
    for row, column, label in table.pairs():
        back = table.label(column, row) if row in table.positions else None
        if back is not None and back != label:
            text = f"{row} to {column} is {label}, back it is {back}"
            notices.append(Notice("contradiction", text, table.line))
            return
