"""What collectives take on a cluster of GPUs: with a library of theirs, or with ccbench's own schedules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ccbench.model.cluster import Cluster
from ccbench.model.library.constants import shipped
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.system import Generation, Intra, LibraryRequest, LibrarySystem
from ccbench.model.prediction import Prediction
from ccbench.topology.fabrics import LINK_KINDS
from ccbench.topology.graph import LinkKind
from ccbench.topology.routing import Floats

if TYPE_CHECKING:
    from ccbench.model.fabric_loads import FabricCosts
    from ccbench.model.fabric_pricing import FabricPrices


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


_EFFICIENCY_OF_KIND: dict[LinkKind, str] = {
    LinkKind.NVLINK: "nvlink",
    LinkKind.C2C: "nvlink_mesh",
    LinkKind.XGMI: "xgmi",
    LinkKind.HCCS: "hccs",
    LinkKind.PCIE: "pcie",
    LinkKind.INTER_SOCKET: "pcie",
    LinkKind.INFINIBAND: "fabric",
    LinkKind.ROCE: "fabric",
    LinkKind.EFA: "efa",
    LinkKind.ETHERNET: "tcp",
}
"""The library model's efficiency that holds on a link; NVLink-C2C is taken as NVLink without switches, and
between sockets GPUs' traffic is PCIe's, so both are assumptions."""

KIND_LATENCY_SECONDS: dict[LinkKind, float] = {
    LinkKind.NVLINK: 0.4e-6,
    LinkKind.C2C: 0.4e-6,
    LinkKind.XGMI: 0.5e-6,
    LinkKind.HCCS: 0.5e-6,
    LinkKind.PCIE: 0.5e-6,
    LinkKind.INTER_SOCKET: 0.2e-6,
    LinkKind.INFINIBAND: 1.0e-6,
    LinkKind.ROCE: 1.0e-6,
    LinkKind.EFA: 7.0e-6,
    LinkKind.ETHERNET: 15.0e-6,
}
"""Of one link where its source states none: half of NCCL's 0.6 us LL hop (times 1.3) for each of the two
links of a way through a switch; network ports so that two of them make up the library model's hop."""

SENDER_SECONDS = 1.0e-6
"""A flag seen and a copy begun by one thread block. Assumed: no published figure, and none of ccbench's own
kernels on GPUs yet; of the order of one hop of NCCL's LL (0.6 us over NVLink, src/graph/tuning.cc)."""


def kind_efficiency(system: LibrarySystem) -> dict[LinkKind, float]:
    """Share of a link's nominal rate that schedules get: constants of the library model (docs/model.md)."""
    table = shipped().table
    found = {kind: table[f"efficiency.{name}"] for kind, name in _EFFICIENCY_OF_KIND.items()}
    if system.intra is Intra.NVSWITCH and system.generation is Generation.HOPPER:
        found[LinkKind.NVLINK] = table["efficiency.nvlink_hopper"]
    elif system.intra is not Intra.NVSWITCH:
        found[LinkKind.NVLINK] = table["efficiency.nvlink_mesh"]
    return found


def library_points(cluster: Cluster, request: LibraryRequest, root: int = 0) -> tuple[ClusterPoint, ...]:
    """What the collective library should take; bounds are of any algorithm on the cluster's links."""
    bounds = bound_seconds(cluster, request.collective, request.size_bytes, root)
    shared = _shared_links(cluster, request, root)
    found = []
    for index, point in enumerate(predict_library(cluster.system, request)):
        bandwidth, bottleneck = point.bandwidth_seconds, point.bottleneck
        if shared is not None and point.algorithm == "pairwise" and shared.bandwidth[index] > bandwidth:
            bandwidth, bottleneck = float(shared.bandwidth[index]), shared.explanation(index)
        latency = point.latency_seconds + point.fill_seconds
        priced = Prediction(float(bounds[index]), latency + bandwidth, latency, bandwidth, bottleneck)
        found.append(
            ClusterPoint(
                request.collective,
                point.algorithm,
                point.protocol,
                cluster.ranks,
                point.size_bytes,
                priced,
                point.extrapolated,
            )
        )
    return tuple(found)


PAIRWISE_SCHEDULES = {
    "all_to_all": "direct",
    "all_to_all_v": "direct",
    "gather": "direct",
    "scatter": "direct",
    "send_recv": "shift",
}
"""The schedule with the traffic of grouped send and receive."""


def _shared_links(cluster: Cluster, request: LibraryRequest, root: int) -> FabricPrices | None:
    """Prices of the same messages on the graph's links.

    The library's model knows one GPU's links and one node's NICs; where messages of several GPUs share a
    link in between (PCIe trees, cube meshes, two sockets), the graph knows better.
    """
    name = PAIRWISE_SCHEDULES.get(request.collective)
    if name is None or cluster.ranks < 2 or cluster.system.intra is Intra.NVSWITCH:
        return None
    from ccbench.model.fabric_pricing import price_algorithm

    costs = fabric_costs(cluster)
    return price_algorithm(request.collective, name, cluster.fabric, request.size_bytes, costs, root=root)


def schedule_points(
    cluster: Cluster, collective: str, algorithm: str, size_bytes: Sequence[int], root: int = 0
) -> tuple[ClusterPoint, ...]:
    """What ccbench's own schedule should take on the cluster's links, each with its usual efficiency."""
    from ccbench.model.fabric_pricing import price_algorithm

    costs = fabric_costs(cluster)
    prices = price_algorithm(collective, algorithm, cluster.fabric, size_bytes, costs, root=root)
    bounds = bound_seconds(cluster, collective, size_bytes, root)
    return tuple(
        ClusterPoint(
            collective,
            algorithm,
            "default",
            cluster.ranks,
            size,
            Prediction(
                bound_seconds=float(bounds[index]),
                predicted_seconds=float(prices.seconds[index]),
                latency_seconds=float(prices.latency[index]),
                bandwidth_seconds=float(prices.bandwidth[index]),
                bottleneck=prices.explanation(index),
            ),
        )
        for index, size in enumerate(size_bytes)
    )


def fabric_costs(cluster: Cluster) -> FabricCosts:
    """What schedules pay on the cluster's links; the same object each time, so that loads are found once."""
    if "costs" not in cluster.remembered:
        cluster.remembered["costs"] = _costs(cluster)
    found: FabricCosts = cluster.remembered["costs"]
    return found


def _costs(cluster: Cluster) -> FabricCosts:
    from ccbench.model.fabric_loads import FabricCosts

    fabric = cluster.fabric
    latencies = np.array([KIND_LATENCY_SECONDS.get(kind, 0.0) for kind in LINK_KINDS])
    stated = fabric.link_latency_seconds
    return FabricCosts(
        sender_seconds=SENDER_SECONDS,
        link_latency_seconds=np.where(stated > 0, stated, latencies[fabric.link_kind_codes]),
        rate_efficiency=_efficiencies(cluster),
    )


def _efficiencies(cluster: Cluster) -> Floats:
    """One per link. What joins a NIC is taken to be as fast as its port where nobody said how fast it is, so
    the port's efficiency, not that of PCIe, is what holds there.
    """
    fabric, efficiency = cluster.fabric, kind_efficiency(cluster.system)
    found = np.array([efficiency.get(kind, 1.0) for kind in LINK_KINDS])[fabric.link_kind_codes]
    if cluster.network is not None:
        pcie = fabric.link_kind_codes == LINK_KINDS.index(LinkKind.PCIE)
        ports = fabric.link_bytes_per_second / np.maximum(fabric.link_counts, 1)
        at_nic = pcie & np.isclose(ports, cluster.network.bytes_per_second)
        found[at_nic] = efficiency[cluster.network.kind]
    return found


def bound_seconds(cluster: Cluster, collective: str, size_bytes: Sequence[int], root: int = 0) -> Floats:
    """Least seconds of any algorithm at nominal rates; see ``bound_on_fabric``."""
    from ccbench.model.graph_bounds import bound_on_fabric

    bound = bound_on_fabric(collective, cluster.fabric, size_bytes, root, cluster.adds_in_network)
    return bound.seconds
