"""Every pair of ranks: measured, and what joins the two where the machine's graph is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any, TypeVar

from ccbench.analysis.health.joined import gpus_of, joined_by
from ccbench.capabilities import capabilities_of
from ccbench.cases import AXIS, IDENTITY
from ccbench.errors import CcbenchError
from ccbench.groups import Pair, parse_pair
from ccbench.machine.flags import DEVICE_FLAGS, Flag
from ccbench.model.cluster import cluster_of
from ccbench.results import Point, Run
from ccbench.topology.graph import Topology

LARGEST_FOR_LATENCY = 4096
"""Bytes up to which a pair's time says more than its rate: on every link of today they take less than the
latency does."""

MISS = 0.15
"""A pair this far below the usual rate of its class, or above its usual time, is a finding."""

FEWEST_OF_A_CLASS = 3
"""Pairs; of fewer nobody knows which is the odd one."""

_KIND = tuple(axis.name for axis in IDENTITY if axis.name not in ("pair", "size_bytes"))
"""What the pairs of one matrix have in common besides the size."""

_NOT_SETTINGS = ("collective", "backend", "dtype", "ranks", "nodes")

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
        """Whether times are shown and not rates."""
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
        sizes: dict[str, int] = defaultdict(int)
        for source, target in self.pairs():
            sizes[self.classes[source][target]] += 1
        return dict(sizes)


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
    found = []
    for source, target in matrix.pairs():
        link_class = matrix.classes[source][target]
        usual = matrix.usual_seconds[link_class]
        low = matrix.low_seconds[source][target]
        ratio = matrix.time(source, target) / usual
        many = matrix.class_sizes[link_class] >= FEWEST_OF_A_CLASS
        if many and not matrix.doubts[source][target] and ratio > slowest and (low is None or low > usual):
            found.append(PairMiss(source, target, matrix.name(source, target), link_class, ratio))
    return tuple(sorted(found, key=lambda miss: -miss.ratio))


def pair_matrices(run: Run) -> tuple[PairMatrix, ...]:
    """A matrix for every size, way and setting in which ``run`` measured pairs."""
    tables: dict[tuple[Any, ...], dict[Pair, Point]] = defaultdict(dict)
    for point in run.points:
        if point.pair and point.is_timed:
            pair = parse_pair(point.pair)
            key = (*(getattr(point, name) for name in _KIND), point.size_bytes, pair.both)
            tables[key][pair] = point
    ordered = sorted(tables.items(), key=lambda item: tuple(map(str, item[0][:-2])) + item[0][-2:])
    joined: dict[tuple[Any, ...], tuple[Words, Table]] = {}
    found = []
    for _, pairs in ordered:
        first = next(iter(pairs.values()))
        place = (first.backend, first.ranks, first.nodes)
        if place not in joined:
            joined[place] = _joined_by(run, first)
        found.append(_matrix(pairs, *joined[place]))
    return tuple(found)


def _matrix(pairs: Mapping[Pair, Point], classes: Words, rates: Table) -> PairMatrix:
    first = next(iter(pairs.values()))
    told = (AXIS[name].said(getattr(first, name)) for name in _KIND if name not in _NOT_SETTINGS)

    def cells(value: Callable[[Point], Cell], empty: Cell) -> tuple[tuple[Cell, ...], ...]:
        table = [[empty] * first.ranks for _ in range(first.ranks)]
        for pair, point in pairs.items():
            table[pair.source][pair.target] = value(point)
            if pair.both:
                table[pair.target][pair.source] = value(point)
        return tuple(map(tuple, table))

    return PairMatrix(
        backend=first.backend,
        setting=", ".join(filter(None, told)),
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


def doubts_of(point: Point) -> tuple[str, ...]:
    """Flags that make a case's time say little about the machine."""
    return tuple(flag for flag in point.flags if flag not in DEVICE_FLAGS)


def _joined_by(run: Run, point: Point) -> tuple[Words, Table]:
    """What joins every two ranks, and the rate of the slowest link between them."""
    ranks = point.ranks
    joined = joined_by(run, point)
    words = tuple(tuple(joined.word(one, other) for other in range(ranks)) for one in range(ranks))
    own_gpus = (
        point.on_gpus or capabilities_of(point.backend).gpu_ranks
    ) and Flag.LOOPBACK not in point.flags
    if own_gpus and (topology := gpus_of(run)):
        try:
            return words, _link_rates(topology, ranks, max(point.nodes, 1), run.manifest.network or None)
        except CcbenchError:
            pass  # more ranks than GPUs, or a graph that does not say enough: nothing is known then
    return words, ((None,) * ranks,) * ranks


def _link_rates(topology: Topology, ranks: int, nodes: int, network: str | None) -> Table:
    """Rank r is GPU r modulo the GPUs of a node, as runs number them."""
    routes = cluster_of(topology, nodes, network, ranks).fabric
    sources = [source for source in range(ranks) for _ in range(ranks)]
    targets = list(range(ranks)) * ranks
    links = routes.route(sources, targets)
    speeds = routes.link_bytes_per_second
    slowest = [min((float(speeds[link]) for link in row if link >= 0), default=None) for row in links]
    return _square(slowest, ranks)


def _square(values: Sequence[float | None], ranks: int) -> Table:
    return tuple(tuple(values[row * ranks : (row + 1) * ranks]) for row in range(ranks))
