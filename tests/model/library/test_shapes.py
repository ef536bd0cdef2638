from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.model.library import Generation, LibrarySystem
from ccbench.model.library.shapes import Shape, shapes
from ccbench.schedules import schedule_for
from ccbench.schedules.schedule import sent_pieces
from tests.model.library.systems import (
    A100,
    H100,
    MI300X,
    NDR,
    clustered,
)


def shape(collective: str, algorithm: str, system: LibrarySystem) -> Shape:
    return {shape.algorithm: shape for shape in shapes(collective, system)}[algorithm]


def leaving(collective: str, algorithm: str, ranks: int, inside: int) -> float:
    """Bytes that leave the busiest node per byte of size, counted flow by flow in ccbench's own schedule."""
    schedule = schedule_for(collective, algorithm, ranks)
    out = np.zeros(ranks // inside)
    for step in schedule.expanded():
        crossing = step.source // inside != step.target // inside
        np.add.at(out, step.source[crossing] // inside, step.phase.width[crossing])
    return float(out.max()) / schedule.pieces


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_on_one_node_moves_what_its_schedule_moves(collective: str, ranks: int) -> None:
    schedule = schedule_for(collective, "ring", ranks)
    traffic = shape(collective, "ring", replace(A100, ranks_per_node=ranks))
    assert traffic.port_bytes == pytest.approx(sent_pieces(schedule).max() / schedule.pieces)
    assert traffic.inside_hops == schedule.steps
    assert traffic.network_hops == traffic.node_bytes == 0


@pytest.mark.parametrize(("nodes", "inside"), [(2, 2), (2, 4), (4, 2), (3, 3)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_over_nodes_leaves_each_node_as_its_schedule_does(
    collective: str, nodes: int, inside: int
) -> None:
    ranks = nodes * inside
    traffic = shape(collective, "ring", clustered(replace(A100, ranks_per_node=inside), nodes))
    schedule = schedule_for(collective, "ring", ranks)
    assert traffic.node_bytes == pytest.approx(leaving(collective, "ring", ranks, inside))
    assert traffic.inside_hops + traffic.network_hops == schedule.steps
    # Rings of different channels leave a node at different GPUs, which then share what stays inside.
    total = sent_pieces(schedule).sum() / schedule.pieces
    assert traffic.port_bytes == pytest.approx((total - nodes * traffic.node_bytes) / ranks)


@pytest.mark.parametrize(("nodes", "inside"), [(1, 8), (2, 2), (2, 4), (4, 2), (3, 3)])
def test_all_to_all_leaves_each_node_as_its_schedule_does(nodes: int, inside: int) -> None:
    ranks = nodes * inside
    system = replace(MI300X, ranks_per_node=inside)
    traffic = shape("all_to_all", "pairwise", clustered(system, nodes) if nodes > 1 else system)
    assert traffic.node_bytes == pytest.approx(leaving("all_to_all", "pairwise", ranks, inside))
    assert traffic.port_bytes == pytest.approx((inside - 1) / ranks)
    assert traffic.peers == ranks - 1


def test_collnet_walks_a_chain_where_no_switch_joins_the_gpus() -> None:
    adding = clustered(MI300X, 4, replace(NDR, in_network_reduction=True))
    traffic = shape("all_reduce", "collnet", adding)
    assert (traffic.inside_hops, traffic.port_bytes) == (14, 2.0)


def test_nvls_is_nvidias_alone() -> None:
    names = {
        shape.algorithm
        for generation in (Generation.CDNA3, Generation.CDNA4)
        for shape in shapes("all_reduce", replace(H100, generation=generation))
    }
    assert names == {"ring", "tree", "allpairs"}
