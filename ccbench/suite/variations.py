"""The axes that only some backends have: how a library is set up, and who communicates with whom.

A value that a backend, a collective or a number of ranks does not have is left out there, as elsewhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from ccbench.cases import ALL_GROUPS
from ccbench.collectives import Collective
from ccbench.suite.axes import MPI_BACKENDS, NCCL_BACKENDS, items, read_at, whole_number, words
from ccbench.suite.grouping import works
from ccbench.suite.ranges import MOST_POINTS

if TYPE_CHECKING:
    from ccbench.suite.model import Sweep

TRANSPORTS = ("default", "host", "network")
REGISTRATIONS = ("none", "local", "symmetric")

MOST_CHANNELS = 64
MOST_AGGREGATED = 1024
MOST_MISALIGNED_BYTES = 4096

GROUPED_BACKENDS = ("cpu", "simulated", *NCCL_BACKENDS, *MPI_BACKENDS, "gloo", "cuda", "cuda-host")
SEVERAL_AT_ONCE = ("cpu", "simulated", *NCCL_BACKENDS, "mpi", "gloo")
"""Backends on which a rank can be in several groups at a time."""

BACKENDS_WITH: dict[str, tuple[str, ...]] = {
    "protocol": (*NCCL_BACKENDS, "simulated"),
    "channels": NCCL_BACKENDS,
    "transport": (*NCCL_BACKENDS, "cuda", "cuda-ipc"),
    "registration": NCCL_BACKENDS,
    "aggregation": NCCL_BACKENDS,
    "misalignment_bytes": NCCL_BACKENDS,
    "pair": ("cpu", *NCCL_BACKENDS, *MPI_BACKENDS, "gloo"),
    "groups": GROUPED_BACKENDS,
    "alone": GROUPED_BACKENDS,
    "beside": SEVERAL_AT_ONCE,
    "traffic": SEVERAL_AT_ONCE,
}
"""Which backends have more than the default of an axis."""

COLLECTIVES_OF_SOME = {"all_to_all_v": BACKENDS_WITH["traffic"]}
"""Which backends have a collective that not all have."""


Axis = tuple[int, Counter[str]]
"""How many values of an axis exist here, and how many of those that are asked for do not, by their names."""


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
    alone: int = ALL_GROUPS
    beside: str = ""
    traffic: str = ""


DEFAULTS = {field.name: field.default for field in fields(Variation)}


def variations(
    sweep: Sweep, backend: str, row: Collective, ranks: int
) -> tuple[tuple[Variation, ...], list[Axis]]:
    """Every combination that ``sweep`` asks for and that exists for this collective here, each once.

    No more than one above MOST_POINTS, which are too many already. And the axes that they are made of.
    """
    named = ("protocol", "channels", "transport", "registration", "aggregation")
    asked: dict[str, Sequence[Any]] = {name: getattr(sweep, name) for name in named}
    asked["misalignment_bytes"] = sweep.misalignment
    if not row.moves_data:
        asked |= {name: (DEFAULTS[name],) for name in ("registration", "misalignment_bytes")}
    kept = {name: [value for value in values if _has(backend, name, value)] for name, values in asked.items()}
    axes = [(len(kept[name]), Counter({name: len(asked[name]) - len(kept[name])})) for name in asked]
    lacked: Counter[str] = Counter()
    possible: dict[tuple[tuple[str, Any], ...], None] = {}
    for work in works(sweep, row, ranks, pairs=backend in BACKENDS_WITH["pair"]):
        missing = [name for name, value in work.items() if not _has(backend, name, value)]
        if backend not in COLLECTIVES_OF_SOME.get(row.name, (backend,)):
            missing = [row.name]
        lacked.update(missing[:1])
        if not missing:
            possible[tuple(work.items())] = None
        if len(possible) > MOST_POINTS:
            break
    made = (
        Variation(**dict(zip(kept, values, strict=True)), **dict(work))
        for *values, work in product(*kept.values(), possible)
    )
    return tuple(islice(made, MOST_POINTS + 1)), [*axes, (len(possible), lacked)]


def _has(backend: str, name: str, value: object) -> bool:
    return value == DEFAULTS[name] or backend in BACKENDS_WITH[name]


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
