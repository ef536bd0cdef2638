"""MPI without blocking: a second collective beside every collective, and every collective behind a computation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccbench.backends.mpi import BACKEND
from ccbench.backends.mpi.background import AT_ONCE, LOOKED_AFTER
from ccbench.cases import OVERLAP, OVERLAP_PARTS, UNEVEN, Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.launching import LaunchedTeam
from tests.backends.mpi.test_teams import SHORT, case_of, team
from tests.faults import traces

pytestmark = pytest.mark.skipif(
    BACKEND.unavailable() is not None, reason=f"no MPI here: {BACKEND.unavailable()}"
)


@pytest.fixture(scope="module")
def four() -> Iterator[LaunchedTeam]:
    opened = team(4)
    yield opened
    pids = opened.pids
    opened.close()
    assert traces.all_gone(pids)


def ran(opened: LaunchedTeam, name: str, **changes: object) -> Measurement:
    rooted = COLLECTIVES[name].rooted
    case = case_of(name, **{"ranks": 4, "root": 1 if rooted else -1, **changes})
    assert BACKEND.unsupported(case) is None
    measurement = opened.run(case, SHORT)
    assert measurement.status is Status.OK, f"{case.label}: {measurement.detail}"
    assert measurement.wrong_elements in (0, None)
    return measurement


@pytest.mark.parametrize("beside", ["all_gather", "all_reduce on rank % 2", "send_recv on all", "barrier"])
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective_runs_beside_another_and_both_are_right(
    four: LaunchedTeam, name: str, beside: str
) -> None:
    measurement = ran(four, name, beside=beside, groups="rank // 2")
    assert AT_ONCE in measurement.detail
    assert measurement.part_names[:2] == (f"ranks 0-1 {name}", f"ranks 2-3 {name}")
    assert [len(part) for part in measurement.part_samples_seconds] == [
        len(measurement.samples_seconds)
    ] * len(measurement.part_names)
    assert all(0 < seconds for part in measurement.part_samples_seconds for seconds in part)
