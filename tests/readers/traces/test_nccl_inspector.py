"""Records of NCCL's Inspector: sizes, times, ranks of the job from its largest communicator."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from ccbench.readers.traces import nccl_inspector
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.join import instances
from ccbench.readers.traces.one_job import one_job

PERF = {
    "coll_sn": 7,
    "coll_msg_size_bytes": 1024,
    "coll_exec_time_us": 50,
    "coll_timing_source": "kernel_gpu",
}


def record(coll: str = "AllReduce", **more: Any) -> dict[str, Any]:
    header = {"id": "0xabc", "rank": 2, "n_ranks": 8, "nnodes": 1}
    metadata = {"inspector_output_format_version": "v4.0", "hostname": "node7", "pid": 99}
    return {
        "header": {**header, **more.pop("header", {})},
        "metadata": {**metadata, **more.pop("metadata", {})},
        "coll_perf": {"coll": coll, **PERF, **more},
    }


def trace_of(*records: dict[str, Any], end: str = "\n") -> Trace:
    data = ("\n".join(map(json.dumps, records)) + end).encode()
    assert nccl_inspector.recognises(data)
    return nccl_inspector.read(TraceFile("node7-pid99.log", data[:65536], io.BytesIO(data)))


@pytest.mark.parametrize(
    ("coll", "name", "input_bytes", "output_bytes"),
    [
        # NCCL's count is of one block where a collective has one for each rank.
        ("AllReduce", "all_reduce", 1024, 1024),
        ("AllGather", "all_gather", 1024, 8192),
        ("ReduceScatter", "reduce_scatter", 8192, 1024),
        ("AlltoAll", "all_to_all", 8192, 8192),
        ("Broadcast", "broadcast", 1024, 1024),
        ("Reduce", "reduce", 1024, 1024),
    ],
)
def test_bytes_of_a_rank_from_the_count_of_the_call(
    coll: str, name: str, input_bytes: int, output_bytes: int
) -> None:
    (call,) = trace_of(record(coll)).communications
    assert (call.collective, call.input_bytes, call.output_bytes) == (
        name,
        input_bytes,
        output_bytes,
    )


def test_the_busbw_of_the_record_is_that_of_these_bytes() -> None:
    # The plug-in's own example (README.md): 2 GiB x 8 ranks / 41057 us = 418.44 GB/s.
    performance = {"coll_msg_size_bytes": 2147483648, "coll_exec_time_us": 41057}
    (call,) = trace_of(record("ReduceScatter", **performance)).communications
    assert call.input_bytes is not None
    assert call.duration_seconds is not None
    assert call.input_bytes / call.duration_seconds / 1e9 == pytest.approx(418.439467)


def test_a_record_has_a_number_and_no_start_unless_it_is_verbose() -> None:
    events = {
        "kernel_events": [{"kernel_start_ts": 3_000_000}, {"kernel_start_ts": 2_000_000}, {}]
    }
    trace = trace_of(
        record(), record(coll_sn=8, event_trace_ts=events, coll_algo="RING", coll_proto="LL")
    )
    bare, verbose = trace.communications
    assert (bare.sequence, bare.start_seconds, bare.duration_seconds) == (7, None, 5e-05)
    assert (verbose.start_seconds, verbose.algorithm, verbose.protocol) == (2.0, "ring", "ll")
    assert trace.versions == {"nccl inspector": "v4.0"}


def test_ranks_are_those_of_the_largest_communicator() -> None:
    half = {"id": "0xdef", "rank": 0, "n_ranks": 4, "comm_name": "TP 1"}
    trace = trace_of(record(), record(header=half))
    assert [communication.rank for communication in trace.communications] == [2, 2]
    assert (trace.ranks, trace.world_size) == ((2,), 8)
    assert [communication.group.ranks for communication in trace.communications] == [
        tuple(range(8)),
        (),
    ]
    assert trace.communications[1].group.description == "TP 1"
    assert [warning.kind for warning in trace.warnings] == ["assumed"]


def test_a_process_of_several_gpus_has_no_rank_outside_of_the_largest_communicator() -> None:
    both = [record(header={"rank": rank}) for rank in (2, 3)]
    trace = trace_of(*both, record(header={"id": "0xdef", "rank": 0, "n_ranks": 4}))
    assert [communication.rank for communication in trace.communications] == [2, 3, None]


def test_two_communicators_of_all_ranks_leave_ranks_open() -> None:
    trace = trace_of(record(), record(header={"id": "0xdef"}))
    assert [communication.rank for communication in trace.communications] == [None, None]
    assert [warning.kind for warning in trace.warnings] == ["not_visible"]


def test_sends_have_their_partner() -> None:
    sent = {
        "p2p": "Send",
        "p2p_sn": 3,
        "p2p_peer": 5,
        "p2p_msg_size_bytes": 64,
        "p2p_exec_time_us": 9,
    }
    message = {"header": record()["header"], "metadata": record()["metadata"], "p2p_perf": sent}
    (call,) = trace_of(message).communications
    assert (call.collective, call.rank, call.peer, call.input_bytes, call.sequence) == (
        "send",
        2,
        5,
        64,
        3,
    )


def test_times_that_the_host_took_are_told() -> None:
    trace = trace_of(record(), record(coll_timing_source="collective_cpu"))
    assert "1 of 2 durations were taken by the host" in trace.warnings[0].text


def test_collectives_of_several_ranks_are_joined_though_each_kind_counts_by_itself() -> None:
    def of(rank: int, order: tuple[str, str]) -> Trace:
        made = [
            record(coll, header={"rank": rank, "n_ranks": 2}, metadata={"pid": rank})
            for coll in order
        ]
        return trace_of(*made)

    joined, warnings = instances(
        one_job([of(0, ("AllReduce", "AllGather")), of(1, ("AllGather", "AllReduce"))])
    )
    assert warnings == ()
    assert sorted(
        (instance.records[0].collective, len(instance.records)) for instance in joined
    ) == [
        ("all_gather", 2),
        ("all_reduce", 2),
    ]


def test_other_and_damaged_records_are_told() -> None:
    trace = trace_of(
        record(), record("Invalid"), record(coll_msg_size_bytes="?"), end='\n{"header":\n\n{"he'
    )
    assert len(trace.communications) == 1
    assert trace.not_taken == {nccl_inspector.NOT_A_COLLECTIVE: 2}
    assert [(warning.kind, warning.line) for warning in trace.warnings if warning.line] == [
        ("damaged_line", 4),
        ("truncated", 6),
    ]
