from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.errors import MachineError
from ccbench.model.library import Generation, Intra, LibrarySystem, NetworkPorts
from ccbench.model.library.shapes import Shape, busy_nics, links_share, shapes
from ccbench.schedules import schedule_for
from ccbench.schedules.schedule import sent_pieces
from tests.model.library.systems import (
    A100,
    B200,
    H100,
    HDR,
    MI300X,
    NDR,
    V100_CUBE,
    clustered,
    lone,
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


def longest_chains(
    collective: str, nodes: int, inside: int, rotated: int
) -> set[tuple[int, int]]:
    """(hops inside nodes, hops across) of chains of messages that wait for each other, those with the most.

    Counted on ccbench's own ring, message by message, with nodes that begin ``rotated`` ranks further on: the
    rings of a library's channels leave a node at different GPUs.
    """
    ranks = nodes * inside
    schedule = schedule_for(collective, "ring", ranks)
    # By rank and slot, the chain of messages that brought what is there.
    there = [[(0, 0)] * schedule.slots for _ in range(ranks)]
    for step in schedule.expanded():
        before = [list(slots) for slots in there]
        assert set(step.phase.width) == {1}
        for source, target, read, written in zip(
            step.source, step.target, step.source_slot, step.target_slot, strict=True
        ):
            local, far = before[source][read]
            if source != target:
                across = (source + rotated) % ranks // inside != (
                    target + rotated
                ) % ranks // inside
                local, far = (local, far + 1) if across else (local + 1, far)
            # A sum waits for the later of its parts, which in a ring is the one that came further.
            there[target][written] = max(there[target][written], (local, far), key=sum)
    every = [chain for slots in there for chain in slots]
    return {chain for chain in every if sum(chain) == max(map(sum, every))}


@pytest.mark.parametrize(("nodes", "inside"), [(2, 8), (4, 1), (2, 2), (3, 2), (3, 4), (4, 3)])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_hops_of_a_ring_are_those_of_the_longest_chain_with_the_most_hops_across(
    collective: str, nodes: int, inside: int
) -> None:
    system = (
        clustered(replace(A100, ranks_per_node=inside), nodes) if inside > 1 else lone(nodes)
    )
    traffic = shape(collective, "ring", system)
    chains = set().union(
        *(longest_chains(collective, nodes, inside, rotated) for rotated in range(inside))
    )
    assert (traffic.inside_hops, traffic.network_hops) == max(
        chains, key=lambda chain: chain[1]
    )


@pytest.mark.parametrize(("nodes", "inside"), [(1, 8), (2, 2), (2, 4), (4, 2), (3, 3)])
def test_all_to_all_leaves_each_node_as_its_schedule_does(nodes: int, inside: int) -> None:
    ranks = nodes * inside
    system = replace(MI300X, ranks_per_node=inside)
    traffic = shape("all_to_all", "pairwise", clustered(system, nodes) if nodes > 1 else system)
    assert traffic.node_bytes == pytest.approx(leaving("all_to_all", "pairwise", ranks, inside))
    assert traffic.port_bytes == pytest.approx((inside - 1) / ranks)
    assert traffic.peers == ranks - 1


def test_over_nvlink_all_to_all_first_goes_to_the_gpu_of_the_rail() -> None:
    system = clustered(A100, 2)
    # Half of the bytes leave the node, 7 of 8 of them beside another GPU than their source.
    assert shape("all_to_all", "pairwise", system).port_bytes == pytest.approx(
        7 / 16 + 7 / 8 / 2
    )


def test_a_cube_mesh_relays_three_of_seven() -> None:
    direct, relayed = 4 / 8, 3 / 8
    traffic = shape("all_to_all", "pairwise", V100_CUBE)
    assert traffic.port_bytes == pytest.approx(direct + 2 * relayed)


@pytest.mark.parametrize(("system", "links"), [(MI300X, 7), (V100_CUBE, 6), (A100, 1)])
def test_one_neighbour_of_a_mesh_is_reached_over_one_link(
    system: LibrarySystem, links: int
) -> None:
    traffic = shape("send_recv", "pairwise", system)
    assert traffic.port_bytes == 1.0
    assert links_share(traffic, system) == pytest.approx(1 / links)


def test_nvls_moves_the_buffer_once_and_one_share() -> None:
    assert shape("all_reduce", "nvls", H100).port_bytes == pytest.approx(9 / 8)


def test_nvls_is_for_more_than_four_gpus_of_switches_that_multicast() -> None:
    names = [
        {shape.algorithm for shape in shapes("all_reduce", system)}
        for system in (H100, replace(H100, ranks_per_node=4), A100, clustered(B200, 2))
    ]
    assert names == [
        {"ring", "tree", "nvls"},
        {"ring", "tree"},
        {"ring", "tree"},
        {"ring", "tree", "nvlstree"},
    ]


@pytest.mark.parametrize(
    ("collective", "system", "algorithm", "before", "since"),
    [
        ("all_reduce", H100, "nvls", (2, 16), (2, 17)),
        ("all_reduce", clustered(H100, 2), "nvlstree", (2, 17), (2, 18)),
        ("all_gather", lone(4), "pat", (2, 22), (2, 23, 4)),
    ],
)
def test_older_libraries_have_fewer_algorithms(
    collective: str,
    system: LibrarySystem,
    algorithm: str,
    before: tuple[int, ...],
    since: tuple[int, ...],
) -> None:
    assert algorithm not in {shape.algorithm for shape in shapes(collective, system, before)}
    assert algorithm in {shape.algorithm for shape in shapes(collective, system, since)}
    assert algorithm in {shape.algorithm for shape in shapes(collective, system)}


def test_collnet_needs_switches_of_the_network_that_add() -> None:
    plain, adding = (
        clustered(H100, 8),
        clustered(H100, 8, replace(NDR, in_network_reduction=True)),
    )
    assert "collnet" not in {shape.algorithm for shape in shapes("all_reduce", plain)}
    traffic = shape("all_reduce", "collnet", adding)
    assert (traffic.node_bytes, traffic.network_hops) == (1.0, 1)
    assert traffic.port_bytes == pytest.approx(2 * 7 / 8)


def test_collnet_walks_a_chain_where_no_switch_joins_the_gpus() -> None:
    adding = clustered(MI300X, 4, replace(NDR, in_network_reduction=True))
    traffic = shape("all_reduce", "collnet", adding)
    assert (traffic.inside_hops, traffic.port_bytes) == (14, 2.0)


def test_pat_needs_one_gpu_a_node() -> None:
    assert shape("reduce_scatter", "pat", lone(16)).network_hops == 4
    assert "pat" not in {
        shape.algorithm for shape in shapes("reduce_scatter", clustered(H100, 4))
    }


def test_nvls_is_nvidias_alone() -> None:
    names = {
        shape.algorithm
        for generation in (Generation.CDNA3, Generation.CDNA4)
        for shape in shapes("all_reduce", replace(H100, generation=generation))
    }
    assert names == {"ring", "tree", "allpairs"}


def test_all_pairs_moves_what_two_shots_move_and_is_rccls_on_eight_gpus_alone() -> None:
    schedule = schedule_for("all_reduce", "two_shot", 8)
    traffic = shape("all_reduce", "allpairs", MI300X)
    assert traffic.port_bytes == pytest.approx(sent_pieces(schedule).max() / schedule.pieces)
    assert traffic.inside_hops == schedule.steps == 2
    for system in (replace(MI300X, ranks_per_node=4), clustered(MI300X, 2), H100):
        assert "allpairs" not in {each.algorithm for each in shapes("all_reduce", system)}


def test_a_collective_that_is_not_modelled_is_refused_with_the_list() -> None:
    with pytest.raises(MachineError, match=r"barrier: .* knows all_reduce, "):
        shapes("barrier", A100)


@pytest.mark.parametrize(("nics", "busy"), [(8, 1.0), (16, 2.0), (4, 1.0), (1, 1.0)])
@pytest.mark.parametrize("collective", ["gather", "send_recv"])
def test_what_one_gpu_receives_passes_the_nics_beside_it(
    collective: str, nics: int, busy: float
) -> None:
    system = clustered(H100, 2, NetworkPorts("ib-ndr", 50e9, nics))
    assert busy_nics(shape(collective, "pairwise", system), system) == busy


def test_a_root_scatters_by_the_nics_of_all_rails_where_switches_join_the_gpus() -> None:
    switched, meshed = clustered(H100, 2), clustered(MI300X, 2)
    assert busy_nics(shape("scatter", "pairwise", switched), switched) == 8
    assert busy_nics(shape("scatter", "pairwise", meshed), meshed) == 1


@pytest.mark.parametrize(("ranks", "both"), [(2, False), (3, True), (8, True)])
def test_the_middle_of_a_chain_receives_and_sends_at_once(ranks: int, both: bool) -> None:
    staged = replace(A100, intra=Intra.HOST, ranks_per_node=ranks)
    assert shape("broadcast", "ring", staged).both_ways is both


def test_over_pcie_what_goes_to_other_nodes_passes_the_same_port() -> None:
    cards = clustered(replace(A100, intra=Intra.PCIE, ranks_per_node=4), 2)
    assert shape("all_to_all", "pairwise", cards).port_bytes == pytest.approx(7 / 8)


def test_trees_of_two_nodes_exchange_halves_since_nccl_2_12() -> None:
    two = clustered(A100, 2, HDR)
    by_version = {
        version: next(
            one.node_bytes
            for one in shapes("all_reduce", two, version)
            if one.algorithm == "tree"
        )
        for version in ((), (2, 9, 9), (2, 12), (2, 23, 4))
    }
    assert by_version == {(): 1.0, (2, 9, 9): 2.0, (2, 12): 1.0, (2, 23, 4): 1.0}
    four = clustered(A100, 4, HDR)
    assert shapes("all_reduce", four, (2, 9, 9)) == shapes("all_reduce", four, (2, 16))
