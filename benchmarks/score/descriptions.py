"""A system from the free words in which a published log's reader describes it.

Rules are about words (``nvswitch3``, ``2 pairs NV12 bridge, pairs over SYS``, ``x2 racks``), never about
sources. What the words leave open is assumed where boards of that generation leave no choice, and
``origins`` says so; the rest is refused with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from benchmarks.score.network_words import ports_of
from ccbench.errors import MachineError
from ccbench.model.cluster import first_gpus
from ccbench.model.library import Generation, Intra, LibrarySystem, NetworkPorts, PciePath
from ccbench.model.library.clusters import (
    generations_in,
    host_of,
    library_system,
    nic_port,
    nvlink_rate,
    nvlinks_of,
    pcie_generation,
    pcie_rate,
    xgmi_rate,
)
from ccbench.topology.classes import MOST_LINKS, is_card, is_module
from ccbench.topology.files import load_catalog
from ccbench.topology.words import said_and_denied, share_said
from ccbench.units import shown

_SHARED = re.compile(r"ranks? on (?:one|a single|the same) GPU", re.IGNORECASE)
_NO_PEERS = re.compile(r"host[- ]staged|\bSHM\b|\b[CGT]?NS\b", re.IGNORECASE)
_DOMAIN = re.compile(r"nvl-?([0-9]{2,3})\b", re.IGNORECASE)
_RACKS = re.compile(r"x\s?([0-9]{1,5})\s+racks?", re.IGNORECASE)
_LINKS = re.compile(
    r"\bNV([0-9]{1,2})\b"
    r"|\b([0-9]{1,2})(?:\s+of\s+(?:(?:the|its|all)\s+)*[0-9]{1,2}|\s+of\s+(?:the|its))?\s+NVLink(?:s|\s+links)\b",
    re.IGNORECASE,
)
_LINK = r"(?:[\w-]+\s+)?links?\b|nv-?links?\b|xgmi\b|bridges?\b"
"""What there may be a share of."""

_PCIE = re.compile(r"pcie\s?(?:gen\s?)?([1-6])", re.IGNORECASE)
_LANES = re.compile(r"\bx(1|2|4|8|16)\b(?!\s?(?:racks?|GPU))", re.IGNORECASE)

_KINDS = {
    "nvlink": r"nv-?link|\bNV[0-9]|mnnvl",
    "nvswitch": r"nv-?switch|nvl-?[0-9]",
    "bridge": r"bridge",
    "cube": r"cube",
    "mesh": r"mesh|(?<!gpu)direct|all-to-all",
    "xgmi": r"xgmi|infinity",
    "hccs": r"hccs",
    "peers": r"P2P|peer",
}
"""What joins GPUs, as people write it."""

_OF_NVLINKS = {"nvlink", "nvswitch", "bridge", "cube"}

_HYBRID_CUBES = {Generation.PASCAL: "dgx-1p", Generation.VOLTA: "dgx-1v"}

_MULTICASTING = frozenset({Generation.HOPPER, Generation.BLACKWELL})

_OF_SWITCH = {
    "1": Generation.VOLTA,
    "2": Generation.AMPERE,
    "3": Generation.HOPPER,
    "4": Generation.BLACKWELL,
    "5": Generation.BLACKWELL,
}
"""The generation of the GPUs beside each generation of NVSwitch."""


@dataclass(frozen=True)
class _Inside:
    """What joins the GPUs of one node: kind, nominal rate of one GPU in one direction, links, and origin."""

    intra: Intra
    bytes_per_second: float
    links: int
    origin: str


def described(
    gpu: str, gpus_per_node: int, nodes: int, interconnect: str, network: str, name: str = ""
) -> LibrarySystem:
    """The system that these words describe.

    gpu, interconnect, network: as written by people. gpus_per_node: GPUs of one operating system that take
    part; nodes: how many such. A rack whose nodes share one NVLink domain becomes one node.
    Raises MachineError with the reason where the words leave open what the model needs, or describe what it
    does not know.
    """
    called = name or f"{gpu}, {nodes} x {gpus_per_node}, {interconnect}, {network}"
    if _SHARED.search(gpu):
        raise MachineError(f"{shown(gpu)}: several ranks share one GPU, which is not modelled")
    if gpus_per_node < 1 or nodes < 1:
        raise MachineError(
            f"{shown(gpu)}: no GPUs take part; only GPUs' libraries are modelled"
        )
    share, others = share_said(interconnect, _LINK)
    share = min(share, share_said(gpu, _LINK)[0])
    joined, absent = _joined(gpu, others if re.search(r"\w", others) else interconnect)
    rack = _DOMAIN.search(gpu)
    if (
        rack is not None
        and not absent & _OF_NVLINKS
        and not re.search(rf"{_DOMAIN.pattern}|pcie", joined.lower())
    ):
        joined = f"{joined}, {rack[0]}"  # "GB200 NVL72", whatever else is said of its NVLinks
    generation, generation_origin = _generation(gpu, joined)
    domains = _domains(joined, gpus_per_node, nodes)
    ranks_per_node = gpus_per_node * nodes // domains
    inside = _inside(gpu, generation, ranks_per_node, joined, absent)
    if share < 1 and inside.intra not in (Intra.NONE, Intra.PCIE, Intra.HOST):
        inside = replace(
            inside,
            bytes_per_second=inside.bytes_per_second * share,
            links=max(1, int(inside.links * share)),
            origin=f"{inside.origin}; {share:.0%} of it",
        )
    ports, network_origin = _network(
        network, domains, gpus_per_node, ranks_per_node, generation
    )
    port, port_origin = _nic_port(gpu, generation, inside)
    host, host_origin = host_of(
        f"{gpu} {interconnect}", generation, inside.intra is Intra.NVSWITCH
    )
    return LibrarySystem(
        name=called,
        generation=generation,
        ranks_per_node=ranks_per_node,
        nodes=domains,
        intra=inside.intra,
        intra_bytes_per_second=inside.bytes_per_second,
        links_per_gpu=inside.links,
        multicast=inside.intra is Intra.NVSWITCH and generation in _MULTICASTING,
        network=ports,
        host=host,
        origins={
            "generation": generation_origin,
            "intra": inside.origin + (f" ({interconnect})" if joined != interconnect else ""),
            "network": network_origin,
            "host": host_origin,
            "gpu_port": port_origin,
        },
        gpu_port_bytes_per_second=port,
        path=PciePath.HOST if inside.intra is Intra.HOST else PciePath.DIRECT,
    )


def _joined(gpu: str, interconnect: str) -> tuple[str, set[str]]:
    """What ``interconnect`` says is there, and the kinds that it or ``gpu`` says are not."""
    said, denied = said_and_denied(interconnect)
    denied += f" {said_and_denied(gpu)[1]}"
    absent = {kind for kind, words in _KINDS.items() if re.search(words, denied, re.IGNORECASE)}
    # Without NVLinks nothing is there that they make, and cards have them over bridges alone.
    if "nvlink" in absent or ("bridge" in absent and is_card(gpu)):
        absent |= _OF_NVLINKS
    # Of what is said to be there and not to be, nothing is taken but PCIe.
    if any(re.search(_KINDS[kind], said, re.IGNORECASE) for kind in absent):
        absent |= _OF_NVLINKS | {"xgmi"}
    gone = "|".join(_KINDS[kind] for kind in sorted(absent))
    return re.sub(
        rf"\S*(?:{gone})\S*", "", said, flags=re.IGNORECASE
    ) if absent else said, absent


def _generation(gpu: str, interconnect: str) -> tuple[Generation, str]:
    found = generations_in(gpu)
    if len(found) > 1:
        listed = ", ".join(one.value for one in found)
        return found[0], f"{shown(gpu)} names {listed}; the oldest is taken"
    if found:
        return found[0], f"named: {gpu}"
    switch = re.search(r"nvswitch([1-5])", interconnect, re.IGNORECASE)
    if switch is not None:
        return _OF_SWITCH[switch[1]], f"assumed from {switch[0]}"
    raise MachineError(
        f"{shown(gpu)}: names no accelerator that is known; write its model, such as H100 SXM"
    )


def _domains(interconnect: str, gpus_per_node: int, nodes: int) -> int:
    """How many NVLink domains the nodes make: as many as nodes, or fewer where racks share one."""
    domain, racks = _DOMAIN.search(interconnect), _RACKS.search(interconnect)
    if domain is None and racks is None:
        return nodes
    total = gpus_per_node * nodes
    size = int(domain[1]) if domain is not None else total
    count = int(racks[1]) if racks is not None else -(-total // max(1, size))
    if count < 1 or total % count or total // count > size or nodes % count:
        raise MachineError(
            f"{shown(interconnect)}: {nodes} nodes of {gpus_per_node} GPUs do not spread evenly over {count} "
            f"domains of up to {size} GPUs"
        )
    return count


def _network(
    words: str, domains: int, gpus_per_node: int, ranks_per_node: int, generation: Generation
) -> tuple[NetworkPorts | None, str]:
    if domains == 1:
        return None, "one node"
    ports, origin = ports_of(words, gpus_per_node, generation)
    if ports is None:
        raise MachineError(
            f"network: {shown(words)} for {domains} nodes; write for example ib-ndr-400x8"
        )
    merged = ranks_per_node // gpus_per_node
    if merged > 1:
        ports = NetworkPorts(
            ports.word,
            ports.bytes_per_second,
            ports.per_node * merged,
            ports.in_network_reduction,
        )
        origin += f"; times {merged} nodes of one NVLink domain"
    return ports, origin


def _inside(
    gpu: str, generation: Generation, ranks: int, words: str, absent: set[str]
) -> _Inside:
    if ranks == 1:
        return _Inside(Intra.NONE, 0.0, 0, "one GPU a node")
    lower = words.lower()
    if "peers" in absent or _NO_PEERS.search(words):
        return _pcie(gpu, generation, words, Intra.HOST)
    if "nvswitch" in lower or _DOMAIN.search(words):
        return _nvlinks(gpu, generation, words, Intra.NVSWITCH)
    if "cube" in lower:
        return _cube(generation, ranks, words)
    if "bridge" in lower:
        return _bridge(gpu, generation, ranks, words)
    if "xgmi" in lower or "infinity fabric" in lower:
        return _xgmi(gpu, generation, ranks, words)
    if "hccs" in lower:
        return _ascend(ranks, words)
    if re.search(r"nvlink.*(?:mesh|direct|all-to-all)", lower):
        return _nvlinks(gpu, generation, words, Intra.NVLINK_MESH)
    if "nvlink" in lower or re.search(r"\bNV[0-9]{1,2}\b", words):
        return _some_nvlink(gpu, generation, ranks, words, "nvswitch" not in absent)
    if "pcie" in lower or re.search(r"\b(?:PIX|PXB|PHB|NODE|SYS)\b", words):
        return _pcie(gpu, generation, words, Intra.PCIE)
    return _unsaid(gpu, generation, ranks, words, absent)


def _nic_port(gpu: str, generation: Generation, inside: _Inside) -> tuple[float, str]:
    """A GPU that has nothing but PCIe reaches NICs over the same port."""
    if inside.intra in (Intra.PCIE, Intra.HOST):
        return inside.bytes_per_second, inside.origin
    return nic_port(generation, gpu)


def _nvlinks(gpu: str, generation: Generation, words: str, intra: Intra) -> _Inside:
    stated = _LINKS.search(words) or _LINKS.search(gpu)
    links, rate = nvlinks_of(gpu), nvlink_rate(generation, gpu)
    if stated is not None:
        # "Up to 40" joins no GPU by more links than its model has.
        links = min(int(stated[1] or stated[2]), links or MOST_LINKS)
    if links is None and re.fullmatch(r"nvswitch[1-5]", words.strip(), re.IGNORECASE):
        links = {Generation.VOLTA: 6, Generation.AMPERE: 12}.get(generation, 18)
    if not links or rate is None:
        raise MachineError(
            f"{shown(gpu)}: how many NVLinks it has is not known; write for example NV12"
        )
    origin = "as written" if stated is not None else "the model's number of links"
    return _Inside(
        intra, links * rate, links, f"{words}: {links} x {rate / 1e9:g} GB/s, {origin}"
    )


def _some_nvlink(
    gpu: str, generation: Generation, ranks: int, words: str, switched: bool
) -> _Inside:
    """NVLink without a word about its shape: cards have bridges, boards what was built of that generation.

    switched: nothing says that there are no NVSwitches.
    """
    if is_card(gpu):
        return _bridge(gpu, generation, ranks, words)
    if ranks > 8 or (ranks == 8 and generation not in _HYBRID_CUBES):
        # So many GPUs were never all joined without switches: a ring crosses PCIe.
        return (
            _nvlinks(gpu, generation, words, Intra.NVSWITCH)
            if switched
            else _pcie(gpu, generation, words, Intra.PCIE)
        )
    if generation in _HYBRID_CUBES and ranks > 4:
        return _cube(generation, ranks, words)
    on_switch = (
        switched
        and generation in _MULTICASTING
        and re.search(r"GH200|GB200|GB300", gpu.upper()) is None
    )
    return _nvlinks(gpu, generation, words, Intra.NVSWITCH if on_switch else Intra.NVLINK_MESH)


def _bridge(gpu: str, generation: Generation, ranks: int, words: str) -> _Inside:
    """Bridges join two cards, but for the four-way ones of H200 NVL; a ring through more crosses PCIe."""
    four_way = ranks <= 4 and re.search(
        r"H200 NVL|(?:4|four)[- ]way", f"{gpu} {words}", re.IGNORECASE
    )
    if ranks > 2 and not four_way:
        return _pcie(gpu, generation, words, Intra.PCIE)
    return _nvlinks(gpu, generation, words, Intra.BRIDGE)


def _cube(generation: Generation, ranks: int, words: str) -> _Inside:
    machine = _HYBRID_CUBES.get(generation)
    if machine is None:
        raise MachineError(
            f"{shown(words)}: {generation.value} GPUs were never built as a cube mesh"
        )
    box = library_system(first_gpus(load_catalog(machine), ranks))
    return _Inside(
        Intra.CUBE_MESH,
        box.intra_bytes_per_second,
        box.links_per_gpu,
        f"{words}: the first {ranks} GPUs of {machine}",
    )


def _xgmi(gpu: str, generation: Generation, ranks: int, words: str) -> _Inside:
    if generation is Generation.CDNA2 and re.search(r"MI250", gpu.upper()) and ranks <= 16:
        box = library_system(first_gpus(load_catalog("mi250"), ranks))
        return _Inside(
            Intra.XGMI,
            box.intra_bytes_per_second,
            box.links_per_gpu,
            f"{words}: the first {ranks} dies of mi250",
        )
    link = xgmi_rate(generation)
    if link is None:
        raise MachineError(f"{shown(gpu)}: the rate of its Infinity Fabric links is not known")
    origin = (
        f"{words}: a link to each of {ranks - 1} peers of {link[0] / 1e9:g} GB/s; {link[1]}"
    )
    return _Inside(Intra.XGMI, link[0] * (ranks - 1), ranks - 1, origin)


def _ascend(ranks: int, words: str) -> _Inside:
    box = library_system(first_gpus(load_catalog("ascend-910b"), ranks))
    if ranks > 8:
        raise MachineError(f"{shown(words)}: HCCS joins eight NPUs, not {ranks}")
    return _Inside(
        Intra.HCCS,
        box.intra_bytes_per_second,
        box.links_per_gpu,
        f"{words}: the first {ranks} NPUs of ascend-910b",
    )


def _pcie(gpu: str, generation: Generation, words: str, intra: Intra) -> _Inside:
    stated, lanes_stated = _PCIE.search(words), _LANES.search(words)
    number = int(stated[1]) if stated is not None else pcie_generation(generation)
    lanes = int(lanes_stated[1]) if lanes_stated is not None else 16
    rate = None if number is None else pcie_rate(number, lanes)
    if rate is None:
        raise MachineError(
            f"{shown(gpu)}: its PCIe generation is not known; write for example pcie4"
        )
    origin = "as written" if stated is not None else f"the port of {generation.value} cards"
    return _Inside(intra, rate, 1, f"{words}: PCIe {number} x{lanes}, {origin}")


def _unsaid(
    gpu: str, generation: Generation, ranks: int, words: str, absent: set[str]
) -> _Inside:
    """Words that say nothing: boards that exist in one form only, and cards, are taken as such."""
    if re.search(r"none", words, re.IGNORECASE):
        raise MachineError(
            f"interconnect: {shown(words)} for {ranks} GPUs of a node; write what joins them"
        )
    whole_board = (
        ranks == 8 and generation is Generation.AMPERE
    )  # fewer may be the mesh of four
    on_board = not absent & {"nvlink", "nvswitch"}
    if (
        on_board
        and is_module(gpu)
        and ranks <= 8
        and (whole_board or generation in _MULTICASTING)
    ):
        inside = _nvlinks(
            gpu, generation, f"nvswitch of an HGX board, assumed ({words})", Intra.NVSWITCH
        )
    elif (
        generation in (Generation.CDNA3, Generation.CDNA4)
        and ranks <= 8
        and "xgmi" not in absent
    ):
        inside = _xgmi(gpu, generation, ranks, f"the board's mesh, assumed ({words})")
    elif absent or (is_card(gpu) and generation is not Generation.UNKNOWN):
        inside = _pcie(gpu, generation, f"PCIe, assumed ({words})", Intra.PCIE)
    else:
        raise MachineError(
            f"interconnect: {shown(words)} is not known; write nvswitch3, nvlink-bridge, pcie4 ..."
        )
    return inside
