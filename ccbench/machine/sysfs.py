"""Processors, memory nodes, PCIe tree, network interfaces and cards of this host, as Linux tells them.

Of networks read from sysfs (Documentation/ABI/testing/sysfs-class-net and sysfs-class-infiniband of the Linux
kernel). Addresses and GUIDs are not read.

Vendors' links (NVLink, XGMI, HCCS) are not in these files: who reads only these must not take their absence
for an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from ccbench.findings import SourceWarning
from ccbench.machine.accelerators import (
    AMD,
    INTEL,
    NVIDIA,
    PciFunction,
    Port,
    bridges_above,
    read_functions,
    redirecting,
)
from ccbench.machine.files import Files
from ccbench.machine.host import read_host
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology
from ccbench.topology.pci import ADDRESS, bytes_per_second, normal_address

TCP, ROCE, INFINIBAND, LOOPBACK = "TCP", "RoCE", "InfiniBand", "loopback"

_ARPHRD_INFINIBAND, _ARPHRD_LOOPBACK = 32, 772
"""Values of ``type``: linux/if_arp.h."""

_RDMA, _NET = "/sys/class/infiniband", "/sys/class/net"
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]+)?)\s*Gb/sec", re.ASCII)


@dataclass(frozen=True)
class Interface:
    """One interface, or one InfiniBand port without any (``name`` is then ``mlx5_0:1``).

    kind: the fastest way over it: ``InfiniBand``, ``RoCE`` (Ethernet whose card does RDMA), ``TCP``,
        ``loopback``. rate_bits_per_second: of the link, None where the kernel does not know (virtual links
        often claim a figure that they do not keep). mtu_bytes: None for a port without an interface.
    rdma_device: ``mlx5_0:1``, '' without one. up: whether the link is.
    """

    name: str
    kind: str
    rate_bits_per_second: float | None
    mtu_bytes: int | None
    rdma_device: str
    up: bool
    virtual: bool

    def __str__(self) -> str:
        rate = self.rate_bits_per_second
        words = [self.name, self.kind, f"{rate / 1e9:g} Gb/s" if rate else "rate unknown"]
        if self.mtu_bytes:
            words.append(f"MTU {self.mtu_bytes}")
        words += [f"card {self.rdma_device}"] if self.rdma_device not in ("", self.name) else []
        words += ["virtual"] if self.virtual and self.kind != LOOPBACK else []
        return ", ".join(words if self.up else [*words, "down"])


@dataclass(frozen=True)
class _Port:
    """A port of an RDMA device. interfaces: those that run over it."""

    name: str
    layer: str
    state: str
    rate_bits_per_second: float | None
    interfaces: frozenset[str]


def read_interfaces(files: Files | None = None) -> tuple[Interface, ...]:
    """Return all interfaces and all ports of RDMA cards, by name."""
    files = files or Files()
    ports = [port for card in files.matching(_RDMA) for port in _ports(files, card)]
    kinds = {_ARPHRD_LOOPBACK: LOOPBACK, _ARPHRD_INFINIBAND: INFINIBAND}
    interfaces: list[Interface] = []
    for path in files.matching(_NET):
        if not files.exists(f"{path}/mtu"):
            continue
        name = path.rpartition("/")[2]
        port = next((port for port in ports if name in port.interfaces), None)
        interfaces.append(
            Interface(
                name,
                kinds.get(files.number(f"{path}/type") or 0, ROCE if port else TCP),
                _speed(files, path) or (port.rate_bits_per_second if port else None),
                files.number(f"{path}/mtu"),
                port.name if port else "",
                up=files.text(f"{path}/operstate")
                in ("up", "unknown"),  # loopback and tunnels are never more
                virtual=not files.exists(f"{path}/device"),
            )
        )
    # InfiniBand works without an interface of IP over it.
    carried = {interface.rdma_device for interface in interfaces}
    interfaces += (
        Interface(
            port.name,
            INFINIBAND if port.layer == "InfiniBand" else ROCE,
            port.rate_bits_per_second,
            None,
            port.name,
            up=port.state.endswith("ACTIVE"),
            virtual=False,
        )
        for port in ports
        if port.name not in carried
    )
    return tuple(sorted(interfaces, key=lambda interface: interface.name))


def _speed(files: Files, path: str) -> float | None:
    """Return bits per second of an interface, None where it has none."""
    # The kernel says -1, or an error, of a link that is down.
    megabits = files.number(f"{path}/speed")
    return megabits * 1e6 if megabits is not None and megabits > 0 else None


def _ports(files: Files, card: str) -> Iterator[_Port]:
    ports = files.matching(f"{card}/ports")
    # Of a card with several ports the interfaces say themselves on which they are: ``dev_port`` and, of older
    # drivers, ``dev_id`` count from 0 on, ports from 1.
    port_of: dict[str, int] = {}
    for path in files.matching(f"{card}/device/net"):
        places = [files.number(f"{path}/{name}") for name in ("dev_port", "dev_id")]
        own = max((place for place in places if place is not None), default=-1)
        port_of[path.rpartition("/")[2]] = own + 1
    for port in ports:
        number = port.rpartition("/")[2]
        rate = _RATE.match(files.text(f"{port}/rate") or "")
        over = {name for name, own in port_of.items() if len(ports) == 1 or f"{own}" == number}
        yield _Port(
            name=f"{card.rpartition('/')[2]}:{number}",
            layer=files.text(f"{port}/link_layer") or "",
            state=files.text(f"{port}/state") or "",
            rate_bits_per_second=float(rate[1]) * 1e9 if rate else None,
            interfaces=frozenset(over),
        )


def read_cards(files: Files) -> tuple[Device, ...]:
    """Return RDMA devices in the order of their numbers, then cards that have interfaces only.

    Each is one PCI function that reaches a network (``bus_id`` is empty on a hypervisor's own bus), called as
    the RDMA device (``mlx5_0``) or else as the interface (``eth0``). Attributes: name, rdma, up, link_layer,
    driver, bytes_per_second (of its ports together), and those of its kind.
    """

    def order(card: Device) -> list[tuple[int, str]]:
        # mlx5_2 before mlx5_10.
        parts = re.split(r"([0-9]+)", card.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    cards: list[Device] = []
    for folder in (_RDMA, _NET):
        places = {card.bus_id: place for place, card in enumerate(cards) if card.bus_id}
        of_folder = (
            _card(files, path, rdma=folder == _RDMA) for path in files.matching(folder)
        )
        for card in sorted(filter(None, of_folder), key=order):
            if card.bus_id not in places:
                cards.append(card)
                continue
            # An interface over an RDMA device is no card of its own.
            rdma = cards[places[card.bus_id]]
            names = [*rdma.attributes.get("interfaces", []), card.name]
            driver = rdma.attributes["driver"] or card.attributes["driver"]
            attributes = {**rdma.attributes, "interfaces": names, "driver": driver}
            cards[places[card.bus_id]] = replace(rdma, attributes=attributes)
    return tuple(cards)


def _card(files: Files, path: str, rdma: bool) -> Device | None:
    """Return the card of an RDMA device or interface; None for one that is only software."""
    # Bridges, bonds and tunnels have no device of their own.
    device = files.target(f"{path}/device")
    if device is None or "/devices/virtual/" in f"{device}{files.target(path)}":
        return None
    addresses = [part for part in device.split("/") if ADDRESS.fullmatch(part)]
    driver = files.target(f"{path}/device/driver")
    name = path.rpartition("/")[2]
    of_kind: dict[str, Any]
    if rdma:
        ports = list(_ports(files, path))
        rate = sum(port.rate_bits_per_second or 0 for port in ports) or None
        states = [port.state for port in ports]
        up = any("ACTIVE" in state for state in states) if any(states) else None
        of_kind = {
            "link_layer": next((port.layer for port in ports if port.layer), None),
            "port_states": [
                state.partition(":")[2].strip().lower() or state for state in states
            ],
            "ports": len(ports),
        }
    else:
        rate, state = _speed(files, path), files.text(f"{path}/operstate")
        up = {"up": True, "down": False}.get(state or "")
        of_kind = {"link_layer": "Ethernet", "operstate": state}
    return Device(
        name,
        DeviceKind.NIC,
        bus_id=normal_address(addresses[-1]) if addresses else "",
        numa_node=files.number(f"{path}/device/numa_node"),
        attributes={
            "name": name,
            "rdma": rdma,
            "bytes_per_second": rate and rate / 8,
            "up": up,
            **of_kind,
            "driver": driver and driver.rpartition("/")[2],
        },
    )


NODES = "/sys/devices/system/node"
Number = TypeVar("Number", int, float)

VENDORS: Mapping[int, str] = {
    NVIDIA: "NVIDIA",
    AMD: "AMD",
    INTEL: "Intel",
    0x19E5: "Huawei",
    0x1DA3: "Habana",
}
"""PCI vendor numbers (the PCI ID Repository, pci-ids.ucw.cz)."""

NVSWITCH_CLASS = 0x068000


def read_sysfs(files: Files) -> Topology:
    """Return the machine whose ``/sys`` and ``/proc`` lie below the root of ``files``.

    Facts: nvswitch_count where it is unknown, hypervisor, product, iommu_types, acs_redirecting (addresses; None
    where that cannot be read).
    """
    functions = read_functions(files)
    graph = _Graph(files, functions)
    graph.add_endpoints(read_cards(files))
    graph.join_processors(files)
    host = read_host(files)
    kinds = {device.kind for device in graph.devices}
    # Signs that traffic between devices takes the way through the root: IOMMU, ACS.
    gpus = [device.bus_id for device in graph.devices if device.kind is DeviceKind.GPU]
    groups = files.matching("/sys/kernel/iommu_groups")
    facts: dict[str, Any] = {
        "hypervisor": host.hypervisor,
        "product": host.product,
        "iommu_types": sorted({files.text(f"{group}/type") or "" for group in groups} - {""}),
        "acs_redirecting": redirecting(bridges_above(functions, gpus)),
    }
    if gpus and DeviceKind.NVSWITCH not in kinds:
        # A VM, and a rack with its switches elsewhere, shows none although the GPUs use them.
        facts["nvswitch_count"] = None
    return Topology(
        name=host.name,
        devices=tuple(graph.devices),
        links=tuple(graph.links),
        source="sysfs",
        warnings=tuple(graph.warnings),
        facts=facts,
    )


class _Graph:
    """Devices and links as they are put together; it begins with the processors.

    cpus: NUMA node with cores -> name.
    """

    def __init__(self, files: Files, functions: Mapping[str, PciFunction]) -> None:
        self.functions = functions
        self.cpus: dict[int, str] = {}
        self.devices: list[Device] = []
        self.links: list[Link] = []
        self.warnings: list[SourceWarning] = []
        self._switches: dict[str, str] = {}
        model = files.fields("/proc/cpuinfo").get("model name")
        folders = {
            int(path.rsplit("node", 1)[1]): path for path in files.matching(NODES, "node[0-9]*")
        }
        for node, folder in sorted(folders.items()):
            cores = files.text(f"{folder}/cpulist")
            if not cores:
                continue  # memory only
            memory = re.search(
                r"MemTotal:\s+([0-9]+) kB", files.text(f"{folder}/meminfo") or ""
            )
            size_bytes = int(memory[1]) * 1024 if memory else None
            attributes = {"cores": cores, "memory_bytes": size_bytes, "model": model}
            self.cpus[node] = f"cpu{node}"
            self.devices.append(
                Device(self.cpus[node], DeviceKind.CPU, numa_node=node, attributes=attributes)
            )
        if not self.cpus:  # kernels without NUMA, and sandboxes
            attributes = {"cores": files.text("/sys/devices/system/cpu/online"), "model": model}
            self.cpus[0] = "cpu0"
            self.devices.append(Device("cpu0", DeviceKind.CPU, attributes=attributes))
        if not functions:
            text = "/sys/bus/pci/devices is empty or hidden: the PCIe tree is unknown"
            self.warnings.append(SourceWarning("not_visible", text))

    def add_endpoints(self, cards: tuple[Device, ...]) -> None:
        """Add GPUs, NVSwitches and network cards, each with its way up to a processor."""
        functions = sorted(self.functions.values(), key=lambda function: function.address)
        gpus = [gpu for gpu in functions if gpu.is_accelerator and not self._shadows(gpu)]
        of_nvidia = (function for function in functions if function.vendor == NVIDIA)
        switches = [switch for switch in of_nvidia if switch.class_code == NVSWITCH_CLASS]
        for kind, chosen in ((DeviceKind.GPU, gpus), (DeviceKind.NVSWITCH, switches)):
            for index, function in enumerate(chosen):
                attributes = {"vendor": VENDORS.get(function.vendor, f"{function.vendor:#06x}")}
                self._add_function(f"{kind.value}{index}", kind, function, attributes)
        # A virtual function next to its own physical one is the same cable again.
        with_functions = [(card, self.functions.get(card.bus_id)) for card in cards]
        kept = [
            pair for pair in with_functions if pair[1] is None or not self._shadows(pair[1])
        ]
        for number, (card, of_card) in enumerate(kept):
            name = f"nic{number}"
            if of_card is not None:
                self._add_function(name, DeviceKind.NIC, of_card, card.attributes)
                continue
            self.devices.append(replace(card, name=name))
            cpu = self.cpu_of(card.numa_node)
            if cpu is None:
                text = (
                    f"{name} ({card.name}) has no PCI address: where it is attached is unknown"
                )
                self.warnings.append(SourceWarning("not_visible", text))
            else:
                origin = "sysfs: on a bus of the hypervisor, rate unknown"
                self.links += Link(name, cpu, LinkKind.PCIE, origin=origin).both_ways()

    def join_processors(self, files: Files) -> None:
        """Add the links between processors, with the kernel's distances."""
        for node, name in self.cpus.items():
            distances = (files.text(f"{NODES}/node{node}/distance") or "").split()
            for position, (peer_node, peer) in enumerate(self.cpus.items()):
                if node != peer_node:
                    # A table of another length is of nodes without processors, too: whose is whose?
                    near = distances[position] if len(distances) == len(self.cpus) else ""
                    attributes = {"distance": int(near)} if near.isdecimal() else {}
                    self.links.append(
                        Link(
                            name,
                            peer,
                            LinkKind.INTER_SOCKET,
                            origin="sysfs",
                            attributes=attributes,
                        )
                    )

    def _shadows(self, function: PciFunction) -> bool:
        """Return True for a virtual function whose physical one (same bus and bridge) is here too."""
        return function.virtual and any(
            not physical.virtual
            and physical.bridges == function.bridges
            and physical.vendor == function.vendor
            for physical in self.functions.values()
        )

    def _add_function(
        self, name: str, kind: DeviceKind, function: PciFunction, attributes: Mapping[str, Any]
    ) -> None:
        # Its own NUMA node; where it has none, that of the nearest bridge above that has one.
        way_up = [self.functions.get(bridge) for bridge in reversed(function.bridges)]
        nodes = [step.numa_node for step in (function, *way_up) if step is not None]
        node = next((near for near in nodes if near is not None and near >= 0), nodes[0])
        everything = {**attributes, "host_bridge": function.host_bridge}
        self.devices.append(Device(name, kind, 0, function.address, node, everything))
        self._attach(name, function, node)

    def cpu_of(self, node: int | None) -> str | None:
        """Return the processor of a NUMA node; the only one where there is but one."""
        if node in self.cpus:
            return self.cpus[node]
        return next(iter(self.cpus.values())) if len(self.cpus) == 1 else None

    def _attach(self, name: str, function: PciFunction, node: int | None) -> None:
        """Link ``name`` upwards: to the switch it hangs below, or to the processor."""
        port = self.functions.get(function.bridges[-1]) if function.bridges else None
        # Ports alternate: root port, then upstream and downstream port of each switch. With an odd number of
        # bridges below the root port the last one is an upstream port without a downstream port to be seen.
        below_root = function.bridges[1:]
        if not below_root:
            parent = self.cpu_of(node)
        else:
            upstream = below_root[-1] if len(below_root) % 2 else below_root[-2]
            parent = self._switches.get(upstream)
            if parent is None:
                parent = self._switches[upstream] = f"pcie{len(self._switches)}"
                switch = self.functions.get(upstream)
                attributes = {"host_bridge": switch.host_bridge if switch else ""}
                self.devices.append(
                    Device(parent, DeviceKind.PCIE_SWITCH, 0, upstream, node, attributes)
                )
                if switch is not None:
                    self._attach(parent, switch, node)
        if parent is None:
            odd = {-1: "-1", None: "not given"}
            seen = odd.get(node, f"{node}, which has no cores")
            text = f"its NUMA node is {seen}: which processor it hangs on is unknown"
            self.warnings.append(
                SourceWarning("not_visible", f"{name} ({function.address}): {text}")
            )
        else:
            self.links.extend(_hop(name, parent, function, port))


def _hop(
    name: str, parent: str, function: PciFunction, port: PciFunction | None
) -> tuple[Link, Link]:
    """Return the link above ``function``, both ways; ``port`` is the other end."""
    current, above = function.current, port.maximum if port else Port(None, None)
    maximum = Port(
        _possible(current.gigatransfers, function.maximum.gigatransfers, above.gigatransfers),
        _possible(current.width, function.maximum.width, above.width),
    )
    attributes = {
        "gigatransfers": current.gigatransfers,
        "width": current.width,
        "max_gigatransfers": maximum.gigatransfers,
        "max_width": maximum.width,
        "device_max_width": function.maximum.width,
        "port_max_gigatransfers": above.gigatransfers,
        "port_max_width": above.width,
    }
    speed, words = current.gigatransfers or maximum.gigatransfers, "as it runs now"
    if function.is_accelerator and maximum.gigatransfers is not None:
        # An idle GPU runs its link at 2.5 GT/s and speeds up with the first copy; it never changes the width.
        speed, words = maximum.gigatransfers, "speed as it can be, width as it is now"
    width = current.width or maximum.width
    rate = bytes_per_second(speed, width)
    origin = (
        f"sysfs: {speed:g} GT/s x{width}, {words}"
        if rate is not None
        else "sysfs: rate not given"
    )
    link = Link(name, parent, LinkKind.PCIE, rate, origin=origin, attributes=attributes)
    return link.both_ways()


def _possible(now: Number | None, device: Number | None, port: Number | None) -> Number | None:
    """Return what both ends can."""
    if device is None or port is None:
        return port if device is None else device
    # A port that could do less than what runs is a hypervisor's invention.
    return device if now is not None and port < now <= device else min(device, port)
