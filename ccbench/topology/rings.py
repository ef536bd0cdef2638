"""Ring orders for a group of GPUs, taken from the links between them.

Behind a switch any order will do. On direct links, rings are cycles through all GPUs that share no link; each
is run both ways round, so that a cycle of k rings uses 2k directed links of every GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.classes import connected_groups, peers_of
from ccbench.topology.fabrics import striped
from ccbench.topology.graph import DeviceKind, LinkKind, Topology

FAST_KINDS = frozenset({LinkKind.NVLINK, LinkKind.XGMI, LinkKind.HCCS, LinkKind.C2C})
"""Kinds of links that rings are laid on; PCIe only carries them when there are none of these."""

MOST_STEPS = 200_000
"""Vertices that the search for rings may try; a cube mesh needs some hundred."""

Counts = list[list[int]]


@dataclass(frozen=True)
class RingPlan:
    """Rings that can run at the same time, each over one physical link out of every GPU and one into it.

    method: switch, direct (over links between the GPUs), or fallback: none joins them, so rank order over
    whatever else does. orders: GPUs in the order in which data travel, from the last back to the first; one
    over k links of every GPU comes k times.
    """

    method: str
    orders: tuple[tuple[str, ...], ...]


def rings_for(topology: Topology, participants: Sequence[str] | None = None) -> RingPlan:
    """Rings over the fast links of ``topology`` for a group of GPUs (all when None).

    Raises MachineError for fewer than two GPUs, unknown ones, and repeated ones.
    """
    group = _group(topology, participants)
    lanes = _switch_lanes(topology, group)
    if lanes:
        return RingPlan("switch", (group,) * lanes)
    index = {name: position for position, name in enumerate(group)}
    one_way = np.zeros((len(group), len(group)), dtype=int)
    for link in topology.links:
        if (
            link.kind in FAST_KINDS
            and link.carries
            and {link.source, link.target} <= index.keys()
        ):
            one_way[index[link.source], index[link.target]] += link.count
    np.fill_diagonal(one_way, 0)
    # A ring is run both ways, so only what is there in both directions counts.
    counts: Counts = np.minimum(one_way, one_way.T).tolist()
    orders: tuple[tuple[str, ...], ...]
    if len(group) == 2:
        orders = (group,) * counts[0][1]
    else:
        between = {count for row, near in enumerate(counts) for count in near[:row]}
        cycles = walecki(len(counts)) * (between.pop() if len(between) == 1 else 0)
        if len(cycles) < min(map(sum, counts)) // 2:
            # Of an even full mesh with bundles, a search may also place the matching that Walecki leaves over.
            cycles = max(_packed(counts), cycles, key=len)
        # Each cycle is run both ways round.
        alike = Counter(way for cycle in cycles for way in (cycle, (cycle[0], *cycle[:0:-1])))
        orders = tuple(tuple(group[place] for place in way) for way in alike.elements())
    return RingPlan("direct", orders) if orders else RingPlan("fallback", (group,))


def _group(topology: Topology, participants: Sequence[str] | None) -> tuple[str, ...]:
    gpus = [device.name for device in topology.gpus]
    group = tuple(gpus if participants is None else participants)
    for name in group:
        if name not in gpus:
            raise MachineError(
                f"{topology.name}: {name!r} is not a GPU of it; name GPUs such as gpu0"
            )
    if len(set(group)) != len(group) or len(group) < 2:
        raise MachineError(
            f"{topology.name}: {len(group)} participants; give at least two, each once"
        )
    return group


def _switch_lanes(topology: Topology, group: tuple[str, ...]) -> int:
    """Links of each GPU of the group to NVSwitches that all of them reach; 0 without such."""
    merged = striped(topology)
    reach: dict[str, set[str]] = {}
    links: dict[str, int] = dict.fromkeys(group, 0)
    switches = {device.name for device in merged.of_kind(DeviceKind.NVSWITCH)}
    joined = {name: {name} for name in switches}
    for link in merged.links:
        if not link.carries:
            continue
        if link.source in links and link.target in switches:
            links[link.source] += link.count
            reach.setdefault(link.source, set()).add(link.target)
        elif link.source in switches and link.target in switches:
            joined[link.source].add(link.target)
    if set(reach) != set(group):
        return 0
    # Switches joined by trunks count as one, as both boards of a DGX-2 do.
    everywhere = [set().union(*(joined[switch] for switch in reach[name])) for name in group]
    return min(links.values()) if set.intersection(*everywhere) else 0


def walecki(vertices: int) -> list[tuple[int, ...]]:
    """Cycles through all of ``vertices`` that share no edge: (n - 1) // 2 of them, as many as there can be.

    Walecki's construction (Lucas, 1892): zigzags over a circle, turned step by step, closed through one more
    vertex. For an even number the middle edges, a perfect matching, are left over.
    """
    if vertices < 3:
        return []
    circle = vertices - 1 if vertices % 2 else vertices - 2
    # Vertices 0 .. circle - 1 lie on the circle, the next closes the zigzag. With an even number there is one
    # more, put into the middle of each zigzag, where it takes the place of one edge.
    cycles = []
    for turn in range(circle // 2):
        zigzag = [turn]
        for step in range(1, circle // 2):
            zigzag += [(turn + step) % circle, (turn - step) % circle]
        zigzag.append((turn + circle // 2) % circle)
        if vertices % 2 == 0:
            zigzag.insert(circle // 2, vertices - 1)
        cycles.append((circle, *zigzag))
    return cycles


def _packed(counts: Counts) -> list[tuple[int, ...]]:
    """Cycles that the search finds within its budget; the most there can be where that is few."""
    most = min(sum(row) for row in counts) // 2
    residual = [list(row) for row in counts]
    best: list[tuple[int, ...]] = []
    steps = MOST_STEPS

    def take(cycle: tuple[int, ...], change: int) -> None:
        for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
            residual[a][b] += change
            residual[b][a] += change

    def cycles(path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        """Cycles that begin so, over links that are left, those with most links left first."""
        nonlocal steps
        here = residual[path[-1]]
        # Each cycle is met in both directions; the one that begins with the lower neighbour counts.
        if len(path) == len(counts) and here[0] > 0 and path[1] < path[-1]:
            yield path
        nearest = [place for place, left in enumerate(here) if left > 0 and place not in path]
        for vertex in sorted(nearest, key=lambda place: (here[place], place), reverse=True):
            steps -= 1
            if steps >= 0:
                yield from cycles((*path, vertex))

    def pack(packed: list[tuple[int, ...]]) -> bool:
        nonlocal best
        best = max(best, packed, key=len)
        for cycle in cycles((0,)) if len(best) < most else ():
            take(cycle, -1)
            done = pack([*packed, cycle])
            take(cycle, 1)
            if done or steps <= 0:
                return done
        return len(best) >= most

    pack([])
    return best


def are_joined(topology: Topology, participants: Sequence[str]) -> bool:
    """Return True if fast links join each GPU of a group to every other, over these GPUs and NVSwitches.

    Raises MachineError as ``rings_for`` does.
    """
    group = _group(topology, participants)
    inside = {*group, *(device.name for device in topology.of_kind(DeviceKind.NVSWITCH))}
    fast = [link for link in topology.links if link.kind in FAST_KINDS and link.carries]
    joined = connected_groups(peers_of(inside, ((link.source, link.target) for link in fast)))
    return any(component >= set(group) for component in joined)


def usable_share(topology: Topology, participants: Sequence[str]) -> dict[str, Fraction]:
    """For each GPU of a group, the part of its fast links over which it can reach the others directly.

    Links to a switch count fully as soon as another GPU of the group is behind it. Raises MachineError.
    """
    group = _group(topology, participants)
    lanes = _switch_lanes(topology, group)
    share: dict[str, Fraction] = {}
    fast = [link for link in topology.links if link.kind in FAST_KINDS and link.carries]
    for name in group:
        links = [link for link in fast if link.source == name]
        total = sum(link.count for link in links)
        # Behind a switch every link reaches every GPU of the group.
        used = total if lanes else sum(link.count for link in links if link.target in group)
        share[name] = Fraction(used, total) if total else Fraction(0)
    return share
