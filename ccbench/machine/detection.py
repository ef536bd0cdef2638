"""Topologies by name: this machine's, from what kernel and NVIDIA driver show, or any other source's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ccbench.errors import MachineError
from ccbench.machine.files import Files
from ccbench.machine.nvlinks import read_driver
from ccbench.machine.sysfs import read_sysfs
from ccbench.topology.classes import topology_class
from ccbench.topology.graph import Device, DeviceKind, Link, Notice, Topology
from ccbench.topology.readers import read_source
from ccbench.units import shown

LARGEST_GRAPH = 4096
"""Vertices of the largest graph that ``composition.compose`` builds."""

BUILT_NODES = 4
"""Machines in the graph of a cluster that is too large for one."""

_FROM_DRIVER = ("nvlinks_per_gpu", "driver", "p2p_matrix", "p2p_write_matrix")


def load_topology(source: str | None = None) -> Topology:
    """The topology that ``source`` names: this machine for None or ``detect``, else see ``read_source``.

    Raises MachineError when there is no such thing, or nothing can be made of it.
    """
    return detect() if source is None or source == "detect" else read_source(source)


def load_cluster(source: str | None, nodes: int, network: str) -> Topology:
    """``nodes`` machines that ``source`` names, joined by ``network`` (such as ib-ndr-400x8).

    Of a cluster that is too large for a graph the first machines are built; the fact ``machines`` and a
    notice say how many there are. Raises MachineError.
    """
    from ccbench.topology.composition import compose
    from ccbench.topology.files import MOST_MACHINES
    from ccbench.topology.node_nics import parse_network

    if nodes > MOST_MACHINES:
        raise MachineError(f"{shown(nodes)} machines are too many; the most is {MOST_MACHINES}")
    wanted = parse_network(network)
    node = load_topology(source)
    # Its own NICs either are those of the network or make room for them.
    inside = sum(device.kind is not DeviceKind.NIC for device in node.devices)
    vertices = nodes * (inside + wanted.nics) + 1
    # A shape joins so many ports and no fewer.
    built = nodes if vertices <= LARGEST_GRAPH or wanted.shape else min(nodes, BUILT_NODES)
    found = compose(node, built, wanted)
    if built == nodes:
        return found
    text = f"the graph holds {built} of {nodes} machines, which are all alike; counts are of all of them"
    return replace(
        found,
        name=found.name.replace(f"{built} x", f"{nodes} x", 1),
        notices=(*found.notices, Notice("unsupported", text)),
        facts={**found.facts, "machines": nodes},
    )


def detect(files: Files | None = None, driver: Topology | None = None) -> Topology:
    """The machine this process runs on; raises nothing, what could not be seen is a notice.

    files: the machine's files, this one's unless given. driver: what ``nvlinks.read_nvml`` gave; asks the
    installed driver unless given.
    """
    return joined(read_sysfs(files or Files()), read_driver() if driver is None else driver)


def joined(kernel: Topology, driver: Topology) -> Topology:
    """One graph from both: GPUs are the same where their PCI addresses are; the driver's order counts.

    A GPU that only one of the two shows is kept, with a notice. Facts of the driver win where both speak.
    """
    if not driver.gpus:
        return _without_driver(kernel, driver)
    kernel_gpus = {gpu.bus_id: gpu for gpu in kernel.gpus if gpu.bus_id}
    shown = {gpu.bus_id for gpu in driver.gpus}
    rest = [gpu for gpu in kernel.gpus if gpu.bus_id not in shown]
    names = {kernel_gpus[gpu.bus_id].name: gpu.name for gpu in driver.gpus if gpu.bus_id in kernel_gpus}
    names |= {gpu.name: f"gpu{len(driver.gpus) + place}" for place, gpu in enumerate(rest)}
    gpus = [_merged(gpu, kernel_gpus.get(gpu.bus_id)) for gpu in driver.gpus]
    gpus += [replace(gpu, name=names[gpu.name]) for gpu in rest]
    switches, switch_names = _switches(kernel, driver)
    others = [one for one in kernel.devices if one.kind not in (DeviceKind.GPU, DeviceKind.NVSWITCH)]
    links = [_renamed(link, {**names, **switch_names[0]}) for link in kernel.links]
    links += [_renamed(link, switch_names[1]) for link in driver.links]
    notices = [*kernel.notices, *driver.notices, *_differences(kernel_gpus, driver, rest, names)]
    found = Topology(
        name=kernel.name,
        devices=(*gpus, *others, *switches),
        links=tuple(links),
        source="this machine: sysfs and the NVIDIA driver",
        notices=tuple(notices),
        facts=_facts(kernel, driver, gpus),
        matrix=driver.matrix,
    )
    return replace(found, topology_class=topology_class(found))


def _without_driver(kernel: Topology, driver: Topology) -> Topology:
    facts = dict(kernel.facts)
    found = replace(
        kernel,
        source="this machine: sysfs",
        notices=(*kernel.notices, *driver.notices),
        facts=facts if kernel.gpus else {**facts, "nvlinks_per_gpu": []},
    )
    found = replace(found, notices=(*found.notices, *_unseen_links(found)))
    return replace(found, topology_class=topology_class(found))


def _unseen_links(found: Topology) -> list[Notice]:
    """That sysfs shows no links between GPUs; what is said of NVLinks already is no word on other makers'."""
    vendors = {gpu.attributes.get("vendor") for gpu in found.gpus}
    if not vendors or (vendors == {"NVIDIA"} and any("NVLink" in notice.text for notice in found.notices)):
        return []
    text = "NVLinks, xGMI and the like cannot be seen in sysfs: how these GPUs are joined is unknown"
    if "AMD" in vendors:
        text += "; rocm-smi --showtopo prints it for AMD's, save that and name the file"
    return [Notice("not_visible", text)]


def _merged(driver: Device, kernel: Device | None) -> Device:
    if kernel is None:
        return driver
    # The kernel's node is that of the slot; -1 and None are replaced by what the driver knows.
    known = driver.numa_node is None or (kernel.numa_node is not None and kernel.numa_node >= 0)
    attributes: Mapping[str, Any] = {**kernel.attributes, **driver.attributes}
    return replace(driver, numa_node=kernel.numa_node if known else driver.numa_node, attributes=attributes)


def _switches(
    kernel: Topology, driver: Topology
) -> tuple[list[Device], tuple[dict[str, str], dict[str, str]]]:
    """NVSwitches of both, and how each side's names are spelled in the joined graph."""
    by_address: dict[str, Device] = {}
    renamed: tuple[dict[str, str], dict[str, str]] = ({}, {})
    devices: list[Device] = []
    for side, names in ((kernel, renamed[0]), (driver, renamed[1])):
        for switch in side.of_kind(DeviceKind.NVSWITCH):
            same = by_address.get(switch.bus_id) if switch.bus_id else None
            if same is None:
                same = replace(switch, name=f"nvswitch{len(devices)}")
                devices.append(same)
                if switch.bus_id:
                    by_address[switch.bus_id] = same
            names[switch.name] = same.name
    return devices, renamed


def _renamed(link: Link, names: Mapping[str, str]) -> Link:
    return replace(
        link, source=names.get(link.source, link.source), target=names.get(link.target, link.target)
    )


def _differences(
    kernel_gpus: Mapping[str, Device], driver: Topology, rest: list[Device], names: Mapping[str, str]
) -> list[Notice]:
    notices = [
        Notice(
            "contradiction",
            f"{gpu.name} ({gpu.bus_id}) is not in sysfs, only the driver shows it: its PCIe path is unknown",
        )
        for gpu in driver.gpus
        if gpu.bus_id not in kernel_gpus
    ]
    return notices + [
        Notice(
            "not_visible",
            f"{names[gpu.name]} ({gpu.bus_id}) is in sysfs, but the NVIDIA driver does not show it to this "
            "process: its NVLinks are unknown",
        )
        for gpu in rest
    ]


def _facts(kernel: Topology, driver: Topology, gpus: list[Device]) -> dict[str, Any]:
    cores = {cpu.numa_node: cpu.attributes.get("cores") for cpu in kernel.of_kind(DeviceKind.CPU)}
    switches = driver.facts.get("nvswitch_count")
    return {
        **kernel.facts,
        **{name: driver.facts[name] for name in _FROM_DRIVER if name in driver.facts},
        "gpu_count": len(gpus),
        "nvswitch_count": kernel.facts.get("nvswitch_count") or switches,
        "numa_affinity": [gpu.numa_node for gpu in gpus],
        "cpu_affinity": [cores.get(gpu.numa_node) for gpu in gpus],
    }
