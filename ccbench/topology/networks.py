"""Networks of switches: fat-trees (plain and oversubscribed), dragonfly and dragonfly+.

A dragonfly is groups of switches, every two groups joined by global links.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabrics import (
    Bundle,
    Fabric,
    Ints,
    LevelCut,
    Wire,
    check_size,
    gpu,
    whole,
    wired,
)
from ccbench.topology.graph import Device, DeviceKind
from ccbench.units import shown


def fat_tree(children: Sequence[int], wire: Wire, oversubscription: float = 1.0) -> Fabric:
    """A tree of switches with more or fatter links towards the top (an extended generalised fat-tree).

    children: how many vertices hang below a switch of level 1, 2, ...; their product is the ranks.
    oversubscription: at each level above the first, what can enter a switch from below over what can leave
        it upwards. 4 means 4:1.

    A rank hangs on one switch, a switch on as many as links at most as fast as ``wire`` need. Of several ways
    up, the target's number chooses (d mod k). Raises MachineError.
    """
    down = [whole("children", child) for child in children]
    if not down or not 0 < oversubscription < math.inf:
        raise MachineError(
            f"oversubscription: {shown(oversubscription)} does not fit {len(down)} levels; give a positive "
            "number and one level or more"
        )
    # Links up from each vertex of every level, and the wire they are made of: as fast together as what enters
    # from below, less the oversubscription.
    up, wires = [1], [wire]
    for level in range(1, len(down)):
        leaving = down[level - 1] * wires[-1].bytes_per_second / oversubscription
        links = max(1, math.ceil(leaving / wire.bytes_per_second - 1e-9))
        up.append(links)
        wires.append(replace(wire, bytes_per_second=leaving / links))
    tree = _Tree(down, up)
    check_size("fat-tree", 2 * sum(tree.sizes))
    return wired(
        "fat-tree",
        tree.ranks,
        tree.first[-1],
        tree.bundles(wires),
        tree.route,
        tree.device,
        tuple(tree.levels(wires)),
    )


class _Tree:
    """Shape of a fat-tree; ids count level by level, first the links up, then those down.

    down, up: children and parents of a vertex, level by level. below: ranks under a vertex of each level.
    planes: vertices of each level above the same ranks. counts, first: vertices of each level, and the
    number of the first. sizes: links up from each level.
    """

    def __init__(self, down: Sequence[int], up: Sequence[int]) -> None:
        self.down, self.up, self.height = down, up, len(down)
        self.below = [math.prod(down[:level]) for level in range(self.height + 1)]
        self.planes = [math.prod(up[:level]) for level in range(self.height + 1)]
        self.ranks = self.below[-1]
        above = zip(self.below, self.planes, strict=True)
        self.counts = [self.ranks // below * planes for below, planes in above]
        self.first = [0, *itertools.accumulate(self.counts)]
        self.sizes = [self.counts[level] * up[level] for level in range(self.height)]

    def bundles(self, wires: Sequence[Wire]) -> Iterator[Bundle]:
        for level, wire in enumerate(wires):
            planes = self.planes[level]
            lower = np.repeat(np.arange(self.counts[level]), self.up[level])
            choice = np.tile(np.arange(self.up[level]), self.counts[level])
            over = lower // planes // self.down[level] * self.planes[level + 1]
            upper = over + choice * planes + lower % planes + self.first[level + 1]
            lower = lower + self.first[level]
            yield Bundle(lower, upper, wire)
            yield Bundle(upper, lower, wire)

    def route(self, source: Ints, target: Ints) -> Ints:
        ids = np.full((len(source), 2 * self.height), -1, dtype=np.int64)
        plane, offset = np.zeros_like(source), 0
        for level, size in enumerate(self.sizes):
            below, planes, up = self.below[level], self.planes[level], self.up[level]
            # The common switch is the first whose ranks hold both.
            climbs = source // below != target // below
            choice = target // planes % up
            for column, vertex in ((level, source), (-1 - level, target)):
                edge = (vertex // below * planes + plane) * up + choice + offset
                ids[:, column] = np.where(climbs, edge, -1)
                offset += size
            plane = plane + choice * planes
        return ids

    def device(self, vertex: int) -> Device:
        if vertex < self.ranks:
            return gpu(vertex)
        level = next(
            level for level in range(1, self.height + 1) if vertex < self.first[level + 1]
        )
        return Device(
            f"level{level}.switch{vertex - self.first[level]}", DeviceKind.NETWORK_SWITCH, -1
        )

    def levels(self, wires: Sequence[Wire]) -> Iterator[LevelCut]:
        for level, wire in enumerate(wires):
            size = self.below[level]
            if size < self.ranks:
                leaving = self.planes[level] * self.up[level] * wire.bytes_per_second
                label = f"subtree of level {level}" if level else "rank"
                yield LevelCut(label, size, leaving, self.ranks // size)


class _Groups:
    """Layout of the global links of a dragonfly: port k of a group leads to group + k + 1.

    groups: number of them; ports: global ports of one group; copies: links between every two groups; used:
    ports that lead anywhere, the same number to every other group.
    """

    def __init__(self, groups: int, ports: int) -> None:
        self.groups, self.ports = groups, ports
        self.copies = ports // (groups - 1) if groups > 1 else 0
        self.used = self.copies * (groups - 1)

    def port(self, group: Ints, peer: Ints, choice: Ints) -> Ints:
        """The port of ``group`` that leads to ``peer``, by the copy numbered ``choice``."""
        around: Ints = (
            choice % max(1, self.copies) * (self.groups - 1) + (peer - group - 1) % self.groups
        )
        return around

    def ends(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Group and port of each used port, group by group, and those at the other end."""
        group = np.repeat(np.arange(self.groups), self.used)
        port = np.tile(np.arange(self.used), self.groups)
        # Seen from the other end a link leads on by as many groups as close the circle.
        span = max(1, self.groups - 1)
        peer = (group + port % span + 1) % self.groups
        return group, port, peer, port // span * span + (span - 1 - port % span)


class _Dragonfly:
    """Shape of a dragonfly and the order of its links: up, down, within groups, global.

    leaves: switches of a group that have hosts. spines: switches of a group, each joined to every leaf, that
    have the global links (dragonfly+); 0: the leaves are joined to each other and have them (dragonfly).
    locals: links within groups; with spines only those up, of which as many lead down.
    """

    def __init__(
        self, laid: _Groups, leaves: int, spines: int, hosts: int, global_links: int
    ) -> None:
        self.laid, self.leaves, self.spines = laid, leaves, spines
        self.hosts, self.global_links = hosts, global_links
        self.leaf_count = laid.groups * leaves
        self.ranks = self.leaf_count * hosts
        self.first_spine = self.ranks + self.leaf_count
        self.vertices = self.first_spine + laid.groups * spines
        self.locals = self.leaf_count * (spines or leaves - 1)
        self.first_global = 2 * self.ranks + self.locals * (2 if spines else 1)
        self.links = self.first_global + laid.groups * laid.used

    def bundles(self, wire: Wire, local: Wire, far: Wire) -> list[Bundle]:
        rank = np.arange(self.ranks)
        leaf = rank // self.hosts + self.ranks
        made = [Bundle(rank, leaf, wire), Bundle(leaf, rank, wire)]
        peers = self.spines or self.leaves - 1
        start = np.repeat(np.arange(self.leaf_count), peers)
        peer = np.tile(np.arange(peers), self.leaf_count)
        group_of = start // self.leaves
        if self.spines:
            spine = group_of * self.spines + peer + self.first_spine
            made += [
                Bundle(start + self.ranks, spine, local),
                Bundle(spine, start + self.ranks, local),
            ]
        else:
            # A router skips itself in its row of peers.
            end = group_of * self.leaves + peer + (peer >= start % self.leaves)
            made.append(Bundle(start + self.ranks, end + self.ranks, local))
        gates, first = (
            (self.spines, self.first_spine) if self.spines else (self.leaves, self.ranks)
        )
        group, port, peer_group, other_port = self.laid.ends()
        leave = first + group * gates + port // self.global_links
        return [
            *made,
            Bundle(leave, first + peer_group * gates + other_port // self.global_links, far),
        ]

    def route(self, source: Ints, target: Ints) -> Ints:
        here, there = source // self.hosts, target // self.hosts
        group = here // self.leaves
        crosses = group != there // self.leaves
        peer_group = there // self.leaves
        if self.spines:
            port = self.laid.port(group, peer_group, target)
            # The copy is chosen by the same number at both ends, so both ports are of one link.
            into = self.laid.port(peer_group, group, target)
            ends = []
            for leaf, gate, first in ((here, port, 0), (there, into, self.locals)):
                spine = np.where(crosses, gate // self.global_links, target % self.spines)
                link = 2 * self.ranks + first + leaf * self.spines + spine
                ends.append(np.where(here != there, link, -1))
            up, down = ends
        else:
            # Of all copies of a global link the one with fewest hops; where several are equally near, the
            # target's number chooses, because it is tried first.
            fewest, port, leave, enter = np.full_like(here, 3), here, here, here
            for turn in range(max(1, self.laid.copies)):
                out = self.laid.port(group, peer_group, target + turn)
                into = self.laid.port(peer_group, group, target + turn)
                start = group * self.leaves + out // self.global_links
                end = peer_group * self.leaves + into // self.global_links
                hops = (start != here).astype(np.int64) + (end != there)
                nearer = hops < fewest
                fewest = np.where(nearer, hops, fewest)
                port, leave = np.where(nearer, out, port), np.where(nearer, start, leave)
                enter = np.where(nearer, end, enter)
            up = self._between(here, np.where(crosses, leave, there))
            down = self._between(np.where(crosses, enter, there), there)
        far = np.where(crosses, self.first_global + group * self.laid.used + port, -1)
        return np.stack([source, up, far, down, self.ranks + target], axis=1)

    def _between(self, start: Ints, end: Ints) -> Ints:
        """The link from one router of a group to another, -1 where they are the same."""
        a, b = start % self.leaves, end % self.leaves
        return np.where(
            start != end, 2 * self.ranks + start * (self.leaves - 1) + b - (b > a), -1
        )

    def device(self, vertex: int) -> Device:
        if vertex < self.ranks:
            return gpu(vertex)
        first, size, word = self.ranks, self.leaves, "leaf" if self.spines else "router"
        if vertex >= self.first_spine:
            first, size, word = self.first_spine, self.spines, "spine"
        group, place = divmod(vertex - first, size)
        return Device(f"group{group}.{word}{place}", DeviceKind.NETWORK_SWITCH, -1)


def _built(
    name: str,
    groups: int,
    sizes: Mapping[str, int],
    wire: Wire,
    local: Wire | None,
    far: Wire | None,
) -> Fabric:
    """The fabric of these sizes; wires within and between groups are like ``wire`` where none is given."""
    for label, value in sizes.items():
        whole(label, value)
    leaves, spines = sizes.get("routers") or sizes["leaves"], sizes.get("spines", 0)
    ports = (spines or leaves) * sizes["global_links"]
    laid = _Groups(whole("groups", groups), ports)
    if groups > 1 and laid.copies < 1:
        raise MachineError(
            f"{name}: {ports} global links of a group do not reach {groups - 1} other groups; give it more"
        )
    shape = _Dragonfly(laid, leaves, spines, sizes["hosts"], sizes["global_links"])
    check_size(name, shape.links)
    local, far = local or wire, far or wire
    levels = [LevelCut("rank", 1, wire.bytes_per_second, shape.ranks)]
    if groups > 1:
        levels.append(
            LevelCut("group", shape.ranks // groups, laid.used * far.bytes_per_second, groups)
        )
    bundles = shape.bundles(wire, local, far)
    return wired(
        name, shape.ranks, shape.vertices, bundles, shape.route, shape.device, tuple(levels)
    )


def dragonfly(
    groups: int,
    routers: int,
    hosts: int,
    global_links: int,
    wire: Wire,
    local: Wire | None = None,
    far: Wire | None = None,
) -> Fabric:
    """Groups of ``routers`` routers, all joined, each with ``hosts`` ranks and ``global_links``.

    Port k of a group (router k // global_links) leads to the group k + 1 further on; ports are used in
    rounds of one link to every other group. Routes are minimal: at most one local link, one global one, one
    local one. local, far: wires within and between groups, like ``wire`` by default. Raises MachineError.
    """
    sizes = {"routers": routers, "hosts": hosts, "global_links": global_links}
    return _built("dragonfly", groups, sizes, wire, local, far)


def dragonfly_plus(
    groups: int,
    leaves: int,
    spines: int,
    hosts: int,
    global_links: int,
    wire: Wire,
    local: Wire | None = None,
    far: Wire | None = None,
) -> Fabric:
    """Groups of leaves with ``hosts`` ranks each, every leaf on every spine, ``global_links`` per spine.

    Global ports as in ``dragonfly`` (spine k // global_links). Within a group the target's number chooses
    the spine; between groups the spines that hold the link are passed. Raises MachineError.
    """
    sizes = {"leaves": leaves, "spines": spines, "hosts": hosts, "global_links": global_links}
    return _built("dragonfly+", groups, sizes, wire, local, far)
