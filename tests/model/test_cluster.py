"""Clusters that a model can price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from ccbench.errors import MachineError
from ccbench.model.cluster import (
    ClusterPoint,
    cluster_of,
    kind_efficiency,
    library_points,
    open_cluster,
    schedule_points,
)
from ccbench.model.library import LibraryRequest, NetworkPorts
from ccbench.model.library.constants import shipped
from ccbench.model.library.predictor import predict_library
from ccbench.topology.files import catalog_names, load_catalog
from ccbench.topology.graph import LinkKind
from tests.model.library.systems import COLLECTIVES

SIZES = tuple(2**power for power in range(3, 35))
PRICED = [name for name in catalog_names() if load_catalog(name).gpus]


@pytest.mark.parametrize("name", PRICED)
def test_every_machine_of_the_catalog_is_priced_at_or_above_its_bound(name: str) -> None:
    cluster = open_cluster(name)
    assert cluster.ranks >= 2
    points = [
        point
        for collective in COLLECTIVES
        for point in library_points(cluster, LibraryRequest(collective, SIZES))
    ]
    for algorithm in ("ring", "two_shot"):
        points += schedule_points(cluster, "all_reduce", algorithm, SIZES)
    for point in points:
        assert 0 <= point.prediction.bound_seconds <= point.prediction.predicted_seconds
        assert point.prediction.bottleneck


def test_some_ranks_of_a_machine_are_its_first_gpus() -> None:
    whole, half = open_cluster("hgx-h100"), open_cluster("hgx-h100", ranks=4)
    assert half.ranks == 4
    assert [gpu.name for gpu in half.node.gpus] == [gpu.name for gpu in whole.node.gpus[:4]]
    assert all("gpu7" not in (link.source, link.target) for link in half.node.links)


def test_more_ranks_than_gpus_are_more_nodes() -> None:
    cluster = open_cluster("hgx-h100", network="ib-ndr-400x8", ranks=32)
    assert (cluster.nodes, cluster.ranks) == (4, 32)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"ranks": 16}, "need a network"),
        ({"nodes": 2}, "need a network"),
        ({"nodes": 3, "network": "ib-ndr-400x8", "ranks": 16}, "evenly"),
        ({"nodes": 1, "ranks": 9}, "evenly"),
        ({"nodes": 2, "network": "fast"}, "ib-ndr-400x8"),
    ],
)
def test_what_cannot_be_is_refused_with_a_cure(asked: dict[str, int | str], said: str) -> None:
    with pytest.raises(MachineError, match=said):
        open_cluster("hgx-h100", **asked)  # type: ignore[arg-type]  # mixed keywords


def test_a_machine_without_gpus_is_refused() -> None:
    with pytest.raises(MachineError, match="no GPU"):
        cluster_of(load_catalog("cpu-shared-memory"))


@settings(max_examples=30, deadline=None)
@given(
    machine=some.sampled_from(PRICED),
    nodes=some.integers(1, 5),
    gigabits=some.sampled_from([25, 100, 400]),
    nics=some.integers(1, 9),
    collective=some.sampled_from(["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"]),
)
def test_predictions_never_undercut_bounds_and_grow_with_size(
    machine: str, nodes: int, gigabits: int, nics: int, collective: str
) -> None:
    cluster = open_cluster(machine, nodes, f"roce-{gigabits}x{nics}")
    points = library_points(cluster, LibraryRequest(collective, SIZES))
    seconds = np.array([point.prediction.predicted_seconds for point in points])
    assert (seconds >= [point.prediction.bound_seconds for point in points]).all()
    assert (np.diff(seconds) >= -1e-12).all()


def points_of_some(
    machine: str, nodes: int, network: str, ranks: int, collective: str
) -> tuple[ClusterPoint, ...]:
    """Of the first GPUs of each node; none where these are not joined, as the first four of some meshes."""
    try:
        return library_points(open_cluster(machine, nodes, network, ranks), LibraryRequest(collective, SIZES))
    except MachineError as error:
        if "no link that joins" not in str(error):
            raise
        return ()


@pytest.mark.parametrize(
    ("machine", "network", "ranks", "collective", "most"),
    [
        ("l40s", "ib-ndr-400x8", 2, "all_reduce", 31.5),
        ("pcie3-x16", "ib-ndr-400x1", 2, "all_reduce", 15.75),
        ("l40s", "ib-ndr-400x8", 4, "all_gather", 2 * 31.5),
        ("hgx-h100", "ib-ndr-400x8", 2, "all_reduce", 63.1),
        ("mi300x", "roce-400x8", 2, "all_reduce", 63.1),
    ],
)
def test_no_gpu_is_given_more_of_the_network_than_its_port_carries(
    machine: str, network: str, ranks: int, collective: str, most: float
) -> None:
    whole = open_cluster(machine, 2, network, ranks)
    # All NICs of the node, as the library model may be given them.
    nics = NetworkPorts(network.split("-4")[0], 50e9, 8)
    for system in (whole.system, replace(whole.system, network=nics)):
        (point,) = predict_library(system, LibraryRequest(collective, (1 << 30,)))
        moved = (1 << 30) * (ranks - 1) / ranks * (2 if collective == "all_reduce" else 1)
        assert moved / point.seconds / 1e9 <= most
    assert whole.system.origins["gpu_port"]


def test_a_gather_across_nodes_takes_as_long_as_its_own_schedule_almost() -> None:
    cluster = open_cluster("hgx-h100", 2, "ib-ndr-400x8")
    (library,) = library_points(cluster, LibraryRequest("gather", (1 << 30,)))
    (own,) = schedule_points(cluster, "gather", "direct", (1 << 30,))
    assert library.prediction.predicted_seconds == pytest.approx(own.prediction.predicted_seconds, rel=0.1)


def test_schedules_get_the_shares_of_links_that_the_library_model_has() -> None:
    table = shipped().table
    shares = {
        name: kind_efficiency(open_cluster(name).system) for name in ("hgx-h100", "dgx-a100", "gh200x4")
    }
    nvlink = {name: share[LinkKind.NVLINK] for name, share in shares.items()}
    assert nvlink == {
        "hgx-h100": table["efficiency.nvlink_hopper"],
        "dgx-a100": table["efficiency.nvlink"],
        "gh200x4": table["efficiency.nvlink_mesh"],
    }
    assert shares["dgx-a100"][LinkKind.INFINIBAND] == table["efficiency.fabric"]


@pytest.mark.exhaustive
def test_ten_thousand_random_predictions_stand_above_their_bounds() -> None:
    draw = np.random.default_rng(20)
    cases, below = 0, []
    while cases < 10_000:
        name = str(draw.choice(PRICED))
        nodes = int(draw.choice([1, 2, 3, 4, 8, 16]))
        kind = str(draw.choice(["roce", "ib-ndr", "efa", "tcp"]))
        network = f"{kind}-{int(draw.choice([25, 100, 200, 400]))}x{int(draw.integers(1, 17))}"
        collective = str(draw.choice(COLLECTIVES))
        ranks = nodes * int(draw.integers(1 if nodes > 1 else 2, len(load_catalog(name).gpus) + 1))
        for point in points_of_some(name, nodes, network, ranks, collective):
            cases += 1
            if point.prediction.predicted_seconds < point.prediction.bound_seconds:
                below.append((name, nodes, network, ranks, collective, point.size_bytes))
    assert below == []
