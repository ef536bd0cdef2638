"""Columns of a run's table, declared once, at the fields of the values that have them.

A dataclass has a column for each field that is made by ``column`` or is ``described``: schema, writer, reader,
the merging of rounds and docs/results.md are loops over ``columns_of``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """One column of a run's table."""

    name: str
    kind: str
    """string, int64, double, bool, or list<...> of those, as parquet and Arrow call them."""
    unit: str
    meaning: str
    null_when: str = ""
    """Empty for a column that always has a value."""
    rounds: str = "last"
    """Rule by which the values of two rounds become one; see ``merge``."""
    attribute: str = ""
    """Name of the field that has it."""
    default: Any = None
    """Value of the field that nothing is known of; null in the table where the column may be null."""


_KIND_OF = {
    "str": "string",
    "Status": "string",
    "bool": "bool",
    "int": "int64",
    "float": "double",
    "tuple[str, ...]": "list<string>",
    "tuple[int, ...]": "list<int64>",
    "tuple[float, ...]": "list<double>",
    "tuple[tuple[float, ...], ...]": "list<list<double>>",
    "Mapping[str, Any]": "string",  # as JSON
}


def described(
    meaning: str, unit: str = "", null_when: str = "", rounds: str = "last", name: str = ""
) -> dict[str, Any]:
    """Return the metadata of a field that is a column, called as the field or ``name``."""
    return {"column": (name, unit, meaning, null_when, rounds)}


def column(default: Any, meaning: str, unit: str = "", null_when: str = "", **more: str) -> Any:
    """Return a field that is a column and has a default; see ``described``."""
    return field(default=default, metadata=described(meaning, unit, null_when, **more))


_COLUMNS: dict[type, tuple[Column, ...]] = {}


def columns_of(kind: type) -> tuple[Column, ...]:
    """Return the columns that a dataclass declares, in the order of its fields."""
    if kind in _COLUMNS:
        return _COLUMNS[kind]
    columns = []
    for declared in fields(kind):
        if "column" in declared.metadata:
            name, unit, meaning, null_when, rounds = declared.metadata["column"]
            annotation = str(declared.type).removesuffix(" | None")
            columns.append(
                Column(
                    name or declared.name,
                    _KIND_OF[annotation],
                    unit,
                    meaning,
                    null_when,
                    rounds,
                    declared.name,
                    declared.default,
                )
            )
    _COLUMNS[kind] = tuple(columns)
    return _COLUMNS[kind]


Rule = Callable[[Any, Any], Any]


_RULES: Mapping[str, Rule] = {
    "first": lambda before, now: before,
    "last": lambda before, now: now,
    "earliest": lambda before, now: before or now,
    "worst": lambda before, now: max(
        (value for value in (before, now) if value is not None), default=None
    ),
    "joined": lambda before, now: before + now,
    "joined by rank": lambda before, now: tuple(
        earlier + newest for earlier, newest in zip(before, now, strict=True)
    ),
    "total": lambda before, now: before if now is None else now + (before or 0),
}


def merge(before: T, now: T, rules: Mapping[str, Rule]) -> T:
    """Return two rounds' values of one dataclass as one, each column by its rule.

    rules: those that need to know more than the two values, by name.
    """
    both: Mapping[str, Rule] = {**_RULES, **rules}
    values = {
        row.attribute: both[row.rounds](
            getattr(before, row.attribute), getattr(now, row.attribute)
        )
        for row in columns_of(type(now))
    }
    return replace(now, **values)  # type: ignore[type-var]  # T has columns, so it is a dataclass
