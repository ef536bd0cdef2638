"""Gloo, the library that PyTorch uses for collectives between CPUs: one process per rank, started by ccbench
or by a launcher, over TCP even on one host."""

from __future__ import annotations

from importlib.util import find_spec

from ccbench.backends.base import Backend, Launch, TeamRequest
from ccbench.cases import Case
from ccbench.machine.software import install_line, installed_version


class GlooBackend(Backend):
    """Gloo through torch."""

    name = "gloo"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return what is missing: torch, whose CPU build is enough."""
        if find_spec("torch") is None:
            return f"torch is not installed: {install_line('gloo')} (its CPU build is enough)"
        return None

    def version(self) -> str:
        """Return PyTorch's, which has no other number for the Gloo inside."""
        return f"torch {installed_version('torch') or 'is not installed'}"

    def refused(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run here."""
        if case.algorithm != "default":
            return "Gloo's algorithms cannot be chosen through torch; write default"
        if case.op == "avg" and case.dtype.startswith(("int", "uint")):
            return f"Gloo has no avg of {case.dtype}: torch divides the sum as a float"
        return None

    def launch(self, request: TeamRequest) -> Launch | None:
        """Return the user's own launcher; without one the leader starts the ranks on its host."""
        return request.launch or Launch()


BACKEND = GlooBackend()
