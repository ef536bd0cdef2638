"""Seconds of one algorithm with one protocol on one system, at all sizes of a sweep.

    T = base + hops x latency + fill + bytes / rate

fill = 1 / (1 / (hops x bytes / rate) + 1 / (2 f sqrt(latency x bytes / rate))): a message that is not cut
goes through every hop whole; one that is cut optimally costs 2 sqrt(latency x transfer) (Sanders, Speck and
Traeff, Parallel Computing 35 (2009) 581, for trees), of which libraries see a share f, since they overlap
chunks. The harmonic sum goes over from one to the other. docs/model.md has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.model.library.nccl_constants import (
    BASE_MICROSECONDS,
    HOP_MICROSECONDS,
    LL_MOST_GBYTES,
    PROXY_ELSEWHERE_MICROSECONDS,
    PROXY_MICROSECONDS,
    RCCL_BASE_MICROSECONDS,
    RCCL_HOP_MICROSECONDS,
    table_row,
)
from ccbench.model.library.shapes import MOST_NVLSTREE_NICS, Shape, is_amd
from ccbench.model.library.system import PROTOCOLS, Generation, Intra, LibrarySystem

Floats = NDArray[np.float64]
MICRO = 1e-6
GIGA = 1e9

SWITCH_ALGORITHMS = ("nvls", "nvlstree")
"""Algorithms in which a switch adds; they have one protocol."""

SOCKETS = ("tcp", "tcpx", "tcpxo")
"""Networks whose data pass through sockets; LL128 needs the order that they do not give."""


@dataclass(frozen=True)
class Rates:
    """Bytes per second that an algorithm with a protocol gets; infinity where it does not pass."""

    inside: float
    network: float


@dataclass(frozen=True)
class Cost:
    """Seconds at each size, arrays of one shape; ``latency_seconds`` does not depend on the size."""

    shape: Shape
    protocol: str
    rates: Rates
    hop_seconds: float
    network_hop_seconds: float
    latency_seconds: float
    fill_seconds: Floats
    bandwidth_seconds: Floats

    def floored(self, launch_seconds: float) -> Floats:
        """Everything, where launching alone takes ``launch_seconds``: transfers wait for the last launch."""
        return np.asarray(
            max(self.latency_seconds, launch_seconds) + self.fill_seconds + self.bandwidth_seconds
        )

    @property
    def seconds(self) -> Floats:
        """Everything."""
        return np.asarray(self.latency_seconds + self.fill_seconds + self.bandwidth_seconds)


def protocols(shape: Shape, system: LibrarySystem) -> tuple[str, ...]:
    """What may carry ``shape``: LL128 needs NVLink and ordered stores; EFA of Ampere and before only Simple.

    Sources: NCCL's src/graph/tuning.cc (LL128 up to PXB, from Volta); aws-ofi-nccl for EFA.
    """
    if shape.algorithm in SWITCH_ALGORITHMS:
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
    rates = _rates(shape, protocol, system, table)
    hop, network_hop = _hops(shape, protocol, system, table)
    latency = shape.inside_hops * hop + shape.network_hops * network_hop
    per_byte = max(shape.port_bytes / rates.inside, shape.node_bytes / rates.network)
    transfer = np.asarray(per_byte * size_bytes)
    return Cost(
        shape,
        protocol,
        rates,
        hop,
        network_hop,
        _base(shape, protocol, system, table) + latency,
        _fill(shape, system, latency, transfer, table),
        transfer,
    )


def _fill(
    shape: Shape, system: LibrarySystem, latency: float, transfer: Floats, table: Mapping[str, float]
) -> Floats:
    hops = shape.inside_hops + shape.network_hops
    if hops < 2 or latency <= 0:
        hops = max(hops, 1)
    many = "_network" if system.nodes > 1 else ""
    name = {
        "ring": f"fill.ring{many}",
        "pat": "fill.ring_network",
        "tree": f"fill.tree{many}",
        "nvls": "fill.nvls",
        "nvlstree": "fill.nvlstree",
        "pairwise": "fill.pairwise",
    }[shape.algorithm]
    uncut = hops * transfer
    cut = 2.0 * table[name] * np.sqrt(latency * transfer)
    total = uncut + cut
    return np.asarray(np.divide(uncut * cut, total, out=np.zeros_like(total), where=total > 0))


def _base(shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]) -> float:
    if shape.algorithm in SWITCH_ALGORITHMS:
        return table["nvls_base_us"] * MICRO
    bases = RCCL_BASE_MICROSECONDS if is_amd(system) else BASE_MICROSECONDS
    row = bases.get(shape.algorithm, bases["ring"])
    scale = table["pairwise_base"] if shape.peers else table["base"]
    return row[PROTOCOLS.index(protocol)] * scale * MICRO


def _hops(
    shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]
) -> tuple[float, float]:
    """Seconds of one hop inside a node and of one across the network."""
    which = PROTOCOLS.index(protocol)
    tables = RCCL_HOP_MICROSECONDS if is_amd(system) else HOP_MICROSECONDS
    switched = shape.algorithm in SWITCH_ALGORITHMS
    # Alone on their nodes, GPUs see the figures of Tree in either algorithm, as in NCCL's own model.
    alone = system.ranks_per_node == 1 or switched
    row = "tree" if alone or shape.algorithm == "tree" else "ring"
    local = "pci" if system.intra in {Intra.PCIE, Intra.HOST} else "nvlink"
    scale = table["cdna_hop"] if is_amd(system) else 1.0
    hop = tables[local][row][which] * table[f"hop.{protocol}"]
    if system.nodes > 1:
        hop = max(hop, _proxy(system) * table["proxy"] * (3.0 if protocol == "simple" else 1.0))
    if switched:
        hop = table["nvls_hop_us"]
    across = (
        tables["network"][row][which]
        * table["network_hop.simple" if protocol == "simple" else "network_hop.ll"]
    )
    across += _fabric_latency(system, table) * (2.0 if protocol == "simple" and _is_rdma(system) else 1.0)
    return hop * scale * MICRO, across * scale * MICRO


def _proxy(system: LibrarySystem) -> float:
    return PROXY_MICROSECONDS.get(system.host, PROXY_ELSEWHERE_MICROSECONDS)


def _is_rdma(system: LibrarySystem) -> bool:
    return system.network is not None and system.network.word not in {*SOCKETS, "efa"}


def _fabric_latency(system: LibrarySystem, table: Mapping[str, float]) -> float:
    word = system.network.word if system.network is not None else ""
    name = {"efa": "efa", "tcp": "tcp", "tcpx": "tcpx", "tcpxo": "tcpx"}.get(word, "fabric")
    return table[f"latency.{name}_us"]


def _rates(shape: Shape, protocol: str, system: LibrarySystem, table: Mapping[str, float]) -> Rates:
    payload = {"ll": table["payload.ll"], "ll128": table["payload.ll128"], "simple": 1.0}[protocol]
    inside = system.intra_bytes_per_second * _inside_efficiency(shape, system, table) * payload
    if shape.algorithm == "tree":
        inside *= table["tree_rate"]
    if protocol == "ll" and not shape.peers:
        most = LL_MOST_GBYTES[table_row(system.generation)][min(2, system.nodes - 1)]
        inside = min(inside, most * table["ll_most"] * GIGA)
    if system.intra is Intra.HOST and shape.both_ways:
        # All ranks go through the same memory and the same port of it.
        inside /= system.ranks_per_node
    network = float("inf")
    if system.network is not None and system.nodes > 1:
        rate = system.network.node_bytes_per_second
        if shape.algorithm == "nvlstree":
            rate = min(rate, MOST_NVLSTREE_NICS * system.network.bytes_per_second * _nics_per_port(system))
        network = rate * _network_efficiency(system, table) * payload
        if shape.algorithm == "tree":
            network *= table["tree_rate"]
    return Rates(inside if inside > 0 else float("inf"), network)


def _nics_per_port(system: LibrarySystem) -> float:
    """Slow NICs are bundled: as many as make up 400 Gb/s count as one."""
    assert system.network is not None  # asked for clusters only
    return max(1.0, 50e9 / system.network.bytes_per_second)


def _inside_efficiency(shape: Shape, system: LibrarySystem, table: Mapping[str, float]) -> float:
    if shape.algorithm in SWITCH_ALGORITHMS:
        blackwell = system.generation is Generation.BLACKWELL
        efficiency = table["efficiency.nvls_blackwell" if blackwell else "efficiency.nvls_hopper"]
        return efficiency * (table["efficiency.nvlstree"] if shape.algorithm == "nvlstree" else 1.0)
    if system.intra is Intra.HOST:
        return table["efficiency.host_both" if shape.both_ways else "efficiency.host"]
    name = {
        Intra.NVSWITCH: "nvlink",
        Intra.XGMI: "xgmi",
        Intra.HCCS: "hccs",
        Intra.PCIE: "pcie",
    }.get(system.intra, "nvlink_mesh")
    return table[f"efficiency.{name}"]


def _network_efficiency(system: LibrarySystem, table: Mapping[str, float]) -> float:
    word = system.network.word if system.network is not None else ""
    name = {"efa": "efa", "tcp": "tcp", "tcpx": "tcpx", "tcpxo": "fabric"}.get(word, "fabric")
    return table[f"efficiency.{name}"]
