"""What joins ranks: the path between two of them, and what a whole group is joined by.

Only what is joined alike can be compared: a pair over the network is slower than one inside a host, a group
that lies across two sockets slower than one inside a socket, and neither is a fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

from ccbench.capabilities import capabilities_of
from ccbench.machine.flags import Flag
from ccbench.model.cluster import first_gpus
from ccbench.results import Point, Run
from ccbench.topology.graph import Topology

OTHER_MACHINE = "NET"
SAME_MACHINE = "host"
SAME_PROCESSOR = "one core"
"""Classes of pairs of processes: over the network, inside one machine, or taking turns on one processor."""

Likeness = tuple[tuple[tuple[str, int], ...], ...]
"""Of each machine that a group lies on, how many of its ranks and how many of its pairs of each class."""


@dataclass(frozen=True)
class Joined:
    """How the ranks of a team are joined.

    machines: where each rank is. inside: the class of the path between two ranks of one machine, '' where it
    is not known.
    """

    machines: tuple[int, ...]
    inside: Callable[[int, int], str]

    def word(self, one: int, other: int) -> str:
        """The class of the path between two ranks."""
        return self.inside(one, other) if self.machines[one] == self.machines[other] else OTHER_MACHINE

    def likeness(self, members: Sequence[int]) -> Likeness:
        """The same for groups that are joined alike."""
        parts: dict[int, list[int]] = defaultdict(list)
        for rank in members:
            parts[self.machines[rank]].append(rank)
        return tuple(sorted(map(self._of_one_machine, parts.values())))

    def _of_one_machine(self, ranks: Sequence[int]) -> tuple[tuple[str, int], ...]:
        pairs = Counter(self.inside(one, other) for one, other in combinations(ranks, 2))
        return (("ranks", len(ranks)), *sorted(pairs.items()))


def joined_by(run: Run, point: Point) -> Joined:
    """How the ranks of a case are joined, as far as its run tells."""
    on_gpus = point.on_gpus or capabilities_of(point.backend).gpu_ranks
    machines = _machines(point, by_turns=on_gpus)
    if on_gpus:
        topology = None if Flag.LOOPBACK in point.flags else gpus_of(run)
        return Joined(machines, _unknown if topology is None else _between_gpus(topology, machines))
    processors = point.binding if len(point.binding) == point.ranks else range(point.ranks)

    def between_processes(one: int, other: int) -> str:
        return SAME_PROCESSOR if processors[one] == processors[other] else SAME_MACHINE

    return Joined(machines, between_processes)


def gpus_of(run: Run) -> Topology | None:
    """The graph that the run's manifest holds, if it has GPUs."""
    topology = run.manifest.topology
    return topology if topology is not None and topology.gpus else None


def _machines(point: Point, by_turns: bool) -> tuple[int, ...]:
    """Of each rank; where the point does not tell, by_turns: as many ranks on each machine, in rank order."""
    if len(point.node_of_rank) == point.ranks:
        return point.node_of_rank
    each = -(-point.ranks // max(point.nodes, 1)) if by_turns else point.ranks
    return tuple(rank // each for rank in range(point.ranks))


def _unknown(one: int, other: int) -> str:
    return ""


def _between_gpus(topology: Topology, machines: Sequence[int]) -> Callable[[int, int], str]:
    """The n-th rank of a machine has its n-th GPU, as runs number them; nothing is known of more ranks."""
    from ccbench.topology.matrix import path_labels

    seen: Counter[int] = Counter()
    numbers = []
    for machine in machines:
        numbers.append(seen[machine])
        seen[machine] += 1
    most = max(seen.values())
    if most > len(topology.gpus):
        return _unknown
    node = first_gpus(topology, most)
    labels = path_labels(node, node.gpus)
    names = [gpu.name for gpu in node.gpus]
    return lambda one, other: labels[names[numbers[one]], names[numbers[other]]]
