"""Findings about PCIe links: narrower or slower than they can be, idle ones told apart, implausible ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Finding, Link, LinkKind, Topology

BUSY_STATE = 2
"""P0 to P2 are states a GPU works in; from P3 on it may have slowed its link down (nvml.h, nvmlPstates_t)."""

SLOWEST = 2.5
"""GT/s of the first generation: what idle links slow down to, and what hypervisors invent."""

SLOWEST_BYTES_PER_SECOND = 0.25e9
"""One lane of the first generation after coding; NCCL prints it as PCI[0.2]."""

FAR_SLOWER = 4
"""Two generations: below that a hop is found to hold back what is under it."""


def pcie_findings(topology: Topology) -> Iterator[Finding]:
    """Findings about every PCIe hop the source gives both the present and the possible state of."""
    devices = {device.name: device for device in topology.devices}
    invented: list[str] = []
    told = set[str]()
    for link in topology.links:
        lower, upper = devices.get(link.source), devices.get(link.target)
        if link.kind is not LinkKind.PCIE or lower is None or upper is None or not _is_upwards(lower, upper):
            continue
        state = link.attributes
        if "max_width" in state:
            told.add(lower.name)
        if _implausible(lower, state) or _crawls(lower, upper, link):
            invented.append(lower.name)
            continue
        yield from _width(lower, link, state)
        yield from _speed(lower, link, state)
        yield from _slot(lower, state)
    slow, hypervisor = _slow_hops(topology, devices)
    invented += hypervisor
    if invented:
        yield _virtual(tuple(dict.fromkeys(invented)))
    yield from slow
    for gpu in topology.gpus:
        if gpu.name not in told:
            yield from _from_driver(gpu)


def _slow_hops(topology: Topology, devices: Mapping[str, Device]) -> tuple[list[Finding], list[str]]:
    """Hops above GPUs of a source that states one speed of each (NCCL's files): findings, invented bridges.

    NCCL states the most that both ends of a bridge's link can, and of a GPU the present speed. Only hops that
    hold back a GPU far faster are found: a Gen4 card in a Gen3 box is how such boxes are sold.
    """
    above = _links_above(topology, devices)
    slow: dict[tuple[float, int], list[Link]] = {}
    invented: list[str] = []
    findings: list[Finding] = []
    for gpu in topology.gpus:
        own = above.get(gpu.name)
        if own is None:
            continue
        fastest = own.attributes["gigatransfers"]
        if fastest <= SLOWEST:
            findings.append(
                Finding(
                    "note", "pcie_idle", (gpu.name,),
                    f"{gpu.name} to {own.target}: {fastest:g} GT/s, as idle links are",
                    "look again while it copies; if it stays, treat it as a slow link",
                )
            )  # fmt: skip
        for link in _chain(own, above):
            speed, width = link.attributes["gigatransfers"], link.attributes["width"]
            if width == 1 and speed <= SLOWEST:
                invented.append(link.source)
            elif width == 1 or FAR_SLOWER * speed <= fastest:
                slow.setdefault((speed, width), []).append(link)
    findings += [_hop(hop, links) for hop, links in slow.items()]
    return findings, invented


def _links_above(topology: Topology, devices: Mapping[str, Device]) -> dict[str, Link]:
    """Device -> its hop towards the processor, found from the processors downwards.

    Between two switches the link alone does not say which is the upper one.
    """
    upwards: dict[str, list[Link]] = {}
    for link in topology.links:
        state = link.attributes
        stated = "max_width" not in state and state.get("gigatransfers") and state.get("width")
        if link.kind is LinkKind.PCIE and stated and link.source in devices:
            upwards.setdefault(link.target, []).append(link)
    above: dict[str, Link] = {}
    waiting = [device.name for device in topology.of_kind(DeviceKind.CPU)]
    done = set(waiting)
    while waiting:
        for link in upwards.get(waiting.pop(), ()):
            if link.source not in done:
                done.add(link.source)
                above[link.source] = link
                waiting.append(link.source)
    return above


def _chain(own: Link, above: Mapping[str, Link]) -> Iterator[Link]:
    """``own`` and the hops above it, to the CPU or where the source is silent."""
    link: Link | None = own
    while link is not None:
        yield link
        link = above.get(link.target)


def _hop(hop: tuple[float, int], links: list[Link]) -> Finding:
    names = tuple(dict.fromkeys(link.source for link in links))
    speed, width = hop
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return Finding(
        "note", "pcie_slow_hop", names,
        f"{speed:g} GT/s x{width} from {listed} upwards holds back the GPUs below, which are far faster",
        "where traffic really takes it, look at the slot, the BIOS and LnkSta of lspci -vv; a port that only "
        "looks slow misleads NCCL: give it a corrected NCCL_TOPO_FILE",
    )  # fmt: skip


def _is_upwards(lower: Device, upper: Device) -> bool:
    if lower.kind is DeviceKind.CPU:
        return False
    return upper.kind in (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)


def _implausible(lower: Device, state: Any) -> bool:
    """x1 at 2.5 GT/s as the most a bridge above a GPU can: a hypervisor's invention (TI 104c:8232)."""
    if lower.kind is DeviceKind.PCIE_SWITCH:
        return bool(state.get("max_gigatransfers") == 2.5 and state.get("max_width") == 1)
    return bool(state.get("port_max_gigatransfers") == 2.5 and state.get("port_max_width") == 1)


def _crawls(lower: Device, upper: Device, link: Link) -> bool:
    """One lane of the first generation between a processor and a switch, where only the rate is printed."""
    bridge = lower.kind is DeviceKind.PCIE_SWITCH and upper.kind is DeviceKind.CPU
    return bridge and 0 < (link.bytes_per_second or 0) <= SLOWEST_BYTES_PER_SECOND


def _virtual(names: tuple[str, ...]) -> Finding:
    return Finding(
        "note", "virtual_bridge", names,
        f"the bridge above {', '.join(names[:8])} says 2.5 GT/s x1 at most: a hypervisor's invention",
        "NCCL believes it (PCI[0.2] in its graph); give it the provider's NCCL_TOPO_FILE",
    )  # fmt: skip


def _width(lower: Device, link: Link, state: Any) -> Iterator[Finding]:
    width, most = state.get("width"), state.get("max_width")
    if width and most and width < most:
        yield Finding(
            "problem", "pcie_width", (lower.name,),
            f"{lower.name} to {link.target}: x{width} of x{most}; links never get narrower by being idle",
            "reseat the card or cable, look for bent pins and at the BIOS's bifurcation of this slot",
        )  # fmt: skip


def _speed(lower: Device, link: Link, state: Any) -> Iterator[Finding]:
    speed, most = state.get("gigatransfers"), state.get("max_gigatransfers")
    if not speed or not most or speed >= most:
        return
    yield _slow(lower, f"{lower.name} to {link.target}", f"{speed:g} of {most:g} GT/s")


def _slow(lower: Device, where: str, seen: str) -> Finding:
    state = lower.attributes.get("performance_state")
    if lower.kind is DeviceKind.GPU and (state is None or state > BUSY_STATE):
        resting = f"the GPU rests (P{state})" if state is not None else "the GPU may be resting"
        return Finding(
            "note", "pcie_idle", (lower.name,), f"{where}: {seen}; {resting}, and idle links slow down",
            "look again while it copies; if it stays, treat it as a slow link",
        )  # fmt: skip
    return Finding(
        "problem", "pcie_speed", (lower.name,), f"{where}: {seen}",
        "look for link errors (AER in dmesg), an older riser or cable, a speed limit in the BIOS",
    )  # fmt: skip


def _slot(lower: Device, state: Any) -> Iterator[Finding]:
    own, slot = state.get("device_max_gigatransfers"), state.get("max_gigatransfers")
    own_width, slot_width = state.get("device_max_width"), state.get("max_width")
    slower = bool(own and slot and slot < own)
    narrower = bool(own_width and slot_width and slot_width < own_width)
    if lower.kind is DeviceKind.GPU and (slower or narrower):
        yield Finding(
            "note", "pcie_slot", (lower.name,),
            f"{lower.name} can {own:g} GT/s x{own_width}, its slot only {slot:g} GT/s x{slot_width}",
            "another slot may be wider or faster",
        )  # fmt: skip


def _from_driver(gpu: Device) -> Iterator[Finding]:
    """The same from the driver's figures, where sysfs did not show this hop."""
    names = ("pcie_generation", "pcie_width", "pcie_max_generation", "pcie_max_width")
    generation, width, most, widest = (gpu.attributes.get(name) for name in names)
    if width and widest and width < widest:
        yield Finding(
            "problem", "pcie_width", (gpu.name,),
            f"{gpu.name}: x{width} of x{widest}; links never get narrower by being idle",
            "reseat the card, look at the BIOS's bifurcation of this slot",
        )  # fmt: skip
    if generation and most and generation < most:
        yield _slow(gpu, gpu.name, f"generation {generation} of {most}")
