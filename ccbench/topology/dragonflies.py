"""Dragonfly and dragonfly+: groups of switches, every two groups joined by global links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ccbench.errors import MachineError
from ccbench.topology.fabrics import Bundle, Fabric, LevelCut, Wire, check_size, gpu, whole, wired
from ccbench.topology.graph import Device, DeviceKind
from ccbench.topology.routing import Ints


@dataclass(frozen=True)
class _Groups:
    """How the global links of a dragonfly are laid: port k of a group leads to group + k + 1.

    groups: how many; ports: global ports of one group; copies: links between every two groups.
    """

    groups: int
    ports: int

    @property
    def copies(self) -> int:
        return self.ports // (self.groups - 1) if self.groups > 1 else 0

    @property
    def used(self) -> int:
        """Ports that lead anywhere: the same number to every other group."""
        return self.copies * (self.groups - 1)

    def port(self, group: Ints, other: Ints, choice: Ints) -> Ints:
        """The port of ``group`` that leads to ``other``, by the copy numbered ``choice``."""
        around: Ints = choice % max(1, self.copies) * (self.groups - 1) + (other - group - 1) % self.groups
        return around

    def ends(self) -> tuple[Ints, Ints, Ints, Ints]:
        """Group and port of each used port, group by group, and those at the other end."""
        group = np.repeat(np.arange(self.groups), self.used)
        port = np.tile(np.arange(self.used), self.groups)
        span = max(1, self.groups - 1)
        other = (group + port % span + 1) % self.groups
        return group, port, other, port // span * span + (span - 1 - port % span)


def _laid(name: str, groups: int, sizes: Mapping[str, int], gates: str) -> _Groups:
    """The global links of a dragonfly with these ``sizes``; ``gates`` are the switches that have them."""
    for label, value in sizes.items():
        whole(label, value)
    ports = sizes[gates] * sizes["global_links"]
    laid = _Groups(whole("groups", groups), ports)
    if groups > 1 and laid.copies < 1:
        raise MachineError(
            f"{name}: {ports} global links of a group do not reach {groups - 1} other groups; give it more"
        )
    return laid


class _Shape(Protocol):
    """What both kinds of dragonfly know of themselves."""

    @property
    def laid(self) -> _Groups: ...
    @property
    def ranks(self) -> int: ...
    @property
    def vertices(self) -> int: ...
    @property
    def links(self) -> int: ...
    def bundles(self, wire: Wire, local: Wire, far: Wire) -> list[Bundle]: ...
    def route(self, source: Ints, target: Ints) -> Ints: ...
    def device(self, vertex: int) -> Device: ...


def _built(name: str, shape: _Shape, wire: Wire, local: Wire | None, far: Wire | None) -> Fabric:
    """The fabric of ``shape``; wires within and between groups are like ``wire`` where none is given."""
    check_size(name, shape.links)
    local, far = local or wire, far or wire
    levels = [LevelCut("rank", 1, wire.bytes_per_second, shape.ranks)]
    laid = shape.laid
    if laid.groups > 1:
        out = laid.used * far.bytes_per_second
        levels.append(LevelCut("group", shape.ranks // laid.groups, out, laid.groups))
    bundles = shape.bundles(wire, local, far)
    return wired(name, shape.ranks, shape.vertices, bundles, shape.route, shape.device, tuple(levels))


@dataclass(frozen=True)
class _Dragonfly:
    """Shape of a dragonfly and the order of its links: up, down, local, global."""

    laid: _Groups
    routers: int
    hosts: int
    global_links: int

    @property
    def switches(self) -> int:
        return self.laid.groups * self.routers

    @property
    def ranks(self) -> int:
        return self.switches * self.hosts

    @property
    def vertices(self) -> int:
        return self.ranks + self.switches

    @property
    def locals(self) -> int:
        return self.switches * (self.routers - 1)

    @property
    def links(self) -> int:
        return 2 * self.ranks + self.locals + self.laid.groups * self.laid.used

    def bundles(self, wire: Wire, local: Wire, far: Wire) -> list[Bundle]:
        rank = np.arange(self.ranks)
        router = rank // self.hosts + self.ranks
        start = np.repeat(np.arange(self.switches), self.routers - 1)
        peer = np.tile(np.arange(self.routers - 1), self.switches)
        end = start // self.routers * self.routers + peer + (peer >= start % self.routers)
        group, port, other, other_port = self.laid.ends()
        return [
            Bundle(rank, router, wire),
            Bundle(router, rank, wire),
            Bundle(start + self.ranks, end + self.ranks, local),
            Bundle(
                self.ranks + group * self.routers + port // self.global_links,
                self.ranks + other * self.routers + other_port // self.global_links,
                far,
            ),
        ]

    def local_link(self, start: Ints, end: Ints) -> Ints:
        a, b = start % self.routers, end % self.routers
        within = start * (self.routers - 1) + b - (b > a)
        return np.where(start != end, 2 * self.ranks + within, -1)

    def route(self, source: Ints, target: Ints) -> Ints:
        here, there = source // self.hosts, target // self.hosts
        group, other = here // self.routers, there // self.routers
        crosses = group != other
        port_out, leave, enter = self._crossing(here, there, target)
        leave, enter = np.where(crosses, leave, there), np.where(crosses, enter, there)
        far = 2 * self.ranks + self.locals + group * self.laid.used + port_out
        return np.stack(
            [
                source,
                self.local_link(here, leave),
                np.where(crosses, far, -1),
                self.local_link(enter, there),
                self.ranks + target,
            ],
            axis=1,
        )

    def _crossing(self, here: Ints, there: Ints, target: Ints) -> tuple[Ints, Ints, Ints]:
        """Global port, router that has it and router it leads to: of all copies the one with fewest hops.

        Where several are equally near, the target's number chooses.
        """
        group, other = here // self.routers, there // self.routers
        best: tuple[Ints, ...] | None = None
        for turn in range(max(1, self.laid.copies)):
            out = self.laid.port(group, other, target + turn)
            into = self.laid.port(other, group, target + turn)
            leave = group * self.routers + out // self.global_links
            enter = other * self.routers + into // self.global_links
            hops = (leave != here).astype(np.int64) + (enter != there)
            found = (hops, out, leave, enter)
            if best is None:
                best = found
            else:
                nearer = hops < best[0]
                best = tuple(np.where(nearer, new, old) for new, old in zip(found, best, strict=True))
        assert best is not None  # at least one turn
        return best[1], best[2], best[3]

    def device(self, vertex: int) -> Device:
        if vertex < self.ranks:
            return gpu(vertex)
        group, place = divmod(vertex - self.ranks, self.routers)
        return Device(f"group{group}.router{place}", DeviceKind.NETWORK_SWITCH, -1)


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
    laid = _laid("dragonfly", groups, sizes, gates="routers")
    return _built("dragonfly", _Dragonfly(laid, routers, hosts, global_links), wire, local, far)


@dataclass(frozen=True)
class _DragonflyPlus:
    """Shape of a dragonfly+ and the order of its links: up, down, leaf to spine, spine to leaf, global."""

    laid: _Groups
    leaves: int
    spines: int
    hosts: int
    global_links: int

    @property
    def leaf_count(self) -> int:
        return self.laid.groups * self.leaves

    @property
    def ranks(self) -> int:
        return self.leaf_count * self.hosts

    @property
    def vertices(self) -> int:
        return self.first_spine + self.laid.groups * self.spines

    @property
    def locals(self) -> int:
        return self.leaf_count * self.spines

    @property
    def links(self) -> int:
        return 2 * (self.ranks + self.locals) + self.laid.groups * self.laid.used

    @property
    def first_spine(self) -> int:
        return self.ranks + self.leaf_count

    def bundles(self, wire: Wire, local: Wire, far: Wire) -> list[Bundle]:
        rank = np.arange(self.ranks)
        leaf = rank // self.hosts + self.ranks
        lower = np.repeat(np.arange(self.leaf_count), self.spines)
        spine = np.tile(np.arange(self.spines), self.leaf_count)
        upper = lower // self.leaves * self.spines + spine + self.first_spine
        group, port, other, other_port = self.laid.ends()
        return [
            Bundle(rank, leaf, wire),
            Bundle(leaf, rank, wire),
            Bundle(lower + self.ranks, upper, local),
            Bundle(upper, lower + self.ranks, local),
            Bundle(
                self.first_spine + group * self.spines + port // self.global_links,
                self.first_spine + other * self.spines + other_port // self.global_links,
                far,
            ),
        ]

    def route(self, source: Ints, target: Ints) -> Ints:
        here, there = source // self.hosts, target // self.hosts
        group, other = here // self.leaves, there // self.leaves
        crosses, climbs = group != other, here != there
        port_out = self.laid.port(group, other, target)
        # The copy is chosen by the same number at both ends, so both ports are of one link.
        port_in = self.laid.port(other, group, target)
        spine_up = np.where(crosses, port_out // self.global_links, target % self.spines)
        spine_down = np.where(crosses, port_in // self.global_links, target % self.spines)
        up = 2 * self.ranks + here * self.spines + spine_up
        down = 2 * self.ranks + self.locals + there * self.spines + spine_down
        far = 2 * (self.ranks + self.locals) + group * self.laid.used + port_out
        return np.stack(
            [
                source,
                np.where(climbs, up, -1),
                np.where(crosses, far, -1),
                np.where(climbs, down, -1),
                self.ranks + target,
            ],
            axis=1,
        )

    def device(self, vertex: int) -> Device:
        if vertex < self.ranks:
            return gpu(vertex)
        if vertex < self.first_spine:
            group, place = divmod(vertex - self.ranks, self.leaves)
            return Device(f"group{group}.leaf{place}", DeviceKind.NETWORK_SWITCH, -1)
        group, place = divmod(vertex - self.first_spine, self.spines)
        return Device(f"group{group}.spine{place}", DeviceKind.NETWORK_SWITCH, -1)


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
    laid = _laid("dragonfly+", groups, sizes, gates="spines")
    shape = _DragonflyPlus(laid, leaves, spines, hosts, global_links)
    return _built("dragonfly+", shape, wire, local, far)
