"""Binomial trees: the ranks that have it double in every step; ceil(log2 p) steps.

The subtree below rank r is the block of ranks [r, r + d), so that what it gathers or is dealt is one
range of slots. Distances shrink on the way down: the long hops come first, when few ranks send. A scatter
down the tree and a ring all-gather make a large broadcast, in which bytes move only once.

Pipelined all-reduce up and down one binary tree, or two that complement each other.

The trees are in-order: ranks are numbered from left to right, so that every second rank is a leaf and
neighbours in the tree are near in number. Counted from 1, position i with lowest set bit b hangs below
(i - b) | 2b; where that is beyond the last rank, it tops the rest on the right and hangs below i - b.
The depth is floor(log2 p).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccbench.schedules.ring import all_gather_phase
from ccbench.schedules.schedule import (
    Advance,
    Indices,
    Phase,
    Schedule,
    distances_up_to,
    everyone,
    phase,
    schedule,
)


def _edges(ranks: int, distance: int) -> tuple[Indices, Indices]:
    """(parents, children) of the tree's edges of one length."""
    parent = np.arange(0, ranks - distance, 2 * distance, dtype=np.int32)
    return parent, parent + np.int32(distance)


def scatter_phases(ranks: int) -> list[Phase]:
    """Rank 0 holds slots 0 ... ranks-1; afterwards rank r holds slot r (and what its subtree got)."""
    phases = []
    for distance in distances_up_to(ranks)[::-1]:
        parent, child = _edges(ranks, distance)
        # The last subtree may be cut short by the number of ranks.
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


def scatter_all_gather_broadcast(ranks: int, parameter: int) -> Schedule:
    """Binomial scatter of p pieces, then ring all-gather.

    Source: Barnett, Shuler, van de Geijn, Gupta, Payne and Watts, "Interprocessor collective
    communication library (InterCom)", 1994. Steps ceil(log2 p) + p - 1; the root sends 2n(p-1)/p.
    """
    phases = [*scatter_phases(ranks), all_gather_phase(ranks)]
    return schedule("broadcast", "scatter_all_gather", ranks, ranks, phases)


FORWARDS = Advance(source_slot=1, target_slot=1)


@dataclass(frozen=True, eq=False)
class Edges:
    """Tree edges, shape (edges,) each.

    depth: of the child; 1 for the children of a root.
    first_slot: where the pieces begin that travel on this edge.
    """

    child: Indices
    parent: Indices
    depth: Indices
    first_slot: Indices


def tree_parents(ranks: int) -> Indices:
    """Parent of every rank in the in-order binary tree; -1 for the root."""
    position = everyone(ranks) + 1
    # The lowest set bit: 1 for leaves, and larger the higher a position is in the tree.
    low = position & -position
    above = (position - low) | (2 * low)
    parent = np.where(above <= ranks, above, position - low)
    return (parent - 1).astype(np.int32)


def tree_edges(ranks: int) -> Edges:
    """The in-order binary tree of ``ranks`` ranks, its pieces from slot 0 on."""
    parent = tree_parents(ranks)
    depth = np.zeros(ranks, dtype=np.int32)
    above = parent.copy()
    # All ranks climb at once, so there are as many rounds as the tree is deep.
    while bool(np.any(above >= 0)):
        depth += above >= 0
        above = np.where(above >= 0, parent[above], -1).astype(np.int32)
    child = np.flatnonzero(parent >= 0).astype(np.int32)
    return Edges(child, parent[child], depth[child], np.zeros_like(child))


def complement(edges: Edges, ranks: int, first_slot: int) -> Edges:
    """The second tree: mirrored for an even number of ranks, shifted by one for an odd number.

    Inner positions are even when counted from 1. Mirroring an even number of ranks, or shifting an odd
    one, gives every rank the other parity (of an odd number, rank 0 stays a leaf), so no rank is an
    inner one twice.
    """
    if ranks % 2 == 0:
        child, parent = ranks - 1 - edges.child, ranks - 1 - edges.parent
    else:
        child, parent = (edges.child + 1) % ranks, (edges.parent + 1) % ranks
    return Edges(child, parent, edges.depth, np.full_like(edges.child, first_slot))


def up_and_down(edges: Edges, pieces: int) -> list[Phase]:
    """``pieces`` pieces per edge travel up one behind the other, combined, and then down, copied."""
    depth = int(edges.depth.max(initial=0))
    # The deepest begin, so that a rank's children reach it in one step and it sends on in the next.
    up = _pipelined(
        edges.child, edges.parent, edges.first_slot, depth - edges.depth, pieces, reduces=True
    )
    down = _pipelined(
        edges.parent, edges.child, edges.first_slot, edges.depth - 1, pieces, reduces=False
    )
    return up + down


def _pipelined(
    source: Indices,
    target: Indices,
    first_slot: Indices,
    start: Indices,
    pieces: int,
    *,
    reduces: bool,
) -> list[Phase]:
    """Edge i carries piece t - start[i] in step t; steps with the same busy edges make one phase.

    Both children of a rank reach it in the same step: it reads and combines them alone (fan_in).
    """
    # Between two changes the same edges are busy, and every one of them is a piece further in each step.
    changes = np.unique(np.concatenate([start, start + pieces]))
    phases = []
    for begin, end in zip(changes[:-1].tolist(), changes[1:].tolist(), strict=True):
        busy = (start <= begin) & (begin < start + pieces)
        phases.append(
            phase(
                source[busy],
                target[busy],
                first_slot[busy] + begin - start[busy],
                reduces=reduces,
                fan_in=reduces,
                repeat=end - begin,
                advance=FORWARDS,
            )
        )
    return phases


def binary_tree_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Reduce to the root of one binary tree in k = parameter pieces, then broadcast from it.

    Source: Pjesivac-Grbovic, Angskun, Bosilca, Fagg, Gabriel and Dongarra, "Performance analysis of MPI
    collective operations", 2007. Steps 2(floor(log2 p) + k - 1); an inner rank sends n up and 2n down,
    a leaf n.
    """
    phases = up_and_down(tree_edges(ranks), parameter)
    return schedule("all_reduce", "binary_tree", ranks, parameter, phases, parameter=parameter)


def double_binary_tree_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Half of the buffer goes up and down one tree, half the other; no rank is inner in both.

    The buffer is cut into 2k pieces, k = parameter for each tree, so that all ranks send alike.
    Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and
    scan", 2009. Steps 2(floor(log2 p) + k - 1); every rank sends at most 2n.
    """
    first = tree_edges(ranks)
    # The second tree carries the other half of the buffer, so that each edge of either moves half the bytes.
    second = complement(first, ranks, parameter)
    both = Edges(
        np.concatenate([first.child, second.child]),
        np.concatenate([first.parent, second.parent]),
        np.concatenate([first.depth, second.depth]),
        np.concatenate([first.first_slot, second.first_slot]),
    )
    phases = up_and_down(both, parameter)
    return schedule(
        "all_reduce", "double_binary_tree", ranks, 2 * parameter, phases, parameter=parameter
    )
