"""Summaries of TraceLens: means and counts of each kind of call, ranks joined by kind, damaged rows."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from ccbench.readers.traces import tracelens
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.fold import fold
from ccbench.readers.traces.reading import read_traces

LONG_COLUMNS = (
    "rank,Process Group Name,Process Group Ranks,Collective name,Group size,dtype,In msg nelems,"
    "Out msg nelems,In split size,Out split size,stream,In msg size (MB)_first,"
    "Out msg size (MB)_first,dur_sum,dur_mean,dur_std,dur_min,dur_max,operation_count"
)
LONG = "\n".join(
    [
        LONG_COLUMNS,
        '1,0,"[0, 1]",_allgather_base,2,BFloat16,1048576,2097152,[],[],24,2.0,4.0,2400.0,600.0,5.0,590.0,610.0,4',
        '0,0,"[0, 1]",allreduce,2,Float,262144,262144,[],[],24,1.0,1.0,900.0,300.0,2.0,299.0,302.0,3',
        '0,0,"[0, 1]",_allgather_base,2,BFloat16,1048576,2097152,[],[],24,2.0,4.0,800.0,200.0,5.0,190.0,210.0,4',
        '1,0,"[0, 1]",allreduce,2,Float,262144,262144,[],[],24,1.0,1.0,600.0,200.0,2.0,199.0,202.0,3',
        "",
    ]
)
SYNCED = """\
Collective name,dtype,In msg nelems,Process Group Name,Group size,Full msg size (MB),comm_latency_mean,\
comm_latency_std,skew in start time_mean,skew in start time_std,skew in end time_mean,skew in end time_std,\
algo bw (GB/s)_mean,algo bw (GB/s)_std,bus bw (GB/s)_mean,bus bw (GB/s)_std,count,Total comm latency (ms)
_allgather_base,BFloat16,3145728,0,8,48.0,396.5,10.1,1162.5,90.0,4.0,1.0,116.7,2.9,102.1,2.5,192,76.128
_reduce_scatter_base,Float,25165824,0,8,96.0,545.75,9.0,925.25,80.0,4.0,1.0,164.5,2.0,144.0,2.0,96,52.392
"""


def trace_of(text: str) -> Trace:
    data = text.encode()
    assert tracelens.recognises(data)
    return tracelens.read(TraceFile("summary.csv", data, io.BytesIO(data)))


def test_a_row_of_a_rank_is_its_mean_and_how_often_it_ran() -> None:
    first, *_ = trace_of(LONG).communications
    assert (first.rank, first.collective, first.group.ranks) == (1, "all_gather", (0, 1))
    assert (first.dtype, first.input_bytes, first.output_bytes) == (
        "bfloat16",
        2 << 20,
        4 << 20,
    )
    assert (first.duration_seconds, first.count, first.line) == (0.0006, 4, 2)


def test_ranks_are_joined_by_the_kind_of_call_though_rows_stand_by_duration(
    tmp_path: Path,
) -> None:
    path = tmp_path / "nccl_summary_long.csv"
    path.write_text(LONG)
    folded = fold(read_traces([path]))
    assert folded.warnings == ()
    assert [
        (job.case.collective, job.count, job.instances[0].seconds) for job in folded.cases
    ] == [("all_gather", 4, (0.0002, 0.0006)), ("all_reduce", 3, (0.0003, 0.0002))]


def test_a_row_of_all_ranks_has_the_larger_buffer_and_the_time_without_waiting() -> None:
    gather, scatter = trace_of(SYNCED).communications
    assert [w.kind for w in trace_of(SYNCED).warnings if "without waiting" in w.text]
    assert not trace_of(LONG).warnings
    assert (gather.rank, gather.group.size, gather.count) == (None, 8, 192)
    assert (gather.input_bytes, gather.output_bytes) == (6 << 20, 48 << 20)
    assert gather.duration_seconds == pytest.approx(396.5e-6)
    assert (scatter.input_bytes, scatter.output_bytes) == (96 << 20, 12 << 20)
    assert {job.case.ranks for job in fold(trace_of(SYNCED)).cases} == {8}


def test_uneven_splits_are_bytes_of_each_rank() -> None:
    text = LONG.replace("_allgather_base", "all_to_allv", 1).replace(
        "[],[]", '"[262144, 786432]","(1572864, 524288)"', 1
    )
    first, *_ = trace_of(text).communications
    assert (first.collective, first.input_splits) == ("all_to_all", (524288, 1572864))
    assert first.output_splits == (3145728, 1048576)


def test_what_has_no_name_or_no_type_is_said() -> None:
    text = SYNCED.replace("_allgather_base,BFloat16", "Unknown,Unknown")
    trace = trace_of(text)
    assert trace.not_taken == {"Unknown: no collective that ccbench measures": 192}
    assert len(trace.communications) == 1


@pytest.mark.parametrize(
    "dress", [lambda text: text.replace("\n", "\r\n"), lambda text: "\ufeff" + text]
)
def test_line_ends_and_marks_do_not_matter(dress: object) -> None:
    assert callable(dress)
    assert trace_of(dress(LONG)).communications == trace_of(LONG).communications


def test_a_cut_row_is_left_out_with_a_remark() -> None:
    trace = trace_of(SYNCED[:-30])
    assert len(trace.communications) == 1
    assert ("truncated", 3) in [(warning.kind, warning.line) for warning in trace.warnings]


def test_other_tables_are_no_summary() -> None:
    assert not tracelens.recognises(b"rank,Collective name,dtype\n0,allreduce,Float\n")
    assert not tracelens.recognises(b"comm_type,comm_group,comm_group_size,msg_size\n")
