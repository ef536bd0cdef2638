"""What is drawn as one wide box: switches with the same neighbours, and long rows of GPUs that are alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ccbench.topology.graph import Device, DeviceKind, Link, LinkState, Topology
from ccbench.units import format_rate

MOST_SEPARATE = 16
"""So many alike GPUs of a machine still have a box each."""

_SWITCHES = (DeviceKind.NVSWITCH, DeviceKind.NETWORK_SWITCH)


def condensed(topology: Topology) -> Topology:
    """``topology`` with one device for each group; its attributes ``merged`` and ``detail`` say what it is.

    A group of switches has all their links, one of GPUs those of its first GPU: what each of them has.
    """
    return _with_details(_gpus_merged(_switches_merged(topology)))


def merged(device: Device) -> int:
    """How many devices the box stands for."""
    count = device.attributes.get("merged", 1)
    return count if isinstance(count, int) else 1


def _switches_merged(topology: Topology) -> Topology:
    near = _touching(topology)
    groups: dict[object, list[Device]] = {}
    for one in topology.devices:
        if one.kind in _SWITCHES and near[one.name]:
            alike = frozenset((link.source, link.target) for link in near[one.name])
            others = frozenset(name for pair in alike for name in pair if name != one.name)
            groups.setdefault((one.kind, one.node, others), []).append(one)
    return _replaced(topology, groups.values())


def _gpus_merged(topology: Topology) -> Topology:
    near = _touching(topology)
    groups: dict[object, list[Device]] = {}
    for one in topology.gpus:
        alike = frozenset(
            (
                link.target if link.source == one.name else link.source, link.source == one.name,
                link.kind, link.state, link.count, link.bytes_per_second,
            )
            for link in near[one.name]
        )  # fmt: skip
        groups.setdefault((one.node, alike), []).append(one)
    long = [group for group in groups.values() if len(group) > MOST_SEPARATE]
    dropped = {one.name for group in long for one in group[1:]}
    kept = tuple(link for link in topology.links if not {link.source, link.target} & dropped)
    return replace(_replaced(topology, long), links=kept)


def _replaced(topology: Topology, groups: Iterable[Sequence[Device]]) -> Topology:
    """Each group becomes its first device; links that led to the others lead to that one."""
    first: dict[str, str] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for group in groups:
        if len(group) > 1:
            first.update((one.name, group[0].name) for one in group)
            sizes[group[0].name] = len(group), _names(group)
    devices = []
    for one in topology.devices:
        if one.name in sizes:
            count, names = sizes[one.name]
            one = replace(one, attributes={**one.attributes, "merged": count, "detail": names})
        if first.get(one.name, one.name) == one.name:
            devices.append(one)
    links = tuple(
        replace(
            link,
            source=first.get(link.source, link.source),
            target=first.get(link.target, link.target),
        )
        for link in topology.links
    )
    return replace(topology, devices=tuple(devices), links=links)


def _names(group: Sequence[Device]) -> str:
    """``gpu0 ... gpu71`` for neighbours in a row; few numbers of switches are all written."""
    tails = [one.name.rpartition(".")[2] for one in group]
    stem = tails[0].rstrip("0123456789")
    numbers = [tail[len(stem) :] for tail in tails]
    if group[0].kind is DeviceKind.NETWORK_SWITCH and all(tail.startswith(stem) for tail in tails):
        return ", ".join(numbers) if len(numbers) <= 4 else f"{numbers[0]} ... {numbers[-1]}"
    return f"{tails[0]} ... {tails[-1]}"


def _with_details(topology: Topology) -> Topology:
    """NVSwitches say what each GPU has to them, where all have the same."""
    near = _touching(topology)
    gpus = {gpu.name for gpu in topology.gpus}
    devices = []
    for one in topology.devices:
        if one.kind is DeviceKind.NVSWITCH and (words := _per_gpu(near[one.name], gpus)):
            one = replace(one, attributes={**one.attributes, "detail": words})
        devices.append(one)
    return replace(topology, devices=tuple(devices))


def _per_gpu(links: Sequence[Link], gpus: set[str]) -> str:
    sums: dict[str, tuple[int, float | None]] = {}
    for link in links:
        if link.source in gpus and link.state is LinkState.UP:
            count, rate = sums.get(link.source, (0, 0.0))
            known = rate is not None and link.bytes_per_second is not None
            total = (rate or 0.0) + (link.bytes_per_second or 0.0)
            sums[link.source] = count + link.count, total if known else None
    if len(set(sums.values())) != 1:
        return ""
    count, rate = next(iter(sums.values()))
    words = f"{count} links per GPU" if count != 1 else "1 link per GPU"
    return f"{words} · {format_rate(rate)} each way" if rate else words


def _touching(topology: Topology) -> Mapping[str, list[Link]]:
    near: dict[str, list[Link]] = {one.name: [] for one in topology.devices}
    for link in topology.links:
        for name in {link.source, link.target} & near.keys():
            near[name].append(link)
    return near
