"""Gloo, the library that PyTorch uses for collectives between CPUs: one process per rank, started by ccbench
or by a launcher, over TCP even on one host."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccbench.backends.base import DeclaredBackend, Team, TeamRequest
from ccbench.backends.mpi.launcher import users_launch
from ccbench.cases import Case
from ccbench.launching import Launch, LaunchedTeam
from ccbench.machine.software import install_line, installed_version

if TYPE_CHECKING:
    from ccbench.backends.crew import TeamEndpoint
    from ccbench.exchange import Exchange


class GlooBackend(DeclaredBackend):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "gloo"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs torch, whose CPU build is enough."""
        if find_spec("torch") is None:
            return f"torch is not installed: {install_line('gloo')} (its CPU build is enough)"
        return None

    def version(self) -> str:
        """PyTorch's, which has no other number for the Gloo inside."""
        return f"torch {installed_version('torch') or 'is not installed'}"

    def refused(self, case: Case) -> str | None:
        """Why ``case`` cannot run here."""
        if case.algorithm != "default":
            return "Gloo's algorithms cannot be chosen through torch; write default"
        if case.op == "avg" and case.dtype.startswith(("int", "uint")):
            return f"Gloo has no avg of {case.dtype}: torch divides the sum as a float"
        return None

    def open_team(self, request: TeamRequest) -> Team:
        """Start the ranks on this host, or by the user's own launcher."""
        launch = users_launch(request.launch) if request.launch else Launch()
        return LaunchedTeam(self.name, request.ranks, launch, request.environment)


def launched_endpoint(rank: int, ranks: int, exchange: Exchange) -> TeamEndpoint:
    """What one launched rank measures with."""
    from ccbench.backends.gloo.endpoint import GlooEndpoint

    return GlooEndpoint(rank, ranks, exchange)


BACKEND = GlooBackend()
