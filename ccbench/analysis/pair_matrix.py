"""Pairs of ranks as they were measured, and what joins them: the path between two, or inside a group.

Only what is joined alike can be compared: a pair over the network is slower than one inside a host, a group
that lies across two sockets slower than one inside a socket, and neither is a fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import median
from typing import Any, TypeVar

from ccbench.cases.axes import AXIS
from ccbench.cases.capabilities import capabilities_of
from ccbench.errors import CcbenchError
from ccbench.flags import DEVICE_FLAGS, Flag
from ccbench.groups import Pair, parse_pair
from ccbench.model.cluster import cluster_of, first_gpus
from ccbench.results import Point, Run
from ccbench.results.keys import CURVE
from ccbench.topology.graph import Topology

OTHER_MACHINE = "NET"
SAME_MACHINE = "host"
SAME_PROCESSOR = "one core"
"""Classes of pairs of processes: over the network, inside one machine, or taking turns on one processor."""

LinkClass = tuple[tuple[tuple[str, int], ...], ...]
"""Of each machine that a group lies on, how many of its ranks and how many of its pairs of each class."""


@dataclass(frozen=True)
class Joined:
    """The links between the ranks of a team.

    machines: where each rank is. inside: the class of the path between two ranks of one machine, '' where it
    is not known.
    """

    machines: tuple[int, ...]
    inside: Callable[[int, int], str]

    def word(self, source: int, target: int) -> str:
        """The class of the path between two ranks."""
        return (
            self.inside(source, target)
            if self.machines[source] == self.machines[target]
            else OTHER_MACHINE
        )

    def link_class(self, members: Sequence[int]) -> LinkClass:
        """Return the class of a group; groups that are joined alike have the same."""
        parts: dict[int, list[int]] = defaultdict(list)
        for rank in members:
            parts[self.machines[rank]].append(rank)
        classes = []
        for ranks in parts.values():
            pairs = Counter(
                self.inside(source, target) for source, target in combinations(ranks, 2)
            )
            classes.append((("ranks", len(ranks)), *sorted(pairs.items())))
        return tuple(sorted(classes))


def joined_by(run: Run, point: Point) -> Joined:
    """Return the links between the ranks of a case, as far as its run tells."""
    on_gpus = point.on_gpus or capabilities_of(point.backend).gpu_ranks
    machines = point.node_of_rank
    if len(machines) != point.ranks:
        # Where the point does not tell, each machine has as many ranks with GPUs, in rank order; processes
        # are on one.
        each = -(-point.ranks // max(point.nodes, 1)) if on_gpus else point.ranks
        machines = tuple(rank // each for rank in range(point.ranks))
    if on_gpus:
        return Joined(machines, _between_gpus(run, point, machines))
    processors = point.binding if len(point.binding) == point.ranks else range(point.ranks)

    def between_processes(source: int, target: int) -> str:
        return SAME_PROCESSOR if processors[source] == processors[target] else SAME_MACHINE

    return Joined(machines, between_processes)


def _between_gpus(run: Run, point: Point, machines: Sequence[int]) -> Callable[[int, int], str]:
    """Return the class of the path between two GPUs of one machine; '' where the graph is not known."""
    from ccbench.topology.matrix import path_labels

    # The n-th rank of a machine has its n-th GPU, as runs number them; nothing is known of more ranks.
    counted: Counter[int] = Counter()
    numbers = []
    for machine in machines:
        numbers.append(counted[machine])
        counted[machine] += 1
    most = max(counted.values())
    topology = own_gpus(run, point)
    if topology is None or most > len(topology.gpus):
        return lambda source, target: ""
    node = first_gpus(topology, most)
    labels = path_labels(node, node.gpus)
    names = [gpu.name for gpu in node.gpus]
    return lambda source, target: labels[names[numbers[source]], names[numbers[target]]]


def own_gpus(run: Run, point: Point) -> Topology | None:
    """The graph that the run's manifest holds, where it has GPUs and each rank of the case one of its own."""
    topology = run.manifest.topology
    has_gpus = topology is not None and topology.gpus and Flag.LOOPBACK not in point.flags
    return topology if has_gpus else None


LARGEST_FOR_LATENCY = 4096
"""Bytes up to which a pair's time says more than its rate: on every link of today they take less than the
latency does."""

MISS = 0.15
"""A pair this far below the usual rate of its class, or above its usual time, is a finding."""

FEWEST_OF_A_CLASS = 3
"""Pairs; of fewer nobody knows which is the odd one."""

_KIND = CURVE.without("pair")
"""Columns in which the pairs of one matrix are alike, besides the size."""

Cell = TypeVar("Cell")
Table = tuple[tuple[float | None, ...], ...]
Words = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class PairMatrix:
    """Times of all pairs at one size; rows are sources, columns targets, None where nothing was measured.

    seconds, low_seconds: median and the lower end of its interval. doubts: flags under which a time says
    little about the machine, such as other load; "" where there is none. both: each pair was measured both
    ways at once, so that the matrix is symmetric. setting: words for what is not plain. classes: what joins
    the two, as ``nvidia-smi topo -m`` calls it, ``host``, ``one core`` and ``NET`` for processes; "" where
    that is not known. link_rates: bytes per second, one way, of the slowest link between the two; None where
    not known.
    """

    backend: str
    setting: str
    dtype: str
    ranks: int
    nodes: int
    size_bytes: int
    both: bool
    simulated: bool
    emulated: bool
    seconds: Table
    low_seconds: Table
    doubts: Words
    classes: Words
    link_rates: Table

    @property
    def is_latency(self) -> bool:
        """True if times are shown and not rates."""
        return self.size_bytes <= LARGEST_FOR_LATENCY

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(source, target) of every measured cell; of pairs both ways each once."""
        for source, row in enumerate(self.seconds):
            for target, seconds in enumerate(row):
                if seconds is not None and (source < target or not self.both):
                    yield source, target

    def name(self, source: int, target: int) -> str:
        """``0>3`` or ``0<>3``."""
        return str(Pair(source, target, self.both))

    def time(self, source: int, target: int) -> float:
        """Seconds of a measured cell."""
        seconds = self.seconds[source][target]
        assert seconds is not None
        return seconds

    def rate(self, source: int, target: int) -> float | None:
        """Bytes per second, each way, of a cell."""
        seconds = self.seconds[source][target]
        return self.size_bytes / seconds if seconds else None

    @cached_property
    def usual_seconds(self) -> Mapping[str, float]:
        """Median time of each class of pairs."""
        members: dict[str, list[float]] = defaultdict(list)
        for source, target in self.pairs():
            members[self.classes[source][target]].append(self.time(source, target))
        return {name: median(times) for name, times in members.items()}

    @cached_property
    def class_sizes(self) -> Mapping[str, int]:
        """Number of pairs of each class."""
        return Counter(self.classes[source][target] for source, target in self.pairs())

    def ratio(self, source: int, target: int) -> float:
        """Time of a pair over the usual one of its class."""
        return self.time(source, target) / self.usual_seconds[self.classes[source][target]]


@dataclass(frozen=True)
class PairMiss:
    """A pair that is worse than its class; ratio: its time over the usual one of the class."""

    source: int
    target: int
    name: str
    link_class: str
    ratio: float


def pair_misses(matrix: PairMatrix) -> tuple[PairMiss, ...]:
    """Pairs that miss their class's median by more than MISS, their interval beyond it too; worst first.

    Classes of fewer than FEWEST_OF_A_CLASS pairs are not judged; emulated, computed and doubtful times are
    not either.
    """
    if matrix.simulated or matrix.emulated:
        return ()
    slowest = 1 + MISS if matrix.is_latency else 1 / (1 - MISS)
    misses = []
    for source, target in matrix.pairs():
        link_class = matrix.classes[source][target]
        usual = matrix.usual_seconds[link_class]
        low, ratio = matrix.low_seconds[source][target], matrix.ratio(source, target)
        many = matrix.class_sizes[link_class] >= FEWEST_OF_A_CLASS
        if (
            many
            and not matrix.doubts[source][target]
            and ratio > slowest
            and (low is None or low > usual)
        ):
            misses.append(
                PairMiss(source, target, matrix.name(source, target), link_class, ratio)
            )
    return tuple(sorted(misses, key=lambda miss: -miss.ratio))


def pair_matrices(run: Run) -> tuple[PairMatrix, ...]:
    """A matrix for every size, way and setting in which ``run`` measured pairs."""
    tables: dict[tuple[Any, ...], dict[Pair, Point]] = defaultdict(dict)
    for point in run.points:
        if point.pair and point.is_timed:
            pair = parse_pair(point.pair)
            key = (*_KIND(point), point.size_bytes, pair.both)
            tables[key][pair] = point
    ordered = sorted(
        tables.items(), key=lambda item: tuple(map(str, item[0][:-2])) + item[0][-2:]
    )
    joined: dict[tuple[Any, ...], tuple[Words, Table]] = {}
    matrices = []
    for _, pairs in ordered:
        first = next(iter(pairs.values()))
        # Sizes and ways of one team share what joins its ranks, which takes longer than all the rest.
        place = (first.backend, first.ranks, first.nodes)
        if place not in joined:
            joint, ranks = joined_by(run, first), range(first.ranks)
            classes = tuple(
                tuple(joint.word(source, target) for target in ranks) for source in ranks
            )
            joined[place] = classes, _link_rates(run, first)
        matrices.append(_matrix(pairs, *joined[place]))
    return tuple(matrices)


def _matrix(pairs: Mapping[Pair, Point], classes: Words, rates: Table) -> PairMatrix:
    first = next(iter(pairs.values()))
    settings = [
        name
        for name in _KIND.columns
        if name not in ("collective", "backend", "dtype", "ranks", "nodes")
    ]

    def cells(value: Callable[[Point], Cell], empty: Cell) -> tuple[tuple[Cell, ...], ...]:
        table = [[empty] * first.ranks for _ in range(first.ranks)]
        for pair, point in pairs.items():
            table[pair.source][pair.target] = value(point)
            if pair.both:
                table[pair.target][pair.source] = value(point)
        return tuple(map(tuple, table))

    return PairMatrix(
        backend=first.backend,
        setting=", ".join(
            filter(None, (AXIS[name].label_of(getattr(first, name)) for name in settings))
        ),
        dtype=first.dtype,
        ranks=first.ranks,
        nodes=first.nodes,
        size_bytes=first.size_bytes,
        both=next(iter(pairs)).both,
        simulated=first.simulated,
        emulated=any(point.emulated for point in pairs.values()),
        seconds=cells(lambda point: point.median_seconds, None),
        low_seconds=cells(lambda point: point.low_seconds, None),
        doubts=cells(lambda point: ", ".join(doubts_of(point)), ""),
        classes=classes,
        link_rates=rates,
    )


def _link_rates(run: Run, point: Point) -> Table:
    """The rate of the slowest link between every two ranks; None where it is not known."""
    ranks = point.ranks
    on_gpus = point.on_gpus or capabilities_of(point.backend).gpu_ranks
    topology = own_gpus(run, point) if on_gpus else None
    slowest: list[float | None] = [None] * ranks**2
    if topology is not None:
        # More ranks than GPUs, or a graph that does not say enough: nothing is known then.
        with suppress(CcbenchError):
            nodes, network = max(point.nodes, 1), run.manifest.network or None
            # Rank r is GPU r modulo the GPUs of a node, as runs number them.
            routes = cluster_of(topology, nodes, network, ranks).fabric
            sources = [source for source in range(ranks) for _ in range(ranks)]
            links = routes.route(sources, list(range(ranks)) * ranks)
            speeds = routes.link_bytes_per_second
            slowest = [
                min((float(speeds[link]) for link in row if link >= 0), default=None)
                for row in links
            ]
    return tuple(tuple(slowest[row * ranks : (row + 1) * ranks]) for row in range(ranks))


def doubts_of(point: Point) -> tuple[str, ...]:
    """Flags that make a case's time say little about the machine."""
    return tuple(flag for flag in point.flags if flag not in DEVICE_FLAGS)
