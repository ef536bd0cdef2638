"""The messages of MPI's and Gloo's collectives: algorithms as stages, and which ones a library has.

An algorithm is a list of stages; in a stage some messages leave together, so many times in a row. Ring,
recursive doubling, recursive halving, binomial tree, Bruck and pairwise exchange are as in Thakur,
Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 19 (2005) 49;
pipelines and chains as in Pjesivac-Grbovic et al., "Performance Analysis of MPI Collective Operations",
Cluster Computing 10 (2007) 127. Which ones a library has: gloo/allreduce.cc, allgather.cc, broadcast.cc,
reduce.cc, alltoall.cc, gather.cc, scatter.cc and barrier.cc in github.com/pytorch/gloo; ompi/mca/coll/base in
github.com/open-mpi/ompi and src/mpi/coll in github.com/pmodels/mpich for MPI.

Which algorithm an MPI library takes by itself, by ranks and size, is in ``mpi_choices.yaml``.

Open MPI 4.1: the component coll/tuned decides by fixed tables. It passes neither a segment size nor a
fan-out, so that its chain and its pipeline have one piece and one successor (ompi/mca/coll/base/
coll_base_topo.c takes a fan-out below 1 as 1). Open MPI 5 has other components in front (coll/han), of which
nothing is said here.

MPICH 4 and 5: for communicators with one rank on each host; with several MPICH goes by way of one rank of
each host, of which nothing is said here. Up to 2048 bytes its choice for all_reduce differs between releases
and is left open.

Sizes are what the library looks at: the whole buffer of all_reduce and broadcast, one rank's block of
all_gather (Open MPI), or what is gathered (MPICH). Tables are for operations that commute, as all of
ccbench's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ccbench.model.library.constants import read_table

SEGMENTS_BYTES = (8 << 10, 64 << 10, 128 << 10)
"""Into which MPI libraries cut what they pass on in pipelines."""

Messages = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Stage:
    """Messages that leave together, each of ``share`` of the buffer, ``times`` in a row.

    share: of the collective's size. segment_bytes: not 0 where the stage is a pipeline, in which such pieces
    follow each other, each over all of ``times`` hops. overlapped: messages go in two halves at once. adds:
    who gets a message adds it to what it has before anything goes on.
    """

    messages: Messages
    share: float
    times: int = 1
    segment_bytes: int = 0
    overlapped: bool = False
    adds: bool = False


Plan = list[Stage]
Maker = Callable[[int, int], Plan]
"""(ranks, root) -> plan."""


def _ring(ranks: int) -> Messages:
    return tuple((rank, (rank + 1) % ranks) for rank in range(ranks))


def _exchange(ranks: int, distance: int) -> Messages:
    """Partners that differ in one bit; where ranks are no power of two, those without a partner rest."""
    return tuple((rank, rank ^ distance) for rank in range(ranks) if rank ^ distance < ranks)


def _shift(ranks: int, distance: int) -> Messages:
    return tuple((rank, (rank + distance) % ranks) for rank in range(ranks))


def _distances(ranks: int) -> list[int]:
    """1, 2, 4, ... below ``ranks``."""
    return [1 << bit for bit in range((ranks - 1).bit_length())]


def _tree(ranks: int, root: int, distance: int) -> Messages:
    """A binomial tree's stage in which ranks below ``distance`` (from the root on) send that far."""
    numbers = range(min(distance, ranks - distance))
    return tuple(((root + one) % ranks, (root + one + distance) % ranks) for one in numbers)


def _uneven(ranks: int) -> Plan:
    """What is sent before and after so that a power of two of ranks is left, of the whole buffer."""
    # Ranks beyond the power of two hand what they have to a partner, rest, and get the result back.
    power = 1 << (ranks.bit_length() - 1)
    extra = tuple((power + one, one) for one in range(ranks - power))
    back = tuple((b, a) for a, b in extra)
    return [Stage(extra, 1.0, adds=True), Stage(back, 1.0)] if extra else []


def ring_reduce_scatter(ranks: int, root: int) -> Plan:
    """Each block once round the ring."""
    return [Stage(_ring(ranks), 1 / ranks, ranks - 1, adds=True)]


def ring_all_gather(ranks: int, root: int) -> Plan:
    """The same without sums."""
    return [Stage(_ring(ranks), 1 / ranks, ranks - 1)]


def ring_all_reduce(ranks: int, root: int) -> Plan:
    """Both, one after the other."""
    return [*ring_reduce_scatter(ranks, root), *ring_all_gather(ranks, root)]


def overlapped(make: Maker) -> Maker:
    """The same with every message in two, as Gloo sends them to add one while the other is on its way.

    Two that are on their way together wait for one latency.
    """

    def made(ranks: int, root: int) -> Plan:
        return [replace(stage, overlapped=True) for stage in make(ranks, root)]

    return made


def doubling_all_reduce(ranks: int, root: int) -> Plan:
    """Everything to partners ever farther away."""
    power = 1 << (ranks.bit_length() - 1)
    return [*_uneven(ranks), *(Stage(_exchange(power, d), 1.0, adds=True) for d in _distances(power))]


def halving_all_reduce(ranks: int, root: int) -> Plan:
    """Rabenseifner's: halves to neighbours, quarters twice as far, ..., then gathered the same way back.

    Open MPI and MPICH both begin with the nearest, so that with neighbours on one host the larger pieces
    stay there (ompi/mca/coll/base/coll_base_allreduce.c, ..._redscat_allgather, and
    src/mpi/coll/allreduce/allreduce_intra_reduce_scatter_allgather.c: the mask grows from 1).
    """
    power = 1 << (ranks.bit_length() - 1)
    one_way = [Stage(_exchange(power, d), 1 / (2 * d), adds=True) for d in _distances(power)]
    return [*_uneven(ranks), *one_way, *(replace(stage, adds=False) for stage in reversed(one_way))]


def halving_reduce_scatter(ranks: int, root: int) -> Plan:
    """The first half of that."""
    power = 1 << (ranks.bit_length() - 1)
    distances = ((d, power // (2 * d)) for d in _distances(power))
    one_way = [Stage(_exchange(power, distance), 1 / (2 * d), adds=True) for d, distance in distances]
    return [*_uneven(ranks), *one_way]


def bruck_all_gather(ranks: int, root: int) -> Plan:
    """Twice as much to ranks twice as far, as with recursive doubling where ranks are a power of two."""
    return [Stage(_shift(ranks, d), min(d, ranks - d) / ranks) for d in _distances(ranks)]


def doubling_all_gather(ranks: int, root: int) -> Plan:
    """Partners give each other all that they have."""
    if ranks & (ranks - 1):
        return bruck_all_gather(ranks, root)
    return [Stage(_exchange(ranks, d), d / ranks) for d in _distances(ranks)]


def neighbor_all_gather(ranks: int, root: int) -> Plan:
    """Neighbours in turn on either side, after the first time two blocks each; an even number of ranks."""
    if ranks % 2:
        return ring_all_gather(ranks, root)
    pairs = [(rank, rank + 1) for rank in range(0, ranks, 2)]
    messages = tuple(message for one, other in pairs for message in ((one, other), (other, one)))
    return [Stage(messages, 1 / ranks), Stage(messages, 2 / ranks, ranks // 2 - 1)]


def linear_all_to_all(ranks: int, root: int) -> Plan:
    """Every rank to every other, in turns."""
    return [Stage(_shift(ranks, distance), 1 / ranks) for distance in range(1, ranks)]


def binomial_broadcast(ranks: int, root: int) -> Plan:
    """Whoever has it hands it on."""
    return [Stage(_tree(ranks, root, distance), 1.0) for distance in _distances(ranks)]


def binomial_broadcast_at_once(ranks: int, root: int) -> Plan:
    """The same tree, where a rank begins with all of its messages at once, which then share its port."""
    return knomial_broadcast(ranks, root, 2)


def knomial_broadcast(ranks: int, root: int, radix: int = 4) -> Plan:
    """A tree by digits to the base ``radix``: a rank sends to all with one digit more. 4 is Open MPI's."""

    def children(number: int) -> list[int]:
        powers = (radix**digit for digit in range(ranks.bit_length()))
        return [number + times * power for power in powers if power > number for times in range(1, radix)]

    return _down(ranks, root, children)


def binary_broadcast(ranks: int, root: int) -> Plan:
    """A rank sends to two at once, which are 1 and 2, then twice as far apart at each level."""

    def children(number: int) -> list[int]:
        power = 1 << ((number + 1).bit_length() - 1)
        return [number + power, number + 2 * power]

    return _down(ranks, root, children)


def linear_broadcast(ranks: int, root: int) -> Plan:
    """The root to all at once."""
    return _down(ranks, root, lambda number: [] if number else list(range(1, ranks)))


def chain_broadcast(ranks: int, root: int) -> Plan:
    """From rank to rank in one piece."""
    return _down(ranks, root, lambda number: [number + 1])


def _down(ranks: int, root: int, children: Callable[[int], list[int]]) -> Plan:
    """A tree by what each rank (counted from the root on) sends to, all at once; one stage for each level."""
    plan, level = [], [0]
    while level:
        edges = [(one, child) for one in level for child in children(one) if child < ranks]
        if edges:
            messages = tuple(((root + one) % ranks, (root + child) % ranks) for one, child in edges)
            plan.append(Stage(messages, 1.0))
        level = [child for _, child in edges]
    return plan


def binomial_reduce(ranks: int, root: int) -> Plan:
    """The same tree, towards the root."""
    return [
        Stage(tuple((target, source) for source, target in stage.messages), 1.0, adds=True)
        for stage in reversed(binomial_broadcast(ranks, root))
    ]


def pipeline_broadcast(ranks: int, root: int, segment_bytes: int) -> Plan:
    """From rank to rank in pieces, so that all links are busy."""
    chain = tuple(((root + one) % ranks, (root + one + 1) % ranks) for one in range(ranks - 1))
    return [Stage(chain, 1.0, ranks - 1, segment_bytes)]


def scatter_broadcast(ranks: int, root: int) -> Plan:
    """Van de Geijn's: scattered down a tree, then gathered round the ring."""
    return [*binomial_scatter(ranks, root), *ring_all_gather(ranks, root)]


def scatter_doubling_broadcast(ranks: int, root: int) -> Plan:
    """The same, gathered by partners ever farther away."""
    return [*binomial_scatter(ranks, root), *doubling_all_gather(ranks, root)]


def binomial_scatter(ranks: int, root: int) -> Plan:
    """Half of the blocks to the far half, and so on."""
    return [
        Stage(tuple((m[0], m[1]) for m in _tree(ranks, root, d)[:1] or ()), min(d, ranks - d) / ranks)
        for d in reversed(_distances(ranks))
    ]


def binomial_gather(ranks: int, root: int) -> Plan:
    """The same, towards the root."""
    return [
        Stage(tuple((target, source) for source, target in stage.messages), stage.share)
        for stage in reversed(binomial_scatter(ranks, root))
    ]


def linear_scatter(ranks: int, root: int) -> Plan:
    """The root to each in turn."""
    return [Stage(((root, rank),), 1 / ranks) for rank in range(ranks) if rank != root]


def linear_gather(ranks: int, root: int) -> Plan:
    """Each in turn to the root."""
    return [Stage(((rank, root),), 1 / ranks) for rank in range(ranks) if rank != root]


def ring_shift(ranks: int, root: int) -> Plan:
    """Everybody to the next."""
    return [Stage(_ring(ranks), 1.0)]


def dissemination(ranks: int, root: int) -> Plan:
    """Empty messages to ranks ever farther away."""
    return [Stage(_shift(ranks, distance), 0.0) for distance in _distances(ranks)]


def gathered_reduce(ranks: int, root: int) -> Plan:
    """Blocks are summed round the ring, then gathered by the root."""
    return [*ring_reduce_scatter(ranks, root), *linear_gather(ranks, root)]


def reduced_and_broadcast(ranks: int, root: int) -> Plan:
    """One after the other, down and up a binomial tree."""
    return [*binomial_reduce(ranks, root), *binomial_broadcast_at_once(ranks, root)]


GLOO_PLANS: dict[str, tuple[str, Maker]] = {
    "all_reduce": ("ring", overlapped(ring_all_reduce)),
    "all_gather": ("ring", overlapped(ring_all_gather)),
    "reduce_scatter": ("halving", halving_reduce_scatter),
    "broadcast": ("binomial", binomial_broadcast_at_once),
    "reduce": ("ring", gathered_reduce),
    "all_to_all": ("pairwise", linear_all_to_all),
    "gather": ("linear", linear_gather),
    "scatter": ("linear", linear_scatter),
    "send_recv": ("shift", ring_shift),
    "barrier": ("dissemination", dissemination),
}
"""What Gloo does, with its name."""

MPI_PLANS: dict[str, dict[str, Maker]] = {
    "all_reduce": {
        "ring": ring_all_reduce,
        "recursive_doubling": doubling_all_reduce,
        "rabenseifner": halving_all_reduce,
    },
    "all_gather": {
        "ring": ring_all_gather,
        "recursive_doubling": doubling_all_gather,
        "bruck": bruck_all_gather,
    },
    "reduce_scatter": {"ring": ring_reduce_scatter, "recursive_halving": halving_reduce_scatter},
    "broadcast": {"binomial": binomial_broadcast, "scatter_allgather": scatter_broadcast},
    "reduce": {"binomial": binomial_reduce, "scatter_gather": gathered_reduce},
    "all_to_all": {"pairwise": linear_all_to_all},
    "gather": {"linear": linear_gather, "binomial": binomial_gather},
    "scatter": {"linear": linear_scatter, "binomial": binomial_scatter},
    "send_recv": {"shift": ring_shift},
    "barrier": {"dissemination": dissemination},
}
"""Among which MPI libraries choose; pipelines of broadcast are added by segment size."""

TOLD_PLANS: dict[str, dict[str, Maker]] = {
    "all_reduce": {**MPI_PLANS["all_reduce"], "nonoverlapping": reduced_and_broadcast},
    "all_gather": {**MPI_PLANS["all_gather"], "neighbor": neighbor_all_gather},
    "broadcast": {
        "basic_linear": linear_broadcast,
        "chain": chain_broadcast,
        "binary_tree": binary_broadcast,
        "split_binary_tree": binary_broadcast,
        "binomial": binomial_broadcast_at_once,
        "knomial": knomial_broadcast,
        "binomial_in_turn": binomial_broadcast,
        "scatter_doubling": scatter_doubling_broadcast,
        "scatter_allgather": scatter_broadcast,
    },
}
"""By the names of ``mpi_choices.yaml``: what a library is known to do by itself."""


CHOICES = Path(__file__).with_name("mpi_choices.yaml")


def own_choice(
    library: str, collective: str, size_bytes: float, count: int, host_of_rank: Sequence[int]
) -> str:
    """The algorithm that ``library`` (its name and version) takes; '' where nothing is known.

    size_bytes: of ccbench's collective, so of an all_gather what is gathered. count: elements of one rank.
    """
    ranks = len(host_of_rank)
    if library.startswith("Open MPI 4.1."):
        per_rank = collective == "all_gather"
        found = _looked_up("Open MPI 4.1", collective, ranks, size_bytes / (ranks if per_rank else 1))
        # A ring needs an element for each rank (ompi/mca/coll/base/coll_base_allreduce.c).
        short = collective == "all_reduce" and count < ranks
        return "recursive_doubling" if short and found == "ring" else found
    one_each = len(set(host_of_rank)) == ranks
    if library.startswith(("MPICH 4.", "MPICH 5.")) and one_each:
        found = _looked_up("MPICH", collective, ranks, size_bytes)
        return "" if found == "unknown" else found
    return ""


def _looked_up(library: str, collective: str, ranks: int, size_bytes: float) -> str:
    rows: list[dict[str, Any]] = read_table(CHOICES)[library].get(collective, [])
    for row in rows:
        if ranks < row["below"] and (not row.get("power_of_two") or ranks & (ranks - 1) == 0):
            algorithms, limits = row["take"][::2], row["take"][1::2]
            return str(algorithms[sum(size_bytes >= limit for limit in limits)])
    return ""
