"""What joins ranks: the path between two of them, and what a whole group is joined by.

Only what is joined alike can be compared: a pair over the network is slower than one inside a host, a group
that lies across two sockets slower than one inside a socket, and neither is a fault.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ccbench.capabilities import capabilities_of
from ccbench.errors import CcbenchError
from ccbench.machine.flags import Flag
from ccbench.model.cluster import first_gpus
from ccbench.runs import Run
from ccbench.runs.rows import is_null
from ccbench.topology.graph import Topology

OTHER_MACHINE = "NET"
SAME_MACHINE = "host"
SAME_PROCESSOR = "one core"
"""Classes of pairs of processes: over the network, inside one machine, or taking turns on one processor."""

Row = Mapping[Any, Any]

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


def joined_by(run: Run, row: Row) -> Joined:
    """How the ranks of a case are joined, as far as its run tells."""
    ranks = int(row["ranks"])
    on_gpus = capabilities_of(row["backend"]).gpu_ranks
    machines = _machines(row, by_turns=on_gpus)
    if on_gpus:
        topology = None if Flag.LOOPBACK in row["flags"] else gpus_of(run)
        return Joined(machines, _unknown if topology is None else _between_gpus(topology, machines))
    bound = [] if is_null(row["binding"]) else list(row["binding"])
    processors = bound if len(bound) == ranks else list(range(ranks))

    def between_processes(one: int, other: int) -> str:
        return SAME_PROCESSOR if processors[one] == processors[other] else SAME_MACHINE

    return Joined(machines, between_processes)


def gpus_of(run: Run) -> Topology | None:
    """The graph that the run's manifest holds, if it has GPUs."""
    from ccbench.topology.files import from_plain

    stored = run.manifest.get("topology")
    if not isinstance(stored, Mapping):
        return None
    try:
        topology = from_plain(stored, "run.json: topology")
    except CcbenchError:
        return None
    return topology if topology.gpus else None


def _machines(row: Row, by_turns: bool) -> tuple[int, ...]:
    """Of each rank; where the row does not tell, by_turns: as many ranks on each machine, in rank order."""
    ranks, nodes = int(row["ranks"]), max(int(row["nodes"]), 1)
    told = [] if is_null(row["node_of_rank"]) else [int(one) for one in row["node_of_rank"]]
    if len(told) == ranks:
        return tuple(told)
    each = -(-ranks // nodes) if by_turns else ranks
    return tuple(rank // each for rank in range(ranks))


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
