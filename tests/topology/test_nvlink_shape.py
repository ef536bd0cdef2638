"""The class of GPUs that direct links join."""

from __future__ import annotations

import itertools
import random

import pytest

from ccbench.topology.classes import class_of_direct_links, connected_groups
from ccbench.topology.graph import TopologyClass

QUADS = [*itertools.combinations("0123", 2), *itertools.combinations("4567", 2)]
CUBE_MESH = [*QUADS, *zip("0123", "4567", strict=True)]


@pytest.mark.parametrize(
    ("gpus", "joined", "expected"),
    [
        ("01", [], None),
        ("01", [("0", "1")], TopologyClass.NVLINK_BRIDGE),
        ("0123", [("0", "1"), ("2", "3")], TopologyClass.NVLINK_BRIDGE),
        ("0123", list(itertools.combinations("0123", 2)), TopologyClass.NVLINK_MESH),
        (
            "012345",
            [*itertools.combinations("012", 2), *itertools.combinations("345", 2)],
            TopologyClass.NVLINK_MESH,
        ),
        ("01234567", CUBE_MESH, TopologyClass.NVLINK_CUBE_MESH),
        ("0123", [("0", "1"), ("1", "2"), ("2", "3")], TopologyClass.NVLINK_MESH),
    ],
)
def test_the_class_follows_from_who_is_joined(
    gpus: str, joined: list[tuple[str, str]], expected: TopologyClass | None
) -> None:
    assert class_of_direct_links(gpus, joined) is expected


def test_pairs_whose_nvlinks_reach_cpus_sit_on_a_board() -> None:
    assert class_of_direct_links("01", [("0", "1")], on_board=True) is TopologyClass.NVLINK_MESH


def test_the_order_of_gpus_does_not_matter() -> None:
    for seed in range(20):
        order = random.Random(seed).sample("01234567", 8)
        renamed = [(order[int(left)], order[int(right)]) for left, right in CUBE_MESH]
        assert class_of_direct_links(order, renamed) is TopologyClass.NVLINK_CUBE_MESH


def test_links_to_itself_and_to_strangers_are_left_out() -> None:
    assert class_of_direct_links("01", [("0", "0"), ("1", "9")]) is None


def test_a_cube_mesh_that_lacks_a_pair_is_one_only_where_that_is_forgiven() -> None:
    for missing in range(len(CUBE_MESH)):
        joined = CUBE_MESH[:missing] + CUBE_MESH[missing + 1 :]
        assert class_of_direct_links("01234567", joined) is TopologyClass.NVLINK_MESH
        assert class_of_direct_links("01234567", joined, forgiven=1) is TopologyClass.NVLINK_CUBE_MESH


def test_groups_come_in_the_order_of_their_first_member_with_lone_ones() -> None:
    assert connected_groups({3: [1], 2: [], 1: [3]}) == [{1, 3}, {2}]
