"""GPUs, NVLinks and peer access as the NVIDIA driver tells them, as a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ccbench.machine.accelerators import MOST_LINKS, DriverAbsent, Missing, Nvml, opened
from ccbench.topology.classes import OF_CAPABILITY, OF_VERSION, topology_class
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Notice, Topology

ANCESTORS: Mapping[int, str] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t of nvml.h -> the word nvidia-smi prints."""

PEER_STATUS: Mapping[int, str] = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
"""nvmlGpuP2PStatus_t of nvml.h -> the word nvidia-smi prints."""

PROCESSOR_END, SWITCH_END = 1, 2
PROCESSOR = "processor"
READ, WRITE = 0, 1
# Plain numbers: NVML_P2P_CAPS_INDEX_READ of pynvml is a tuple, by a comma too many.
FABRIC_COMPLETED = 3
UNSEEN_PREFIX = "ffff"  # how the driver names a far end that this machine may not see


@dataclass
class _Build:
    """What is being put together. ends: names by bus id; switches likewise, of those met on the way."""

    nvml: Nvml
    ends: Mapping[str, str]
    devices: list[Device] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    switches: dict[str, str] = field(default_factory=dict)
    active: list[int] = field(default_factory=list)


def read_driver() -> Topology:
    """``read_nvml`` of the installed driver; without one, an empty topology whose notice says why."""
    try:
        with opened() as nvml:
            return read_nvml(nvml)
    except DriverAbsent as error:
        notice = Notice("not_visible", f"{error}: NVLinks and peer access are unknown")
        return Topology("nvml", (), source="nvml", notices=(notice,))


def read_nvml(nvml: Nvml) -> Topology:
    """The GPUs the driver shows, with their NVLinks and what is known of the paths between them.

    Facts: gpu_count, nvswitch_count, nvlinks_per_gpu, driver, p2p_matrix, p2p_write_matrix. PCIe switches,
    processors and network cards are not the driver's to say.
    """
    handles = nvml.handles()
    bus_ids = [nvml.bus_id("DeviceGetPciInfo", handle) or "" for handle in handles]
    state = _Build(nvml, {bus_id: f"gpu{place}" for place, bus_id in enumerate(bus_ids) if bus_id})
    for place, (handle, bus_id) in enumerate(zip(handles, bus_ids, strict=True)):
        _add_gpu(state, f"gpu{place}", handle, bus_id)
    hidden = UNSEEN_PREFIX in state.switches
    state.devices += [
        Device(name, DeviceKind.NVSWITCH, bus_id="" if bus_id == UNSEEN_PREFIX else bus_id)
        for bus_id, name in state.switches.items()
    ]
    facts: dict[str, Any] = {
        "gpu_count": len(handles),
        # A far end that is hidden stands for any number of switches.
        "nvswitch_count": None if hidden else len(state.switches),
        "nvlinks_per_gpu": state.active,
        "driver": nvml.answer("SystemGetDriverVersion"),
        "p2p_matrix": _peer_matrix(nvml, handles, READ),
        "p2p_write_matrix": _peer_matrix(nvml, handles, WRITE),
    }
    found = Topology(
        name="nvml",
        devices=tuple(state.devices),
        links=tuple(state.links),
        source="nvml",
        notices=tuple(state.notices),
        facts=facts,
        matrix=_matrix(nvml, handles, state.links),
    )
    return replace(found, topology_class=topology_class(found))


def _add_gpu(state: _Build, name: str, handle: Any, bus_id: str) -> None:
    """Add a GPU with its links; those without a far end in this graph are told of the GPU itself."""
    nvml = state.nvml

    def answer(question: str, *arguments: int) -> Any:
        return nvml.answer(f"DeviceGet{question}", handle, *arguments)

    memory, mig = answer("MemoryInfo"), answer("MigMode")
    affinity = enumerate(answer("MemoryAffinity", 16, 0) or ())
    nodes = [64 * place + bit for place, word in affinity for bit in range(64) if int(word) >> bit & 1]
    capability = answer("CudaComputeCapability")
    attributes: dict[str, Any] = {
        "model": answer("Name"),
        "vendor": "NVIDIA",
        "compute_capability": list(capability) if capability else None,
        "memory_bytes": memory and int(memory.total),
        "pcie_generation": answer("CurrPcieLinkGeneration"),
        "pcie_width": answer("CurrPcieLinkWidth"),
        "pcie_max_generation": answer("MaxPcieLinkGeneration"),
        "pcie_max_width": answer("MaxPcieLinkWidth"),
        "performance_state": answer("PerformanceState"),
        "mig": mig and bool(mig[0]),
        "gpu_numa_id": answer("NumaNodeId"),
        "fabric": _fabric(nvml, handle),
    }
    for (end, up), count in _add_links(state, name, handle).items():
        key = "nvlinks_to_processor" if end else "nvlinks_up_unknown_end" if up else "nvlinks_down"
        attributes[key] = count
        if up and not end:
            text = f"{name}: the driver does not say what is at the far end of {count} active NVLinks"
            state.notices.append(Notice("not_visible", text))
    node = nodes[0] if len(nodes) == 1 else None
    state.devices.append(Device(name, DeviceKind.GPU, bus_id=bus_id, numa_node=node, attributes=attributes))


def _fabric(nvml: Nvml, handle: Any) -> str | None:
    """What the fabric manager made of the GPU: ok, failed, in progress; None where there is no fabric."""
    found = nvml.fabric_state(handle)
    if found is None or found[0] in (0, 1):  # not supported, not started
        return None
    if found[0] != FABRIC_COMPLETED:
        return "in progress"
    return "ok" if found[1] == 0 else f"failed with status {found[1]}"


def _add_links(state: _Build, name: str, handle: Any) -> dict[tuple[str, bool], int]:
    """Add the NVLinks of a GPU; return how many, by (end, up), end at no device of this graph."""
    counts: Counter[tuple[str, bool]] = Counter()
    rate, origin = None, ""
    hidden = 0
    for link in range(MOST_LINKS):
        up = state.nvml.ask("DeviceGetNvLinkState", handle, link)
        hidden += up is Missing.NOT_VISIBLE
        if isinstance(up, Missing):
            continue
        if not counts:
            rate, origin = _rate(state.nvml, handle, link)
        counts[_far_end(state, handle, link), bool(up)] += 1
    state.active.append(sum(count for (_, up), count in counts.items() if up))
    if hidden:
        text = f"{name}: the driver would not say how {hidden} of its NVLinks are"
        state.notices.append(Notice("not_visible", text))
    unplaced = {key: counts.pop(key) for key in list(counts) if key[0] in ("", PROCESSOR)}
    for (end, up), count in counts.items():
        total = rate * count if rate is not None and up else 0.0 if not up else None
        status = LinkState.UP if up else LinkState.DOWN
        ways = [(name, end)]
        if end in state.switches.values():  # between GPUs the other GPU tells its own direction
            ways.append((end, name))
        state.links += [Link(*way, LinkKind.NVLINK, total, None, count, status, origin) for way in ways]
    return unplaced


def _far_end(state: _Build, handle: Any, link: int) -> str:
    """Name of the device at the far end; empty where the driver does not tell."""
    kind = state.nvml.answer("DeviceGetNvLinkRemoteDeviceType", handle, link)
    address = state.nvml.bus_id("DeviceGetNvLinkRemotePciInfo", handle, link) or ""
    if address in state.ends:
        return state.ends[address]
    if kind == PROCESSOR_END:
        return PROCESSOR
    # A switch that this machine may not see (a VM, another tray) has a bus id of f's or none at all.
    if kind == SWITCH_END or address.startswith(UNSEEN_PREFIX):
        seen = address if address and not address.startswith(UNSEEN_PREFIX) else UNSEEN_PREFIX
        return state.switches.setdefault(seen, f"nvswitch{len(state.switches)}")
    return ""


def _rate(nvml: Nvml, handle: Any, link: int) -> tuple[float | None, str]:
    version = nvml.answer("DeviceGetNvLinkVersion", handle, link)
    if version in OF_VERSION:
        word, each = OF_VERSION[version]
        return each, f"NVLink {word}: {each / 1e9:g} GB/s a link"
    major, minor = nvml.answer("DeviceGetCudaComputeCapability", handle) or (0, 0)
    rate = OF_CAPABILITY.get(major * 10 + minor)
    if rate is not None:
        return rate, f"NVLink of compute capability {major}.{minor}: {rate / 1e9:g} GB/s a link"
    return None, "nvml: NVLink version not told"


def _matrix(nvml: Nvml, handles: list[Any], links: Sequence[Link]) -> dict[tuple[str, str], str]:
    """nvidia-smi's words: NV# where links are up, else the nearest common ancestor in the PCIe tree."""
    direct: Counter[tuple[str, str]] = Counter()
    to_switch: Counter[str] = Counter()
    for link in links:
        if link.state is LinkState.UP:
            direct[(link.source, link.target)] += link.count
            to_switch[link.source] += link.count * link.target.startswith("nvswitch")
    matrix = {}
    for (one, handle), (other, far) in product(enumerate(handles), repeat=2):
        pair = (f"gpu{one}", f"gpu{other}")
        links_between = direct[pair] or min(to_switch[pair[0]], to_switch[pair[1]])
        if one == other:
            matrix[pair] = "X"
        elif links_between:
            matrix[pair] = f"NV{links_between}"
        elif word := ANCESTORS.get(nvml.answer("DeviceGetTopologyCommonAncestor", handle, far), ""):
            matrix[pair] = word
    return matrix


def _peer_matrix(nvml: Nvml, handles: list[Any], access: int) -> list[list[str]]:
    """The words ``nvidia-smi topo -p2p`` prints, by rows; ``?`` where there is no answer."""

    def word(one: Any, other: Any) -> str:
        return PEER_STATUS.get(nvml.answer("DeviceGetP2PStatus", one, other, access), "?")

    return [
        ["X" if row == column else word(one, other) for column, other in enumerate(handles)]
        for row, one in enumerate(handles)
    ]
