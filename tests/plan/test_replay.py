"""Jobs with planted transfers, lateness and overlap give back what was planted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.plan.replay import Alone, Replay, StepTime, length, overlaps, replay
from ccbench.readers.traces.events import ProcessGroup, Trace
from ccbench.readers.traces.fold import fold
from ccbench.readers.traces.intervals import merged
from tests.readers.traces.jobs import call, job, trace


def step_of(result: Replay) -> StepTime:
    assert result.step is not None
    return result.step


def taken_apart(made: Trace, seconds: float | None = None) -> Replay:
    folded = fold(made)
    alone = (
        {}
        if seconds is None
        else {case.case: Alone(measured_seconds=seconds) for case in folded.cases}
    )
    return replay(made, folded, alone, "measured" if alone else "")


def test_a_transfer_longer_than_alone_competes_where_computing_covers_it() -> None:
    hidden = taken_apart(job(transfer_seconds=0.010, hidden_seconds=0.010), seconds=0.004)
    assert step_of(hidden).wire_seconds == pytest.approx(0.004)
    assert step_of(hidden).competing_seconds == pytest.approx(0.006)
    assert step_of(hidden).slower_seconds == 0.0
    assert step_of(hidden).exposed_seconds == pytest.approx(0.0, abs=1e-9)
    assert "6 ms competing with computing" in hidden.verdict
    seen = taken_apart(job(transfer_seconds=0.010), seconds=0.004)
    assert step_of(seen).slower_seconds == pytest.approx(0.006)
    assert step_of(seen).competing_seconds == 0.0
    assert step_of(seen).exposed_seconds == pytest.approx(0.010)


def test_a_transfer_longer_than_the_model_says_is_not_called_longer_than_alone() -> None:
    made = job(transfer_seconds=0.010)
    folded = fold(made)
    alone = {case.case: Alone(predicted_seconds=0.004) for case in folded.cases}
    assert "6 ms longer than predicted" in replay(made, folded, alone, "predicted").verdict
    assert "6 ms longer than alone" in taken_apart(made, seconds=0.004).verdict


def test_communication_on_another_stream_competes_too() -> None:
    records = [
        replace(
            communication,
            stream=stream,
            sequence=None,
            group=replace(communication.group, name=stream),
        )
        for communication in job(steps=1).communications
        for stream in ("20", "21")
    ]
    result = taken_apart(trace(records), seconds=0.004)
    assert step_of(result).competing_seconds == pytest.approx(2 * 0.006)


@given(
    st.lists(st.floats(-1e4, 1e4), min_size=4, max_size=4),
    st.floats(1e-4, 0.1),
    st.dictionaries(st.integers(0, 3), st.floats(1e-3, 0.1), max_size=3),
)
def test_the_parts_add_up_and_clocks_change_nothing(
    clocks: list[float], transfer: float, late: dict[int, float]
) -> None:
    def parts(made: Trace) -> list[float]:
        step = step_of(taken_apart(made, seconds=transfer / 2))
        found = (
            step.waiting_seconds,
            step.competing_seconds,
            step.slower_seconds,
            step.wire_seconds,
        )
        told = [one for one in found if one is not None]
        assert sum(told) == pytest.approx(step.communication_seconds)
        assert step.exposed_seconds is not None
        assert 0 <= step.exposed_seconds <= step.communication_seconds * (1 + 1e-9)
        assert sum(step.waiting_for.values()) <= told[0] * (1 + 1e-9)
        return told

    plain = parts(job(3, transfer, late))
    assert len(plain) == 4
    assert parts(job(3, transfer, late, clock=lambda rank: clocks[rank])) == pytest.approx(
        plain, abs=1e-6
    )


def test_of_one_rank_waiting_is_not_guessed() -> None:
    whole = job(late={2: 0.030})
    alone = [communication for communication in whole.communications if communication.rank == 0]
    result = taken_apart(replace(whole, communications=tuple(alone), ranks=(0,)))
    assert step_of(result).waiting_seconds is None
    assert result.cases[0].transfer_seconds is None
    assert "waiting unknown: only one rank was recorded" in result.verdict


def test_a_collective_of_one_recorded_rank_does_not_hide_who_waits_elsewhere() -> None:
    made = job(late={2: 0.030})
    apart = [
        replace(
            communication,
            group=ProcessGroup("9", 2, (0, 7)),
            input_bytes=64,
            output_bytes=64,
            stream="21",
        )
        for communication in made.communications
        if communication.rank == 0
    ]
    result = taken_apart(replace(made, communications=(*made.communications, *apart)))
    step = step_of(result)
    assert step.waiting_seconds == pytest.approx(0.0225)
    assert step.untold_seconds == pytest.approx(0.040 / 4)
    parts = (
        step.waiting_seconds,
        step.competing_seconds,
        step.slower_seconds,
        step.wire_seconds,
    )
    assert sum(one or 0.0 for one in parts) + step.untold_seconds == pytest.approx(
        step.communication_seconds
    )
    assert (
        "10 ms of collectives that one rank alone recorded, with its waiting" in result.verdict
    )
    alone = replace(
        made,
        communications=(*apart, replace(apart[0], rank=1, group=ProcessGroup("9", 2, (1, 6)))),
    )
    assert (
        "waiting unknown: of each collective one rank alone was" in taken_apart(alone).verdict
    )


def test_where_nothing_is_known_of_a_case_its_transfer_is_not_called_the_wire() -> None:
    made = job()
    nothing = replay(made, fold(made), {}, "predicted for nobody")
    assert nothing.verdict.endswith(
        "computing. To judge the transfer add --backend or --machine"
    )
    larger = [
        replace(communication, input_bytes=8192, output_bytes=8192)
        for communication in made.communications[::5]
    ]
    mixed = replace(made, communications=(*made.communications, *larger))
    first, *_ = fold(mixed).cases
    result = replay(
        mixed, fold(mixed), {first.case: Alone(predicted_seconds=0.004)}, "predicted"
    )
    assert "on the wire, or transfer with nothing to compare with" in result.verdict


def test_time_of_calls_that_are_no_case_is_told_beside_the_rest() -> None:
    made = job()
    lost = [
        replace(communication, group=ProcessGroup("", 0), stream="21")
        for communication in made.communications
    ]
    both = taken_apart(replace(made, communications=(*made.communications, *lost)))
    assert step_of(both).communication_seconds == pytest.approx(0.010)
    assert step_of(both).no_case_seconds == pytest.approx(0.010)
    assert both.verdict.endswith(
        ". 10 ms more of calls that are not listed here. To judge the transfer add --backend or --machine"
    )
    nothing = taken_apart(replace(made, communications=tuple(lost)))
    assert nothing.verdict == "5 communications, none of which is a case"


def test_a_trace_without_communication_is_not_said_to_lack_times() -> None:
    assert taken_apart(trace([], ranks=(0,))).verdict == "no communication is recorded here"


def test_without_times_there_is_no_step() -> None:
    result = taken_apart(trace([call(rank) for rank in range(4)]))
    assert result.step is None
    assert result.verdict == "1 communication in 1 case; the trace has no times"


@pytest.mark.parametrize("apart", [0.0, 1000.0])
def test_a_rank_with_less_to_do_is_not_taken_for_a_late_one(apart: float) -> None:
    busy = {
        0: 0.004,
        1: 0.009,
        2: 0.009,
        3: 0.009,
    }  # rank 0 comes with the others and is done first
    made = job(steps=1, clock=lambda rank: apart * rank)
    uneven = [
        call(
            rank,
            "all_to_all",
            input_splits=(1024, 0, 1024, 2048),
            stream="20",
            start_seconds=apart * rank,
            duration_seconds=seconds,
        )
        for rank, seconds in busy.items()
    ]
    result = taken_apart(
        replace(made, communications=(*made.communications, *uneven), steps={})
    )
    (one,) = (case for case in result.cases if case.job.case.traffic)
    assert one.last is None
    assert step_of(result).waiting_for == {}
    assert result.one_clock == (apart == 0)
    # With a clock for each rank, nobody can say that nobody waited.
    assert one.transfer_seconds == pytest.approx(0.004 if apart else 0.009)
    assert one.seconds == pytest.approx(0.009), (
        "the whole is by the longest rank too, so no part is longer"
    )
    assert step_of(result).waiting_seconds == pytest.approx(0.00375 if apart else 0.0)


def test_what_if_counts_a_step_of_one_rank() -> None:
    made = job(steps=5)
    folded = fold(made)
    times = Alone(measured_seconds=0.002, predicted_seconds=0.003, bound_seconds=0.001)
    alone = {case.case: times for case in folded.cases}
    result = replay(made, folded, alone, "predicted for a machine", "a machine")
    assert [what.split(",")[0] for what, _ in result.what_if] == [
        "every collective takes what it takes alone",
        "every collective takes its bound",
        "on a machine",
    ]
    assert [seconds for _, seconds in result.what_if] == pytest.approx([0.002, 0.001, 0.003])


INTERVALS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 9)), max_size=12).map(
    lambda rows: np.array([(begin, begin + size) for begin, size in rows], float).reshape(-1, 2)
)


@given(INTERVALS, INTERVALS)
def test_overlaps_are_those_of_every_moment(spans: Any, others: Any) -> None:
    apart = merged(others)
    moments = np.arange(0, 70) + 0.5
    covered = {m for m in moments if any(begin < m < end for begin, end in apart)}
    naive = [sum(begin < m < end and m in covered for m in moments) for begin, end in spans]
    assert overlaps(spans, apart).tolist() == pytest.approx(naive)
    assert length(apart) == len(covered)
