"""Shifts by powers of two around the ring of ranks: ceil(log2 p) steps for any number of ranks."""

from __future__ import annotations

import numpy as np

from ccbench.schedules.flows import distances_up_to, everyone, phase, schedule
from ccbench.schedules.schedule import Phase, Schedule


def bruck_all_gather(ranks: int, parameter: int) -> Schedule:
    """Rank r holds blocks r, r+1, ...; at distance d it sends the first d of them to rank r - d.

    Blocks lie at their final place from the start, so the rotation at the end of the paper is not needed.
    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
    in multiport message-passing systems", 1997. Steps ceil(log2 p); every rank sends n(p-1)/p.
    """
    rank = everyone(ranks)
    phases = [
        phase(rank, (rank - distance) % ranks, rank, width=min(distance, ranks - distance))
        for distance in distances_up_to(ranks)
    ]
    return schedule("all_gather", "bruck", ranks, ranks, phases)


def bruck_all_to_all(ranks: int, parameter: int) -> Schedule:
    """Blocks are sorted by the distance they have to go and travel it bit by bit, through other ranks.

    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
    in multiport message-passing systems", 1997. Steps ceil(log2 p); every rank sends (n/2) log2 p for
    powers of two (in general n/p times the ones in the binary forms of 0 ... p-1).
    """
    rank = everyone(ranks)
    work = 2 * ranks
    by_distance = phase(rank, rank, rank, work, width=ranks)
    shifts = [_shift(ranks, work, distance) for distance in distances_up_to(ranks)]
    receiver, travelled = np.repeat(rank, ranks), np.tile(rank, ranks)
    arrived = phase(receiver, receiver, work + travelled, ranks + (receiver - travelled) % ranks)
    return schedule("all_to_all", "bruck", ranks, ranks, [by_distance, *shifts, arrived], work_regions=1)


def _shift(ranks: int, work: int, distance: int) -> Phase:
    """Every block with the bit ``distance`` in the way it has to go moves on by that much."""
    first = np.arange(distance, ranks, 2 * distance, dtype=np.int32)
    width = np.minimum(distance, ranks - first)
    source = np.repeat(everyone(ranks), len(first))
    return phase(
        source,
        (source + distance) % ranks,
        work + np.tile(first, ranks),
        width=np.tile(width, ranks),
    )


def dissemination_barrier(ranks: int, parameter: int) -> Schedule:
    """At distance d every rank tells rank r + d whom it has heard of, itself included.

    Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988.
    Steps ceil(log2 p); no data.
    """
    rank = everyone(ranks)
    phases = [
        phase(rank, (rank + distance) % ranks, 0, reduces=True, pushed=True)
        for distance in distances_up_to(ranks)
    ]
    return schedule("barrier", "dissemination", ranks, 1, phases)
