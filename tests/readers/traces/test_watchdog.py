"""Lines of ProcessGroupNCCL's watchdog, as torch 1.13 to 2.9 wrote them, in logs with anything around them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces import watchdog
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.file import TraceFile
from ccbench.readers.traces.hang import hang_of
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
