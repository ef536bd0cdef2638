"""What the NVIDIA driver says: names, NVLinks and their far ends, peer access, PCIe state.

``Nvml`` is the seam: every question that is asked, one method each, so that a recording can answer in the
driver's place. An answer may be missing in two ways that must not be mixed up: the device has no such thing
(``NOT_THERE``), or it could not be asked (``NOT_VISIBLE``).
``Driver`` asks the NVIDIA driver through the module ``pynvml`` of the package nvidia-ml-py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ccbench.nvidia import Missing, Session, text_of
from ccbench.topology.classes import OF_CAPABILITY, OF_VERSION, topology_class
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Notice, Topology
from ccbench.topology.pci_tree import normal_address


class Driver(Session):
    """The installed driver. Use as a context: it starts and ends the library."""

    def __enter__(self) -> Driver:
        self.open()
        return self

    def driver_version(self) -> str | Missing:
        """See ``Nvml``; so for all that follow."""
        return self.ask(lambda: text_of(self.library.nvmlSystemGetDriverVersion()))

    def gpu_count(self) -> int:
        """See ``Nvml``."""
        found = self.ask(lambda: int(self.library.nvmlDeviceGetCount()))
        return 0 if isinstance(found, Missing) else found

    def name(self, gpu: int) -> str | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: text_of(self.library.nvmlDeviceGetName(self.handle(gpu))))

    def bus_id(self, gpu: int) -> str | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: text_of(self.library.nvmlDeviceGetPciInfo(self.handle(gpu)).busId))

    def compute_capability(self, gpu: int) -> tuple[int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int]:
            major, minor = self.library.nvmlDeviceGetCudaComputeCapability(self.handle(gpu))
            return int(major), int(minor)

        return self.ask(call)

    def memory_bytes(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetMemoryInfo(self.handle(gpu)).total))

    def numa_nodes(self, gpu: int) -> tuple[int, ...] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, ...]:
            words = self.library.nvmlDeviceGetMemoryAffinity(self.handle(gpu), 16, 0)
            return tuple(
                64 * position + bit
                for position, word in enumerate(words)
                for bit in range(64)
                if int(word) >> bit & 1
            )

        return self.ask(call)

    def own_numa_node(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetNumaNodeId(self.handle(gpu))))

    def pcie(self, gpu: int) -> tuple[int, int, int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int, int, int]:
            library, handle = self.library, self.handle(gpu)
            return (
                int(library.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
                int(library.nvmlDeviceGetCurrPcieLinkWidth(handle)),
                int(library.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
                int(library.nvmlDeviceGetMaxPcieLinkWidth(handle)),
            )

        return self.ask(call)

    def performance_state(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetPerformanceState(self.handle(gpu))))

    def mig_enabled(self, gpu: int) -> bool | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: bool(self.library.nvmlDeviceGetMigMode(self.handle(gpu))[0]))

    def link_active(self, gpu: int, link: int) -> bool | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: bool(self.library.nvmlDeviceGetNvLinkState(self.handle(gpu), link)))

    def link_version(self, gpu: int, link: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetNvLinkVersion(self.handle(gpu), link)))

    def link_remote_type(self, gpu: int, link: int) -> int | Missing:
        """See ``Nvml``."""
        library = self.library
        return self.ask(lambda: int(library.nvmlDeviceGetNvLinkRemoteDeviceType(self.handle(gpu), link)))

    def link_remote_bus_id(self, gpu: int, link: int) -> str | Missing:
        """See ``Nvml``."""
        library = self.library
        return self.ask(
            lambda: text_of(library.nvmlDeviceGetNvLinkRemotePciInfo(self.handle(gpu), link).busId)
        )

    def common_ancestor(self, gpu: int, other: int) -> int | Missing:
        """See ``Nvml``."""
        library = self.library
        return self.ask(
            lambda: int(library.nvmlDeviceGetTopologyCommonAncestor(self.handle(gpu), self.handle(other)))
        )

    def peer_status(self, gpu: int, other: int, access: int) -> int | Missing:
        """See ``Nvml``."""
        # Plain numbers: NVML_P2P_CAPS_INDEX_READ of pynvml is a tuple, by a comma too many.
        library = self.library
        return self.ask(
            lambda: int(library.nvmlDeviceGetP2PStatus(self.handle(gpu), self.handle(other), access))
        )

    def fabric_state(self, gpu: int) -> tuple[int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int]:
            library = self.library
            answer = library.c_nvmlGpuFabricInfo_t()
            found = library.nvmlDeviceGetGpuFabricInfo(self.handle(gpu), answer) or answer
            return int(found.state), int(found.status)

        return self.ask(call)


def read_driver() -> Topology:
    """``read_nvml`` of the installed driver; without one, an empty topology whose notice says why."""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional, untyped
    except ImportError:
        return _nothing(
            "NVLinks and peer access were not asked for: the Python module pynvml is missing "
            "(pip install nvidia-ml-py)"
        )
    try:
        with Driver(pynvml) as driver:
            return read_nvml(driver)
    except (pynvml.NVMLError, OSError) as error:
        return _nothing(f"no NVIDIA driver answers here ({error}): NVLinks and peer access are unknown")


def _nothing(text: str) -> Topology:
    return Topology("nvml", (), source="nvml", notices=(Notice("not_visible", text),))


MOST_LINKS = 36
"""NVLINK_MAX_LINKS of nvml.h, driver 580 and later; 18 before."""

ANCESTORS: Mapping[int, str] = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""nvmlGpuTopologyLevel_t of nvml.h -> the word nvidia-smi prints."""

PEER_STATUS: Mapping[int, str] = {0: "OK", 1: "CNS", 2: "GNS", 3: "TNS", 4: "DR", 5: "NS", 6: "U"}
"""nvmlGpuP2PStatus_t of nvml.h -> the word nvidia-smi prints."""

GPU_END, PROCESSOR_END, SWITCH_END = 0, 1, 2
READ, WRITE = 0, 1
FABRIC_COMPLETED = 3
UNSEEN_PREFIX = "ffff"  # how the driver names a far end that this machine may not see


class Nvml(Protocol):
    """The questions. ``gpu`` and ``other`` are indices in the driver's order, ``link`` counts from 0."""

    def driver_version(self) -> str | Missing:
        """Such as 550.54.15."""

    def gpu_count(self) -> int:
        """GPUs the driver shows to this process."""

    def name(self, gpu: int) -> str | Missing:
        """Such as NVIDIA H100 80GB HBM3."""

    def bus_id(self, gpu: int) -> str | Missing:
        """PCI address."""

    def compute_capability(self, gpu: int) -> tuple[int, int] | Missing:
        """(9, 0) for H100."""

    def memory_bytes(self, gpu: int) -> int | Missing:
        """Memory of the GPU."""

    def numa_nodes(self, gpu: int) -> tuple[int, ...] | Missing:
        """Memory nodes of the host next to it."""

    def own_numa_node(self, gpu: int) -> int | Missing:
        """The node the GPU's own memory is, on machines where it is one."""

    def pcie(self, gpu: int) -> tuple[int, int, int, int] | Missing:
        """(generation now, width now, generation and width the GPU and its slot can)."""

    def performance_state(self, gpu: int) -> int | Missing:
        """0 at full clocks, 8 and more when idle."""

    def mig_enabled(self, gpu: int) -> bool | Missing:
        """Whether the GPU is split into instances."""

    def link_active(self, gpu: int, link: int) -> bool | Missing:
        """Whether an NVLink carries data."""

    def link_version(self, gpu: int, link: int) -> int | Missing:
        """NVML's number of the NVLink version, a key of ``nvlink_rates.OF_VERSION``."""

    def link_remote_type(self, gpu: int, link: int) -> int | Missing:
        """0 GPU, 1 POWER processor, 2 switch, 255 unknown."""

    def link_remote_bus_id(self, gpu: int, link: int) -> str | Missing:
        """PCI address of the far end."""

    def common_ancestor(self, gpu: int, other: int) -> int | Missing:
        """A key of ``ANCESTORS``."""

    def peer_status(self, gpu: int, other: int, access: int) -> int | Missing:
        """A key of ``PEER_STATUS``; access 0 reads, 1 writes, 2 is over NVLink."""

    def fabric_state(self, gpu: int) -> tuple[int, int] | Missing:
        """(state, status): 3 is completed; status 0 is success."""


@dataclass
class _Build:
    """What is being put together. counts: (source, target, up) -> links; ends: names by bus id."""

    nvml: Nvml
    devices: list[Device] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    ends: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    counts: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    rates: dict[str, tuple[float | None, str]] = field(default_factory=dict)
    active: list[int] = field(default_factory=list)


def known(answer: Any) -> Any:
    """The answer, None where there is none of either kind."""
    return None if isinstance(answer, Missing) else answer


def read_nvml(nvml: Nvml) -> Topology:
    """The GPUs the driver shows, with their NVLinks and what is known of the paths between them.

    Facts: gpu_count, nvswitch_count, nvlinks_per_gpu, driver, p2p_matrix, p2p_write_matrix. PCIe switches,
    processors and network cards are not the driver's to say.
    """
    state = _Build(nvml)
    count = nvml.gpu_count()
    for gpu in range(count):
        device = _gpu(nvml, gpu)
        state.devices.append(device)
        if device.bus_id:
            state.ends[device.bus_id] = device.name
    for gpu in range(count):
        _read_links(state, gpu)
    state.devices += [
        Device(name, DeviceKind.NVSWITCH, bus_id="" if bus_id.startswith(UNSEEN_PREFIX) else bus_id)
        for bus_id, name in state.switches.items()
    ]
    links = _links(state)
    matrix = _matrix(nvml, count, links)
    facts: dict[str, Any] = {
        "gpu_count": count,
        # A far end that is hidden stands for any number of switches.
        "nvswitch_count": None
        if any(bus_id.startswith(UNSEEN_PREFIX) for bus_id in state.switches)
        else len(state.switches),
        "nvlinks_per_gpu": state.active,
        "driver": known(nvml.driver_version()),
        "p2p_matrix": _peer_matrix(nvml, count, READ),
        "p2p_write_matrix": _peer_matrix(nvml, count, WRITE),
    }
    found = Topology(
        name="nvml",
        devices=tuple(state.devices),
        links=links,
        source="nvml",
        notices=tuple(state.notices),
        facts=facts,
        matrix=matrix,
    )
    return replace(found, topology_class=topology_class(found))


def _gpu(nvml: Nvml, gpu: int) -> Device:
    pcie: Sequence[int | None] = known(nvml.pcie(gpu)) or [None] * 4
    nodes: tuple[int, ...] = known(nvml.numa_nodes(gpu)) or ()
    capability = known(nvml.compute_capability(gpu))
    attributes = {
        "model": known(nvml.name(gpu)),
        "vendor": "NVIDIA",
        "compute_capability": list(capability) if capability else None,
        "memory_bytes": known(nvml.memory_bytes(gpu)),
        "pcie_generation": pcie[0],
        "pcie_width": pcie[1],
        "pcie_max_generation": pcie[2],
        "pcie_max_width": pcie[3],
        "performance_state": known(nvml.performance_state(gpu)),
        "mig": known(nvml.mig_enabled(gpu)),
        "gpu_numa_id": known(nvml.own_numa_node(gpu)),
        "fabric": _fabric(nvml, gpu),
    }
    return Device(
        f"gpu{gpu}",
        DeviceKind.GPU,
        bus_id=normal_address(known(nvml.bus_id(gpu)) or ""),
        numa_node=nodes[0] if len(nodes) == 1 else None,
        attributes=attributes,
    )


def _fabric(nvml: Nvml, gpu: int) -> str | None:
    """What the fabric manager made of the GPU: ok, failed, in progress; None where there is no fabric."""
    found = known(nvml.fabric_state(gpu))
    if found is None or found[0] in (0, 1):  # not supported, not started
        return None
    if found[0] != FABRIC_COMPLETED:
        return "in progress"
    return "ok" if found[1] == 0 else f"failed with status {found[1]}"


def _read_links(state: _Build, gpu: int) -> None:
    nvml, name = state.nvml, f"gpu{gpu}"
    active, hidden = 0, 0
    for link in range(MOST_LINKS):
        up = nvml.link_active(gpu, link)
        if up is Missing.NOT_THERE:
            continue
        if up is Missing.NOT_VISIBLE:
            hidden += 1
            continue
        end = _far_end(state, gpu, link)
        active += up is True
        if name not in state.rates:
            state.rates[name] = _rate(nvml, gpu, link)
        state.counts[(name, end, up is True)] += 1
    state.active.append(active)
    if hidden:
        text = f"{name}: the driver would not say how {hidden} of its NVLinks are"
        state.notices.append(Notice("not_visible", text))


def _far_end(state: _Build, gpu: int, link: int) -> str:
    """Name of the device at the far end; empty where the driver does not tell."""
    kind = known(state.nvml.link_remote_type(gpu, link))
    address = normal_address(known(state.nvml.link_remote_bus_id(gpu, link)) or "")
    if address in state.ends:
        return state.ends[address]
    if kind == PROCESSOR_END:
        return "processor"
    # A switch that this machine may not see (a VM, another tray) has a bus id of f's or none at all.
    if kind == SWITCH_END or address.startswith(UNSEEN_PREFIX):
        seen = address if address and not address.startswith(UNSEEN_PREFIX) else UNSEEN_PREFIX
        return state.switches.setdefault(seen, f"nvswitch{len(state.switches)}")
    return ""


def _rate(nvml: Nvml, gpu: int, link: int) -> tuple[float | None, str]:
    version = known(nvml.link_version(gpu, link))
    if version in OF_VERSION:
        word, each = OF_VERSION[version]
        return each, f"NVLink {word}: {each / 1e9:g} GB/s a link"
    capability = known(nvml.compute_capability(gpu))
    rate = OF_CAPABILITY.get(capability[0] * 10 + capability[1]) if capability else None
    if capability and rate is not None:
        named = f"{capability[0]}.{capability[1]}"
        return rate, f"NVLink of compute capability {named}: {rate / 1e9:g} GB/s a link"
    return None, "nvml: NVLink version not told"


def _links(state: _Build) -> tuple[Link, ...]:
    links = []
    for (name, end, up), count in state.counts.items():
        rate, origin = state.rates[name]
        if not end or end == "processor":
            _unplaced(state, name, end, up, count)
            continue
        total = rate * count if rate is not None and up else 0.0 if not up else None
        status = LinkState.UP if up else LinkState.DOWN
        links.append(Link(name, end, LinkKind.NVLINK, total, None, count, status, origin))
        if end in state.switches.values():  # between GPUs the other GPU tells its own direction
            links.append(Link(end, name, LinkKind.NVLINK, total, None, count, status, origin))
    return tuple(links)


def _unplaced(state: _Build, name: str, end: str, up: bool, count: int) -> None:
    """Links without a far end in this graph: kept with the GPU, so that nobody takes them for not there."""
    index = next(place for place, device in enumerate(state.devices) if device.name == name)
    key = "nvlinks_to_processor" if end else "nvlinks_up_unknown_end" if up else "nvlinks_down"
    old = state.devices[index]
    state.devices[index] = Device(
        old.name, old.kind, old.node, old.bus_id, old.numa_node, {**old.attributes, key: count}
    )
    if up and not end:
        text = f"{name}: the driver does not say what is at the far end of {count} active NVLinks"
        state.notices.append(Notice("not_visible", text))


def _matrix(nvml: Nvml, count: int, links: tuple[Link, ...]) -> dict[tuple[str, str], str]:
    """nvidia-smi's words: NV# where links are up, else the nearest common ancestor in the PCIe tree."""
    direct: Counter[tuple[str, str]] = Counter()
    to_switch: Counter[str] = Counter()
    for link in links:
        if link.state is LinkState.UP:
            direct[(link.source, link.target)] += link.count
            to_switch[link.source] += link.count * link.target.startswith("nvswitch")
    matrix = {}
    for one in range(count):
        for other in range(count):
            pair = (f"gpu{one}", f"gpu{other}")
            links_between = direct[pair] or min(to_switch[pair[0]], to_switch[pair[1]])
            word = ANCESTORS.get(known(nvml.common_ancestor(one, other)) if one != other else -1, "")
            if one == other:
                matrix[pair] = "X"
            elif links_between:
                matrix[pair] = f"NV{links_between}"
            elif word:
                matrix[pair] = word
    return matrix


def _peer_matrix(nvml: Nvml, count: int, access: int) -> list[list[str]]:
    """The words ``nvidia-smi topo -p2p`` prints, by rows; ``?`` where there is no answer."""

    def word(one: int, other: int) -> str:
        status = known(nvml.peer_status(one, other, access)) if one != other else None
        return "X" if one == other else PEER_STATUS.get(-1 if status is None else status, "?")

    return [[word(one, other) for other in range(count)] for one in range(count)]
