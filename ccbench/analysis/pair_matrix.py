"""Pairs of ranks as they were measured, and what joins them: the path between two, or inside a group.

Only what is joined alike can be compared: a pair over the network is slower than one inside a host, a group
that lies across two sockets slower than one inside a socket, and neither is a fault.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import AXIS
from ccbench.cases.capabilities import capabilities_of
from ccbench.errors import CcbenchError
from ccbench.flags import DEVICE_FLAGS, Flag
from ccbench.groups import Pair, parse_pair
from ccbench.model.cluster import cluster_of, first_gpus
from ccbench.results import Point, Run
from ccbench.results.keys import CURVE, grouped
from ccbench.topology.graph import Topology

if TYPE_CHECKING:
    import pandas as pd

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
    on_gpus = _is_on_gpus(point)
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
    numbers = [machines[:rank].count(machine) for rank, machine in enumerate(machines)]
    most = max(numbers) + 1
    topology = own_gpus(run, point)
    if topology is None or most > len(topology.gpus):
        return lambda source, target: ""
    node = first_gpus(topology, most)
    labels = path_labels(node, node.gpus)
    names = [gpu.name for gpu in node.gpus]
    return lambda source, target: labels[names[numbers[source]], names[numbers[target]]]


def own_gpus(run: Run, point: Point) -> Topology | None:
    """The graph that the run's manifest holds, where it has GPUs and each rank of the case one of its own."""
    topology = run.manifest.topology if _is_on_gpus(point) else None
    has_gpus = topology is not None and topology.gpus and Flag.LOOPBACK not in point.flags
    return topology if has_gpus else None


def _is_on_gpus(point: Point) -> bool:
    return point.on_gpus or capabilities_of(point.backend).gpu_ranks


LARGEST_FOR_LATENCY = 4096
"""Bytes up to which a pair's time says more than its rate: on every link of today they take less than the
latency does."""

MISS = 0.15
"""A pair this far below the usual rate of its class, or above its usual time, is a finding."""

FEWEST_OF_A_CLASS = 3
"""Pairs; of fewer nobody knows which is the odd one."""

_KIND = CURVE.without("pair")
"""Columns in which the pairs of one matrix are alike, besides the size."""

_MEASURED = ["seconds", "low_seconds"]

Rates = NDArray[np.float64]


@dataclass(frozen=True)
class PairMatrix:
    """Times of all pairs at one size.

    first: any of its cases, for what they share. both: each pair was measured both ways at once, so that the
    matrix is symmetric. setting: words for what is not plain. cells: a row for every measured pair, of pairs both
    ways each once: ``source``, ``target``, ``name`` (``0>3`` or ``0<>3``), ``seconds``, ``low_seconds`` (the lower
    end of the median's interval), ``doubts`` (flags under which a time says little about the machine), ``link_class``
    (what joins the two, as ``nvidia-smi topo -m`` calls it, ``host``, ``one core`` and ``NET`` for processes; "" where
    that is not known), ``link_rate`` (bytes per second, one way, of the slowest link between the two, inf where not
    known), ``usual_seconds`` and ``class_size`` (median and number of the class's pairs), and ``ratio`` to the former.
    """

    first: Point
    both: bool
    setting: str
    emulated: bool
    cells: pd.DataFrame

    @property
    def is_latency(self) -> bool:
        """True if times are shown and not rates."""
        return self.first.size_bytes <= LARGEST_FOR_LATENCY

    @property
    def is_measured(self) -> bool:
        """False if times are of a model or of emulated devices."""
        return not (self.first.simulated or self.emulated)

    @property
    def misses(self) -> pd.DataFrame:
        """Cells that miss their class's median by more than MISS, their interval beyond it too; worst first.

        Classes of fewer than FEWEST_OF_A_CLASS pairs are not judged; emulated, computed and doubtful times are
        not either.
        """
        cells = self.cells
        slow = cells.ratio > (1 + MISS if self.is_latency else 1 / (1 - MISS))
        clear = cells.low_seconds.isna() | (cells.low_seconds > cells.usual_seconds)
        odd = cells[slow & clear & self.is_judged & self.is_measured]
        worst_first: pd.DataFrame = odd.sort_values("ratio", ascending=False, kind="stable")
        return worst_first

    @property
    def is_judged(self) -> pd.Series[bool]:
        """Of each cell, whether its time is sound and enough pairs are of its class."""
        return (self.cells.doubts == "") & (self.cells.class_size >= FEWEST_OF_A_CLASS)

    def table(self, column: str) -> list[list[Any]]:
        """Return a column of the cells with a row for each source; None where nothing was measured."""
        ranks, cells = self.first.ranks, self.cells
        rows: list[list[Any]] = [[None] * ranks for _ in range(ranks)]
        for source, target, value in zip(
            cells.source, cells.target, cells[column], strict=True
        ):
            rows[source][target] = value
            if self.both:
                rows[target][source] = value
        return rows


def pair_matrices(run: Run) -> tuple[PairMatrix, ...]:
    """A matrix for every size, way and setting in which ``run`` measured pairs."""
    pairs = [
        (parse_pair(point.pair), point) for point in run.points if point.pair and point.is_timed
    ]
    tables = grouped(pairs, lambda each: (*_KIND(each[1]), each[1].size_bytes, each[0].both))
    teams: dict[tuple[object, ...], tuple[Joined, Rates | None]] = {}
    matrices = []
    for key in sorted(tables, key=lambda key: (*map(str, key[:-2]), *key[-2:])):
        first = tables[key][0][1]
        # Sizes and ways of one team share what joins its ranks, which takes longer than all the rest.
        team = (first.backend, first.ranks, first.nodes)
        if team not in teams:
            teams[team] = joined_by(run, first), _link_rates(run, first)
        matrices.append(_matrix(tables[key], *teams[team]))
    return tuple(matrices)


def _matrix(
    pairs: Sequence[tuple[Pair, Point]], links: Joined, rates: Rates | None
) -> PairMatrix:
    import pandas as pd

    first_pair, first = pairs[0]
    cells = pd.DataFrame(
        [
            (
                *(pair.source, pair.target, str(pair)),
                *(point.median_seconds, point.low_seconds, ", ".join(doubts_of(point))),
                links.word(pair.source, pair.target),
                math.inf if rates is None else rates[pair.source, pair.target],
            )
            for pair, point in pairs
        ],
        columns=["source", "target", "name", *_MEASURED, "doubts", "link_class", "link_rate"],
    )
    cells = cells.astype(dict.fromkeys(_MEASURED, float)).sort_values(["source", "target"])
    classes = cells.groupby("link_class").seconds
    cells["usual_seconds"] = classes.transform("median")
    cells["class_size"] = classes.transform("size")
    cells["ratio"] = cells.seconds / cells.usual_seconds
    names = _KIND.without("collective", "backend", "dtype", "ranks", "nodes").columns
    settings = (AXIS[name].label_of(getattr(first, name)) for name in names)
    return PairMatrix(
        first,
        first_pair.both,
        ", ".join(filter(None, settings)),
        any(point.emulated for _, point in pairs),
        cells,
    )


def _link_rates(run: Run, point: Point) -> Rates | None:
    """Bytes per second of the slowest link between every two ranks; None where they are not known."""
    topology = own_gpus(run, point)
    if topology is None:
        return None
    # More ranks than GPUs, or a graph that does not say enough: nothing is known then.
    with suppress(CcbenchError):
        nodes, network = max(point.nodes, 1), run.manifest.network or None
        # Rank r is GPU r modulo the GPUs of a node, as runs number them.
        routes = cluster_of(topology, nodes, network, point.ranks).fabric
        ranks = np.arange(point.ranks)
        links = routes.route(ranks[:, None], ranks)
        # Rows are padded with -1, the last entry.
        speeds = np.append(routes.link_bytes_per_second, np.inf)[links]
        return np.asarray(speeds.min(axis=1, initial=np.inf).reshape(len(ranks), -1))
    return None


def doubts_of(point: Point) -> tuple[str, ...]:
    """Flags that make a case's time say little about the machine."""
    return tuple(flag for flag in point.flags if flag not in DEVICE_FLAGS)
