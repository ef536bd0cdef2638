"""Lines of ProcessGroupNCCL's watchdog, as torch 1.13 to 2.9 wrote them, in logs with anything around them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces import watchdog
from ccbench.readers.traces.events import ProcessGroup, Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.hang import BEFORE, DIFFER, IN, OPEN, hang_of
from ccbench.readers.traces.reading import read_traces


def read(*lines: str) -> Trace:
    data = "\n".join(lines).encode()
    return watchdog.read(TraceFile("log.txt", data[:65536], io.BytesIO(data)))


def timeout(rank: int, sequence: int, words: str = "NumelIn=112, NumelOut=112, ") -> str:
    return (
        f"[rank{rank}]:[E101 00:00:00.000000001 ProcessGroupNCCL.cpp:629] [Rank {rank}] Watchdog caught "
        f"collective operation timeout: WorkNCCL(SeqNum={sequence}, OpType=BROADCAST, {words}"
        "Timeout(ms)=1800000) ran for 1800010 milliseconds before timing out."
    )


def status(rank: int, enqueued: int, completed: int) -> str:
    return (
        f"[rank{rank}]:[E101 00:00:00.000000002 ProcessGroupNCCL.cpp:2268] [PG ID 0 PG GUID 0(default_pg) Rank "
        f"{rank}]  failure detected by watchdog at work sequence id: {completed + 1} PG status: last enqueued "
        f"work: {enqueued}, last completed work: {completed}"
    )


WORLD = ProcessGroup("0", 0, (), "default_pg")

PREFIXES = {
    "2.5 on": ("[PG ID 0 PG GUID 7(dp) Rank 3] ", "7", "dp"),
    "2.4": ("[PG 7 (dp) Rank 3] ", "7", "dp"),
    "2.3": ("[PG 7 Rank 3] ", "7", ""),
}

STATUSES = {
    "2.7 on": " failure detected by watchdog at work sequence id: 6 PG status: last enqueued work: 8, "
    "last completed work: 5",
    "2.4": "Exception (either an error or timeout) detected by watchdog at work: 6, last enqueued NCCL work: 8, "
    "last completed NCCL work: 5.",
    "2.3": "Timeout at NCCL work: 6, last enqueued NCCL work: 8, last completed NCCL work: 5.",
    "a dump signal": "Received a dump signal due to a collective timeout from rank 0 and we will try our best to "
    "dump the debug info. Last enqueued NCCL work: 8, last completed NCCL work: 5.This is most likely caused by",
}


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=PREFIXES)
@pytest.mark.parametrize("words", STATUSES.values(), ids=STATUSES)
@pytest.mark.parametrize("before", ["", "node3: 2026-01-01 [80746] ", "\x1b[31m1: "])
def test_the_progress_of_a_rank_is_read_in_every_form(
    prefix: tuple[str, str, str], words: str, before: str
) -> None:
    line = f"{before}[rank11]:[E101 ProcessGroupNCCL.cpp:1664] {prefix[0]}{words}"
    assert watchdog.recognises(line.encode())
    (row,) = read("loss 2.6", line, "Traceback").progress
    assert (row.rank, row.group.name, row.group.description) == (11, *prefix[1:])
    assert (row.enqueued, row.completed, row.place) == (8, 5, "log.txt:2")


@pytest.mark.parametrize(
    ("words", "elements"),
    [
        ("", None),
        ("TensorShape=[4, 28], ", 112),
        ("NumelIn=28, NumelOut=112, ", 112),
        ("TensorShape=[], ", None),
    ],
)
def test_the_call_that_timed_out_is_read_in_every_form(
    words: str, elements: int | None
) -> None:
    (call,) = read(timeout(2, 9, words)).communications
    assert (call.rank, call.collective, call.sequence, call.elements) == (
        2,
        "broadcast",
        9,
        elements,
    )


@pytest.mark.parametrize(
    ("operation", "collective"),
    [
        ("ALLREDUCE", "all_reduce"),
        ("_ALLGATHER_BASE", "all_gather"),
        ("_REDUCE_SCATTER_BASE", "reduce_scatter"),
        ("ALLTOALL_BASE", "all_to_all"),
        ("COALESCED", ""),
    ],
)
def test_operations_have_their_names(operation: str, collective: str) -> None:
    (call,) = read(timeout(0, 3).replace("BROADCAST", operation)).communications
    assert call.collective == collective


def test_the_group_of_a_call_is_that_in_which_it_is_open() -> None:
    other = status(1, 9, 9).replace("PG ID 0 PG GUID 0(default_pg)", "PG ID 1 PG GUID 5(tp)")
    (call,) = read(timeout(1, 4), other, status(1, 4, 3)).communications
    assert call.group == WORLD


def test_the_rank_that_is_behind_is_named_and_ranks_without_a_line_are_not() -> None:
    trace = read(timeout(1, 4), status(1, 4, 3), status(2, 3, 2))
    hang = hang_of(trace)
    assert hang is not None
    assert [(cause.kind, cause.ranks, cause.sequence) for cause in hang.causes] == [
        (IN, (2,), 3)
    ]
    assert hang.sentence == (
        "rank 2 stopped in call 3 of process group '0' (default_pg): rank 1 completed it, 1 rank waits for it "
        "in call 4, broadcast of 112 elements"
    )
    assert trace.warnings == ()


@pytest.mark.parametrize("before", [0, 3000])
def test_ranks_without_a_line_are_not_seen_and_a_line_counts_however_late_it_is(
    before: int, tmp_path: Path
) -> None:
    """One log of each rank or one of all: what is missing is told of the job."""
    for name, lines in {"a": [timeout(1, 4), status(1, 4, 3)], "b": [status(2, 3, 3)]}.items():
        (tmp_path / name).write_text("step of training, loss 2.6\n" * before + "\n".join(lines))
    trace = read_traces([tmp_path / "a", tmp_path / "b"])
    assert (trace.kinds, trace.ranks) == (("nccl-watchdog",), (1, 2))
    assert [warning.text for warning in trace.warnings] == [
        "nothing is here of ranks 0 and of those above 2, if there are: they are not seen"
    ]
    hang = hang_of(trace)
    assert hang is not None
    assert hang.ranks == (2,)


def test_a_rank_that_completed_all_it_made_stopped_before_the_call() -> None:
    hang = hang_of(read(timeout(0, 4), status(0, 4, 3), status(1, 3, 3)))
    assert hang is not None
    assert [(cause.kind, cause.ranks, cause.sequence) for cause in hang.causes] == [
        (BEFORE, (1,), 4)
    ]


def test_ranks_that_all_time_out_in_one_call_do_not_clear_those_that_are_not_seen() -> None:
    hang = hang_of(read(*(timeout(rank, 4) for rank in range(4))))
    assert hang is not None
    assert [cause.kind for cause in hang.causes] == [OPEN]
    assert hang.sentence == (
        "ranks 0-3 made call 4 of a process group, broadcast of 112 elements, and did not complete it; "
        "nothing shows who is behind"
    )


def test_calls_that_differ_are_the_cause() -> None:
    hang = hang_of(read(timeout(0, 4), timeout(1, 4).replace("BROADCAST", "ALLREDUCE")))
    assert hang is not None
    assert [cause.kind for cause in hang.causes] == [DIFFER]


def test_lines_without_the_rank_of_the_job_have_their_place_for_it_and_say_so() -> None:
    trace = read(timeout(1, 4).partition("]:")[2])
    assert trace.ranks == (1,)
    assert [warning.kind for warning in trace.warnings] == ["assumed"]


@given(
    st.lists(st.sampled_from([timeout(0, 4), status(1, 3, 3), "Watchdog caught"])), st.data()
)
def test_lines_that_are_cut_or_changed_are_read_or_left_out(
    lines: list[str], data: st.DataObject
) -> None:
    text = "\n".join(lines)
    at = data.draw(st.integers(0, len(text)))
    trace = read(
        text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 3)) :]
    )
    assert len(trace.progress) <= 4
    hang_of(trace)
