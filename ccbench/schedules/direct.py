"""Direct algorithms: every block goes straight from its owner to where it is wanted.

They need a machine on which every pair of ranks is connected (a switch, a mesh, shared memory). All at
once they take one or two steps; one partner at a time (pairwise, linear) they take p - 1.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from ccbench.schedules.schedule import (
    Advance,
    Phase,
    Schedule,
    everyone,
    ordered_pairs,
    phase,
    schedule,
)


def _pull_and_combine(ranks: int) -> Phase:
    """Rank r reads piece r of everybody and combines it into its own."""
    source, target = ordered_pairs(ranks)
    return phase(source, target, target, reduces=True, fan_in=True)


def _push_own(ranks: int) -> Phase:
    """Rank r writes its piece r into everybody's memory."""
    source, target = ordered_pairs(ranks)
    return phase(source, target, source, pushed=True)


def one_shot_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Every rank reads everybody's whole buffer and combines them alone: one step, for small buffers.

    Source: the one-stage kernel of vLLM's custom all-reduce, csrc/custom_all_reduce.cuh, 2024.
    Steps 1; every rank sends n(p-1).
    """
    source, target = ordered_pairs(ranks)
    # The target does all the adding: one pass over its memory, and no second synchronisation.
    only = phase(source, target, 0, reduces=True, fan_in=True)
    return schedule("all_reduce", "one_shot", ranks, 1, [only])


def two_shot_all_reduce(ranks: int, parameter: int) -> Schedule:
    """Rank r reads and combines everybody's piece r, then writes the result into everybody's memory.

    Source: the two-stage kernel of vLLM's custom all-reduce, csrc/custom_all_reduce.cuh, 2024.
    Steps 2; every rank sends 2n(p-1)/p.
    """
    phases = [_pull_and_combine(ranks), _push_own(ranks)]
    return schedule("all_reduce", "two_shot", ranks, ranks, phases)


def direct_all_gather(ranks: int, parameter: int) -> Schedule:
    """Every rank writes its block into everybody's memory.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
    and experience", 2007. Steps 1; every rank sends n(p-1)/p.
    """
    return schedule("all_gather", "direct", ranks, ranks, [_push_own(ranks)])


def direct_reduce_scatter(ranks: int, parameter: int) -> Schedule:
    """Every rank reads its block from everybody and combines them.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
    and experience", 2007. Steps 1; every rank sends n(p-1)/p.
    """
    return schedule("reduce_scatter", "direct", ranks, ranks, [_pull_and_combine(ranks)])


def pairwise_reduce_scatter(ranks: int, parameter: int) -> Schedule:
    """In step t rank r sends the block of rank r + t to its owner, which combines it.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps p-1; every rank sends n(p-1)/p.
    """
    rank = everyone(ranks)
    partner = (rank + 1) % ranks
    advance = Advance(target=1, source_slot=1, target_slot=1)
    only = phase(rank, partner, partner, reduces=True, repeat=ranks - 1, advance=advance)
    return schedule("reduce_scatter", "pairwise", ranks, ranks, [only])


def direct_broadcast(ranks: int, parameter: int) -> Schedule:
    """Every rank reads its piece from the root, then all, root included, write theirs to all who lack it.

    Source: the scatter and all-gather of Barnett, Shuler, van de Geijn, Gupta, Payne and Watts,
    "Interprocessor collective communication library (InterCom)", 1994, each in one step.
    Steps 2; the root sends 2n(p-1)/p, the others n(p-2)/p.
    """
    peers = everyone(ranks)[1:]
    source, target = ordered_pairs(ranks)
    # The root has the whole buffer already.
    lacking = target != 0
    phases = [
        phase(0, peers, peers),
        phase(source[lacking], target[lacking], source[lacking], pushed=True),
    ]
    return schedule("broadcast", "direct", ranks, ranks, phases)


def direct_reduce(ranks: int, parameter: int) -> Schedule:
    """Every rank reads and combines everybody's piece of its own number, then writes it to the root.

    Source: the direct reduce-scatter and gather of Chan, Heimlich, Purkayastha and van de Geijn,
    "Collective communication: theory, practice, and experience", 2007. Steps 2; every rank but the root
    sends n, the root n(p-1)/p.
    """
    peers = everyone(ranks)[1:]
    phases = [_pull_and_combine(ranks), phase(peers, 0, peers, pushed=True)]
    return schedule("reduce", "direct", ranks, ranks, phases)


def pairwise_all_to_all(ranks: int, parameter: int) -> Schedule:
    """In step t rank r sends its block for rank r + t.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps p-1; every rank sends n(p-1)/p.
    """
    rank = everyone(ranks)
    partner = (rank + 1) % ranks
    exchange = phase(
        rank,
        partner,
        partner,
        ranks + rank,
        repeat=ranks - 1,
        advance=Advance(target=1, source_slot=1),
    )
    # The block a rank sends to itself goes from its input slot to its output slot.
    own = phase(rank, rank, rank, ranks + rank)
    return schedule("all_to_all", "pairwise", ranks, ranks, [own, exchange])


def direct_all_to_all(ranks: int, parameter: int) -> Schedule:
    """Every rank writes every block straight to where it belongs, its own included.

    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
    in multiport message-passing systems", 1997 (p - 1 ports). Steps 1; every rank sends n(p-1)/p.
    """
    source, target = np.repeat(everyone(ranks), ranks), np.tile(everyone(ranks), ranks)
    # Each source begins with itself, so that in no moment all write to one target.
    target = (source + target) % ranks
    only = phase(source, target, target, ranks + source, pushed=True)
    return schedule("all_to_all", "direct", ranks, ranks, [only])


def pairwise_all_to_all_v(ranks: int, parameter: int) -> Schedule:
    """Pairwise exchange of an all_to_all with blocks of different sizes; all wait for the largest of a step.

    Source: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", 2005. Steps p-1; every rank sends all it has but its own block.
    """
    return replace(pairwise_all_to_all(ranks, parameter), collective="all_to_all_v")


def direct_all_to_all_v(ranks: int, parameter: int) -> Schedule:
    """Direct exchange of an all_to_all with blocks of different sizes.

    Source: Bruck, Ho, Kipnis, Upfal and Weathersby, "Efficient algorithms for all-to-all communications
    in multiport message-passing systems", 1997 (p - 1 ports). Steps 1; every rank sends all it has but its
    own block.
    """
    return replace(direct_all_to_all(ranks, parameter), collective="all_to_all_v")


def linear_gather(ranks: int, parameter: int) -> Schedule:
    """The root reads one block after the other.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
    and experience", 2007. Steps p-1; every rank but the root sends n/p.
    """
    advance = Advance(source=1, source_slot=1, target_slot=1)
    only = phase(1 % ranks, 0, 1 % ranks, repeat=ranks - 1, advance=advance)
    return schedule("gather", "linear", ranks, ranks, [only])


def linear_scatter(ranks: int, parameter: int) -> Schedule:
    """The root writes one block after the other.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
    and experience", 2007. Steps p-1; the root sends n(p-1)/p.
    """
    advance = Advance(target=1, source_slot=1, target_slot=1)
    only = phase(0, 1 % ranks, 1 % ranks, repeat=ranks - 1, advance=advance, pushed=True)
    return schedule("scatter", "linear", ranks, ranks, [only])


def direct_gather(ranks: int, parameter: int) -> Schedule:
    """Every rank writes its block into the root's memory: the sources push, so that all work at once.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
    and experience", 2007. Steps 1; every rank but the root sends n/p.
    """
    peers = everyone(ranks)[1:]
    return schedule("gather", "direct", ranks, ranks, [phase(peers, 0, peers, pushed=True)])


def direct_scatter(ranks: int, parameter: int) -> Schedule:
    """Every rank reads its block from the root's memory: the targets pull, so that all work at once.

    Source: Chan, Heimlich, Purkayastha and van de Geijn, "Collective communication: theory, practice,
    and experience", 2007. Steps 1; the root sends n(p-1)/p.
    """
    peers = everyone(ranks)[1:]
    return schedule("scatter", "direct", ranks, ranks, [phase(0, peers, peers)])


@lru_cache(maxsize=1)
def one_way_send_recv() -> Schedule:
    """Rank 0 of two writes its buffer into rank 1's memory, and nothing comes back.

    No algorithm of the collective (rank 0 gets nothing, so it proves nothing): one direction of a pair.
    """
    return schedule("send_recv", "shift", 2, 1, [phase(0, 1, 0, 1, pushed=True)])


def shift_send_recv(ranks: int, parameter: int) -> Schedule:
    """Every rank puts its buffer straight into its right neighbour's output: one-sided, no message slot between.

    On the CPU, out of place, a rank stores once the neighbour has entered the launch; its progress counter, raised
    behind the data, is the flag that the neighbour waits for. In place its input would be stored over: there, work
    space lies between.

    Source: the sendrecv test of nccl-tests, src/sendrecv.cu. Steps 1; every rank sends n.
    """
    rank = everyone(ranks)
    only = phase(rank, (rank + 1) % ranks, 0, 1, pushed=True)
    return schedule("send_recv", "shift", ranks, 1, [only])
