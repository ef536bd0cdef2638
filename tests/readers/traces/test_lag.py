"""Jobs that hang: who is behind, who never joined, whose calls differ, and nothing where all is well."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccbench.findings import Finding
from ccbench.readers.traces.events import Communication, GroupProgress, ProcessGroup, Trace
from ccbench.readers.traces.hang import hang_of
from ccbench.readers.traces.lag import lag

GROUP = ProcessGroup("1", 4, (0, 1, 2, 3), "tp")


def progress(
    rank: int, enqueued: int | None, completed: int | None = None, **more: str
) -> GroupProgress:
    return GroupProgress(
        rank, GROUP, "", enqueued, enqueued if completed is None else completed, **more
    )


def call(
    rank: int, sequence: int, collective: str = "all_reduce", size: int = 2**20
) -> Communication:
    return Communication(rank, collective, collective, GROUP, "", size, size, sequence=sequence)


def job(*rows: GroupProgress, calls: tuple[Communication, ...] = ()) -> tuple[Finding, ...]:
    ranks = tuple(sorted({row.rank for row in rows}))
    trace = Trace(("flight-recorder",), ("a",), calls, ranks, progress=rows)
    return lag(trace, hang_of(trace))


def test_ranks_that_came_as_far_as_all_others_are_no_finding() -> None:
    assert job(*(progress(rank, 42) for rank in range(4))) == ()


def test_a_rank_that_made_fewer_calls_is_named_with_the_call_it_lacks() -> None:
    rows = [progress(rank, 42 - (rank == 3), 41) for rank in range(4)]
    (finding,) = job(*rows, calls=(call(0, 42),))
    assert (finding.severity, finding.kind, finding.devices) == (
        "problem",
        "rank_behind",
        ("rank 3",),
    )
    assert finding.subject == (
        "Rank 3 stopped before call 42 of process group '1' (tp), all_reduce of 1 MiB"
    )
    assert finding.evidence == "3 ranks wait for it"
    assert "py-spy" in finding.advice


def test_sends_have_numbers_of_their_own() -> None:
    calls = (call(0, 7, "send"), call(1, 7, "recv"), call(2, 7))
    assert job(*(progress(rank, 7) for rank in range(4)), calls=calls) == ()


def test_counts_of_a_running_job_are_a_doubt() -> None:
    rows = [GroupProgress(rank, GROUP, "AllReduce", 6650 - (rank == 1)) for rank in range(4)]
    (finding,) = job(*rows)
    assert (finding.severity, finding.devices) == ("doubt", ("rank 1",))
    assert finding.evidence == "others made 6650 AllReduce calls, rank 1 made 6649"


def test_what_a_trace_says_is_wrong_with_a_rank_is_told() -> None:
    rows = [GroupProgress(rank, GROUP, "AllReduce", 5) for rank in range(3)]
    (finding,) = job(
        *rows, GroupProgress(3, GROUP, place="node7, process 9", trouble="unresponsive")
    )
    assert finding.subject == "Rank 3 of process group '1' (tp) is unresponsive"
    assert (finding.severity, finding.evidence) == ("problem", "node7, process 9")


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


def test_problems_come_before_doubts_and_notes() -> None:
    silent = GroupProgress(1, GROUP, place="node7", trouble="unresponsive")
    counts = [GroupProgress(rank, GROUP, "AllReduce", 6 - (rank == 0)) for rank in (0, 2, 3)]
    assert [finding.severity for finding in job(*counts, silent)] == ["problem", "doubt"]
