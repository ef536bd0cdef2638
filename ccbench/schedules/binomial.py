"""Binomial trees: the ranks that have it double in every step; ceil(log2 p) steps.

The subtree below rank r is the block of ranks [r, r + d), so that what it gathers or is dealt is one
range of slots. Distances shrink on the way down: the long hops come first, when few ranks send.
"""

from __future__ import annotations

import numpy as np

from ccbench.schedules.flows import distances_up_to, phase, schedule
from ccbench.schedules.schedule import Indices, Phase, Schedule


def _edges(ranks: int, distance: int) -> tuple[Indices, Indices]:
    """(parents, children) of the tree's edges of one length."""
    parent = np.arange(0, ranks - distance, 2 * distance, dtype=np.int32)
    return parent, parent + np.int32(distance)


def scatter_phases(ranks: int) -> list[Phase]:
    """Rank 0 holds slots 0 ... ranks-1; afterwards rank r holds slot r (and what its subtree got)."""
    phases = []
    for distance in distances_up_to(ranks)[::-1]:
        parent, child = _edges(ranks, distance)
        phases.append(phase(parent, child, child, width=np.minimum(distance, ranks - child)))
    return phases


def gather_phases(ranks: int, member: Indices | None = None) -> list[Phase]:
    """Position r holds slot r; afterwards position 0 holds them all.

    member: the rank at each position, when it is not the same number.
    """
    phases = []
    for distance in distances_up_to(ranks):
        parent, child = _edges(ranks, distance)
        source, target = (child, parent) if member is None else (member[child], member[parent])
        phases.append(phase(source, target, child, width=np.minimum(distance, ranks - child)))
    return phases


def binomial_broadcast(ranks: int, parameter: int) -> Schedule:
    """Everyone who has the buffer sends it to one more rank in every step.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps ceil(log2 p); the root sends n ceil(log2 p).
    """
    edges = [_edges(ranks, distance) for distance in distances_up_to(ranks)[::-1]]
    phases = [phase(parent, child, 0) for parent, child in edges]
    return schedule("broadcast", "binomial", ranks, 1, phases)


def binomial_reduce(ranks: int, parameter: int) -> Schedule:
    """The broadcast run backwards: every rank combines its subtree and sends it up once.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps ceil(log2 p); every rank but the root sends n, the root receives n ceil(log2 p).
    """
    edges = [_edges(ranks, distance) for distance in distances_up_to(ranks)]
    phases = [phase(child, parent, 0, reduces=True) for parent, child in edges]
    return schedule("reduce", "binomial", ranks, 1, phases)


def binomial_gather(ranks: int, parameter: int) -> Schedule:
    """Subtrees collect their blocks and send them up in one range.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps ceil(log2 p); the root receives n(p-1)/p; half of the ranks send n/p, the root's
    largest child half of the buffer.
    """
    return schedule("gather", "binomial", ranks, ranks, gather_phases(ranks))


def binomial_scatter(ranks: int, parameter: int) -> Schedule:
    """Every rank keeps its block and deals out the halves of the rest to its children.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps ceil(log2 p); the root sends n(p-1)/p.
    """
    return schedule("scatter", "binomial", ranks, ranks, scatter_phases(ranks))
