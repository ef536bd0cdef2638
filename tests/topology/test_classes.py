from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest

from ccbench.findings import SourceWarning
from ccbench.topology.classes import (
    class_of_direct_links,
    nvlink_rate,
    topology_class,
    xgmi_rate,
)
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    Topology,
    TopologyClass,
)

QUADS = [*itertools.combinations(range(4), 2), *itertools.combinations(range(4, 8), 2)]
CUBE = [*QUADS, *zip(range(4), range(4, 8), strict=True)]


def joined(
    count: int,
    pairs: Iterable[tuple[int, int]],
    kind: LinkKind = LinkKind.NVLINK,
    model: str = "",
) -> Topology:
    gpus = tuple(
        Device(f"gpu{index}", DeviceKind.GPU, attributes={"model": model})
        for index in range(count)
    )
    links = tuple(
        Link(f"gpu{a}", f"gpu{b}", kind) for pair in pairs for a, b in (pair, pair[::-1])
    )
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
def test_the_ends_of_the_links_make_the_class(
    topology: Topology, expected: TopologyClass
) -> None:
    assert topology_class(topology) is expected


def test_what_nobody_could_see_makes_no_class() -> None:
    machine = joined(4, [(0, 1)], LinkKind.PCIE)
    blind = Topology(
        "t",
        machine.devices,
        machine.links,
        warnings=(SourceWarning("not_visible", "NVLinks are hidden"),),
    )
    assert topology_class(blind) is TopologyClass.UNKNOWN


@pytest.mark.parametrize(
    ("gpus", "joined", "on_board", "expected"),
    [
        (2, [], False, None),
        (2, [(0, 0), (1, 9)], False, None),
        (2, [(0, 1)], True, TopologyClass.NVLINK_MESH),
        (6, [*QUADS[:3], (3, 4), (3, 5), (4, 5)], False, TopologyClass.NVLINK_MESH),
        (4, [(0, 1), (1, 2), (2, 3)], False, TopologyClass.NVLINK_MESH),
    ],
)
def test_the_class_follows_from_who_is_joined(
    gpus: int, joined: list[tuple[int, int]], on_board: bool, expected: TopologyClass | None
) -> None:
    assert class_of_direct_links(range(gpus), joined, on_board=on_board) is expected


def test_the_rate_of_an_nvlink_follows_the_compute_capability_and_says_so() -> None:
    assert nvlink_rate("70")[0] == 25e9
    assert nvlink_rate("103") == (
        50e9,
        "datasheet rate of one NVLink at compute capability 10.3",
    )
    assert nvlink_rate("121") == (None, "rate not stated")
    assert nvlink_rate("") == (None, "rate not stated")


def test_architectures_are_known_by_name_by_number_and_by_the_old_decimal() -> None:
    assert xgmi_rate("gfx90a") == xgmi_rate("90a") == xgmi_rate("910")
    assert xgmi_rate("gfx941") == xgmi_rate("942")
    assert xgmi_rate("gfx1100")[0] is None
    assert xgmi_rate("")[0] is None
