"""What a backend is: a name, what it can do here, and teams that run cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ccbench.cases import Case, Measurement, Sampling
from ccbench.errors import CcbenchError
from ccbench.model.cluster import Cluster
from ccbench.model.machine import Machine


class CannotRun(CcbenchError):
    """The case cannot run on this team's devices, which only workers could find out; the text says why."""


class OutOfMemory(Exception):
    """The case needs more memory than there is; the text says how much."""


@dataclass(frozen=True)
class TeamRequest:
    """What the runner asks of ``Backend.open_team``.

    machine: what predictions are priced on; only the simulated backend takes its times from it.
    seed: makes simulated noise and data repeatable. environment: variables that the team is started with.
    launch: the user's own command that starts the ranks, such as ``mpirun -n 16 --hostfile hosts``.
    """

    ranks: int
    machine: Machine | Cluster
    seed: int = 0
    environment: tuple[tuple[str, str], ...] = ()
    launch: str = ""


class Team(Protocol):
    """The workers of one backend and rank count; one case at a time."""

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        """Measure ``case``; every failure is a status of the Measurement, never an exception."""

    def usable(self) -> bool:
        """False after a worker died, hung or was killed: open another team for the next case."""

    def close(self) -> None:
        """End every worker, by force where asking is not enough; safe to call twice."""


class Backend(Protocol):
    """One file in ``ccbench/backends``, found by name and imported on use."""

    name: str
    costly_teams: bool
    """True where an open team holds what others need (memory of GPUs): few are kept open."""

    def unavailable(self) -> str | None:
        """Why this backend cannot work here and what to do about it, or None."""

    def version(self) -> str:
        """What runs: library and version."""

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Names a suite's ``algorithm: all`` stands for; ``default`` is always understood besides."""

    def unsupported(self, case: Case) -> str | None:
        """Why ``case`` cannot run on this backend, or None."""

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        """Variables of the environment that a team must be started with to run ``case``."""

    def open_team(self, request: TeamRequest) -> Team:
        """Start the workers; BackendUnavailable when that fails."""


class PlainTeams:
    """For backends whose teams cost little and run every case as they are."""

    costly_teams = False

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        """None."""
        return ()
