"""Readers from plain values to checked ones, and how a pydantic field gets its value from one of them.

Every reader takes what YAML gave (or what the reader itself gave before) and raises MisfitError.

Sizes, ranks and roots: numbers, ranges of numbers, and the bounds that keep a range finite.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccbench.cases.axes import CALLABLE
from ccbench.cases.capabilities import backend_names
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.errors import UsageError
from ccbench.units import format_size, parse_size, shown, suggestion

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
    from pydantic_core.core_schema import CoreSchema


MOST_ITEMS = 1000
"""Values that one list may have; a suite with more of them has ranges to say so."""


_ALGORITHM = re.compile(
    r"(schedule:)?[a-z][a-z0-9_]{0,47}(:[0-9]{1,6})?|mpi:[a-z0-9_]{1,64}|" + CALLABLE.pattern,
    re.ASCII,
)
"""A name, with a parameter (``chain:8``), a schedule that a kernel interprets (``schedule:chain:8``), what an
MPI calls one of its own (``mpi:ring``), or a function of a file (``my_ar.py:all_reduce``)."""


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


def refuse_unknown(value: Mapping[str, Any], keys: Collection[str], *place: str) -> None:
    """Raise MisfitError for a key of ``value`` that is none of ``keys``, with the nearest that is."""
    for key in value:
        if key not in keys:
            raise MisfitError(f"unknown key; {suggestion(key, keys)}", *place, str(key))


def items(value: Any, kind: str) -> list[tuple[tuple[int, ...], Any]]:
    """(place, item) of a list, or of the one value that stands for a list."""
    if not isinstance(value, (list, tuple)):
        return [((), value)]
    if not value:
        raise MisfitError(f"is an empty list; write at least one {kind}")
    if len(value) > MOST_ITEMS:
        raise MisfitError(
            f"lists {len(value)} values; write at most {MOST_ITEMS}, or a range where one fits"
        )
    return [((index,), item) for index, item in enumerate(value)]


def several(kind: str, read: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    """A reader of one value or a list of values, each once; ``read`` makes one."""

    def read_all(value: Any) -> tuple[Any, ...]:
        return tuple(
            dict.fromkeys(read_at(place, read, item) for place, item in items(value, kind))
        )

    return read_all


def one_text(kind: str, fits: Callable[[str], object], cure: str) -> Callable[[Any], str]:
    """A reader of a text that ``fits``; line breaks in it become spaces."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or not fits(value):
            raise MisfitError(f"{shown(value)} is not {_article(kind)} {kind}; write {cure}")
        return " ".join(value.split())

    return read


def one_word(kind: str, choices: Sequence[str]) -> Callable[[Any], str]:
    """A reader of one of ``choices``."""

    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise MisfitError(
                f"{shown(value)} is not {_article(kind)} {kind}; {suggestion(value, choices)}"
            )
        return value

    return read


def _article(noun: str) -> str:
    return "an" if noun[0] in "aeiou" else "a"


def words(
    kind: str, choices: Sequence[str], everything: Sequence[str] = ()
) -> Callable[[Any], tuple[str, ...]]:
    """A reader of one or more of ``choices``; ``all`` stands for ``everything`` where there is any."""
    read_one = one_word(kind, (*choices, "all") if everything else choices)

    def read(value: Any) -> tuple[str, ...]:
        names: list[str] = []
        for place, item in items(value, kind):
            name = read_at(place, read_one, item)
            names.extend(everything if everything and name == "all" else (name,))
        return tuple(dict.fromkeys(names))

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


def read_joining_backends(value: Any) -> tuple[str, ...]:
    """Names of backends, or none."""
    return read_sweep_backends(value) if value else ()


read_collectives = words("collective", (*COLLECTIVES, *SETUPS), tuple(COLLECTIVES))


read_algorithms = several(
    "algorithm",
    one_text("algorithm", _ALGORITHM.fullmatch, "'ring', 'hierarchical:4' or 'all'"),
)
"""Reads names, ``default`` and ``all``; a backend knows which algorithms exist."""


def whole_number(value: Any, lowest: int, highest: int, kind: str) -> int:
    """``value`` if it is an int from ``lowest`` to ``highest``."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise MisfitError(
            f"{shown(value)} is not a {kind}; write a whole number such as {max(lowest, 2)}"
        )
    if not lowest <= value <= highest:
        raise MisfitError(f"{shown(value)} is not a {kind}; write {lowest} to {highest}")
    return value


@dataclass(frozen=True)
class Reads:
    """Annotation of a field: ``read`` makes its value or raises ValueError; ``write`` makes it plain again.

    schema: the JSON schema of what a file may say there.
    """

    read: Callable[[Any], Any]
    schema: dict[str, Any]
    write: Callable[[Any], Any] = lambda value: value

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Called by pydantic: the reader replaces its own checks of the type."""
        from pydantic_core import core_schema

        return core_schema.no_info_plain_validator_function(
            self.read,
            serialization=core_schema.plain_serializer_function_ser_schema(self.write),
        )

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
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


LARGEST_SIZE_BYTES = 2**50
MOST_RANKS = 2**20

MOST_POINTS = 100_000
"""Cases a suite may expand to, and points one range may have."""

MOST_RANK_COUNTS = 1000
"""Different numbers of ranks in one range."""

SMALLEST_FACTOR = 1.05
"""With it, a range of factors over all sizes still has fewer than 1,000 points."""


@dataclass(frozen=True)
class Range:
    """Points from ``first`` to at most ``last``, by one rule: factor, step or per_decade.

    Points are computed when asked for, so a range of a billion points costs nothing until it is refused.
    """

    first: int
    last: int
    rule: str
    amount: int | float

    def count(self) -> int:
        """Number of points."""
        if self.rule == "step":
            return (self.last - self.first) // int(self.amount) + 1
        return len(self.points())

    def points(self) -> tuple[int, ...]:
        """The points, rising, each once."""
        if self.rule == "step":
            return tuple(range(self.first, self.last + 1, int(self.amount)))
        ratio = self.amount if self.rule == "factor" else 10 ** (1 / self.amount)
        # Rounded powers of a small factor repeat themselves at small sizes.
        distinct: dict[int, None] = {}
        power = 0
        while (point := round(self.first * ratio**power)) <= self.last:
            distinct[point] = None
            power += 1
        return tuple(distinct)

    def plain(self) -> dict[str, int | float]:
        """Return the range as a suite file writes it."""
        return {"from": self.first, "to": self.last, self.rule: self.amount}


def _read_range(
    value: Mapping[str, Any], rules: tuple[str, ...], read: Callable[[Any], int]
) -> Range:
    """``{from, to}`` and at most one of ``rules`` (default: factor 2), both ends read by ``read``."""
    refuse_unknown(value, ("from", "to", *rules))
    for key in ("from", "to"):
        if key not in value:
            raise MisfitError(
                f"has no {key!r}; write a range as {{from: 8 B, to: 1 MiB, factor: 2}}"
            )
    ends = {key: read_at((key,), read, value[key]) for key in ("from", "to")}
    chosen = [rule for rule in rules if rule in value] or ["factor"]
    if len(chosen) > 1:
        raise MisfitError(f"has both {chosen[0]!r} and {chosen[1]!r}; keep one")
    if ends["from"] > ends["to"]:
        raise MisfitError(
            f"{shown(value['from'])} is larger than 'to' ({shown(value['to'])}); swap them",
            "from",
        )
    rule = chosen[0]
    if rule != "step" and ends["from"] == 0:
        raise MisfitError(
            "a range that starts at 0 never grows by a factor; start at 1 or give a 'step'",
            "from",
        )
    amount = read_at((rule,), lambda raw: _amount(rule, raw, read), value.get(rule, 2))
    values = Range(ends["from"], ends["to"], rule, amount)
    if values.count() > MOST_POINTS:
        raise MisfitError(
            f"{values.count():,} points; at most {MOST_POINTS:,}: write a factor or a larger step"
        )
    return values


def _amount(rule: str, value: Any, read: Callable[[Any], int]) -> int | float:
    if rule == "step":
        step = read(value)
        if step < 1:
            raise MisfitError(
                f"{shown(value)} never gets from 'from' to 'to'; write a step of 1 or more"
            )
        return step
    if rule == "per_decade":
        return whole_number(value, 1, 100, "number of points per decade")
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise MisfitError(f"{shown(value)} is not a factor; write a number such as 2")
    if not SMALLEST_FACTOR <= value <= LARGEST_SIZE_BYTES:
        raise MisfitError(f"{shown(value)} is not a factor; write {SMALLEST_FACTOR} or more")
    return value


def _size(value: Any) -> int:
    size_bytes = parse_size(value)
    if size_bytes > LARGEST_SIZE_BYTES:
        raise ValueError(
            f"{shown(value)} is more than {format_size(LARGEST_SIZE_BYTES)}; write a smaller size"
        )
    return size_bytes


def _rank_count(value: Any) -> int:
    return whole_number(value, 1, MOST_RANKS, "number of ranks")


def read_sizes(value: Any) -> tuple[int | Range, ...]:
    """Sizes in bytes: one, a range, ``from:to:factor`` as text, or a list of any of these."""
    distinct: dict[int | Range, None] = {}
    points = 0
    for place, item in items(value, "size"):
        size = read_at(place, _one_size, item)
        distinct[size] = None
        # Ranges that are short enough one by one may be too many together.
        points += size.count() if isinstance(size, Range) else 1
        if points > MOST_POINTS:
            raise MisfitError(
                f"more than {MOST_POINTS:,} points in all; write fewer or shorter ranges"
            )
    return tuple(distinct)


def _one_size(item: Any) -> int | Range:
    if isinstance(item, Range):
        return item
    if isinstance(item, Mapping):
        return _read_range(item, ("factor", "step", "per_decade"), _size)
    if isinstance(item, str) and item.count(":") in (1, 2):
        first, last, *factor = item.split(":")
        if factor and not re.fullmatch(
            r"[0-9]{1,9}(\.[0-9]{1,9})?", factor[0].strip(), re.ASCII
        ):
            raise MisfitError(f"{shown(item)} is not a range; write it as '8:1GiB:2'")
        amount = float(factor[0]) if factor else 2
        # A whole factor stays a whole number, as the suite is written back.
        whole = int(amount) if amount == int(amount) else amount
        return _read_range({"from": first, "to": last, "factor": whole}, ("factor",), _size)
    return _size(item)


def size_points(sizes: Iterable[int | Range]) -> tuple[int, ...]:
    """Every size in bytes, in the order given, each once."""
    distinct: dict[int, None] = {}
    for size in sizes:
        distinct.update(dict.fromkeys(size.points() if isinstance(size, Range) else (size,)))
    return tuple(distinct)


def parse_sizes(text: str | int) -> tuple[int, ...]:
    """Sizes in bytes of ``'8:16GiB:2'``, ``'8 B'`` or ``1024``, for a command line. Raises ValueError."""
    return size_points(read_sizes(text))


def read_ranks(value: Any) -> tuple[int, ...] | str:
    """``auto``, or numbers of ranks: one, a list, or a range by factor or step."""
    if value == "auto":
        return "auto"
    parts = several("number of ranks", _some_ranks)(value)
    return tuple(dict.fromkeys(ranks for part in parts for ranks in part))


def _some_ranks(item: Any) -> tuple[int, ...]:
    if isinstance(item, Mapping):
        counts = _read_range(item, ("factor", "step"), _rank_count)
        if counts.count() > MOST_RANK_COUNTS:
            raise MisfitError(
                f"{counts.count():,} numbers of ranks; at most {MOST_RANK_COUNTS:,}: write a factor"
            )
        return counts.points()
    if isinstance(item, str):
        raise MisfitError(
            f"{shown(item)} is not a number of ranks; write 'auto' or a number such as 4"
        )
    return (_rank_count(item),)


def read_roots(value: Any) -> tuple[int, ...] | str:
    """``all``, or root ranks: one or a list."""
    if value == "all":
        return "all"

    def root(item: Any) -> int:
        if isinstance(item, str):
            raise MisfitError(f"{shown(item)} is not a root; write 'all' or a rank such as 0")
        return whole_number(item, 0, MOST_RANKS - 1, "root")

    return several("root", root)(value)


_FACTOR_SCHEMA = {"type": "number", "minimum": SMALLEST_FACTOR}
_SIZE_SCHEMA = {"type": ["integer", "string"], "minimum": 0, "examples": ["8 B", "1 MiB"]}
_RANKS_SCHEMA = {"type": "integer", "minimum": 1, "maximum": MOST_RANKS}
_ROOT_SCHEMA = {"type": "integer", "minimum": 0, "maximum": MOST_RANKS - 1}

DEFAULT_SIZES: tuple[int | Range, ...] = (Range(8, 64 * 2**20, "factor", 4),)

SIZES = Reads(
    read_sizes,
    one_or_many(
        _SIZE_SCHEMA,
        range_schema(
            _SIZE_SCHEMA,
            {
                "factor": _FACTOR_SCHEMA,
                "step": _SIZE_SCHEMA,
                "per_decade": {"type": "integer", "minimum": 1, "maximum": 100},
            },
        ),
    ),
    write=lambda sizes: [size.plain() if isinstance(size, Range) else size for size in sizes],
)
RANKS = Reads(
    read_ranks,
    one_or_many(
        _RANKS_SCHEMA,
        {"const": "auto"},
        range_schema(_RANKS_SCHEMA, {"factor": _FACTOR_SCHEMA, "step": _RANKS_SCHEMA}),
    ),
    write=lambda ranks: ranks if ranks == "auto" else list(ranks),
)
ROOTS = Reads(
    read_roots,
    one_or_many(_ROOT_SCHEMA, {"const": "all"}),
    write=lambda roots: roots if roots == "all" else list(roots),
)
