"""Findings about places: which NICs are near which GPUs, and files of virtual machines that hide the tree.

Near is PIX or PXB: below a common PCIe switch, so that data reach the NIC without passing a processor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ccbench.findings import Finding
from ccbench.topology.classes import connected_groups, peers_of
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Topology

NEAR = frozenset({"PIX", "PXB"})
"""Labels of paths that stay below a processor."""

VIRTUAL_VENDORS: Mapping[str, str] = {
    "0x1af4": "virtio",
    "0x1b36": "QEMU",
    "0x15ad": "VMware",
    "0x1414": "Hyper-V",
}
"""PCI vendor ids of devices that only hypervisors make (pci.ids: Red Hat's two, VMware, Microsoft)."""

_INTEL = "0x8086"
"""Vendor of the GPUs inside processors, which are on bus 0 of real machines too."""

_LISTED = 8
"""Names of a finding; more are counted."""


def hidden_tree(topology: Topology, gpus: Sequence[Device]) -> Finding | None:
    """Return the note that a hypervisor has hidden the PCIe tree from a file; None where it has not.

    One sign is enough that no real machine shows: NVIDIA's or AMD's GPUs on bus 0, the processor's own, or
    bridges with a hypervisor's vendor id. A file without NUMA nodes, speeds and bridges is one too. What the
    live system says of its hypervisor goes before.
    """
    if not gpus or "hypervisor" in topology.facts:
        return None
    devices, names = topology.by_name, {gpu.name for gpu in gpus}
    pcie = [link for link in topology.links if link.kind is LinkKind.PCIE]
    above = [link for link in pcie if link.source in names]
    upper = [devices[link.target] for link in above]
    bridges = [device for device in upper if device.kind is DeviceKind.PCIE_SWITCH]
    vendors = set(map(_vendor, bridges))
    if bridges and not vendors <= VIRTUAL_VENDORS.keys():
        return None
    signs = [
        f"the bridges above GPUs are {VIRTUAL_VENDORS[vendor]}'s" for vendor in sorted(vendors)
    ]
    in_processor = any(_vendor(gpu) == _INTEL for gpu in gpus)
    if not in_processor and all(gpu.bus_id.split(":")[1:2] == ["00"] for gpu in gpus):
        signs.append("every GPU is on bus 00, a processor's own")
    others = set(map(_vendor, topology.devices)) - vendors
    signs += [
        f"there are {VIRTUAL_VENDORS[vendor]} devices"
        for vendor in sorted(others & VIRTUAL_VENDORS.keys())
    ]
    rateless = above and all(link.bytes_per_second is None for link in above)
    weak_signs = {
        "no bridge is above them": above and not bridges,
        "the NUMA node is -1": all(gpu.numa_node == -1 for gpu in gpus),
        "no link has a speed or width": rateless,
    }
    weak = [words for words, is_so in weak_signs.items() if is_so]
    # Without all three a file may only be written by hand, or of a tool that prints no rates.
    if not signs and (len(weak) < 3 or len(gpus) < 2):
        return None
    return Finding(
        "note",
        "flattened_tree",
        tuple(gpu.name for gpu in gpus),
        f"a virtual machine that hides the PCIe tree: {', '.join([*signs, *weak])}",
        "peer access and which NIC is near which GPU are then the hypervisor's matter (ACS, ATS); give "
        "NCCL the provider's NCCL_TOPO_FILE",
    )


def _vendor(device: Device) -> str:
    return str(device.attributes.get("vendor", "")).lower()


def near_nics(
    labels: Mapping[tuple[str, str], str], gpus: Sequence[Device], nics: Sequence[Device]
) -> Iterator[Finding]:
    """Yield notes of GPUs without a near NIC, NICs near no GPU, and NICs with more GPUs than others.

    Silent where no NIC is near any GPU, or where a path is not visible. labels: paths by (source, target).
    """
    pairs = [(gpu.name, nic.name) for gpu in gpus for nic in nics]
    near = [pair for pair in pairs if labels[pair] in NEAR]
    if not near or any(labels[pair] in ("?", "") for pair in pairs):
        return
    served, serving = {gpu for gpu, _ in near}, {nic for _, nic in near}
    bare = [gpu.name for gpu in gpus if gpu.name not in served]
    if bare:
        yield Finding(
            "note",
            "gpu_without_near_nic",
            tuple(bare),
            f"no NIC is PIX or PXB to {_called(gpus, bare)}, while {len(served)} GPUs have such a NIC",
            "their network traffic passes a processor or another GPU's NIC (NCCL: PXN); look for a NIC that "
            "is missing or down, or count on a lower rate of these GPUs",
        )
    idle = [nic.name for nic in nics if nic.name not in serving]
    if idle:
        yield Finding(
            "note",
            "nic_near_no_gpu",
            tuple(idle),
            f"{_called(nics, idle)}: PIX or PXB to no GPU, while {len(serving)} NICs are near one",
            "if they are for storage or management, leave them out: NCCL_IB_HCA=^<name>",
        )
    order = [device.name for device in (*gpus, *nics)]
    shares: dict[str, float] = {}
    for group in connected_groups(peers_of(order, [*near, *(pair[::-1] for pair in near)])):
        members = group & serving
        if members:
            shares |= dict.fromkeys(members, len(group & served) / len(members))
    crowded = [nic.name for nic in nics if shares.get(nic.name, 0) > min(shares.values())]
    if crowded:
        yield Finding(
            "note",
            "nic_shared_unevenly",
            tuple(crowded),
            f"GPUs for each near NIC: {max(shares.values()):g} at {_called(nics, crowded)}, "
            f"{min(shares.values()):g} at the others",
            "collectives wait for the GPUs with the smallest part of a NIC; spread the NICs evenly, or use "
            "as many GPUs of each switch",
        )


def _called(devices: Sequence[Device], names: Sequence[str]) -> str:
    """The devices with the source's own words for them: ``nic3 (mlx5_3)``."""
    words = {device.name: device.attributes.get("name") for device in devices}
    listed = [
        f"{name} ({words[name]})" if words[name] and words[name] != name.upper() else name
        for name in names[:_LISTED]
    ]
    more = len(names) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more > 0 else "")
