"""Networks of switches: fat-trees (plain and oversubscribed), dragonfly and dragonfly+.

A dragonfly is groups of switches, every two groups joined by global links.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ccbench.errors import MachineError
from ccbench.topology.fabrics import (
    HOPS,
    Fabric,
    LevelCut,
    Wire,
    check_size,
    gpu,
    switch,
    whole,
)
from ccbench.topology.graph import Link, Topology
from ccbench.units import shown


def fat_tree(children: Sequence[int], wire: Wire, oversubscription: float = 1.0) -> Fabric:
    """A tree of switches with more or fatter links towards the top (an extended generalised fat-tree).

    children: how many vertices hang below a switch of level 1, 2, ...; their product is the ranks.
    oversubscription: at each level above the first, what can enter a switch from below over what can leave
        it upwards. 4 means 4:1.

    A rank hangs on one switch, a switch on as many as links at most as fast as ``wire`` need.
    Raises MachineError.
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
    # Ranks under a vertex of each level, and how many vertices there are above the same ranks.
    below, planes = (
        [math.prod(sizes[:level]) for level in range(len(down) + 1)] for sizes in (down, up)
    )
    ranks = below[-1]
    counts = [ranks // size * plane for size, plane in zip(below, planes, strict=True)]
    check_size("fat-tree", sum(counts), 2 * sum(map(int.__mul__, counts, up)))
    rows = [list(map(gpu, range(ranks)))] + [
        [switch(f"level{level}.switch{number}") for number in range(count)]
        for level, count in enumerate(counts[1:], 1)
    ]
    made: list[Link] = []
    levels = []
    for level, step in enumerate(wires):
        for number, lower in enumerate(rows[level]):
            over = number // planes[level] // down[level] * planes[level + 1]
            for choice in range(up[level]):
                upper = over + choice * planes[level] + number % planes[level]
                made += step.between(lower.name, rows[level + 1][upper].name).both_ways()
        if below[level] < ranks:
            leaving = planes[level + 1] * step.bytes_per_second
            label = f"subtree of level {level}" if level else "rank"
            levels.append(LevelCut(label, below[level], leaving, ranks // below[level]))
    devices = tuple(itertools.chain(*rows))
    return Fabric(Topology("fat-tree", devices, tuple(made)), tuple(levels))


def _global_links(
    groups: int, copies: int, global_links: int, far: Wire, word: str
) -> Iterator[Link]:
    """Links between groups: port k of a group, of switch k // ``global_links``, leads to group + k + 1.

    copies: links between every two groups. word: what a group calls its switches with such links.
    """
    # Seen from the other end a link leads on by as many groups as close the circle.
    span = groups - 1
    for group, port in itertools.product(range(groups), range(copies * span)):
        turn, place = divmod(port, span)
        ends = (group, port), ((group + place + 1) % groups, turn * span + span - 1 - place)
        names = (f"group{number}.{word}{gate // global_links}" for number, gate in ends)
        # With three hops for each, no way of two is shorter than local, global, local.
        yield replace(far.between(*names), attributes={HOPS: 3})


def dragonfly(
    groups: int,
    routers: int,
    hosts: int,
    global_links: int,
    wire: Wire,
    local: Wire | None = None,
    far: Wire | None = None,
    spines: int = 0,
) -> Fabric:
    """Groups of ``routers`` routers, all joined, each with ``hosts`` ranks and ``global_links``.

    Port k of a group (router k // global_links) leads to the group k + 1 further on; ports are used in
    rounds of one link to every other group. Routes are minimal: at most one local link, one global one, one
    local one. local, far: wires within and between groups, like ``wire`` by default. With spines it is a
    dragonfly+, see there. Raises MachineError.
    """
    local, far = local or wire, far or wire
    name = "dragonfly+" if spines else "dragonfly"
    sizes = {"groups": groups, "routers": routers, "hosts": hosts, "global_links": global_links}
    for label, value in sizes.items():
        whole(label, value)
    ports = (spines or routers) * global_links
    copies = ports // (groups - 1) if groups > 1 else 0
    if groups > 1 and copies < 1:
        raise MachineError(
            f"{name}: {ports} global links of a group do not reach {groups - 1} other groups; give it more"
        )
    used = copies * (groups - 1)
    ranks = groups * routers * hosts
    inside = routers * (2 * spines or routers - 1)
    check_size(name, ranks + groups * (routers + spines), 2 * ranks + groups * (inside + used))
    word, gate = ("leaf", "spine") if spines else ("router", "router")
    gpus = tuple(map(gpu, range(ranks)))
    switches, tops, links = [], [], list[Link]()
    for group in range(groups):
        lower = [switch(f"group{group}.{word}{place}") for place in range(routers)]
        upper = [switch(f"group{group}.spine{place}") for place in range(spines)]
        for place, router in enumerate(lower):
            first = (group * routers + place) * hosts
            for rank in gpus[first : first + hosts]:
                links += wire.between(rank.name, router.name).both_ways()
            for peer in upper or lower[:place]:
                links += local.between(router.name, peer.name).both_ways()
        switches += lower
        tops += upper
    links += _global_links(groups, copies, global_links, far, gate)
    levels = [LevelCut("rank", 1, wire.bytes_per_second, ranks)]
    if groups > 1:
        levels.append(LevelCut("group", ranks // groups, used * far.bytes_per_second, groups))
    devices = (*gpus, *switches, *tops)
    return Fabric(Topology(name, devices, tuple(links)), tuple(levels))


def dragonfly_plus(
    groups: int, leaves: int, spines: int, hosts: int, global_links: int, wire: Wire
) -> Fabric:
    """Groups of leaves with ``hosts`` ranks each, every leaf on every spine, ``global_links`` per spine.

    Global ports as in ``dragonfly`` (spine k // global_links). Raises MachineError.
    """
    return dragonfly(groups, leaves, hosts, global_links, wire, spines=whole("spines", spines))
