"""NCCL's own estimate, re-computed: what its tuning tables say a collective takes, and what it would choose.

ncclTopoGetAlgoTime of src/graph/tuning.cc (NVIDIA/nccl 2.30.7), fed with channel counts and rates that its
search over the topology would find; these are approximated from the rates of links (see ``graph_rates``). It
is a means of choosing algorithms: its maker says the constants correct for reality (nccl#535), and as a
prediction it is off by about a third on published logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.model.library import PROTOCOLS, HostProcessor, Intra, LibraryRequest, LibrarySystem
from ccbench.model.library.costs import (
    LL_MOST_GBYTES,
    PROXY_ELSEWHERE_MICROSECONDS,
    PROXY_MICROSECONDS,
    PROXY_SIMPLE,
    TABLES,
    table_row,
)

BASE_MICROSECONDS = TABLES["nccl"]["base"]
HOP_MICROSECONDS = TABLES["nccl"]["hop"]
NVLS_HOP_MICROSECONDS = 25.0
NVLSTREE_NETWORK_MICROSECONDS = 20.9

RING_LL128_CHANNEL_GBYTES = {"volta": 20.0, "ampere": 20.0, "hopper": 36.7, "blackwell": 40.0}
TREE_LL128_CHANNEL_GBYTES: dict[str, tuple[float, float, float]] = {
    "volta": (20.0, 20.0, 20.0),
    "ampere": (20.0, 20.0, 20.0),
    "hopper": (36.7, 36.7, 29.0),
    "blackwell": (55.6, 31.67, 20.0),
}
TREE_CHANNEL_GBYTES: dict[str, tuple[float, float, float]] = {
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

NVLSTREE_CHANNEL_GBYTES: dict[str, tuple[float, float, float]] = {
    "hopper": (0.0, 57.7, 45.5),
    "blackwell": (0.0, 96.0, 80.0),
}
NVLS_EFFICIENCY = {"hopper": 0.85, "blackwell": 0.74}

TREE_CORRECTION: tuple[tuple[float, ...], ...] = (
    (
        1,
        1,
        1,
        1,
        0.9,
        0.8,
        0.7,
        0.7,
        0.7,
        0.7,
        0.6,
        0.5,
        0.4,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1,
        1,
        1,
        1,
        1,
    ),
    (
        1,
        1,
        1,
        1,
        1,
        0.9,
        0.8,
        0.8,
        0.8,
        0.7,
        0.6,
        0.6,
        0.6,
        0.6,
        0.6,
        0.6,
        0.8,
        0.9,
        0.9,
        0.9,
        0.9,
        1,
        1,
        1,
    ),
    (
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.9,
        0.8,
        0.7,
        0.6,
        0.6,
        0.5,
        0.5,
        0.5,
        0.5,
        0.6,
        0.7,
        0.8,
        0.7,
        0.7,
        0.8,
        0.9,
        0.9,
        0.9,
    ),
)
"""Factor on Tree's rate for 64 B, 128 B, ... 256 MiB, by protocol."""

Floats = NDArray[np.float64]

SPEEDS_INSIDE = {
    "ampere": (40.0, 30.0, 20.0, 18.0, 15.0, 12.0, 10.0, 9.0, 7.0, 6.0, 5.0, 4.0, 3.0),
    "hopper": (60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    "blackwell": (90.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
}
SPEEDS_ACROSS = {
    "ampere": (
        48.0,
        30.0,
        28.0,
        24.0,
        20.0,
        18.0,
        15.0,
        12.0,
        10.0,
        9.0,
        7.0,
        6.0,
        5.0,
        4.0,
        3.0,
        2.4,
        1.2,
    ),
    "hopper": (
        48.0,
        45.0,
        42.0,
        40.0,
        30.0,
        24.0,
        22.0,
        20.0,
        17.5,
        15.0,
        12.0,
        6.0,
        3.0,
        2.4,
        1.2,
    ),
    "blackwell": (
        96.0,
        86.0,
        80.0,
        48.0,
        45.1,
        42.0,
        40.0,
        30.0,
        24.0,
        20.0,
        12.0,
        6.0,
        3.0,
        2.4,
        1.2,
    ),
}
"""Rates per channel that NCCL's search tries, GB/s (src/graph/search.cc); Volta and older use Ampere's."""

MOST_CHANNELS = 32
SIMPLE = PROTOCOLS.index("simple")
LINK_SHARE = {"volta": 0.8, "ampere": 0.8, "hopper": 0.824, "blackwell": 0.802}
"""NCCL's figure of an NVLink over its line's rate: 20 of 25, 20.6 of 25, 40.1 of 50 (src/graph/topo.h)."""

DOUBLING_GBYTES = 25.0
DOUBLING_GBYTES_SINCE_HOPPER = 50.0
FEW_CHANNELS = 4
"""Channels at least this fast are doubled; from Hopper on slower ones only where there are few of them."""


@dataclass(frozen=True)
class GraphRates:
    """What the search would find: ``channels`` of ``inside`` GB/s inside a node and ``across`` between."""

    channels: int
    inside: float
    across: float


def graph_rates(system: LibrarySystem) -> GraphRates:
    """Largest channels x rate that GPUs and NICs allow, with rates from NCCL's lists.

    Packing real paths may allow less; what is exact needs the search itself, or a log's GRAPH lines.
    """
    row = table_row(system.generation)
    total = _inside_gbytes(system)
    if system.nodes > 1 and system.network is not None:
        speeds = SPEEDS_ACROSS.get(row, SPEEDS_ACROSS["ampere"])
        port = system.network.bytes_per_second / 1e9
        rate, channels = _packed(total, speeds, port, system.network.per_node)
    else:
        rate, channels = _packed(total, SPEEDS_INSIDE.get(row, SPEEDS_INSIDE["ampere"]))
    recent = row in ("hopper", "blackwell")
    kept = recent and rate < DOUBLING_GBYTES_SINCE_HOPPER and channels > FEW_CHANNELS
    if rate >= DOUBLING_GBYTES and channels * 2 <= MOST_CHANNELS and not kept:
        rate, channels = rate / 2, channels * 2  # two channels share each path
    return GraphRates(channels, rate, rate)


def _inside_gbytes(system: LibrarySystem) -> float:
    """What NCCL takes for all links of a GPU, GB/s; PCIe is shared by two GPUs where there are more."""
    if system.ranks_per_node == 1:
        return math.inf
    total = system.intra_bytes_per_second / 1e9 * LINK_SHARE[table_row(system.generation)]
    shared = system.intra in {Intra.PCIE, Intra.HOST} and system.ranks_per_node > 2
    return total / 2 if shared else total


def _packed(
    total: float, speeds: tuple[float, ...], port: float = math.inf, ports: int = 1
) -> tuple[float, int]:
    """(rate, channels) with the largest product: inside ``total``, and each through one of ``ports`` NICs."""
    best = (min(total, port, speeds[-1]), 1)
    for speed in speeds:
        most = MOST_CHANNELS if math.isinf(port) else ports * int(port / speed + 1e-9)
        channels = min(
            MOST_CHANNELS,
            most,
            MOST_CHANNELS if math.isinf(total) else int(total / speed + 1e-9),
        )
        if channels and channels * speed > best[0] * best[1] * (1 + 1e-4):
            best = (speed, channels)
    return best


def nccl_estimate(system: LibrarySystem, request: LibraryRequest) -> Floats:
    """Seconds at each size: the least over the algorithms and protocols that ``request`` leaves open.

    Raises MachineError where NCCL has no model: all_to_all, send_recv, gather, scatter, one rank.
    """
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    options = [
        seconds
        for algorithm, protocol, seconds in _options(system, request, sizes)
        if request.algorithm in ("default", algorithm)
        and request.protocol in ("default", protocol)
    ]
    if not options:
        raise MachineError(
            f"{request.collective}: NCCL has no estimate for it on {system.name}"
        )
    return np.asarray(np.min(options, axis=0))


def _options(
    system: LibrarySystem, request: LibraryRequest, sizes: Floats
) -> list[tuple[str, str, Floats]]:
    if system.ranks < 2:
        return []
    rates = graph_rates(system)
    found = []
    ring_steps = {
        "all_reduce": 2 * (system.ranks - 1),
        "all_gather": system.ranks - 1,
        "reduce_scatter": system.ranks - 1,
        "broadcast": system.ranks,
        "reduce": system.ranks,
    }.get(request.collective)
    if ring_steps is None:
        return []
    for which, protocol in enumerate(PROTOCOLS):
        latency, rate = _ring(system, request.collective, rates, which, ring_steps)
        waiting = latency * _plateau(system, request.collective, rates, which, sizes)
        found.append(("ring", protocol, 1e-6 * (waiting + sizes / (1000 * rate))))
        if request.collective == "all_reduce":
            latency, rate = _tree(system, rates, which)
            corrected = rate * _tree_correction(which, sizes)
            found.append(("tree", protocol, 1e-6 * (latency + sizes / (1000 * corrected))))
    if request.collective == "all_reduce" and system.multicast and system.ranks_per_node > 1:
        latency, rate = _nvls(system, rates)
        name = "nvls" if system.nodes == 1 else "nvlstree"
        if rate > 0:
            found.append((name, "simple", 1e-6 * (latency + sizes / (1000 * rate))))
    return found


def _local(system: LibrarySystem) -> str:
    return "pci" if system.intra in {Intra.PCIE, Intra.HOST} else "nvlink"


def _overhead(host: HostProcessor, which: int) -> float:
    return PROXY_MICROSECONDS.get(host, PROXY_ELSEWHERE_MICROSECONDS) * (
        PROXY_SIMPLE if which == SIMPLE else 1.0
    )


def _ring(
    system: LibrarySystem, collective: str, rates: GraphRates, which: int, steps: int
) -> tuple[float, float]:
    """Latency in us and rate in GB/s of the buffer."""
    row = table_row(system.generation)
    bus = rates.channels * (rates.inside if system.nodes <= 2 else rates.across)
    if which == 0:
        bus = min(LL_MOST_GBYTES[row][_column(system)], LL_RATE * bus)
    elif which == 1:
        bus = min(LL128_RATE * bus, rates.channels * RING_LL128_CHANNEL_GBYTES[row])
    hop = HOP_MICROSECONDS[_local(system)]["ring"][which]
    across = HOP_MICROSECONDS["network"]["tree" if system.ranks_per_node == 1 else "ring"][
        which
    ]
    if system.nodes > 1:
        hop = max(hop, _overhead(system.host, which))
    base = BASE_MICROSECONDS["ring"][which]
    if collective in ("broadcast", "reduce"):
        return base + hop, bus
    between = (2 if collective == "all_reduce" else 1) * (system.nodes - 1)
    return base + (steps - between) * hop + between * across, bus * system.ranks / steps


def _plateau(
    system: LibrarySystem, collective: str, rates: GraphRates, which: int, sizes: Floats
) -> Floats:
    """Factor on a ring's latency at each size."""
    if collective != "all_reduce" or which != SIMPLE or system.nodes == 1:
        return np.ones_like(sizes)
    factor = PLATEAU.get(table_row(system.generation), PLATEAU_ELSEWHERE)
    return np.asarray(
        np.where(sizes / (rates.channels * system.ranks) >= PLATEAU_BYTES, factor, 1.0)
    )


def _column(system: LibrarySystem) -> int:
    """One node, two, or more: the columns of NCCL's tables."""
    return min(2, (system.nodes - 1).bit_length())


def _tree(system: LibrarySystem, rates: GraphRates, which: int) -> tuple[float, float]:
    row, column = table_row(system.generation), _column(system)
    bus = rates.channels * (rates.inside if system.nodes <= 2 else rates.across)
    bus = min(TREE_RATE * bus, rates.channels * TREE_CHANNEL_GBYTES[row][column])
    if which == 0:
        bus = min(bus / TREE_LL_DIVISOR, LL_MOST_GBYTES[row][column])
    elif which == 1:
        share = TREE_LL128_RATE[system.nodes > 1]
        bus = min(bus * share, rates.channels * TREE_LL128_CHANNEL_GBYTES[row][column])
    hop = HOP_MICROSECONDS[_local(system)]["tree"][which]
    if system.nodes > 1:
        hop = max(hop, _overhead(system.host, which))
    depth = int(math.log2(system.nodes))
    latency = 2 * (
        (system.ranks_per_node - 1) * hop + depth * HOP_MICROSECONDS["network"]["tree"][which]
    )
    return BASE_MICROSECONDS["tree"][which] + latency, 0.5 * bus


def _tree_correction(which: int, sizes: Floats) -> Floats:
    """Factor on the rate: by powers of two from 64 B to 256 MiB, one beyond."""
    place = np.floor(np.log2(np.maximum(sizes, 1) / 64.0)).astype(np.int64)
    table = np.array(TREE_CORRECTION[which])
    inside = (place >= 0) & (place < len(table))
    return np.asarray(np.where(inside, table[np.clip(place, 0, len(table) - 1)], 1.0))


def _nvls(system: LibrarySystem, rates: GraphRates) -> tuple[float, float]:
    row = table_row(system.generation)
    if row not in NVLS_EFFICIENCY:
        return 0.0, 0.0
    heads = system.ranks_per_node  # every GPU is the head of one channel
    speed = next(
        (one for one in SPEEDS_INSIDE[row] if heads * one <= _inside_gbytes(system)), 0.0
    )
    inside = speed * NVLS_EFFICIENCY[row] * (heads - 1) * 2
    if system.nodes == 1:
        return NVLS_HOP_MICROSECONDS, inside * system.ranks / (2 * (system.ranks - 1))
    across = rates.channels * rates.across * (2 if system.nodes == 2 else 1)
    most = rates.channels * NVLSTREE_CHANNEL_GBYTES[row][_column(system)]
    latency = (
        NVLS_HOP_MICROSECONDS + 2 * int(math.log2(system.nodes)) * NVLSTREE_NETWORK_MICROSECONDS
    )
    bus = min(inside, across, most)
    return latency, bus * system.ranks / (2 * (system.ranks - 1))
