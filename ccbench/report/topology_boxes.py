"""What is written on the boxes: what a box that stands for several devices stands for, and their links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ccbench.report.topology_alike import MOST_SEPARATE, reduced
from ccbench.report.topology_hops import by_hops
from ccbench.topology.graph import Device, DeviceKind, Link, LinkState, Topology
from ccbench.topology.matrix import is_counted
from ccbench.topology.node_nics import ASSUMED
from ccbench.units import format_rate, plain, plural

_WORDS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.CPU: "CPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.PCIE_SWITCH: "PCIe",
    DeviceKind.NVSWITCH: "NVSw",
    DeviceKind.NETWORK_SWITCH: "switch",
}
_MANY = {
    DeviceKind.GPU: "GPUs",
    DeviceKind.CPU: "CPUs",
    DeviceKind.NIC: "NICs",
    DeviceKind.PCIE_SWITCH: "PCIe switches",
    DeviceKind.NVSWITCH: "NVSwitches",
    DeviceKind.NETWORK_SWITCH: "switches",
}


def condensed(topology: Topology) -> Topology:
    """``topology`` with one device for each group; its attributes ``merged`` and ``detail`` say what it is.

    A link of a group is what each of its devices has. Many GPUs that are joined among themselves without
    a switch are told by their distance from the first.
    """
    smaller = by_hops(topology, MOST_SEPARATE) or reduced(topology)
    return _with_details(smaller)


def merged(device: Device) -> int:
    """How many devices the box stands for."""
    count = device.attributes.get("merged", 1)
    return count if isinstance(count, int) else 1


def words(device: Device) -> tuple[str, str]:
    """The two lines of a box: what it is, and a detail or nothing."""
    attributes = device.attributes
    detail = plain(attributes.get("detail", ""), 60)
    if "folded" in attributes:
        return _folded_words(device)
    if (count := merged(device)) > 1:
        level = str(attributes.get("level") or "")
        many = {"leaf": "leaves"}.get(level, f"{level}s") if level else _MANY[device.kind]
        return (f"… {count} more {many}" if attributes.get("more") else f"{count} {many}"), detail
    tail = device.name.rpartition(".")[2]
    number = tail[len(tail.rstrip("0123456789")) :]
    label = f"{_WORDS[device.kind]} {number[-6:]}" if number else plain(tail, 10)
    if attributes.get("level"):
        label = f"{attributes['level']} {attributes['number']}"
        # The source's own name where its number is another one: a second number would only confuse.
        detail = detail or ("" if number == str(attributes["number"]) else plain(tail, 13))
    if device.kind is DeviceKind.NIC and device.attributes.get("place") == ASSUMED:
        detail = "assumed"
    elif device.kind is DeviceKind.NIC and not detail:
        detail = plain(attributes.get("name") or "", 13)
    elif device.kind is DeviceKind.GPU and device.bus_id and not detail:
        detail = plain(device.bus_id.removeprefix("0000:").removesuffix(".0"), 13)
    return label, detail


def _folded_words(device: Device) -> tuple[str, str]:
    attributes = device.attributes
    name, like = plain(attributes["folded"], 14), bool(attributes["like_first"])
    kind = "machine" if device.node >= 0 else "group"
    first = "like machine 0" if device.node >= 0 else "like the one below"
    if (count := merged(device)) > 1:
        return f"… {count} more {kind}s", first if like else f"{attributes['inside']} each"
    return name, first if like else plain(attributes["inside"], 24)


def _with_details(topology: Topology) -> Topology:
    """Groups say who is in them; NVSwitches what each GPU has to them, where all have the same."""
    near = _touching(topology)
    gpus = {gpu.name for gpu in topology.gpus}
    devices = []
    for one in topology.devices:
        detail = ""
        if one.kind is DeviceKind.NVSWITCH:
            detail = _per_gpu(near[one.name], gpus)
        if not detail and merged(one) > 1 and "detail" not in one.attributes:
            detail = _names(one)
            if one.kind is DeviceKind.NIC and one.attributes.get("place") == ASSUMED:
                detail = "assumed"
            elif one.kind is DeviceKind.NIC and not near[one.name]:
                detail = "the source states no link"
        if detail:
            one = replace(one, attributes={**one.attributes, "detail": detail})
        devices.append(one)
    return replace(topology, devices=tuple(devices))


def _names(device: Device) -> str:
    """``gpu0 ... gpu71``; few numbers of switches are all written."""
    members = [str(name) for name in device.attributes.get("members", ())]
    tails = [name.rpartition(".")[2] for name in members]
    stem = tails[0].rstrip("0123456789")
    numbers = [tail[len(stem) :] for tail in tails]
    if device.kind is DeviceKind.NETWORK_SWITCH and all(tail.startswith(stem) for tail in tails):
        return ", ".join(numbers) if len(numbers) <= 4 else f"{numbers[0]} ... {numbers[-1]}"
    return f"{plain(tails[0], 12)} ... {plain(tails[-1], 12)}"


def _per_gpu(links: Sequence[Link], gpus: set[str]) -> str:
    sums: dict[str, tuple[int, float | None]] = {}
    counted = all(is_counted(link) for link in links if link.source in gpus)
    for link in links:
        if link.source in gpus and link.state is LinkState.UP:
            count, rate = sums.get(link.source, (0, 0.0))
            known = rate is not None and link.bytes_per_second is not None
            total = (rate or 0.0) + (link.bytes_per_second or 0.0)
            sums[link.source] = count + link.count, total if known else None
    if len(set(sums.values())) != 1:
        return ""
    count, rate = next(iter(sums.values()))
    text = f"{plural(count, 'link')} per GPU" if counted else "links per GPU not stated"
    return f"{text} · {format_rate(rate)} each way" if rate else text


def _touching(topology: Topology) -> Mapping[str, list[Link]]:
    near: dict[str, list[Link]] = {one.name: [] for one in topology.devices}
    for link in topology.links:
        for name in {link.source, link.target} & near.keys():
            near[name].append(link)
    return near
