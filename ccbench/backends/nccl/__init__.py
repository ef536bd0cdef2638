"""NVIDIA's collective library: ``nccl``, where one process drives all GPUs, and ``nccl-processes``.

This module is what the runner sees: it asks files and package metadata, and imports neither CuPy nor NCCL.
"""

from __future__ import annotations

from ccbench.backends import CUPY, NCCL
from ccbench.backends.base import DeclaredBackend, Launch, TeamRequest
from ccbench.backends.cuda import cupy_missing, driver_missing
from ccbench.backends.nccl.settings import ALGORITHMS, Version, algorithms_for, environment_of, impossible
from ccbench.cases import OVERLAP, Case
from ccbench.collectives import collective
from ccbench.dtypes import EXACT_LIMIT, item_bytes
from ccbench.machine.accelerators import cuda_install
from ccbench.machine.software import installed_version


class NcclBackend(DeclaredBackend):
    """Implements ``ccbench.backends.base.Backend``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Needs a driver, a device and CuPy; that NCCL is there shows in the workers."""
        if elsewhere:
            return None
        if driver_missing() is None:
            return cupy_missing()
        # The other backends' sentence ends with what to run instead of own kernels.
        missing = str(driver_missing()).partition(";")[0]
        needed = "NCCL needs an NVIDIA GPU with its driver, CuPy and the NCCL library"
        return f"{missing}; {needed}: {cuda_install()}"

    def version(self) -> str:
        """Of the NCCL wheel, else of a library that only workers see, and of CuPy."""
        found = {name: installed_version(name) for name in (*NCCL.distributions, *CUPY.distributions)}
        nccl = next((found[name] for name in NCCL.distributions if found[name]), "of the system")
        cupy = next((found[name] for name in CUPY.distributions if found[name]), "unknown")
        return f"NCCL {nccl}, CuPy {cupy}"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Values of NCCL_ALGO that exist for the collective; nothing where NCCL has no choice."""
        return algorithms_for(collective)

    def refused(self, case: Case) -> str | None:
        """Why ``case`` cannot run, from what is published; the rest NCCL says when it runs."""
        return self._not_of_nccl(case) or impossible(case, wheel_version()) or _not_exact(case)

    def _not_of_nccl(self, case: Case) -> str | None:
        size = item_bytes(case.dtype)
        refusals = (
            (
                case.misalignment_bytes % size != 0,
                f"{case.misalignment_bytes} bytes off: NCCL's buffers start at elements of {size} bytes",
            ),
            (bool(case.pair and case.collective != "send_recv"), "pairs exist for send_recv only"),
            (
                bool(case.pair) and case.registration == "symmetric",
                "memory is registered as symmetric by all ranks together, and a pair's others have none",
            ),
            (
                case.mode == OVERLAP and bool(case.pair or case.aggregation > 1),
                "what is computed runs beside one collective alone; leave pair and aggregation out",
            ),
        )
        return next((reason for refused, reason in refusals if refused), None)

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        """NCCL reads algorithm, protocol, channels and transport from the environment that it starts in."""
        return environment_of(case, wheel_version())

    def launch(self, request: TeamRequest) -> Launch | None:
        """Return the user's own launcher where there is one; CUDA starts in the workers."""
        return request.launch


def wheel_version() -> Version:
    """Version of the installed NCCL wheel, () where NCCL is the system's."""
    for name in NCCL.distributions:
        parts = (installed_version(name) or "").split(".")
        if parts[0].isdigit():
            return tuple(int(part) for part in parts if part.isdigit())
    return ()


def _not_exact(case: Case) -> str | None:
    row = collective(case.collective)
    if row.reduces and case.op in ("sum", "avg", "premulsum") and case.group_ranks > EXACT_LIMIT[case.dtype]:
        return f"{case.op} over {case.group_ranks} ranks cannot be checked: {case.dtype} is not exact so far"
    return None


BACKEND = NcclBackend("nccl")
"""One process drives all GPUs of the node; ranks on several nodes are processes of their own."""

PROCESSES_BACKEND = NcclBackend("nccl-processes")
"""One process for each rank."""

__all__ = ["ALGORITHMS", "BACKEND", "PROCESSES_BACKEND", "NcclBackend"]
