"""Which backends have which values of an axis, and readers from plain values to checked ones.

Every reader takes what YAML gave (or what the reader itself gave before) and raises MisfitError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ccbench.cases import AXIS, OVERLAP
from ccbench.collectives import COLLECTIVES
from ccbench.dtypes import CPU_DTYPES, ITEM_BYTES
from ccbench.units import shown, suggestion

NCCL_BACKENDS = ("nccl", "nccl-processes")
MPI_BACKENDS = ("mpi", "mpi-cuda")
BACKENDS = ("cpu", "simulated", *NCCL_BACKENDS, "cuda", "cuda-ipc", "cuda-host", *MPI_BACKENDS, "gloo")
GPU_BACKENDS = (*NCCL_BACKENDS, "cuda", "cuda-ipc", "cuda-host")
"""Backends that have every dtype; cuda-host runs kernels for GPUs, on a CPU."""

GPU_ONLY_DTYPES = tuple(name for name in ITEM_BYTES if name not in CPU_DTYPES)
"""Kept only for GPU_BACKENDS; ``dtype: all`` stands for the others."""

NCCL_ONLY_OPS = ("premulsum",)
"""Kept only for NCCL_BACKENDS."""

MOST_ITEMS = 1000
"""Values that one list may have; a suite with more of them has ranges to say so."""

GPU_ONLY_MODES = ("graph", "cold")
"""Kept only for backends that drive a GPU."""

GPU_MODE_BACKENDS = (*NCCL_BACKENDS, "cuda")
MPI_ONLY_MODES = ("nonblocking", "persistent")
"""Kept only for MPI_BACKENDS: how their functions are called."""

OVERLAP_BACKENDS = ("cpu", *NCCL_BACKENDS, "mpi", "gloo")
"""Kept only for them: something is computed meanwhile."""

GROUPED_BACKENDS = ("cpu", "simulated", *NCCL_BACKENDS, *MPI_BACKENDS, "gloo", "cuda", "cuda-host")
SEVERAL_AT_ONCE = ("cpu", "simulated", *NCCL_BACKENDS, "mpi", "gloo")
"""Backends on which a rank can be in several groups at a time."""

BACKENDS_WITH: dict[str, tuple[str, ...]] = {
    "in_place": BACKENDS,
    "computing": BACKENDS,
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


def offers(backend: str, name: str, value: object) -> bool:
    """Whether ``backend`` has that value of the axis ``name``; the default is had by all."""
    if name == "dtype":
        return backend in GPU_BACKENDS or value not in GPU_ONLY_DTYPES
    if name == "op":
        return backend in NCCL_BACKENDS or value not in NCCL_ONLY_OPS
    if name == "mode":
        if value == OVERLAP:
            return backend in OVERLAP_BACKENDS
        if value in MPI_ONLY_MODES:
            return backend in MPI_BACKENDS
        return backend in GPU_MODE_BACKENDS or value not in GPU_ONLY_MODES
    return value == AXIS[name].default or backend in BACKENDS_WITH.get(name, ())


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


read_backends = words("backend", ("auto", *BACKENDS))
read_sweep_backends = words("backend", BACKENDS, BACKENDS)
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
