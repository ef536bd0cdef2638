"""Ring algorithms: every rank talks to its right neighbour only, and no link is ever idle.

Pipelined chains: k pieces travel one behind the other from rank to rank; p - 2 + k steps.

All-reduce in two levels: rings inside groups (nodes), and between ranks of equal position in each group.
"""

from __future__ import annotations

import math

import numpy as np

from ccbench.schedules.schedule import (
    Advance,
    Indices,
    Phase,
    Schedule,
    everyone,
    phase,
    schedule,
)

BACKWARDS = Advance(source_slot=-1, target_slot=-1)


def reduce_scatter_phase(ranks: int) -> Phase:
    """Piece s travels from rank s + 1 around the ring, combined on the way, and ends at rank s."""
    rank = everyone(ranks)
    # Rank r sends piece r - 1 first, which then has p - 1 hops to collect all shares and end at its owner.
    return phase(
        rank,
        (rank + 1) % ranks,
        (rank - 1) % ranks,
        reduces=True,
        repeat=ranks - 1,
        advance=BACKWARDS,
    )


def all_gather_phase(ranks: int) -> Phase:
    """Piece s starts at rank s and is handed on around the ring until everyone has it."""
    rank = everyone(ranks)
    return phase(rank, (rank + 1) % ranks, rank, repeat=ranks - 1, advance=BACKWARDS)


def ring_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Ring reduce-scatter, then ring all-gather.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009. Steps 2(p-1); every rank sends 2n(p-1)/p, which no algorithm without in-network reduction beats.
    """
    phases = [reduce_scatter_phase(ranks), all_gather_phase(ranks)]
    return schedule("all_reduce", "ring", ranks, ranks, phases)


def ring_all_gather(ranks: int, parameter: int) -> Schedule:
    """Every rank hands on the block it received last.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps p-1; every rank sends n(p-1)/p.
    """
    return schedule("all_gather", "ring", ranks, ranks, [all_gather_phase(ranks)])


def ring_reduce_scatter(ranks: int, parameter: int) -> Schedule:
    """Every rank combines the block it received last with its own and hands it on.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009. Steps p-1; every rank sends n(p-1)/p.
    """
    return schedule("reduce_scatter", "ring", ranks, ranks, [reduce_scatter_phase(ranks)])


def _chain(ranks: int, pieces: int, *, towards_root: bool) -> list[Phase]:
    """The chain 0, 1, ..., p-1 (or back): edge e carries piece t - e in step t.

    The busy edges grow while the pipeline fills and shrink while it drains. In between either all edges
    are busy and the pieces move up, or all pieces are under way and the window of edges moves up: one
    phase, however long the chain.
    """
    edges = ranks - 1
    if edges == 0:
        return []
    first_full, last_full = min(edges, pieces) - 1, max(edges, pieces) - 1
    # Filling and draining change the number of busy edges in every step; the long middle is one phase.
    turns = [(step, 1) for step in range(first_full)]
    turns.append((first_full, last_full - first_full + 1))
    turns += [(step, 1) for step in range(last_full + 1, edges + pieces - 1)]
    direction = -1 if towards_root else 1
    window_moves = edges > pieces
    rank_step, slot_step = (direction, 0) if window_moves else (0, 1)
    phases = []
    for step, repeat in turns:
        edge = np.arange(max(0, step - pieces + 1), min(step, edges - 1) + 1, dtype=np.int32)
        source = edges - edge if towards_root else edge
        phases.append(
            phase(
                source,
                source + direction,
                step - edge,
                reduces=towards_root,
                repeat=repeat,
                advance=Advance(rank_step, rank_step, slot_step, slot_step),
            )
        )
    return phases


def chain_broadcast(ranks: int, parameter: int) -> Schedule:
    """Every rank hands each piece on to the next rank, k = parameter pieces in all.

    Source: Pjesivac-Grbovic, Angskun, Bosilca, Fagg, Gabriel and Dongarra, "Performance analysis of MPI
    collective operations", 2007. Steps p - 2 + k; every rank but the last sends n.
    """
    phases = _chain(ranks, parameter, towards_root=False)
    return schedule("broadcast", "chain", ranks, parameter, phases, parameter=parameter)


def chain_reduce(ranks: int, parameter: int) -> Schedule:
    """Every rank combines each piece with its own and hands it on towards the root.

    Source: Pjesivac-Grbovic, Angskun, Bosilca, Fagg, Gabriel and Dongarra, "Performance analysis of MPI
    collective operations", 2007. Steps p - 2 + k; every rank but the root sends n.
    """
    phases = _chain(ranks, parameter, towards_root=True)
    return schedule("reduce", "chain", ranks, parameter, phases, parameter=parameter)


def default_group(ranks: int) -> int:
    """Return the divisor of ``ranks`` closest to its square root; the smaller one of two equally close."""
    # With g = p / g both levels take equally many steps, and their sum 2(g-1) + 2(p/g-1) is least.
    root = math.sqrt(ranks)
    divisors = [size for size in range(1, math.isqrt(ranks) + 1) if ranks % size == 0]
    divisors += [ranks // size for size in divisors]
    return min(divisors, key=lambda size: (abs(size - root), size))


def hierarchical_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Ring reduce-scatter in groups of g = parameter, ring all-reduce across, ring all-gather in groups.

    Rank r has position r mod g in group r div g. Only n/g of each rank crosses between groups.
    Source: Cho, Finkler, Serrano, Kung and Hunter, "BlueConnect: decomposing all-reduce for deep learning
    on heterogeneous network hierarchy", 2019. Steps 2(g-1) + 2(m-1) with m = p/g groups; every rank
    sends 2n(g-1)/g inside its group and 2(n/g)(m-1)/m to others.
    """
    group, groups = parameter, ranks // parameter
    rank = everyone(ranks)
    position = rank % group
    right = rank - position + (position + 1) % group
    # Inside a group, position i ends with share i. A share is m consecutive slots, so one flow carries it.
    share = groups
    backwards = Advance(source_slot=-share, target_slot=-share)

    def inside(first_share: Indices, *, reduces: bool) -> Phase:
        slot = share * (first_share % group)
        return phase(
            rank, right, slot, width=share, reduces=reduces, repeat=group - 1, advance=backwards
        )

    # Between groups, flow s belongs to slot s: piece s mod m of the share of position s div m. It keeps its
    # slot and moves to the next group in every step, because ranks wrap around at p = m g where slots would
    # not wrap at the end of a share.
    onwards = Advance(source=group, target=group)
    holder, piece = rank // groups, rank % groups

    def across(first_group: Indices, *, reduces: bool) -> Phase:
        source = first_group % groups * group + holder
        target = (first_group + 1) % groups * group + holder
        return phase(source, target, rank, reduces=reduces, repeat=groups - 1, advance=onwards)

    phases = [
        inside(position - 1, reduces=True),
        across(piece + 1, reduces=True),
        across(piece, reduces=False),
        inside(position, reduces=False),
    ]
    return schedule("all_reduce", "hierarchical", ranks, ranks, phases, parameter=parameter)
