"""Seconds of one algorithm with one protocol on one system, at all sizes of a sweep.

    T = base + hops x latency + fill + handshakes + bytes / rate

fill = 1 / (1 / (hops x bytes / rate) + 1 / (2 sqrt(latency x bytes / rate))): a message that is not cut
goes through every hop whole; one that is cut optimally costs 2 sqrt(latency x transfer) (Sanders, Speck and
Traeff, Parallel Computing 35 (2009) 581, for trees), until chunks grow no more: bytes there are
bytes x most / (bytes + most). The harmonic sum goes over from one to the other. Rings of all_reduce, all_gather
and reduce_scatter have a share of it: every link is busy at every step, with the chunks of one block. Handshakes are
those of networks that ask the receiver before a long message. docs/model.md has the rest.

Figures in microseconds and GB/s (1e9) are NCCL's published tuning constants, as ``nccl.yaml`` has them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ccbench.documents import read_installed
from ccbench.model.library import PROTOCOLS, Generation, HostProcessor, Intra, LibrarySystem
from ccbench.model.library.constants import FOLDER
from ccbench.model.library.shapes import (
    MOST_NVLSTREE_NICS,
    Shape,
    busy_nics,
    collnet_is_direct,
    gpus_of_network,
    links_share,
)

Floats = NDArray[np.float64]
MICRO = 1e-6
GIGA = 1e9
MEBI = 2.0**20

TABLES = read_installed(FOLDER / "nccl.yaml")
LL_MOST_GBYTES: dict[str, list[float]] = TABLES["ll_most"]
"""NCCL's and RCCL's published tuning constants; the file has their sources."""

COLLNET_DIRECT_HOP_MICROSECONDS = 3.7
COLLNET_DIRECT_PEER_MICROSECONDS = 0.4
"""Each further GPU of the node that a direct hop addresses."""

COLLNET_CHAIN_HOP_MICROSECONDS = 2.8
COLLNET_DIRECT_NETWORK_MICROSECONDS = 31.0
COLLNET_CHAIN_NETWORK_MICROSECONDS = 30.0

PAT_OVERLAP = 3.5
PAT_RANK_MICROSECONDS = 2.8
PAT_RATE = 0.75
"""PAT's hops overlap so that one counts 1 / PAT_OVERLAP; every rank adds to its latency; share of the bus."""

PROXY_MICROSECONDS = {HostProcessor.AMD: 2.0}
"""Cost of a network hop's proxy thread, also the least cost of a hop inside nodes of a cluster (three times
as much with Simple); ``PROXY_ELSEWHERE_MICROSECONDS`` on other processors."""

PROXY_ELSEWHERE_MICROSECONDS = 1.0
PROXY_SIMPLE = 3.0
SWITCH_ALGORITHMS = ("nvls", "nvlstree")
"""Algorithms in which the switches of a node add."""

SWITCH_RANKS = 8
"""GPUs of the node that NCCL's latency of NVLS is of."""

SIMPLE_ALGORITHMS = (*SWITCH_ALGORITHMS, "collnet", "pat")
"""Algorithms that have one protocol (NCCL, src/graph/tuning.cc)."""

SOCKETS = ("tcp", "tcpx", "tcpxo")
"""Networks whose data pass through sockets; LL128 needs the order that they do not give."""

WIDE_NIC_BYTES_PER_SECOND = 50e9
"""400 Gb/s; NCCL bundles narrower NICs until they make up about as much."""

_LATENCIES = {
    "efa": "latency.efa_us",
    "tcp": "latency.tcp_us",
    "tcpx": "latency.tcpx_us",
    "tcpxo": "latency.tcpx_us",
    "roce": "latency.roce_us",
}
"""Names of networks' latencies, by their words; elsewhere InfiniBand's and its like."""

HANDSHAKES = {
    "efa": "handshake.efa_us",
    "slingshot": "handshake.slingshot_us",
    "tcpx": "handshake.tcpx_us",
    "tcpxo": "handshake.tcpx_us",
}
"""Names of what a long message of a network costs beside a short one; those whose NICs read it alone have nothing."""

_WITHOUT_LL128 = frozenset(
    {Generation.PASCAL, Generation.TURING, Generation.CDNA2, Generation.CDNA3}
)
"""RCCL has LL128 on CDNA 3 since ROCm 6.4.2; the one published sweep of it is too slow throughout to show that."""

CHANNEL_BYTES = 16.0 * MEBI
MOST_CHANNELS = 32
"""Sends between two of eight GPUs behind switches: a peer has its share of the channels, which double until none
carries more than 32 steps of 512 KiB (NVIDIA/nccl, src/enqueue.cc). Published: 64 to 256 MiB take 0.80 ms on B200,
all alike. What all_to_all shows of two and four GPUs does not fit: sends of fewer GPUs have the rate of their links."""

EAGER_BYTES = 8192.0
"""Longer messages wait for an answer of their receiver (aws-ofi-nccl: OFI_NCCL_EAGER_MAX_SIZE was 8 KiB);
assumed for the others."""

_INSIDE = {Intra.XGMI: "xgmi", Intra.HCCS: "hccs", Intra.PCIE: "pcie"}
"""Names of links' efficiencies; NVLink's elsewhere."""


def table_row(generation: Generation) -> str:
    """The row of NCCL's per-generation tables that a generation uses; unknown ones count as Ampere."""
    if generation in {Generation.PASCAL, Generation.TURING}:
        return "volta"
    return generation.value if generation.value in LL_MOST_GBYTES else "ampere"


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
        """Seconds where launching alone takes ``launch_seconds``: transfers wait for the last launch."""
        return np.asarray(
            max(self.latency_seconds, launch_seconds)
            + self.fill_seconds
            + self.bandwidth_seconds
        )

    def slower(self, factor: float) -> Cost:
        """Return the cost where transfers inside a node take ``factor`` times as long."""
        return replace(
            self,
            inside_rate=self.inside_rate / factor,
            bandwidth_seconds=self.bandwidth_seconds * factor,
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
    """Protocols that may carry ``shape``: LL128 needs NVLink and ordered stores, EFA mostly Simple.

    Sources: NCCL's src/graph/tuning.cc (LL128 up to PXB, from Volta); aws-ofi-nccl for EFA;
    RCCL's changelog for gfx950.
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
        system.intra in {Intra.HOST, Intra.PCIE, Intra.HCCS}
        or word in SOCKETS
        or system.generation in _WITHOUT_LL128
        or shape.algorithm == "allpairs"  # RCCL's files for it are of LL and Simple
    )
    return ("ll", "simple") if no_ll128 else PROTOCOLS


def cost(
    shape: Shape,
    protocol: str,
    system: LibrarySystem,
    size_bytes: Floats,
    table: Mapping[str, float],
) -> Cost:
    """Price ``shape`` at ``size_bytes``; ``table`` holds the constants."""
    generation = table.get(f"generation.{system.generation.value}", 1.0)
    base, hop, network_hop = (
        generation * seconds for seconds in _latencies(shape, protocol, system, table)
    )
    latency = shape.inside_hops * hop + shape.network_hops * network_hop
    inside, network = _rates(shape, protocol, system, table)
    seconds_per_byte = max(shape.port_bytes / inside, shape.node_bytes / network)
    transfer = np.asarray(seconds_per_byte * size_bytes)
    if shape.one_pair and system.intra is Intra.NVSWITCH and system.ranks == SWITCH_RANKS:
        channels = np.exp2(np.ceil(np.log2(np.maximum(size_bytes, 1.0) / CHANNEL_BYTES)))
        channels = np.clip(channels, MOST_CHANNELS // SWITCH_RANKS, MOST_CHANNELS)
        by_channel = table["send_channel_gbytes"] * GIGA
        transfer = np.maximum(transfer, size_bytes / (channels * by_channel))
    # Uncut: store and forward over every hop. Cut: the optimal pipeline's 2 sqrt(latency x transfer), whose
    # chunks stop growing once they fill the library's buffers. The harmonic sum is near the smaller one.
    uncut = max(1, shape.inside_hops + shape.network_hops) * transfer
    most = table["pipeline_mebibytes"] * MEBI
    growing = size_bytes * (most / (size_bytes + most))
    # Where every rank has a block to send at every step, no link waits for the first, but for chunks of its block.
    filling = table["fill" if shape.fills else "fill_of_blocks"]
    cut = 2.0 * filling * np.sqrt(latency * seconds_per_byte * growing)
    total = uncut + cut
    fill = np.asarray(np.divide(uncut * cut, total, out=np.zeros_like(total), where=total > 0))
    fill += _handshake_seconds(shape, protocol, system, size_bytes, table)
    return Cost(
        shape, protocol, inside, network, hop, network_hop, base + latency, fill, transfer, base
    )


def _handshake_seconds(
    shape: Shape,
    protocol: str,
    system: LibrarySystem,
    size_bytes: Floats,
    table: Mapping[str, float],
) -> Floats:
    """Return what asking the receiver of a long message takes beside a short one, where the network asks."""
    word = system.network.word if system.network is not None and system.nodes > 1 else ""
    if word not in HANDSHAKES:
        return np.zeros_like(size_bytes)
    # Blocks of a ring or of sends are asked for, and all that a tree passes on. Half of what LL sends are flags.
    parts = shape.peers or (1 if shape.fills else system.ranks)
    message = size_bytes * (2.0 if protocol == "ll" else 1.0) / parts
    waiting = shape.network_hops * table[HANDSHAKES[word]] * MICRO
    return np.asarray(waiting * message / (message + EAGER_BYTES))


def _latencies(
    shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]
) -> tuple[float, float, float]:
    """Seconds of the base, of one hop inside a node and of one across the network, on GPUs of any generation."""
    published = TABLES["rccl" if system.is_amd else "nccl"]
    column, simple, algorithm = PROTOCOLS.index(protocol), protocol == "simple", shape.algorithm
    by_switch, direct = algorithm in SWITCH_ALGORITHMS, collnet_is_direct(system)
    # One rank on each node sees the figures of Tree in either algorithm, as in NCCL's own model.
    row = "tree" if system.ranks_per_node == 1 or by_switch or algorithm == "tree" else "ring"

    base = 0.0  # NCCL counts all of NVLS inside a node as latency of its hops
    if not by_switch:
        base = published["base"].get(algorithm, published["base"]["ring"])[column]
        base += system.ranks * PAT_RANK_MICROSECONDS if algorithm == "pat" else 0.0
        base *= table["pairwise_base" if shape.peers else "base"]
        if shape.peers > 1:
            # A rank's proxy posts to its peers on other nodes one after the other.
            base += table["network_post_us"] * (system.ranks - system.ranks_per_node)
        base *= MICRO

    if by_switch:
        # NCCL's figure is of 8 GPUs; it grows with the GPUs that a switch adds for (GB200 NVL72, 72 of them).
        domain = max(1.0, system.ranks_per_node / SWITCH_RANKS)
        hop = published["hop"]["switch"] / shape.inside_hops * domain * table["hop.switch"]
    elif algorithm == "collnet":
        far = COLLNET_DIRECT_HOP_MICROSECONDS + COLLNET_DIRECT_PEER_MICROSECONDS * (
            system.ranks_per_node - 1
        )
        hop = (far if direct else COLLNET_CHAIN_HOP_MICROSECONDS) * table["hop.simple"]
    else:
        local = "pci" if system.intra in {Intra.PCIE, Intra.HOST} else "nvlink"
        hop = published["hop"][local][row][column] * table[f"hop.{protocol}"]
        if system.nodes > 1:
            # On several nodes each hop inside waits for the proxy thread that feeds the network.
            proxy = (
                PROXY_MICROSECONDS.get(system.host, PROXY_ELSEWHERE_MICROSECONDS)
                * table["proxy"]
            )
            hop = max(hop, proxy * (PROXY_SIMPLE if simple else 1.0))

    scale = (table["cdna_hop"] if system.is_amd else 1.0) * MICRO
    if system.nodes == 1:
        return base, hop * scale, 0.0
    far_hops = published["hop"]["network"]
    across: float = far_hops["switch"] if by_switch else far_hops[row][column]
    if algorithm == "collnet":
        across = (
            COLLNET_DIRECT_NETWORK_MICROSECONDS
            if direct
            else COLLNET_CHAIN_NETWORK_MICROSECONDS
        )
    across *= table["network_hop.simple" if simple else "network_hop.ll"]
    assert system.network is not None  # several nodes have one
    across += table[_LATENCIES.get(system.network.word, "latency.fabric_us")]
    return base, hop * scale, (across / PAT_OVERLAP if algorithm == "pat" else across) * scale


def _rates(
    shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]
) -> tuple[float, float]:
    """Bytes per second inside a node and across, infinite where nothing passes."""
    # Half of LL's words are flags, and one of sixteen of LL128's.
    payload = 1.0 if protocol == "simple" else table[f"payload.{protocol}"]
    if shape.algorithm in SWITCH_ALGORITHMS:
        blackwell = system.generation is Generation.BLACKWELL
        efficiency = table[
            "efficiency.nvls_blackwell" if blackwell else "efficiency.nvls_hopper"
        ]
        efficiency *= table["efficiency.nvlstree"] if shape.algorithm == "nvlstree" else 1.0
    elif system.intra is Intra.HOST:
        efficiency = table["efficiency.host_both" if shape.both_ways else "efficiency.host"]
    else:
        efficiency = table[f"efficiency.{_INSIDE.get(system.intra, 'nvlink')}"]
    inside = system.intra_bytes_per_second * links_share(shape, system) * efficiency * payload
    if shape.algorithm == "tree":
        inside *= table["tree_rate"]
    if protocol == "ll" and not shape.peers and shape.algorithm != "allpairs":
        # LL spins on flags within 8 bytes: NCCL caps it by generation, whatever the links could carry.
        most = LL_MOST_GBYTES[table_row(system.generation)][min(2, system.nodes - 1)]
        inside = min(inside, most * table["ll_most"] * GIGA)
    network = _network_rate(shape, system, table) * payload if system.nodes > 1 else math.inf
    return inside if inside > 0 else math.inf, network


def _network_rate(shape: Shape, system: LibrarySystem, table: Mapping[str, float]) -> float:
    """Bytes per second through the NICs that the algorithm keeps busy, and the ports of the GPUs that do."""
    assert system.network is not None  # several nodes have one
    each, nics = system.network.bytes_per_second, busy_nics(shape, system)
    if shape.algorithm == "nvlstree":
        # Narrow NICs are bundled, so that eight channels of 400 Gb/s are kept busy, not eight NICs.
        nics = min(nics, MOST_NVLSTREE_NICS * max(1.0, WIDE_NIC_BYTES_PER_SECOND / each))
    rate = each * nics * table["efficiency.fabric"]
    if system.network.word == "tcp":
        # One core of the host serves the sockets of a NIC, and copies every byte.
        rate = min(rate, nics * table["socket_gbytes"] * GIGA)
    ports = gpus_of_network(shape, system) * system.gpu_port_bytes_per_second
    share = {"tree": table["tree_rate"], "pat": PAT_RATE}.get(shape.algorithm, 1.0)
    return min(rate, ports) * share
