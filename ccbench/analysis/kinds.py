"""Machines that a run may be of, where nobody named its machine or its network: one reading for each.

Of the catalog those with the GPUs that the output lists, else every one whose full nodes make up the ranks; of
several nodes with the networks that are usual for their generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ccbench.cases.capabilities import capabilities_of
from ccbench.errors import MachineError
from ccbench.model.cluster import Cluster
from ccbench.model.context import predict_case
from ccbench.model.library import Generation, LibraryRequest
from ccbench.model.library.clusters import generations_in, pcie_generation
from ccbench.results import Manifest, Point
from ccbench.results.systems import (
    cluster_on,
    machines_of,
    machines_with,
    on_plain_slots,
    system_stated,
)
from ccbench.topology.classes import is_card
from ccbench.topology.files import catalog_names, load_catalog
from ccbench.topology.graph import TopologyClass

USUAL_NETWORKS = {
    Generation.VOLTA: ("ib-edr-100x4", "efa-100x1"),
    Generation.AMPERE: ("ib-hdr-200x8", "ib-hdr-200x4", "efa-100x4"),
    Generation.HOPPER: ("ib-ndr-400x8", "ib-ndr-400x4", "efa-100x32", "tcpxo-200x8"),
    Generation.BLACKWELL: ("ib-ndr-400x8", "ib-xdr-800x8", "efa-200x16"),
    Generation.CDNA3: ("roce-400x8",),
}
"""Of nodes of eight GPUs, by generation: NVIDIA's DGX and HGX reference designs, AWS p3dn to p6, GCP a3-megagpu."""

MOST_POINTS = 24
"""Points of a run that are priced on each machine: enough for the median of every regime."""


def fitting_clusters(manifest: Manifest, point: Point) -> Iterator[tuple[str, str, Cluster]]:
    """Yield (machine, network, cluster) of each machine that ``point`` may have been measured on."""
    stated = system_stated(manifest, point)
    name, network, nodes = stated.machine, stated.network, point.nodes or stated.nodes or 0
    is_amd = capabilities_of(point.backend).library == "RCCL"
    if name and name not in catalog_names():
        return
    named = (
        (name,)
        if name in catalog_names()
        else _machines_with(point.device_model, nodes, point.ranks)
    )
    for machine in named if name or point.device_model else catalog_names():
        node = load_catalog(machine)
        generation = next(iter(generations_in(" ".join(node.models[:1]))), Generation.UNKNOWN)
        is_other_maker = generation.value.startswith("cdna") is not is_amd
        is_other_maker |= generation is Generation.ASCEND
        # Boards hold what they hold; how many cards a box has is its owner's choice.
        full = len(node.gpus) > 1 and node.topology_class is not TopologyClass.PCIE
        spread = nodes or (1 if named else point.ranks // max(len(node.gpus), 1))
        if is_other_maker or not (named or (full and point.ranks == spread * len(node.gpus))):
            continue
        usual = USUAL_NETWORKS.get(generation, ()) if len(node.gpus) == 8 else ()
        if used := manifest.imported(point.source).text("facts", "network", "used"):
            # Of sockets no rate is usual.
            efa = "efa" in used.lower() or "libfabric" in used.lower()
            usual = tuple(w for w in usual if w.startswith("efa") is efa and used != "Socket")
        for words in ("",) if spread == 1 else (network,) if network else usual:
            try:
                yield (
                    machine,
                    words,
                    cluster_on(
                        replace(stated, source=machine, nodes=spread, network=words),
                        point.ranks,
                        nodes,
                    ),
                )
            except MachineError:  # noqa: PERF203  # each machine may not hold so many ranks
                continue


def _machines_with(model: str, nodes: int, ranks: int) -> Sequence[str]:
    """Machines of the catalog that may have ``model``."""
    each = -(-ranks // max(nodes, 1))
    # What joins cards of a known generation; a slice of a GPU, or an unknown one, is like none of the catalog.
    slots = on_plain_slots(model) if is_card(model) and "MIG" not in model else ()
    # Its cards are of generation 4; others' links are not like theirs.
    generation = next(iter(generations_in(model)), Generation.UNKNOWN)
    if "RTX" in model and pcie_generation(generation) == 4:
        slots = (*slots, "rtx-pcie")
    return machines_of(model, each, each - 1) or machines_with(model) or slots


def priced_on(
    cluster: Cluster, request: LibraryRequest, points: Sequence[Point], most: int = MOST_POINTS
) -> list[Point]:
    """At most ``most`` of ``points``, of all sizes, with their predictions on ``cluster``, where they have any."""
    ordered = sorted(points, key=lambda point: point.size_bytes)
    priced = []
    for point in [*ordered[: -1 : -(-len(ordered) // most)], ordered[-1]]:
        made = predict_case(
            point, cluster, gpus_per_process=request.gpus_per_process, version=request.version
        )
        if made is not None and made.interval is not None:
            edges = {
                f"predicted_{edge}_seconds": getattr(made.interval, f"{edge}_seconds")
                for edge in ("low_80", "high_80", "low_95", "high_95")
            }
            bound, predicted = made.bound_seconds, made.predicted_seconds
            priced.append(
                replace(point, bound_seconds=bound, predicted_seconds=predicted, **edges)
            )
    return priced
