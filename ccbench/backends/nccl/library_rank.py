"""One rank in a process of its own, by the host's clock: of libraries of NCCL's shape for processors.

Such a library takes addresses of the host and returns when a call is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ccbench.backends.base import Backend, CannotRun, ControlChannel, TeamLaunch, TeamRequest
from ccbench.backends.nccl.collectives import Call, prepared
from ccbench.backends.nccl.communicators import Communicators
from ccbench.backends.nccl.dialects import Dialect, library_folder
from ccbench.backends.nccl.library import Library, LibraryFailed
from ccbench.backends.rank_endpoint import OWN, RankBuffers, RankEndpoint
from ccbench.cases.axes import NO_OP, Case
from ccbench.cases.measurement import CaseFacts
from ccbench.groups import parse_groups
from ccbench.machine.software import installed_version

NO_STREAM = 0


class BlocksInPlace(RankBuffers):
    """Buffers of a rank as NCCL's header has them in place: a scattered sum is at the rank's own block."""

    blocks_stay = ("scatter", "reduce_scatter")


class LibraryRank(RankEndpoint):
    """One rank. settings: variables that were set for the library, which its cases record."""

    buffers = BlocksInPlace

    def __init__(
        self,
        exchange: ControlChannel,
        library: Library,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(exchange)
        self._settings = json.dumps(settings) if settings else ""
        self.library = library
        self._communicators = Communicators(library, {self.rank: 0}, self.ranks, exchange)
        self._words = np.zeros(2, np.int32)
        at = self._words.ctypes.data
        call = Call("barrier", at, at + self._words.itemsize, 1, "int32")
        self._meet = prepared(self._communicators.world()[self.rank], call, NO_STREAM)
        # As the library tells it: a wheel's number is another one for the same file.
        self.version = f"{library.dialect.label} {library.version_text}"

    def facts(self) -> CaseFacts:
        """Return the case's facts, with the library's settings."""
        return replace(super().facts(), library_settings=self._settings)

    def prepare(self, case: Case) -> str:
        """Make the communicators of the case's groups, then get ready. Collective."""
        try:
            groups = parse_groups(case.groups, case.ranks) if case.groups else ()
            self._of_case = self._communicators.of(OWN, groups)
            return super().prepare(case)
        except LibraryFailed as error:
            raise CannotRun(f"{self.library.dialect.label} refuses: {error}") from None

    def bind(self) -> Any:
        """Return the library's call on the rank's buffers."""
        part, lane = self.own.part, self.own
        assert part is not None, "a rank that belongs to no group binds nothing"
        case = part.case
        call = Call(
            case.collective,
            lane.input.ctypes.data,
            lane.output.ctypes.data,
            case.count,
            case.dtype,
            "sum" if case.op == NO_OP else case.op,
            max(case.root, 0),
        )
        return prepared(self._of_case[self.rank], call, NO_STREAM)

    def launch_and_time_waits(self, times: int) -> float:
        """Launch; return the seconds that it took. CannotRun where the library does not take the call."""
        try:  # these are a case's first launches
            return super().launch_and_time_waits(times)
        except LibraryFailed as error:
            if not error.refused:
                raise
            raise CannotRun(f"{self.library.dialect.label} refuses: {error}") from None

    def barrier(self) -> None:
        """Return when every rank has called it: an all_reduce of one element, as the library has no other."""
        self.count()
        self._meet()

    def close(self) -> None:
        """Give communicators back."""
        self._communicators.close()


class HostLibraryBackend(Backend):
    """A library whose ranks have processes of their own."""

    def __init__(self, dialect: Dialect) -> None:
        self.name = dialect.name
        self._dialect = dialect

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return what is missing: the library."""
        label, install = self._dialect.label, self._dialect.install
        return None if library_folder(self._dialect) else f"{label} is not installed: {install}"

    def version(self) -> str:
        """Return the wheel's version, else that of a library that only ranks see."""
        return f"{self._dialect.label} {installed_version(self.name) or 'of the system'}"

    def refused(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run here."""
        label = self._dialect.label
        if case.algorithm != "default":
            return f"{label}'s algorithms are chosen by its own variables; write default"
        if case.op not in (NO_OP, *self._dialect.ops):
            return f"{label} has no {case.op}; it has {', '.join(self._dialect.ops)}"
        return None

    def launch(self, request: TeamRequest) -> TeamLaunch | None:
        """Return the user's own launcher; without one the leader starts the ranks on its host."""
        # Workers of oneCCL and proxies of NCCL need processors, too: with one for each rank of two, oneCCL's 8 B took
        # thirty times as long.
        return request.launch or TeamLaunch(pinned=False)
