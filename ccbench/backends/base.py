"""What a backend is: a name, what it can do here, and teams that run cases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ccbench.algorithms import algorithms_of
from ccbench.capabilities import backends_with, capabilities_of
from ccbench.cases import AXES, Case, Measurement, Sampling
from ccbench.collectives import collective
from ccbench.errors import CcbenchError
from ccbench.kernels.selection import kernel_algorithms
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
    """What the runner asks of a backend; what it can do stands in ``ccbench.capabilities``."""

    name: str

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Why this backend cannot work here and what to do about it, or None.

        elsewhere: ranks are started on hosts that were asked for their GPUs already.
        """

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


class DeclaredBackend:
    """What all backends have in common: their capabilities rule out most of what cannot run."""

    name: str

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """ccbench's own schedules or kernels, as the capabilities say; a library names its own."""
        able = capabilities_of(self.name)
        own = kernel_algorithms(collective) if able.own_kernels else ()
        return algorithms_of(collective) if able.own_schedules else own

    def unsupported(self, case: Case) -> str | None:
        """Why ``case`` cannot run on this backend, or None."""
        other = case.beside_case
        return lacked(self.name, case) or self.refused(case) or (self.refused(other) if other else None)

    def refused(self, case: Case) -> str | None:
        """Why a case that the capabilities allow cannot run, or None."""
        return None

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        """None."""
        return ()


OF_ALL = ("backend", "algorithm", "size_bytes", "count", "ranks", "nodes", "root")
"""Axes of which capabilities say nothing."""


TWO_AT_ONCE = ("streaming", "isolated", "cold")
"""Modes of two collectives that run at the same time: others have no time for each, or begin both alike."""


def lacked(backend: str, case: Case) -> str | None:
    """What ``case`` asks for beyond the backend's capabilities, and who has it; None for nothing."""
    able, row = capabilities_of(backend), collective(case.collective)
    for axis in AXES:
        value = getattr(case, axis.name)
        if axis.name in OF_ALL or value == axis.default or (axis.needs and not getattr(row, axis.needs)):
            continue
        if not able.has(axis.name, value):
            has = able.values.get(axis.name, ())
            own = f"; it has {', '.join(has)}" if isinstance(has, tuple) and has else ""
            others = ", ".join(backends_with(axis.name, value))
            there = f"; there is on {others}" if others else ""
            return f"{backend} has no {axis.key} {value}{own}{there}"
    if case.in_place and case.collective in able.not_in_place:
        return f"{backend} has no {case.collective} in place; write placement: out_of_place"
    if able.most_ranks and case.ranks > able.most_ranks:
        return f"{case.ranks} ranks: {backend} has at most {able.most_ranks}"
    if case.beside and (case.pair or case.mode not in TWO_AT_ONCE):
        what = "a pair" if case.pair else f"another in mode {case.mode}"
        return f"no collective runs beside {what}; write mode: streaming and no pairs, or leave beside out"
    return lacked(backend, case.beside_case) if case.beside_case else None
