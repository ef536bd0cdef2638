"""One job of four ranks on Gloo, recorded by the profiler and by Flight Recorder.

Both must give one table of its second step. What Gloo's own records forbid is named here, and nothing
else may differ.
"""

from __future__ import annotations

from collections import Counter

from ccbench.readers.traces.events import Communication, Trace
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.recorded import needs_traces, path_of

pytestmark = needs_traces

CALLS_OF_A_STEP = 10
"""Of one rank, without sends: Flight Recorder holds two steps, the profiler the second."""


def traces(*kinds: str) -> Trace:
    names = {"kineto": "{}.json.gz", "flight_recorder": "{}.json"}
    files = [
        f"{kind}/gloo_4ranks_rank{names[kind].format(rank)}"
        for kind in kinds
        for rank in range(4)
    ]
    return read_traces(map(path_of, files))


def row(call: Communication) -> tuple[int | None, str, int]:
    return call.rank, call.collective, max(call.input_bytes or 0, call.output_bytes or 0)


def second_step(trace: Trace) -> list[Communication]:
    """The last calls of each rank in a dump of Flight Recorder."""
    of_rank = (
        [communication for communication in trace.communications if communication.rank == rank]
        for rank in range(4)
    )
    return [call for calls in of_rank for call in calls[-CALLS_OF_A_STEP:]]


def test_with_flight_recorder_every_collective_has_its_group() -> None:
    both = traces("kineto", "flight_recorder")
    dump = Counter(
        (row(call), call.group.ranks) for call in second_step(traces("flight_recorder"))
    )
    calls = Counter(
        (row(communication), communication.group.ranks) for communication in both.communications
    )
    messages = {(0, "send", 400), (1, "recv", 400)}
    assert {key for key, _ in calls - dump} == messages | {
        (r, "reduce_scatter", 16000) for r in range(4)
    }
    assert {key for key, _ in dump - calls} == {(r, "all_reduce", 16000) for r in range(4)}
    sizes = {
        communication.group.size
        for communication in both.communications
        if row(communication) not in messages
    }
    assert sizes == {2, 4}
    # The profiler's durations stay; the calls are counted once.
    assert len(both.communications) == 4 * CALLS_OF_A_STEP + 2


def test_gloo_gives_times_to_the_profiler_alone() -> None:
    timed = {
        kind: sum(
            communication.duration_seconds is not None
            for communication in traces(kind).communications
        )
        for kind in ("kineto", "flight_recorder")
    }
    assert timed["kineto"] == 4 * CALLS_OF_A_STEP + 2
    assert timed["flight_recorder"] == 0
