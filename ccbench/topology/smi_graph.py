"""Devices and links out of a ``topo -m`` matrix: the PCIe tree as far as the path names tell it, and NVLinks.

PIX and PXB between a GPU and something else: both hang on PCIe switches, drawn as one switch. PHB and NODE:
the same NUMA node. SYS: different ones. The matrix prints no rates, so no link has any.
"""

from __future__ import annotations

from collections.abc import Iterable

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, TopologyClass
from ccbench.topology.nvlink_class import Verdict
from ccbench.topology.smi_matrix import CPU, GPU_NUMA, NUMA, Matrix
from ccbench.topology.text import ranges

ORIGIN = "nvidia-smi topo -m"
"""Says nothing of rates, so that it stays true where people write them into a saved file."""
_UNDER_A_SWITCH = ("PIX", "PXB")
_IN_A_NODE = ("PIX", "PXB", "PHB", "NODE")


def graph_of(
    matrix: Matrix, verdict: Verdict, notices: list[Notice]
) -> tuple[tuple[Device, ...], tuple[Link, ...]]:
    """The devices (GPUs, NICs, NUMA nodes, switches) and the links between them, both directions."""
    names = {gpu: f"gpu{index}" for index, gpu in enumerate(matrix.gpus)}
    names |= {nic: f"nic{index}" for index, nic in enumerate(matrix.nics)}
    cpu_of, cpus = _cpus(matrix)
    gpus = [
        Device(
            names[gpu],
            DeviceKind.GPU,
            numa_node=cpus[cpu_of[gpu]].numa_node if gpu in cpu_of else None,
            attributes=_gpu_attributes(matrix, gpu),
        )
        for gpu in matrix.gpus
    ]
    nics = [
        Device(
            names[nic],
            DeviceKind.NIC,
            numa_node=cpus[cpu_of[nic]].numa_node if nic in cpu_of else None,
            attributes={"name": matrix.nic_names[nic], "column": nic},
        )
        for nic in matrix.nics
    ]
    switches = _switch_groups(matrix)
    pcie = [Device(f"pcie{index}", DeviceKind.PCIE_SWITCH) for index in range(len(switches))]
    nvswitches = []
    if verdict.topology_class is TopologyClass.NVSWITCH:
        attributes = {"stands_for": "all NVSwitches of the machine"}
        nvswitches = [Device("nvswitch0", DeviceKind.NVSWITCH, attributes=attributes)]
    links = [
        *_nvlinks(matrix, verdict),
        *_tree(switches, cpu_of, names),
        *_between_cpus(matrix, cpu_of),
    ]
    lost = [nic for nic in matrix.nics if nic not in cpu_of]
    if lost and cpus:
        text = f"the NUMA node of {', '.join(lost[:8])}: no GPU is nearer to them than SYS"
        notices.append(Notice("not_visible", text, matrix.line))
    return (*gpus, *cpus.values(), *nvswitches, *pcie, *nics), tuple(links)


def _gpu_attributes(matrix: Matrix, gpu: str) -> dict[str, str]:
    cells = matrix.cells.get(gpu, {})
    keys = (("cpu_affinity", CPU), ("numa_affinity", NUMA), ("gpu_numa_id", GPU_NUMA))
    return {"name": gpu} | {key: cell for key, heading in keys if (cell := cells.get(heading))}


def _cpus(matrix: Matrix) -> tuple[dict[str, str], dict[str, Device]]:
    """GPU or NIC name -> CPU device name, and the CPU devices: one for each NUMA node with a GPU.

    Where the output has no NUMA node, GPUs with the same CPU list share a CPU whose number is not a node's.
    """
    cpu_of: dict[str, str] = {}
    cpus: dict[str, Device] = {}
    numbered = {gpu: _node(matrix, gpu) for gpu in matrix.gpus}
    by_list: dict[str, str] = {}
    for gpu in matrix.gpus:
        node, cores = numbered[gpu], matrix.cells.get(gpu, {}).get(CPU)
        if node is not None:
            name = f"cpu{node}"
        elif not any(known is not None for known in numbered.values()) and cores and ranges(cores):
            name = by_list.setdefault(cores, f"cpu{len(by_list)}")
        else:
            continue
        cpu_of[gpu] = name
        attributes = {"cores": cores} if cores and cores != "N/A" else {}
        cpus.setdefault(name, Device(name, DeviceKind.CPU, numa_node=node, attributes=attributes))
    for nic in matrix.nics:
        for gpu in matrix.gpus:
            if matrix.labels.get((gpu, nic)) in _IN_A_NODE and gpu in cpu_of:
                cpu_of[nic] = cpu_of[gpu]
                break
    return cpu_of, cpus


def _node(matrix: Matrix, gpu: str) -> int | None:
    """The NUMA node with the GPU's cores; None where the cell names none, or several that have cores.

    On Grace the cell lists the CPU's node first, then the empty nodes of its GPUs' memory.
    """
    cells = matrix.cells.get(gpu, {})
    named = ranges(cells.get(NUMA) or "")
    if not named:
        return None
    own_memory = (cells.get(GPU_NUMA) or "").isdigit()
    single = len(named) == 1 and named[0][0] == named[0][1]
    return named[0][0] if single or own_memory else None


def _switch_groups(matrix: Matrix) -> list[list[str]]:
    """Devices under a common PCIe switch, groups with a GPU and something else.

    Two functions of one card are PIX to each other as well; without a GPU they tell of no switch.
    """
    group_of: dict[str, list[str]] = {name: [name] for name in (*matrix.gpus, *matrix.nics)}
    for (one, other), label in matrix.labels.items():
        if label not in _UNDER_A_SWITCH or one not in group_of or other not in group_of:
            continue
        first, second = group_of[one], group_of[other]
        if first is not second:
            small, large = sorted((first, second), key=len)
            large += small
            for name in small:
                group_of[name] = large
    order = {name: index for index, name in enumerate((*matrix.gpus, *matrix.nics))}
    distinct = {id(group): group for group in group_of.values()}.values()
    gpus = set(matrix.gpus)
    found = [
        sorted(group, key=order.__getitem__) for group in distinct if len(group) > 1 and gpus & set(group)
    ]
    return sorted(found, key=lambda group: order[group[0]])


def _nvlinks(matrix: Matrix, verdict: Verdict) -> list[Link]:
    counts = matrix.nvlinks
    if verdict.topology_class is TopologyClass.NVSWITCH:
        links: list[Link] = []
        for gpu, count in enumerate(matrix.nvlinks_per_gpu(TopologyClass.NVSWITCH) or ()):
            if count:
                links += _both(f"gpu{gpu}", "nvswitch0", LinkKind.NVLINK, count)
        return links
    # With the class open these are paths of that many links, with or without switches on the way.
    return [
        Link(f"gpu{gpu}", f"gpu{peer}", LinkKind.NVLINK, count=count, origin=ORIGIN)
        for (gpu, peer), count in sorted(counts.items())
    ]


def _tree(switches: list[list[str]], cpu_of: dict[str, str], names: dict[str, str]) -> list[Link]:
    links: list[Link] = []
    below: set[str] = set()
    for index, group in enumerate(switches):
        for name in group:
            links += _both(names[name], f"pcie{index}", LinkKind.PCIE)
            below.add(name)
        root = next((cpu_of[name] for name in group if name in cpu_of), None)
        if root is not None:
            links += _both(f"pcie{index}", root, LinkKind.PCIE)
    for name, cpu in cpu_of.items():
        if name not in below:
            links += _both(names[name], cpu, LinkKind.PCIE)
    return links


def _between_cpus(matrix: Matrix, cpu_of: dict[str, str]) -> list[Link]:
    """Sockets or NUMA nodes that have a SYS path, or NVLinked GPUs, between them: every pair is linked."""
    cpus: Iterable[str] = dict.fromkeys(cpu_of[gpu] for gpu in matrix.gpus if gpu in cpu_of)
    found = list(cpus)
    return [
        link
        for position, one in enumerate(found)
        for other in found[:position]
        for link in _both(other, one, LinkKind.INTER_SOCKET)
    ]


def _both(one: str, other: str, kind: LinkKind, count: int = 1) -> list[Link]:
    return [
        Link(source, target, kind, count=count, origin=ORIGIN)
        for source, target in ((one, other), (other, one))
    ]
