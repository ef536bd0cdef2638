"""Findings about PCIe links: narrower or slower than they can be, idle ones told apart, implausible ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ccbench.topology.graph import Device, DeviceKind, Finding, Link, LinkKind, Topology

BUSY_STATE = 2
"""P0 to P2 are states a GPU works in; from P3 on it may have slowed its link down (nvml.h, nvmlPstates_t)."""

GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
"""GT/s -> generation of PCI Express."""


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
        if _implausible(lower, state):
            invented.append(lower.name)
            continue
        yield from _width(lower, link, state)
        yield from _speed(lower, link, state)
        yield from _slot(lower, state)
    if invented:
        yield _virtual(tuple(dict.fromkeys(invented)))
    for gpu in topology.gpus:
        if gpu.name not in told:
            yield from _from_driver(gpu)


def _is_upwards(lower: Device, upper: Device) -> bool:
    if lower.kind is DeviceKind.CPU:
        return False
    return upper.kind in (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)


def _implausible(lower: Device, state: Any) -> bool:
    """x1 at 2.5 GT/s as the most a bridge above a GPU can: a hypervisor's invention (TI 104c:8232)."""
    if lower.kind is DeviceKind.PCIE_SWITCH:
        return bool(state.get("max_gigatransfers") == 2.5 and state.get("max_width") == 1)
    return bool(state.get("port_max_gigatransfers") == 2.5 and state.get("port_max_width") == 1)


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
