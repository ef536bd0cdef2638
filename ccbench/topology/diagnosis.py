"""What is the matter with a machine: each finding says what was seen and what to do.

A problem costs speed for certain; a note may, or may be meant that way. Findings come from what the graph
says, never from what it leaves out: where nobody could look, nothing is found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ccbench.topology.diagnosis_nvlink import nvlink_findings
from ccbench.topology.diagnosis_pcie import pcie_findings
from ccbench.topology.graph import Device, DeviceKind, Finding, Topology
from ccbench.topology.matrix import DOWN, NO_PATH, NOT_VISIBLE, path_labels
from ccbench.topology.node_nics import ASSUMED
from ccbench.units import shown

MOST_GPUS = 128
"""Paths between every GPU and NIC are worked out up to here; a cluster is looked at by its first machine."""

PEER_REASONS = {
    "CNS": "the chipset is not supported, says the driver",
    "GNS": "the GPUs are not supported, says the driver, as it does of most GeForce cards",
    "TNS": "the topology is not supported, says the driver, as it may of GPUs below different processors",
    "DR": "a registry key of the driver disables it",
    "NS": "not supported, says the driver without a reason",
    "U": "the driver does not know",
}
"""nvmlGpuP2PStatus_t of nvml.h, in words."""

_DIRECT = ("NV", "XGMI", "HCCS", "C2C", "X")
_NO_PATHS = {NO_PATH, NOT_VISIBLE, DOWN}


def diagnose(topology: Topology) -> tuple[Finding, ...]:
    """Findings about ``topology``, problems first; empty for a machine that is as it should be.

    Of a cluster each machine's GPUs are looked at, paths to NICs only on the first machine.
    """
    checks: tuple[Callable[[Topology], Iterator[Finding]], ...] = (
        nvlink_findings,
        pcie_findings,
        _fabric,
        _mig,
        _peers,
        _isolation,
        _paths,
        _numa,
        _ports,
    )
    found = [finding for check in checks for finding in check(topology)]
    return tuple(sorted(found, key=lambda finding: finding.severity != "problem"))


def _fabric(topology: Topology) -> Iterator[Finding]:
    bad = [gpu for gpu in topology.gpus if gpu.attributes.get("fabric") not in (None, "ok")]
    if bad:
        seen = ", ".join(f"{gpu.name} {gpu.attributes['fabric']}" for gpu in bad)
        yield Finding(
            "problem", "fabric_not_ready", _names(bad), f"NVLink fabric: {seen}",
            "restart the fabric manager (systemctl restart nvidia-fabricmanager) and read its log",
        )  # fmt: skip


def _mig(topology: Topology) -> Iterator[Finding]:
    split = [gpu for gpu in topology.gpus if gpu.attributes.get("mig") is True]
    if split:
        yield Finding(
            "problem", "mig_enabled", _names(split), f"MIG is on at {_listed(split)}",
            "instances have no peer access over PCIe or NVLink; for collectives: nvidia-smi -mig 0",
        )  # fmt: skip


def _peers(topology: Topology) -> Iterator[Finding]:
    # The driver's own answers are of reading; nvidia-smi's table does not say what it is of.
    asked = topology.facts.get("p2p_access", "read")
    for fact, access in (("p2p_matrix", asked), ("p2p_write_matrix", "write")):
        if access in ("nvlink", "atomics", "prop"):
            continue  # not having these is no fault: data go between the GPUs without them
        access = access if access in ("read", "write") else "access (which kind is not stated)"
        pairs: dict[str, list[tuple[str, str]]] = {}
        rows = topology.facts.get(fact)
        for row, words in enumerate(rows if isinstance(rows, list) else []):
            for column, word in enumerate(words if isinstance(words, list) else []):
                if word in PEER_REASONS:
                    pairs.setdefault(word, []).append((f"gpu{row}", f"gpu{column}"))
        for word, between in pairs.items():
            devices = tuple(dict.fromkeys(name for pair in between for name in pair))
            number = len({frozenset(pair) for pair in between})
            yield Finding(
                "problem", "peer_access", devices,
                f"peer {access} is {word} for {number} pair{'' if number == 1 else 's'} of GPUs, first "
                f"{between[0][0]} to {between[0][1]}: {PEER_REASONS[word]}",
                "collectives go through the host's memory (NCCL: SHM); check IOMMU, ACS, BIOS and driver, "
                "or count on the lower rate",
            )  # fmt: skip


def _isolation(topology: Topology) -> Iterator[Finding]:
    if len(topology.gpus) + len(topology.of_kind(DeviceKind.NIC)) < 2 or not topology.gpus:
        return
    redirecting = topology.facts.get("acs_redirecting") or []
    if redirecting:
        listed = ", ".join(map(str, redirecting[:4])) + (", ..." if len(redirecting) > 4 else "")
        yield Finding(
            "problem", "acs_redirects", _names(topology.gpus),
            f"ACS sends peer traffic through the root at {len(redirecting)} bridges above GPUs: {listed}",
            "switch ACS off in the BIOS, or per bridge: setpci -s <bridge> ECAP_ACS+6.w=0000",
        )  # fmt: skip
    translating = [one for one in topology.facts.get("iommu_types") or [] if str(one).startswith("DMA")]
    if translating and not topology.facts.get("hypervisor"):
        yield Finding(
            "note", "iommu_translates", _names(topology.gpus),
            f"the IOMMU translates: group types {', '.join(map(str, translating))}",
            "peer traffic may go through the IOMMU; boot with iommu=pt, or without it where no VM needs it",
        )  # fmt: skip


def _paths(topology: Topology) -> Iterator[Finding]:
    """GPUs far from every NIC; a machine whose tree a hypervisor has flattened."""
    gpus = [gpu for gpu in topology.gpus if gpu.node == topology.gpus[0].node]
    nics = [nic for nic in topology.of_kind(DeviceKind.NIC) if gpus and nic.node == gpus[0].node]
    fast = [
        nic
        for nic in nics
        # Where ccbench itself has put a NIC says nothing about the machine.
        if nic.attributes.get("rdma") is not False and nic.attributes.get("place") != ASSUMED
    ]
    if not gpus or len(gpus) + len(fast) > MOST_GPUS:
        return
    labels = path_labels(topology, (*gpus, *fast))
    flattened = _flattened(topology, gpus, fast, labels)
    if flattened is not None:
        yield flattened
        return
    near = {gpu.name: {labels[(gpu.name, nic.name)] for nic in fast} for gpu in gpus}
    far = [gpu for gpu in gpus if near[gpu.name] and near[gpu.name] <= {"SYS", "SOC"}]
    if far:
        yield Finding(
            "note", "gpu_far_from_nics", _names(far),
            f"only another processor leads from {_listed(far)} to any NIC "
            f"({' or '.join(sorted(set().union(*(near[gpu.name] for gpu in far))))})",
            "their network traffic crosses the link between the sockets; move a NIC or use other GPUs",
        )  # fmt: skip


def _flattened(
    topology: Topology, gpus: list[Device], nics: list[Device], labels: dict[tuple[str, str], str]
) -> Finding | None:
    """All devices alike, far from each other, under a hypervisor: the real tree is hidden.

    Without the hypervisor's sign the same paths may be the board's own: NICs in slots of their own, GPUs
    that hang on processors of their own (GB200).
    """
    hypervisor = topology.facts.get("hypervisor")
    if not hypervisor or len(gpus) < 2:
        return None
    ends = [gpu.name for gpu in gpus]
    between = {labels[(one, other)] for one in ends for other in ends if one != other}
    outside = {labels[(one.name, nic.name)] for one in (*gpus, *nics) for nic in nics if one is not nic}
    over_pcie = {label for label in between | outside if not label.startswith(_DIRECT)} - _NO_PATHS
    nodes = {gpu.numa_node for gpu in gpus}
    one_node = len(nodes) == 1 and len(topology.of_kind(DeviceKind.CPU)) <= 1
    if not one_node or not over_pcie or not over_pcie <= {"PHB", "SYS", "NODE"}:
        return None
    return Finding(
        "note", "flattened_tree", tuple(ends),
        f"hypervisor: {shown(hypervisor)}; every path over PCIe is {' or '.join(sorted(over_pcie))}: "
        "this looks like a VM that hides the PCIe switches",
        "which NIC is near which GPU is hidden; give NCCL the provider's NCCL_TOPO_FILE",
    )  # fmt: skip


def _numa(topology: Topology) -> Iterator[Finding]:
    processors = topology.of_kind(DeviceKind.CPU)
    unknown = [gpu for gpu in topology.gpus if gpu.numa_node == -1]
    if unknown and len([one for one in processors if one.node == unknown[0].node]) > 1:
        yield Finding(
            "note", "numa_unknown", _names(unknown),
            f"the NUMA node of {_listed(unknown)} reads -1 on a machine with {len(processors)} processors",
            "processes cannot be placed next to them: update the BIOS, or pin by the board's manual",
        )  # fmt: skip


def _ports(topology: Topology) -> Iterator[Finding]:
    down = [
        nic
        for nic in topology.of_kind(DeviceKind.NIC)
        if nic.attributes.get("rdma") is True and nic.attributes.get("up") is False
    ]
    if down:
        called = {nic.name: nic.attributes.get("name") for nic in down}
        listed = ", ".join(f"{name} ({word})" if word else name for name, word in called.items())
        yield Finding(
            "note", "nic_down", _names(down), f"no active port: {listed}",
            "check cable and switch port, and the subnet manager for InfiniBand; NCCL leaves these out",
        )  # fmt: skip


def _names(devices: list[Device] | tuple[Device, ...]) -> tuple[str, ...]:
    return tuple(device.name for device in devices)


def _listed(devices: list[Device]) -> str:
    names = [device.name for device in devices]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
