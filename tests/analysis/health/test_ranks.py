"""Which rank collectives of all ranks speak against, by waiting and by processor time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ccbench.analysis.slow_ranks import (
    STARVED,
    devices_with,
    high_outliers,
    starved_ranks,
    waited_for,
)
from ccbench.cases.measurement import Conditions, Measurement
from ccbench.results import Point
from tests.analysis.health.machines import (
    collectives,
    hot_readings,
    run_of,
)

RANKS = 4


def rows(
    shares: Sequence[float] = (),
    backend: str = "cpu",
    flags: Sequence[str] = (),
    binding: Sequence[int] = (),
    **changes: Any,
) -> list[Point]:
    def of(measurement: Measurement) -> Measurement:
        return replace(
            measurement,
            case=replace(measurement.case, backend=backend),
            rank_cpu_share=tuple(shares),
            conditions=Conditions(
                flags=tuple(flags),
                oversubscribed="oversubscribed" in flags,
                binding=tuple(binding),
            ),
        )

    made = collectives(np.random.default_rng(1), len(shares) or RANKS, **changes)
    return list(run_of([of(measurement) for measurement in made]).points)


@example([STARVED, 1.0, 1.0, 1.0])
@given(st.lists(st.floats(STARVED, 1.0), min_size=RANKS, max_size=RANKS))
def test_nobody_is_named_while_all_get_about_as_much(shares: list[float]) -> None:
    assert dict(starved_ranks(rows(shares))) == {}


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9))
def test_only_ranks_with_the_least_and_less_than_half_are_ever_named(
    shares: list[float],
) -> None:
    named = {rank for rank, _ in starved_ranks(rows(shares))}
    assert named == set(np.argsort(shares, kind="stable")[: len(named)].tolist())
    assert 2 * len(named) < len(shares) or len(named) < 2
    assert len([*starved_ranks(rows(shares, flags=["oversubscribed"]))]) < 2


@pytest.mark.parametrize("flag", ["other_load", "steal"])
def test_what_other_programs_took_is_no_rank_s_fault(flag: str) -> None:
    assert dict(starved_ranks(rows([0.5, 0.1, 0.5, 0.5], flags=[flag]))) == {}
    assert dict(starved_ranks(rows([0.5, 0.1, 0.5, 0.5], flags=["oversubscribed"]))) != {}
    assert dict(waited_for(rows(late=1, flags=[flag]))) == {}
    assert dict(waited_for(rows(late=1, flags=["oversubscribed"]))) != {}


def queued(points: list[Point], *shares: float) -> list[Point]:
    return [replace(point, rank_queued_share=shares) for point in points]


def test_beside_other_load_a_rank_that_lacks_more_than_it_queued_for_is_starved() -> None:
    shares, flags = [0.5, 0.25, 0.5, 0.5], ["other_load"]
    assert dict(starved_ranks(queued(rows(shares, flags=flags), 0.5, 0.75, 0.5, 0.5))) == {}
    assert dict(starved_ranks(queued(rows(shares, flags=flags), 0.5, 0.25, 0.5, 0.5))) == {
        1: "it gets 50% of the next one's processor time in 12 of 12 collectives on cpu"
    }
    assert dict(starved_ranks(queued(rows(shares), 0.0, 0.75, 0.0, 0.0))).keys() == {1}


# -- what stands out, and whose flags they are ------------------------------------------------------------

VALUES = st.lists(st.floats(0.0, 1000.0), max_size=30)


@given(VALUES, st.floats(0.01, 10.0))
def test_fewer_than_half_are_outliers_and_all_lie_above_all_others(
    values: list[float], least: float
) -> None:
    outliers = high_outliers(values, least)
    assert 2 * len(outliers) < len(values) or not values
    usual = [value for place, value in enumerate(values) if place not in outliers]
    assert all(values[place] > max(usual) for place in outliers)


@given(VALUES, st.floats(0.01, 10.0), st.floats(-100.0, 100.0))
def test_only_differences_count(values: list[float], least: float, shift: float) -> None:
    whole = [round(value) for value in values]
    assert high_outliers(whole, least) == high_outliers(
        [value + round(shift) for value in whole], least
    )


def test_a_flag_is_laid_to_the_device_whose_readings_give_it() -> None:
    assert devices_with(hot_readings(), "throttled") == ["0000:3b:00.0 H100"]
    assert devices_with(hot_readings(), "ecc_errors") == []


def test_readings_that_cannot_be_read_name_no_device() -> None:
    assert devices_with("no JSON", "throttled") == []
