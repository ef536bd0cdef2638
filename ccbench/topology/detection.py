"""This machine: what the kernel shows and what the NVIDIA driver says, joined into one graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ccbench.topology.classes import topology_class
from ccbench.topology.graph import Device, DeviceKind, Link, Notice, Topology
from ccbench.topology.pci_tree import DeviceFiles
from ccbench.topology.sysfs import read_sysfs

_FROM_DRIVER = ("nvlinks_per_gpu", "driver", "p2p_matrix", "p2p_write_matrix")


def detect(files: DeviceFiles | None = None, driver: Topology | None = None) -> Topology:
    """The machine this process runs on; raises nothing, what could not be seen is a notice.

    files: the machine's files, this one's unless given. driver: what ``nvml.read_nvml`` gave; asks the
    installed driver unless given.
    """
    if driver is None:
        from ccbench.topology.nvml import read_driver

        driver = read_driver()
    return joined(read_sysfs(files or DeviceFiles()), driver)


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
