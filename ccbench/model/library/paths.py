"""The way of data between the GPUs of a node that no NVLink joins: from GPU to GPU, or through memory of the host.

It decides more than any other fact of such a machine: over seventeen published boxes each, large all_reduces take
0.59 to 0.80 of the link directly, and 0.05 to 0.57 of it through the host (``pcie_boxes.yaml``). NCCL's rule
(NVIDIA/nccl, ncclTopoCheckP2p of src/graph/paths.cc): directly below common PCIe switches (PIX, PXB), on AMD's
processors at any distance where there are no more than two GPUs, and where NCCL_P2P_LEVEL says so; in no case where
the driver gives no peer access. One pair that a ring cannot avoid decides for all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ccbench.documents import read_installed
from ccbench.model.library import Generation, HostProcessor, Intra, LibrarySystem, PciePath
from ccbench.model.library.constants import FOLDER
from ccbench.topology.classes import connected_groups
from ccbench.topology.graph import Device, Topology
from ccbench.topology.matrix import path_labels

LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
"""Distances, nearest first, by the words of NCCL_P2P_LEVEL; what nvidia-smi calls NODE is PHB to NCCL."""

_NUMBERED = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "PHB", "5": "SYS"}
"""Numbers that NCCL_P2P_LEVEL may be ("Environment Variables" of NCCL's user guide)."""

_PEERLESS = frozenset({"CNS", "GNS", "TNS", "NS", "DR"})
"""Words of ``nvidia-smi topo -p2p`` where data between two GPUs pass through host memory."""

_GEFORCE = re.compile(r"(?:GeForce|RTX) *(?:RTX *)?[2345]0[5-9]0", re.IGNORECASE)
"""Cards between which NVIDIA's driver gives no peer access over PCIe; patched drivers do."""

FEW_OF_AMD = 2
"""GPUs up to which NCCL goes directly across AMD's processors."""


P2P_VARIABLES = ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE")


def with_path(node: Topology, seen: Mapping[str, str]) -> Topology:
    """Return ``node`` with what was seen of the path between its GPUs: ``channels`` (SHM or P2P), P2P_VARIABLES."""
    facts = {"channel_path": seen.get("channels"), "variables": dict(seen)}
    return replace(node, facts={**node.facts, **facts}) if seen else node


def pcie_path(
    topology: Topology, gpus: Sequence[Device], host: HostProcessor, nodes: int = 1
) -> tuple[PciePath, str]:
    """Return the path between ``gpus`` of one node, and the evidence.

    topology.facts: those of ``with_path``, ``p2p_matrix`` and ``p2p_access`` (of topo -p2p), ``peer_access``.
    """
    facts, variables = topology.facts, topology.facts.get("variables") or {}
    seen, peers = facts.get("channel_path") or "", peer_access(facts, range(len(gpus)))
    crossed = _crossed(topology, gpus, "PXB")
    direct = PciePath.ACROSS if crossed else PciePath.DIRECT
    if "SHM" in seen:
        return PciePath.HOST, "NCCL's channels go via SHM"
    if seen:
        return direct, "NCCL's channels go via P2P"
    if variables.get("NCCL_P2P_DISABLE") == "1":
        return PciePath.HOST, "NCCL_P2P_DISABLE=1"
    if peers is False:
        return PciePath.HOST, "no peer access"
    if nodes > 1:
        return direct, "of several nodes distances do not decide: published ones are faster"
    level, few = level_of(variables), len(gpus) <= FEW_OF_AMD
    allowed = level or ("SYS" if few and host is HostProcessor.AMD else "PXB")
    too_far = _crossed(topology, gpus, allowed)
    if too_far is None:
        return PciePath.UNKNOWN, "how far the GPUs are from each other is not known"
    geforce = peers is None and any(_GEFORCE.search(str(gpu.model)) for gpu in gpus)
    if not too_far and geforce:
        return PciePath.UNKNOWN, "GeForce cards, whose driver mostly gives no peer access"
    if not too_far:
        return direct, f"a ring stays within {allowed}" + (
            f" (NCCL_P2P_LEVEL={level})" if level else ""
        )
    if few and not level and host is HostProcessor.UNKNOWN:
        return PciePath.UNKNOWN, f"two GPUs {too_far} apart: direct on AMD's processors alone"
    why = f"a ring crosses {too_far}, and NCCL goes directly up to {allowed}"
    if geforce:
        return PciePath.HOST, why
    knob = (
        "NCCL_P2P_LEVEL=SYS changes that, mostly for the better, for all_to_all for the worse"
    )
    return PciePath.HOST, f"{why}; {knob}"


def peer_access(facts: Mapping[str, Any], places: Sequence[int]) -> bool | None:
    """Return whether the driver lets the GPUs of ``places`` reach each other; None where nobody says."""
    # What was asked of may be NVLink or atomics.
    asked = facts.get("p2p_access") in (None, "read", "write")
    rows = facts.get("p2p_matrix") if asked else None
    words = {
        word
        for i, row in enumerate(rows if isinstance(rows, list) else ())
        for j, word in enumerate(row if isinstance(row, list) else ())
        if i in places and j in places
    }
    if words & _PEERLESS:
        return False
    stated = facts.get("peer_access")
    return stated if isinstance(stated, bool) else (True if "OK" in words else None)


def level_of(variables: Mapping[str, str]) -> str:
    """Return the distance of LEVELS that NCCL_P2P_LEVEL allows; "" where it is not set, or no word of NCCL's."""
    word = str(variables.get("NCCL_P2P_LEVEL", "")).upper()
    return word if word in LEVELS else _NUMBERED.get(word, "")


def _crossed(topology: Topology, gpus: Sequence[Device], most: str) -> str | None:
    """Return the distances above ``most`` that a ring of ``gpus`` cannot avoid, "" for none; None if not known."""
    near: dict[str, set[str]] = {gpu.name: set() for gpu in gpus}
    above = set()
    for (one, other), label in path_labels(topology, gpus).items():
        if one == other:
            continue
        word = "NVL" if label.startswith("NV") else label.replace("NODE", "PHB")
        if word not in LEVELS:
            return None
        if LEVELS.index(word) <= LEVELS.index(most):
            near[one].add(other)
        else:
            above.add(word)
    return "" if len(connected_groups(near)) == 1 else "/".join(sorted(above, key=LEVELS.index))


@dataclass(frozen=True)
class PcieBox:
    """Row of ``pcie_boxes.yaml``. pcie: generation. busbw: of large all_reduces, GB/s. known: how the path is."""

    box: str
    ranks: int
    pcie: int
    path: PciePath
    busbw: float
    known: str
    source: str

    @property
    def share(self) -> float:
        """Of the link's rate in one direction."""
        return self.busbw * 1e9 / LINK_RATES[self.pcie]


_PATHS = {"direct": PciePath.DIRECT, "across": PciePath.ACROSS, "host": PciePath.HOST}

LINK_RATES = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9}
"""Bytes per second of x16 in one direction, after coding."""

BOXES: tuple[PcieBox, ...] = tuple(
    PcieBox(name, ranks, pcie, _PATHS[path], float(busbw), known, source)
    for name, ranks, pcie, path, busbw, known, source in read_installed(
        FOLDER / "pcie_boxes.yaml"
    )
)


def shares_of(path: PciePath) -> list[float]:
    """Return the shares of the link that boxes with ``path`` have, lowest first; of a box the median."""
    direct = path is not PciePath.HOST
    by_box: dict[str, list[float]] = {}
    for row in BOXES:
        if (row.path is not PciePath.HOST) is direct and row.known != "ill":
            by_box.setdefault(row.box, []).append(row.share)
    return sorted(median(shares) for shares in by_box.values())


def place_among_boxes(path: PciePath, share: float) -> str:
    """Return how many boxes with ``path`` have less than ``share`` of the link; with an unknown one, of both kinds."""
    texts = []
    for way, through in ((PciePath.HOST, "through host memory"), (PciePath.DIRECT, "directly")):
        if path is PciePath.UNKNOWN or (path is PciePath.HOST) is (way is PciePath.HOST):
            known = shares_of(way)
            below = sum(other < share for other in known)
            span = (
                f"{known[0]:.0%} to {known[-1]:.0%}, half of them {median(known):.0%} or more"
            )
            texts.append(
                f"{len(known)} published boxes go {through}, {below} of them with less in all_reduce ({span})"
            )
    return "; ".join(texts)


def system_of_box(box: PcieBox) -> LibrarySystem:
    """Return the model's view of a box."""
    intra = Intra.HOST if box.path is PciePath.HOST else Intra.PCIE
    return LibrarySystem(
        f"{box.ranks} GPUs",
        Generation.UNKNOWN,
        box.ranks,
        1,
        intra,
        LINK_RATES[box.pcie],
        1,
        path=box.path,
    )
