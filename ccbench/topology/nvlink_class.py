"""The class of a machine from what nvidia-smi shows of its NVLinks: counts per pair, or counts and models.

``NV#`` is the number of active NVLinks on the path between two GPUs: to each other where they are linked
directly, to the switches where they are not. The rules therefore count links:

* No GPU up to Blackwell has more than 18 NVLinks (P100 4, V100 6, A100 12, H100 and B200 18: NVIDIA's
  architecture papers). Where the NV# of one GPU's row add up to more, the links must be shared: **NVSwitch**.
* Fewer than 6 links never lead to a switch: the GPUs behind NVSwitches have 6 (DGX-2), 8 (H800), 12 or 18.
  All pairs linked with fewer: **mesh** (HGX A100 4-GPU 4 per pair, DGX Station and 4 x V100 boards 2).
* All pairs with 6 to 18, and few enough GPUs for direct links: both exist (H100 4-GPU boards and H200 NVL
  with 6 per pair; part of a DGX-2 or HGX board; two A100 PCIe cards under three bridges print NV12 as two
  A100 SXM do): **unknown**, except in the heading of drivers before 2020, when no GPU had more than 6 links.
* Eight GPUs, four peers each, two complete quads joined by a perfect matching: **cube mesh** (DGX-1, whatever
  the order of the GPUs; NVIDIA DGX-1 architecture paper).
* Pairs only: **bridge** where a bridge has that many links (1 or 2: GeForce and Quadro RTX 20; 4: GeForce
  3090, RTX A6000; 4, 8, 12 or 18: A100, H100 and H200 NVL cards), else a board's own links (NV3 of POWER9):
  **mesh**.
  The heading of drivers before 2020 has no NUMA Affinity; bridges of that time had 1 or 2 links outside
  workstations, so NV4 there is a board.
* No NV# at all: **pcie**. What is left: **mesh**, partly connected.

The class of a machine from lists of each GPU's NVLinks, the model's name and, with ``-R``, the far ends.

Certain:

* A far end's link number above 17 is a port of an NVSwitch, because no GPU up to Blackwell has more than 18.
  So is the address FFFFFFFF:FF:FF.0, which stands for switches that are not shown (NCCL takes it for one as
  well: src/graph/xml.cc). Far ends that are the listed GPUs themselves, three and more: **mesh**.
* Cards (PCIe, NVL, GeForce, RTX, A6000 ...) have NVLinks over bridges only: active ones mean **bridge**,
  none active on two cards means **pcie**.
* Modules for boards (SXM, and the names that only modules have). V100-DGXS is a DGX Station's: **mesh**.
  V100-SXM3 exists in DGX-2 and HGX-2, H800 and B200 / B300 on eight-GPU boards: **NVSwitch**. A GPU number of
  4 or more means an eight-GPU board: **NVSwitch** from A100 on, **cube mesh** for P100-SXM2 and V100-SXM2,
  for which no board had switches.

Not certain, and marked so: H100, H200 and GB200 modules are taken for NVSwitch, since the boards with four
of them and no switches (HGX H100 4-GPU, GB200 NVL4) are rare; A100-SXM4 with numbers below 4 is left
**unknown**, since its four-GPU board is not; so are P100-SXM2 and V100-SXM2 with numbers below 4 (mesh or
part of a cube mesh).

Sources: NVIDIA's data sheets of the boards named, as far as names and numbers of links go.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ccbench.topology.classes import MOST_LINKS, connected_groups, is_card, is_cube_mesh, is_module
from ccbench.topology.graph import TopologyClass

MOST_LINKS_BEFORE_2020 = 6
"""NVLinks of a V100."""

FEWEST_TO_SWITCHES = 6
"""NVLinks of the switched GPU with the fewest: V100 in a DGX-2."""

BRIDGES = frozenset({1, 2, 4, 8, 12, 18})
BRIDGES_BEFORE_2020 = frozenset({1, 2})
"""Links that one to three bridges between two cards have."""


@dataclass(frozen=True)
class Verdict:
    """A class and why; ``candidates`` where the class is unknown but not open.

    certain: False for the usual class where a rarer one would look the same.
    """

    topology_class: TopologyClass
    reason: str
    candidates: tuple[TopologyClass, ...] = ()
    certain: bool = True

    @property
    def nvswitch(self) -> bool | None:
        """Whether GPUs hang on NVSwitches; None where that is open."""
        if self.topology_class is not TopologyClass.UNKNOWN:
            return self.topology_class is TopologyClass.NVSWITCH
        return None if not self.candidates or TopologyClass.NVSWITCH in self.candidates else False


Counts = Mapping[tuple[int, int], int]
"""(GPU, GPU) -> NVLinks between them, both orders, pairs without NVLinks left out."""


def class_of_counts(counts: Counts, gpu_count: int, *, before_2020: bool = False) -> Verdict:
    """The class of a machine whose matrix was seen whole, or of what a cut matrix shows.

    counts: NV# of every pair seen; gpu_count: GPUs of the heading; before_2020: old heading (see above).
    """
    if gpu_count < 2:
        return Verdict(TopologyClass.SINGLE_GPU, "one GPU")
    if not counts:
        return Verdict(TopologyClass.PCIE, "no pair of GPUs shows NVLinks")
    most_links = MOST_LINKS_BEFORE_2020 if before_2020 else MOST_LINKS
    widest = max(links_per_gpu(counts, gpu_count))
    if widest > most_links:
        return Verdict(
            TopologyClass.NVSWITCH,
            f"the NV# of one GPU add up to {widest}, more than the {most_links} links a GPU has",
        )
    if is_cube_mesh(_peers(counts, range(gpu_count))):
        return Verdict(TopologyClass.NVLINK_CUBE_MESH, "two complete quads joined by a perfect matching")
    groups = linked_groups(counts)
    if all(len(group) == 2 for group in groups):
        return _class_of_pairs(counts, gpu_count, before_2020)
    complete = len(counts) == gpu_count * (gpu_count - 1)
    if complete and min(counts.values()) >= FEWEST_TO_SWITCHES:
        return Verdict(
            TopologyClass.UNKNOWN,
            f"{gpu_count} GPUs with {min(counts.values())} links per pair exist with switches and without",
            (TopologyClass.NVSWITCH, TopologyClass.NVLINK_MESH),
        )
    return Verdict(TopologyClass.NVLINK_MESH, "direct links, fewer per pair than lead to switches")


def _class_of_pairs(counts: Counts, gpu_count: int, before_2020: bool) -> Verdict:
    widest = max(counts.values())
    if gpu_count == 2 and widest >= FEWEST_TO_SWITCHES:
        others = (TopologyClass.NVSWITCH, TopologyClass.NVLINK_BRIDGE, TopologyClass.NVLINK_MESH)
        return Verdict(TopologyClass.UNKNOWN, f"NV{widest} between two GPUs can be all of these", others)
    bridges = BRIDGES_BEFORE_2020 if before_2020 else BRIDGES
    if set(counts.values()) <= bridges:
        return Verdict(TopologyClass.NVLINK_BRIDGE, f"pairs only, with the {widest} links of a bridge")
    return Verdict(TopologyClass.NVLINK_MESH, f"pairs only, with {widest} links, which no bridge has")


def links_per_gpu(counts: Counts, gpu_count: int) -> list[int]:
    """The sum of each GPU's row."""
    totals = [0] * gpu_count
    for (gpu, _), links in counts.items():
        totals[gpu] += links
    return totals


def linked_groups(counts: Counts) -> list[list[int]]:
    """GPUs that reach each other over NVLinks, groups of two and more, in order."""
    return sorted(sorted(group) for group in connected_groups(_peers(counts, ())))


def _peers(counts: Counts, gpus: Iterable[int]) -> dict[int, set[int]]:
    peers: dict[int, set[int]] = {gpu: set() for gpu in gpus}
    for gpu, peer in counts:
        peers.setdefault(gpu, set()).add(peer)
        peers.setdefault(peer, set()).add(gpu)
    return peers


_ALWAYS_SWITCHED = re.compile(r"SXM3|\bH(?:800|20)\b|\bB[23]00\b", re.IGNORECASE)
_USUALLY_SWITCHED = re.compile(r"\bH(?:100|200)\b|\bGB[23]00\b", re.IGNORECASE)
_EIGHT_GPU_BOARD = 4
"""A GPU number from here on is not on a four-GPU board."""


@dataclass
class PhysicalLink:
    """What a text says of one link of one GPU; rates in one direction."""

    index: int
    gigabytes_per_second: float | None = None
    is_inactive: bool = False
    remote: str = ""
    remote_link: int | None = None
    capabilities: dict[str, bool] = field(default_factory=dict)

    @property
    def has_state(self) -> bool:
        """Whether the text says if the link is up."""
        return self.is_inactive or self.gigabytes_per_second is not None

    @property
    def is_known(self) -> bool:
        """Whether the text says anything about it."""
        return self.has_state or bool(self.remote) or bool(self.capabilities)


@dataclass
class Listing:
    """One GPU's part of the text; index None where the text does not say which GPU."""

    index: int | None
    model: str
    uuid: str
    links: dict[int, PhysicalLink] = field(default_factory=dict)
    all_inactive: bool = False
    is_cut: bool = False
    line: int | None = None

    @property
    def name(self) -> str:
        """As topo -m calls it."""
        return "GPU" if self.index is None else f"GPU{self.index}"

    @property
    def has_state(self) -> bool:
        """Whether the text says which links are up."""
        return self.all_inactive or any(link.has_state for link in self.links.values())

    @property
    def active(self) -> int:
        """Links that have a rate."""
        return sum(link.gigabytes_per_second is not None for link in self.links.values())

    @property
    def rates(self) -> list[float]:
        """The distinct rates, in GB/s and one direction."""
        known = {link.gigabytes_per_second for link in self.links.values()}
        return sorted(rate for rate in known if rate is not None)

    @property
    def down(self) -> list[int | str]:
        """Numbers of the links that are down; ["all"] where the driver says no more."""
        if self.all_inactive:
            return ["all"]
        return [index for index, link in sorted(self.links.items()) if link.is_inactive]

    @property
    def remotes(self) -> dict[str, int]:
        """PCI address of a far end -> links that lead there."""
        found: dict[str, int] = {}
        for link in self.links.values():
            if link.remote:
                found[link.remote] = found.get(link.remote, 0) + 1
        return dict(sorted(found.items()))

    def bundles(self) -> dict[str, list[PhysicalLink]]:
        """Links by far end; the far end is empty where the text does not say it."""
        found: dict[str, list[PhysicalLink]] = {}
        for _, link in sorted(self.links.items()):
            if link.has_state or link.remote:
                found.setdefault(link.remote, []).append(link)
        return found


def is_hidden(remote: str) -> bool:
    """Whether a far end is the address that stands for NVSwitches which a container or VM does not show."""
    return remote.upper().startswith("FFFFFF")


def class_of_listings(listings: list[Listing]) -> Verdict:
    """The class as far as models, GPU numbers and far ends tell it."""
    far_ports = [link.remote_link for listing in listings for link in listing.links.values()]
    if any(port is not None and port >= MOST_LINKS for port in far_ports):
        return Verdict(TopologyClass.NVSWITCH, "links lead to ports that no GPU has")
    if any(is_hidden(remote) for listing in listings for remote in listing.remotes):
        return Verdict(TopologyClass.NVSWITCH, "the far ends are NVSwitches that this system does not show")
    if len(remote_gpus(listings)) > 2:
        return Verdict(TopologyClass.NVLINK_MESH, "the far ends are the listed GPUs themselves")
    models = {listing.model for listing in listings}
    model = next(iter(models))
    if len(models) > 1 or not model:
        return Verdict(TopologyClass.UNKNOWN, "the text does not say one model")
    highest = max(listing.index or 0 for listing in listings)
    if is_module(model):
        return _class_of_module(model, highest)
    if not is_card(model):
        return Verdict(TopologyClass.UNKNOWN, f"{model} is not known as a card or a module")
    if any(listing.active or listing.remotes for listing in listings):
        return Verdict(TopologyClass.NVLINK_BRIDGE, f"{model} is a card, its links are bridges")
    if len(listings) > 1 and all(listing.all_inactive for listing in listings):
        return Verdict(TopologyClass.PCIE, f"{model} is a card and no link is active")
    return Verdict(TopologyClass.UNKNOWN, f"one {model} without active links may have sisters")


def _class_of_module(model: str, highest: int) -> Verdict:
    if "DGXS" in model.upper():
        return Verdict(TopologyClass.NVLINK_MESH, f"{model} is made for the DGX Station, a mesh of four")
    if "SXM2" in model.upper():
        if highest >= _EIGHT_GPU_BOARD:
            return Verdict(TopologyClass.NVLINK_CUBE_MESH, f"GPU {highest} of a board with {model}")
        meshes = (TopologyClass.NVLINK_MESH, TopologyClass.NVLINK_CUBE_MESH)
        return Verdict(
            TopologyClass.UNKNOWN, f"boards with {model} are meshes of 4 or cube meshes of 8", meshes
        )
    if highest >= _EIGHT_GPU_BOARD or _ALWAYS_SWITCHED.search(model):
        return Verdict(TopologyClass.NVSWITCH, f"boards with {model} and this many GPUs have NVSwitches")
    if _USUALLY_SWITCHED.search(model):
        reason = f"{model} usually sits behind NVSwitches; a four-GPU board without prints the same"
        return Verdict(TopologyClass.NVSWITCH, reason, certain=False)
    both = (TopologyClass.NVSWITCH, TopologyClass.NVLINK_MESH)
    return Verdict(TopologyClass.UNKNOWN, f"boards with {model} exist with NVSwitches and without", both)


def remote_gpus(listings: list[Listing]) -> dict[str, int]:
    """PCI address -> position of the GPU that has it, where the far ends are the listed GPUs themselves.

    The text does not print the GPUs' own addresses. Among directly linked GPUs each address is missing from
    exactly one list, its own; where that does not work out for all of them, nothing is returned.
    """
    seen = sorted({remote for listing in listings for remote in listing.remotes})
    if len(seen) != len(listings) or len(listings) < 2:
        return {}
    owners: dict[str, int] = {}
    for position, listing in enumerate(listings):
        missing = [remote for remote in seen if remote not in listing.remotes]
        if len(missing) != 1 or missing[0] in owners:
            return {}
        owners[missing[0]] = position
    return owners
