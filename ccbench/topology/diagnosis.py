"""Findings about a machine: each says what was seen and what to do.

A problem costs speed for certain; a note may, or may be meant that way. Findings come from what the graph
says, never from what it leaves out: where nobody could look, nothing is found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ccbench.findings import Finding
from ccbench.topology.classes import (
    CUBE_MESH_GPUS,
    RESTART_FABRIC_MANAGER,
    is_card,
    nvlinks_of_model,
)
from ccbench.topology.files import load_catalog
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.locality import hidden_tree, near_nics
from ccbench.topology.matrix import DOWN, NO_PATH, NOT_VISIBLE, path_labels
from ccbench.topology.node_nics import ASSUMED, towards_processors
from ccbench.units import plural, shown

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

_BUSY_STATE = 2
"""P0 to P2 are states a GPU works in; from P3 on it may have slowed its link down (nvml.h, nvmlPstates_t)."""

_SLOWEST = 2.5
"""GT/s of the first generation: what idle links slow down to, and what hypervisors invent."""

_SLOWEST_BYTES_PER_SECOND = 0.25e9
"""One lane of the first generation after coding; NCCL prints it as PCI[0.2]."""

_HOSTS = (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)

_FAR_SLOWER = 4
"""Two generations: below that a hop is found to hold back what is under it."""


def diagnose(topology: Topology) -> tuple[Finding, ...]:
    """Return findings about ``topology``, problems first; empty for a machine that is as it should be.

    Of a cluster each machine's GPUs are looked at, paths to NICs only on the first machine.
    """
    checks: tuple[Callable[[Topology], Iterator[Finding]], ...] = (
        nvlinks,
        pcie_links,
        gpu_settings,
        peer_access,
        isolation,
        nic_paths,
        placement,
    )
    findings = [finding for check in checks for finding in check(topology)]
    return tuple(sorted(findings, key=lambda finding: finding.severity != "problem"))


def _names(devices: Sequence[Device]) -> tuple[str, ...]:
    return tuple(device.name for device in devices)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def gpu_settings(topology: Topology) -> Iterator[Finding]:
    """Yield findings about the NVLink fabric and MIG, as the driver says."""
    bad = [gpu for gpu in topology.gpus if gpu.attributes.get("fabric") not in (None, "ok")]
    if bad:
        states = ", ".join(f"{gpu.name} {gpu.attributes['fabric']}" for gpu in bad)
        yield Finding(
            "problem",
            "fabric_not_ready",
            _names(bad),
            f"NVLink fabric: {states}",
            RESTART_FABRIC_MANAGER,
        )
    split = _names([gpu for gpu in topology.gpus if gpu.attributes.get("mig") is True])
    if split:
        yield Finding(
            "note",
            "mig_enabled",
            split,
            f"MIG is on at {_listed(split)}",
            "instances have no peer access over PCIe or NVLink; for collectives: nvidia-smi -mig 0",
        )


def peer_access(topology: Topology) -> Iterator[Finding]:
    """Yield findings about pairs of GPUs that the driver lets not reach each other."""
    # The driver's own answers are of reading; nvidia-smi's table does not say what it is of.
    driver_access = topology.facts.get("p2p_access", "read")
    for fact, access in (("p2p_matrix", driver_access), ("p2p_write_matrix", "write")):
        if access in ("nvlink", "atomics", "prop"):
            continue  # not having these is no fault: data go between the GPUs without them
        access = access if access in ("read", "write") else "access (which kind is not stated)"
        rows = topology.facts.get(fact)
        rows = (
            [row if isinstance(row, list) else [] for row in rows]
            if isinstance(rows, list)
            else []
        )
        pairs: dict[str, list[tuple[str, str]]] = {}
        for row, words in enumerate(rows):
            for column, word in enumerate(map(str, words)):
                if word in PEER_REASONS:
                    pairs.setdefault(word, []).append((f"gpu{row}", f"gpu{column}"))
        for word, between in pairs.items():
            devices = tuple(dict.fromkeys(name for pair in between for name in pair))
            number = plural(len({frozenset(pair) for pair in between}), "pair")
            # What a registry key disables was somebody's choice; what hardware lacks may be meant so.
            yield Finding(
                {"DR": "problem", "GNS": "note"}.get(word, "doubt"),
                "peer_access",
                devices,
                f"peer {access} is {word} for {number} of GPUs, first "
                f"{between[0][0]} to {between[0][1]}: {PEER_REASONS[word]}",
                "collectives go through the host's memory (NCCL: SHM); check IOMMU, ACS, BIOS and driver, "
                "or count on the lower rate",
            )
        words = {str(word) for row in rows for word in row} - {"X"}
        # Who asks for this table alone asks whether peers reach each other; elsewhere silence is the answer.
        if topology.source.endswith("-p2p") and words == {"OK"}:
            yield Finding(
                "note",
                "peer_access_ok",
                (),
                f"peer {access}: OK for all pairs, says the driver",
                "no proof of a transfer: with IOMMU or ACS copies may still fail or crawl; measure it: ccbench run p2p",
            )


def isolation(topology: Topology) -> Iterator[Finding]:
    """Yield findings about ACS and the IOMMU, which send peer traffic through the root."""
    if len(topology.gpus) + len(topology.of_kind(DeviceKind.NIC)) < 2 or not topology.gpus:
        return
    redirecting, types = map(topology.facts.get, ("acs_redirecting", "iommu_types"))
    if isinstance(redirecting, list) and redirecting:
        yield Finding(
            "problem",
            "acs_redirects",
            _names(topology.gpus),
            f"ACS sends peer traffic through the root at {len(redirecting)} bridges above GPUs: "
            f"{_listed([*map(str, redirecting)])}",
            "switch ACS off in the BIOS, or per bridge: setpci -s <bridge> ECAP_ACS+6.w=0000",
        )
    types = map(str, types if isinstance(types, list) else [])
    translating = [group_type for group_type in types if group_type.startswith("DMA")]
    if translating and not topology.facts.get("hypervisor"):
        yield Finding(
            "note",
            "iommu_translates",
            _names(topology.gpus),
            f"the IOMMU translates: group types {', '.join(translating)}",
            "peer traffic may go through the IOMMU; boot with iommu=pt, or without it where no VM needs it",
        )


def nic_paths(topology: Topology) -> Iterator[Finding]:
    """Yield findings about GPUs far from every NIC, or a machine whose tree a hypervisor has flattened."""
    gpus = [gpu for gpu in topology.gpus if gpu.node == topology.gpus[0].node]
    # Where ccbench itself has put a NIC says nothing about the machine.
    nics = [
        nic
        for nic in topology.of_kind(DeviceKind.NIC)
        if gpus and nic.node == gpus[0].node
        if nic.attributes.get("rdma") is not False and nic.attributes.get("place") != ASSUMED
    ]
    hidden = hidden_tree(topology, gpus)
    if hidden is not None:
        yield hidden
        return
    if not gpus or len(gpus) + len(nics) > MOST_GPUS:
        return
    labels = path_labels(topology, (*gpus, *nics))
    # All devices alike, far from each other, under a hypervisor: the real tree is hidden. Without the
    # hypervisor's sign the same paths may be the board's own: NICs in slots of their own, GPUs that hang on
    # processors of their own (GB200).
    over_pcie = {
        label
        for label in labels.values()
        if not label.startswith(("NV", "XGMI", "HCCS", "C2C", "X"))
    } - {NO_PATH, NOT_VISIBLE, DOWN}
    hypervisor = topology.facts.get("hypervisor")
    one_node = (
        len({gpu.numa_node for gpu in gpus}) == 1 and len(topology.of_kind(DeviceKind.CPU)) <= 1
    )
    if (
        hypervisor
        and len(gpus) > 1
        and one_node
        and over_pcie
        and over_pcie <= {"PHB", "SYS", "NODE"}
    ):
        yield Finding(
            "note",
            "flattened_tree",
            _names(gpus),
            f"hypervisor: {shown(hypervisor)}; every path over PCIe is {' or '.join(sorted(over_pcie))}: "
            "this looks like a VM that hides the PCIe switches",
            "which NIC is near which GPU is hidden; give NCCL the provider's NCCL_TOPO_FILE",
        )
        return
    near = {gpu.name: {labels[gpu.name, nic.name] for nic in nics} for gpu in gpus}
    far = tuple(name for name, paths in near.items() if paths and paths <= {"SYS", "SOC"})
    if far:
        words = " or ".join(sorted(set().union(*(near[name] for name in far))))
        yield Finding(
            "note",
            "gpu_far_from_nics",
            far,
            f"only another processor leads from {_listed(far)} to any NIC ({words})",
            "their network traffic crosses the link between the sockets; move a NIC or use other GPUs",
        )
    # A line that lost or won a cell moves the others into columns of NICs that are not theirs.
    if len(gpus) > 1 and all(warning.kind != "damaged_line" for warning in topology.warnings):
        yield from near_nics(labels, [gpu for gpu in gpus if gpu.name not in far], nics)


def placement(topology: Topology) -> Iterator[Finding]:
    """Yield findings about GPUs without a NUMA node and NICs without an active port."""
    processors = topology.of_kind(DeviceKind.CPU)
    unknown = [gpu for gpu in topology.gpus if gpu.numa_node == -1]
    if unknown and sum(processor.node == unknown[0].node for processor in processors) > 1:
        yield Finding(
            "note",
            "numa_unknown",
            _names(unknown),
            f"the NUMA node of {_listed(_names(unknown))} reads -1 on a machine with {len(processors)} "
            "processors",
            "processes cannot be placed next to them: update the BIOS, or pin by the board's manual",
        )
    down = [
        nic
        for nic in topology.of_kind(DeviceKind.NIC)
        if nic.attributes.get("rdma") is True and nic.attributes.get("up") is False
    ]
    if down:
        called = [(nic.name, nic.attributes.get("name")) for nic in down]
        listed = ", ".join(f"{name} ({word})" if word else name for name, word in called)
        yield Finding(
            "note",
            "nic_down",
            _names(down),
            f"no active port: {listed}",
            "check cable and switch port, and the subnet manager for InfiniBand; NCCL leaves these out",
        )


def nvlinks(topology: Topology) -> Iterator[Finding]:
    """Yield problems of NVLinks; silent where the source does not say how many there are."""
    up, down = _counted(topology)
    cards = {gpu.name for gpu in topology.gpus if is_card(gpu.model)}
    resting = {name for name in cards if up[name] == 0}
    broken = []
    for gpu in topology.gpus:
        # Cards list more links than a bridge has: those beyond it are meant to be down.
        expected = nvlinks_of_model(gpu.model) if gpu.name in cards else None
        complete = expected is not None and up[gpu.name] >= expected
        if down[gpu.name] and gpu.name not in resting and not complete:
            broken.append(gpu.name)
    if broken:
        counts = ", ".join(
            f"{name}: {down[name]} of {up[name] + down[name]}" for name in broken
        )
        yield Finding(
            "problem",
            "nvlink_down",
            tuple(broken),
            f"NVLinks that are down: {counts}",
            "read nvidia-smi nvlink -e and dmesg for Xid 74; reset the GPU, reseat the bridge or tray",
        )
    yield from _missing(topology, up, {*broken, *resting})
    bare = tuple(gpu.name for gpu in topology.gpus if down[gpu.name] and gpu.name in resting)
    if bare:
        yield Finding(
            "note",
            "nvlink_without_bridge",
            bare,
            f"the NVLinks of {len(bare)} cards rest: no bridge is plugged on, or it is not seen",
            "a bridge would carry traffic between a pair of these cards",
        )


def _counted(topology: Topology) -> tuple[Counter[str], Counter[str]]:
    """NVLinks that are up and that are down, by GPU; what the source counted where it has no ends."""
    up, down = (
        topology.link_counts(LinkKind.NVLINK, state) for state in (LinkState.UP, LinkState.DOWN)
    )
    for name, count in (topology.stated_nvlinks or {}).items():
        up[name] = max(up[name], count or 0)
    listed = topology.facts.get("faults")
    # Links that a listing of the driver calls inactive, where the graph has no ends for them.
    inactive = {
        fault.get("gpu"): fault.get("down")
        for fault in reversed(listed if isinstance(listed, list) else [])
        if isinstance(fault, dict)
    }
    for gpu in topology.gpus:
        resting = gpu.attributes.get("nvlinks_down")
        down[gpu.name] += resting if isinstance(resting, int) else 0
        numbers = inactive.get(gpu.attributes.get("name"), inactive.get(gpu.name))
        if numbers == ["all"]:
            down[gpu.name] = max(down[gpu.name], nvlinks_of_model(gpu.model) or 1)
        elif isinstance(numbers, list):
            down[gpu.name] = max(down[gpu.name], len(numbers))
    return up, down


def _missing(topology: Topology, up: Counter[str], named: set[str]) -> Iterator[Finding]:
    """Fewer than the model has, or than GPUs of the same model have; ``named`` are spoken of already."""
    # Only a source that counts links is held to its numbers, and only when it is whole; the driver itself was
    # asked for every link.
    stated = topology.stated_nvlinks
    by_driver = topology.facts.get("driver") is not None
    damage = {"truncated", "damaged_line", "unknown_spelling"} & {
        warning.kind for warning in topology.warnings
    }
    if stated is None or damage or not (any(up.values()) or by_driver):
        return
    hidden = {
        warning.text.partition(":")[0]
        for warning in topology.warnings
        if warning.kind == "not_visible"
    }
    # Of these the source gives no number, while it does of others.
    hidden |= {name for name, count in stated.items() if count is None}
    groups: dict[str, list[Device]] = {}
    for gpu in topology.gpus:
        groups.setdefault(gpu.model, []).append(gpu)
    for model, gpus in groups.items():
        if not model and topology.topology_class is TopologyClass.NVLINK_BRIDGE:
            continue  # a source without models: cards beside a bridged pair may have no bridge on
        # Links to GPUs that this source leaves out are missing from its direct links, not from the machine.
        whole = topology.topology_class is TopologyClass.NVSWITCH or by_driver
        expected = nvlinks_of_model(model) if whole and not is_card(model) else None
        most = max(up[gpu.name] for gpu in gpus)
        complete_count = max(most, expected or 0)
        short = [
            gpu.name
            for gpu in gpus
            if up[gpu.name] < complete_count and gpu.name not in named | hidden
        ]
        if not short or _is_part_of_a_mesh(topology, up):
            continue
        few = sorted({up[name] for name in short})
        against = (
            f"a {model} has {expected}"
            if expected == complete_count
            else f"its siblings have {most}"
        )
        # A source without models shows display cards beside a board's GPUs too.
        bare = not model and few == [0]
        against += ", unless it is another model" if bare else ""
        # A virtual machine that is given one GPU of a board: there is nobody to link to.
        alone = len(topology.gpus) == 1 and few == [0]
        against += "; it is the only GPU here" if alone else ""
        yield Finding(
            "note" if bare or alone else "problem",
            "nvlinks_missing",
            tuple(short),
            f"{_listed(short)}: {' or '.join(map(str, few))} NVLinks, where {against}",
            "nothing, unless this machine should have its host's other GPUs too"
            if alone
            else "compare nvidia-smi nvlink -s of the GPUs; collectives fall back to PCIe or to fewer channels",
        )


def _is_part_of_a_mesh(topology: Topology, up: Counter[str]) -> bool:
    """Whether the GPUs are joined as some of a DGX-1's are, which differ in links to each other by design.

    Virtual machines are such parts (p3.8xlarge: NV1 and NV2 between four V100), as are visible devices.
    """

    size = len(topology.gpus)
    parts = (
        sorted(
            sum(link.count for link in mesh.links if link.source == gpu and link.target in part)
            for gpu in part
        )
        for mesh in map(load_catalog, ("dgx-1v", "dgx-1p"))
        for part in combinations([gpu.name for gpu in mesh.gpus], size)
    )
    return 2 < size < CUBE_MESH_GPUS and sorted(up[gpu.name] for gpu in topology.gpus) in parts


def pcie_links(topology: Topology) -> Iterator[Finding]:
    """Yield findings about PCIe links: narrower or slower than they can be, idle, implausible."""
    devices = topology.by_name
    invented: list[str] = []
    read_by_sysfs = set[str]()
    for link in topology.links:
        lower, upper = devices[link.source], devices[link.target]
        is_upwards = lower.kind is not DeviceKind.CPU and upper.kind in _HOSTS
        if link.kind is not LinkKind.PCIE or not is_upwards:
            continue
        state = _numbers(link)
        if "max_width" in link.attributes:
            read_by_sysfs.add(lower.name)
        # x1 at 2.5 GT/s as the most a bridge above a GPU can: a hypervisor's invention (TI 104c:8232). Where
        # only the rate is printed: that of such a link between a processor and a switch.
        is_switch = lower.kind is DeviceKind.PCIE_SWITCH
        side = "" if is_switch else "port_"
        crawls = is_switch and upper.kind is DeviceKind.CPU
        crawls = crawls and 0 < (link.bytes_per_second or 0) <= _SLOWEST_BYTES_PER_SECOND
        most = state.get(f"{side}max_gigatransfers"), state.get(f"{side}max_width")
        if most == (_SLOWEST, 1) or crawls:
            invented.append(lower.name)
        else:
            yield from _hop(lower, link.target, state)
    slow, hypervisor = _slow_hops(topology)
    invented = list(dict.fromkeys(invented + hypervisor))
    if invented:
        yield Finding(
            "note",
            "virtual_bridge",
            tuple(invented),
            f"the bridge above {', '.join(invented[:8])} says 2.5 GT/s x1 at most: a hypervisor's invention",
            "NCCL believes it (PCI[0.2] in its graph); give it the provider's NCCL_TOPO_FILE",
        )
    yield from slow
    for gpu in topology.gpus:
        if gpu.name in read_by_sysfs:
            continue
        # The driver's figures, where sysfs did not show this hop.
        names = ("pcie_generation", "pcie_width", "pcie_max_generation", "pcie_max_width")
        generation, width, highest, widest = map(_numbers(gpu).get, names)
        yield from _narrow(gpu, gpu.name, width, widest)
        if generation and highest and generation < highest:
            yield _slow(gpu, gpu.name, f"generation {generation} of {highest}")


def _numbers(of: Device | Link) -> dict[str, Any]:
    """The attributes that are numbers: a file that somebody wrote may say anything."""
    return {name: value for name, value in of.attributes.items() if type(value) in (int, float)}


def _narrow(
    lower: Device, where: str, width: float | None, widest: float | None
) -> Iterator[Finding]:
    if width and widest and width < widest:
        yield Finding(
            "problem",
            "pcie_width",
            (lower.name,),
            f"{where}: x{width} of x{widest}; links never get narrower by being idle",
            "reseat the card or cable, look for bent pins and at the BIOS's bifurcation of this slot",
        )


def _hop(lower: Device, upper: str, state: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about the link above ``lower``, of which sysfs says what it does and what it can."""
    yield from _narrow(
        lower, f"{lower.name} to {upper}", state.get("width"), state.get("max_width")
    )
    speed, fastest = state.get("gigatransfers"), state.get("max_gigatransfers")
    if speed and fastest and speed < fastest:
        yield _slow(lower, f"{lower.name} to {upper}", f"{speed:g} of {fastest:g} GT/s")
    own, most = state.get("device_max_width"), state.get("max_width")
    if lower.kind is DeviceKind.GPU and own and most and most < own:
        text = f"{lower.name} can x{own}, its slot only x{most}"
        yield Finding("note", "pcie_slot", (lower.name,), text, "another slot may be wider")


def _slow(lower: Device, where: str, state_text: str) -> Finding:
    state = _numbers(lower).get("performance_state")
    if lower.kind is DeviceKind.GPU and (state is None or state > _BUSY_STATE):
        resting = f"the GPU rests (P{state})" if state is not None else "the GPU may be resting"
        return Finding(
            "note",
            "pcie_idle",
            (lower.name,),
            f"{where}: {state_text}; {resting}, and idle links slow down",
            "look again while it copies; if it stays, treat it as a slow link",
        )
    return Finding(
        "problem",
        "pcie_speed",
        (lower.name,),
        f"{where}: {state_text}",
        "look for link errors (AER in dmesg), an older riser or cable, a speed limit in the BIOS",
    )


def _slow_hops(topology: Topology) -> tuple[list[Finding], list[str]]:
    """Hops above GPUs of a source that states one speed of each (NCCL's files): findings, invented bridges.

    NCCL states the most that both ends of a bridge's link can, and of a GPU the present speed. Only hops that
    hold back a GPU far faster are found: a Gen4 card in a Gen3 box is how such boxes are sold.
    """
    links = (
        link
        for link in topology.links
        if link.kind is LinkKind.PCIE
        and "max_width" not in link.attributes
        and _numbers(link).get("gigatransfers")
        and _numbers(link).get("width")
    )
    above = towards_processors(topology, links)
    slow: dict[tuple[float, int], list[str]] = {}
    invented: list[str] = []
    findings: list[Finding] = []
    for gpu in topology.gpus:
        hop = above.get(gpu.name)
        fastest = hop.attributes["gigatransfers"] if hop is not None else 0.0
        if hop is not None and fastest <= _SLOWEST:
            findings.append(_slow(gpu, f"{gpu.name} to {hop.target}", f"{fastest:g} GT/s"))
        # The hop and those above it, to the CPU or where the source is silent.
        while hop is not None:
            speed, width = hop.attributes["gigatransfers"], hop.attributes["width"]
            if width == 1 and speed <= _SLOWEST:
                invented.append(hop.source)
            elif width == 1 or _FAR_SLOWER * speed <= fastest:
                slow.setdefault((speed, width), []).append(hop.source)
            hop = above.get(hop.target)
    for (speed, width), sources in slow.items():
        names = tuple(dict.fromkeys(sources))
        findings.append(
            Finding(
                "note",
                "pcie_slow_hop",
                names,
                f"{speed:g} GT/s x{width} from {_listed(names)} upwards holds back the GPUs below, "
                "which are far faster",
                "where traffic really takes it, look at the slot, the BIOS and LnkSta of lspci -vv; a port "
                "that only looks slow misleads NCCL: give it a corrected NCCL_TOPO_FILE",
            )
        )
    return findings, invented
