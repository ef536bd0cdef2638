"""What the leader of a launched team makes of what its ranks tell."""

from __future__ import annotations

import numpy as np
import pytest

from ccbench.backends.base import Launch
from ccbench.cases import Case, Conditions, Status
from ccbench.errors import BackendUnavailable
from ccbench.runner.measure import RankResult
from ccbench.runner.workers.leader import Leader
from ccbench.runner.workers.messages import GroupRequest, RankReport, Ready
from ccbench.runner.workers.reports import crowded, one_version


def test_hosts_with_different_libraries_are_refused_by_name() -> None:
    assert one_version("mpi", ["x 1", "x 1"], ["a", "b"]) == "x 1"
    with pytest.raises(BackendUnavailable, match="rank 0 on a has x 1, rank 1 on b has x 2"):
        one_version("mpi", ["x 1", "x 2"], ["a", "b"])


@pytest.mark.parametrize(
    ("each", "processors", "quota", "is_crowded"),
    [
        (8, 8, None, False),  # more ranks than the leader's host has processors, but none too many anywhere
        (9, 8, None, True),
        (8, 16, 4.0, True),
        (8, 16, 8.5, False),
        (8, 0, None, False),
    ],
)
def test_several_hosts_are_crowded_where_one_has_more_ranks_than_room(
    each: int, processors: int, quota: float | None, is_crowded: bool
) -> None:
    roomy = [Ready("x 1", tuple(range(64)))] * each
    told = [Ready("x 1", tuple(range(processors)), quota)] * each
    assert crowded(["a"] * each + ["b"] * each, [*roomy, *told]) is is_crowded


def test_ranks_that_are_bound_to_a_processor_each_have_the_room_of_all_of_them() -> None:
    bound = [Ready("x 1", (number,)) for number in (0, 1, 0, 1)]
    assert not crowded(["a", "a", "b", "b"], bound)
    assert crowded(["a", "a", "b", "b"], [*bound[:3], Ready("x 1", (0,))])


def test_what_other_programs_do_on_any_host_makes_a_case_doubtful() -> None:
    leader = Leader(GroupRequest("mpi", 2, Launch(("launcher",), several_hosts=True)))
    leader.hosts = ("a", "b")

    def report(rank: int) -> RankReport:
        stamps = np.cumsum(np.ones((2, 3 if rank == 0 else 0, 2)), axis=2)
        result = RankResult(rank, stamps, (), 0.0, 1, "enough", None, 1.0)
        load = Conditions(other_cpu_share=0.5 * rank, steal_share=0.0, watched_cpu_seconds=5.0)
        return RankReport(Status.OK, "", "dissemination", result, conditions=load)

    case = Case("s", "mpi", "barrier", "default", "int8", "sum", 0, 0, 2)
    composed = leader.composed(case, {rank: report(rank) for rank in (0, 1)})
    assert "other_load" in composed.conditions.flags
