"""The class of a machine (how its GPUs hang together), told from links, from counts of links, or from models.

What links end at decides: two A100 with twelve links each may be a bridged pair or two ports of a switch.

* Both ends of every link known (detection, NCCL XML, NCCL logs): ``topology_class`` and
  ``class_of_direct_links``.
* ``NV#`` of a matrix only, which counts the links of a path without saying what they end at:
  ``class_of_counts``.
* A model's name and a GPU's number only, as in a list of links: ``class_of_model``.

Tables: what the name of a GPU model says (how many NVLinks, card or module of a board), and what one NVLink
carries in one direction, by its version or by the GPU's compute capability. Versions as in hwloc's
topology-nvml.c: 20, 25, 25, 25 and 50 GB/s for 1 to 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import TypeVar

from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.words import said_and_denied

RESTART_FABRIC_MANAGER = (
    "restart the fabric manager (systemctl restart nvidia-fabricmanager) and read its log"
)
"""For GPUs behind NVSwitches whose NVLink fabric the driver calls not ready."""

CUBE_MESH_GPUS = 8
CUBE_MESH_PEERS = 4
"""DGX-1: two fully joined groups of four, each GPU joined to its twin too (NVIDIA DGX-1 whitepaper)."""

Vertex = TypeVar("Vertex", bound=Hashable)


def peers_of(
    gpus: Iterable[Vertex], joined: Iterable[tuple[Vertex, Vertex]]
) -> dict[Vertex, set[Vertex]]:
    """Return GPU -> those that the pairs ``joined`` join it to; what is not in ``gpus`` is left out."""
    peers: dict[Vertex, set[Vertex]] = {gpu: set() for gpu in gpus}
    for left, right in joined:
        if left != right and left in peers and right in peers:
            peers[left].add(right)
            peers[right].add(left)
    return peers


def class_of_direct_links(
    gpus: Iterable[Vertex],
    joined: Iterable[tuple[Vertex, Vertex]],
    on_board: bool = False,
    forgiven: int = 0,
) -> TopologyClass | None:
    """Return the class of ``gpus`` with NVLinks between the pairs ``joined``; None where no pair is joined.

    on_board: the links are traces of a board, so that a pair is no bridge: NVLinks reach the CPUs too
        (POWER8, POWER9), or the model is a module.
    forgiven: pairs that may be missing from a cube mesh; 1 where a failing link is not listed (the driver),
        0 where the source lists what there is.

    A shape without a name of its own is a mesh, partly connected.
    """
    peers = peers_of(gpus, joined)
    most = max(map(len, peers.values()), default=0)
    if most == 0:
        return None
    if most == 1:
        return TopologyClass.NVLINK_MESH if on_board else TopologyClass.NVLINK_BRIDGE
    # A cube mesh: two full quads, every GPU joined to one of the other quad. Which GPUs form a quad does not
    # matter: of four peers three are in the own quad, so that the fourth is a matching by itself.
    missing = CUBE_MESH_GPUS * CUBE_MESH_PEERS // 2 - sum(map(len, peers.values())) // 2
    if len(peers) != CUBE_MESH_GPUS or most > CUBE_MESH_PEERS or not 0 <= missing <= forgiven:
        return TopologyClass.NVLINK_MESH

    first = next(first for first, near in peers.items() if len(near) == CUBE_MESH_PEERS)
    quads = [{first, *peers[first]} - {twin} for twin in peers[first]]
    whole_quads = 2 * math.comb(CUBE_MESH_PEERS, 2)
    joined_inside = (
        sum(
            b in peers[a]
            for side in (quad, set(peers) - quad)
            for a, b in combinations(side, 2)
        )
        for quad in quads
    )
    is_cube = whole_quads - max(joined_inside) <= missing
    return TopologyClass.NVLINK_CUBE_MESH if is_cube else TopologyClass.NVLINK_MESH


def connected_groups(peers: Mapping[Vertex, Iterable[Vertex]]) -> list[set[Vertex]]:
    """Vertices that reach each other, lone ones too, in the order of their first member."""
    groups: list[set[Vertex]] = []
    visited: set[Vertex] = set()
    for start in peers:
        if start in visited:
            continue
        group, waiting = {start}, [start]
        while waiting:
            new = set(peers[waiting.pop()]) - group
            group |= new
            waiting.extend(new)
        visited |= group
        groups.append(group)
    return groups


MOST_LINKS = 18
"""NVLinks of the GPU with the most, up to Blackwell."""

_NVLINKS: tuple[tuple[str, int], ...] = (
    (r"P100", 4),
    (r"V100", 6),
    (r"A800", 8),
    (r"A100", 12),
    (r"H800", 8),
    (r"H100 NVL|H200 NVL|H100 PCIE", 12),
    (r"GH200|H200|H100|H20", MOST_LINKS),
    (r"GB200|GB300|B100|B200|B300", MOST_LINKS),
)
"""Name -> NVLinks, first match counts. NVIDIA's whitepapers of Pascal, Volta, Ampere, Hopper and Blackwell;
export models: 8 of 12 and of 18 links. Cards with PCIe connectors: three bridges of four links."""

_CARD = re.compile(
    r"PCIE|\bNVL\b|\bRTX\b|GEFORCE|QUADRO|TITAN|\bA[0-9]{4}\b|\bA(?:2|10|16|30|40)\b|\bL[0-9]{1,2}S?\b|\bT4G?\b",
    re.IGNORECASE,
)

_MODULE = re.compile(
    r"SXM|DGXS|\bHBM3\b|\bG?B[123]00\b|\bG?H(?:100|200|800|20)\b",
    re.IGNORECASE,
)


def nvlinks_of_model(model: str) -> int | None:
    """NVLinks of one GPU of ``model`` (a driver's or a catalog's name); None where it is not known."""
    for pattern, links in _NVLINKS:
        if re.search(rf"(?<![A-Z0-9])(?:{pattern})(?![0-9])", model, re.IGNORECASE):
            return links
    return None


def is_card(model: str) -> bool:
    """Return True if GPUs of ``model`` are cards, whose NVLinks all rest unless a bridge is plugged on."""
    return _CARD.search(said_and_denied(model)[0]) is not None


def is_module(model: str) -> bool:
    """Return True if GPUs of ``model`` are soldered or socketed on a board, whose traces their NVLinks are.

    SXM and its successors; False where the name does not say, as for cards.
    """
    return _MODULE.search(said_and_denied(model)[0]) is not None and not is_card(model)


MOST_LINKS_BEFORE_2020 = 6
"""NVLinks of a V100."""

FEWEST_TO_SWITCHES = 6
"""NVLinks of the switched GPU with the fewest: V100 in a DGX-2."""

BRIDGES = frozenset({1, 2, 4, 8, 12, 18})
BRIDGES_BEFORE_2020 = frozenset({1, 2})
"""Links that one to three bridges between two cards have."""

MESH_OF_FOUR = 6
"""Links of every pair of four GPUs with 18 each, three peers: HGX H100 4-GPU, Quad GH200, H200 NVL."""


@dataclass(frozen=True)
class ClassVerdict:
    """A class and why; ``candidates`` where the class is unknown but not open.

    certain: False for the usual class where a rarer one would look the same.
    """

    topology_class: TopologyClass
    reason: str
    candidates: tuple[TopologyClass, ...] = ()
    certain: bool = True

    @property
    def nvswitch(self) -> bool | None:
        """True if GPUs hang on NVSwitches; None where that is open."""
        if self.topology_class is not TopologyClass.UNKNOWN:
            return self.topology_class is TopologyClass.NVSWITCH
        return (
            None if not self.candidates or TopologyClass.NVSWITCH in self.candidates else False
        )


Counts = Mapping[tuple[int, int], int]
"""(GPU, GPU) -> NVLinks between them, both orders, pairs without NVLinks left out."""


def class_of_counts(
    counts: Counts, gpu_count: int, *, before_2020: bool = False
) -> ClassVerdict:
    """Return the class of a machine whose matrix was seen whole, or of what a cut matrix shows.

    counts: NV# of every pair seen, which is the number of active NVLinks on the path: to each other where two
    GPUs are linked directly, to the switches where they are not. gpu_count: GPUs of the heading. before_2020:
    the heading of drivers of that time, without NUMA Affinity.

    * No GPU up to Blackwell has more than 18 NVLinks (P100 4, V100 6, A100 12, H100 and B200 18: NVIDIA's
      architecture papers). Where the NV# of one GPU's row add up to more, the links are shared: NVSwitch.
    * Fewer than 6 links never lead to a switch: the GPUs behind NVSwitches have 6 (DGX-2), 8 (H800), 12 or
      18. All pairs linked with fewer: mesh (HGX A100 4-GPU 4 per pair, DGX Station and 4 x V100 boards 2).
    * Four GPUs with 6 per pair: mesh, for that is 18 links; a quarter of a DGX-2 would print the same.
    * All pairs with 6 to 18 else: both exist (part of a DGX-2 or HGX board; two A100 PCIe cards under three
      bridges print NV12 as two A100 SXM do), so unknown.
    * Pairs only: bridge where a bridge has that many links (1 or 2: GeForce and Quadro RTX 20; 4: GeForce
      3090, RTX A6000; 4, 8, 12 or 18: A100, H100 and H200 NVL cards), else a board's own links (NV3 of
      POWER9): mesh. Bridges before 2020 had 1 or 2 links outside workstations, so NV4 there is a board.
    """
    if gpu_count < 2:
        return ClassVerdict(TopologyClass.SINGLE_GPU, "one GPU")
    if not counts:
        return ClassVerdict(TopologyClass.PCIE, "no pair of GPUs shows NVLinks")
    fewest, most = min(counts.values()), max(counts.values())
    # What no direct link could explain comes first, for it is certain.
    most_links = MOST_LINKS_BEFORE_2020 if before_2020 else MOST_LINKS
    widest = max(links_per_gpu(counts, gpu_count))
    if widest > most_links:
        reason = (
            f"the NV# of one GPU add up to {widest}, more than the {most_links} links a GPU has"
        )
        return ClassVerdict(TopologyClass.NVSWITCH, reason)
    complete = len(counts) == gpu_count * (gpu_count - 1)
    if gpu_count == 4 and complete and fewest == most == MESH_OF_FOUR:
        reason = "four GPUs with 6 links per pair: 18 each, all direct (a part of a DGX-2 would look the same)"
        return ClassVerdict(TopologyClass.NVLINK_MESH, reason, certain=False)
    if complete and fewest >= FEWEST_TO_SWITCHES:
        if gpu_count == 2:
            reason, bridge = (
                f"NV{most} between two GPUs can be all of these",
                [TopologyClass.NVLINK_BRIDGE],
            )
        else:
            reason, bridge = (
                f"{gpu_count} GPUs with {fewest} links per pair exist with switches and without",
                [],
            )
        candidates = (TopologyClass.NVSWITCH, *bridge, TopologyClass.NVLINK_MESH)
        return ClassVerdict(TopologyClass.UNKNOWN, reason, candidates)
    # Here all links are direct, and their numbers tell plugs from traces of a board.
    is_bridge = set(counts.values()) <= (BRIDGES_BEFORE_2020 if before_2020 else BRIDGES)
    shape = class_of_direct_links(range(gpu_count), counts, on_board=not is_bridge)
    if shape is TopologyClass.NVLINK_BRIDGE:
        return ClassVerdict(shape, f"pairs only, with the {most} links of a bridge")
    if shape is TopologyClass.NVLINK_CUBE_MESH:
        return ClassVerdict(shape, "two complete quads joined by a perfect matching")
    gpus = dict.fromkeys(gpu for pair in counts for gpu in pair)
    groups = connected_groups(peers_of(gpus, counts))
    reason = "direct links, fewer per pair than lead to switches"
    if all(len(group) == 2 for group in groups):
        reason = f"pairs only, with {most} links, which no bridge has"
    return ClassVerdict(TopologyClass.NVLINK_MESH, reason)


def links_per_gpu(counts: Counts, gpu_count: int) -> list[int]:
    """Return the sum of each GPU's row."""
    totals = [0] * gpu_count
    for (gpu, _), links in counts.items():
        totals[gpu] += links
    return totals


_ALWAYS_SWITCHED = re.compile(r"SXM3|\bH(?:800|20)\b|\bB[23]00\b", re.IGNORECASE)
_USUALLY_SWITCHED = re.compile(r"\bH(?:100|200)\b|\bGB[23]00\b", re.IGNORECASE)
_EIGHT_GPU_BOARD = 4
"""A GPU number from here on is not on a four-GPU board."""


def class_of_model(model: str, highest: int) -> ClassVerdict:
    """Return the class of the boards of a module whose highest GPU number is ``highest``.

    V100-DGXS is a DGX Station's: mesh. V100-SXM3 exists in DGX-2 and HGX-2, H800 and B200 / B300 on eight-GPU
    boards: NVSwitch. Eight-GPU boards have NVSwitches from A100 on, and are cube meshes with P100-SXM2 and
    V100-SXM2, for which no board had switches. H100, H200 and GB200 are taken for NVSwitch, since boards with
    four of them and no switches (HGX H100 4-GPU, GB200 NVL4) are rare; A100-SXM4 with numbers below 4 is left
    unknown, since its four-GPU board is not. Sources: NVIDIA's data sheets of these boards.
    """
    if "DGXS" in model.upper():
        return ClassVerdict(
            TopologyClass.NVLINK_MESH, f"{model} is made for the DGX Station, a mesh of four"
        )
    # No board of SXM2 modules had switches.
    if "SXM2" in model.upper():
        if highest >= _EIGHT_GPU_BOARD:
            return ClassVerdict(
                TopologyClass.NVLINK_CUBE_MESH, f"GPU {highest} of a board with {model}"
            )
        reason = f"boards with {model} are meshes of 4 or cube meshes of 8"
        meshes = (TopologyClass.NVLINK_MESH, TopologyClass.NVLINK_CUBE_MESH)
        return ClassVerdict(TopologyClass.UNKNOWN, reason, meshes)
    if highest >= _EIGHT_GPU_BOARD or _ALWAYS_SWITCHED.search(model):
        return ClassVerdict(
            TopologyClass.NVSWITCH, f"boards with {model} and this many GPUs have NVSwitches"
        )
    if _USUALLY_SWITCHED.search(model):
        reason = (
            f"{model} usually sits behind NVSwitches; a four-GPU board without prints the same"
        )
        return ClassVerdict(TopologyClass.NVSWITCH, reason, certain=False)
    reason = f"boards with {model} exist with NVSwitches and without"
    return ClassVerdict(
        TopologyClass.UNKNOWN, reason, (TopologyClass.NVSWITCH, TopologyClass.NVLINK_MESH)
    )


AMPERE_CARDS = 14.0625e9
"""GeForce and workstation cards of the Ampere line: 14.062 GB/s in nvidia-smi."""

OF_VERSION: Mapping[int, tuple[str, float]] = {
    1: ("1.0", 20e9),
    2: ("2.0", 25e9),
    3: ("2.2", 25e9),
    4: ("3.0", 25e9),
    5: ("3.1", AMPERE_CARDS),
    6: ("4.0", 25e9),
    7: ("5.0", 50e9),
}
"""NVML's number -> (version, bytes per second)."""

OF_CAPABILITY: Mapping[int, float] = {
    60: 20e9,
    70: 25e9,
    75: 25e9,
    80: 25e9,
    86: AMPERE_CARDS,
    90: 25e9,
    100: 50e9,
    103: 50e9,
}
"""Compute capability x 10 -> bytes per second. 7.5 is from NVIDIA's Turing architecture whitepaper."""


XGMI: Mapping[str, tuple[float, str]] = {
    "gfx906": (24e9, "RCCL's constant for Vega, an effective rate"),
    "gfx908": (46e9, "23 GT/s x 16 lanes, ROCm documentation of the MI100"),
    "gfx90a": (50e9, "25 GT/s x 16 lanes, ROCm documentation of the MI250"),
    "gfx94": (64e9, "32 GT/s x 16 lanes: Linux, amdgpu_xgmi.h"),
    "gfx95": (
        76.8e9,
        "assumed: half of the 153.6 GB/s both ways that are stated for the MI350X",
    ),
}
"""Architecture, or how its name begins -> one xGMI link and where that is from. ROCm/rccl, src/graph/topo.h
searches with 24 (Vega), 36 (gfx90a) and 48 GB/s (gfx94x, gfx95x)."""

_OLD_NAMES = {
    "910": "gfx90a"
}  # RCCL wrote the decimal version of the architecture until it wrote the name


def nvlink_rate(sm: str) -> tuple[float | None, str]:
    """Return bytes per second of one NVLink of a GPU with ``sm`` as the file prints it, and its origin."""
    rate = OF_CAPABILITY.get(int(sm)) if re.fullmatch(r"[0-9]{2,3}", sm, re.ASCII) else None
    if rate is None:
        return None, "rate not stated"
    return rate, f"datasheet rate of one NVLink at compute capability {int(sm) / 10:.1f}"


def xgmi_rate(gcn: str) -> tuple[float | None, str]:
    """Return bytes per second of one xGMI link of a GPU with ``gcn`` (``gfx942``, ``910``), and origin."""
    name = _OLD_NAMES.get(gcn, gcn if gcn.startswith("gfx") else f"gfx{gcn}")
    for beginning, (rate, origin) in XGMI.items():
        if name.startswith(beginning):
            return rate, origin
    return None, "rate not stated"


def topology_class(topology: Topology) -> TopologyClass:
    """The class of the GPUs of one machine; of a cluster, the one that all its machines share.

    Links that are down count: a machine with a broken NVLink is still an NVLink machine. UNKNOWN where
    there is no GPU, where machines differ, and where nobody could look for NVLinks.
    """
    by_node: dict[int, tuple[list[Device], list[Link]]] = {}
    for gpu in topology.gpus:
        by_node.setdefault(gpu.node, ([], []))[0].append(gpu)
    node_of = {gpu.name: gpu.node for gpu in topology.gpus}
    for link in topology.links:
        if link.source in node_of:
            by_node[node_of[link.source]][1].append(link)
    # Machines that differ have no class together.
    classes = {_class_of_node(topology, *gpus_and_links) for gpus_and_links in by_node.values()}
    return classes.pop() if len(classes) == 1 else TopologyClass.UNKNOWN


def _class_of_node(
    topology: Topology, gpus: Sequence[Device], links: Sequence[Link]
) -> TopologyClass:
    names = {gpu.name for gpu in gpus}
    switches = {device.name for device in topology.of_kind(DeviceKind.NVSWITCH)}
    nvlinks = [link for link in links if link.kind is LinkKind.NVLINK]
    if any(link.target in switches for link in nvlinks):
        return TopologyClass.NVSWITCH
    if len(gpus) == 1:
        return TopologyClass.SINGLE_GPU
    kinds = {link.kind for link in links if link.target in names and link.target != link.source}
    if LinkKind.XGMI in kinds:
        return TopologyClass.XGMI_MESH
    if LinkKind.HCCS in kinds:
        return TopologyClass.HCCS_FULL_MESH
    if LinkKind.NVLINK in kinds:
        # POWER: NVLinks end at the processor too.
        on_board = any(
            is_module(gpu.model) or "nvlinks_to_processor" in gpu.attributes for gpu in gpus
        ) or any(link.target not in names for link in nvlinks)
        pairs = [(link.source, link.target) for link in nvlinks]
        shape = class_of_direct_links(sorted(names), pairs, on_board, forgiven=1)
        return shape or TopologyClass.NVLINK_MESH
    # The absence of NVLinks and the like is an answer only where somebody looked for them.
    hidden = any(
        warning.kind == "not_visible" and "NVLink" in warning.text
        for warning in topology.warnings
    )
    if hidden or any(gpu.attributes.get("nvlinks_up_unknown_end") for gpu in gpus):
        looked = False
    elif topology.facts.get("nvlinks_per_gpu") is not None:
        looked = True
    elif topology.matrix:
        looked = set(permutations(names, 2)) <= topology.matrix.keys()
    else:
        looked = any(
            link.kind is LinkKind.PCIE and link.state is not LinkState.NOT_VISIBLE
            for link in links
        )
    return TopologyClass.PCIE if looked else TopologyClass.UNKNOWN
