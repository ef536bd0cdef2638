"""Which backends have which values of an axis, and readers from plain values to checked ones.

Every reader takes what YAML gave (or what the reader itself gave before) and raises MisfitError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ccbench.capabilities import backend_names, capabilities_of
from ccbench.cases import AXIS
from ccbench.collectives import COLLECTIVES
from ccbench.units import shown, suggestion

MOST_ITEMS = 1000
"""Values that one list may have; a suite with more of them has ranges to say so."""


def offers(backend: str, name: str, value: object) -> bool:
    """Whether ``backend`` has that value of the axis ``name``; the default is had by all."""
    return value == AXIS[name].default or capabilities_of(backend).has(name, value)


MPI_PREFIX = "mpi:"
_ALGORITHM = re.compile(r"(schedule:)?[a-z][a-z0-9_]{0,47}(:[0-9]{1,6})?|mpi:[a-z0-9_]{1,64}", re.ASCII)
"""A name, with a parameter (``chain:8``), a schedule that a kernel interprets (``schedule:chain:8``), or what
an MPI calls one of its own (``mpi:ring``)."""


class MisfitError(ValueError):
    """A value does not fit its key; ``place`` leads from the key to the value, such as ``(3,)``."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


def read_at(place: Sequence[str | int], read: Callable[[Any], Any], value: Any) -> Any:
    """``read(value)``, its error moved to ``place`` inside the key."""
    try:
        return read(value)
    except MisfitError as problem:
        raise MisfitError(str(problem), *place, *problem.place) from None
    except ValueError as problem:
        raise MisfitError(str(problem), *place) from None


def items(value: Any, kind: str) -> list[tuple[tuple[int, ...], Any]]:
    """(place, item) of a list, or of the one value that stands for a list."""
    if not isinstance(value, (list, tuple)):
        return [((), value)]
    if not value:
        raise MisfitError(f"is an empty list; write at least one {kind}")
    if len(value) > MOST_ITEMS:
        raise MisfitError(f"lists {len(value)} values; write at most {MOST_ITEMS}, or a range where one fits")
    return [((index,), item) for index, item in enumerate(value)]


def words(
    kind: str, known: Sequence[str], everything: Sequence[str] = ()
) -> Callable[[Any], tuple[str, ...]]:
    """A reader of one or more of ``known``; ``all`` stands for ``everything`` where there is any."""
    allowed = (*known, "all") if everything else tuple(known)

    def read(value: Any) -> tuple[str, ...]:
        found: list[str] = []
        for place, item in items(value, kind):
            if not isinstance(item, str) or item not in allowed:
                article = "an" if kind[0] in "aeiou" else "a"
                problem = f"{shown(item)} is not {article} {kind}; {suggestion(item, allowed)}"
                raise MisfitError(problem, *place)
            found.extend(everything if everything and item == "all" else (item,))
        return tuple(dict.fromkeys(found))

    return read


def numbers(kind: str, lowest: int, highest: int) -> Callable[[Any], tuple[int, ...]]:
    """A reader of one or more whole numbers from ``lowest`` to ``highest``."""

    def read(value: Any) -> tuple[int, ...]:
        def number(item: Any) -> int:
            return whole_number(item, lowest, highest, kind)

        return tuple(dict.fromkeys(read_at(place, number, item) for place, item in items(value, kind)))

    return read


def read_backends(value: Any) -> tuple[str, ...]:
    """Names of backends, and ``auto``."""
    return words("backend", ("auto", *backend_names()))(value)


def read_sweep_backends(value: Any) -> tuple[str, ...]:
    """Names of backends; ``all`` stands for every one."""
    return words("backend", backend_names(), backend_names())(value)


read_collectives = words("collective", tuple(COLLECTIVES), tuple(COLLECTIVES))


def read_algorithms(value: Any) -> tuple[str, ...]:
    """Names such as ``ring`` or ``hierarchical:4``, ``default`` and ``all``; a backend knows which exist."""
    found = []
    for place, item in items(value, "algorithm"):
        if not isinstance(item, str) or not _ALGORITHM.fullmatch(item):
            raise MisfitError(
                f"{shown(item)} is not an algorithm; write 'ring', 'hierarchical:4' or 'all'", *place
            )
        found.append(item)
    return tuple(dict.fromkeys(found))


def whole_number(value: Any, lowest: int, highest: int, kind: str) -> int:
    """``value`` if it is an int from ``lowest`` to ``highest``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise MisfitError(f"{shown(value)} is not a {kind}; write a whole number such as {max(lowest, 2)}")
    if not lowest <= value <= highest:
        raise MisfitError(f"{shown(value)} is not a {kind}; write {lowest} to {highest}")
    return value
