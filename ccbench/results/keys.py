"""Keys that say which cases of a run belong together, declared once as names of columns.

A rule that compares cases groups them by one of these, by itself or ``without`` columns that it looks across
or with further ones: ``Key.columns`` groups rows of a frame likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, TypeVar

from ccbench.cases.axes import IDENTITY, SETTINGS, Case
from ccbench.results.points import ORDER

V = TypeVar("V")
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class Key:
    """Names of the columns in which cases agree."""

    columns: tuple[str, ...]

    @cached_property
    def getter(self) -> Callable[[Case], Any]:
        """Function of a case that gives the values of the columns."""
        return attrgetter(*self.columns)

    def __call__(self, case: Case) -> tuple[Any, ...]:
        """Return the values of ``case``, most often a point of a run."""
        values = self.getter(case)
        return values if len(self.columns) > 1 else (values,)

    def without(self, *names: str) -> Key:
        """Return the key of cases that may differ in ``names``, too."""
        return Key(tuple(name for name in self.columns if name not in names))

    def beside(self, *names: str) -> Key:
        """Return the key of cases that agree in ``names`` as well."""
        return Key((*names, *self.columns))


POINT = Key(ORDER)
"""Of one point: everything that is asked, but the suite's name."""

CURVE = POINT.without("size_bytes")
"""One line of points by size."""

WORK = POINT.without(*(axis.name for axis in IDENTITY if axis.choice))
"""Of the same work, however a library chooses to do it."""

SETTING = Key(tuple(axis.name for axis in SETTINGS))
"""Of the same settings, which labels leave out at their default."""


def grouped(values: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Return ``values`` by their key, groups and members in the order in which they come."""
    groups: dict[K, list[V]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups
