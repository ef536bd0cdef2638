"""The class of a machine from lists of each GPU's NVLinks, the model's name and, with ``-R``, the far ends.

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
from dataclasses import dataclass, field

from ccbench.topology.graph import TopologyClass
from ccbench.topology.models import MOST_LINKS, is_card, is_module
from ccbench.topology.nvlink_class import Verdict

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
