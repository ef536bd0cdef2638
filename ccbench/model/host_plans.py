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

from ccbench.documents import read_installed
from ccbench.schedules.schedule import distances_up_to

SEGMENTS_BYTES = (8 << 10, 64 << 10, 128 << 10)
"""Into which MPI libraries cut what they pass on in pipelines."""

Messages = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class MessageStage:
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


Plan = list[MessageStage]
Maker = Callable[[int, int], Plan]
"""(ranks, root) -> plan."""


def _shift(ranks: int, distance: int) -> Messages:
    return tuple((rank, (rank + distance) % ranks) for rank in range(ranks))


def _exchange(ranks: int, distance: int) -> Messages:
    """Partners that differ in one bit, of a power of two of ranks."""
    return tuple((rank, rank ^ distance) for rank in range(ranks))


def _turned(plan: Plan, adds: bool = False) -> Plan:
    """Messages of ``plan`` from the last to the first, each the other way round."""
    return [
        replace(
            stage,
            messages=tuple((target, source) for source, target in stage.messages),
            adds=adds,
        )
        for stage in reversed(plan)
    ]


def _ring(ranks: int, adds: bool = False) -> Plan:
    """Each block once round the ring."""
    return [MessageStage(_shift(ranks, 1), 1 / ranks, ranks - 1, adds=adds)]


def _ring_all_reduce(ranks: int, root: int) -> Plan:
    return [*_ring(ranks, adds=True), *_ring(ranks)]


def _overlapped(plan: Plan) -> Plan:
    """Every message in two, as Gloo sends them to add one while the other is on its way."""
    # Two that are on their way together wait for one latency.
    return [replace(stage, overlapped=True) for stage in plan]


def _power_of_two(ranks: int) -> tuple[int, Plan]:
    """The largest power of two of ranks, and what is sent so that the others may rest."""
    # Ranks beyond the power of two hand what they have to a partner, rest, and get the result back.
    power = 1 << (ranks.bit_length() - 1)
    extra = tuple((power + rank, rank) for rank in range(ranks - power))
    back = tuple((b, a) for a, b in extra)
    return power, [
        MessageStage(extra, 1.0, adds=True),
        MessageStage(back, 1.0),
    ] if extra else []


def _doubling_all_reduce(ranks: int, root: int) -> Plan:
    """Exchange of the whole buffer with partners at doubling distance."""
    power, uneven = _power_of_two(ranks)
    return [
        *uneven,
        *(MessageStage(_exchange(power, d), 1.0, adds=True) for d in distances_up_to(power)),
    ]


def _halving_all_reduce(ranks: int, root: int) -> Plan:
    """Rabenseifner's: halves to neighbours, quarters twice as far, ..., then gathered by the same partners.

    Open MPI and MPICH both begin with the nearest, so that with neighbours on one host the larger pieces
    stay there (ompi/mca/coll/base/coll_base_allreduce.c, ..._redscat_allgather, and
    src/mpi/coll/allreduce/allreduce_intra_reduce_scatter_allgather.c: the mask grows from 1).
    """
    power, uneven = _power_of_two(ranks)
    one_way = [
        MessageStage(_exchange(power, d), 1 / (2 * d), adds=True)
        for d in distances_up_to(power)
    ]
    return [*uneven, *one_way, *(replace(stage, adds=False) for stage in reversed(one_way))]


def _halving_reduce_scatter(ranks: int, root: int) -> Plan:
    """Halves to the farthest, quarters half as far, ...; sums stay where they are."""
    power, uneven = _power_of_two(ranks)
    distances = distances_up_to(power)
    return [
        *uneven,
        *(
            MessageStage(_exchange(power, power // (2 * d)), 1 / (2 * d), adds=True)
            for d in distances
        ),
    ]


def _bruck_all_gather(ranks: int, root: int) -> Plan:
    """Twice as much to ranks twice as far, as with recursive doubling where ranks are a power of two."""
    return [
        MessageStage(_shift(ranks, d), min(d, ranks - d) / ranks)
        for d in distances_up_to(ranks)
    ]


def _doubling_all_gather(ranks: int, root: int) -> Plan:
    """Partners give each other all that they have."""
    if ranks & (ranks - 1):
        return _bruck_all_gather(ranks, root)
    return [MessageStage(_exchange(ranks, d), d / ranks) for d in distances_up_to(ranks)]


def _neighbor_all_gather(ranks: int, root: int) -> Plan:
    """Neighbours in turn on either side, after the first time two blocks each; an even number of ranks."""
    if ranks % 2:
        return _ring(ranks)
    pairs = [(rank, rank + 1) for rank in range(0, ranks, 2)]
    messages = tuple(
        message for left, right in pairs for message in ((left, right), (right, left))
    )
    return [
        MessageStage(messages, 1 / ranks),
        MessageStage(messages, 2 / ranks, ranks // 2 - 1),
    ]


def _pairwise(ranks: int, root: int) -> Plan:
    """Every rank to every other, in turns."""
    return [MessageStage(_shift(ranks, distance), 1 / ranks) for distance in range(1, ranks)]


def _binomial_broadcast(ranks: int, root: int) -> Plan:
    """A rank that has it hands it on, ever farther, one message after the other."""
    plan = []
    for distance in distances_up_to(ranks):
        places = [(root + offset) % ranks for offset in range(min(distance, ranks - distance))]
        plan.append(
            MessageStage(tuple((place, (place + distance) % ranks) for place in places), 1.0)
        )
    return plan


def _tree(children: Callable[[int, int], list[int]]) -> Maker:
    """A broadcast down a tree; children: (rank counted from the root on, ranks) -> ranks that it sends to."""

    def made(ranks: int, root: int) -> Plan:
        plan, level = [], [0]
        while level:
            edges = [
                (parent, child)
                for parent in level
                for child in children(parent, ranks)
                if child < ranks
            ]
            if edges:
                messages = tuple(
                    ((root + parent) % ranks, (root + child) % ranks) for parent, child in edges
                )
                plan.append(MessageStage(messages, 1.0))
            level = [child for _, child in edges]
        return plan

    return made


def _knomial(radix: int) -> Callable[[int, int], list[int]]:
    """A tree by digits to the base ``radix``: a rank sends to all with one digit more."""

    def children(number: int, ranks: int) -> list[int]:
        powers = (radix**digit for digit in range(ranks.bit_length()))
        return [
            number + times * power
            for power in powers
            if power > number
            for times in range(1, radix)
        ]

    return children


def _two_children(number: int, ranks: int) -> list[int]:
    """Ranks that are 1 and 2 further on, then twice as far at each level."""
    power = 1 << ((number + 1).bit_length() - 1)
    return [number + power, number + 2 * power]


_binomial_at_once = _tree(_knomial(2))
"""A rank begins with all of its messages at once, which then share its port."""


def _binomial_scatter(ranks: int, root: int) -> Plan:
    """Half of the blocks to the far half, and so on; of the messages of a level one stands for all."""
    return [
        MessageStage(((root, (root + d) % ranks),), min(d, ranks - d) / ranks)
        for d in reversed(distances_up_to(ranks))
    ]


def _linear_scatter(ranks: int, root: int) -> Plan:
    """The root to each in turn."""
    return [MessageStage(((root, rank),), 1 / ranks) for rank in range(ranks) if rank != root]


def _linear_gather(ranks: int, root: int) -> Plan:
    """Each in turn to the root."""
    return [MessageStage(((rank, root),), 1 / ranks) for rank in range(ranks) if rank != root]


def _gathered_reduce(ranks: int, root: int) -> Plan:
    """Blocks are summed round the ring, then gathered by the root."""
    return [*_ring(ranks, adds=True), *_linear_gather(ranks, root)]


def _binomial_reduce(ranks: int, root: int) -> Plan:
    return _turned(_binomial_broadcast(ranks, root), adds=True)


def _ring_shift(ranks: int, root: int) -> Plan:
    """Each rank to the next."""
    return [MessageStage(_shift(ranks, 1), 1.0)]


def dissemination(ranks: int, root: int) -> Plan:
    """Empty messages to ranks ever farther away."""
    return [MessageStage(_shift(ranks, distance), 0.0) for distance in distances_up_to(ranks)]


def pipeline_broadcast(ranks: int, root: int, segment_bytes: int) -> Plan:
    """From rank to rank in pieces, so that all links are busy."""
    chain = tuple(
        ((root + offset) % ranks, (root + offset + 1) % ranks) for offset in range(ranks - 1)
    )
    return [MessageStage(chain, 1.0, ranks - 1, segment_bytes)]


GLOO_PLANS: dict[str, tuple[str, Maker]] = {
    "all_reduce": ("ring", lambda ranks, root: _overlapped(_ring_all_reduce(ranks, root))),
    "all_gather": ("ring", lambda ranks, root: _overlapped(_ring(ranks))),
    "reduce_scatter": ("halving", _halving_reduce_scatter),
    "broadcast": ("binomial", _binomial_at_once),
    "reduce": ("ring", _gathered_reduce),
    "all_to_all": ("pairwise", _pairwise),
    "gather": ("linear", _linear_gather),
    "scatter": ("linear", _linear_scatter),
    "send_recv": ("shift", _ring_shift),
    "barrier": ("dissemination", dissemination),
}
"""Gloo's algorithms, with their names."""

MPI_PLANS: dict[str, dict[str, Maker]] = {
    "all_reduce": {
        "ring": _ring_all_reduce,
        "recursive_doubling": _doubling_all_reduce,
        "rabenseifner": _halving_all_reduce,
    },
    "all_gather": {
        "ring": lambda ranks, root: _ring(ranks),
        "recursive_doubling": _doubling_all_gather,
        "bruck": _bruck_all_gather,
    },
    "reduce_scatter": {
        "ring": lambda ranks, root: _ring(ranks, adds=True),
        "recursive_halving": _halving_reduce_scatter,
    },
    "broadcast": {
        "binomial": _binomial_broadcast,
        # Van de Geijn's: scattered down a tree, then gathered round the ring.
        "scatter_allgather": lambda ranks, root: [
            *_binomial_scatter(ranks, root),
            *_ring(ranks),
        ],
    },
    "reduce": {"binomial": _binomial_reduce, "scatter_gather": _gathered_reduce},
    "all_to_all": {"pairwise": _pairwise},
    "gather": {
        "linear": _linear_gather,
        "binomial": lambda ranks, root: _turned(_binomial_scatter(ranks, root)),
    },
    "scatter": {"linear": _linear_scatter, "binomial": _binomial_scatter},
    "send_recv": {"shift": _ring_shift},
    "barrier": {"dissemination": dissemination},
}
"""Among which MPI libraries choose; pipelines of broadcast are added by segment size."""

TOLD_PLANS: dict[str, dict[str, Maker]] = {
    "all_reduce": {
        **MPI_PLANS["all_reduce"],
        "nonoverlapping": lambda ranks, root: [
            *_binomial_reduce(ranks, root),
            *_binomial_at_once(ranks, root),
        ],
    },
    "all_gather": {**MPI_PLANS["all_gather"], "neighbor": _neighbor_all_gather},
    "broadcast": {
        "basic_linear": _tree(lambda number, ranks: [] if number else list(range(1, ranks))),
        "chain": _tree(lambda number, ranks: [number + 1]),
        "binary_tree": _tree(_two_children),
        "split_binary_tree": _tree(_two_children),
        "binomial": _binomial_at_once,
        "knomial": _tree(_knomial(4)),
        "binomial_in_turn": _binomial_broadcast,
        "scatter_doubling": lambda ranks, root: [
            *_binomial_scatter(ranks, root),
            *_doubling_all_gather(ranks, root),
        ],
        "scatter_allgather": MPI_PLANS["broadcast"]["scatter_allgather"],
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
        table = "Open MPI 4.1"
        # Its table of all_gather is by one rank's block.
        size_bytes = size_bytes / ranks if collective == "all_gather" else size_bytes
    elif library.startswith(("MPICH 4.", "MPICH 5.")) and len(set(host_of_rank)) == ranks:
        table = "MPICH"
    else:
        return ""
    rows: list[dict[str, Any]] = read_installed(CHOICES)[table].get(collective, [])
    for row in rows:
        if ranks < row["below"] and (not row.get("power_of_two") or ranks & (ranks - 1) == 0):
            algorithms, limits = row["take"][::2], row["take"][1::2]
            algorithm = str(algorithms[sum(size_bytes >= limit for limit in limits)])
            if (
                table == "Open MPI 4.1"
                and collective == "all_reduce"
                and algorithm == "ring"
                and count < ranks
            ):
                # A ring needs an element for each rank (ompi/mca/coll/base/coll_base_allreduce.c).
                return "recursive_doubling"
            return "" if algorithm == "unknown" else algorithm
    return ""
