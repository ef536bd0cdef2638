"""What joins ranks and groups, as far as a run tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ccbench.analysis.pair_matrix import Joined, joined_by
from ccbench.cases.measurement import Conditions
from tests.analysis.health.machines import case, manifest, measured, run_of


def joined(machine: str, ranks: int, backend: str = "nccl", **changes: Any) -> Joined:
    measurement = measured(
        case("all_reduce", 4096, ranks, backend=backend), 1e-5, np.random.default_rng(1)
    )
    run = run_of([replace(measurement, **changes)], manifest(machine))
    (point,) = run.points
    return joined_by(run, point)


def test_devices_are_joined_as_the_graph_says() -> None:
    links = joined("dgx-1v", 8)
    assert [links.word(0, peer) for peer in (1, 3)] == ["NV1", "NV2"]
    assert links.link_class((0, 1)) == links.link_class((4, 5)) != links.link_class((2, 3))
    assert links.link_class((0, 1, 2, 3)) == links.link_class((4, 5, 6, 7))


def test_devices_of_several_machines_are_joined_over_the_network_between_them() -> None:
    where = (0,) * 8 + (1,) * 8
    links = joined(
        "hgx-h100", 16, hosts=tuple("ab"[node] for node in where), node_of_rank=where
    )
    assert (links.word(1, 2), links.word(9, 10), links.word(7, 8)) == ("NV18", "NV18", "NET")
    assert links.link_class((0, 1)) == links.link_class((14, 15)) != links.link_class((7, 8))


@pytest.mark.parametrize(("machine", "ranks"), [("", 8), ("hgx-h100", 9)])
def test_what_the_graph_does_not_tell_is_not_known(machine: str, ranks: int) -> None:
    links = joined(machine, ranks)
    assert links.word(0, 1) == ""
    assert links.link_class((0, 1)) == links.link_class((6, 7))


def test_processes_of_one_processor_are_told_from_those_with_two() -> None:
    links = joined("", 3, "cpu", conditions=Conditions(binding=(0, 1, 0)))
    assert (links.word(0, 1), links.word(0, 2)) == ("host", "one core")
    assert links.link_class((0, 2)) != links.link_class((0, 1)) == links.link_class((1, 2))


def test_a_group_with_two_ranks_here_and_two_there_is_no_like_of_three_and_one() -> None:
    where = (0, 0, 0, 1, 1, 1)
    links = joined("", 6, "mpi", hosts=tuple("ab"[node] for node in where), node_of_rank=where)
    assert (
        links.link_class((0, 1, 3, 4))
        == links.link_class((1, 2, 4, 5))
        == links.link_class((3, 4, 0, 1))
    )
    assert links.link_class((0, 1, 3, 4)) != links.link_class((0, 1, 2, 3))
