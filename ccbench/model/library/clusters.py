"""A library's view of a machine that topology knows as a graph, alone or several of it on a network.

What the name of an accelerator says to the model (its generation, its NVLinks, its PCIe port) is in
``generations.yaml``, with sources; rates of links, and links of boards, are topology's. The words that name a
box also say which processors it has. Their family decides how fast a proxy thread's flags travel, and which
row of NCCL's tables counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ccbench.documents import read_installed
from ccbench.errors import MachineError
from ccbench.model.library import (
    Generation,
    HostProcessor,
    Intra,
    LibrarySystem,
    NetworkPorts,
    PciePath,
)
from ccbench.model.library.constants import FOLDER
from ccbench.model.library.paths import pcie_path
from ccbench.topology.classes import (
    OF_CAPABILITY,
    XGMI,
    connected_groups,
    nvlinks_of_model,
    peers_of,
    topology_class,
)
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology, TopologyClass
from ccbench.topology.node_nics import Network
from ccbench.topology.pci import CODING, GENERATIONS
from ccbench.topology.words import said_and_denied

WORDS: dict[str, Any] = read_installed(FOLDER / "generations.yaml")
ROWS: dict[Generation, dict[str, Any]] = {
    Generation(name): row for name, row in WORDS["generations"].items()
}

_AFTER_A_NAME = r"(?=SXM|PCIE|[^A-Z0-9]|$)"
"""A form factor glued to it, or its end: A100 is no A10, and p4d is no P4."""

_AMPERE_BOARDS = re.compile(r"A100|A800|A30(?![0-9])", re.IGNORECASE)
"""Ampere's other GPUs have the NVLinks of graphics cards (GA102 whitepaper)."""

DIRECT_LINKS: dict[Intra, LinkKind] = {
    Intra.NVLINK_MESH: LinkKind.NVLINK,
    Intra.CUBE_MESH: LinkKind.NVLINK,
    Intra.BRIDGE: LinkKind.NVLINK,
    Intra.XGMI: LinkKind.XGMI,
    Intra.HCCS: LinkKind.HCCS,
}
"""Kinds of links that join GPUs without a switch."""

MOST_MESHED = 16
"""GPUs without a switch between them in one node: the dies of eight MI250X, the most there are."""

_MULTICASTING = frozenset({Generation.HOPPER, Generation.BLACKWELL})

_VENDORS = {
    "intel": HostProcessor.INTEL,
    "amd": HostProcessor.AMD,
    "arm": HostProcessor.ARM,
    "aarch64": HostProcessor.ARM,
    "ppc64": HostProcessor.POWER,
}

_NETWORK_WORDS = {
    LinkKind.INFINIBAND: "ib",
    LinkKind.ROCE: "roce",
    LinkKind.EFA: "efa",
    LinkKind.ETHERNET: "tcp",
}


def generations_in(words: str) -> tuple[Generation, ...]:
    """Every generation that the words name, oldest first; empty where they name none that is known."""
    # Names end at a word's end: A100 is no A10, and p4d.24xlarge is no P4.
    upper = said_and_denied(words)[0].upper()
    return tuple(
        generation
        for generation, row in ROWS.items()
        if re.search(rf"(?<![A-Z0-9])(?:{row['names']}){_AFTER_A_NAME}", upper)
    )


def generation_of_capability(capability: int) -> Generation:
    """Of a compute capability x 10, such as 90; UNKNOWN below the first that is known."""
    lowest = {
        row["capability"]: generation for generation, row in ROWS.items() if "capability" in row
    }
    reached = [bound for bound in lowest if bound <= capability]
    return lowest[max(reached)] if reached else Generation.UNKNOWN


def nvlink_rate(generation: Generation, model: str) -> float | None:
    """Bytes per second of one NVLink in one direction; None for what has none."""
    if generation is Generation.AMPERE and not _AMPERE_BOARDS.search(model):
        return OF_CAPABILITY[86]
    row = ROWS.get(generation, {})
    return OF_CAPABILITY[row["capability"]] if row.get("nvlink") else None


def nvlinks_of(model: str) -> int | None:
    """NVLinks of one GPU, of a board's module or of a card with a bridge; None where that is not known."""
    on_board = nvlinks_of_model(model)
    if on_board is not None:
        return on_board
    for pattern, links in WORDS["bridged_cards"].items():
        if re.search(rf"(?<![A-Z0-9])(?:{pattern})(?![0-9])", model.upper()):
            return int(links)
    return None


def xgmi_rate(generation: Generation) -> tuple[float, str] | None:
    """Bytes per second of one Infinity Fabric link in one direction, and where that is from."""
    return {
        Generation.CDNA2: XGMI["gfx90a"],
        Generation.CDNA3: XGMI["gfx94"],
        Generation.CDNA4: XGMI["gfx95"],
    }.get(generation)


def pcie_generation(generation: Generation) -> int | None:
    """Of the port of an accelerator of this generation."""
    return ROWS.get(generation, {}).get("pcie")


def pcie_rate(pcie: int, lanes: int = 16) -> float | None:
    """Bytes per second of a PCIe link in one direction, after its coding; None for a generation not known."""
    for gigatransfers, number in GENERATIONS.items():
        if number == pcie:
            return gigatransfers * 1e9 / 8 * lanes * CODING[gigatransfers]
    return None


BETWEEN_SOCKETS = 108e9
"""Bytes per second in one direction, of links between processors whose rate nobody says (a100-pcie-bridge)."""


def with_rates_of_model(topology: Topology) -> Topology:
    """Return ``topology`` with rates where links have none, as its GPUs' model has them; as it is without one."""
    models = {gpu.model for gpu in topology.gpus}
    model = models.pop() if len(models) == 1 else ""
    generation = next(iter(generations_in(model)), None)
    if generation is None or all(link.bytes_per_second for link in topology.links):
        return topology
    xgmi = xgmi_rate(generation)
    slot = pcie_rate(pcie_generation(generation) or 0)
    rates = {
        LinkKind.NVLINK: nvlink_rate(generation, model),
        LinkKind.XGMI: xgmi[0] if xgmi else None,
        LinkKind.PCIE: slot,
        LinkKind.INTER_SOCKET: BETWEEN_SOCKETS,
    }
    links = (
        replace(link, bytes_per_second=rate * link.count, origin=f"assumed, of {model}")
        if not link.bytes_per_second and (rate := rates.get(link.kind))
        else link
        for link in topology.links
    )
    return replace(topology, links=tuple(links))


def nic_port(generation: Generation, model: str) -> tuple[float, str]:
    """Nominal bytes per second in one direction between one GPU and the NICs, and where that is from.

    Infinite where no port is known to limit: superchips, Ascend (whose NICs are on the chip: Atlas 800
    product pages), what is not known.
    """
    if re.search(WORDS["off_pcie"], model.upper()):
        return (
            math.inf,
            "not limited: the GPU reaches NICs through its processor, not over PCIe",
        )
    number = None if generation is Generation.ASCEND else pcie_generation(generation)
    rate = None if number is None else pcie_rate(number)
    if rate is None:
        return (
            math.inf,
            f"not limited: the port of {generation.value} towards NICs is not known",
        )
    return rate, f"PCIe {number} x16, the port of {generation.value} GPUs"


def host_of(words: str, generation: Generation, is_board: bool) -> tuple[HostProcessor, str]:
    """The family of the processors and where that is from.

    words: whatever names the box. is_board: its accelerators are modules of a board with switches (HGX),
        for which makers mostly chose one family; cards go into any box and stay UNKNOWN.
    """
    affirmed = said_and_denied(words)[0]
    for pattern, host, origin in WORDS["boxes"]:
        match = re.search(pattern, affirmed, re.IGNORECASE)
        if match is not None:
            return HostProcessor(host), f"{match[0]}: {origin}"
    assumed = ROWS.get(generation, {}).get("board_host")
    if is_board and assumed:
        return HostProcessor(
            assumed
        ), f"assumed: most boards of {generation.value} modules sit beside {assumed}"
    return HostProcessor.UNKNOWN, "not stated"


def library_system(
    topology: Topology, nodes: int = 1, network: Network | None = None
) -> LibrarySystem:
    """``nodes`` machines like ``topology``, one rank on each GPU.

    A topology of several machines counts as it is: its number of machines is the number of nodes. The rate
    of a GPU is that of the GPU, or group of GPUs of a mesh, with the least. Without ``network``, several
    nodes use the topology's NICs.
    Raises MachineError where it has no GPUs, where nobody could look what joins them, or where a rate that
    is needed is in no source.
    """
    taking_part, nodes = _of_one_node(topology, nodes)
    model = _model(topology, taking_part)
    generation, generation_origin = _generation(topology, taking_part[0], model)
    kind = _intra(topology, taking_part)
    path, path_origin = _path(topology, taking_part, generation, kind, nodes)
    kind = Intra.HOST if path is PciePath.HOST else kind
    rate, links, origin = _rate(topology, taking_part, kind, generation, model)
    ports, network_origin = _ports(topology, nodes, network)
    host, host_origin = _host(topology, generation, kind)
    port, port_origin = _gpu_port(topology, taking_part, generation, model)
    origins = {
        "generation": generation_origin,
        "intra": origin,
        "network": network_origin,
        "host": host_origin,
        "gpu_port": port_origin,
        **({"path": path_origin} if path_origin else {}),
    }
    multicast = kind is Intra.NVSWITCH and generation in _MULTICASTING
    return LibrarySystem(
        topology.name,
        generation,
        len(taking_part),
        nodes,
        kind,
        rate,
        links,
        multicast,
        ports,
        host,
        origins,
        port,
        path,
    )


def _of_one_node(topology: Topology, nodes: int) -> tuple[Sequence[Device], int]:
    """The GPUs of the first node, and the number of nodes: as of ``library_system``."""
    name, of_node = topology.name, dict[int, list[Device]]()
    for gpu in topology.gpus:
        of_node.setdefault(gpu.node, []).append(gpu)
    if not of_node:
        raise MachineError(f"{name}: has no GPUs, so there is no GPU library to model")
    gpus = of_node[min(of_node)]
    if len(of_node) > 1:
        if nodes not in (1, len(of_node)):
            raise MachineError(
                f"{name}: is {len(of_node)} machines already; leave the number of nodes out"
            )
        if any(len(gpus_there) != len(gpus) for gpus_there in of_node.values()):
            raise MachineError(
                f"{name}: its machines have different numbers of GPUs; model one of them"
            )
        nodes = len(of_node)
    return gpus, nodes


def lanes_are_assumed(system: LibrarySystem) -> bool:
    """True where only the GPUs' model says how fast PCIe is: cards have 16 lanes, their slots often 8."""
    return system.intra in (Intra.PCIE, Intra.HOST) and system.origins["intra"].startswith(
        "assumed"
    )


def _model(topology: Topology, gpus: Sequence[Device]) -> str:
    """The sources' name of the GPUs: their model, or their architecture where that is named."""
    words = [gpus[0].attributes.get(key) for key in ("model", "gcn", "architecture")]
    words.append(topology.facts.get("gpu_model"))
    named = [str(word) for word in words if isinstance(word, str) and word]
    return (
        f"gfx{named[0]}"
        if named and named[0][:2] in ("90", "94", "95")
        else " ".join(named[:1])
    )


def _generation(topology: Topology, gpu: Device, model: str) -> tuple[Generation, str]:
    named = generations_in(model)
    if named:
        return named[0], f"named: {model}"
    # A capability is a pair where a driver was asked, and a number ("90") where NCCL's XML says it.
    stated: Any = gpu.attributes.get("compute_capability")
    capability = None
    if (
        isinstance(stated, (list, tuple))
        and len(stated) == 2
        and all(isinstance(part, int) for part in stated)
    ):
        capability = int(stated[0]) * 10 + int(stated[1])
    else:
        stated = gpu.attributes.get("sm", topology.facts.get("sm"))
        text = str(stated[0] if isinstance(stated, list) and stated else stated)
        capability = int(text) if text.isdecimal() and len(text) <= 4 else None
    if capability is not None:
        return generation_of_capability(capability), f"compute capability {capability / 10:g}"
    return Generation.UNKNOWN, "the source does not say which GPUs these are"


def _intra(topology: Topology, gpus: Sequence[Device]) -> Intra:
    if len(gpus) == 1:
        return Intra.NONE
    joined_as = topology_class(topology)
    if joined_as is TopologyClass.UNKNOWN:
        joined_as = topology.topology_class
    if joined_as in (TopologyClass.UNKNOWN, TopologyClass.SINGLE_GPU):
        raise MachineError(
            f"{topology.name}: the source does not show what joins its {len(gpus)} GPUs; name a machine of "
            "the catalog, or a dump that shows NVLinks and PCIe"
        )
    kind = Intra(joined_as.value)
    if kind is Intra.BRIDGE:
        bridges = [
            (link.source, link.target) for link in _up(topology) if link.kind is LinkKind.NVLINK
        ]
        if len(connected_groups(peers_of([gpu.name for gpu in gpus], bridges))) > 1:
            kind = Intra.PCIE  # a ring through all pairs crosses PCIe, its slowest link
    return kind


def _path(
    topology: Topology, gpus: Sequence[Device], generation: Generation, kind: Intra, nodes: int
) -> tuple[PciePath, str]:
    """The path between GPUs that PCIe joins, and the evidence; DIRECT and nothing where other links do."""
    if kind is not Intra.PCIE:
        return PciePath.DIRECT, ""
    path, why = pcie_path(topology, gpus, _host(topology, generation, kind)[0], nodes)
    by_distance = path is PciePath.HOST and why.startswith("a ring crosses")
    if by_distance and topology_class(topology) is TopologyClass.NVLINK_BRIDGE:
        # 25.9 GB/s were measured over PCIe 4 (results/published/a100-pcie-bridge.parquet).
        why = (
            "bridges join pairs, so that each card's PCIe carries one direction of a ring alone"
        )
        return PciePath.ACROSS, why
    return path, why


def _up(topology: Topology) -> list[Link]:
    return [link for link in topology.links if link.carries]


def _rate(
    topology: Topology, gpus: Sequence[Device], kind: Intra, generation: Generation, model: str
) -> tuple[float, int, str]:
    """Nominal bytes per second out of the GPU with the least, its links, and where that is from."""
    if kind is Intra.NONE:
        return 0.0, 0, "one GPU a node"
    egress = [_egress(topology, gpu, gpus, kind) for gpu in gpus]
    links = min(sum(link.count for link in links_out) for links_out in egress)
    # A ring waits for its slowest GPU.
    rates = [[link.bytes_per_second for link in links_out] for links_out in egress]
    if links and all(rate is not None for gpu_rates in rates for rate in gpu_rates):
        slowest = min(sum(rate or 0.0 for rate in gpu_rates) for gpu_rates in rates)
        if kind in DIRECT_LINKS and len(gpus) <= MOST_MESHED:
            # A ring leaves every group of GPUs once, so the one with the least way out counts too. Row g is a
            # group as bits; rates out of it are those to GPUs that are not in it.
            place = {gpu.name: rank for rank, gpu in enumerate(gpus)}
            between = np.zeros((len(gpus), len(gpus)))
            for link in (link for links_out in egress for link in links_out):
                between[place[link.source], place[link.target]] += link.bytes_per_second or 0.0
            groups = (np.arange(1, 2 ** len(gpus) - 1)[:, None] >> np.arange(len(gpus))) & 1
            narrowest = float(((groups @ between) * (1 - groups)).sum(axis=1).min())
            # Groups that nothing joins are refused where their routes are asked for, by name.
            slowest = min(slowest, narrowest or slowest)
        origin = next(
            (link.origin for link in egress[0] if link.origin), "stated by the source"
        )
        return slowest, links, origin
    # No source states the rates: those of the accelerators' model, by the links that were counted.
    if kind in (Intra.PCIE, Intra.HOST):
        number = pcie_generation(generation)
        rate = None if number is None else pcie_rate(number)
        if rate is not None:
            return rate, 1, f"assumed: PCIe {number} x16, the port of {generation.value} cards"
    elif kind is Intra.XGMI:
        rate_per_link = xgmi_rate(generation)
        if rate_per_link is not None:
            count, (per_link, source) = links or len(gpus) - 1, rate_per_link
            return (
                per_link * count,
                count,
                f"{count} links of {per_link / 1e9:g} GB/s; {source}",
            )
    else:
        nvlink, count = nvlink_rate(generation, model), links or nvlinks_of(model) or 0
        if nvlink is not None and count and kind is not Intra.HCCS:
            return (
                nvlink * count,
                count,
                f"assumed: {count} links of {nvlink / 1e9:g} GB/s ({model})",
            )
    raise MachineError(
        f"{topology.name}: neither the source nor the GPUs' model ({model or 'not stated'}) says how fast "
        f"{kind.value} is here; state the model with --gpu 'NVIDIA A100-SXM4' and PCIe slots with --pcie 4x16, or "
        "name a machine of the catalog, such as hgx-h100"
    )


def _egress(topology: Topology, gpu: Device, gpus: Sequence[Device], kind: Intra) -> list[Link]:
    """Links of ``gpu`` into what joins the GPUs of its node."""
    own = [
        link for link in _up(topology) if link.source == gpu.name and link.target != gpu.name
    ]
    if kind is Intra.NVSWITCH:
        switches = {device.name for device in topology.of_kind(DeviceKind.NVSWITCH)}
        return [link for link in own if link.target in switches]
    if kind in (Intra.PCIE, Intra.HOST):
        upward = {
            device.name
            for device in topology.devices
            if device.kind in (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)
        }
        # Its port is one, whatever else the source shows behind it.
        return [link for link in own if link.kind is LinkKind.PCIE and link.target in upward][
            :1
        ]
    names = {peer.name for peer in gpus}
    return [link for link in own if link.target in names and link.kind is DIRECT_LINKS[kind]]


def _ports(
    topology: Topology, nodes: int, network: Network | None
) -> tuple[NetworkPorts | None, str]:
    if network is not None:
        return NetworkPorts(
            network.word, network.bytes_per_second, network.nics
        ), f"given: {network}"
    if nodes <= 1:
        return None, "one node"
    nics = [
        nic for nic in topology.of_kind(DeviceKind.NIC) if nic.node == topology.gpus[0].node
    ]
    rates = [nic.attributes.get("bytes_per_second") for nic in nics]
    stated_rates = [
        float(rate) for rate in rates if isinstance(rate, (int, float)) and rate > 0
    ]
    if not stated_rates or len(stated_rates) < len(nics):
        raise MachineError(
            f"{topology.name}: {nodes} nodes, and the rates of its NICs are not known; name a network, such "
            "as ib-ndr-400x8"
        )
    # The kind of the NICs' links into the network, or what their ports say.
    names = {nic.name for nic in nics}
    of_links = (
        _NETWORK_WORDS.get(link.kind) for link in topology.links if link.source in names
    )
    word = next(filter(None, of_links), None)
    if word is None:
        by_port = "roce" if nics[0].attributes.get("rdma") else "tcp"
        word = "ib" if nics[0].attributes.get("link_layer") == "InfiniBand" else by_port
    return NetworkPorts(word, min(stated_rates), len(nics)), "the NICs that the source shows"


def _gpu_port(
    topology: Topology, gpus: Sequence[Device], generation: Generation, model: str
) -> tuple[float, str]:
    """The rate that the source states of the GPUs' PCIe ports, the slowest; else their generation's."""
    names = {gpu.name for gpu in gpus}
    own = [link for link in _up(topology) if link.source in names]
    if any(link.kind is LinkKind.C2C for link in own):
        return math.inf, "not limited: the GPU reaches NICs over C2C"
    ports = [link for link in own if link.kind is LinkKind.PCIE and link.target not in names]
    rates = [link.bytes_per_second for link in ports]
    stated_rates = [rate for rate in rates if rate is not None]
    if {link.source for link in ports} == names and len(stated_rates) == len(rates):
        return min(stated_rates), ports[0].origin or "the PCIe ports that the source states"
    return nic_port(generation, model)


def _host(topology: Topology, generation: Generation, kind: Intra) -> tuple[HostProcessor, str]:
    descriptions: list[Any] = [topology.facts.get("cpu")]
    descriptions += [cpu.attributes for cpu in topology.of_kind(DeviceKind.CPU)]
    for facts in descriptions:
        words = " ".join(map(str, facts.values())).lower() if isinstance(facts, Mapping) else ""
        for word, host in _VENDORS.items():
            if word in words:
                return host, "stated by the source"
    model = _model(topology, topology.gpus)
    text = f"{topology.name} {topology.facts.get('description', '')} {model}"
    return host_of(text, generation, kind is Intra.NVSWITCH)
