"""Runs that start mpirun, or that mpirun or torchrun has started: nothing is left of them, whoever dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ccbench.backends.base import TeamRequest
from ccbench.backends.gloo import BACKEND as GLOO
from ccbench.backends.mpi import BACKEND as MPI
from ccbench.backends.mpi.library import installed
from ccbench.cases.measurement import Status
from ccbench.errors import BackendUnavailable
from ccbench.machine.mpi import MPICH, OPEN_MPI, as_root
from ccbench.runner.workers.cleanup import shared_memory_files
from ccbench.runner.workers.team import open_team
from tests.faults import traces
from tests.faults.conftest import Bench
from tests.faults.test_asked_faults import check_fault

FAKE_SRUN = str(Path(__file__).resolve().parents[1] / "fake_srun")
TORCHRUN = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--nproc-per-node",
    "2",
    "--no-python",
)

needs_mpi = pytest.mark.skipif(
    MPI.unavailable() is not None, reason=f"no MPI here: {MPI.unavailable()}"
)
needs_gloo = pytest.mark.skipif(GLOO.unavailable() is not None, reason=str(GLOO.unavailable()))
needs_shared_memory = pytest.mark.skipif(
    not traces.SHARED_MEMORY.is_dir(), reason="no shared memory to leave files in"
)


@pytest.fixture
def mpiexec(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What starts two processes of this machine's MPI."""
    library = installed()
    assert not isinstance(library, str), "checked by needs_mpi"
    for name, value in as_root(os.geteuid()):
        monkeypatch.setenv(name, value)
    more = ["--oversubscribe", "--bind-to", "none"] if library.vendor == OPEN_MPI else []
    return [library.launcher, *more, "-n", "2"]


def agents(bench: Bench, is_wanted: Callable[[int], bool] = lambda _: True) -> list[int]:
    """Ranks of the run, or processes of its launcher, that are there and wanted."""
    found = []
    for process in traces.marked(bench.mark):
        with suppress(OSError):  # it has ended
            found += (
                [process] if traces.role(process) == b"agent" and is_wanted(process) else []
            )
    return found


def is_stopped(process: int) -> bool:
    return traces.state_and_parent(process)[0] == "T"


def maps_mpi(process: int) -> bool:
    return "libmpi" in Path("/proc", str(process), "maps").read_text()


# -- ranks that the run has started ------------------------------------------------------------------------


@needs_mpi
@pytest.mark.parametrize(
    ("number", "code"),
    [
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.exhaustive),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.exhaustive),
        (signal.SIGKILL, -9),
    ],
)
def test_a_runner_that_is_signalled_leaves_no_rank_and_no_mpirun(
    bench: Bench, number: signal.Signals, code: int
) -> None:
    process = bench.start_run(bench.long_suite("mpi"))
    traces.wait_until(lambda: len(agents(bench, maps_mpi)) == 2)
    time.sleep(1.0)  # into the samples
    everyone = traces.marked(bench.mark)
    assert len(everyone) >= 5, "runner, leader, launcher and two ranks"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert traces.all_gone(everyone, 10)


@needs_mpi
@pytest.mark.parametrize(
    "fault",
    [
        "kill",
        *(
            pytest.param(one, marks=pytest.mark.exhaustive)
            for one in ("stop", "raise", "stale")
        ),
    ],
)
def test_a_rank_that_misbehaves_is_named_and_a_fresh_team_goes_on(
    bench: Bench, fault: str
) -> None:
    check_fault(bench, fault, "mpi")


@pytest.mark.exhaustive
@needs_mpi
def test_a_rank_stopped_while_its_library_starts_is_named_and_no_other(bench: Bench) -> None:
    def stop_one() -> int:
        """Stop a rank that has connected and loads its library; its number, 0 while there is none."""
        process = next(iter(agents(bench, maps_mpi)), 0)
        if process:
            os.kill(process, signal.SIGSTOP)
        return process

    stopped: list[object] = []
    stopper = threading.Thread(target=lambda: stopped.append(traces.wait_until(stop_one, 60)))
    stopper.start()
    with pytest.raises(BackendUnavailable, match="the library did not start: rank") as raised:
        open_team(MPI, TeamRequest("mpi", 2))
    stopper.join()
    assert f"(process {stopped[0]}) is stopped by a signal; the others wait for it" in str(
        raised.value
    )
    assert raised.value.exit_code == 4


@pytest.mark.mpich
@needs_mpi
@needs_shared_memory
def test_full_shared_memory_is_named_with_what_is_wanted_and_nothing_stays(
    bench: Bench,
) -> None:
    """As in a container: a /dev/shm of the run's own, in which a rank's library finds no room."""
    library = installed()
    assert not isinstance(library, str), "checked by needs_mpi"
    if library.vendor != MPICH:
        pytest.skip("others start without shared memory, or in a folder that is elsewhere then")
    suite = bench.suite({"collective": "all_reduce", "size": "8 B"}, backends=["mpi"])
    run = f"{sys.executable} -m ccbench run {suite} -o {bench.folder}/out --machine cpu-shared-memory"
    mount = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
    script = f"{mount} && {run} --no-report -q; sleep 2; echo left: $(ls /dev/shm)"
    private = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if subprocess.run([*private, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no mount namespace can be made here")
    done = subprocess.run(
        [*private, "sh", "-c", script], capture_output=True, text=True, check=False
    )
    assert (
        "was killed by SIGBUS while its library started: /dev/shm has 0 B of 64 KiB free; "
        in done.stdout
    )
    assert re.search(
        r"its library's files there want [0-9]+ MiB more; docker run --shm-size=8g", done.stdout
    )
    assert "left:\n" in done.stdout


# -- runs that a launcher has started ----------------------------------------------------------------------


@needs_mpi
def test_mpirun_makes_one_run_of_its_processes(bench: Bench, mpiexec: list[str]) -> None:
    suite = bench.suite({"collective": "all_reduce"}, backends=["mpi", "cpu"])
    ended = bench.run(suite, launcher=mpiexec)
    assert ended.code == 0, ended.err
    assert ended.err.count("run folder: ") == 1
    found = sorted((row["backend"], row["status"], row["ranks"]) for row in ended.rows)
    assert found == [("cpu", "ok", 2), ("mpi", "ok", 2)]


@needs_mpi
def test_a_launcher_of_another_make_than_the_library_is_refused(bench: Bench) -> None:
    suite = bench.suite({"collective": "all_reduce"}, backends=["mpi"])
    ended = bench.run(suite, launcher=[FAKE_SRUN, "-n", "2"])
    assert ended.code == 2, ended.err
    assert "sees a world of 1" in ended.err
    assert "use that library's own mpiexec" in ended.err
    assert not ended.folder.exists()


HANGING = {"collective": ["all_reduce", "broadcast", "all_gather"]}
HANG = "stop:rank=1:collective=broadcast"


@pytest.mark.exhaustive
@needs_mpi
def test_after_a_hang_under_mpirun_the_rest_is_skipped_and_everybody_leaves(
    bench: Bench, mpiexec: list[str]
) -> None:
    suite = bench.suite(HANGING, backends=["mpi"], time_limit="3 s")
    ended = bench.run(suite, launcher=mpiexec, fault=HANG)
    assert ended.code == 4, ended.err
    assert ended.row("broadcast")["status"] == Status.TIMED_OUT.value
    assert "rank 1" in ended.row("broadcast")["detail"]
    assert ended.row("all_reduce")["status"] == Status.OK.value
    assert ended.row("all_gather")["status"] == Status.SKIPPED.value
    assert "cannot be started again" in ended.row("all_gather")["detail"]


@pytest.mark.exhaustive
@needs_mpi
def test_a_rank_stopped_while_mpi_comes_up_under_mpirun_is_named_and_everybody_leaves(
    bench: Bench, mpiexec: list[str]
) -> None:
    process = bench.start_run(bench.suite(HANGING, backends=["mpi"]), launcher=mpiexec)

    def stop_rank_1() -> int:
        """Stop the launcher's second process once it loads its library; its number, 0 before."""
        for one in traces.marked(bench.mark):
            with suppress(OSError):  # it has ended
                is_second = (
                    b"COMM_WORLD_RANK=1\0" in Path("/proc", str(one), "environ").read_bytes()
                )
                if is_second and is_started_by_the_launcher(one) and maps_mpi(one):
                    os.kill(one, signal.SIGSTOP)
                    return one
        return 0

    stopped = traces.wait_until(stop_rank_1, 60)
    ended = bench.end(process)
    assert ended.code == 4, ended.err
    text = f"the library did not start: rank 1 (process {stopped}) is stopped by a signal"
    assert ended.err.count(text) == 1, ended.err


@pytest.mark.exhaustive
@needs_mpi
def test_after_a_hang_a_launcher_that_the_runner_started_is_started_again(
    bench: Bench, mpiexec: list[str]
) -> None:
    suite = bench.suite(HANGING, backends=["mpi"], time_limit="3 s")
    ended = bench.run(suite, "--launch", " ".join(mpiexec), fault=HANG, quiet=False)
    assert ended.code == 4, ended.err
    assert "2 ranks: 2 on " in ended.err
    assert [row["status"] for row in ended.rows].count(Status.OK.value) == 2


@pytest.mark.exhaustive
@needs_gloo
def test_torchrun_makes_one_run_of_its_processes(bench: Bench) -> None:
    ended = bench.run(
        bench.suite({"collective": "all_reduce"}, backends=["gloo"]), launcher=TORCHRUN
    )
    assert ended.code == 0, ended.err
    assert ended.err.count("run folder: ") == 1
    assert (ended.row("all_reduce")["status"], ended.row("all_reduce")["ranks"]) == ("ok", 2)


@pytest.mark.exhaustive
@needs_gloo
@needs_mpi
def test_under_torchrun_mpi_is_refused_with_what_would_start_it(bench: Bench) -> None:
    process = bench.start_run(
        bench.suite({"collective": "all_reduce"}, backends=["mpi"]), launcher=TORCHRUN
    )
    err = process.communicate(timeout=120)[1]  # torchrun adds a traceback of its own
    assert "torchrun started these 2 processes, and no MPI comes up between them" in err
    assert "start with mpirun, mpiexec or srun" in err
    assert not (bench.folder / "out").exists()


def files_of_the_stopped(bench: Bench) -> list[Path]:
    """Files in shared memory of the rank that stands still, as soon as it does."""
    stopped = traces.wait_until(
        lambda: [one for one in traces.marked(bench.mark) if is_stopped(one)], 120
    )
    assert isinstance(stopped, list)
    files = [Path(path) for path in shared_memory_files(stopped[0])]
    assert files, "this MPI keeps nothing in shared memory, so nothing is shown"
    return files


def start_hanging(
    bench: Bench, limit: str, *arguments: str, launcher: list[str]
) -> subprocess.Popen[str]:
    suite = bench.suite({"collective": "all_reduce"}, backends=["mpi"], time_limit=limit)
    return bench.start_run(
        suite, *arguments, launcher=launcher, fault="stop:rank=1:collective=all_reduce"
    )


@needs_mpi
@needs_shared_memory
def test_a_launcher_that_is_killed_leaves_no_shared_memory_behind(
    bench: Bench, mpiexec: list[str]
) -> None:
    launcher = start_hanging(bench, "300 s", launcher=mpiexec)
    files = files_of_the_stopped(bench)
    launcher.kill()
    for process in traces.marked(bench.mark):
        with suppress(OSError):
            if is_started_by_the_launcher(process):
                os.kill(process, signal.SIGKILL)
    launcher.communicate()
    traces.wait_until(lambda: not any(path.exists() for path in files), 10)


def is_started_by_the_launcher(process: int) -> bool:
    """Whether it is ``ccbench run`` itself, and not one of its helpers or the launcher's."""
    words = Path("/proc", str(process), "cmdline").read_bytes().split(b"\0")
    return b"run" in words and b"--no-report" in words


@pytest.mark.exhaustive
@needs_mpi
@needs_shared_memory
def test_a_team_of_the_users_launcher_that_is_given_up_leaves_no_shared_memory_behind(
    bench: Bench, mpiexec: list[str]
) -> None:
    process = start_hanging(bench, "3 s", "--launch", " ".join(mpiexec), launcher=[])
    files = files_of_the_stopped(bench)
    assert bench.end(process).code == 4
    traces.wait_until(lambda: not any(path.exists() for path in files), 10)
