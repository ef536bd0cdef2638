"""MPI's new company: uneven blocks, one group alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccbench.backends.mpi import BACKEND
from ccbench.cases.axes import UNEVEN
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.runner.workers.team import WorkerTeam
from tests.backends.measuring import REFUSED
from tests.backends.mpi.test_teams import SHORT, case_of, lent, team

NO_MPI = BACKEND.unavailable()
pytestmark = pytest.mark.skipif(NO_MPI is not None, reason=f"no MPI here: {NO_MPI}")


@pytest.fixture(scope="module")
def four() -> Iterator[WorkerTeam]:
    yield from lent(team(4))


def ran(opened: WorkerTeam, name: str, **changes: Any) -> Measurement:
    rooted = COLLECTIVES[name].rooted
    case = case_of(name, **{"ranks": 4, "root": 1 if rooted else -1, **changes})
    assert BACKEND.unsupported(case) is None
    measurement = opened.run(case, SHORT)
    assert measurement.status is Status.OK, f"{case.label}: {measurement.detail}"
    compared = case.count > 0 or not COLLECTIVES[name].moves_data
    assert measurement.wrong_elements == (0 if compared else None)
    assert len(measurement.rank_samples_seconds) in (2, 4)
    return measurement


# -- uneven blocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "traffic",
    ["", "zipf:1.2", "hot:1", "[[0, 1, 0, 0], [0, 0, 0, 0], [2, 0, 0, 1], [0, 0, 3, 5]]"],
)
def test_uneven_blocks_arrive(four: WorkerTeam, traffic: str) -> None:
    assert ran(four, UNEVEN, traffic=traffic, count=37).detail == ""
    ran(four, UNEVEN, traffic=traffic, count=5, dtype="bfloat16")


@pytest.mark.exhaustive
@given(
    st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=4, max_size=4),
    st.integers(0, 99),
)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_traffic_arrives(four: WorkerTeam, matrix: list[list[int]], count: int) -> None:
    matrix[3][0] += 1  # a matrix of zeros is none
    ran(four, UNEVEN, traffic=str(matrix), count=count)


def test_groups_have_uneven_traffic_of_their_own(four: WorkerTeam) -> None:
    ran(four, UNEVEN, traffic="hot:0.9", groups="rank % 2")


def test_everybody_sends_to_the_right_and_hears_from_the_left(four: WorkerTeam) -> None:
    ran(four, "send_recv")


# -- one group alone --------------------------------------------------------------------------------------


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_one_group_runs_while_the_others_stand_by(four: WorkerTeam, name: str) -> None:
    for alone in (0, 1):
        measurement = ran(four, name, groups="rank % 2", active_group=alone)
        assert len(measurement.rank_samples_seconds) == 2


# -- refusals ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        *REFUSED,
        (
            "all_reduce",
            {"algorithm": "mpi:no_such"},
            "has no algorithm mpi:no_such of all_reduce",
        ),
        ("all_reduce", {"op": "avg"}, "no op avg; it has sum, prod, min, max"),
    ],
)
def test_what_cannot_be_is_refused_with_a_cure(
    name: str, changes: dict[str, Any], words: str
) -> None:
    assert words in (BACKEND.unsupported(case_of(name, **changes)) or "")
