"""Slow groups: found among their peers, and by halving."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.pair_matrix import joined_by
from ccbench.analysis.slow_ranks import SlowGroup, slow_groups
from ccbench.cases.measurement import Measurement
from tests.analysis.health.machines import groups, manifest, run_of

NESTED = ("rank // 8", "rank // 4", "rank // 2")


def named_groups(
    measurements: list[Measurement], stored: Mapping[str, Any] | None = None
) -> list[SlowGroup]:
    run = run_of(measurements, manifest("") if stored is None else stored)
    return slow_groups(run.points, partial(joined_by, run))


def nested(
    seed: int, around: tuple[int, ...], factor: float = 2.0, ranks: int = 16
) -> list[Measurement]:
    """Halves, quarters and neighbours; every group that holds all of ``around`` is slow."""
    random = np.random.default_rng(seed)

    def slower(members: tuple[int, ...]) -> float:
        return factor if set(around) <= set(members) else 1.0

    return [
        group
        for expression in NESTED
        for group in groups(random, ranks, expression=expression, slower=slower)
    ]


@given(st.integers(0, 15), st.integers(0, 1000), st.sampled_from([1.5, 2.0, 10.0]))
def test_halving_ends_at_the_two_neighbours_of_a_slow_rank(
    rank: int, seed: int, factor: float
) -> None:
    (group,) = named_groups(nested(seed, (rank,), factor))
    assert group.members == (rank // 2 * 2, rank // 2 * 2 + 1)
    assert f"halved from ranks {rank // 8 * 8}-{rank // 8 * 8 + 7}" in group.evidence


@given(st.integers(0, 10_000))
def test_no_group_of_a_healthy_machine_is_named(seed: int) -> None:
    assert named_groups(nested(seed, (0,), 1.0)) == []
