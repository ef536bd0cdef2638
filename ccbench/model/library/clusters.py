"""A library's view of a machine that topology knows as a graph, alone or several of it on a network."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ccbench.errors import MachineError
from ccbench.model.library import Generation, Host, Intra, LibrarySystem, NetworkPorts
from ccbench.model.library.generations import (
    generation_of_capability,
    generations_in,
    host_of,
    nic_port,
    nvlink_rate,
    nvlinks_of,
    pcie_generation,
    pcie_rate,
    xgmi_rate,
)
from ccbench.topology.classes import topology_class
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass, carries
from ccbench.topology.node_nics import Network

_KINDS: dict[Intra, LinkKind] = {
    Intra.NVLINK_MESH: LinkKind.NVLINK,
    Intra.CUBE_MESH: LinkKind.NVLINK,
    Intra.BRIDGE: LinkKind.NVLINK,
    Intra.XGMI: LinkKind.XGMI,
    Intra.HCCS: LinkKind.HCCS,
}

MOST_MESHED = 16
"""GPUs without a switch between them in one node: the dies of eight MI250X, the most there are."""

_PEERLESS = frozenset({"CNS", "GNS", "TNS", "NS", "DR"})
"""What ``nvidia-smi topo -p2p`` prints where data between two GPUs pass through host memory."""

_MULTICASTING = frozenset({Generation.HOPPER, Generation.BLACKWELL})

_VENDORS = {"intel": Host.INTEL, "amd": Host.AMD, "arm": Host.ARM, "aarch64": Host.ARM, "ppc64": Host.POWER}


def library_system(
    topology: Topology, nodes: int = 1, network: Network | None = None, ranks: int | None = None
) -> LibrarySystem:
    """``nodes`` machines like ``topology``, one rank on each GPU, the first ``ranks`` of all.

    A topology of several machines counts as it is: its number of machines is the number of nodes. The rate
    of a GPU is that of the GPU, or group of GPUs of a mesh, with the least. Without ``network``, several
    nodes use the topology's NICs.
    Raises MachineError where it has no GPUs, where nobody could look what joins them, or where a rate that
    is needed is in no source.
    """
    gpus = topology.gpus
    if not gpus:
        raise MachineError(f"{topology.name}: has no GPUs, so there is no GPU library to model")
    nodes, gpus = _machines(topology, nodes, gpus)
    per_node = _per_node(topology.name, len(gpus), nodes, ranks)
    taking_part = gpus[:per_node]
    generation, generation_origin = _generation(topology, taking_part)
    kind = _intra(topology, taking_part)
    rate, links, origin = _rate(topology, taking_part, kind, generation)
    ports, network_origin = _ports(topology, nodes, network)
    host, host_origin = _host(topology, generation, kind)
    port, port_origin = _nic_port(topology, taking_part, generation)
    return LibrarySystem(
        name=topology.name,
        generation=generation,
        ranks_per_node=per_node,
        nodes=nodes,
        intra=kind,
        intra_bytes_per_second=rate,
        links_per_gpu=links,
        multicast=kind is Intra.NVSWITCH and generation in _MULTICASTING,
        network=ports,
        host=host,
        origins={
            "generation": generation_origin,
            "intra": origin,
            "network": network_origin,
            "host": host_origin,
            "gpu_port": port_origin,
        },
        gpu_port_bytes_per_second=port,
    )


def _machines(topology: Topology, nodes: int, gpus: Sequence[Device]) -> tuple[int, tuple[Device, ...]]:
    """Number of nodes, and the GPUs of the first."""
    of_node: dict[int, list[Device]] = {}
    for gpu in gpus:
        of_node.setdefault(gpu.node, []).append(gpu)
    first = tuple(of_node[min(of_node)])
    if len(of_node) == 1:
        return nodes, first
    if nodes not in (1, len(of_node)):
        raise MachineError(
            f"{topology.name}: is {len(of_node)} machines already; leave the number of nodes out"
        )
    if any(len(others) != len(first) for others in of_node.values()):
        raise MachineError(f"{topology.name}: its machines have different numbers of GPUs; model one of them")
    return len(of_node), first


def _per_node(name: str, gpus: int, nodes: int, ranks: int | None) -> int:
    if nodes < 1 or (ranks is not None and ranks < 1):
        raise MachineError(f"{name}: {ranks} ranks on {nodes} nodes; give at least one of each")
    if ranks is None:
        return gpus
    if ranks % nodes or ranks // nodes > gpus:
        raise MachineError(
            f"{name}: {ranks} ranks do not spread evenly over {nodes} nodes of {gpus} GPUs; give up to "
            f"{gpus * nodes}, a multiple of {nodes}"
        )
    return ranks // nodes


def _generation(topology: Topology, gpus: Sequence[Device]) -> tuple[Generation, str]:
    model = _model(topology, gpus)
    named = generations_in(model)
    if named:
        return named[0], f"named: {model}"
    capability = _capability(topology, gpus[0])
    if capability is not None:
        return generation_of_capability(capability), f"compute capability {capability / 10:g}"
    return Generation.UNKNOWN, "the source does not say which GPUs these are"


def _model(topology: Topology, gpus: Sequence[Device]) -> str:
    """What the sources call the GPUs: their models, or their architectures where those are named."""
    words = [gpus[0].attributes.get(key) for key in ("model", "gcn", "architecture")]
    words.append(topology.facts.get("gpu_model"))
    known = [str(word) for word in words if isinstance(word, str) and word]
    return f"gfx{known[0]}" if known and known[0][:2] in ("90", "94", "95") else " ".join(known[:1])


def _capability(topology: Topology, gpu: Device) -> int | None:
    said: Any = gpu.attributes.get("compute_capability")
    if isinstance(said, (list, tuple)) and len(said) == 2 and all(isinstance(part, int) for part in said):
        return int(said[0]) * 10 + int(said[1])
    said = gpu.attributes.get("sm", topology.facts.get("sm"))
    text = str(said[0] if isinstance(said, list) and said else said)
    return int(text) if text.isdecimal() and len(text) <= 4 else None


def _intra(topology: Topology, gpus: Sequence[Device]) -> Intra:
    if len(gpus) == 1:
        return Intra.NONE
    found = topology_class(topology)
    if found is TopologyClass.UNKNOWN:
        found = topology.topology_class
    if found in (TopologyClass.UNKNOWN, TopologyClass.SINGLE_GPU):
        raise MachineError(
            f"{topology.name}: the source does not show what joins its {len(gpus)} GPUs; name a machine of "
            "the catalog, or a dump that shows NVLinks and PCIe"
        )
    kind = Intra(found.value)
    if kind is Intra.BRIDGE and not _all_joined(topology, gpus):
        kind = Intra.PCIE  # a ring through all pairs crosses PCIe, its slowest link
    return Intra.HOST if kind is Intra.PCIE and _without_peers(topology, len(gpus)) else kind


def _all_joined(topology: Topology, gpus: Sequence[Device]) -> bool:
    names = {gpu.name for gpu in gpus}
    reached, waiting = {gpus[0].name}, [gpus[0].name]
    while waiting:
        here = waiting.pop()
        onward = {
            link.target for link in _up(topology) if link.source == here and link.kind is LinkKind.NVLINK
        }
        waiting += (onward & names) - reached
        reached |= onward & names
    return reached == names


def _without_peers(topology: Topology, gpus: int) -> bool:
    if topology.facts.get("peer_access") is False:
        return True
    rows = topology.facts.get("p2p_matrix")
    if not isinstance(rows, list):
        return False
    return any(word in _PEERLESS for row in rows[:gpus] if isinstance(row, list) for word in row[:gpus])


def _up(topology: Topology) -> list[Link]:
    return [link for link in topology.links if carries(link)]


def _rate(
    topology: Topology, gpus: Sequence[Device], kind: Intra, generation: Generation
) -> tuple[float, int, str]:
    """Nominal bytes per second out of the GPU with the least, its links, and where that is from."""
    if kind is Intra.NONE:
        return 0.0, 0, "one GPU a node"
    model = _model(topology, gpus)
    egress = [_egress(topology, gpu, gpus, kind) for gpu in gpus]
    links = min(sum(link.count for link in found) for found in egress)
    # A ring waits for its slowest GPU.
    rates = [[link.bytes_per_second for link in found] for found in egress]
    if links and all(rate is not None for found in rates for rate in found):
        slowest = min(sum(rate for rate in found if rate is not None) for found in rates)
        if kind in _KINDS:
            # Groups that nothing joins are refused where their routes are asked for, by name.
            slowest = min(slowest, _narrowest(gpus, egress) or slowest)
        return (
            slowest,
            links,
            next((link.origin for link in egress[0] if link.origin), "stated by the source"),
        )
    return _assumed(topology.name, model, generation, kind, links, len(gpus))


def _narrowest(gpus: Sequence[Device], egress: Sequence[Sequence[Link]]) -> float:
    """Bytes per second out of the group of GPUs that has the least: a ring leaves every group once.

    Every group is looked at; infinite for more GPUs than were ever joined without switches.
    """
    if len(gpus) > MOST_MESHED:
        return math.inf
    place = {gpu.name: rank for rank, gpu in enumerate(gpus)}
    rates = np.zeros((len(gpus), len(gpus)))
    for link in (link for found in egress for link in found):
        rates[place[link.source], place[link.target]] += link.bytes_per_second or 0.0
    # Row g of the matrix is a group as bits; rates out of it are those to GPUs that are not in it.
    groups = (np.arange(1, 2 ** len(gpus) - 1)[:, None] >> np.arange(len(gpus))) & 1
    return float(((groups @ rates) * (1 - groups)).sum(axis=1).min())


def _egress(topology: Topology, gpu: Device, gpus: Sequence[Device], kind: Intra) -> list[Link]:
    own = [link for link in _up(topology) if link.source == gpu.name and link.target != gpu.name]
    if kind is Intra.NVSWITCH:
        switches = {device.name for device in topology.of_kind(DeviceKind.NVSWITCH)}
        return [link for link in own if link.target in switches]
    if kind in (Intra.PCIE, Intra.HOST):
        upward = {
            device.name
            for device in topology.devices
            if device.kind in (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)
        }
        return [link for link in own if link.kind is LinkKind.PCIE and link.target in upward][:1]
    names = {other.name for other in gpus}
    return [link for link in own if link.target in names and link.kind is _KINDS[kind]]


def _assumed(
    name: str, model: str, generation: Generation, kind: Intra, links: int, gpus: int
) -> tuple[float, int, str]:
    if kind in (Intra.PCIE, Intra.HOST):
        number = pcie_generation(generation)
        rate = None if number is None else pcie_rate(number)
        if rate is not None:
            return rate, 1, f"assumed: PCIe {number} x16, the port of {generation.value} cards"
    elif kind is Intra.XGMI:
        link = xgmi_rate(model, generation)
        if link is not None:
            count = links or gpus - 1
            return link[0] * count, count, f"{count} links of {link[0] / 1e9:g} GB/s; {link[1]}"
    else:
        per_link, count = nvlink_rate(generation, model), links or nvlinks_of(model) or 0
        if per_link is not None and count and kind is not Intra.HCCS:
            return per_link * count, count, f"assumed: {count} links of {per_link / 1e9:g} GB/s ({model})"
    raise MachineError(
        f"{name}: neither the source nor the GPUs' model says how fast {kind.value} is here; name a machine "
        "of the catalog, such as hgx-h100"
    )


def _ports(topology: Topology, nodes: int, network: Network | None) -> tuple[NetworkPorts | None, str]:
    if network is not None:
        return NetworkPorts(network.word, network.bytes_per_second, network.nics), f"given: {network}"
    if nodes == 1:
        return None, "one node"
    node = topology.gpus[0].node
    nics = [nic for nic in topology.of_kind(DeviceKind.NIC) if nic.node == node]
    rates = [nic.attributes.get("bytes_per_second") for nic in nics]
    known = [float(rate) for rate in rates if isinstance(rate, (int, float)) and rate > 0]
    if not known or len(known) < len(nics):
        raise MachineError(
            f"{topology.name}: {nodes} nodes, and the rates of its NICs are not known; name a network, such "
            "as ib-ndr-400x8"
        )
    return NetworkPorts(_word(topology, nics), min(known), len(nics)), "the NICs that the source shows"


def _nic_port(topology: Topology, gpus: Sequence[Device], generation: Generation) -> tuple[float, str]:
    """What the source states of the GPUs' PCIe ports, the slowest counting; else their generation's."""
    names = {gpu.name for gpu in gpus}
    own = [link for link in _up(topology) if link.source in names]
    if any(link.kind is LinkKind.C2C for link in own):
        return math.inf, "not limited: the GPU reaches NICs over C2C"
    ports = [link for link in own if link.kind is LinkKind.PCIE and link.target not in names]
    rates = [link.bytes_per_second for link in ports]
    known = [rate for rate in rates if rate is not None]
    if {link.source for link in ports} == names and len(known) == len(rates):
        return min(known), ports[0].origin or "the PCIe ports that the source states"
    return nic_port(generation, _model(topology, gpus))


def _word(topology: Topology, nics: Sequence[Device]) -> str:
    """The kind of the NICs' links into the network, or what their ports say."""
    words = {LinkKind.INFINIBAND: "ib", LinkKind.ROCE: "roce", LinkKind.EFA: "efa", LinkKind.ETHERNET: "tcp"}
    names = {nic.name for nic in nics}
    for link in topology.links:
        if link.source in names and link.kind in words:
            return words[link.kind]
    if nics[0].attributes.get("link_layer") == "InfiniBand":
        return "ib"
    return "roce" if nics[0].attributes.get("rdma") else "tcp"


def _host(topology: Topology, generation: Generation, kind: Intra) -> tuple[Host, str]:
    said: list[Any] = [topology.facts.get("cpu")]
    said += [cpu.attributes for cpu in topology.of_kind(DeviceKind.CPU)]
    for facts in said:
        words = " ".join(map(str, facts.values())).lower() if isinstance(facts, Mapping) else ""
        for word, host in _VENDORS.items():
            if word in words:
                return host, "stated by the source"
    model = _model(topology, topology.gpus)
    text = f"{topology.name} {topology.facts.get('description', '')} {model}"
    return host_of(text, generation, kind is Intra.NVSWITCH)
