"""Rounds of a case become one measurement, which knows whether it wants another round."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.cases.axes import Case
from ccbench.cases.measurement import MORE_ROUNDS, Measurement, Sampling, Status
from ccbench.results.schema import usual_waits
from ccbench.runner.measure import judged, merged

CASE = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 2)

times = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=6)


def one_round(*samples: float, **changes: object) -> Measurement:
    plain = Measurement(
        CASE,
        Status.OK,
        launches_per_sample=4,
        samples_seconds=samples,
        warmup_seconds=samples[:1],
        skew_seconds=samples,
        rank_samples_seconds=(samples, tuple(2 * sample for sample in samples)),
        rank_waiting_seconds=((1.0,), (3.0,)),
        rank_cpu_share=(0.5, 1.0),
        round_samples=(len(samples),),
        launching_seconds=sum(samples),
        wrong_elements=0,
        started_at="first",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]  # the caller names fields of Measurement


@given(st.lists(times, min_size=1, max_size=5))
def test_no_sample_is_lost_and_rounds_keep_their_order(rounds: list[list[float]]) -> None:
    whole = merged(Measurement(CASE, Status.FAILED, "x"), one_round(*rounds[0]))
    assert whole == merged(None, one_round(*rounds[0])) == one_round(*rounds[0])
    for samples in rounds[1:]:
        whole = merged(whole, one_round(*samples, started_at="another"))
    assert whole.started_at != "another"
    every = tuple(sample for samples in rounds for sample in samples)
    assert whole.samples_seconds == whole.skew_seconds == every
    assert whole.rank_samples_seconds == (every, tuple(2 * each for each in every))
    assert whole.round_samples == tuple(map(len, rounds))
    assert whole.warmup_seconds == tuple(samples[0] for samples in rounds)
    assert whole.launching_seconds == pytest.approx(sum(every))
    assert whole.rank_waiting_seconds == ((1.0,) * len(rounds), (3.0,) * len(rounds))


def test_of_several_rounds_the_median_of_what_a_rank_waited_counts() -> None:
    """Another program may hold up a rank for a whole round."""
    whole = merged(one_round(1.0), one_round(2.0, rank_waiting_seconds=((400.0,), (0.0,))))
    whole = merged(whole, one_round(3.0))
    assert usual_waits(whole.rank_waiting_seconds) == [1.0, 3.0]
    assert usual_waits(()) == usual_waits(((), ())) == []


@pytest.mark.parametrize("status", [Status.FAILED, Status.TIMED_OUT, Status.OUT_OF_MEMORY])
def test_a_round_that_failed_speaks_for_the_case_and_samples_stay(status: Status) -> None:
    whole = merged(one_round(1.0, 2.0), Measurement(CASE, status, "rank 1 died"))
    assert (whole.status, whole.detail) == (status, "rank 1 died")
    assert whole.samples_seconds == (1.0, 2.0)
    assert whole.launches_per_sample == 4
    assert whole.stop_reason == ""
    assert judged(whole, Sampling()) == whole


def test_where_any_interval_is_narrow_enough_no_case_is_visited_again() -> None:
    wide = one_round(1.0, 100.0, round_samples=(1, 1))
    assert (
        judged(wide, Sampling(rounds=2, target_relative_width=0.99)).stop_reason == MORE_ROUNDS
    )
    assert judged(wide, Sampling(rounds=2, target_relative_width=1.0)).stop_reason == "interval"


def test_only_a_case_that_is_ok_is_judged() -> None:
    wrong = one_round(1.0, status=Status.WRONG)
    assert judged(wrong, Sampling()).stop_reason == ""
