"""A team whose ranks a launcher starts, as the runner sees it: what to start, and the team that results.

The runner's side is a ``ProcessTeam`` like any other; only its leader is ``ccbench.launched``, which gets a
``Launch`` as its first message and starts ``mpirun``, or the ranks themselves where there is no launcher.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import BinaryIO

from ccbench.errors import BackendUnavailable
from ccbench.machine.processes import die_with_parent
from ccbench.machine.redaction import without_values
from ccbench.teams import ProcessTeam

KEPT_LINES = 400
LONGEST_WORDS = 300
ENDING_SECONDS = 5.0
"""How long a process may take to end after its connection has broken."""

START_LIMIT_SECONDS = 120.0
"""What a launcher may take until all ranks have come and their libraries work."""

ANSWER_SECONDS = 15.0
"""How much longer the runner waits for the leader to say why they have not."""


@dataclass(frozen=True)
class Launch:
    """How the ranks of a team are started.

    command: what stands before the ranks' own command, such as ``mpiexec -n 4``; empty: the leader starts
        the ranks itself, on its own host.
    environment: variables for the launcher and the ranks, over those of the runner.
    passed_by: an option before each variable's name that makes the launcher hand it on to other hosts, such
        as ``-x`` of Open MPI; empty where launchers hand on everything.
    private_folders: variables that get a folder of the team's own, each in the folder named beside it ('' for
        the temporary one); all ranks must be on this host. What a killed library leaves there goes with it.
    several_hosts: ranks may be on other hosts, so the leader listens on every interface and pins no rank.
    pinned: ranks of this host keep to a processor each, by their number.
    """

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    passed_by: str = ""
    private_folders: tuple[tuple[str, str], ...] = ()
    several_hosts: bool = False
    pinned: bool = True


class LaunchedTeam(ProcessTeam):
    """Implements ``ccbench.backends.base.Team`` with ranks that a launcher starts."""

    leader_module = "ccbench.launched"
    close_seconds = 6.0

    def __init__(
        self, backend: str, ranks: int, launch: Launch, environment: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._launch = replace(launch, environment=(*launch.environment, *environment))
        super().__init__(backend, ranks, self._launch.environment)

    def _greeting(self, backend: str, ranks: int) -> tuple[int, ...]:
        self._connection.send(self._launch)
        return super()._greeting(backend, ranks)

    def _start_limit_seconds(self) -> float:
        return START_LIMIT_SECONDS + ANSWER_SECONDS


class Launcher:
    """The launcher's process, or the ranks' own where there is none, on the leader's side.

    Every process has a session of its own, so that a signal to one reaches what it has started and nothing
    else, and dies with the leader, however that ends. What it says is kept, the last lines of it.
    """

    def __init__(
        self, launch: Launch, ranks: int, rank_command: Sequence[str], variables: Mapping[str, str]
    ) -> None:
        """Raises BackendUnavailable when the launcher cannot be started."""
        self._launch = launch
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reading, writing = os.pipe()
        self.processes: list[subprocess.Popen[bytes]] = []
        environment = {**os.environ, **variables}
        with os.fdopen(writing, "wb") as output:
            if launch.command:
                passed = [*dict(launch.environment), *variables] if launch.passed_by else []
                options = [word for name in passed for word in (launch.passed_by, name)]
                # Before the user's own options, which may end in a program that starts the ranks (numactl).
                program, *more = launch.command
                self._start([program, *options, *more, *rank_command], environment, output)
            for rank in range(0 if launch.command else ranks):
                numbers = {"CCBENCH_RANK": str(rank), "CCBENCH_RANKS": str(ranks)}
                self._start([*rank_command], {**environment, **numbers}, output)
        # Only now: who forks must have no threads.
        threading.Thread(target=self._read, name="launcher", daemon=True).start()

    def _start(self, command: list[str], environment: Mapping[str, str], output: BinaryIO) -> None:
        leader = os.getpid()
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(leader),
            )
        except OSError as error:
            self.kill()
            raise BackendUnavailable(
                f"{without_values(command[0], self._launch.command)} could not be started: {error.strerror}; "
                "write a launcher that exists, with its path where it is not in PATH"
            ) from None
        self.processes.append(process)

    def _read(self) -> None:
        with os.fdopen(self._reading, errors="replace") as lines:
            for line in lines:
                if line.strip():
                    self._lines.append(line.strip())

    @property
    def name(self) -> str:
        """What to call it."""
        command = self._launch.command
        return os.path.basename(without_values(command[0], command)) if command else "a rank's process"

    def ended(self) -> str:
        """'was killed by SIGKILL' and the like, '' while everything runs."""
        codes = [process.poll() for process in self.processes]
        over = [code for code in codes if code is not None]
        if not over or (len(over) < len(codes) and not any(over)):
            return ""
        code = next((code for code in over if code), 0)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def ended_one(self, number: int) -> str:
        """How the process of a rank ended, where the ranks are the launcher's own processes."""
        code = self.processes[number].wait(ENDING_SECONDS)
        return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"

    def words(self, pattern: str = "") -> str:
        """Its last line that matches ``pattern``, or one that tells most of what went wrong; '' for none."""
        said = (without_values(line, self._launch.command) for line in self._lines)
        lines = [line for line in said if re.search(pattern or r"\w", line)]
        if pattern or not lines:
            return lines[-1] if lines else ""
        own = [line for line in lines if line.startswith("ccbench")]
        telling = own or [line for line in lines if _TELLING.search(line)]
        return (telling or lines)[-1][:LONGEST_WORDS]

    def wait(self, seconds: float) -> bool:
        """True once everything has ended."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        return all(process.poll() is not None for process in self.processes)

    def kill(self) -> None:
        """End every process and its group by force; safe to call twice."""
        for process in self.processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_TELLING = re.compile(r"error|fail|not |cannot|unable|no such|refused|slots|abort|instead of", re.IGNORECASE)
"""Lines of a launcher that are worth telling, among its frames and greetings."""


def _new_folder(parent: str) -> str:
    if parent:
        with suppress(OSError):  # containers have /dev/shm read-only, full or not at all
            return tempfile.mkdtemp(prefix="ccbench-", dir=parent)
    try:
        return tempfile.mkdtemp(prefix="ccbench-")
    except OSError as error:
        raise BackendUnavailable(
            f"no temporary folder can be made ({error.strerror}); make room, or set TMPDIR to a folder that "
            "has some"
        ) from None


@contextmanager
def private_folder(parent: str) -> Iterator[str]:
    """A folder that is removed with all that is in it; in the temporary one where ``parent`` takes none."""
    path = _new_folder(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
