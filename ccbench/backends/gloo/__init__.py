"""Gloo, the library that PyTorch uses for collectives between CPUs: one process per rank, started by ccbench
or by a launcher, over TCP even on one host."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccbench.backends.base import PlainTeams, Team, TeamRequest
from ccbench.backends.gloo.calls import REDUCE_OPS
from ccbench.backends.mpi.launcher import users_launch
from ccbench.cases import OVERLAP, UNEVEN, Case
from ccbench.environment import install_line
from ccbench.launching import Launch, LaunchedTeam

if TYPE_CHECKING:
    from ccbench.backends.crew import TeamEndpoint
    from ccbench.exchange import Exchange

RANKS_LIMIT = 1024

DTYPES = ("int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64")
"""What ProcessGroupGloo has functions for (its GENERATE_ALL_TYPES; others are "Invalid scalar type")."""

MODES = ("streaming", "isolated", OVERLAP)

INSTALL = install_line("gloo")


class GlooBackend(PlainTeams):
    """Implements ``ccbench.backends.base.Backend``."""

    name = "gloo"

    def unavailable(self) -> str | None:
        """Needs torch, whose CPU build is enough."""
        if find_spec("torch") is None:
            return f"torch is not installed: {INSTALL} (its CPU build is enough)"
        return None

    def version(self) -> str:
        """PyTorch's, which has no other number for the Gloo inside."""
        try:
            return f"torch {version('torch')}"
        except PackageNotFoundError:
            return "torch is not installed"

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Gloo chooses; torch hands no choice on."""
        return ()

    def unsupported(self, case: Case) -> str | None:
        """Why ``case`` cannot run here."""
        refusals = (
            (case.algorithm != "default", "Gloo's algorithms cannot be chosen through torch; write default"),
            (case.dtype not in DTYPES, f"Gloo has no {case.dtype}; it has {', '.join(DTYPES)}"),
            (
                case.op not in ("none", *REDUCE_OPS),
                f"Gloo has no op {case.op} for CPU tensors; it has {', '.join(REDUCE_OPS)}",
            ),
            (
                case.op == "avg" and case.dtype.startswith(("int", "uint")),
                f"Gloo has no avg of {case.dtype}: torch divides the sum as a float",
            ),
            (case.mode not in MODES, f"mode {case.mode}: Gloo has {', '.join(MODES)}"),
            (case.ranks > RANKS_LIMIT, f"{case.ranks} ranks: at most {RANKS_LIMIT}"),
            (case.protocol != "default", "Gloo has no protocols"),
            (case.channels > 0, "Gloo has no channels"),
            (case.transport != "default", "Gloo's transport is set by GLOO_DEVICE_TRANSPORT for a whole run"),
            (case.registration != "none", "Gloo registers no buffers"),
            (case.aggregation > 1, "Gloo has no group calls"),
            (case.misalignment_bytes > 0, "Gloo's buffers are tensors, which start aligned"),
            (
                case.in_place and case.collective in ("all_to_all", UNEVEN, "send_recv"),
                f"{case.collective} in place: Gloo would overwrite what it still has to send",
            ),
        )
        found = next((reason for refused, reason in refusals if refused), None)
        return found or self._not_in_background(case)

    def _not_in_background(self, case: Case) -> str | None:
        """What cannot go on while something else does."""
        other = case.beside_case
        if other is None:
            return None
        if case.mode == OVERLAP:
            return f"beside in mode {OVERLAP}: nothing is computed beside two collectives; leave one out"
        if case.pair:
            return f"a pair and {case.beside}: what runs beside a pair is not there; leave one of them out"
        return self.unsupported(other)

    def open_team(self, request: TeamRequest) -> Team:
        """Start the ranks on this host, or by the user's own launcher."""
        launch = users_launch(request.launch) if request.launch else Launch()
        return LaunchedTeam(self.name, request.ranks, launch, request.environment)


def launched_endpoint(rank: int, ranks: int, exchange: Exchange) -> TeamEndpoint:
    """What one launched rank measures with."""
    from ccbench.backends.gloo.endpoint import GlooEndpoint

    return GlooEndpoint(rank, ranks, exchange)


BACKEND = GlooBackend()
