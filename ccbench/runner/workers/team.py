"""A team of worker processes as the runner sees it: start, send a case, get a measurement, end.

The team's leader is a fresh interpreter in a session of its own, so that Ctrl-C reaches only the runner and
one signal to the group ends all ranks. The leader watches its ranks; the runner watches the leader. Workers
block while they have nothing to do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from ccbench.backends.base import Backend, Team, TeamRequest
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.errors import BackendUnavailable, CannotStart, CcbenchError
from ccbench.machine.host import module_command, single_threaded
from ccbench.readers.schedules import schedule_files
from ccbench.runner.workers import launcher
from ccbench.runner.workers.messages import RUNNER_VARIABLE

if TYPE_CHECKING:
    from ccbench.runner.workers.hub import AgentHub

START_LIMIT_SECONDS = 60.0
ANSWER_SECONDS = 15.0
"""Time beyond that of a launcher for which the runner waits for the leader to say why ranks did not start."""

GRACE_SECONDS = 5.0
"""Time beyond the case's own limit for which the runner waits for the leader to name who hangs."""

CLOSE_SECONDS = 2.0
LAUNCHED_CLOSE_SECONDS = 6.0


def open_team(backend: Backend, request: TeamRequest, hub: AgentHub | None = None) -> Team:
    """Start the workers of a backend, by the hub's agents where there is one.

    Raises CannotRun for what they refuse, BackendUnavailable when that fails.
    """
    team = backend.open_team(request)
    return team or WorkerTeam(replace(request, launch=backend.launch(request)), hub)


class WorkerTeam:
    """Implements ``ccbench.backends.base.Team``."""

    def __init__(self, request: TeamRequest, hub: AgentHub | None = None) -> None:
        """hub: of the agents that start launched ranks, where they run already."""
        self.pids: tuple[int, ...] = ()
        environment, launch = request.environment, request.launch
        if launch:
            environment = (*launch.environment, *environment)
            launch = replace(launch, environment=environment)
        self._close_seconds = LAUNCHED_CLOSE_SECONDS if launch else CLOSE_SECONDS
        usual = launcher.START_LIMIT_SECONDS if launch else START_LIMIT_SECONDS
        limit = min(usual, request.start_seconds) + (ANSWER_SECONDS if launch else 0.0)
        # One line is for cases; the other, to agents that run already, is for starting ranks.
        lines = [socket.socketpair() for _ in range(2 if hub and launch else 1)]
        files = [theirs.fileno() for _, theirs in lines]
        try:
            self._leader = subprocess.Popen(
                module_command("ccbench.runner.workers", "leader", *map(str, files)),
                pass_fds=files,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
                env={
                    **single_threaded(os.environ),
                    **dict(environment),
                    RUNNER_VARIABLE: str(os.getpid()),
                },
            )
        except OSError as error:
            for ours, _ in lines:
                ours.close()
            raise BackendUnavailable(
                f"{request.backend}: no process could be started: {error.strerror}"
            ) from None
        finally:
            for _, theirs in lines:
                theirs.close()
        self._connection, *to_agents = (Connection(ours.detach()) for ours, _ in lines)
        for line in to_agents:
            assert hub is not None, "there is a second line for it"
            hub.serve(line)
        try:
            # Nobody prices anything there.
            order = replace(request, launch=launch, machine=None, schedules=schedule_files())
            self.pids = self._start(order, limit)
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def _start(self, request: TeamRequest, limit_seconds: float) -> tuple[int, ...]:
        """Return the ranks' process ids, which the leader sends once all have started."""
        who = f"{request.backend}: {request.ranks} ranks"
        try:
            self._connection.send(request)
            if not self._connection.poll(limit_seconds):
                raise BackendUnavailable(f"{who} did not start in {limit_seconds:.0f} s")
            answer = self._connection.recv()
        except (EOFError, OSError):
            raise BackendUnavailable(
                f"{who} did not start: the team's leader ended; its error is above"
            ) from None
        if isinstance(answer, CcbenchError):
            raise answer
        return tuple(answer)

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        """Measure ``case``; every failure is a status, but for CannotStart: none can be measured."""
        started = time.monotonic()
        try:
            # The leader names who hangs; only a leader that hangs itself is given up from here.
            self._connection.send((case, sampling))
            if self._connection.poll(sampling.time_limit_seconds + GRACE_SECONDS):
                answer = self._connection.recv()
                if isinstance(answer, CcbenchError):
                    self.close()
                    raise CannotStart(str(answer))
                measurement, usable = answer
                if not usable:
                    self.close()
                assert isinstance(measurement, Measurement)
                return measurement
        except (EOFError, OSError):
            self.close()
            return Measurement(
                case, Status.FAILED, "the team's leader died; its ranks were ended with it"
            )
        self.close()
        waited = time.monotonic() - started
        return Measurement(
            case,
            Status.TIMED_OUT,
            f"the team's leader did not answer in {waited:.0f} s; the team was killed",
        )

    def usable(self) -> bool:
        """Return False once closed, and once a rank or the leader has died while nothing was to do."""
        if self._connection.closed:
            return False
        # Idle, the leader says nothing: what is there to be read is the end of it.
        if self._leader.poll() is not None or self._connection.poll():
            self.close()
            return False
        return True

    def close(self) -> None:
        """Ask the leader to end; kill the whole session when it does not."""
        self._connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._leader.wait(self._close_seconds)
        with suppress(ProcessLookupError, PermissionError):
            # Ranks are in the leader's group; any that outlived it go now.
            os.killpg(self._leader.pid, signal.SIGKILL)
        self._leader.wait()
