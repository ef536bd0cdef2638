"""Readers from plain values to checked ones, and how a pydantic field gets its value from one of them.

Every reader takes what YAML gave (or what the reader itself gave before) and raises MisfitError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccbench.capabilities import backend_names
from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.units import shown, suggestion

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core.core_schema import CoreSchema

MOST_ITEMS = 1000
"""Values that one list may have; a suite with more of them has ranges to say so."""


_ALGORITHM = re.compile(r"(schedule:)?[a-z][a-z0-9_]{0,47}(:[0-9]{1,6})?|mpi:[a-z0-9_]{1,64}", re.ASCII)
"""A name, with a parameter (``chain:8``), a schedule that a kernel interprets (``schedule:chain:8``), or what
an MPI calls one of its own (``mpi:ring``)."""


class MisfitError(ValueError):
    """A value does not fit its key; ``place`` leads from the key to the value, such as ``(3,)``."""

    def __init__(self, message: str, *place: str | int) -> None:
        super().__init__(message)
        self.place = place


def read_at(place: Sequence[str | int], read: Callable[[Any], Any], value: Any) -> Any:
    """``read(value)``, its error moved to ``place`` inside the key, whose name the error need not repeat."""
    try:
        return read(value)
    except MisfitError as problem:
        raise MisfitError(str(problem), *place, *problem.place) from None
    except (ValueError, UsageError) as problem:
        raise MisfitError(re.sub("^(layout|traffic): ", "", str(problem)), *place) from None


def items(value: Any, kind: str) -> list[tuple[tuple[int, ...], Any]]:
    """(place, item) of a list, or of the one value that stands for a list."""
    if not isinstance(value, (list, tuple)):
        return [((), value)]
    if not value:
        raise MisfitError(f"is an empty list; write at least one {kind}")
    if len(value) > MOST_ITEMS:
        raise MisfitError(f"lists {len(value)} values; write at most {MOST_ITEMS}, or a range where one fits")
    return [((index,), item) for index, item in enumerate(value)]


def several(kind: str, read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of one value or a list of values, each once; ``read`` makes one."""

    def read_all(value: Any) -> tuple[Any, ...]:
        return tuple(dict.fromkeys(read_at(place, read, item) for place, item in items(value, kind)))

    return read_all


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
    return several(kind, lambda item: whole_number(item, lowest, highest, kind))


def read_backends(value: Any) -> tuple[str, ...]:
    """Names of backends, and ``auto``."""
    return words("backend", ("auto", *backend_names()))(value)


def read_sweep_backends(value: Any) -> tuple[str, ...]:
    """Names of backends; ``all`` stands for every one."""
    return words("backend", backend_names(), backend_names())(value)


read_collectives = words("collective", tuple(COLLECTIVES), tuple(COLLECTIVES))


def _algorithm(item: Any) -> str:
    """A name such as ``ring`` or ``hierarchical:4``, ``default`` or ``all``; a backend knows which exist."""
    if not isinstance(item, str) or not _ALGORITHM.fullmatch(item):
        raise MisfitError(f"{shown(item)} is not an algorithm; write 'ring', 'hierarchical:4' or 'all'")
    return item


read_algorithms = several("algorithm", _algorithm)


def whole_number(value: Any, lowest: int, highest: int, kind: str) -> int:
    """``value`` if it is an int from ``lowest`` to ``highest``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise MisfitError(f"{shown(value)} is not a {kind}; write a whole number such as {max(lowest, 2)}")
    if not lowest <= value <= highest:
        raise MisfitError(f"{shown(value)} is not a {kind}; write {lowest} to {highest}")
    return value


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Reads:
    """Annotation of a field: ``read`` makes its value or raises ValueError; ``write`` makes it plain again.

    schema: the JSON schema of what a file may say there.
    """

    read: Callable[[Any], Any]
    schema: dict[str, Any]
    write: Callable[[Any], Any] = _same

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Called by pydantic: the reader replaces its own checks of the type."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.read, serialization=core_schema.plain_serializer_function_ser_schema(self.write)
        )

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Called by pydantic for the JSON schema."""
        return dict(self.schema)


def one_or_many(*items: dict[str, Any]) -> dict[str, Any]:
    """The schema of one of ``items`` or a list of them."""
    item = items[0] if len(items) == 1 else {"anyOf": list(items)}
    return {"anyOf": [item, {"type": "array", "items": item, "minItems": 1}]}


def range_schema(end: dict[str, Any], rules: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of ``{from, to}`` and one rule."""
    return {
        "type": "object",
        "properties": {"from": end, "to": end, **rules},
        "required": ["from", "to"],
        "additionalProperties": False,
    }
