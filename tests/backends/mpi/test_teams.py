"""Real teams on the MPI that is installed: collectives are right, faults are named, nothing is left."""

from __future__ import annotations

import os
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from ccbench.backends.base import CannotRun, TeamLaunch, TeamRequest
from ccbench.backends.mpi import BACKEND
from ccbench.backends.mpi.calls import FROM_C, FROM_PYTHON, LARGEST_COUNT, OPS
from ccbench.backends.mpi.library import installed
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import BackendUnavailable
from ccbench.machine.mpi import OPEN_MPI
from ccbench.runner.workers.team import WorkerTeam, open_team
from tests.backends import measuring
from tests.faults import traces

pytestmark = pytest.mark.skipif(
    BACKEND.unavailable() is not None, reason=f"no MPI here: {BACKEND.unavailable()}"
)

SHORT = Sampling(
    rounds=1,
    budget_seconds=0.01,
    warmup_seconds=0.001,
    minimum_samples=4,
    minimum_sample_seconds=1e-4,
)
LONG = Sampling(
    rounds=1,
    budget_seconds=30.0,
    minimum_samples=4000,
    maximum_samples=4000,
    minimum_sample_seconds=0.01,
)


def team(ranks: int = 2, *, environment: tuple[tuple[str, str], ...] = ()) -> WorkerTeam:
    opened = open_team(BACKEND, TeamRequest("mpi", ranks, environment=environment))
    assert isinstance(opened, WorkerTeam)
    return opened


case_of = partial(measuring.case_of, "mpi", ranks=2, count=512)


def lent(opened: WorkerTeam) -> Iterator[WorkerTeam]:
    """The team, of which nothing may be left."""
    yield opened
    pids = opened.pids
    opened.close()
    assert traces.all_gone(pids)


def once(case: Case, **how: Any) -> Measurement:
    """What a team of its own makes of ``case``."""
    opened = team(case.ranks, **how)
    measurement = opened.run(case, SHORT)
    opened.close()
    return measurement


@pytest.fixture(scope="module")
def pair() -> Iterator[WorkerTeam]:
    yield from lent(team())


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with traces.own_shared_memory(uuid.uuid4().hex, monkeypatch):
        yield


@pytest.mark.thinned(6)
@pytest.mark.parametrize("mode", ["streaming", "isolated"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_every_collective_is_right_in_every_mode(
    pair: WorkerTeam, name: str, in_place: bool, mode: str
) -> None:
    case = case_of(
        name, in_place=in_place, mode=mode, root=1 if COLLECTIVES[name].rooted else -1
    )
    if BACKEND.unsupported(case):
        assert name in ("send_recv", "all_to_all", "all_to_all_v")
        return
    measurement = pair.run(case, SHORT)
    assert (measurement.status, measurement.detail) == (Status.OK, "")
    assert measurement.wrong_elements == 0
    assert len(measurement.rank_samples_seconds) == 2
    assert measurement.backend_version.removesuffix(f", {FROM_C}") == BACKEND.version()
    assert measurement.hosts == ()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_reductions_by_every_op_are_right_in_and_out_of_place(ranks: int) -> None:
    opened = team(ranks)
    for name, op, in_place, dtype in product(
        ("all_reduce", "reduce_scatter", "reduce"), OPS, (False, True), ("int32", "float64")
    ):
        case = case_of(name, op=op, in_place=in_place, dtype=dtype, ranks=ranks)
        measurement = opened.run(case, SHORT)
        assert measurement.status is Status.OK, f"{case.label}: {measurement.detail}"
    opened.close()


@pytest.mark.thinned(1)
@pytest.mark.parametrize("name", ["all_gather", "all_to_all", "barrier"])
def test_an_algorithm_for_two_ranks_is_unsupported_on_three(name: str) -> None:
    case = case_of(name, algorithm="mpi:two_proc", ranks=3)
    if BACKEND.unsupported(case):
        pytest.skip("this library has no algorithm that needs exactly two ranks")
    opened = team(3, environment=BACKEND.team_settings(case))
    measurement = opened.run(case, SHORT)
    assert measurement.status is Status.UNSUPPORTED
    assert (
        f"{name} mpi:two_proc of 3 ranks is MPI_ERR_UNSUPPORTED_OPERATION" in measurement.detail
    )
    assert opened.usable()
    opened.close()


def test_without_a_compiler_python_launches_and_the_result_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    measurement = once(case_of("all_reduce"))
    assert measurement.status is Status.OK
    assert measurement.backend_version.endswith(f", {FROM_PYTHON}")
    assert measurement.detail.startswith(f"{FROM_PYTHON} (rank 0: no C compiler was found")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "bfloat16", "float16", "int8"])
def test_dtypes_that_mpi_lacks_travel_as_bytes(pair: WorkerTeam, dtype: str) -> None:
    assert pair.run(case_of("all_gather", dtype=dtype), SHORT).status is Status.OK
    refused = BACKEND.unsupported(case_of("all_reduce", dtype=dtype))
    if dtype in ("bfloat16", "float16"):
        assert refused is not None
        assert "does no arithmetic" in refused
    elif dtype == "int8":
        clips = installed().vendor == OPEN_MPI  # type: ignore[union-attr]  # else this module is skipped
        assert (refused is not None) == clips
    else:
        assert pair.run(case_of("all_reduce", dtype=dtype), SHORT).status is Status.OK


def test_pairs_send_one_way_and_both_ways(pair: WorkerTeam) -> None:
    for ends in ("0>1", "1>0", "0<>1"):
        assert pair.run(case_of("send_recv", pair=ends), SHORT).status is Status.OK


def test_groups_communicate_side_by_side() -> None:
    measurement = once(case_of("all_reduce", ranks=4, groups="rank % 2"))
    assert measurement.status is Status.OK, measurement.detail
    assert len(measurement.group_names) == 2
    assert measurement.group_samples_seconds
    assert measurement.conditions.oversubscribed == (len(os.sched_getaffinity(0)) < 4)


def test_a_named_algorithm_gets_a_team_of_its_own() -> None:
    names = BACKEND.algorithms("all_reduce")
    if not names:
        pytest.skip("this library's tools are not installed, so it lists no algorithms")
    case = case_of("all_reduce", algorithm=names[0])
    assert BACKEND.unsupported(case) is None
    settings = BACKEND.team_settings(case)
    assert settings
    measurement = once(case, environment=settings)
    assert (measurement.status, measurement.algorithm_used) == (Status.OK, names[0])


def test_counts_beyond_an_int_need_a_library_that_has_them() -> None:
    refused = BACKEND.unsupported(case_of("all_reduce", count=LARGEST_COUNT + 1))
    library = installed()
    assert not isinstance(library, str)
    assert (refused is None) == library.large_counts


# -- faults -----------------------------------------------------------------------------------------------


def run_while(opened: WorkerTeam, disturb: object, sampling: Sampling = LONG) -> Measurement:
    assert callable(disturb)
    timer = threading.Timer(0.7, disturb)
    timer.start()
    measurement = opened.run(case_of("all_reduce"), sampling)
    timer.join()
    opened.close()
    assert traces.all_gone(opened.pids)
    return measurement


def test_a_killed_rank_is_named() -> None:
    opened = team()
    measurement = run_while(opened, lambda: os.kill(opened.pids[1], signal.SIGKILL))
    assert measurement.status is Status.FAILED
    assert measurement.detail.startswith(f"rank 1 (process {opened.pids[1]}) ")
    assert measurement.detail.endswith("while sampling")
    assert not opened.usable()


@pytest.mark.exhaustive  # of a whole run in tests/faults/test_launched_runs.py
def test_a_stopped_rank_is_named_and_ended() -> None:
    opened = team()
    limited = replace(LONG, time_limit_seconds=2.0)
    measurement = run_while(opened, lambda: os.kill(opened.pids[1], signal.SIGSTOP), limited)
    assert measurement.status is Status.TIMED_OUT
    assert f"rank 1 (process {opened.pids[1]}) is stopped by a signal" in measurement.detail


def leader_of(opened: WorkerTeam) -> int:
    parents = {traces.state_and_parent(pid)[1] for pid in opened.pids}
    above = {traces.state_and_parent(parent)[1] for parent in parents}
    mine = set(traces.children(os.getpid()))
    (leader,) = ({*parents, *above} | {traces.state_and_parent(pid)[1] for pid in above}) & mine
    return leader


def launcher_of(opened: WorkerTeam) -> int:
    (launcher_pid,) = (
        pid
        for pid in traces.children(leader_of(opened))
        if b"mpi" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    )
    return launcher_pid


def test_a_killed_launcher_ends_the_team() -> None:
    opened = team()
    launcher = launcher_of(opened)
    measurement = run_while(opened, lambda: os.kill(launcher, signal.SIGKILL))
    assert measurement.status is Status.FAILED
    assert "was killed by SIGKILL" in measurement.detail


def test_a_killed_leader_takes_launcher_and_ranks_along() -> None:
    opened = team()
    launcher = launcher_of(opened)
    leader = leader_of(opened)
    measurement = run_while(opened, lambda: os.kill(leader, signal.SIGKILL))
    assert measurement.status is Status.FAILED
    assert traces.all_gone([launcher])


def test_a_rank_that_dies_while_idle_makes_the_team_unusable() -> None:
    opened = team()
    os.kill(opened.pids[0], signal.SIGKILL)
    assert traces.wait_until(lambda: not opened.usable(), 10)
    assert traces.all_gone(opened.pids)


def test_the_key_is_in_no_command_line(pair: WorkerTeam) -> None:
    environ = Path(f"/proc/{pair.pids[0]}/environ").read_bytes().split(b"\0")
    (key,) = (
        entry.rpartition(b"|")[2] for entry in environ if entry.startswith(b"CCBENCH_LEADER=")
    )
    assert len(key) == 64
    for pid in traces.processes():
        with suppress(OSError):  # it has ended
            assert key not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_launcher_that_starts_single_worlds_is_refused_with_the_cure() -> None:
    """As mpiexec of another MPI does: every process has a number, and every library sees itself alone."""
    with pytest.raises(
        CannotRun, match=r"sees a world of 1: the launcher belongs to another MPI"
    ):
        WorkerTeam(TeamRequest("mpi", 2, TeamLaunch()))


def test_a_launcher_that_fails_is_quoted() -> None:
    with pytest.raises(BackendUnavailable, match=r"exited with \d+: no process had come"):
        WorkerTeam(TeamRequest("mpi", 2, TeamLaunch(("false",))))
