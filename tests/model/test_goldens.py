"""Prices of every machine of the catalog, of networks and of ccbench's own schedules, as one table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from ccbench.collectives import COLLECTIVES
from ccbench.errors import CcbenchError
from ccbench.groups import Layout
from ccbench.model.cluster import (
    Cluster,
    ClusterPoint,
    library_points,
    open_cluster,
    schedule_points,
)
from ccbench.model.group_points import group_points
from ccbench.model.library import LibraryRequest
from ccbench.schedules import algorithms_of
from ccbench.topology.files import catalog_names
from tests.goldens import check

GOLDENS = Path(__file__).parent / "goldens"
SIZES = (1 << 10, 3 << 18, 1 << 28)
CLUSTERS = (
    ("hgx-h100", 2, "ib-ndr-400x8"),
    ("hgx-h100", 64, "ib-ndr-400x8"),
    ("hgx-h100", 9, "roce-200x8"),
    ("dgx-a100", 4, "efa-100x4"),
    ("mi300x", 2, "roce-400x8"),
    ("gb200-nvl72", 2, "ib-ndr-400x4"),
    ("hgx-b200", 16, "efa-400x8"),
    ("pcie4-x16", 2, "tcp-100x1"),
    ("l40s", 3, "roce-100x2"),
    ("dgx-1v", 2, "ib-edr-100x4"),
)
OWN = ("hgx-h100", "dgx-1v", "pcie4-x16", "mi300x")


def line_of(where: str, point: ClusterPoint) -> str:
    priced = point.prediction
    figures = [
        priced.bound_seconds,
        priced.predicted_seconds,
        priced.latency_seconds,
        priced.bandwidth_seconds,
    ]
    if priced.interval:
        interval = priced.interval
        figures += [interval.low_80_seconds, interval.high_80_seconds]
        figures += [interval.low_95_seconds, interval.high_95_seconds]
    return ",".join(
        [
            where,
            point.collective,
            str(point.size_bytes),
            point.algorithm,
            point.protocol,
            *(f"{seconds * 1e6:.6g}" for seconds in figures),
            point.extrapolated.replace(",", ";"),
            priced.bottleneck.replace(",", ";"),
        ]
    )


def attempt(
    where: str, price: Callable[..., Iterable[ClusterPoint]], *arguments: object
) -> Iterator[str]:
    try:
        yield from (line_of(where, point) for point in price(*arguments))
    except CcbenchError as problem:
        yield f"{where},{problem}"


def library_lines(where: str, cluster: Cluster) -> Iterator[str]:
    for number, collective in enumerate(COLLECTIVES):
        request = LibraryRequest(
            collective,
            SIZES,
            item_bytes=2 if number % 2 else 4,
            gpus_per_process=1 + number % 3,
            version=((), (2, 9), (2, 18), (2, 27))[number % 4],
            in_place=number % 3 == 0,
        )
        yield from attempt(where, library_points, cluster, request)


def groups_lines(where: str, cluster: Cluster) -> Iterator[str]:
    half = max(cluster.ranks // 2, 1)
    for layout in (Layout(tp=2, dp=half), Layout(tp=half, dp=2)):
        for collective in ("all_reduce", "all_to_all", "send_recv"):
            request = LibraryRequest(collective, SIZES[1:])
            for axis in ("tp", "dp"):
                name = f"{where} {layout.tp}x{layout.dp} {axis}"
                yield from attempt(name, group_points, cluster, layout.groups(axis), request)


def own_lines(name: str, cluster: Cluster) -> Iterator[str]:
    for collective in COLLECTIVES:
        for algorithm in algorithms_of(collective, added=False):
            what = cluster, collective, algorithm, SIZES[::2]
            yield from attempt(f"own {name}", schedule_points, *what)


def prices(name: str, nodes: int, network: str | None) -> Iterator[str]:
    where = f"{name}x{nodes}/{network}" if network else name
    cluster = open_cluster(name, nodes if network else None, network)
    yield from library_lines(where, cluster)
    yield from groups_lines(where, cluster)
    if name in OWN and not network:
        yield from own_lines(name, cluster)


MACHINES = [(name, 1, None) for name in catalog_names() if name != "cpu-shared-memory"]


@pytest.mark.parametrize(("name", "nodes", "network"), [*MACHINES, *CLUSTERS])
def test_prices_are_those_of_the_table(name: str, nodes: int, network: str | None) -> None:
    table = "-".join([name, *([f"{nodes}", network] if network else [])])
    check(GOLDENS / f"{table}.csv", "\n".join(prices(name, nodes, network)) + "\n")
