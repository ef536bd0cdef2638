"""What joins ranks and groups, as far as a run tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ccbench.analysis.pair_matrix import Joined, joined_by
from tests.analysis.health.machines import case, manifest, measured, run_of


def joined(machine: str, ranks: int, backend: str = "nccl", **changes: Any) -> Joined:
    measurement = measured(
        case("all_reduce", 4096, ranks, backend=backend), 1e-5, np.random.default_rng(1)
    )
    run = run_of([replace(measurement, **changes)], manifest(machine))
    (point,) = run.points
    return joined_by(run, point)


def test_devices_of_several_machines_are_joined_over_the_network_between_them() -> None:
    where = (0,) * 8 + (1,) * 8
    links = joined(
        "hgx-h100", 16, hosts=tuple("ab"[node] for node in where), node_of_rank=where
    )
    assert (links.word(1, 2), links.word(9, 10), links.word(7, 8)) == ("NV18", "NV18", "NET")
    assert links.link_class((0, 1)) == links.link_class((14, 15)) != links.link_class((7, 8))
