"""Slow groups: found among their peers, and by halving."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.pair_matrix import joined_by
from ccbench.analysis.slow_ranks import SlowGroup, slow_groups
from ccbench.cases.measurement import Measurement
from tests.analysis.health.machines import flagged, groups, manifest, run_of

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


@pytest.mark.parametrize(("around", "named"), [((8, 10), "ranks 8-11"), ((0, 4), "ranks 0-7")])
def test_a_slow_way_between_sound_parts_ends_at_the_group_around_it(
    around: tuple[int, ...], named: str
) -> None:
    (group,) = named_groups(nested(1, around))
    assert group.name == named


@given(st.integers(0, 10_000))
def test_no_group_of_a_healthy_machine_is_named(seed: int) -> None:
    assert named_groups(nested(seed, (0,), 1.0)) == []


@pytest.mark.parametrize(
    ("ranks", "half"), [(4, (0, 1)), (4, (1, 3)), (8, (4, 5, 6, 7)), (8, (0, 2, 4, 6))]
)
def test_a_slow_half_is_found_beside_other_ways_to_part_the_ranks(
    ranks: int, half: tuple[int, ...]
) -> None:
    """As the suite that ships measures it: halves next to each other, and halves across the machine."""
    random = np.random.default_rng(11)
    made = [
        measurement
        for expression in (f"rank // {ranks // 2}", "rank % 2")
        for measurement in groups(
            random,
            ranks,
            expression=expression,
            slower=lambda group: 1.6 if group == half else 1.0,
        )
    ]
    (group,) = named_groups(made)
    assert group.members == half
    assert "in 3 of 3 cases" in group.evidence


def test_groups_that_do_not_nest_are_compared_with_their_likes() -> None:
    random = np.random.default_rng(4)
    (group,) = named_groups(
        groups(
            random,
            16,
            expression="rank % 8",
            slower=lambda members: 1.3 if 5 in members else 1.0,
        )
    )
    assert group.members == (5, 13)


@pytest.mark.parametrize(("factor", "named"), [(2.0, 0), (5.0, 1)])
def test_where_times_are_in_doubt_only_gross_differences_count(
    factor: float, named: int
) -> None:
    doubted = [flagged(measurement, "foreign_load") for measurement in nested(5, (3,), factor)]
    assert len(named_groups(doubted)) == named


def test_two_halves_that_differ_a_little_say_nothing() -> None:
    random = np.random.default_rng(6)
    little = groups(random, 4, slower=lambda members: 1.15 if 0 in members else 1.0)
    assert named_groups(little) == []


def test_a_group_slow_in_one_case_of_three_is_not_named() -> None:
    random = np.random.default_rng(7)
    sound = groups(random, 4)
    once = groups(random, 4, slow=0)[:1]
    assert named_groups([*once, *sound[1:]]) == []


def test_a_group_alone_and_what_ran_beside_something_are_no_likes() -> None:
    random = np.random.default_rng(8)
    beside = [
        replace(group, case=replace(group.case, concurrent="all_gather"))
        for group in groups(random, 4, slow=0)
    ]
    assert named_groups(beside) == []


def on_two_hosts(
    expression: str, slower: Callable[[tuple[int, ...]], float]
) -> list[Measurement]:
    """Twelve processes, six on each of two hosts."""
    made = groups(
        np.random.default_rng(9), 12, expression=expression, slower=slower, backend="mpi"
    )
    where = (0,) * 6 + (1,) * 6
    return [
        replace(measurement, node_of_rank=where, hosts=tuple("ab"[node] for node in where))
        for measurement in made
    ]


def over_the_network(members: tuple[int, ...]) -> float:
    return 8.0 if {rank // 6 for rank in members} == {0, 1} else 1.0


def test_a_group_across_two_hosts_is_no_like_of_those_inside_a_host() -> None:
    assert named_groups(on_two_hosts("rank // 4", over_the_network)) == []
    (group,) = named_groups(
        on_two_hosts("rank // 2", lambda members: 1.5 if 8 in members else 1.0)
    )
    assert group.members == (8, 9)


def test_parts_that_are_joined_differently_are_not_halved() -> None:
    """Two of the four lie across both hosts, of which one is always a little slower."""

    def slower(members: tuple[int, ...]) -> float:
        return over_the_network(members) * (1.1 if 3 in members else 1.0)

    assert (
        named_groups(on_two_hosts("[[0, 1, 2], [3, 4, 6], [5, 7, 8], [9, 10, 11]]", slower))
        == []
    )


def test_neighbours_with_one_link_are_no_likes_of_those_with_two() -> None:
    """On a cube mesh every other two neighbours have half the links: a little more noise is no fault."""

    def slower(members: tuple[int, ...]) -> float:
        return 2.05 if members == (0, 1) else 2.0 if members == (4, 5) else 1.0

    made = [
        group
        for expression in ("rank // 4", "rank // 2")
        for group in groups(np.random.default_rng(10), 8, expression=expression, slower=slower)
    ]
    assert named_groups(made, manifest("dgx-1v")) == []
    assert [slow.name for slow in named_groups(made)] == [
        "ranks 0-1"
    ]  # nobody told what joins them
