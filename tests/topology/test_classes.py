from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from ccbench.topology.classes import topology_class
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Notice,
    Topology,
    TopologyClass,
)

CUBE = [
    (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3), (4, 5), (4, 6), (4, 7), (5, 6), (5, 7), (6, 7),
    (0, 4), (1, 5), (2, 6), (3, 7),
]  # fmt: skip


def joined(
    count: int, pairs: Iterable[tuple[int, int]], kind: LinkKind = LinkKind.NVLINK, model: str = ""
) -> Topology:
    gpus = tuple(Device(f"gpu{one}", DeviceKind.GPU, attributes={"model": model}) for one in range(count))
    links = tuple(Link(f"gpu{a}", f"gpu{b}", kind) for one in pairs for a, b in (one, one[::-1]))
    return Topology("t", gpus, links)


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (joined(2, [(0, 1)]), TopologyClass.NVLINK_BRIDGE),
        (joined(4, [(0, 1), (2, 3)]), TopologyClass.NVLINK_BRIDGE),
        (joined(2, [(0, 1)], model="Tesla V100-SXM2-16GB"), TopologyClass.NVLINK_MESH),
        (joined(4, itertools.combinations(range(4), 2)), TopologyClass.NVLINK_MESH),
        (joined(8, CUBE), TopologyClass.NVLINK_CUBE_MESH),
        (joined(8, CUBE[1:]), TopologyClass.NVLINK_CUBE_MESH),
        (joined(8, itertools.combinations(range(8), 2)), TopologyClass.NVLINK_MESH),
        (joined(8, CUBE, LinkKind.XGMI), TopologyClass.XGMI_MESH),
        (joined(8, CUBE, LinkKind.HCCS), TopologyClass.HCCS_FULL_MESH),
        (joined(4, [(0, 1)], LinkKind.PCIE), TopologyClass.PCIE),
        (joined(1, []), TopologyClass.SINGLE_GPU),
        (joined(0, []), TopologyClass.UNKNOWN),
        (joined(3, []), TopologyClass.UNKNOWN),
    ],
)
def test_the_ends_of_the_links_make_the_class(topology: Topology, expected: TopologyClass) -> None:
    assert topology_class(topology) is expected


def test_a_permuted_cube_mesh_is_one_too() -> None:
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    assert (
        topology_class(joined(8, [(order[a], order[b]) for a, b in CUBE])) is TopologyClass.NVLINK_CUBE_MESH
    )


def test_links_to_switches_count_even_when_they_are_down() -> None:
    gpus = tuple(Device(f"gpu{one}", DeviceKind.GPU) for one in range(2))
    switch = Device("nvswitch0", DeviceKind.NVSWITCH)
    links = tuple(Link(gpu.name, "nvswitch0", LinkKind.NVLINK, state=LinkState.DOWN) for gpu in gpus)
    assert topology_class(Topology("t", (*gpus, switch), links)) is TopologyClass.NVSWITCH


def test_what_nobody_could_see_makes_no_class() -> None:
    found = joined(4, [(0, 1)], LinkKind.PCIE)
    blind = Topology("t", found.devices, found.links, notices=(Notice("not_visible", "NVLinks are hidden"),))
    assert topology_class(blind) is TopologyClass.UNKNOWN


def test_machines_that_differ_have_no_common_class() -> None:
    gpus = tuple(Device(f"gpu{one}", DeviceKind.GPU, node=one // 2) for one in range(4))
    links = (Link("gpu0", "gpu1", LinkKind.NVLINK), Link("gpu2", "gpu3", LinkKind.XGMI))
    assert topology_class(Topology("t", gpus, links)) is TopologyClass.UNKNOWN
