"""Visits of a case become one measurement, which knows whether it wants another visit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases import MORE_VISITS, Case, Conditions, Measurement, Sampling, Status
from ccbench.results.rows import usual_waits
from ccbench.runner.visits import EXTRA_VISITS_FACTOR, judged, merged, visits_of

CASE = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 2)

times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6)


def visit(*samples: float, **changes: object) -> Measurement:
    plain = Measurement(
        CASE,
        Status.OK,
        launches_per_sample=4,
        samples_seconds=samples,
        warmup_seconds=samples[:1],
        skew_seconds=samples,
        rank_samples_seconds=(samples, tuple(2 * one for one in samples)),
        rank_waiting_seconds=((1.0,), (3.0,)),
        rank_cpu_share=(0.5, 1.0),
        visit_samples=(len(samples),),
        launching_seconds=sum(samples),
        wrong_elements=0,
        started_at="first" if samples and samples[0] == 1.0 else "later",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # the caller names fields of Measurement


def test_the_first_visit_is_the_measurement() -> None:
    assert merged(None, visit(1.0)) == visit(1.0)


@given(st.lists(times, min_size=1, max_size=5))
def test_no_sample_is_lost_and_visits_keep_their_order(visits: list[list[float]]) -> None:
    whole: Measurement | None = None
    for samples in visits:
        whole = merged(whole, visit(*samples))
    assert whole is not None
    every = tuple(one for samples in visits for one in samples)
    assert whole.samples_seconds == whole.skew_seconds == every
    assert whole.rank_samples_seconds == (every, tuple(2 * one for one in every))
    assert whole.visit_samples == tuple(map(len, visits))
    assert whole.warmup_seconds == tuple(samples[0] for samples in visits)
    assert whole.launching_seconds == pytest.approx(sum(every))
    assert whole.rank_waiting_seconds == ((1.0,) * len(visits), (3.0,) * len(visits))


def test_of_several_visits_the_median_of_what_a_rank_waited_counts() -> None:
    """Another program may hold up a rank for a whole visit."""
    whole = merged(visit(1.0), visit(2.0, rank_waiting_seconds=((400.0,), (0.0,))))
    whole = merged(whole, visit(3.0))
    assert usual_waits(whole.rank_waiting_seconds) == [1.0, 3.0]
    assert usual_waits(()) == usual_waits(((), ())) == []


def test_the_processor_time_of_ranks_is_a_mean_over_visits() -> None:
    whole = merged(visit(1.0), visit(2.0, rank_cpu_share=(0.8, 0.4)))
    whole = merged(whole, visit(3.0, rank_cpu_share=(0.8, 0.4)))
    assert whole.rank_cpu_share == pytest.approx((0.7, 0.6))


def test_visits_of_an_older_run_that_did_not_keep_processor_times_leave_it_to_newer_ones() -> None:
    whole = merged(visit(1.0, rank_cpu_share=()), visit(2.0))
    assert whole.rank_cpu_share == (0.5, 1.0)


def test_the_case_started_with_its_first_visit() -> None:
    assert merged(visit(1.0), visit(2.0)).started_at == "first"


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMED_OUT, Status.OUT_OF_MEMORY])
def test_a_visit_that_failed_speaks_for_the_case_and_samples_stay(status: Status) -> None:
    whole = merged(visit(1.0, 2.0), Measurement(CASE, status, "rank 1 died"))
    assert (whole.status, whole.detail) == (status, "rank 1 died")
    assert whole.samples_seconds == (1.0, 2.0)
    assert whole.launches_per_sample == 4
    assert whole.stop_reason == ""
    assert judged(whole, Sampling()) == whole


def test_a_visit_with_wrong_data_makes_the_case_wrong() -> None:
    whole = merged(visit(1.0), visit(2.0, status=Status.WRONG, detail="rank 0: ...", wrong_elements=7))
    assert (whole.status, whole.wrong_elements, whole.detail) == (Status.WRONG, 7, "rank 0: ...")
    assert whole.samples_seconds == (1.0, 2.0)


def test_a_case_that_failed_before_starts_afresh() -> None:
    assert merged(Measurement(CASE, Status.FAILED, "x"), visit(1.0)) == visit(1.0)


def test_conditions_are_those_of_all_visits_together() -> None:
    first = Conditions(1e-7, 2e-7, 0.4, None, 1.0, (0, 1), False, ("core_distance_changed",))
    then = Conditions(5e-7, 6e-7, 0.2, 0.1, 3.0, (0, 1), False, ())
    whole = merged(visit(1.0, conditions=first), visit(2.0, conditions=then)).conditions
    assert (whole.core_latency_before_seconds, whole.core_latency_after_seconds) == (1e-7, 6e-7)
    assert whole.other_cpu_share == pytest.approx(0.25)
    assert whole.steal_share == 0.1
    assert whole.flags == ("other_load", "steal", "core_distance_changed")


def test_samples_without_word_of_visits_were_one_visit() -> None:
    assert visits_of(visit(1.0, 2.0, visit_samples=())) == (2,)
    assert visits_of(Measurement(CASE, Status.FAILED)) == ()


@pytest.mark.parametrize(
    ("visits", "spread", "reason"),
    [
        (5, 0.0, MORE_VISITS),
        (6, 0.0, "interval"),
        (6, 1.0, MORE_VISITS),
        (EXTRA_VISITS_FACTOR * 6 - 1, 1.0, MORE_VISITS),
        (EXTRA_VISITS_FACTOR * 6, 1.0, "maximum of visits"),
    ],
)
def test_a_case_is_visited_until_it_is_narrow_but_not_for_ever(
    visits: int, spread: float, reason: str
) -> None:
    samples = [1.0 + spread * (number % 3) for number in range(visits)]
    whole = visit(*samples, visit_samples=(1,) * visits)
    assert judged(whole, Sampling(visits=6)).stop_reason == reason


def test_where_any_interval_is_narrow_enough_no_case_is_visited_again() -> None:
    wide = visit(1.0, 100.0, visit_samples=(1, 1))
    assert judged(wide, Sampling(visits=2, target_relative_width=0.99)).stop_reason == MORE_VISITS
    assert judged(wide, Sampling(visits=2, target_relative_width=1.0)).stop_reason == "interval"


def test_only_a_case_that_is_ok_is_judged() -> None:
    wrong = visit(1.0, status=Status.WRONG)
    assert judged(wrong, Sampling()).stop_reason == ""
