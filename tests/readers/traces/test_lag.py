"""Jobs that hang: who is behind, who never joined, whose calls differ, and nothing where all is well."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.findings import Finding
from ccbench.readers.traces.events import Communication, GroupProgress, ProcessGroup, Trace
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
    return lag(Trace(("flight-recorder",), ("a",), calls, ranks, progress=rows))


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
    assert finding.subject == "Rank 3 is behind in process group '1' (tp)"
    assert (
        finding.evidence
        == "others made 42 calls, rank 3 made 41; call 42 is all_reduce of 1 MiB"
    )
    assert "py-spy" in finding.advice


def test_ranks_that_are_differently_far_behind_are_told_apart() -> None:
    (finding,) = job(progress(0, 9), progress(1, 7), progress(2, 5), progress(3, 7))
    assert finding.subject == "Ranks 1-3 are behind in process group '1' (tp)"
    assert finding.evidence == "others made 9 calls, rank 2 made 5, ranks 1, 3 made 7"


def test_a_rank_that_never_joined_made_none() -> None:
    rows = [progress(rank, 3) for rank in (0, 1, 2)]
    absent = GroupProgress(3, ProcessGroup("0", 4, (0, 1, 2, 3)), "", 8, 8)
    behind = [finding for finding in job(*rows, absent) if finding.kind == "rank_behind"]
    assert [
        (finding.devices, finding.evidence) for finding in behind if "'1'" in finding.subject
    ] == [(("rank 3",), "others made 3 calls, rank 3 made 0")]


def test_a_rank_without_a_dump_is_not_said_to_be_behind() -> None:
    (finding,) = job(*(progress(rank, 3) for rank in (0, 1, 2)))
    assert (finding.severity, finding.kind, finding.devices) == (
        "doubt",
        "no_dump",
        ("rank 3",),
    )
    assert finding.evidence == "3 of 4 ranks left a dump"


def test_a_call_that_all_made_and_some_did_not_complete() -> None:
    rows = [progress(rank, 42, 41 if rank in (1, 2) else 42) for rank in range(4)]
    (finding,) = job(*rows, calls=(call(0, 42, "all_gather"),))
    assert (finding.severity, finding.kind, finding.devices) == (
        "doubt",
        "not_completed",
        ("rank 1", "rank 2"),
    )
    assert (
        finding.subject
        == "All ranks of process group '1' (tp) made call 42, and ranks 1-2 did not complete it"
    )
    assert finding.evidence == "call 42 is all_gather of 1 MiB"


@pytest.mark.parametrize("differing", [call(2, 7, "broadcast"), call(2, 7, size=4096)])
def test_a_call_that_differs_between_ranks_is_told_once_a_group(
    differing: Communication,
) -> None:
    calls = (call(0, 7), call(1, 7), differing, call(3, 7), call(0, 8), call(2, 8, "barrier"))
    (finding,) = job(*(progress(rank, 8) for rank in range(4)), calls=calls)
    assert (finding.severity, finding.kind, finding.devices) == (
        "problem",
        "calls_differ",
        ("rank 2",),
    )
    assert finding.subject == "Call 7 of process group '1' (tp) is not the same on all ranks"
    assert "all_reduce of 1 MiB on ranks 0-1, 3" in finding.evidence


@pytest.mark.parametrize("collective", ["all_to_all", "gather", "reduce", "scatter"])
def test_sizes_that_may_differ_are_not_compared(collective: str) -> None:
    calls = (call(0, 7, collective, 5), call(1, 7, collective, 6))
    assert job(*(progress(rank, 7) for rank in range(4)), calls=calls) == ()


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


@given(
    st.dictionaries(
        st.integers(0, 5), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6
    )
)
def test_exactly_the_ranks_with_fewer_calls_are_behind(
    came: dict[int, tuple[int, int]],
) -> None:
    group = ProcessGroup("1", len(came), tuple(came))
    rows = [GroupProgress(rank, group, "", *both) for rank, both in came.items()]
    findings = lag(Trace(("x",), (), (), tuple(sorted(came)), progress=tuple(rows)))
    front = max((enqueued for enqueued, _ in came.values()), default=0)
    late = {f"rank {rank}" for rank, (enqueued, _) in came.items() if enqueued < front}
    assert {
        device
        for finding in findings
        if finding.kind == "rank_behind"
        for device in finding.devices
    } == late
