"""Jobs that hang: who is behind, who never joined, whose calls differ, and nothing where all is well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces.events import GroupProgress, ProcessGroup, Trace
from ccbench.readers.traces.lag import lag

GROUP = ProcessGroup("1", 4, (0, 1, 2, 3), "tp")


def progress(
    rank: int, enqueued: int | None, completed: int | None = None, **more: str
) -> GroupProgress:
    return GroupProgress(
        rank, GROUP, "", enqueued, enqueued if completed is None else completed, **more
    )


@given(st.dictionaries(st.integers(0, 5), st.integers(0, 9), max_size=6))
def test_exactly_the_ranks_with_fewer_calls_are_behind(came: dict[int, int]) -> None:
    group = ProcessGroup("1", len(came), tuple(came))
    rows = [
        GroupProgress(rank, group, "AllReduce", enqueued) for rank, enqueued in came.items()
    ]
    trace = Trace(("x",), (), (), tuple(sorted(came)), progress=tuple(rows))
    front = max(came.values(), default=0)
    late = {f"rank {rank}" for rank, enqueued in came.items() if enqueued < front}
    assert {device for finding in lag(trace, None) for device in finding.devices} == late
