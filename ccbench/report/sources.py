"""Names that tell tables of imported runs apart, as short as they can be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import PurePosixPath

from ccbench.results import Point

Table = tuple[str, int]


def table_labels(points: Sequence[Point]) -> list[str]:
    """One label for each point: empty for measured ones, and for imported ones that cannot be mixed up."""
    lines: dict[tuple[object, ...], dict[Table, None]] = defaultdict(dict)
    for point in points:
        if point.imported:
            lines[point.curve][point.source, point.source_table] = None
    mixed = {table for tables in lines.values() if len(tables) > 1 for table in tables}
    names = _names(sorted(mixed))
    return [_label(point, names.get((point.source, point.source_table), "")) for point in points]


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


def _label(point: Point, name: str) -> str:
    shown = point.network.partition(" (")[0] if name and point.nodes != 1 else ""
    return " ".join(part for part in (name, shown) if part)
