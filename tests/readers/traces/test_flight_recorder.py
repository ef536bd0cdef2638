"""Dumps of PyTorch's Flight Recorder: calls, groups, whose dump it is, and what Gloo's dumps lack."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest

from ccbench.readers.traces import flight_recorder
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.hang import hang_of
from ccbench.readers.traces.lag import lag
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.recorded import expected, needs_traces, path_of

WORLD = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def entry(name: str = "nccl:all_reduce", number: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "record_id": number,
        "pg_id": 0,
        "process_group": ["0", "default_pg"],
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": name,
        "time_created_ns": 5_000_000_000,
        "input_sizes": [[10, 100]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[10, 100]],
        "output_dtypes": ["BFloat16"],
        "state": "completed",
        "time_discovered_started_ns": 5_100_000_000,
        "time_discovered_completed_ns": None,
        "retired": True,
        "timeout_ms": 600000,
        "is_p2p": False,
        **more,
    }


def trace_of(
    *entries: dict[str, Any], place: str = "nccl_trace_rank_2", **members: Any
) -> Trace:
    head = {
        "version": "2.10",
        "comm_lib_version": "2.27.3",
        "pg_config": WORLD,
        "pg_status": {},
    }
    data = json.dumps({**head, **members, "entries": list(entries)}).encode()
    assert flight_recorder.recognises(data)
    return flight_recorder.read(TraceFile(place, data[:65536], io.BytesIO(data)))


def test_a_call_has_its_bytes_group_and_number() -> None:
    trace = trace_of(entry(duration_ms=1.5))
    (call,) = trace.communications
    assert (call.collective, call.name, call.dtype) == (
        "all_reduce",
        "nccl:all_reduce",
        "bfloat16",
    )
    assert (call.input_bytes, call.output_bytes, call.sequence, call.state) == (
        2000,
        2000,
        1,
        "completed",
    )
    assert (call.group.name, call.group.size, call.group.ranks) == ("0", 4, (0, 1, 2, 3))
    assert (call.start_seconds, call.duration_seconds) == (5.0, 0.0015)
    assert (trace.backend, trace.world_size, trace.ranks) == ("nccl", 4, (2,))
    assert trace.versions == {"flight recorder": "2.10", "nccl": "2.27.3"}


@pytest.mark.parametrize("duration", [None, 0, -1, float("nan"), "soon"])
def test_no_duration_is_none_whatever_was_polled(duration: object) -> None:
    more: dict[str, Any] = {} if duration is None else {"duration_ms": duration}
    assert trace_of(entry(**more)).communications[0].duration_seconds is None


def test_tensors_of_several_types_and_sizes_are_added_up() -> None:
    sizes: dict[str, Any] = {
        "input_sizes": [[3], [], [2, 2]],
        "input_dtypes": ["Float", "Long", "Half"],
    }
    assert trace_of(entry(**sizes)).communications[0].input_bytes == 3 * 4 + 8 + 4 * 2
    unknown: dict[str, Any] = {"input_sizes": [[3], [4]], "input_dtypes": ["Float", "QInt"]}
    assert trace_of(entry(**unknown)).communications[0].input_bytes is None
    assert trace_of(entry(input_dtypes=[])).communications[0].input_bytes is None


def test_a_list_of_tensors_in_an_all_to_all_is_its_splits() -> None:
    lists: dict[str, Any] = {
        "input_sizes": [[1], [3], [2], [2]],
        "output_sizes": [[2]] * 4,
    }
    lists |= dict.fromkeys(("input_dtypes", "output_dtypes"), ["Float"] * 4)
    (call,) = trace_of(entry("nccl:all_to_all", **lists)).communications
    assert (call.input_bytes, call.input_splits, call.output_splits) == (32, (4, 12, 8, 8), ())


def test_a_barrier_sends_nothing_though_nccl_reduces_for_it() -> None:
    (call,) = trace_of(entry("nccl:all_reduce_barrier", input_sizes=[[1]])).communications
    assert (call.collective, call.input_bytes, call.output_bytes) == ("barrier", 0, 0)


def test_a_send_says_whose_dump_it_is_and_to_whom() -> None:
    group = {"7": {"name": "7", "desc": "pp", "ranks": "[3, 7, 11]"}}
    sent = entry("nccl:send 1->2", is_p2p=True, p2p_seq_id=9, process_group=["7", "pp"])
    received = entry("nccl:recv 1<-0", is_p2p=True, p2p_seq_id=10, process_group=["7", "pp"])
    trace = trace_of(sent, received, place="dump", pg_config=group)
    assert [
        (
            communication.collective,
            communication.rank,
            communication.peer,
            communication.sequence,
        )
        for communication in trace.communications
    ] == [
        ("send", 7, 11, 9),
        ("recv", 7, 3, 10),
    ]
    assert trace.warnings == ()
    assert trace.progress == ()  # numbers of sends are of pairs


def test_the_rank_that_is_in_all_groups_is_the_dumps() -> None:
    config = {
        **WORLD,
        "1": {"desc": "tp", "ranks": "[2, 3]"},
        "4": {"desc": "dp", "ranks": [1, 3]},
    }
    trace = trace_of(entry(), place="dump", pg_config=config)
    assert (trace.ranks, trace.warnings) == ((3,), ())


def test_marks_of_coalesced_calls_are_counted() -> None:
    trace = trace_of(entry("nccl:coalesced"), entry("nccl:all_gather_into_tensor_coalesced", 2))
    assert [communication.collective for communication in trace.communications] == [
        "all_gather"
    ]
    assert trace.not_taken == {flight_recorder.NOT_A_COLLECTIVE: 1}


def test_progress_is_the_last_call_and_what_the_status_knows_of_calls_that_are_gone() -> None:
    pending = entry(number=41, state="started", retired=False)
    (progress,) = trace_of(entry(number=40), pending).progress
    assert (progress.rank, progress.enqueued, progress.completed) == (2, 41, 40)
    status = {"0": {"last_enqueued_collective": "43", "last_completed_collective": 42}}
    (progress,) = trace_of(entry(number=40), pending, pg_status=status).progress
    assert (progress.enqueued, progress.completed) == (43, 42)
    (progress,) = trace_of(pending).progress
    assert (progress.enqueued, progress.completed) == (
        41,
        40,
    )  # what came before is not held any more


def test_the_status_of_groups_without_records_is_told_by_their_order() -> None:
    config = {
        **WORLD,
        "35": {"name": "35", "desc": "tp", "ranks": "[2, 3]"},
        "7": {"name": "7", "desc": "dp", "ranks": "[0, 2]"},
    }
    counts = {"last_enqueued_collective": 9, "last_completed_collective": 8}
    status = {"0": counts, "4": {**counts, "last_enqueued_collective": 10}, "11": counts}
    trace = trace_of(pg_config=config, pg_status=status)
    assert {row.group.name: row.enqueued for row in trace.progress} == {
        "0": 9,
        "7": 10,
        "35": 9,
    }
    # A record that contradicts the order, or a group without a status: nothing is made up.
    tp = entry(process_group=["35", "tp"], pg_id=4, collective_seq_id=3)
    trace = trace_of(tp, pg_config=config, pg_status=status)
    assert {row.group.name: row.enqueued for row in trace.progress} == {"35": 10}
    trace = trace_of(pg_config=config, pg_status={"0": counts, "4": counts})
    assert trace.progress == ()


# -- the dumps of Gloo --------------------------------------------------------------------------------------


@needs_traces
@pytest.mark.parametrize("rank", range(4))
def test_each_entry_of_gloo_is_a_call_and_its_gaps_are_told(rank: int) -> None:
    trace = read_traces([path_of(f"flight_recorder/gloo_4ranks_rank{rank}.json")])
    name = "flight_recorder/gloo_4ranks_rank{0,1,2,3}.json"
    assert len(trace.communications) == expected(name)["entries_rank0"]
    assert (trace.ranks, trace.world_size, trace.backend) == ((rank,), 4, "gloo")
    assert {communication.duration_seconds for communication in trace.communications} == {None}
    text = " ".join(warning.text for warning in trace.warnings)
    assert "sends are missing, a reduce_scatter is recorded as the all_reduce" in text
    assert "process groups are listed without their names" in text
    assert "its rank is taken from the file's name" in text
    # The size of a group that gathers is known, of others not; the one list without a name is no group's.
    assert {(group.description, group.size) for group in trace.groups} == {
        ("dp", 2),
        ("tp", 0),
        ("default_pg", 4),
    }


@needs_traces
def test_with_the_dumps_of_all_ranks_the_users_of_a_group_are_its_ranks() -> None:
    trace = read_traces([path_of("flight_recorder")])
    assert {group.name: group.ranks for group in trace.groups} == {
        "0": (0, 1, 2, 3),
        "1": (0, 1),
        "2": (2, 3),
        "3": (0, 2),
        "4": (1, 3),
    }
    assert {communication.group.size for communication in trace.communications} == {2, 4}
    assert any(
        "are not listed: those that use it" in warning.text for warning in trace.warnings
    )
    assert Counter(progress.enqueued for progress in trace.progress) == {10: 4, 8: 4, 2: 4}
    assert lag(trace, hang_of(trace)) == ()
