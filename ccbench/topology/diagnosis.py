"""What is the matter with a machine: each finding says what was seen and what to do.

A problem costs speed for certain; a note may, or may be meant that way. Findings come from what the graph
says, never from what it leaves out: where nobody could look, nothing is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ccbench.topology.classes import is_card, nvlinks_of_model
from ccbench.topology.diagnosis_pcie import pcie_findings
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Finding,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
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


def nvlink_findings(topology: Topology) -> Iterator[Finding]:
    """Problems of NVLinks; silent where the source does not say how many there are."""
    up, down = _counted(topology)
    cards = [gpu for gpu in topology.gpus if is_card(_model(gpu))]
    resting = {gpu.name for gpu in cards if up[gpu.name] == 0}
    broken = [gpu for gpu in topology.gpus if down[gpu.name] and not _rests(gpu, resting, up)]
    if broken:
        seen = ", ".join(f"{gpu.name}: {down[gpu.name]} of {up[gpu.name] + down[gpu.name]}" for gpu in broken)
        yield Finding(
            "problem", "nvlink_down", tuple(gpu.name for gpu in broken), f"NVLinks that are down: {seen}",
            "read nvidia-smi nvlink -e and dmesg for Xid 74; reset the GPU, reseat the bridge or tray",
        )  # fmt: skip
    named = {gpu.name for gpu in broken}
    yield from _missing(topology, up, named | resting)
    bare = [gpu for gpu in cards if down[gpu.name] and gpu.name in resting]
    if bare:
        yield Finding(
            "note", "nvlink_without_bridge", tuple(gpu.name for gpu in bare),
            f"the NVLinks of {len(bare)} cards rest: no bridge is plugged on, or it is not seen",
            "a bridge would carry traffic between a pair of these cards",
        )  # fmt: skip


def _rests(gpu: Device, resting: set[str], up: Counter[str]) -> bool:
    """Whether links that are down are meant to be: cards list more links than a bridge has."""
    expected = nvlinks_of_model(_model(gpu))
    complete = is_card(_model(gpu)) and expected is not None and up[gpu.name] >= expected
    return gpu.name in resting or complete


def _counted(topology: Topology) -> tuple[Counter[str], Counter[str]]:
    """NVLinks that are up and that are down, by GPU; what the source counted where it has no ends."""
    up: Counter[str] = Counter()
    down: Counter[str] = Counter()
    for link in topology.links:
        if link.kind is LinkKind.NVLINK and link.state is not LinkState.NOT_VISIBLE:
            (up if link.state is LinkState.UP else down)[link.source] += link.count
    stated = topology.facts.get("nvlinks_per_gpu")
    if isinstance(stated, list) and len(stated) == len(topology.gpus):
        for gpu, count in zip(topology.gpus, stated, strict=True):
            if isinstance(count, int):
                up[gpu.name] = max(up[gpu.name], count)
    for gpu in topology.gpus:
        resting = gpu.attributes.get("nvlinks_down")
        down[gpu.name] += resting if isinstance(resting, int) else 0
    for gpu in topology.gpus:
        down[gpu.name] = max(down[gpu.name], _faults(topology, gpu))
    return up, down


def _faults(topology: Topology, gpu: Device) -> int:
    """Links of ``gpu`` that a listing of the driver calls inactive, where the graph has no ends for them."""
    faults = topology.facts.get("faults")
    for fault in faults if isinstance(faults, list) else []:
        if isinstance(fault, dict) and fault.get("gpu") in (gpu.attributes.get("name"), gpu.name):
            numbers = fault.get("down")
            if numbers == ["all"]:
                return nvlinks_of_model(_model(gpu)) or 1
            return len(numbers) if isinstance(numbers, list) else 0
    return 0


def _missing(topology: Topology, up: Counter[str], named: set[str]) -> Iterator[Finding]:
    """Fewer than the model has, or than GPUs of the same model have; ``named`` are spoken of already."""
    hidden = {notice.text.partition(":")[0] for notice in topology.notices if notice.kind == "not_visible"}
    # Only a source that counts links is held to its numbers, and only when it is whole.
    if not isinstance(topology.facts.get("nvlinks_per_gpu"), list) or _is_damaged(topology):
        return
    if not any(up.values()) and not _asked(topology):
        return
    groups: dict[str, list[Device]] = {}
    for gpu in topology.gpus:
        groups.setdefault(_model(gpu), []).append(gpu)
    for model, gpus in groups.items():
        if not model and topology.topology_class is TopologyClass.NVLINK_BRIDGE:
            continue  # a source without models: cards beside a bridged pair may have no bridge on
        # Links to GPUs that this source leaves out are missing from its direct links, not from the machine.
        whole = topology.topology_class is TopologyClass.NVSWITCH or _asked(topology)
        expected = nvlinks_of_model(model) if whole and not is_card(model) else None
        most = max(up[gpu.name] for gpu in gpus)
        wanted = max(most, expected or 0)
        unread = _uncounted(topology)
        short = [gpu for gpu in gpus if up[gpu.name] < wanted and gpu.name not in named | hidden | unread]
        if not short:
            continue
        few = sorted({up[gpu.name] for gpu in short})
        counts = " or ".join(str(one) for one in few)
        against = f"a {model} has {expected}" if expected == wanted else f"its siblings have {most}"
        # A source without models shows display cards beside a board's GPUs too.
        bare = not model and few == [0]
        against += ", unless it is another model" if bare else ""
        listed = ", ".join(gpu.name for gpu in short[:8]) + (", ..." if len(short) > 8 else "")
        yield Finding(
            "note" if bare else "problem", "nvlinks_missing", tuple(gpu.name for gpu in short),
            f"{listed}: {counts} NVLinks, where {against}",
            "compare nvidia-smi nvlink -s of the GPUs; collectives fall back to PCIe or to fewer channels",
        )  # fmt: skip


def _uncounted(topology: Topology) -> set[str]:
    """GPUs whose NVLinks the source gives no number of, while it does of others."""
    stated = topology.facts.get("nvlinks_per_gpu")
    if not isinstance(stated, list) or len(stated) != len(topology.gpus):
        return set()
    return {gpu.name for gpu, count in zip(topology.gpus, stated, strict=True) if count is None}


def _is_damaged(topology: Topology) -> bool:
    kinds = ("truncated", "damaged_line", "unknown_spelling")
    return any(notice.kind in kinds for notice in topology.notices)


def _asked(topology: Topology) -> bool:
    """Whether the driver itself was asked for every link."""
    return topology.facts.get("driver") is not None


def _model(gpu: Device) -> str:
    return str(gpu.attributes.get("model") or "")
