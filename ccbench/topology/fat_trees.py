"""Fat-trees: plain, oversubscribed, rail-optimised."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabrics import Bundle, Fabric, LevelCut, Wire, check_size, gpu, whole, wired
from ccbench.topology.graph import Device, DeviceKind
from ccbench.topology.routing import Ints
from ccbench.units import shown


def fat_tree(
    children: Sequence[int],
    wire: Wire,
    oversubscription: float | Sequence[float] = 1.0,
    parents: Sequence[int] | None = None,
    rails: int = 1,
) -> Fabric:
    """A tree of switches with more or fatter links towards the top (an extended generalised fat-tree).

    children: how many vertices hang below a switch of level 1, 2, ...; their product is the ranks.
    oversubscription: at each level above the first, what can enter a switch from below over what can leave
        it upwards; one number for all levels or one each. 4 means 4:1.
    parents: how many switches each vertex of level 0, 1, ... hangs on; by default 1 for a rank and, above,
        as many as links at most as fast as ``wire`` need.
    rails: rank r = node * rails + rail; rail j of ``children[0]`` nodes shares a leaf, as in rail-optimised
        clusters. 1: ranks fill the leaves one after the other.

    Of several ways up, the target's number chooses (d mod k). Raises MachineError.
    """
    down = [whole("children", child) for child in children]
    ratios = (
        [oversubscription] * len(down)
        if isinstance(oversubscription, (int, float))
        else [1.0, *oversubscription]
    )
    if not down or len(ratios) != len(down) or not all(0 < ratio < math.inf for ratio in ratios):
        raise MachineError(
            f"oversubscription: {shown(oversubscription)} does not fit {len(down)} levels; give one positive "
            "number, or one for each level above the first"
        )
    up, wires = _upward(down, wire, ratios, parents)
    tree = _Tree(tuple(down), tuple(up), rails)
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


def _upward(
    down: Sequence[int], wire: Wire, ratios: Sequence[float], parents: Sequence[int] | None
) -> tuple[list[int], list[Wire]]:
    """Links up from each vertex of every level, and the wire they are made of."""
    given = None if parents is None else [whole("parents", parent) for parent in parents]
    if given is not None and len(given) != len(down):
        raise MachineError(f"parents: {len(given)} numbers for {len(down)} levels; give one each")
    up, wires = [given[0] if given else 1], [wire]
    for level in range(1, len(down)):
        leaving = down[level - 1] * wires[-1].bytes_per_second / ratios[level]
        links = given[level] if given else max(1, math.ceil(leaving / wire.bytes_per_second - 1e-9))
        up.append(links)
        wires.append(wire.faster(leaving / links / wire.bytes_per_second))
    return up, wires


@dataclass(frozen=True, eq=False)
class _Tree:
    """Shape of a fat-tree; ids count level by level, first the links up, then those down.

    down, up: children and parents of a vertex, level by level. below: ranks under a vertex of each level.
    planes: vertices of each level above the same ranks. counts, first: vertices of each level, and the
    number of the first. host: place below the leaves of each rank.
    """

    down: tuple[int, ...]
    up: tuple[int, ...]
    rails: int

    @cached_property
    def height(self) -> int:
        return len(self.down)

    @cached_property
    def below(self) -> tuple[int, ...]:
        return tuple(math.prod(self.down[:level]) for level in range(self.height + 1))

    @cached_property
    def planes(self) -> tuple[int, ...]:
        return tuple(math.prod(self.up[:level]) for level in range(self.height + 1))

    @cached_property
    def ranks(self) -> int:
        return self.below[-1]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        return tuple(self.ranks // self.below[level] * self.planes[level] for level in range(self.height + 1))

    @cached_property
    def first(self) -> tuple[int, ...]:
        return (0, *itertools.accumulate(self.counts))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.counts[level] * self.up[level] for level in range(self.height))

    @cached_property
    def host(self) -> Ints:
        return _rail_order(self.ranks, self.down[0], self.rails)

    def bundles(self, wires: Sequence[Wire]) -> Iterator[Bundle]:
        rank_of_host = np.argsort(self.host)
        for level, wire in enumerate(wires):
            planes = self.planes[level]
            lower = np.repeat(np.arange(self.counts[level]), self.up[level])
            choice = np.tile(np.arange(self.up[level]), self.counts[level])
            over = lower // planes // self.down[level] * self.planes[level + 1]
            upper = over + choice * planes + lower % planes + self.first[level + 1]
            lower = rank_of_host[lower] if level == 0 else lower + self.first[level]
            yield Bundle(lower, upper, wire)
            yield Bundle(upper, lower, wire)

    def route(self, source: Ints, target: Ints) -> Ints:
        start, end = self.host[source], self.host[target]
        ids = np.full((len(start), 2 * self.height), -1, dtype=np.int64)
        plane, offset = np.zeros_like(start), 0
        for level, size in enumerate(self.sizes):
            below, planes, up = self.below[level], self.planes[level], self.up[level]
            # The common switch is the first whose ranks hold both.
            climbs = start // below != end // below
            choice = end // planes % up
            for column, vertex in ((level, start), (-1 - level, end)):
                edge = (vertex // below * planes + plane) * up + choice + offset
                ids[:, column] = np.where(climbs, edge, -1)
                offset += size
            plane = plane + choice * planes
        return ids

    def device(self, vertex: int) -> Device:
        if vertex < self.ranks:
            return gpu(vertex)
        level = next(level for level in range(1, self.height + 1) if vertex < self.first[level + 1])
        return Device(f"level{level}.switch{vertex - self.first[level]}", DeviceKind.NETWORK_SWITCH, -1)

    def levels(self, wires: Sequence[Wire]) -> Iterator[LevelCut]:
        for level, wire in enumerate(wires):
            size = self.below[level]
            if size < self.ranks:
                leaving = self.planes[level] * self.up[level] * wire.bytes_per_second
                label = f"subtree of level {level}" if level else "rank"
                yield LevelCut(label, size, leaving, self.ranks // size, self.rails == 1)


def _rail_order(ranks: int, nodes_per_leaf: int, rails: int) -> Ints:
    """Place below the leaves of each rank."""
    whole("rails", rails)
    if ranks % (rails * nodes_per_leaf):
        raise MachineError(
            f"rails: {rails} rails of {nodes_per_leaf} nodes do not divide {ranks} ranks; "
            "let children[1] be a multiple of rails"
        )
    rank = np.arange(ranks)
    node, rail = rank // rails, rank % rails
    pod = node // nodes_per_leaf
    return (pod * rails + rail) * nodes_per_leaf + node % nodes_per_leaf
