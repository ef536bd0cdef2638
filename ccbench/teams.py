"""A team of worker processes as the runner sees it: start, send a case, get a measurement, end.

The team's leader is a fresh interpreter (``python -m ccbench.worker``) in a session of its own, so that
Ctrl-C reaches only the runner and one signal to the group ends all ranks. The leader watches its ranks; the
runner watches the leader. Workers block while they have nothing to do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection

from ccbench.cases import Case, Measurement, Sampling, Status
from ccbench.errors import BackendUnavailable
from ccbench.machine.processes import module_command, single_threaded

START_LIMIT_SECONDS = 60.0
GRACE_SECONDS = 5.0
"""How much longer than the case's own limit the runner waits for the leader to name who hangs."""

CLOSE_SECONDS = 2.0


class ProcessTeam:
    """Implements ``ccbench.backends.base.Team``."""

    leader_module = "ccbench.worker"
    close_seconds = CLOSE_SECONDS

    def __init__(self, backend: str, ranks: int, environment: Sequence[tuple[str, str]] = ()) -> None:
        self.pids: tuple[int, ...] = ()
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._leader = subprocess.Popen(
                    module_command(self.leader_module, backend, str(ranks), str(theirs.fileno())),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    start_new_session=True,
                    env={
                        **single_threaded(os.environ),
                        **dict(environment),
                        "CCBENCH_RUNNER": str(os.getpid()),
                    },
                )
            except OSError as error:
                ours.close()
                raise BackendUnavailable(
                    f"{backend}: no process could be started: {error.strerror}"
                ) from None
        self._connection = Connection(ours.detach())
        try:
            self.pids = self._greeting(backend, ranks)
        except BaseException:  # Ctrl-C too
            self.close()
            raise

    def _greeting(self, backend: str, ranks: int) -> tuple[int, ...]:
        """The ranks' process ids, which the leader sends once all have started."""
        limit = self._start_limit_seconds()
        if not self._connection.poll(limit):
            raise BackendUnavailable(f"{backend}: {ranks} ranks did not start in {limit:.0f} s")
        try:
            pids = self._connection.recv()
        except (EOFError, OSError):
            raise BackendUnavailable(
                f"{backend}: the team's leader ended before {ranks} ranks had started; its error is above"
            ) from None
        if isinstance(pids, str):  # the leader's reason why there can be no team
            raise BackendUnavailable(pids)
        return tuple(pids)

    def _start_limit_seconds(self) -> float:
        return START_LIMIT_SECONDS

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        """Measure ``case``; every failure is a status."""
        started = time.monotonic()
        try:
            self._connection.send((case, sampling))
            if self._connection.poll(sampling.time_limit_seconds + GRACE_SECONDS):
                measurement, usable = self._connection.recv()
                if not usable:
                    self.close()
                assert isinstance(measurement, Measurement)
                return measurement
        except (EOFError, OSError):
            self.close()
            return Measurement(case, Status.FAILED, "the team's leader died; its ranks were ended with it")
        self.close()
        waited = time.monotonic() - started
        return Measurement(
            case, Status.TIMED_OUT, f"the team's leader did not answer in {waited:.0f} s; the team was killed"
        )

    def usable(self) -> bool:
        """False once closed, and once a rank or the leader has died while nothing was to do."""
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
            self._leader.wait(self.close_seconds)
        with suppress(ProcessLookupError, PermissionError):
            # Ranks are in the leader's group; any that outlived it go now.
            os.killpg(self._leader.pid, signal.SIGKILL)
        self._leader.wait()
