"""Names that tell tables of imported runs apart, as short as they can be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ccbench.report.settings import SETTING_FIELDS

LINE_FIELDS = (
    "collective", "ranks", "nodes", "dtype", "op", "backend", "algorithm", "protocol", "mode", "root",
    "in_place", *SETTING_FIELDS,
)  # fmt: skip
"""Rows that agree in all of these would be points of one line."""

Table = tuple[str, int]


def table_labels(rows: Sequence[Mapping[Any, Any]]) -> list[str]:
    """One label for each row: empty for measured rows, and for imported ones that cannot be mixed up.

    rows: of a run, with the columns of ``ccbench.runs.SCHEMA``, and ``network`` where one is known.
    """
    lines: dict[tuple[Any, ...], dict[Table, None]] = defaultdict(dict)
    for row in rows:
        if row["source"]:
            lines[tuple(row[name] for name in LINE_FIELDS)][_table(row)] = None
    mixed = {table for tables in lines.values() if len(tables) > 1 for table in tables}
    names = _names(sorted(mixed))
    return [_label(row, names.get(_table(row), "")) if row["source"] else "" for row in rows]


def _table(row: Mapping[Any, Any]) -> Table:
    return str(row["source"]), int(row["source_table"]) if row["source"] else 0


def _names(tables: Sequence[Table]) -> dict[Table, str]:
    """Short names, numbered where they are the same."""
    found: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        found[short_source(table[0])].append(table)
    return {
        table: name if len(members) == 1 else f"{name} #{place}"
        for name, members in found.items()
        for place, table in enumerate(members, start=1)
    }


def short_source(source: str) -> str:
    """``owner/repository`` of a repository and path, the name without its suffix of a file."""
    repository, separator, _ = source.partition(":")
    if separator and repository.count("/") == 1 and not any(one.isspace() for one in repository):
        return repository
    return PurePosixPath(source).stem or source


def _label(row: Mapping[Any, Any], name: str) -> str:
    network = row.get("network")
    several = name and int(row["nodes"]) != 1
    shown = network.partition(" (")[0] if isinstance(network, str) and several else ""
    return " ".join(part for part in (name, shown) if part)
