"""One rank of an MPI: the library started, its barrier, and its calls bound to the case's buffers.

What is timed is one mpi4py method with arguments that were made before: memory, count and datatype. mpi4py
lets the interpreter's lock go inside, so the thread that listens to the leader can answer while a collective
hangs. That thread calls no MPI, so the level that is asked for is MPI_THREAD_FUNNELED, for which libraries
take no locks.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.apart import ApartEndpoint
from ccbench.backends.base import CannotRun
from ccbench.backends.cpu.memory import Word
from ccbench.backends.mpi.calls import Bound, bind, bind_one_way
from ccbench.backends.mpi.library import MPICH, library_name, vendor
from ccbench.cases import Case
from ccbench.errors import BackendUnavailable
from ccbench.exchange import Exchange

PLAIN_MODES = ("streaming", "isolated")


def start_library(exchange: Exchange) -> Any:
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


class MpiEndpoint(ApartEndpoint):
    """Implements ``ccbench.backends.crew.TeamEndpoint`` on buffers of the host."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._mpi = start_library(exchange)
        self._world = self._mpi.COMM_WORLD.Dup()
        self.version = (
            f"{library_name(self._mpi.Get_library_version())}, "
            f"mpi4py {importlib.import_module('mpi4py').__version__}"
        )
        self._wait_for_all = self._world.Barrier
        self._communicators: dict[tuple[tuple[int, ...], ...], Any] = {}
        self._bound: Bound | None = None
        self._barrier_word = self._own + Word.BARRIER
        self._barriers = 0

    def bind(self) -> Any:
        """The MPI call of this rank's part of the case."""
        communicator = self._communicator(self.case)
        pair = self.case.one_pair
        one_way = pair is not None and not pair.both
        try:
            self._bound = (bind_one_way if one_way else bind)(
                self._mpi, communicator, self.part, self.source, self.target
            )
        except NotImplementedError:  # the header is of a newer standard than the library
            raise CannotRun(f"{self.version} has no {self.case.mode} {self.case.collective}") from None
        return self._bound.call

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective."""
        self._drop()
        self._split(case)
        return super().prepare(case)

    def _split(self, case: Case) -> None:
        """A communicator for every group that has not been there yet: all ranks must take part."""
        if case.members in self._communicators or case.members[0] == tuple(range(self.ranks)):
            return
        colours = [number for number, members in enumerate(case.members) if self.rank in members]
        colour = colours[0] if colours else self._mpi.UNDEFINED
        key = case.members[colour].index(self.rank) if colours else 0
        self._communicators[case.members] = self._world.Split(colour, key)

    def _communicator(self, case: Case) -> Any:
        return self._communicators.get(case.members, self._world)

    def _drop(self) -> None:
        if self._bound is not None:
            self._bound.free()
            self._bound = None

    def finish(self) -> None:
        """Free the request and drop the buffers. Collective."""
        self._drop()
        super().finish()

    def close(self) -> None:
        """Finalise the library, which removes its files."""
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


def launched_endpoint(rank: int, ranks: int, exchange: Exchange) -> MpiEndpoint:
    """The endpoint of one launched rank."""
    return MpiEndpoint(exchange)
