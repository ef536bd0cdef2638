"""What the leader makes of what its ranks tell."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from multiprocessing import Pipe

import numpy as np
import pytest

from ccbench.backends.base import TeamLaunch, TeamRequest
from ccbench.cases.axes import OVERLAP, OVERLAP_PARTS, Case
from ccbench.cases.measurement import CaseFacts, Conditions, Sampling, Status
from ccbench.errors import BackendUnavailable
from ccbench.runner.measure import RankResult
from ccbench.runner.workers.channel import Peer
from ccbench.runner.workers.leader import Leader
from ccbench.runner.workers.messages import Hello, RankReport, Ready, this_place
from ccbench.runner.workers.reports import crowded, one_version, parts_of, wrong_elements_of
from ccbench.verification import Mismatch

CASE = Case(
    "s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 4, groups="rank // 2"
)
STAMPS = np.array([[[0.0, 1.0]], [[0.5, 2.0]], [[0.0, 5.0]], [[1.0, 6.0]]])
RESULT = RankResult(STAMPS, (), 0.0, 2, "", None, 0.0)


def test_groups_are_timed_by_the_stamps_of_their_ranks() -> None:
    names, samples = parts_of(CASE, CaseFacts(), RESULT)
    assert names == ("ranks 0-1", "ranks 2-3")
    assert samples == ((1.0,), (3.0,))


def test_what_an_endpoint_says_goes_before_stamps() -> None:
    facts = CaseFacts(parts=("one", "other"), group_samples_seconds=((1.0,), (2.0,)))
    assert parts_of(CASE, facts, RESULT) == (facts.parts, facts.group_samples_seconds)


def test_what_measuring_took_apart_goes_before_both() -> None:
    apart = np.array([[[[0.0, 4.0]], [[0.0, 8.0]], [[0.0, 2.0]], [[0.0, 2.0]]]] * 4)
    apart[2, 1, 0, 1] = 10.0
    facts = CaseFacts(parts=("one",), group_samples_seconds=((1.0,),))
    case, result = replace(CASE, mode=OVERLAP), replace(RESULT, part_stamps=apart)
    assert parts_of(case, facts, result) == (OVERLAP_PARTS, ((2.0,), (5.0,), (1.0,), (1.0,)))


def test_wrong_elements_are_added_up_where_there_was_something_to_compare() -> None:
    wrong = replace(RESULT, mismatch=Mismatch(1, 3, 0, "1", "2"))
    assert wrong_elements_of(CASE, [RESULT, wrong, wrong]) == 6
    assert wrong_elements_of(replace(CASE, count=0), [RESULT]) is None
    assert (
        wrong_elements_of(replace(CASE, collective="barrier", op="none", count=0), [RESULT])
        == 0
    )


@pytest.mark.timeout(60)
def test_a_rank_that_stays_stopped_is_not_waited_for_until_a_distant_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ccbench.runner.workers.leader.STOPPED_SECONDS", 0.1)
    monkeypatch.setattr("ccbench.runner.workers.leader.LOOK_SECONDS", 0.01)
    leader = Leader(TeamRequest("cpu", 2))
    ends = [Pipe(), Pipe()]
    runner = Pipe()
    with subprocess.Popen(["sleep", "600"]) as rank:
        os.kill(rank.pid, signal.SIGSTOP)
        places = [replace(this_place(), pid=process) for process in (os.getpid(), rank.pid)]
        leader.members = [
            Peer(Hello(place), end[0]) for place, end in zip(places, ends, strict=True)
        ]
        try:
            measurement, usable = leader.run(
                CASE, Sampling(time_limit_seconds=10_000.0), runner[0]
            )
        finally:
            rank.kill()
    assert (measurement.status, usable) == (Status.TIMED_OUT, False)
    assert f"rank 1 (process {rank.pid}) is stopped by a signal" in measurement.detail
    for connection in (*ends[0], *ends[1], *runner):
        connection.close()


CALM = Conditions()


def report(
    rank: int, status: Status = Status.OK, detail: str = "", conditions: Conditions = CALM
) -> RankReport:
    """Of one of two ranks, of which the first alone keeps the stamps."""
    stamps = np.cumsum(np.ones((2, 3 if rank == 0 else 0, 2)), axis=2)
    result = RankResult(stamps, (), 0.0, 1, "enough", None, 1.0)
    return RankReport(status, detail, result, conditions=conditions)


BARRIER = Case("s", "cpu", "barrier", "default", "int8", "sum", 0, 0, 2)


def test_hosts_with_different_libraries_are_refused_by_name() -> None:
    assert one_version("mpi", ["x 1", "x 1"], ["a", "b"]) == "x 1"
    with pytest.raises(BackendUnavailable, match="rank 0 on a has x 1, rank 1 on b has x 2"):
        one_version("mpi", ["x 1", "x 2"], ["a", "b"])


def test_ranks_that_are_bound_to_a_processor_each_have_the_room_of_all_of_them() -> None:
    bound = [Ready("x 1", (number,)) for number in (0, 1, 0, 1)]
    assert not crowded(["a", "a", "b", "b"], bound)
    assert crowded(["a", "a", "b", "b"], [*bound[:3], Ready("x 1", (0,))])


def test_what_other_programs_do_on_any_host_makes_a_case_doubtful() -> None:
    leader = Leader(TeamRequest("mpi", 2, TeamLaunch(("launcher",), several_hosts=True)))
    leader.hosts = ("a", "b")

    reports = {
        rank: report(
            rank,
            conditions=Conditions(
                other_cpu_share=0.5 * rank, steal_share=0.0, watched_cpu_seconds=5.0
            ),
        )
        for rank in (0, 1)
    }
    composed = leader.composed(replace(BARRIER, backend="mpi"), reports)
    assert "other_load" in composed.conditions.flags
