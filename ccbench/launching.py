"""A team whose ranks a launcher starts, as the runner sees it: what to start, and the team that results.

The runner's side is a ``ProcessTeam`` like any other; only its leader is ``ccbench.launched``, which gets a
``Launch`` as its first message and starts ``mpirun``, or the ranks themselves where there is no launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.teams import ProcessTeam

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
    """

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    passed_by: str = ""
    private_folders: tuple[tuple[str, str], ...] = ()
    several_hosts: bool = False


class LaunchedTeam(ProcessTeam):
    """Implements ``ccbench.backends.base.Team`` with ranks that a launcher starts."""

    leader_module = "ccbench.launched"
    close_seconds = 6.0

    def __init__(
        self, backend: str, ranks: int, launch: Launch, environment: Sequence[tuple[str, str]] = ()
    ) -> None:
        self._launch = launch
        super().__init__(backend, ranks, (*launch.environment, *environment))

    def _greeting(self, backend: str, ranks: int) -> tuple[int, ...]:
        self._connection.send(self._launch)
        return super()._greeting(backend, ranks)

    def _start_limit_seconds(self) -> float:
        return START_LIMIT_SECONDS + ANSWER_SECONDS
