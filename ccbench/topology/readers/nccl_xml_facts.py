"""What an NCCL or RCCL topology file says about a machine, as facts, and the class that follows from it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ccbench.topology.graph import DeviceKind, TopologyClass
from ccbench.topology.nvlink_shape import class_of_direct_links, connected_groups
from ccbench.topology.readers.nccl_rates import GENERATIONS, pcie_link
from ccbench.topology.readers.nccl_xml_links import Joined
from ccbench.topology.readers.nccl_xml_tree import BRIDGE_CLASSES, GPU_CLASSES, NIC_CLASSES, Tree, whole
from ccbench.topology.xml import Element


def class_of(tree: Tree, nvlinks: Joined, xgmi: Joined, complete: bool) -> tuple[TopologyClass, str]:
    """The class and why; UNKNOWN where the file leaves it open.

    A file without ``<gpu>`` elements is input for NCCL, which asks the driver for NVLinks when it runs:
    that it names none says nothing.
    """
    names = [gpu.name for gpu in tree.gpus]
    if nvlinks.to_switch:
        return TopologyClass.NVSWITCH, "NVLinks end at NVSwitches"
    if xgmi.stated:
        return TopologyClass.XGMI_MESH, "xGMI links between GPUs"
    if not complete:
        return TopologyClass.UNKNOWN, "the file is cut off"
    if nvlinks.missing or xgmi.missing:
        return TopologyClass.UNKNOWN, "links end at GPUs that are not in the file"
    direct = class_of_direct_links(names, nvlinks.stated, nvlinks.to_processor)
    if direct is not None:
        return direct, "NVLinks between GPUs"
    if nvlinks.selves and _one_far_end_each(names, nvlinks):
        return (
            TopologyClass.NVLINK_BRIDGE,
            "all NVLinks of each GPU end at one GPU (wrongly stated as itself)",
        )
    if nvlinks.selves or xgmi.selves:
        return TopologyClass.UNKNOWN, "links are stated to end where they begin"
    if not names or tree.unclear:
        return TopologyClass.UNKNOWN, "which devices are GPUs is not stated"
    if len(names) == 1:
        return TopologyClass.SINGLE_GPU, "one GPU"
    if all(gpu.detail is not None for gpu in tree.gpus):
        return TopologyClass.PCIE, "no GPU has an NVLink or xGMI link"
    return TopologyClass.UNKNOWN, "no <gpu> elements: NVLinks are asked of the driver when NCCL runs"


def _one_far_end_each(names: list[str], nvlinks: Joined) -> bool:
    targets = [nvlinks.targets.get(name, set()) for name in names]
    return len(names) > 1 and nvlinks.selves == len(names) and all(len(ends) == 1 for ends in targets)


def nvswitch_of(tree: Tree, nvlinks: Joined, found: TopologyClass) -> bool | None:
    """Whether there is an NVSwitch; None where the file does not tell."""
    if nvlinks.to_switch:
        return True
    return None if found is TopologyClass.UNKNOWN or any(gpu.detail is None for gpu in tree.gpus) else False


def facts_of(system: Element, tree: Tree, nvlinks: Joined, xgmi: Joined) -> dict[str, Any]:
    """Everything countable; strings where the file prints strings."""
    facts: dict[str, Any] = {
        "root": system.tag,
        "version": system.attributes.get("version"),
        **_devices(tree),
        **_hosts(tree),
        **_pcie(tree),
        "nvlinks_per_gpu": _per_gpu(tree, nvlinks),
        "nvlink_target_classes": list(nvlinks.classes),
        "nvlink_self_targets": nvlinks.selves,
        "gpu_matrix": None,
        **_c2c(tree),
    }
    if xgmi.entries:
        facts["xgmi_links_per_gpu"] = _per_gpu(tree, xgmi)
    for word, joined in (("nvlink", nvlinks), ("xgmi", xgmi)):
        if joined.stated or joined.selves:
            facts.update(_groups(tree, joined, word))
    return facts


def _per_gpu(tree: Tree, joined: Joined) -> list[int] | None:
    return [joined.totals[gpu.name] for gpu in tree.gpus] if joined.entries else None


def _distinct(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


def _devices(tree: Tree) -> dict[str, Any]:
    classes = [pci.attributes.get("class", "").lower() for pci in tree.pcis]
    nics = sum(said.startswith(NIC_CLASSES) for said in classes)
    unstated = sum(not said and bool(pci.named("nic")) for said, pci in zip(classes, tree.pcis, strict=True))
    speeds = {whole(net.attributes.get("speed", "")) for net in tree.nets}
    switches = [device for device in tree.devices if device.kind is DeviceKind.NVSWITCH]
    visible = all(device.attributes.get("visible", True) for device in switches)
    details = [gpu.detail.attributes for gpu in tree.gpus if gpu.detail is not None]
    return {
        "gpu_count": None if tree.unclear and not tree.gpus else len(tree.gpus),
        "gpu_elements": len(details),
        "gpu_class_pci": sum(said.startswith(GPU_CLASSES) for said in classes),
        "nic_count": nics + unstated,
        "nic_class_pci": nics,
        "net_elements": len(tree.nets),
        "net_distinct_names": len({net.attributes.get("name") for net in tree.nets}),
        "net_speeds_mbps": sorted(speed for speed in speeds if speed is not None),
        "bridge_pci": sum(said.startswith(BRIDGE_CLASSES) for said in classes),
        "pci_elements": len(tree.pcis),
        "cpu_count": len(tree.cpus),
        "nvswitch_count": len(switches) if switches and visible else None,
        "sm": _distinct(said["sm"] for said in details if "sm" in said),
    }


def _hosts(tree: Tree) -> dict[str, Any]:
    cpu = tree.cpus[0].attributes if tree.cpus else {}
    numa = [element.attributes.get("numaid", "") for element in tree.cpus]
    nodes = range(len(tree.hosts))
    gpus, nics = [0 for _ in nodes], [0 for _ in nodes]
    for gpu in tree.gpus:
        gpus[gpu.node] += 1
    for device in tree.devices:
        if device.kind is DeviceKind.NIC and str(device.attributes.get("class", "")).startswith(NIC_CLASSES):
            nics[device.node] += 1
    return {
        "hosts": len(tree.hosts),
        "gpu_per_host": gpus[0] if len(set(gpus)) == 1 else gpus,
        "nic_count_per_host": nics[0] if len(set(nics)) == 1 else nics,
        "numa_nodes": numa,
        "numa_node_count": len(set(numa)),
        "cpu": {key: cpu[key] for key in ("arch", "vendor", "familyid", "modelid") if key in cpu},
    }


def _pcie(tree: Tree) -> dict[str, Any]:
    """Speed and width as printed, and the slowest of both that any GPU has."""
    printed = [
        (gpu.pci.attributes.get("link_speed"), gpu.pci.attributes.get("link_width")) for gpu in tree.gpus
    ]
    links = [pcie_link(gpu.pci.attributes) for gpu in tree.gpus]
    speeds = [link.gigatransfers for link in links if link.gigatransfers is not None]
    widths = [link.width for link in links if link.width is not None]
    ids = (gpu.pci.attributes.get("device") for gpu in tree.gpus)
    return {
        "gpu_pci_link": [{"speed": speed, "width": width} for speed, width in _distinct(printed)],
        "gpu_pci_device_ids": _distinct(device for device in ids if device is not None),
        "pcie_gen": GENERATIONS[min(speeds)] if speeds else None,
        "pcie_width": min(widths, default=None),
    }


def _c2c(tree: Tree) -> dict[str, Any]:
    details = [gpu.detail for gpu in tree.gpus if gpu.detail is not None]
    entries = [entry for detail in details for entry in detail.named("c2c")]
    pairs = [
        (whole(entry.attributes.get("bw", "")), whole(entry.attributes.get("count", ""))) for entry in entries
    ]
    sound = [(bw, count) for bw, count in pairs if bw is not None and count is not None]
    if not sound:
        return {}
    bw, count = sound[0]
    return {
        "c2c": {"bw": bw, "count": count, "GBps": bw * count / 1000},
        "c2c_links_per_gpu": [count for _, count in sound],
    }


def _groups(tree: Tree, joined: Joined, word: str) -> dict[str, Any]:
    """GPUs that reach each other over direct links, by their index in the file."""
    index = {gpu.name: number for number, gpu in enumerate(tree.gpus)}
    near: dict[int, set[int]] = {number: set() for number in index.values()}
    for source, target in joined.stated:
        near[index[source]].add(index[target])
        near[index[target]].add(index[source])
    groups = [sorted(group) for group in connected_groups(near)]
    full = all(len(near[number]) == len(group) - 1 for group in groups for number in group)
    symmetric = all(
        joined.stated[target, source] == count for (source, target), count in joined.stated.items()
    )
    return {
        f"{word}_groups": [[str(number) for number in group] for group in groups],
        f"{word}_full_mesh_in_each_group": full,
        f"{word}_symmetric": symmetric,
    }
