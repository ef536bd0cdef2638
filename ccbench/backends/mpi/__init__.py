"""The MPI backend: mpi4py over Open MPI, MPICH or Intel MPI, by the same rules as ccbench's own backends.

``ccbench run --backend mpi`` starts a team through the library's own mpiexec (see ``launcher``); each process
is one rank, measures with ``ccbench.runner.measure`` on ccbench's data, checks what the timed calls left, and
reports to the team's leader. Only the timed call is MPI's (``calls``).
The runner itself loads no MPI: which one is there is asked in a process of its own (``library``).

Buffers are memory of the host, or with ``memory: device`` of GPUs (``device``). The functions
that block are called. ``algorithm: mpi:<name>`` forces one of the library's own algorithms (``library``).
"""

from __future__ import annotations

import os
from dataclasses import replace

from ccbench.backends.base import Backend, CannotRun, Environment, TeamLaunch, TeamRequest
from ccbench.backends.mpi.calls import refusal
from ccbench.backends.mpi.library import (
    CHOOSING,
    PREFIX,
    MpiLibrary,
    installed,
    loading,
    local_launch,
    names_of,
    settings,
)
from ccbench.cases.axes import DEVICE_MEMORY, Case
from ccbench.errors import BackendUnavailable

RANKS_LIMIT = 256
"""Ranks that share the processors of one machine."""


def _installed_with(environment: Environment) -> MpiLibrary | str:
    return installed(tuple(variable for variable in environment if variable[0] in CHOOSING))


class MpiBackend(Backend):
    """MPI, started by a launcher."""

    name = "mpi"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return what is missing: mpi4py, an MPI that it finds, and that MPI's own mpiexec."""
        library = installed()
        return library if isinstance(library, str) else None

    def _library(self, environment: Environment = ()) -> MpiLibrary:
        library = _installed_with(environment)
        if isinstance(library, str):
            raise BackendUnavailable(f"backend {self.name}: {library}")
        return library

    def library_version(self, library: str) -> str:
        """Return the library and mpi4py."""
        installation = _installed_with(loading(library))
        if isinstance(installation, str):
            raise CannotRun(installation)
        return installation.version

    def library_settings(self, library: str) -> Environment:
        """Return what mpi4py finds the library by, and the system its parts and tools."""
        return loading(library)

    def variant_refused(self, case: Case) -> str | None:
        """Return the reason why ranks cannot be started with the variant of ``case``, or None."""
        installation = _installed_with(self.variant_settings(case.started_with))
        wrong = (
            f"{(f'variant {case.variant}: ' if case.variant else '')}{installation}"
            if isinstance(installation, str)
            else None
        )
        return wrong or super().variant_refused(case)

    def version(self) -> str:
        """Return the library and mpi4py."""
        return self._library().version

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Return ``mpi:ring`` and so on, as the installed library lists them."""
        return names_of(self._library(), collective)

    def refused(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run here."""
        library = self._library(self.variant_settings(case.started_with))
        refused = refusal(case, library)
        if refused or case.algorithm == "default":
            return refused
        names = names_of(library, case.collective)
        if case.algorithm not in names:
            have = f"one of {', '.join(names)}" if names else "none that it lists"
            return (
                f"{library.name} has no algorithm {case.algorithm} of {case.collective}: {have}"
            )
        return None

    def team_settings(self, case: Case) -> Environment:
        """Return what lets the library take addresses of GPUs, and what forces an algorithm."""
        from ccbench.backends.mpi.device import (
            MEMORY_VARIABLE,
            device_settings,
        )  # which loads what GPUs need

        library = _installed_with(self.variant_settings(case.started_with))
        if isinstance(library, str):
            return ()  # the case is refused
        needed: Environment = ()
        if case.memory == DEVICE_MEMORY:
            needed = ((MEMORY_VARIABLE, DEVICE_MEMORY), *device_settings(library.name))
        # What is set already is not asked for: a library that a launcher has started can be given no more.
        missing = tuple(
            (name, value) for name, value in needed if os.environ.get(name) != value
        )
        if not case.algorithm.startswith(PREFIX):
            return missing
        return (*missing, *settings(library, case.collective, case.algorithm))

    def launch(self, request: TeamRequest) -> TeamLaunch | None:
        """Return the user's own launcher, or the library's mpiexec."""
        from ccbench.backends.mpi.device import MEMORY_VARIABLE

        launch = request.launch
        if launch is None:
            if request.ranks > RANKS_LIMIT:
                raise BackendUnavailable(
                    f"{self.name}: {request.ranks} ranks; at most {RANKS_LIMIT} share one machine's "
                    "processors here; start ranks on more machines with --launch"
                )
            launch = local_launch(self._library(request.environment), request.ranks)
        # A rank's number says nothing about which processors are near its GPU.
        memory = dict(request.environment).get(MEMORY_VARIABLE) or os.environ.get(
            MEMORY_VARIABLE
        )
        return replace(launch, pinned=memory != DEVICE_MEMORY)


BACKEND = MpiBackend()
