"""The kernels for GPUs, run on a CPU by the engine in kernels/host: for tests, and for people without a GPU.

Results are real and checked like any other backend's. Times are of the emulation and mean nothing: every
measurement is flagged ``emulation``, and nothing follows from comparing them.
"""

from __future__ import annotations

from ccbench.backends.base import DeclaredBackend
from ccbench.backends.kernels.building import compiler
from ccbench.backends.kernels.sources import unsupported
from ccbench.cases import Case
from ccbench.errors import MissingDependency

MOST_ELEMENTS = 1 << 24
"""Of one rank's largest buffer: an element takes tens of nanoseconds here."""


class CudaHostBackend(DeclaredBackend):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "cuda-host"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs g++ and an x86-64 or arm64 system with fork."""
        try:
            compiler()
        except MissingDependency as error:
            return str(error).removeprefix("backend cuda-host: ")
        return None

    def version(self) -> str:
        """The compiler that the kernels are built with."""
        return f"emulation, {compiler()[1]}"

    def refused(self, case: Case) -> str | None:
        """Why ``case`` cannot run here."""
        if max(case.count, 1) > MOST_ELEMENTS:
            return f"a count of {case.count}: at most {MOST_ELEMENTS} elements are emulated"
        return unsupported(case)


BACKEND = CudaHostBackend()
