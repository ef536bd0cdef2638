"""The traces of a real job of torch and Gloo, read: each kind alone, and what they say together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ccbench.readers.traces.events import Communication, Trace
from ccbench.readers.traces.reading import read_traces

from .conftest import JOB
from .job import BATCH, WIDTH, Files, sent_rows

ROW, LAYER, ACTIVATIONS = 4 * WIDTH, 4 * WIDTH * WIDTH, 4 * BATCH * WIDTH
"""In bytes."""

RANKS = range(JOB.ranks)


def calls_of_a_step(rank: int) -> Counter[tuple[str, tuple[int, ...], int, int]]:
    """(collective, ranks, bytes given, bytes got) of calls of a rank in a step of ``JOB`` -> how often."""
    tp = tuple(range(rank - rank % 2, rank - rank % 2 + 2))
    dp = tuple(one for one in RANKS if one % 2 == rank % 2)
    sent, got = (
        sum(rows) * ROW
        for rows in (
            [sent_rows(rank, other) for other in RANKS],
            [sent_rows(other, rank) for other in RANKS],
        )
    )
    return Counter(
        {
            ("all_reduce", dp, LAYER, LAYER): JOB.layers,
            ("all_reduce", tp, ACTIVATIONS, ACTIVATIONS): 1,
            ("all_gather", tuple(RANKS), ACTIVATIONS, JOB.ranks * ACTIVATIONS): 1,
            ("all_to_all", tuple(RANKS), sent, got): 1,
        }
    )


def calls(
    trace: Trace, rank: int
) -> Counter[tuple[str, tuple[int, ...], int | None, int | None]]:
    return Counter(
        (
            communication.collective,
            communication.group.ranks,
            communication.input_bytes,
            communication.output_bytes,
        )
        for communication in trace.communications
        if communication.rank == rank
    )


def read(*kinds: Sequence[Path]) -> Trace:
    return read_traces([path for paths in kinds for path in paths])


def test_with_flight_recorder_every_call_is_found_with_its_group_and_bytes(
    traced: Files,
) -> None:
    trace = read(traced.kineto, traced.flight_recorder)
    for rank in RANKS:
        expected = Counter(
            {call: JOB.steps * count for call, count in calls_of_a_step(rank).items()}
        )
        assert calls(trace, rank) == expected


def test_flight_recorder_alone_has_these_calls_and_those_before_the_recorded_steps(
    traced: Files,
) -> None:
    trace = read(traced.flight_recorder)
    for rank in RANKS:
        found = calls(trace, rank)
        assert all(
            found[call] >= JOB.steps * count for call, count in calls_of_a_step(rank).items()
        )


def test_without_it_only_groups_that_sizes_tell_are_named(traced: Files) -> None:
    trace = read(traced.kineto)
    assert len(trace.communications) == JOB.ranks * JOB.steps * (JOB.layers + 3)
    everybody = tuple(RANKS)
    assert {
        (communication.collective, communication.group.ranks)
        for communication in trace.communications
    } == {
        ("all_reduce", ()),
        ("all_gather", everybody),
        ("all_to_all", everybody),
    }


def test_splits_are_those_of_the_job(traced: Files) -> None:
    found = {
        communication.rank: communication
        for communication in read(traced.kineto).communications
        if communication.collective == "all_to_all"
    }
    for rank in RANKS:
        assert found[rank].input_splits == tuple(
            sent_rows(rank, other) * ROW for other in RANKS
        )
        assert found[rank].output_splits == tuple(
            sent_rows(other, rank) * ROW for other in RANKS
        )


def test_steps_and_times_are_of_one_clock(traced: Files) -> None:
    trace = read(traced.kineto)
    for rank in RANKS:
        own = [
            communication
            for communication in trace.communications
            if communication.rank == rank
        ]
        assert len(trace.steps[rank]) == JOB.steps
        assert all(in_a_step(one, trace) for one in own)


def in_a_step(one: Communication, trace: Trace) -> bool:
    assert one.rank is not None
    assert one.start_seconds is not None
    return any(start <= one.start_seconds <= end for start, end in trace.steps[one.rank])
