"""One rank of an MPI: the library started, its barrier, and its calls bound to the case's buffers.

What is timed is a loop in C over MPI's own functions with arguments that were made before (``loop``), or,
where that cannot be, one mpi4py method for each launch; what goes on beside another collective or behind a
computation is begun from Python, too (``background``). Both let go of the interpreter's lock, so the thread
that listens to the leader can answer while a collective hangs. That thread calls no MPI, so the level that is
asked for is MPI_THREAD_FUNNELED, for which libraries take no locks.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.background import ComputingEndpoint
from ccbench.backends.base import CannotRun, ControlChannel
from ccbench.backends.beside import LANE
from ccbench.backends.cpu.memory import Word
from ccbench.backends.mpi.background import AT_ONCE, LOOKED_AFTER, BothAtOnce, MpiBackground
from ccbench.backends.mpi.calls import Bound, Starter, bind, bind_one_way, starter
from ccbench.backends.mpi.communicators import Communicators
from ccbench.backends.mpi.functions import steps_of
from ccbench.backends.mpi.library import MPICH, library_name, vendor
from ccbench.backends.mpi.loop import FROM_C, FROM_PYTHON, CLoop, Launch, c_loop
from ccbench.cases import OVERLAP, Case
from ccbench.errors import BackendUnavailable

NOT_IN_C = "this call does not go into a loop in C"


def start_library(exchange: ControlChannel) -> Any:
    """mpi4py's module, initialised; BackendUnavailable when its world is not this team. Collective.

    MPICH below MPI_THREAD_MULTIPLE spins without ever giving its processor away: with more ranks than
    processors 8 bytes then take milliseconds instead of microseconds (MPICH 5.0, ch4), so there it gets it.
    """
    settings = importlib.import_module("mpi4py").rc
    settings.initialize = False
    settings.finalize = False
    mpi = importlib.import_module("mpi4py.MPI")
    name = library_name(mpi.Get_library_version())
    many = exchange.oversubscribed and vendor(name) == MPICH
    if not mpi.Is_initialized():  # processes of one launcher may have met over it
        mpi.Init_thread(mpi.THREAD_MULTIPLE if many else mpi.THREAD_FUNNELED)
    world = mpi.COMM_WORLD
    if world.size != exchange.ranks and "TORCHELASTIC_RUN_ID" in os.environ:
        raise BackendUnavailable(
            f"mpi: torchrun started these {exchange.ranks} processes, and no MPI comes up between "
            f"them ({name} sees a world of {world.size}); start with mpirun, mpiexec or srun, or leave mpi "
            "out (--backend)"
        )
    if world.size != exchange.ranks:
        raise BackendUnavailable(
            f"mpi: the launcher started {exchange.ranks} ranks, but {name} sees a world of {world.size}: the "
            "launcher belongs to another MPI than the library that mpi4py loads; use that library's own "
            "mpiexec, or install mpi4py for the launcher's MPI"
        )
    if world.rank != exchange.rank:
        raise BackendUnavailable(
            f"mpi: {name} calls this process rank {world.rank}, its launcher rank {exchange.rank}; "
            "start the ranks with one launcher, the library's own"
        )
    return mpi


class MpiEndpoint(ComputingEndpoint):
    """Implements ``ccbench.backends.crew.TeamEndpoint`` on buffers of the host."""

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(exchange)
        self._mpi = start_library(exchange)
        self._world = self._mpi.COMM_WORLD.Dup()
        self.version = (
            f"{library_name(self._mpi.Get_library_version())}, "
            f"mpi4py {importlib.import_module('mpi4py').__version__}"
        )
        self._c = self._agreed(c_loop(self._mpi))
        self.version += f", {FROM_PYTHON if isinstance(self._c, str) else FROM_C}"
        self._loop: Launch | None = None
        self._in_python = ""
        self._wait_for_all = self._world.Barrier
        self._communicators = Communicators(self._mpi, self._world)
        self._bound: Bound | None = None
        self._barrier_word = self._own + Word.BARRIER
        self._barriers = 0

    def _agreed(self, found: CLoop | str) -> CLoop | str:
        """All ranks launch in the same way: the first one's reason not to launch from C counts for all."""
        reason = found if isinstance(found, str) else ""
        told = [text.decode() for text in self.exchange.all_gather(reason.encode())]
        first = next((rank for rank, text in enumerate(told) if text), None)
        return found if first is None else f"rank {first}: {told[first]}"

    def bind(self) -> Any:
        """The MPI call of this rank's part of the case."""
        if self.case.mode == OVERLAP or self.beside:
            return self._bind_in_background()
        communicator = self._communicators.of(self.case.members)
        pair = self.case.one_pair
        one_way = pair is not None and not pair.both
        try:
            self._bound = (bind_one_way if one_way else bind)(
                self._mpi, communicator, self.part, self.source, self.target
            )
        except NotImplementedError:  # the header is of a newer standard than the library
            raise CannotRun(f"{self.version} has no {self.case.mode} {self.case.collective}") from None
        if not isinstance(self._c, str):
            steps = steps_of(
                self._mpi,
                communicator,
                self.part,
                self.source,
                self.target,
                self._bound.requests,
                one_way,
            )
            self._loop = self._c.launch(steps) if steps else None
        self._in_python = "" if self._loop else self._c if isinstance(self._c, str) else NOT_IN_C
        return self._bound.call

    def _bind_in_background(self) -> Any:
        """What is begun without blocking: both collectives of a case, or the one that is computed behind."""
        own = self._starter() if self.member >= 0 else None
        if not self.beside:
            assert own is not None, "a rank without a part binds nothing"
            self.background = background = MpiBackground(self._mpi, own)
            return background.launch
        other = None
        if self.beside.member >= 0:
            communicator = self._communicators.of(self.beside.case.members, LANE)
            other = starter(self._mpi, communicator, self.beside.part, self.beside.source, self.beside.target)
        assert self.part_times is not None, "tells_apart says so"
        return BothAtOnce(self._mpi, (own, other), self.part_times.running)

    def _starter(self) -> Starter:
        pair = self.case.one_pair
        one_way = pair is not None and not pair.both
        communicator = self._communicators.of(self.case.members)
        return starter(self._mpi, communicator, self.part, self.source, self.target, one_way)

    def tells_apart(self, other: Case) -> bool:
        """Always: requests tell when they are complete."""
        return True

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        if self._loop is None or self._fault:
            super().launch(times)
            return
        self._entered_seconds = time.perf_counter()
        self._loop(times)
        self._left_seconds = time.perf_counter()

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; the seconds that it took, of which nobody can tell what was waiting."""
        with self._unsupported_said():  # these are a case's first launches
            if self._loop is None or self._fault:
                return super().launch_and_time_waits(times)
            began = time.perf_counter()
            self._loop(times)
            return time.perf_counter() - began

    @contextmanager
    def _unsupported_said(self) -> Iterator[None]:
        """CannotRun where the library says that it does not support what is asked of it."""
        try:
            yield
        except self._mpi.Exception as error:
            if error.Get_error_class() != self._mpi.ERR_UNSUPPORTED_OPERATION:
                raise
            asked = f"{self.part.collective} {self.case.algorithm} of {self.part.ranks} ranks"
            raise CannotRun(f"{self.version}: {asked} is {error}") from None

    def remark(self) -> str:
        """How samples were taken, where that is not the usual way."""
        said = [super().remark()]
        if self._in_python and not self.rank:
            said.append(f"{FROM_PYTHON} ({self._in_python})")
        return "; ".join(filter(None, said))

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective."""
        self._drop()
        self._in_python = ""
        self._communicators.make(case.members)
        other = case.concurrent_case
        if other is not None:
            self._communicators.make(other.members, LANE)
        with self._unsupported_said():  # an algorithm of MPI_Allgather is asked for the ranks' numbers, too
            label = super().prepare(case)
        if case.mode == OVERLAP or other is not None:  # on ranks that stand by, too
            self._in_python = LOOKED_AFTER if other is None else AT_ONCE
        return label

    def _drop(self) -> None:
        self._loop = self.background = None
        if self._bound is not None:
            self._bound.free()
            self._bound = None

    def finish(self) -> None:
        """Free the request and drop the buffers. Collective."""
        self._drop()
        super().finish()

    def close(self) -> None:
        """Free the communicators and finalise the library, which removes its files."""
        self._communicators.free()
        self._world.Free()
        self._mpi.Finalize()

    # -- numbers from all ranks ----------------------------------------------------------------------------

    def barrier(self) -> None:
        """The library's barrier; how often this rank has come to one is there for whoever asks."""
        self._barriers += 1
        self.control.words[self._barrier_word] = self._barriers
        self._wait_for_all()

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        told = np.array([value], np.int64)
        self._world.Bcast([told, 1, self._mpi.INT64_T], 0)
        return int(told[0])

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's array, by rank."""
        told = np.empty((self.ranks, len(mine)))
        self._world.Allgather([mine, len(mine), self._mpi.DOUBLE], [told, len(mine), self._mpi.DOUBLE])
        return told
