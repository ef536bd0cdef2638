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
    UNNAMED,
    devices_with,
    flagged_devices,
    high_outliers,
    relative_spread,
    starved_ranks,
    waited_for,
)
from ccbench.cases.measurement import Conditions, Measurement
from ccbench.report.wording import footnote
from ccbench.results import Point
from tests.analysis.health.machines import (
    case,
    collectives,
    flagged,
    hot_readings,
    measured,
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


@pytest.mark.parametrize("rank", range(RANKS))
def test_the_rank_that_is_given_half_of_what_others_are_is_named(rank: int) -> None:
    shares = [0.25 if number == rank else 0.5 for number in range(RANKS)]
    assert starved_ranks(rows(shares)) == {
        rank: "it gets 50% of the next one's processor time in 12 of 12 collectives on cpu"
    }


@example([STARVED, 1.0, 1.0, 1.0])
@given(st.lists(st.floats(STARVED, 1.0), min_size=RANKS, max_size=RANKS))
def test_nobody_is_named_while_all_get_about_as_much(shares: list[float]) -> None:
    assert starved_ranks(rows(shares)) == {}


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=9))
def test_only_ranks_with_the_least_and_less_than_half_are_ever_named(
    shares: list[float],
) -> None:
    named = set(starved_ranks(rows(shares)))
    assert named == set(np.argsort(shares, kind="stable")[: len(named)].tolist())
    assert 2 * len(named) < len(shares) or len(named) < 2
    assert len(starved_ranks(rows(shares, flags=["oversubscribed"]))) < 2


def test_two_ranks_of_five_that_are_limited_alike_are_both_named() -> None:
    assert starved_ranks(rows([1.0, 0.5, 1.0, 0.25, 1.0])) == {
        1: "it gets 50% of the next one's processor time in 12 of 12 collectives on cpu",
        3: "it gets 25% of the next one's processor time in 12 of 12 collectives on cpu",
    }


def test_two_ranks_that_a_launcher_binds_to_one_processor_lack_nothing() -> None:
    assert starved_ranks(rows([0.5, 0.5, 1.0, 1.0, 1.0], binding=(0, 0, 1, 2, 3))) == {}
    assert set(starved_ranks(rows([0.5, 0.5, 1.0, 1.0, 1.0], binding=(0, 4, 1, 2, 3)))) == {
        0,
        1,
    }


@pytest.mark.parametrize("ranks", range(3, 10))
def test_ranks_that_must_share_processors_are_not_accused(ranks: int) -> None:
    """Of any number of ranks on two, four or eight processors, by turns: each has its part of one."""
    for cores in (2, 4, 8):
        shares = [1 / len(range(rank % cores, ranks, cores)) for rank in range(ranks)]
        flags = ["oversubscribed"] * (ranks > cores)
        assert starved_ranks(rows(shares, flags=flags)) == {}


def test_ranks_in_pairs_that_share_processors_are_not_starved_by_each_other() -> None:
    assert starved_ranks(rows([0.5, 1.0, 0.5, 1.0], flags=["oversubscribed"])) == {}


def test_a_backend_whose_ranks_sleep_while_they_wait_says_nothing_about_processor_time() -> (
    None
):
    assert starved_ranks(rows([0.5, 0.1, 0.5, 0.5], "gloo")) == {}


@pytest.mark.parametrize("flag", ["other_load", "steal"])
def test_what_other_programs_took_is_no_rank_s_fault(flag: str) -> None:
    assert starved_ranks(rows([0.5, 0.1, 0.5, 0.5], flags=[flag])) == {}
    assert starved_ranks(rows([0.5, 0.1, 0.5, 0.5], flags=["oversubscribed"])) != {}
    assert waited_for(rows(late=1, flags=[flag])) == {}
    assert waited_for(rows(late=1, flags=["oversubscribed"])) != {}


def queued(points: list[Point], *shares: float) -> list[Point]:
    return [replace(point, rank_queued_share=shares) for point in points]


@pytest.mark.parametrize("flags", [[], ["other_load"]])
def test_a_rank_that_stood_in_the_queue_for_its_processor_is_not_blamed_and_one_that_did_not_is(
    flags: Sequence[str],
) -> None:
    late = rows(late=1, flags=flags)
    assert waited_for(queued(late, 0.3, 0.2, 0.3, 0.3)) == {}
    assert waited_for(queued(late, 0.3, 0.01, 0.3, 0.3)) == {
        1: "the others wait for it in 12 of 12 collectives on cpu"
    }


def test_of_ranks_that_share_processors_the_late_one_stands_in_the_queue_no_longer_than_others() -> (
    None
):
    late = rows(late=1, flags=["oversubscribed"])
    assert waited_for(queued(late, 0.5, 0.5, 0.5, 0.5)).keys() == {1}
    assert waited_for(queued(late, 0.5, 0.7, 0.5, 0.5)) == {}


def test_beside_other_load_a_rank_that_lacks_more_than_it_queued_for_is_starved() -> None:
    shares, flags = [0.5, 0.25, 0.5, 0.5], ["other_load"]
    assert starved_ranks(queued(rows(shares, flags=flags), 0.5, 0.75, 0.5, 0.5)) == {}
    assert starved_ranks(queued(rows(shares, flags=flags), 0.5, 0.25, 0.5, 0.5)) == {
        1: "it gets 50% of the next one's processor time in 12 of 12 collectives on cpu"
    }
    assert starved_ranks(queued(rows(shares), 0.0, 0.75, 0.0, 0.0)).keys() == {1}


def test_teams_of_several_sizes_each_have_their_say() -> None:
    both = [*rows([1.0, 0.5, 1.0, 1.0]), *rows([1.0, 0.25])]
    assert starved_ranks(both) == {
        1: "it gets 50% of the next one's processor time in 12 of 12 collectives on cpu with 4 ranks; "
        "it gets 25% of the next one's processor time in 12 of 12 collectives on cpu with 2 ranks"
    }


def test_a_run_that_does_not_tell_processor_times_names_nobody() -> None:
    assert starved_ranks(rows()) == {}


def test_a_rank_that_lacks_its_processor_in_some_cases_alone_is_not_named() -> None:
    starved, even = rows([0.5, 0.1, 0.5, 0.5]), rows([0.5, 0.5, 0.5, 0.5])
    assert set(starved_ranks([*starved[:6], *even[6:]])) == {1}
    assert starved_ranks([*starved[:5], *even[5:]]) == {}


def test_ranks_that_lack_it_by_turns_are_not_named() -> None:
    first, second = rows([0.5, 0.1, 0.5, 0.5]), rows([0.1, 0.5, 0.5, 0.5])
    assert starved_ranks([*first[:6], *second[6:]]) == {}
    assert set(starved_ranks([*first[:9], *second[9:]])) == {1}


def test_the_rank_that_waits_least_is_the_one_that_is_waited_for() -> None:
    assert waited_for(rows(late=2)) == {
        2: "the others wait for it in 12 of 12 collectives on cpu"
    }
    assert waited_for(rows()) == {}


def of_two(*waits: Sequence[float], seconds: float = 1e-4, cases: int = 12) -> list[Point]:
    """Cases of two ranks that waited so many launches in each round."""
    waiting = tuple(seconds * np.array(rank) for rank in waits)
    return [
        replace(
            point, ranks=2, median_seconds=seconds, slowest_rank=0, rank_waiting_seconds=waiting
        )
        for point in rows()[:cases]
    ]


def test_of_two_ranks_the_slower_one_is_named_from_a_quarter_of_a_launch_on() -> None:
    """One of two always waits least, and there is no third that would show how much is usual."""
    assert waited_for(of_two([0.0], [0.2])) == {}
    assert waited_for(of_two([0.0], [0.3])).keys() == {0}


def test_a_round_in_which_another_program_held_a_rank_up_names_nobody() -> None:
    assert waited_for(of_two([0.0, 0.0, 0.0, 0.0], [300.0, 0.1, 0.0, 0.1])) == {}
    assert waited_for(of_two([0.0, 0.0, 0.0, 0.0], [0.1, 0.9, 0.9, 0.9])).keys() == {0}


def test_launches_of_a_few_microseconds_tell_nothing_of_waiting() -> None:
    assert waited_for(of_two([0.0], [0.5], seconds=2e-6)) == {}


def test_two_ranks_have_seven_cases_against_one_of_them_by_chance() -> None:
    assert waited_for(of_two([0.0], [0.5], cases=7)) == {}
    assert waited_for(of_two([0.0], [0.5], cases=8)).keys() == {0}


# -- what stands out, and whose flags they are ------------------------------------------------------------

VALUES = st.lists(st.floats(0.0, 1000.0), max_size=30)


@pytest.mark.parametrize(
    ("values", "least", "outliers"),
    [
        ([1.0, 1.0, 1.0, 5.0], 0.5, (3,)),
        ([1.0, 1.0, 1.0, 1.4], 0.5, ()),
        ([1.0, 5.0], 0.5, ()),
        ([], 0.5, ()),
        ([1.0, 2.0, 3.0, 4.0, 5.0], 0.5, ()),
        ([5.0, 1.0, 1.0, 1.0, 6.0], 0.5, (0, 4)),
    ],
)
def test_an_outlier_lies_far_above_its_likes(
    values: list[float], least: float, outliers: tuple[int, ...]
) -> None:
    assert high_outliers(values, least) == outliers


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


def test_the_spread_of_equal_values_is_nothing() -> None:
    assert relative_spread([2.0] * 5) == 0.0
    assert relative_spread([2.0]) == 0.0
    assert relative_spread([0.0, 0.0, 1.0]) == 0.0


def test_the_spread_of_normal_values_is_their_deviation() -> None:
    values = 10 + np.random.default_rng(1).normal(size=20_001)
    assert relative_spread(values.tolist()) == pytest.approx(0.1, rel=0.05)


def test_a_flag_is_laid_to_the_device_whose_readings_give_it() -> None:
    assert devices_with(hot_readings(), "throttled") == ["0000:3b:00.0 H100"]
    assert devices_with(hot_readings(), "ecc_errors") == []


def test_devices_are_counted_by_cases_and_flags() -> None:
    cases = [(("throttled", "other_load"), hot_readings())] * 3 + [(("ecc_errors",), "")]
    assert flagged_devices(cases) == [
        ("throttled", "0000:3b:00.0 H100", 3),
        ("ecc_errors", UNNAMED, 1),
    ]
    assert flagged_devices(cases, ("ecc_errors",)) == [("ecc_errors", UNNAMED, 1)]


def test_readings_that_cannot_be_read_name_no_device() -> None:
    assert devices_with("no JSON", "throttled") == []


def test_the_small_print_names_the_device() -> None:
    measurement = measured(
        case("all_reduce", 4096), 1e-5, np.random.default_rng(1), device_readings=hot_readings()
    )
    run = run_of([flagged(measurement, "throttled")])
    assert "Devices: 0000:3b:00.0 H100 throttled (1 point)" in footnote(run.points)
