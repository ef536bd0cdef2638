"""Collectives of the library on groups: what they share slows them down, what they do not share does not."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as some

from ccbench.collectives import COLLECTIVES, collective
from ccbench.errors import MachineError, UsageError
from ccbench.groups import Groups, Layout, parse_groups
from ccbench.model import group_points as model
from ccbench.model.cluster import Cluster, ClusterPoint, library_points, open_cluster
from ccbench.model.library import LibraryRequest

MOVING = [name for name, row in COLLECTIVES.items() if row.moves_data]
LARGE = 1 << 32
MACHINES = [
    ("hgx-h100", 2, "ib-ndr-400x8"),
    ("hgx-h100", 4, "ib-ndr-400x4"),
    ("mi300x", 2, "roce-400x8"),
    ("ascend-910b", 1, None),
    ("dgx-1v", 2, "ib-edr-100x4"),
    ("pcie4-x16", 1, None),
    ("rtx-pcie", 1, None),
]


@lru_cache(maxsize=16)
def cluster_of(machine: str, nodes: int = 1, network: str | None = None) -> Cluster:
    return open_cluster(machine, nodes, network)


def group_points(
    cluster: Cluster,
    groups: Groups,
    name: str,
    sizes: tuple[int, ...],
    **requested: str,
) -> tuple[ClusterPoint, ...]:
    request = LibraryRequest(name, sizes, **requested)  # type: ignore[arg-type]  # fields by name
    return model.group_points(cluster, groups, request)


def one(cluster: Cluster, groups: str, name: str, size: int = LARGE) -> ClusterPoint:
    (point,) = group_points(cluster, parse_groups(groups, cluster.ranks), name, (size,))
    return point


def algbw(point: ClusterPoint) -> float:
    return point.size_bytes / point.prediction.predicted_seconds


def busbw(point: ClusterPoint) -> float:
    return algbw(point) * collective(point.collective).bus_factor(point.ranks)


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("machine", ["ascend-910b", "mi300x"])
def test_four_of_a_full_mesh_of_eight_use_three_sevenths_of_the_links(
    machine: str, name: str
) -> None:
    """Of a GPU's seven links three lead to members: 3/7 of the bus bandwidth, half the algorithm's (an
    algorithm's is p / (p - 1) of it, up to what is common to both).
    """
    cluster = cluster_of(machine)
    four, eight = one(cluster, "rank // 4", name), one(cluster, "", name)
    assert busbw(four) / busbw(eight) == pytest.approx(3 / 7, rel=0.02)
    assert algbw(four) / algbw(eight) == pytest.approx(1 / 2, rel=0.02)


@pytest.mark.thinned(14)
@pytest.mark.parametrize(("machine", "nodes", "network"), MACHINES)
@pytest.mark.parametrize("name", MOVING)
def test_all_ranks_as_one_group_are_priced_as_without_groups(
    machine: str, nodes: int, network: str | None, name: str
) -> None:
    cluster, sizes = cluster_of(machine, nodes, network), (1 << 12, 1 << 22, LARGE)
    grouped = group_points(cluster, parse_groups("", cluster.ranks), name, sizes)
    for found, whole in zip(
        grouped, library_points(cluster, LibraryRequest(name, sizes)), strict=True
    ):
        # Where messages of several GPUs share a link in between, the graph may say more than the library.
        assert found.prediction.predicted_seconds <= whole.prediction.predicted_seconds * (
            1 + 1e-9
        )
        if name not in ("all_to_all", "all_to_all_v", "gather", "scatter", "send_recv"):
            assert found.prediction.predicted_seconds == pytest.approx(
                whole.prediction.predicted_seconds
            )


@some.composite
def asked(draw: some.DrawFn) -> tuple[Cluster, str, str, int, str]:
    cluster = cluster_of(*draw(some.sampled_from(MACHINES)))
    divisors = [number for number in range(2, cluster.ranks + 1) if cluster.ranks % number == 0]
    operator, number = draw(some.sampled_from(("//", "%"))), draw(some.sampled_from(divisors))
    groups = f"rank {operator} {number}"
    if draw(some.booleans()):
        shuffled = draw(some.permutations(range(cluster.ranks)))
        groups = str(
            [list(shuffled[start : start + 2]) for start in range(0, cluster.ranks - 1, 2)]
        )
    name = draw(some.sampled_from(MOVING))
    traffic = (
        draw(some.sampled_from(("", "zipf:1.2", "hot:0.7"))) if name == "all_to_all_v" else ""
    )
    return (
        cluster,
        groups,
        name,
        draw(some.sampled_from((8, 1 << 14, 1 << 20, 1 << 28))),
        traffic,
    )


@given(asked())
def test_together_takes_at_least_as_long_as_alone_and_at_most_as_often_as_there_are_groups(
    what: tuple[Cluster, str, str, int, str],
) -> None:
    cluster, text, name, size, traffic = what
    groups = parse_groups(text, cluster.ranks)
    (together,) = group_points(cluster, groups, name, (size,), traffic=traffic)
    alone = [
        group_points(cluster, (group,), name, (size,), traffic=traffic)[0].prediction
        for group in groups
    ]
    longest = max(prediction.predicted_seconds for prediction in alone)
    assert together.prediction.predicted_seconds >= longest * (1 - 1e-9)
    assert together.prediction.predicted_seconds <= longest * len(groups) * (1 + 1e-9)
    for prediction in (together.prediction, *alone):
        assert 0 <= prediction.bound_seconds <= prediction.predicted_seconds


def test_groups_of_131072_gpus_are_priced_alike() -> None:
    cluster = cluster_of("hgx-h100", 16_384, "ib-ndr-400x8")
    layout = Layout(tp=8, dp=1024, pp=16)
    for axis, ranks in (("tp", 8), ("dp", 1024), ("pp", 16)):
        groups = layout.groups(axis)
        for name in ("all_reduce", "send_recv"):
            (point,) = group_points(cluster, groups, name, (1 << 26,))
            assert point.ranks == ranks
            assert 0 < point.prediction.bound_seconds <= point.prediction.predicted_seconds


def test_what_does_not_fit_is_refused_with_the_numbers() -> None:
    cluster = cluster_of("hgx-h100")
    with pytest.raises(MachineError, match="0 to 7"):
        group_points(cluster, ((0, 8),), "all_reduce", (8,))
    with pytest.raises(UsageError, match="4 rows"):
        group_points(cluster, ((0, 1),), "all_to_all_v", (8,), traffic=str([[1] * 4] * 4))
