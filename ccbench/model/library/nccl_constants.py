"""NCCL's published tuning constants, as facts with their place in NCCL's source.

All from src/graph/tuning.cc and src/graph/topo.h of github.com/NVIDIA/nccl at 2.30.7 (commit 5067397c), in
microseconds and GB/s (1e9); protocols in the order LL, LL128, Simple. AMD's are from src/graph/tuning.cc of
github.com/ROCm/rccl (model 5, gfx942).
"""

from __future__ import annotations

from ccbench.model.library.system import Generation, Host

Triple = tuple[float, float, float]

BASE_MICROSECONDS: dict[str, Triple] = {
    "tree": (6.8, 14.0, 8.4),
    "ring": (6.6, 14.0, 8.4),
    "pat": (8.0, 8.0, 8.0),
}
"""Fixed cost of one launch."""

RCCL_BASE_MICROSECONDS: dict[str, Triple] = {"tree": (12.0, 12.0, 17.0), "ring": (12.0, 12.0, 17.0)}

HOP_MICROSECONDS: dict[str, dict[str, Triple]] = {
    "nvlink": {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4), "pat": (4.0, 4.0, 4.0)},
    "pci": {"tree": (1.0, 1.9, 4.0), "ring": (1.0, 2.5, 5.7), "pat": (4.0, 4.0, 4.0)},
    "network": {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0), "pat": (14.0, 14.0, 14.0)},
}
"""One hop: NVLink, PCIe or host memory, network."""

RCCL_HOP_MICROSECONDS: dict[str, dict[str, Triple]] = {
    "nvlink": {"tree": (0.9, 0.9, 2.3), "ring": (0.8, 0.8, 2.1)},
    "pci": {"tree": (2.2, 2.2, 5.7), "ring": (2.2, 2.2, 5.7)},
    "network": {"tree": (10.5, 10.5, 25.0), "ring": (9.5, 9.5, 25.0)},
}
"""RCCL writes 320 for Ring with Simple, so that it is never chosen; Tree's figure stands here instead."""

NVLS_HOP_MICROSECONDS = 25.0
NVLS_NETWORK_MICROSECONDS = 18.0
NVLSTREE_NETWORK_MICROSECONDS = 20.9

COLLNET_DIRECT_HOP_MICROSECONDS = 3.7
COLLNET_DIRECT_PEER_MICROSECONDS = 0.4
"""Each further GPU of the node that a direct hop addresses."""

COLLNET_CHAIN_HOP_MICROSECONDS = 2.8
COLLNET_NETWORK_MICROSECONDS = {"direct": 31.0, "chain": 30.0}

PAT_OVERLAP = 3.5
PAT_RANK_MICROSECONDS = 2.8
PAT_RATE = 0.75
"""PAT's hops overlap so that one counts 1 / PAT_OVERLAP; every rank adds to its latency; share of the bus."""

LL_MOST_GBYTES: dict[str, Triple] = {
    "volta": (39.0, 39.0, 20.4),
    "ampere": (87.7, 22.5, 19.0),
    "hopper": (141.0, 45.0, 35.0),
    "blackwell": (282.0, 90.0, 70.0),
}
"""Most that LL moves: on one node, two nodes, more."""

RING_LL128_CHANNEL_GBYTES = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
TREE_LL128_CHANNEL_GBYTES: dict[str, Triple] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
TREE_CHANNEL_GBYTES: dict[str, Triple] = {
    "volta": (26.5, 18.5, 10.0),
    "ampere": (24.0, 23.6, 17.8),
    "hopper": (38.7, 41.4, 36.0),
    "blackwell": (70.0, 42.8, 24.0),
}
LL_RATE = 0.5
LL128_RATE = 0.92
TREE_RATE = 0.92
TREE_LL_DIVISOR = 3.8
TREE_LL128_RATE = (7 / 9, 120 / 128)
"""Shares of the bus: LL and LL128 in rings, Tree, its LL, its LL128 on one node and on several."""

PLATEAU_BYTES = 64
PLATEAU = {"volta": 1.9}
PLATEAU_ELSEWHERE = 1.4
"""Factor on the latency of Ring with Simple over nodes, from so many bytes a channel and rank on."""

NVLSTREE_CHANNEL_GBYTES: dict[str, Triple] = {
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}
NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}

TREE_CORRECTION: tuple[tuple[float, ...], ...] = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8,
     0.9, 0.9, 0.9),
)  # fmt: skip
"""Factor on Tree's rate for 64 B, 128 B, ... 256 MiB, by protocol."""

PROXY_MICROSECONDS = {Host.AMD: 2.0}
"""Cost of a network hop's proxy thread, also the least cost of a hop inside nodes of a cluster (three times
as much with Simple); ``PROXY_ELSEWHERE_MICROSECONDS`` on other processors."""

PROXY_ELSEWHERE_MICROSECONDS = 1.0
PROXY_SIMPLE = 3.0
FLUSHES_SIMPLE = 2.0
"""Simple waits for the NIC's latency twice: data, then a flush (NCCL adds graph.latencyInter twice)."""


def table_row(generation: Generation) -> str:
    """The row of NCCL's per-generation tables that a generation uses; unknown ones count as Ampere."""
    rows = {
        Generation.PASCAL: "volta",
        Generation.VOLTA: "volta",
        Generation.TURING: "volta",
        Generation.HOPPER: "hopper",
        Generation.BLACKWELL: "blackwell",
    }
    return rows.get(generation, "ampere")
