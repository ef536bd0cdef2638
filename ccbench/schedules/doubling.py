"""Recursive doubling and halving: partners at distance 1, 2, 4, ..., log2 p steps.

Partners are found by flipping one bit of the rank, so a power of two of them is needed. Any other number
of ranks p = q + e (q the power of two below) is folded: for i < e, rank 2i + 1 hands its input to rank 2i
before, sits out, and receives its output after; the q ranks that stay are the *core*.

Shifts by powers of two around the ring of ranks: ceil(log2 p) steps for any number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ccbench.schedules.schedule import (
    Indices,
    Phase,
    Schedule,
    distances_up_to,
    everyone,
    phase,
    schedule,
)
from ccbench.schedules.tree import gather_phases


@dataclass(frozen=True, eq=False)
class Core:
    """The power of two of ranks that stay.

    size: their number q.
    member: rank of each core position, shape (q,).
    first_block: the block at which each core position's own blocks begin, then the end, shape (q + 1,):
        a host owns two blocks, its own and that of the rank it hosts.
    host, guest: the folded pairs, shape (p - q,) each.
    """

    size: int
    member: Indices
    first_block: Indices
    host: Indices
    guest: Indices


def core_of(ranks: int) -> Core:
    """The core of ``ranks`` >= 1 ranks."""
    size = 1 << (ranks.bit_length() - 1)
    extra = ranks - size
    position = everyone(size)
    member = position + np.minimum(position, extra).astype(np.int32)
    # Neighbours fold, so that what hosts and guests exchange stays between near ranks.
    host = 2 * everyone(extra)
    return Core(size, member, np.append(member, np.int32(ranks)), host, host + 1)


def halving(core: Core, starts: Indices) -> list[Phase]:
    """Recursive halving: core position i ends with the slots [starts[i], starts[i + 1]) fully combined."""
    return [
        _exchange(core, starts, distance, send_partners=True)
        for distance in _distances(core.size)[::-1]
    ]


def doubling(core: Core, starts: Indices) -> list[Phase]:
    """Recursive doubling: core position i starts with [starts[i], starts[i + 1]), all end with all."""
    return [
        _exchange(core, starts, distance, send_partners=False)
        for distance in _distances(core.size)
    ]


def _distances(size: int) -> list[int]:
    return [1 << bit for bit in range(size.bit_length() - 1)]


def _exchange(core: Core, starts: Indices, distance: int, *, send_partners: bool) -> Phase:
    """All cores exchange with the partner at ``distance``: its share to combine, or one's own to copy."""
    position = everyone(core.size)
    partner = position ^ distance
    # Positions that agree in all higher bits own [low, low + distance) together at this distance.
    owner = partner if send_partners else position
    low = owner & ~(distance - 1)
    first = starts[low]
    return phase(
        core.member,
        core.member[partner],
        first,
        width=starts[low + distance] - first,
        reduces=send_partners,
    )


def recursive_doubling_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Whole buffers are exchanged and combined with partners at doubling distance.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps log2 p; every rank sends n log2 p. Other than powers of two: 2 steps more, and
    hosts send n more.
    """
    core = core_of(ranks)
    position = everyone(core.size)
    exchanges = [
        phase(core.member, core.member[position ^ distance], 0, reduces=True)
        for distance in _distances(core.size)
    ]
    fold = phase(core.guest, core.host, 0, reduces=True)
    unfold = phase(core.host, core.guest, 0)
    return schedule("all_reduce", "recursive_doubling", ranks, 1, [fold, *exchanges, unfold])


def halving_doubling_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling.

    Source: Rabenseifner, "Optimization of collective reduction operations", 2004. Steps 2 log2 p; every
    rank sends 2n(p-1)/p. Other than powers of two: 2 steps more, and hosts send n more.
    """
    core = core_of(ranks)
    starts = everyone(core.size + 1)
    phases = [
        phase(core.guest, core.host, 0, width=core.size, reduces=True),
        *halving(core, starts),
        *doubling(core, starts),
        phase(core.host, core.guest, 0, width=core.size),
    ]
    return schedule("all_reduce", "halving_doubling", ranks, core.size, phases)


def reduce_scatter_gather_reduce(ranks: int, parameter: int) -> Schedule:
    """Reduce-scatter by recursive halving, then binomial gather of the pieces to the root.

    Source: Rabenseifner, "Optimization of collective reduction operations", 2004. Steps 2 log2 p; a rank
    sends at most n(p-1)/p + n/2. Other than powers of two: one step more, in which some ranks send n.
    """
    core = core_of(ranks)
    phases = [
        phase(core.guest, core.host, 0, width=core.size, reduces=True),
        *halving(core, everyone(core.size + 1)),
        *gather_phases(core.size, core.member),
    ]
    return schedule("reduce", "reduce_scatter_gather", ranks, core.size, phases)


def recursive_doubling_all_gather(ranks: int, parameter: int) -> Schedule:
    """Exchange of all blocks held so far with partners at doubling distance.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps log2 p; every rank sends n(p-1)/p. Other than powers of two: 2 steps more, and
    hosts send up to 2.5n, because they return to their guests all blocks but the guest's own.
    """
    core = core_of(ranks)
    phases = [
        phase(core.guest, core.host, core.guest),
        *doubling(core, core.first_block),
        # All but the guest's own block, around the end of the region: one flow.
        phase(core.host, core.guest, (core.guest + 1) % ranks, width=ranks - 1),
    ]
    return schedule("all_gather", "recursive_doubling", ranks, ranks, phases)


def recursive_halving_reduce_scatter(ranks: int, parameter: int) -> Schedule:
    """The half of the buffer that is the partners' is sent away, at halving distance.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps log2 p; every rank sends n(p-1)/p. Other than powers of two: 2 steps more; guests
    send n(p-1)/p at once, and hosts return one block.
    """
    core = core_of(ranks)
    phases = [
        phase(core.guest, core.host, 0, width=ranks, reduces=True),
        *halving(core, core.first_block),
        phase(core.host, core.guest, core.guest),
    ]
    return schedule("reduce_scatter", "recursive_halving", ranks, ranks, phases)


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
    # Work space holds blocks by the distance they have to go, so that neighbours travel in one flow.
    work = 2 * ranks
    by_distance = phase(rank, rank, rank, work, width=ranks)
    shifts = []
    for distance in distances_up_to(ranks):
        # Every block with the bit ``distance`` in the way it has to go moves on by that much.
        first = np.arange(distance, ranks, 2 * distance, dtype=np.int32)
        width = np.tile(np.minimum(distance, ranks - first), ranks)
        source = np.repeat(rank, len(first))
        shifts.append(
            phase(
                source, (source + distance) % ranks, work + np.tile(first, ranks), width=width
            )
        )
    receiver, travelled = np.repeat(rank, ranks), np.tile(rank, ranks)
    arrived = phase(
        receiver, receiver, work + travelled, ranks + (receiver - travelled) % ranks
    )
    return schedule(
        "all_to_all", "bruck", ranks, ranks, [by_distance, *shifts, arrived], work_regions=1
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
