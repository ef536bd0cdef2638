"""The topology of this machine, from what kernel and NVIDIA driver show, and topologies by name.

The driver tells GPUs, NVLinks and peer access; PCIe switches, processors and network cards are the kernel's
to say (``machine.sysfs``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.machine.accelerators import MOST_LINKS, DriverAbsent, Missing, Nvml, opened
from ccbench.machine.files import Files
from ccbench.machine.sysfs import read_sysfs
from ccbench.readers.machines import read_source
from ccbench.topology.classes import OF_CAPABILITY, OF_VERSION, topology_class
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.stated import completed
from ccbench.units import shown

ANCESTORS: Mapping[int, str] = {
    0: "PIX",
    10: "PIX",
    20: "PXB",
    30: "PHB",
    40: "NODE",
    50: "SYS",
}
"""nvmlGpuTopologyLevel_t of nvml.h -> the word nvidia-smi prints."""

PEER_STATUS: Mapping[int, str] = {
    0: "OK",
    1: "CNS",
    2: "GNS",
    3: "TNS",
    4: "DR",
    5: "NS",
    6: "U",
}
"""nvmlGpuP2PStatus_t of nvml.h -> the word nvidia-smi prints."""

PROCESSOR_END, SWITCH_END = 1, 2
PROCESSOR = "processor"
READ, WRITE = 0, 1
# Plain numbers: NVML_P2P_CAPS_INDEX_READ of pynvml is a tuple, by a comma too many.
FABRIC_COMPLETED = 3
UNSEEN_PREFIX = "ffff"  # how the driver names a far end that this machine may not see


class _DriverGraph:
    """Devices and links as the driver's answers are put together. active: NVLinks that are up, by GPU."""

    def __init__(self, nvml: Nvml) -> None:
        self.nvml = nvml
        self.handles = nvml.handles()
        bus_ids = [nvml.bus_id("DeviceGetPciInfo", handle) or "" for handle in self.handles]
        self._ends = {bus_id: f"gpu{place}" for place, bus_id in enumerate(bus_ids) if bus_id}
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.warnings: list[SourceWarning] = []
        self.switches: dict[str, str] = {}
        self.active: list[int] = []
        for place, (handle, bus_id) in enumerate(zip(self.handles, bus_ids, strict=True)):
            self._add_gpu(f"gpu{place}", handle, bus_id)
        self.devices += [
            Device(name, DeviceKind.NVSWITCH, bus_id="" if bus_id == UNSEEN_PREFIX else bus_id)
            for bus_id, name in self.switches.items()
        ]

    def _add_gpu(self, name: str, handle: Any, bus_id: str) -> None:
        """Add a GPU with its links; those without a far end in this graph are told of the GPU itself."""
        answer = self.nvml.asking(handle)
        memory, mig = answer("MemoryInfo"), answer("MigMode")
        words = enumerate(answer("MemoryAffinity", 16, 0) or ())
        nodes = sum(int(word) << 64 * place for place, word in words)
        capability = answer("CudaComputeCapability")
        # The fabric manager's word: states 0 and 1 are not supported and not started, so there is no fabric.
        state, status = self.nvml.fabric_state(handle) or (0, 0)
        fabric = None
        if state not in (0, 1):
            done = "ok" if status == 0 else f"failed with status {status}"
            fabric = done if state == FABRIC_COMPLETED else "in progress"
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
            "fabric": fabric,
        }
        for (end, up), count in self._add_links(name, handle).items():
            key = "nvlinks_up_unknown_end" if up else "nvlinks_down"
            attributes["nvlinks_to_processor" if end else key] = count
            if up and not end:
                text = f"{name}: the driver does not say what is at the far end of {count} active NVLinks"
                self.warnings.append(SourceWarning("not_visible", text))
        node = nodes.bit_length() - 1 if nodes.bit_count() == 1 else None
        self.devices.append(
            Device(name, DeviceKind.GPU, bus_id=bus_id, numa_node=node, attributes=attributes)
        )

    def _add_links(self, name: str, handle: Any) -> dict[tuple[str, bool], int]:
        """Add the NVLinks of a GPU; return how many, by (end, up), end at no device of this graph."""
        counts: Counter[tuple[str, bool]] = Counter()
        rate: float | None = None
        origin, hidden = "nvml: NVLink version not reported", 0
        for link in range(MOST_LINKS):
            up = self.nvml.ask("DeviceGetNvLinkState", handle, link)
            hidden += up is Missing.NOT_VISIBLE
            if isinstance(up, Missing):
                continue
            if not counts:  # one link is as fast as the other
                version = self.nvml.answer("DeviceGetNvLinkVersion", handle, link)
                major, minor = self.nvml.answer("DeviceGetCudaComputeCapability", handle) or (
                    0,
                    0,
                )
                if version in OF_VERSION:
                    word, rate = OF_VERSION[version]
                    origin = f"NVLink {word}: {rate / 1e9:g} GB/s a link"
                elif (rate := OF_CAPABILITY.get(major * 10 + minor)) is not None:
                    of = f"compute capability {major}.{minor}"
                    origin = f"NVLink of {of}: {rate / 1e9:g} GB/s a link"
            counts[self._far_end(handle, link), bool(up)] += 1
        self.active.append(sum(count for (_, up), count in counts.items() if up))
        if hidden:
            text = f"{name}: the driver would not say how {hidden} of its NVLinks are"
            self.warnings.append(SourceWarning("not_visible", text))
        unplaced = {key: counts.pop(key) for key in list(counts) if key[0] in ("", PROCESSOR)}
        for (end, up), count in counts.items():
            total = rate * count if rate is not None and up else 0.0 if not up else None
            status = LinkState.UP if up else LinkState.DOWN
            ways = [(name, end)]
            if (
                end in self.switches.values()
            ):  # between GPUs the other GPU tells its own direction
                ways.append((end, name))
            self.links += [
                Link(*way, LinkKind.NVLINK, total, None, count, status, origin) for way in ways
            ]
        return unplaced

    def _far_end(self, handle: Any, link: int) -> str:
        """Return the name of the device at the far end; empty where the driver does not tell."""
        kind = self.nvml.answer("DeviceGetNvLinkRemoteDeviceType", handle, link)
        address = self.nvml.bus_id("DeviceGetNvLinkRemotePciInfo", handle, link) or ""
        if address in self._ends:
            return self._ends[address]
        if kind == PROCESSOR_END:
            return PROCESSOR
        # A switch that this machine may not see (a VM, another tray) has a bus id of f's or none at all.
        if kind == SWITCH_END or address.startswith(UNSEEN_PREFIX):
            switch_address = (
                address if address and not address.startswith(UNSEEN_PREFIX) else UNSEEN_PREFIX
            )
            return self.switches.setdefault(switch_address, f"nvswitch{len(self.switches)}")
        return ""

    def matrix(self) -> dict[tuple[str, str], str]:
        """Return nvidia-smi's words: NV# where links are up, else the nearest common ancestor of PCIe."""
        direct: Counter[tuple[str, str]] = Counter()
        to_switch: Counter[str] = Counter()
        for link in self.links:
            if link.state is LinkState.UP:
                direct[(link.source, link.target)] += link.count
                to_switch[link.source] += link.count * link.target.startswith("nvswitch")
        matrix = {}
        for (row, handle), (column, far) in product(enumerate(self.handles), repeat=2):
            pair = (f"gpu{row}", f"gpu{column}")
            links_between = direct[pair] or min(to_switch[pair[0]], to_switch[pair[1]])
            if row == column:
                matrix[pair] = "X"
            elif links_between:
                matrix[pair] = f"NV{links_between}"
            elif word := ANCESTORS.get(
                self.nvml.answer("DeviceGetTopologyCommonAncestor", handle, far), ""
            ):
                matrix[pair] = word
        return matrix

    def peer_matrix(self, access: int) -> list[list[str]]:
        """Return the words ``nvidia-smi topo -p2p`` prints, by rows; ``?`` where there is no answer."""

        def word(source: Any, target: Any) -> str:
            return PEER_STATUS.get(
                self.nvml.answer("DeviceGetP2PStatus", source, target, access), "?"
            )

        return [
            [
                "X" if row == column else word(handle, peer)
                for column, peer in enumerate(self.handles)
            ]
            for row, handle in enumerate(self.handles)
        ]


def read_driver() -> Topology:
    """Return ``read_nvml`` of the installed driver; without one, an empty topology whose warning says why."""
    try:
        with opened() as nvml:
            return read_nvml(nvml)
    except DriverAbsent as error:
        warning = SourceWarning("not_visible", f"{error}: NVLinks and peer access are unknown")
        return Topology("nvml", (), source="nvml", warnings=(warning,))


def read_nvml(nvml: Nvml) -> Topology:
    """Return the GPUs the driver shows, with their NVLinks and what is known of the paths between them.

    Facts: nvswitch_count where it is unknown, nvlinks_per_gpu, driver, p2p_matrix, p2p_write_matrix.
    """
    graph = _DriverGraph(nvml)
    facts: dict[str, Any] = {
        "nvlinks_per_gpu": graph.active,
        "driver": nvml.answer("SystemGetDriverVersion"),
        "p2p_matrix": graph.peer_matrix(READ),
        "p2p_write_matrix": graph.peer_matrix(WRITE),
    }
    if UNSEEN_PREFIX in graph.switches:  # which stands for any number of them
        facts["nvswitch_count"] = None
    topology = Topology(
        name="nvml",
        devices=tuple(graph.devices),
        links=tuple(graph.links),
        source="nvml",
        warnings=tuple(graph.warnings),
        facts=facts,
        matrix=graph.matrix(),
    )
    return replace(topology, topology_class=topology_class(topology))


# -- both together -------------------------------------------------------------------------------------------

BUILT_NODES = 4
"""Machines in the graph of a cluster that is too large for one."""

_FROM_DRIVER = ("nvlinks_per_gpu", "driver", "p2p_matrix", "p2p_write_matrix")


def load_topology(source: str | None = None) -> Topology:
    """Return the topology of ``source``: this machine for None or ``detect``, else as ``read_source`` does.

    Behind a ``?`` stands what is stated of it (see ``ccbench.topology.stated``). Raises MachineError when there
    is no such thing, or nothing can be made of it.
    """
    if source is None or source == "detect":
        return detect()
    place, mark, words = source.rpartition("?")
    return completed(read_source(place), words) if mark else read_source(source)


def load_cluster(source: str | None, nodes: int, network: str) -> Topology:
    """Return ``nodes`` machines that ``source`` names, joined by ``network`` (such as ib-ndr-400x8).

    Of a cluster that is too large for a graph the first machines are built; the fact ``machines`` and a
    warning say how many there are. Raises MachineError.
    """
    from ccbench.topology.composition import compose
    from ccbench.topology.fabrics import TooLargeError
    from ccbench.topology.files import MOST_MACHINES
    from ccbench.topology.node_nics import parse_network

    if nodes > MOST_MACHINES:
        raise MachineError(f"{shown(nodes)} machines are too many; the most is {MOST_MACHINES}")
    interconnect = parse_network(network)
    node = load_topology(source)
    try:
        return compose(node, nodes, interconnect)
    except TooLargeError:
        # A shape with sizes joins all machines and no fewer.
        if nodes <= BUILT_NODES or not interconnect.of_any_size:
            raise
    cluster = compose(node, BUILT_NODES, interconnect)
    text = f"the graph holds {BUILT_NODES} of {nodes} machines, which are all alike; counts are of all of them"
    return replace(
        cluster,
        name=cluster.name.replace(f"{BUILT_NODES} x", f"{nodes} x", 1),
        warnings=(*cluster.warnings, SourceWarning("unsupported", text)),
        facts={**cluster.facts, "machines": nodes},
    )


def detect(files: Files | None = None, driver: Topology | None = None) -> Topology:
    """Return the machine this process runs on; raises nothing, what could not be seen is a warning.

    files: the machine's files, this one's unless given. driver: what ``read_nvml`` gave; asks the
    installed driver unless given.
    """
    return joined(read_sysfs(files or Files()), read_driver() if driver is None else driver)


def joined(kernel: Topology, driver: Topology) -> Topology:
    """Return one graph from both: GPUs are the same where their PCI addresses are; the driver's order counts.

    A GPU that only one of the two shows is kept, with a warning. Facts of the driver win where both speak.
    """
    if not driver.gpus:
        return _without_driver(kernel, driver)
    kernel_gpus = {gpu.bus_id: gpu for gpu in kernel.gpus if gpu.bus_id}
    warnings = [*kernel.warnings, *driver.warnings]
    names: dict[str, str] = {}
    gpus = []
    for gpu in driver.gpus:
        same = kernel_gpus.get(gpu.bus_id)
        if same is None:
            text = "is not in sysfs, only the driver shows it: its PCIe path is unknown"
            warnings.append(SourceWarning("contradiction", f"{gpu.name} ({gpu.bus_id}) {text}"))
        else:
            names[same.name] = gpu.name
            # The kernel's node is that of the slot; -1 and None are replaced by what the driver knows.
            nodes = (same.numa_node, gpu.numa_node)
            known = next((node for node in nodes if node is not None and node >= 0), nodes[0])
            gpu = replace(
                gpu, numa_node=known, attributes={**same.attributes, **gpu.attributes}
            )
        gpus.append(gpu)
    for gpu in kernel.gpus:
        if gpu.name not in names:
            names[gpu.name] = f"gpu{len(gpus)}"
            text = "is in sysfs, but the NVIDIA driver does not show it to this process: its NVLinks are unknown"
            warning = f"{names[gpu.name]} ({gpu.bus_id}) {text}"
            warnings.append(SourceWarning("not_visible", warning))
            gpus.append(replace(gpu, name=names[gpu.name]))
    switches, of_kernel, of_driver = _switches(kernel, driver)
    joined_kinds = (DeviceKind.GPU, DeviceKind.NVSWITCH)
    rest = (device for device in kernel.devices if device.kind not in joined_kinds)
    links = [
        replace(
            link,
            source=of.get(link.source, link.source),
            target=of.get(link.target, link.target),
        )
        for side, of in ((kernel, names | of_kernel), (driver, of_driver))
        for link in side.links
    ]
    facts = {
        **kernel.facts,
        **{name: driver.facts[name] for name in _FROM_DRIVER if name in driver.facts},
    }
    if "nvswitch_count" not in driver.facts:  # the driver knows them all
        facts.pop("nvswitch_count", None)
    topology = Topology(
        name=kernel.name,
        devices=(*gpus, *rest, *switches),
        links=tuple(links),
        source="this machine: sysfs and the NVIDIA driver",
        warnings=tuple(warnings),
        facts=facts,
        matrix=driver.matrix,
    )
    return replace(topology, topology_class=topology_class(topology))


def _without_driver(kernel: Topology, driver: Topology) -> Topology:
    """Return the kernel's graph, with a warning that it shows no links between GPUs."""
    warnings = (*kernel.warnings, *driver.warnings)
    vendors = {gpu.attributes.get("vendor") for gpu in kernel.gpus}
    # What is said of NVLinks already is no word on other makers'.
    if vendors and (
        vendors != {"NVIDIA"} or not any("NVLink" in warning.text for warning in warnings)
    ):
        text = "NVLinks, xGMI and the like cannot be seen in sysfs: how these GPUs are joined is unknown"
        if "AMD" in vendors:
            text += "; rocm-smi --showtopo prints it for AMD's, save that and name the file"
        warnings = (*warnings, SourceWarning("not_visible", text))
    facts = kernel.facts if kernel.gpus else {**kernel.facts, "nvlinks_per_gpu": []}
    topology = replace(kernel, source="this machine: sysfs", warnings=warnings, facts=facts)
    return replace(topology, topology_class=topology_class(topology))


def _switches(
    kernel: Topology, driver: Topology
) -> tuple[list[Device], dict[str, str], dict[str, str]]:
    """Return NVSwitches of both, and how the kernel's and the driver's names are spelled in one graph."""
    devices: dict[str, Device] = {}
    of_kernel: dict[str, str] = {}
    of_driver: dict[str, str] = {}
    for side, names in ((kernel, of_kernel), (driver, of_driver)):
        for switch in side.of_kind(DeviceKind.NVSWITCH):
            place = switch.bus_id or f"{switch.name} of {side.source}"
            same = devices.setdefault(place, replace(switch, name=f"nvswitch{len(devices)}"))
            names[switch.name] = same.name
    return list(devices.values()), of_kernel, of_driver
