"""Seconds of one algorithm with one protocol on one system, at all sizes of a sweep.

    T = base + hops x latency + fill + bytes / rate

fill = 1 / (1 / (hops x bytes / rate) + 1 / (2 f sqrt(latency x bytes / rate))): a message that is not cut
goes through every hop whole; one that is cut optimally costs 2 sqrt(latency x transfer) (Sanders, Speck and
Traeff, Parallel Computing 35 (2009) 581, for trees), of which libraries see a share f, since they overlap
chunks. The harmonic sum goes over from one to the other. docs/model-library.md has the rest.

Figures in microseconds and GB/s (1e9) are NCCL's published tuning constants, as ``nccl.yaml`` has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.model.library import PROTOCOLS, Generation, Host, Intra, LibrarySystem
from ccbench.model.library.constants import FOLDER, read_table
from ccbench.model.library.shapes import (
    MOST_NVLSTREE_NICS,
    Shape,
    busy_nics,
    collnet_is_direct,
    gpus_of_network,
    is_amd,
    links_share,
)

Floats = NDArray[np.float64]
MICRO = 1e-6
GIGA = 1e9

TABLES = read_table(FOLDER / "nccl.yaml")
LL_MOST_GBYTES: dict[str, list[float]] = TABLES["ll_most"]
"""NCCL's and RCCL's published tuning constants; the file has their sources."""

COLLNET_DIRECT_HOP_MICROSECONDS = 3.7
COLLNET_DIRECT_PEER_MICROSECONDS = 0.4
"""Each further GPU of the node that a direct hop addresses."""

COLLNET_CHAIN_HOP_MICROSECONDS = 2.8
COLLNET_NETWORK_MICROSECONDS = {"direct": 31.0, "chain": 30.0}

PAT_OVERLAP = 3.5
PAT_RANK_MICROSECONDS = 2.8
PAT_RATE = 0.75
"""PAT's hops overlap so that one counts 1 / PAT_OVERLAP; every rank adds to its latency; share of the bus."""

PROXY_MICROSECONDS = {Host.AMD: 2.0}
"""Cost of a network hop's proxy thread, also the least cost of a hop inside nodes of a cluster (three times
as much with Simple); ``PROXY_ELSEWHERE_MICROSECONDS`` on other processors."""

PROXY_ELSEWHERE_MICROSECONDS = 1.0
PROXY_SIMPLE = 3.0
FLUSHES_SIMPLE = 2.0
"""Simple waits for the NIC's latency twice: data, then a flush (NCCL adds graph.latencyInter twice)."""

SWITCH_ALGORITHMS = ("nvls", "nvlstree")
"""Algorithms in which the switches of a node add."""

SIMPLE_ALGORITHMS = (*SWITCH_ALGORITHMS, "collnet", "pat")
"""Algorithms that have one protocol (NCCL, src/graph/tuning.cc)."""

SOCKETS = ("tcp", "tcpx", "tcpxo")
"""Networks whose data pass through sockets; LL128 needs the order that they do not give."""

WIDE_NIC_BYTES_PER_SECOND = 50e9
"""400 Gb/s; NCCL bundles narrower NICs until they make up about as much."""

_FILLS = {
    "ring": ("fill.ring", "fill.ring_network"),
    "tree": ("fill.tree", "fill.tree_network"),
    "nvls": ("fill.nvls", "fill.nvls"),
    "nvlstree": ("fill.nvlstree", "fill.nvlstree"),
    "collnet": ("fill.nvlstree", "fill.nvlstree"),
    "pat": ("fill.ring_network", "fill.ring_network"),
    "pairwise": ("fill.pairwise", "fill.pairwise"),
}
"""Names of the constants: on one node, on several."""


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


@dataclass(frozen=True)
class Cost:
    """Seconds at each size, arrays of one shape; ``latency_seconds`` does not depend on the size.

    inside_rate, network_rate: bytes per second that the algorithm with the protocol gets; infinite where it
    does not pass. base_seconds: the part of latency_seconds that no hop takes: launching and ending a kernel.
    """

    shape: Shape
    protocol: str
    inside_rate: float
    network_rate: float
    hop_seconds: float
    network_hop_seconds: float
    latency_seconds: float
    fill_seconds: Floats
    bandwidth_seconds: Floats
    base_seconds: float

    def floored(self, launch_seconds: float) -> Floats:
        """Everything, where launching alone takes ``launch_seconds``: transfers wait for the last launch."""
        return np.asarray(
            max(self.latency_seconds, launch_seconds) + self.fill_seconds + self.bandwidth_seconds
        )

    @property
    def inside_seconds_per_byte(self) -> float:
        """Of a GPU's links inside its node, per byte of size."""
        return self.shape.port_bytes / self.inside_rate

    @property
    def network_seconds_per_byte(self) -> float:
        """Of a node's NICs, per byte of size."""
        return self.shape.node_bytes / self.network_rate


def protocols(shape: Shape, system: LibrarySystem) -> tuple[str, ...]:
    """What may carry ``shape``: LL128 needs NVLink and ordered stores; EFA of Ampere and before only Simple.

    Sources: NCCL's src/graph/tuning.cc (LL128 up to PXB, from Volta); aws-ofi-nccl for EFA.
    """
    if shape.algorithm in SIMPLE_ALGORITHMS:
        return ("simple",)
    if shape.peers:
        return ("ll", "simple")
    word = system.network.word if system.network is not None and system.nodes > 1 else ""
    if word == "efa":
        recent = system.generation in {Generation.HOPPER, Generation.BLACKWELL}
        return ("ll128", "simple") if recent else ("simple",)
    no_ll128 = (
        system.intra in {Intra.HOST, Intra.PCIE, Intra.XGMI, Intra.HCCS}
        or word in SOCKETS
        or is_amd(system)
        or system.generation in {Generation.PASCAL, Generation.TURING}
    )
    return ("ll", "simple") if no_ll128 else PROTOCOLS


def cost(
    shape: Shape, protocol: str, system: LibrarySystem, size_bytes: Floats, table: Mapping[str, float]
) -> Cost:
    """Price ``shape`` at ``size_bytes``; ``table`` holds the constants."""
    inside, network = _rates(shape, protocol, system, table)
    hop, network_hop = _hops(shape, protocol, system, table)
    latency = shape.inside_hops * hop + shape.network_hops * network_hop
    per_byte = max(shape.port_bytes / inside, shape.node_bytes / network)
    transfer = np.asarray(per_byte * size_bytes)
    base = _base(shape, protocol, system, table)
    return Cost(
        shape,
        protocol,
        inside,
        network,
        hop,
        network_hop,
        base + latency,
        _fill(shape, system, latency, transfer, table),
        transfer,
        base,
    )


def _library_table(system: LibrarySystem) -> dict[str, Any]:
    """Return the constants of the library that drives the system's GPUs: ``base`` and ``hop``."""
    found: dict[str, Any] = TABLES["rccl" if is_amd(system) else "nccl"]
    return found


def _fill(
    shape: Shape, system: LibrarySystem, latency: float, transfer: Floats, table: Mapping[str, float]
) -> Floats:
    # Uncut: store and forward over every hop. Cut: the optimal pipeline's 2 sqrt(latency x transfer), of
    # which libraries see a share. The harmonic sum is near the smaller of the two.
    hops = max(1, shape.inside_hops + shape.network_hops)
    name = _FILLS[shape.algorithm][system.nodes > 1]
    uncut = hops * transfer
    cut = 2.0 * table[name] * np.sqrt(latency * transfer)
    total = uncut + cut
    return np.asarray(np.divide(uncut * cut, total, out=np.zeros_like(total), where=total > 0))


def _base(shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]) -> float:
    if shape.algorithm in SWITCH_ALGORITHMS:
        return table["nvls_base_us"] * MICRO
    bases = _library_table(system)["base"]
    row: list[float] = bases.get(shape.algorithm, bases["ring"])
    scale = table["pairwise_base"] if shape.peers else table["base"]
    ranks = system.ranks * PAT_RANK_MICROSECONDS if shape.algorithm == "pat" else 0.0
    return (row[PROTOCOLS.index(protocol)] + ranks) * scale * MICRO


def _hops(
    shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]
) -> tuple[float, float]:
    """Seconds of one hop inside a node and of one across the network."""
    scale = (table["cdna_hop"] if is_amd(system) else 1.0) * MICRO
    inside = _inside_hop(shape, protocol, system, table) * scale
    return inside, _network_hop(shape, protocol, system, table) * scale if system.nodes > 1 else 0.0


def _inside_hop(shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]) -> float:
    """Microseconds."""
    if shape.algorithm in SWITCH_ALGORITHMS:
        return table["nvls_hop_us"]
    if shape.algorithm == "collnet":
        others = system.ranks_per_node - 1
        direct = COLLNET_DIRECT_HOP_MICROSECONDS + COLLNET_DIRECT_PEER_MICROSECONDS * others
        return (direct if collnet_is_direct(system) else COLLNET_CHAIN_HOP_MICROSECONDS) * table["hop.simple"]
    tables = _library_table(system)["hop"]
    local = "pci" if system.intra in {Intra.PCIE, Intra.HOST} else "nvlink"
    hop: float = tables[local][_row(shape, system)][PROTOCOLS.index(protocol)] * table[f"hop.{protocol}"]
    if system.nodes == 1:
        return hop
    # On several nodes each hop inside waits for the proxy thread that feeds the network.
    proxy = PROXY_MICROSECONDS.get(system.host, PROXY_ELSEWHERE_MICROSECONDS) * table["proxy"]
    return max(hop, proxy * (PROXY_SIMPLE if protocol == "simple" else 1.0))


def _network_hop(shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]) -> float:
    """Microseconds."""
    simple = protocol == "simple"
    tables = _library_table(system)["hop"]
    across: float = tables["network"][_row(shape, system)][PROTOCOLS.index(protocol)]
    if shape.algorithm == "collnet":
        across = COLLNET_NETWORK_MICROSECONDS["direct" if collnet_is_direct(system) else "chain"]
    across *= table["network_hop.simple" if simple else "network_hop.ll"]
    across += _fabric_latency(system, table) * (FLUSHES_SIMPLE if simple and _is_rdma(system) else 1.0)
    return across / PAT_OVERLAP if shape.algorithm == "pat" else across


def _row(shape: Shape, system: LibrarySystem) -> str:
    """Alone on their nodes, GPUs see the figures of Tree in either algorithm, as in NCCL's own model."""
    alone = system.ranks_per_node == 1 or shape.algorithm in SWITCH_ALGORITHMS
    return "tree" if alone or shape.algorithm == "tree" else "ring"


def _is_rdma(system: LibrarySystem) -> bool:
    return system.network is not None and system.network.word not in {*SOCKETS, "efa"}


def _fabric_latency(system: LibrarySystem, table: Mapping[str, float]) -> float:
    word = system.network.word if system.network is not None else ""
    name = {"efa": "efa", "tcp": "tcp", "tcpx": "tcpx", "tcpxo": "tcpx"}.get(word, "fabric")
    return table[f"latency.{name}_us"]


def _rates(
    shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]
) -> tuple[float, float]:
    """Bytes per second inside a node and across, infinite where nothing passes."""
    payload = {"ll": table["payload.ll"], "ll128": table["payload.ll128"], "simple": 1.0}[protocol]
    nominal = system.intra_bytes_per_second * links_share(shape, system)
    inside = nominal * _inside_efficiency(shape, system, table) * payload
    if shape.algorithm == "tree":
        inside *= table["tree_rate"]
    if protocol == "ll" and not shape.peers:
        # LL spins on flags within 8 bytes: NCCL caps it by generation, whatever the links could carry.
        most = LL_MOST_GBYTES[table_row(system.generation)][min(2, system.nodes - 1)]
        inside = min(inside, most * table["ll_most"] * GIGA)
    network = _network_rate(shape, system, table) * payload if system.nodes > 1 else float("inf")
    return inside if inside > 0 else float("inf"), network


def _network_rate(shape: Shape, system: LibrarySystem, table: Mapping[str, float]) -> float:
    """Bytes per second through the NICs that the algorithm keeps busy, and the ports of the GPUs that do."""
    assert system.network is not None  # several nodes have one
    each, nics = system.network.bytes_per_second, busy_nics(shape, system)
    if shape.algorithm == "nvlstree":
        # Narrow NICs are bundled, so that eight channels of 400 Gb/s are kept busy, not eight NICs.
        nics = min(nics, MOST_NVLSTREE_NICS * max(1.0, WIDE_NIC_BYTES_PER_SECOND / each))
    rate = each * nics * _network_efficiency(system, table)
    if system.network.word == "tcp":
        # One core of the host serves the sockets of a NIC, and copies every byte.
        rate = min(rate, nics * table["socket_gbytes"] * GIGA)
    # PCIe writes carry headers: the share payload.pcie of the port is data.
    ports = gpus_of_network(shape, system) * system.gpu_port_bytes_per_second * table["payload.pcie"]
    share = {"tree": table["tree_rate"], "pat": PAT_RATE}.get(shape.algorithm, 1.0)
    return min(rate, ports) * share


def _inside_efficiency(shape: Shape, system: LibrarySystem, table: Mapping[str, float]) -> float:
    if shape.algorithm in SWITCH_ALGORITHMS:
        blackwell = system.generation is Generation.BLACKWELL
        efficiency = table["efficiency.nvls_blackwell" if blackwell else "efficiency.nvls_hopper"]
        return efficiency * (table["efficiency.nvlstree"] if shape.algorithm == "nvlstree" else 1.0)
    if system.intra is Intra.HOST:
        return table["efficiency.host_both" if shape.both_ways else "efficiency.host"]
    nvlink = "nvlink_hopper" if system.generation is Generation.HOPPER else "nvlink"
    name = {
        Intra.NVSWITCH: nvlink,
        Intra.XGMI: "xgmi",
        Intra.HCCS: "hccs",
        Intra.PCIE: "pcie",
    }.get(system.intra, "nvlink_mesh")
    return table[f"efficiency.{name}"]


def _network_efficiency(system: LibrarySystem, table: Mapping[str, float]) -> float:
    word = system.network.word if system.network is not None else ""
    name = {"efa": "efa", "tcp": "tcp", "tcpx": "tcpx", "tcpxo": "fabric"}.get(word, "fabric")
    return table[f"efficiency.{name}"]
