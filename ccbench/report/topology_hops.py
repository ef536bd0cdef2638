"""Many GPUs that are joined to each other without a switch (torus, hypercube), by hops from the first."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from ccbench.topology.graph import DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.units import plural

MOST_HOPS = 5
"""Farther GPUs are one box."""


def by_hops(topology: Topology, most_separate: int) -> Topology | None:
    """``topology`` with one device for all GPUs at a distance; None where it is of another form.

    A link between two distances is all links between them together.
    """
    gpus = {gpu.name for gpu in topology.gpus}
    near: dict[str, set[str]] = {name: set() for name in gpus}
    for link in topology.links:
        if link.source in gpus and link.target in gpus and link.source != link.target:
            near[link.source].add(link.target)
            near[link.target].add(link.source)
    of_other_kinds = any(one.kind is not DeviceKind.GPU for one in topology.devices)
    machines = {gpu.node for gpu in topology.gpus}
    if of_other_kinds or len(machines) > 1 or len(gpus) <= most_separate or not any(near.values()):
        return None
    hops = _hops(topology.gpus[0].name, near)
    nearest = {name: min(hop, MOST_HOPS) for name, hop in hops.items()}
    groups: dict[int, list[str]] = {}
    for gpu in topology.gpus:
        groups.setdefault(nearest.get(gpu.name, -1), []).append(gpu.name)
    farthest = max(hops.values())
    devices = []
    for hop, names in sorted(groups.items(), key=lambda group: (group[0] < 0, group[0])):
        detail = plural(hop, "hop") + (f" to {farthest} hops" if hop == MOST_HOPS < farthest else "")
        detail = "not reached" if hop < 0 else detail if hop else plural(len(near[names[0]]), "neighbour")
        extra = {"merged": len(names), "detail": detail, "hop": hop if hop >= 0 else MOST_HOPS + 1}
        devices.append(replace(topology.device(names[0]), attributes=extra))
    first = {name: names[0] for names in groups.values() for name in names}
    return replace(topology, devices=tuple(devices), links=_links(topology, nearest, first))


def _hops(start: str, near: dict[str, set[str]]) -> dict[str, int]:
    hops, waiting = {start: 0}, [start]
    for name in waiting:
        for other in sorted(near[name] - hops.keys()):
            hops[other] = hops[name] + 1
            waiting.append(other)
    return hops


def _links(topology: Topology, hops: dict[str, int], first: dict[str, str]) -> tuple[Link, ...]:
    counts: Counter[tuple[str, str, LinkKind, LinkState]] = Counter()
    rates: Counter[tuple[str, str, LinkKind, LinkState]] = Counter()
    unknown = set()
    for link in topology.links:
        if link.source in hops and link.target in hops and hops[link.source] != hops[link.target]:
            key = (first[link.source], first[link.target], link.kind, link.state)
            counts[key] += link.count
            rates[key] += round(link.bytes_per_second or 0.0)
            if link.bytes_per_second is None:
                unknown.add(key)
    return tuple(
        Link(one, other, kind, None if key in unknown else float(rates[key]), None, count, state)
        for key, count in counts.items()
        for one, other, kind, state in [key]
    )
