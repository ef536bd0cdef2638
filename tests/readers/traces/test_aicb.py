"""Tables of aicb: measured logs and workloads, rows that send nothing, rows that are damaged."""

from __future__ import annotations

import io
from collections import Counter

import pytest

from ccbench.readers.traces import aicb
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.reading import read_traces
from tests.readers.traces.recorded import expected, needs_traces, path_of

COLUMNS = "comm_type,comm_group,comm_group_size,msg_size,stage,dst,src,additional,_elapsed_time,algbw,busbw,count"


def row(
    word: str = "all_gather",
    size: object = 64,
    elapsed: object = 0.5,
    ranks: object = 4,
    more: str = "",
) -> str:
    return f"CommType.{word},CommGroup.tp_group,{ranks},{size},forward,None,None,{more},{elapsed},0.0,0.0,1"


def trace_of(*lines: str) -> Trace:
    data = "".join(f"{line}\n" for line in lines).encode()
    assert aicb.recognises(data)
    return aicb.read(TraceFile("log.csv", data, io.BytesIO(data)))


def test_a_row_is_a_call_with_its_time_and_both_buffers() -> None:
    (call,) = trace_of(COLUMNS, row()).communications
    assert (call.collective, call.group.name, call.group.size, call.line) == (
        "all_gather",
        "tp_group",
        4,
        2,
    )
    # The size is the larger buffer, as that of nccl-tests.
    assert (call.input_bytes, call.output_bytes, call.duration_seconds, call.rank) == (
        16,
        64,
        0.0005,
        None,
    )


@pytest.mark.parametrize(
    ("word", "input_bytes", "output_bytes"),
    [
        ("reduce_scatter_tensor", 64, 16),
        ("all_gather_into_tensor", 16, 64),
        ("all_reduce", 64, 64),
        ("all_to_all", 64, 64),
        ("broadcast", 64, 64),
        ("isend", 64, 64),
    ],
)
def test_buffers_of_other_calls(word: str, input_bytes: int, output_bytes: int) -> None:
    (call,) = trace_of(COLUMNS, row(word)).communications
    assert (call.input_bytes, call.output_bytes) == (input_bytes, output_bytes)


def test_a_group_of_unknown_size_leaves_the_smaller_buffer_open() -> None:
    (call,) = trace_of(COLUMNS, row(ranks="None")).communications
    assert (call.group.size, call.input_bytes, call.output_bytes) == (0, None, 64)


@pytest.mark.parametrize(
    ("elapsed", "more"), [("None", ""), (0, "overlap"), (0.0, ""), ("nan", ""), (-1, "")]
)
def test_no_time_is_none(elapsed: object, more: str) -> None:
    (call,) = trace_of(COLUMNS, row(elapsed=elapsed, more=more)).communications
    assert call.duration_seconds is None


def test_a_workload_names_its_ranks_first_and_older_ones_no_size_of_groups() -> None:
    trace = trace_of("[rank0 ~ rank127]", COLUMNS, row(elapsed="None"))
    assert trace.world_size == 128
    old = COLUMNS.replace("comm_group_size,", "")
    (call,) = trace_of(
        old, "CommType.all_reduce,CommGroup.dp_group,4096,warmup,None,None,,None,None,None,1"
    ).communications
    assert (call.group.size, call.input_bytes) == (0, 4096)


def test_epochs_and_computing_send_nothing() -> None:
    computing = (
        "CommType.computation,CommGroup.all,None,((16 16) (16 16)),forward,None,None,,5,0,0,1"
    )
    trace = trace_of(
        COLUMNS, row("epoch_end", 0, 2000), computing, row("epoch_end", 0, 4000), row()
    )
    assert len(trace.communications) == 1
    assert trace.not_taken == {aicb.NOT_A_COLLECTIVE: 1}
    assert trace.facts == {"epochs": "2, median 3 s"}


def test_damaged_rows_are_told_and_left_out() -> None:
    trace = trace_of(
        COLUMNS,
        row(size="many"),
        "CommType.all_gather,CommGroup.tp_group",
        "",
        row(),
        row(size=-1),
    )
    assert len(trace.communications) == 1
    assert [(warning.kind, warning.line) for warning in trace.warnings] == [
        ("damaged_line", i) for i in (2, 3, 4, 6)
    ]


@needs_traces
def test_every_row_of_a_real_log_is_a_call_or_the_end_of_an_epoch() -> None:
    name = "aicb/A100_example.csv"
    trace = read_traces([path_of(name)])
    counts = expected(name)
    assert (
        Counter(communication.collective for communication in trace.communications)
        == counts["collectives"]
    )
    epochs = int(trace.facts["epochs"].partition(",")[0])
    assert len(trace.communications) + epochs == counts["rows"]
    cases = {
        (
            communication.collective,
            communication.group,
            max(communication.input_bytes or 0, communication.output_bytes or 0),
        )
        for communication in trace.communications
    }
    assert len(cases) == counts["distinct_cases"]
    assert all(communication.duration_seconds for communication in trace.communications)
    assert trace.warnings == ()
