"""Ring algorithms: every rank talks to its right neighbour only, and no link is ever idle."""

from __future__ import annotations

from ccbench.schedules.flows import everyone, phase, schedule
from ccbench.schedules.schedule import Advance, Phase, Schedule

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
