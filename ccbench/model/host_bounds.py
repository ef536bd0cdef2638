"""Times that no schedule can undercut where ranks share one host's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ccbench.collectives import Collective
from ccbench.model.machine import Floats, Machine
from ccbench.model.parties import EVERYBODY, Party


@dataclass(frozen=True)
class Compulsory:
    """Elements that any schedule must touch, summed over ranks, per element of ``count``.

    read: input elements that another rank's output depends on, each once.
    written: output elements that depend on another rank's input, each once.
    """

    read: float
    written: float


def compulsory(row: Collective, ranks: int, root: int, party: Party = EVERYBODY) -> Compulsory:
    """Derived from the row's inputs, outputs and origins; zero for one rank and for barrier.

    Of all groups of ``party`` together, each of ``ranks`` ranks.

    Elements that stay on their rank are free, for in place they need not be touched. There is no term
    for additions: fused, they need no traffic beyond reading each operand once.
    """
    if ranks < 2 or not row.moves_data:
        return Compulsory(0.0, 0.0)
    groups, weights = len(party.groups_of(ranks)), party.weights(ranks)
    if party.one_way:
        return Compulsory(1.0, 1.0)
    if weights is not None:
        moved = groups * float(weights.sum() - np.trace(weights))
        return Compulsory(moved, moved)
    inputs = _over_ranks(ranks, root, lambda rank: len(row.inputs(rank, ranks, ranks, root)))
    outputs = _over_ranks(ranks, root, lambda rank: len(row.outputs(rank, ranks, ranks, root)))
    if not row.reduces:
        outputs -= _over_ranks(ranks, root, lambda rank: len(_kept(row, rank, ranks, root)))
        inputs -= _over_ranks(ranks, root, lambda rank: _kept_alone(row, rank, ranks, root))
    unit = 1.0 if row.blocked else 1.0 / ranks
    return Compulsory(groups * inputs * unit, groups * outputs * unit)


def _over_ranks(ranks: int, root: int, value: Callable[[int], int]) -> float:
    """Sum over ranks of a value that is the same for every rank but the root."""
    return float(value(root) + (ranks - 1) * value((root + 1) % ranks))


def _kept(row: Collective, rank: int, ranks: int, root: int) -> set[tuple[int, int]]:
    """Input slots of ``rank`` that end up, uncombined, in its own output."""
    outputs = len(row.outputs(rank, ranks, ranks, root))
    origins = (row.origins(rank, index, ranks, root)[0] for index in range(outputs))
    return {origin for origin in origins if origin[0] == rank}


def _kept_alone(row: Collective, rank: int, ranks: int, root: int) -> int:
    """Input slots that end up in the rank's own output and in no other's.

    A slot that goes to several ranks goes to all of them, so one other rank is asked.
    """
    other = (rank + 1) % ranks
    outputs = len(row.outputs(other, ranks, ranks, root))
    theirs = {row.origins(other, index, ranks, root)[0] for index in range(outputs)}
    return len(_kept(row, rank, ranks, root) - theirs)


def working_set_bytes(
    row: Collective,
    ranks: int,
    root: int,
    size_of_count: Floats,
    cores: int,
    in_place: bool,
    party: Party = EVERYBODY,
) -> Floats:
    """Bytes of all input and output buffers per core at work; work space of a schedule is not counted.

    ranks: of one group of ``party``, all of whose buffers count.
    size_of_count: bytes of ``count`` elements. This is what passes through a core's caches between two
    uses of the same byte when launches follow each other.
    """

    def buffers(rank: int) -> int:
        used = (len(row.inputs(rank, ranks, ranks, root)), len(row.outputs(rank, ranks, ranks, root)))
        return max(used) if in_place else sum(used)

    root = max(root, 0)
    groups, weights = len(party.groups_of(ranks)), party.weights(ranks)
    slots = _over_ranks(ranks, root, buffers) * (1.0 if row.blocked else 1.0 / ranks)
    if weights is not None:
        slots = 2.0 * float(weights.sum())  # all that is sent and all that is received
    return np.asarray(groups * slots * size_of_count / min(groups * ranks, cores))


def bound_seconds(
    row: Collective,
    ranks: int,
    counts: ArrayLike,
    item_bytes: int,
    machine: Machine,
    root: int = 0,
    in_place: bool = False,
    party: Party = EVERYBODY,
) -> Floats:
    """Seconds, shape of ``counts``: the larger of one flag's latency and the compulsory traffic's time.

    No rank can finish before it has heard, directly or not, of another, which takes one flag; and the
    memory system cannot move the compulsory bytes faster than the best traffic ever seen on as many
    cores at that working set.
    """
    fabric = machine.fabric
    size_of_count = np.asarray(counts, dtype=np.float64) * item_bytes
    if ranks < 2:
        return np.zeros_like(size_of_count)
    must = compulsory(row, ranks, max(root, 0), party)
    cached = working_set_bytes(row, ranks, root, size_of_count, fabric.cores, in_place, party)
    working = min(ranks * len(party.groups_of(ranks)), fabric.cores)
    traffic = fabric.peak_traffic.at(cached, working, fabric.cores)
    memory_seconds = (must.read + must.written) * size_of_count / traffic
    return np.asarray(np.maximum(memory_seconds, fabric.best_flag_latency_seconds))
