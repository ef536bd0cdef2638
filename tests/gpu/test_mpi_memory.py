"""``memory: device`` of mpi on real GPUs with a CUDA-aware MPI; on one GPU its two ranks share it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ccbench.backends.base import CannotRun, TeamRequest
from ccbench.backends.cuda.runtime import Cuda, device_count
from ccbench.backends.mpi import BACKEND
from ccbench.cases.axes import DEVICE_MEMORY, Case
from ccbench.cases.measurement import Status
from ccbench.collectives import COLLECTIVES
from ccbench.flags import Flag
from ccbench.runner.workers.team import WorkerTeam, open_team
from tests.backends import measuring

from .cases import SAMPLING


def case_of(name: str, count: int, in_place: bool) -> Case:
    changes = {"in_place": in_place, "memory": DEVICE_MEMORY}
    return measuring.case_of("mpi", name, "default", 2, count, **changes)


@pytest.fixture(scope="module")
def team(cuda: Cuda) -> Iterator[WorkerTeam]:
    reason = BACKEND.unavailable()
    if reason:
        pytest.skip(reason)
    request = TeamRequest(
        "mpi",
        2,
        environment=BACKEND.team_settings(case_of("all_reduce", 1, False)),
    )
    try:
        opened = open_team(BACKEND, request)
    except CannotRun as error:
        if "not CUDA-aware" in str(error):
            pytest.skip(str(error))
        raise
    assert isinstance(opened, WorkerTeam)
    yield opened
    opened.close()


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective_is_right(
    team: WorkerTeam, cuda: Cuda, name: str, in_place: bool
) -> None:
    for count in (1, 5003, 1 << 20):
        case = case_of(name, count, in_place)
        if BACKEND.unsupported(case):
            assert name in ("send_recv", "all_to_all", "all_to_all_v")
            continue
        measurement = team.run(case, SAMPLING)
        assert (measurement.status, measurement.wrong_elements) == (Status.OK, 0), (
            measurement.detail
        )
        assert (Flag.LOOPBACK in measurement.conditions.flags) == (device_count(cuda) < 2)


def test_the_device_is_looked_at_before_and_after(team: WorkerTeam) -> None:
    measurement = team.run(case_of("all_reduce", 1 << 20, False), SAMPLING)
    assert measurement.status is Status.OK, measurement.detail
    assert measurement.device_readings
