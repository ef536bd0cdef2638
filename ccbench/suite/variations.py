"""The axes that only some backends have: how a library is set up, and who communicates with whom.

A value that a backend, a collective or a number of ranks does not have is left out there, as elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import product
from typing import TYPE_CHECKING, Any

from ccbench.collectives import COLLECTIVES, Collective
from ccbench.errors import UsageError
from ccbench.groups import every_pair, parse_groups, parse_pair, read_groups
from ccbench.suite.axes import MPI_BACKENDS, NCCL_BACKENDS, MisfitError, items, read_at, whole_number, words
from ccbench.units import shown

if TYPE_CHECKING:
    from ccbench.suite.model import Sweep

TRANSPORTS = ("default", "host", "network")
REGISTRATIONS = ("none", "local", "symmetric")

PAIRS_OF_RING = "ring"
PAIR_SETS = (PAIRS_OF_RING, "each", "both")
"""The ring shift of all ranks, every ordered pair one way, every pair both ways."""

MOST_CHANNELS = 64
MOST_AGGREGATED = 1024
MOST_MISALIGNED_BYTES = 4096

BACKENDS_WITH: dict[str, tuple[str, ...]] = {
    "protocol": (*NCCL_BACKENDS, "simulated"),
    "channels": NCCL_BACKENDS,
    "transport": (*NCCL_BACKENDS, "cuda", "cuda-ipc"),
    "registration": NCCL_BACKENDS,
    "aggregation": NCCL_BACKENDS,
    "misalignment_bytes": NCCL_BACKENDS,
    "pair": ("cpu", *NCCL_BACKENDS, *MPI_BACKENDS, "gloo"),
    "groups": ("cpu", *NCCL_BACKENDS, *MPI_BACKENDS, "gloo"),
    "beside": NCCL_BACKENDS,
}
"""Which backends have more than the default of an axis."""


@dataclass(frozen=True)
class Variation:
    """One value of each axis, as ``Case`` has them."""

    protocol: str = "default"
    channels: int = 0
    transport: str = "default"
    registration: str = "none"
    aggregation: int = 1
    misalignment_bytes: int = 0
    pair: str = ""
    groups: str = ""
    beside: str = ""


DEFAULTS = {field.name: field.default for field in fields(Variation)}


def variations(sweep: Sweep, backend: str, row: Collective, ranks: int) -> tuple[Variation, ...]:
    """Every combination that ``sweep`` asks for and that exists for this collective here, each once."""
    asked: dict[str, Sequence[Any]] = {
        "protocol": sweep.protocol,
        "channels": sweep.channels,
        "transport": sweep.transport,
        "registration": sweep.registration,
        "aggregation": sweep.aggregation,
        "misalignment_bytes": sweep.misalignment,
        "pair": tuple(_pairs(sweep.pairs, row, ranks)),
        "groups": tuple(_groupings(sweep.groups, ranks)),
        "beside": tuple(name for name in sweep.beside if name != row.name),
    }
    if not row.moves_data:
        moved = ("registration", "misalignment_bytes")
        asked.update({name: (DEFAULTS[name],) for name in moved})
    kept = {
        name: [value for value in values if value == DEFAULTS[name] or backend in BACKENDS_WITH[name]]
        for name, values in asked.items()
    }
    made = (Variation(**dict(zip(kept, values, strict=True))) for values in product(*kept.values()))
    return tuple(dict.fromkeys(one for one in made if not (one.pair and one.groups)))


def _pairs(names: Sequence[str], row: Collective, ranks: int) -> Iterator[str]:
    for name in names:
        if name == PAIRS_OF_RING:
            yield ""
        elif row.name != "send_recv":
            continue
        elif name in PAIR_SETS:
            yield from map(str, every_pair(ranks, both=name == "both"))
        elif max(parse_pair(name).source, parse_pair(name).target) < ranks:
            yield name


def _groupings(expressions: Sequence[str], ranks: int) -> Iterator[str]:
    """Those that so many ranks can form; one of all ranks in their order is the plain case."""
    for expression in expressions:
        try:
            groups = parse_groups(expression, ranks)
        except UsageError:
            continue
        yield "" if groups == (tuple(range(ranks)),) else expression


# -- readers ----------------------------------------------------------------------------------------------


def _numbers(kind: str, lowest: int, highest: int) -> Any:
    def read(value: Any) -> tuple[int, ...]:
        def number(item: Any) -> int:
            return whole_number(item, lowest, highest, kind)

        return tuple(dict.fromkeys(read_at(place, number, item) for place, item in items(value, kind)))

    return read


read_transports = words("transport", TRANSPORTS)
read_registrations = words("registration", REGISTRATIONS, REGISTRATIONS)
read_channels = _numbers("number of channels", 0, MOST_CHANNELS)
read_aggregations = _numbers("number of collectives at once", 1, MOST_AGGREGATED)
read_misalignments = _numbers("number of bytes", 0, MOST_MISALIGNED_BYTES)


def read_pairs(value: Any) -> tuple[str, ...]:
    """``ring``, ``each``, ``both``, or pairs such as ``0>3`` and ``0<>3``."""
    return tuple(dict.fromkeys(read_at(place, _pair, item) for place, item in items(value, "pair")))


def _pair(item: Any) -> str:
    if item in PAIR_SETS:
        return str(item)
    try:
        return str(parse_pair(item if isinstance(item, str) else shown(item)))
    except UsageError as problem:
        raise MisfitError(f"{problem}; or one of {', '.join(PAIR_SETS)}") from None


def read_group_expressions(value: Any) -> tuple[str, ...]:
    """Expressions; ``all`` for all ranks together; a list of lists of ranks is one value."""
    several = value if isinstance(value, (list, tuple)) else ()
    one_value = several and all(isinstance(group, (list, tuple)) for group in several)
    if one_value and all(isinstance(rank, int) for group in several for rank in group):
        value = [value]
    return tuple(dict.fromkeys(read_at(place, _groups, item) for place, item in items(value, "expression")))


def _groups(item: Any) -> str:
    if item in ("all", ""):
        return ""
    try:
        return read_groups(item if isinstance(item, str) else str(item).replace("(", "[").replace(")", "]"))
    except UsageError as problem:
        raise MisfitError(str(problem)) from None


def read_beside(value: Any) -> tuple[str, ...]:
    """Collectives that run at the same time; ``nothing`` for none."""
    known = ("nothing", *(name for name, row in COLLECTIVES.items() if row.moves_data))
    named = words("collective", known)(["nothing" if item == "" else item for _, item in items(value, "x")])
    return tuple("" if name == "nothing" else name for name in named)
