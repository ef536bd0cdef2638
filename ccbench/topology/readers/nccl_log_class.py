"""How the GPUs of a node hang together, from the graph NCCL drew or from what it did with them."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

from ccbench.topology.graph import DeviceKind, LinkKind, TopologyClass
from ccbench.topology.nvlink_shape import class_of_direct_links
from ccbench.topology.readers.nccl_log_graph import MachineGraph

PCI_CHUNK_BYTES = 2**17
"""NCCL_P2P_PCI_CHUNKSIZE: taken on one node exactly when some pair has no NVLink path (NCCL's init.cc)."""

SWITCH_CHANNELS = 8
"""With PCIe NCCL opens at most half as many channels; meshes give their channels different orders."""

_PCI_PATHS = frozenset({"PIX", "PXB", "P2C", "PXN", "PHB", "SYS", "NODE"})

Verdict = tuple[TopologyClass, bool | None, str]
"""The class, whether there is an NVSwitch (None: not said), and why."""

_NOTHING: Verdict = (TopologyClass.UNKNOWN, None, "nothing in this log says how the GPUs are joined")


@dataclass(frozen=True)
class Evidence:
    """What the log showed. multicast: whether NVLS, which only NVSwitches can do, is available."""

    graph: MachineGraph
    facts: dict[str, Any]
    multicast: bool
    library: str | None


def classify(evidence: Evidence) -> Verdict:
    """The class by the strongest evidence there is; UNKNOWN without any."""
    for judge in (_by_graph, _by_table, _by_search, _by_rings, _by_trees):
        verdict = judge(evidence)
        if verdict is not None:
            return verdict
    return _NOTHING


def _by_graph(evidence: Evidence) -> Verdict | None:
    graph = evidence.graph
    gpus = [device.name for device in graph.devices if device.kind is DeviceKind.GPU]
    if any(device.kind is DeviceKind.NVSWITCH for device in graph.devices):
        return TopologyClass.NVSWITCH, True, "NVLinks end in NVS"
    if evidence.multicast:
        return TopologyClass.NVSWITCH, True, "NVLink multicast is available, which needs NVSwitches"
    if any(link.kind is LinkKind.XGMI for link in graph.links):
        return TopologyClass.XGMI_MESH, False, "XGMI links join the GPUs"
    if evidence.facts["complete_graph"] or graph.direct:
        on_board = any(
            link.kind is LinkKind.NVLINK and "cpu" in link.source + link.target for link in graph.links
        )
        shape = class_of_direct_links(gpus, graph.direct, on_board)
        if shape is not None:
            return shape, False, "NVLinks join GPUs directly"
    if not evidence.facts["complete_graph"] or not gpus:
        return None
    if len(gpus) == 1:
        return TopologyClass.SINGLE_GPU, False, "the whole graph has one GPU"
    return TopologyClass.PCIE, False, "the whole graph has no NVLink"


def _by_table(evidence: Evidence) -> Verdict | None:
    """Every pair of GPUs in the table of paths."""
    rows = evidence.facts.get("gpu_matrix")
    kinds = {label for row in rows for label in row if label != "X"} if rows else set()
    if kinds and kinds <= _PCI_PATHS:
        return TopologyClass.PCIE, False, "every path between GPUs runs over PCIe"
    return None


def _by_search(evidence: Evidence) -> Verdict | None:
    """What NCCL's search and its settings admit to."""
    facts = evidence.facts
    pattern = facts.get("ring_pattern") or {}
    if pattern.get("nchannels") and pattern.get("type_intra") in _PCI_PATHS:
        return TopologyClass.PCIE, False, f"rings inside the node use {pattern['type_intra']}"
    if facts["nnodes"] == 1 and facts["p2p_chunk_bytes"] == PCI_CHUNK_BYTES and (facts["nranks"] or 0) > 1:
        return TopologyClass.PCIE, False, "the chunk size is the one NCCL takes without NVLink between all"
    return None


def _by_rings(evidence: Evidence) -> Verdict | None:
    """Rings of one node that load every pair alike in different orders: a direct link per pair.

    NCCL's search takes links away as channels use them, so only direct links force different orders; over a
    switch or PCIe all channels take one order.
    """
    facts = evidence.facts
    rings = list(facts["rings"].values())
    if facts["nnodes"] != 1 or not rings or len(rings) != facts["channels_total"] or len(rings[0]) < 3:
        return None
    pairs = Counter(
        (min(left, right), max(left, right))
        for ring in rings
        for left, right in zip(ring, [*ring[1:], ring[0]], strict=True)
    )
    ranks = sorted(rings[0])
    joined = all(pair in pairs for pair in itertools.combinations(ranks, 2)) if len(ranks) <= 16 else False
    orders = {tuple(ring) for ring in rings}
    if not joined or len(set(pairs.values())) != 1 or len(orders) < 2:
        return None
    if evidence.library == "RCCL":
        return TopologyClass.XGMI_MESH, False, "the rings load every pair of GPUs alike"
    return TopologyClass.NVLINK_MESH, False, "the rings load every pair of GPUs alike"


def _by_trees(evidence: Evidence) -> Verdict | None:
    """Many channels that all form one chain through the GPUs of one process group: a switch.

    A chain of three or more ranks in which each has at most one child cannot come from a mesh, whose channels
    differ, nor from PCIe, which never fills that many channels.
    """
    facts = evidence.facts
    trees = facts["trees"]
    if facts["nnodes"] not in (None, 1) or len(facts["hosts"]) > 1 or len(trees) < 3:
        return None
    for places in trees.values():
        first = next(iter(places.values()))
        same = all(place == first for place in places.values())
        if len(places) < SWITCH_CHANNELS or not same or len(first["children"]) > 1:
            return None
    if evidence.library == "RCCL":
        return None
    return TopologyClass.NVSWITCH, True, "many channels, all of them one chain through the same GPUs"
