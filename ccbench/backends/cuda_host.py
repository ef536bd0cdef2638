"""The kernels for GPUs, run on a CPU by the engine in kernels/host: for tests, and for people without a GPU.

Results are real and checked like any other backend's. Times are of the emulation and mean nothing: every
measurement is flagged ``emulation``, and nothing follows from comparing them.
"""

from __future__ import annotations

from ccbench.backends.base import PlainTeams, Team, TeamRequest
from ccbench.cases import Case
from ccbench.errors import MissingDependency
from ccbench.kernels.building import compiler
from ccbench.kernels.selection import kernel_algorithms, unsupported
from ccbench.teams import ProcessTeam

MOST_RANKS = 16
MOST_ELEMENTS = 1 << 24
"""Of one rank's largest buffer: an element takes tens of nanoseconds here."""

MODES = ("streaming", "isolated")


class CudaHostBackend(PlainTeams):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "cuda-host"

    def unavailable(self) -> str | None:
        """Needs g++ and an x86-64 or arm64 system with fork."""
        try:
            compiler()
        except MissingDependency as error:
            return str(error).removeprefix("backend cuda-host: ")
        return None

    def version(self) -> str:
        """The compiler that the kernels are built with."""
        return f"emulation, {compiler()[1]}"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Everything that there is a kernel for."""
        return kernel_algorithms(collective)

    def unsupported(self, case: Case) -> str | None:
        """Why ``case`` cannot run here."""
        if case.mode not in MODES:
            return f"mode {case.mode}: an emulation has neither graphs nor caches; one of {', '.join(MODES)}"
        if case.ranks > MOST_RANKS:
            return f"{case.ranks} ranks: at most {MOST_RANKS} are emulated"
        if max(case.count, 1) > MOST_ELEMENTS:
            return f"a count of {case.count}: at most {MOST_ELEMENTS} elements are emulated"
        return unsupported(case, in_groups=True)

    def open_team(self, request: TeamRequest) -> Team:
        """One process that runs all ranks."""
        return ProcessTeam(self.name, request.ranks)


BACKEND = CudaHostBackend()
