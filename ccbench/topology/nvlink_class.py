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
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ccbench.topology.graph import TopologyClass
from ccbench.topology.models import MOST_LINKS
from ccbench.topology.nvlink_shape import connected_groups, is_cube_mesh

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
