"""Ring algorithms: every rank talks to its right neighbour only, and no link is ever idle.

Pipelined chains: k pieces travel one behind the other from rank to rank; p - 2 + k steps.
"""

from __future__ import annotations

import numpy as np

from ccbench.schedules.schedule import Advance, Phase, Schedule, everyone, phase, schedule

BACKWARDS = Advance(source_slot=-1, target_slot=-1)


def reduce_scatter_phase(ranks: int) -> Phase:
    """Piece s travels from rank s + 1 around the ring, combined on the way, and ends at rank s."""
    rank = everyone(ranks)
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
