"""``nccl``: NVIDIA's collective library.

This module is what the runner sees: it asks files and package metadata, and imports neither CuPy nor NCCL.
"""

from __future__ import annotations

from ccbench.backends import CUPY, NCCL
from ccbench.backends.base import Backend, Launch, TeamRequest
from ccbench.backends.cuda import cupy_missing, driver_missing
from ccbench.backends.nccl.settings import Version, algorithms_for, environment_of, refused_beforehand
from ccbench.cases import OVERLAP, PER_GPU, Case
from ccbench.collectives import collective
from ccbench.dtypes import EXACT_LIMIT, item_bytes
from ccbench.machine.accelerators import cuda_install
from ccbench.machine.software import installed_version


class NcclBackend(Backend):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "nccl"

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
        """Return why ``case`` would hang or not be what it says; the rest NCCL refuses when it runs."""
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
                "mode overlap computes during one plain collective; leave pair and aggregation out",
            ),
        )
        reasons = (reason for refused, reason in refusals if refused)
        return next(reasons, None) or refused_beforehand(case) or _not_exact(case)

    def team_settings(self, case: Case) -> tuple[tuple[str, str], ...]:
        """NCCL reads algorithm, protocol, channels and transport from the environment that it starts in."""
        return environment_of(case, wheel_version())

    def launch(self, request: TeamRequest) -> Launch | None:
        """Return the user's own launcher where there is one, else how ranks of this host are started."""
        # Ranks wait for GPUs and need no processor of their own.
        return request.launch or (Launch(pinned=False) if request.processes == PER_GPU else None)


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


BACKEND = NcclBackend()
