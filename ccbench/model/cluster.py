"""GPUs that a model can price: one machine's graph, copied over nodes and joined by a network.

What collectives take there: with a library of the GPUs, or with ccbench's own schedules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.documents import read_installed
from ccbench.errors import MachineError
from ccbench.model import Prediction
from ccbench.model.bounds import ROUNDING, bound_on_fabric, least_of, moved_sizes, place_of
from ccbench.model.fabric_pricing import MOST_RANKS, FabricCosts, FabricPrices, price_algorithm
from ccbench.model.library import (
    Intra,
    LibraryPoint,
    LibraryRequest,
    LibrarySystem,
    PciePath,
)
from ccbench.model.library.clusters import (
    lanes_are_assumed,
    library_system,
    with_rates_of_model,
)
from ccbench.model.library.constants import shipped
from ccbench.model.library.costs import MICRO, PROXY_ELSEWHERE_MICROSECONDS, PROXY_MICROSECONDS
from ccbench.model.library.intervals import intervals
from ccbench.model.library.paths import peer_access
from ccbench.model.library.predictor import predict_library
from ccbench.topology.fabrics import LINK_KINDS, Fabric, Floats, LevelCut, TooLargeError
from ccbench.topology.graph import LinkKind, Topology
from ccbench.topology.node_nics import Network, parse_network

T = TypeVar("T")

MOST_KEPT = 16_384
"""Answers that a cluster keeps."""


MOST_OF_A_HOST = 16
"""GPUs; a machine with more is an NVLink domain of several hosts (GB200 NVL72)."""


@dataclass(frozen=True)
class Cluster:
    """``nodes`` machines like ``node``, of which every GPU is a rank; rank = node * GPUs of a node + GPU.

    ``system`` is what a collective library's model needs of it, ``fabric`` what schedules and bounds need;
    both are made when first asked for and raise MachineError where the graph does not say enough.
    network: with the NICs that serve those GPUs; stated: with all of a node, where those are more.
    """

    name: str
    node: Topology
    nodes: int
    network: Network | None
    stated: Network | None = None

    @property
    def ranks(self) -> int:
        """All GPUs."""
        return len(self.node.gpus) * self.nodes

    @cached_property
    def system(self) -> LibrarySystem:
        """The library's view."""
        return library_system(self.node, self.nodes, self.network)

    @cached_property
    def fabric(self) -> Fabric:
        """Links and routes."""
        from ccbench.topology.composition import cluster

        return cluster(self.node, self.nodes, self.network)

    @cached_property
    def bound_fabric(self) -> Fabric:
        """Links and routes with all NICs of a node: no rule keeps a GPU from those that others are beside."""
        return (
            self.fabric
            if self.stated is None
            else replace(self, network=self.stated, stated=None).fabric
        )

    @cached_property
    def has_graph(self) -> bool:
        """False where the graph would be too large: the library's model and bounds need none."""
        try:
            return bool(self.bound_fabric)
        except TooLargeError:
            return False

    @cached_property
    def _known(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def entrances(self) -> tuple[float, float]:
        """Bytes per second into or out of the GPU that has most, and a node; of one or two nodes like all."""
        pair = self
        if self.nodes > 2 and self.network is not None:
            # The shape of a network joins all nodes and no two of them.
            networks = (self.network, self.stated or self.network)
            own, stated = (replace(network, shape="") for network in networks)
            pair = replace(self, nodes=2, network=own, stated=stated)
        fabric = pair.bound_fabric
        rates = fabric.link_bytes_per_second
        most = max(
            float(np.bincount(ends, rates, fabric.vertices)[: fabric.ranks].max())
            for ends in (fabric.link_source, fabric.link_target)
        )
        levels = [level.bytes_per_second for level in fabric.levels if level.name == "node"]
        network = self.system.network
        return most, max(
            [*levels, network.node_bytes_per_second if network is not None else 0.0]
        )

    @cached_property
    def costs(self) -> FabricCosts:
        """Costs of schedules on its links; the same object each time, so that loads are found once."""
        fabric, links, table = self.fabric, read_installed(LINKS_FILE), shipped().table
        # The share of a link's nominal rate that schedules get is the library's (docs/model.md).
        shares, latencies, messages = (
            np.array([neutral] * len(LINK_KINDS)) for neutral in (1.0, 0.0, 0.0)
        )
        for code, kind in enumerate(LINK_KINDS):
            if kind.value in links:
                name, latencies[code], messages[code] = links[kind.value]
                shares[code] = table[f"efficiency.{name}"]
        kinds, stated = fabric.link_kind_codes, fabric.link_latency_seconds
        efficiency = shares[kinds]
        if self.network is not None:
            code = LINK_KINDS.index(self.network.kind)
            # What joins a NIC is taken to be as fast as its port where nobody said how fast it is, so the
            # port's efficiency, not that of PCIe, is what holds there. Links of one bundle are as fast as one
            # another: the rate of one is what a port has.
            ports = fabric.link_bytes_per_second / np.maximum(fabric.link_counts, 1)
            pcie = kinds == LINK_KINDS.index(LinkKind.PCIE)
            efficiency[pcie & np.isclose(ports, self.network.bytes_per_second)] = shares[code]
            # The host's processor posts what goes to the network.
            posting = PROXY_MICROSECONDS.get(self.system.host, PROXY_ELSEWHERE_MICROSECONDS)
            messages[code] = max(messages[code], posting * MICRO)
        latency = np.where(stated > 0, stated, latencies[kinds])
        return FabricCosts(SENDER_SECONDS, latency, efficiency, messages[kinds])

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value that ``make`` gives, made once for each ``key``; begins anew after MOST_KEPT of them."""
        if key not in self._known:
            if len(self._known) > MOST_KEPT:
                self._known.clear()
            self._known[key] = make()
        value: T = self._known[key]
        return value

    @property
    def adds_in_network(self) -> bool:
        """True if switches can combine what passes (NVLink SHARP, SHARP): a bound of its own."""
        network = self.system.network
        return self.system.multicast or (network is not None and network.in_network_reduction)


def open_cluster(
    source: str, nodes: int | None = None, network: str | None = None, ranks: int | None = None
) -> Cluster:
    """The machine that ``source`` names (see ``load_topology``), as many of it as asked for.

    ranks: the first so many GPUs, evenly over the nodes; without ``nodes`` as few nodes as hold them.
    The NICs of ``network`` are those of a node, also where only some of its GPUs take part. Where each GPU of
    the machine has at least one of its own, those that take part are priced with theirs, as libraries use
    them (two nodes with 8 NICs and 4 of 8 H100 reach 328 of 4 NICs' 350 GB/s); bounds are of all.
    Raises MachineError for machines without GPUs, ranks that do not fit, several nodes without a network.
    """
    return cluster_of(opened(source), nodes, network, ranks)


def opened(source: str) -> Topology:
    """The machine that ``source`` names, of this one (``detect``) what is visible; see ``load_topology``."""
    from ccbench.machine.detection import load_topology

    node = load_topology(source)
    return visible_part(node)[0] if source == "detect" else node


def cluster_of(
    node: Topology,
    nodes: int | None = None,
    network: str | None = None,
    ranks: int | None = None,
) -> Cluster:
    """Return ``nodes`` machines like ``node``; see ``open_cluster``."""
    held = len(node.gpus)
    if not held:
        raise MachineError(
            f"{node.name}: has no GPU to price, and the CPU has predictions only within a run (ccbench run quick); "
            "name a machine with GPUs, such as hgx-h100"
        )
    if nodes is None:
        nodes = 1 if ranks is None else -(-ranks // held)
    ranks = nodes * held if ranks is None else ranks
    if ranks < 1 or ranks % nodes or ranks // nodes > held:
        raise MachineError(
            f"{node.name}: {ranks} ranks do not spread evenly over {nodes} nodes of {held} GPUs; give "
            f"a multiple of {nodes} up to {nodes * held}, or other --nodes"
        )
    if nodes > 1 and network is None:
        rack = f"; {node.name} is {held} GPUs of several hosts: for some of these give --ranks, no --nodes"
        raise MachineError(
            f"{node.name}: {ranks} ranks are {nodes} nodes and need a network; name theirs, such as "
            f"--network ib-ndr-400x{min(8, held)} ('ccbench list networks'){rack * (held > MOST_OF_A_HOST)}"
        )
    taken = first_gpus(with_rates_of_model(node), ranks // nodes)
    if network is None or nodes == 1:
        return Cluster(node.name, taken, nodes, None)
    stated, each = parse_network(network), ranks // nodes
    name = f"{nodes} x {node.name} on {stated}"
    # Of fewer NICs than GPUs nobody knows which GPUs they are beside, so that all may be used.
    own = stated.nics * each // held if stated.nics >= held else stated.nics
    if own == stated.nics:
        return Cluster(name, taken, nodes, stated)
    name = f"{name}, {own} of its NICs for {each} of {held} GPUs"
    return Cluster(name, taken, nodes, replace(stated, nics=own), stated)


def first_gpus(node: Topology, count: int) -> Topology:
    """``node`` with its first ``count`` GPUs only; switches, NICs and processors stay."""
    return without_gpus(node, {gpu.name for gpu in node.gpus[count:]})


def visible_part(node: Topology) -> tuple[Topology, str]:
    """(this machine with the GPUs that CUDA_VISIBLE_DEVICES shows, in its order; what is not known of that).

    Numbers are places in the driver's order, which is CUDA's where all are of one model (CUDA C++ Programming
    Guide, "CUDA Environment Variables").
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not chosen or not node.gpus:
        return node, ""
    places = {str(place): gpu for place, gpu in enumerate(node.gpus)}
    shown = [places.get(word.strip()) for word in chosen.split(",")]
    gpus = [*dict.fromkeys(gpu for gpu in shown if gpu is not None)]
    if len(gpus) < len(shown) or len(node.models) > 1:
        return (
            node,
            f"CUDA_VISIBLE_DEVICES={chosen}: which GPUs is not known; the first are priced",
        )
    part = without_gpus(node, {gpu.name for gpu in node.gpus if gpu not in gpus})
    rest = (device for device in part.devices if device not in node.gpus)
    return replace(part, devices=(*gpus, *rest)), ""


def without_gpus(node: Topology, gone: set[str]) -> Topology:
    """``node`` without the GPUs of these names."""
    if not gone:
        return node
    facts = {name: fact for name, fact in node.facts.items() if name not in _FACTS_OF_ALL_GPUS}
    peers = peer_access(
        node.facts, [i for i, gpu in enumerate(node.gpus) if gpu.name not in gone]
    )
    return replace(
        node,
        devices=tuple(device for device in node.devices if device.name not in gone),
        links=tuple(
            link for link in node.links if link.source not in gone and link.target not in gone
        ),
        matrix={pair: path for pair, path in node.matrix.items() if not gone & set(pair)},
        facts=facts if peers is None else {**facts, "peer_access": peers},
    )


_FACTS_OF_ALL_GPUS = frozenset(
    {"gpu_count", "gpu_matrix", "nvlinks_per_gpu", "rings", "p2p_matrix"}
)
"""Facts about GPUs that were left out, which would no longer hold."""


@dataclass(frozen=True)
class ClusterPoint:
    """One size: who would run it and what it takes. extrapolated: why it is less sure, "" if it is not."""

    collective: str
    algorithm: str
    protocol: str
    ranks: int
    size_bytes: int
    prediction: Prediction
    extrapolated: str = ""


LINKS_FILE = Path(__file__).with_name("links.yaml")

SENDER_SECONDS = 1.0e-6
"""A flag seen and a copy begun by one thread block. Assumed: no published figure, and none of ccbench's own
kernels on GPUs yet; of the order of one hop of NCCL's LL (0.6 us over NVLink, src/graph/tuning.cc)."""


def library_points(
    cluster: Cluster, request: LibraryRequest, root: int = 0
) -> tuple[ClusterPoint, ...]:
    """Predictions for the collective library; bounds are of any algorithm on the cluster's links."""
    bounds = bound_seconds(cluster, request.collective, request.size_bytes, root)
    name, shared = PAIRWISE_SCHEDULES.get(request.collective), None
    switched = cluster.system.intra is Intra.NVSWITCH
    of_few = 1 < cluster.ranks <= MOST_RANKS and not switched
    if name is not None and of_few and cluster.has_graph:
        # The library's model knows one GPU's links and one node's NICs; where messages of several GPUs share
        # a link in between (PCIe trees, cube meshes, two sockets), the graph knows better.
        arguments = request.collective, name, cluster.fabric, request.size_bytes, cluster.costs
        shared = price_algorithm(*arguments, root=root)
    predicted = []
    for index, point in enumerate(predict_library(cluster.system, request)):
        # Of the library's own figure and what links in between allow, the slower holds.
        if shared is not None and point.algorithm == "pairwise":
            slower = float(shared.bandwidth[index])
            if slower > point.bandwidth_seconds:
                point = replace(
                    point, bandwidth_seconds=slower, bottleneck=shared.explanation(index)
                )
        predicted.append(point)

    def points_on(
        system: LibrarySystem, answers: Sequence[LibraryPoint]
    ) -> tuple[ClusterPoint, ...]:
        return points_with_bounds(
            request.collective, cluster.ranks, system, answers, bounds.tolist()
        )

    points = points_on(cluster.system, predicted)
    # Intervals reach as far as what nobody said could make it take.
    slowest, doubts = cluster.system, list[str]()
    if lanes_are_assumed(slowest):
        half = slowest.intra_bytes_per_second / 2
        slowest = replace(slowest, intra_bytes_per_second=half)
        doubts.append("its slots may have 8 lanes of PCIe, not 16 (--pcie 4x16 says so)")
    if cluster.system.path is PciePath.UNKNOWN:
        slowest = replace(slowest, intra=Intra.HOST, path=PciePath.HOST)
        doubts.append(
            "data may pass through host memory (nvidia-smi topo -m and topo -p2p r in the file, or "
            "NCCL_DEBUG=INFO, say so)"
        )
        # Of the published boxes with PCIe alone more than half copy directly.
        points = points_on(replace(cluster.system, path=PciePath.DIRECT), predicted)
    if doubts:
        slow = points_on(slowest, predict_library(slowest, request))
        points = _reaching(points, slow, " and ".join(doubts))
    if not request.launch_known:
        most = cluster.system.ranks_per_node
        all_by_one = replace(request, launch_known=True, gpus_per_process=most)
        later = library_points(cluster, all_by_one, root)
        points = _reaching(points, later, f"one thread may launch on 1 to {most} GPUs")
    return points


def _reaching(
    points: Sequence[ClusterPoint], slower: Sequence[ClusterPoint], why: str
) -> tuple[ClusterPoint, ...]:
    """``points`` with intervals that end where those of ``slower`` do, where that is later.

    why: what is not known, so that it may be slower.
    """
    reaching = []
    for point, later in zip(points, slower, strict=True):
        own, other = point.prediction.interval, later.prediction.interval
        assert own is not None
        assert other is not None
        interval = replace(
            own,
            high_80_seconds=max(own.high_80_seconds, other.high_80_seconds),
            high_95_seconds=max(own.high_95_seconds, other.high_95_seconds),
            origin=f"{own.origin}; wider, for {why}",
        )
        reaching.append(replace(point, prediction=replace(point.prediction, interval=interval)))
    return tuple(reaching)


def points_with_bounds(
    collective: str,
    ranks: int,
    system: LibrarySystem,
    points: Sequence[LibraryPoint],
    bound_seconds: Sequence[float],
) -> tuple[ClusterPoint, ...]:
    """``points`` of the library on ``system`` as those of so many ranks, with bounds and intervals."""
    predictions = []
    for point, bound in zip(points, bound_seconds, strict=True):
        latency = point.latency_seconds + point.fill_seconds
        seconds = latency + point.bandwidth_seconds
        predictions.append(
            Prediction(bound, seconds, latency, point.bandwidth_seconds, point.bottleneck)
        )
    return tuple(
        ClusterPoint(
            collective,
            point.algorithm,
            point.protocol,
            ranks,
            point.size_bytes,
            replace(prediction, interval=interval),
            point.extrapolated,
        )
        for point, prediction, interval in zip(
            points, predictions, intervals(system, predictions), strict=True
        )
    )


PAIRWISE_SCHEDULES = {
    "all_to_all": "direct",
    "all_to_all_v": "direct",
    "gather": "direct",
    "scatter": "direct",
    "send_recv": "shift",
}
"""The schedule with the traffic of grouped send and receive."""


def schedule_points(
    cluster: Cluster, collective: str, algorithm: str, size_bytes: Sequence[int], root: int = 0
) -> tuple[ClusterPoint, ...]:
    """Predictions for ccbench's own schedule on the cluster's links, each with its usual efficiency."""
    prices = price_algorithm(
        collective, algorithm, cluster.fabric, size_bytes, cluster.costs, root
    )
    bounds = bound_seconds(cluster, collective, size_bytes, root)
    return points_of(prices, algorithm, cluster.ranks, size_bytes, bounds)


def points_of(
    prices: FabricPrices,
    algorithm: str,
    ranks: int,
    size_bytes: Sequence[int],
    bounds: Iterable[float],
) -> tuple[ClusterPoint, ...]:
    """``prices`` of a schedule on so many ranks as points, with a bound for each size."""
    return tuple(
        ClusterPoint(
            prices.loads[index].traffic.collective,
            algorithm,
            "default",
            ranks,
            size,
            Prediction(
                float(bound),
                float(prices.seconds[index]),
                float(prices.latency[index] + prices.messages[index]),
                float(prices.bandwidth[index]),
                prices.explanation(index),
            ),
        )
        for index, (size, bound) in enumerate(zip(size_bytes, bounds, strict=True))
    )


def bound_seconds(
    cluster: Cluster, collective: str, size_bytes: Sequence[int], root: int = 0
) -> Floats:
    """Least seconds of any algorithm at nominal rates; see ``bound_on_fabric``.

    Of a cluster too large for a graph, what leaves a GPU and a machine counts, which are all alike.
    """
    if cluster.has_graph:
        return bound_on_fabric(
            collective, cluster.bound_fabric, size_bytes, root, cluster.adds_in_network
        )
    place_of(root, collective, cluster.ranks)
    if not collective_row(collective).moves_data:
        return np.zeros(len(size_bytes))
    rate = cut_rate(cluster, collective, cluster.ranks, cluster.nodes)
    return moved_sizes(collective, size_bytes) / rate * (1 - ROUNDING)


def cut_rate(
    cluster: Cluster, collective: str, ranks: int, nodes: int, crossing: int = 1
) -> float:
    """The most bytes per second that cuts round a GPU and round a node allow so many ranks on ``nodes`` nodes.

    crossing: groups of that kind which share what leaves a node.
    """
    gpu, node = cluster.entrances
    levels = (
        LevelCut("GPU", 1, gpu, ranks),
        LevelCut("node", ranks // nodes, node / crossing, nodes),
    )
    in_network = cluster.adds_in_network and collective == "all_reduce"
    return float(least_of(levels, ranks, "broadcast" if in_network else collective)[0])
