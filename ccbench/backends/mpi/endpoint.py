"""One rank of an MPI: the library started, its barrier, and its calls bound to the case's buffers.

What is timed is a loop in C over MPI's own functions with arguments that were made before (``loop``), or,
where that cannot be, one mpi4py method for each launch; what goes on beside another collective is
begun from Python, too. Both let go of the interpreter's lock, so the thread that listens to
the leader can answer while a collective hangs. That thread calls no MPI, so the level that is asked for is
MPI_THREAD_FUNNELED, for which libraries take no locks.
"""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import CannotRun, ControlChannel, gathered
from ccbench.backends.cuda.runtime import do_all
from ccbench.backends.device_memory import DeviceMemory
from ccbench.backends.mpi.calls import (
    FROM_C,
    FROM_PYTHON,
    Launch,
    MpiCall,
    c_loop,
    steps_of,
)
from ccbench.backends.mpi.device import device_of_rank, why_not_cuda_aware
from ccbench.backends.mpi.library import library_name, vendor
from ccbench.backends.rank_endpoint import (
    HostMemory,
    RankEndpoint,
)
from ccbench.cases.axes import DEVICE_MEMORY, Case
from ccbench.errors import BackendUnavailable
from ccbench.machine.mpi import MPICH, initialise, loaded_mpi

NOT_IN_C = "this call does not go into a loop in C"


def start_library(exchange: ControlChannel) -> Any:
    """Return mpi4py's module, initialised; BackendUnavailable when its world is not this team. Collective.

    MPICH below MPI_THREAD_MULTIPLE spins without ever giving its processor away: with more ranks than
    processors 8 bytes then take milliseconds instead of microseconds (MPICH 5.0, ch4), so there it gets it.
    """
    mpi = loaded_mpi()
    name = library_name(mpi.Get_library_version())
    many = exchange.oversubscribed and vendor(name) == MPICH
    if not mpi.Is_initialized():  # processes of one launcher may have met over it
        initialise(mpi, mpi.THREAD_MULTIPLE if many else mpi.THREAD_FUNNELED)
    # A launcher of another make starts worlds of one rank each, without a word.
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


Groups = tuple[tuple[int, ...], ...]

MOST_KEPT = 512
"""MPICH has room for about 2048 in each process; beyond this number the one not asked for longest goes."""


class GroupCommunicators:
    """Communicators of groups: made by all ranks together at first use, kept, freed at the end.

    Every rank makes and frees the same ones in the same order, those it does not belong to as well.
    """

    def __init__(self, mpi: Any, world: Any) -> None:
        """world: of the whole team; serves its plain cases, and is not freed here."""
        self._mpi, self._world = mpi, world
        self._made: dict[Groups, Any] = {}

    def make(self, groups: Groups) -> None:
        """See that there is one for ``groups``. Collective among all ranks."""
        if self._is_world(groups):
            return
        if groups in self._made:
            self._made[groups] = self._made.pop(groups)  # now the one asked for last
            return
        if len(self._made) >= MOST_KEPT:
            self._free(self._made.pop(next(iter(self._made))))
        rank = self._world.rank
        # The place in its group is the key, so that ranks are numbered as the suite lists them.
        colours = [number for number, members in enumerate(groups) if rank in members]
        colour = colours[0] if colours else self._mpi.UNDEFINED
        key = groups[colour].index(rank) if colours else 0
        self._made[groups] = self._world.Split(colour, key)

    def of(self, groups: Groups) -> Any:
        """Return this rank's communicator for ``groups``, once made; none where it is in no group."""
        return self._world if self._is_world(groups) else self._made[groups]

    def free(self) -> None:
        """Give all back. Collective among all ranks."""
        while self._made:
            _, made = self._made.popitem()
            self._free(made)

    def _free(self, made: Any) -> None:
        if made != self._mpi.COMM_NULL:
            made.Free()

    def _is_world(self, groups: Groups) -> bool:
        return groups == (tuple(range(self._world.size)),)


class MpiEndpoint(RankEndpoint):
    """One rank, with buffers in memory of the host or of a GPU."""

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(exchange)
        # Before MPI starts: libraries take the device that is current then.
        device = device_of_rank(exchange)
        self._mpi = start_library(exchange)
        # Processes of one launcher may have met over the world: messages of cases keep apart from those.
        self._world = self._mpi.COMM_WORLD.Dup()
        self._wait_for_all = self._world.Barrier
        self._host_memory = self.memory
        refused = why_not_cuda_aware(self._mpi, os.environ) if device else None
        if refused:
            raise BackendUnavailable(f"mpi with memory: device: {refused}")
        self._device_memory = DeviceMemory(self, *device) if device else None
        # All ranks launch in the same way: one's reason not to launch from C counts for all.
        self._c = c_loop(self._mpi)
        reason = self._c if isinstance(self._c, str) else ""
        reasons = gathered(exchange, reason)
        first = next((rank for rank, text in enumerate(reasons) if text), None)
        if first is not None:
            self._c = f"rank {first}: {reasons[first]}"
        self.version = (
            f"{library_name(self._mpi.Get_library_version())}, "
            f"mpi4py {importlib.import_module('mpi4py').__version__}, "
            f"{FROM_PYTHON if isinstance(self._c, str) else FROM_C}"
        )
        self._loop: Launch | None = None
        self._in_python = ""
        self._communicators = GroupCommunicators(self._mpi, self._world)

    def bind(self) -> Any:
        """Return MPI's calls of this rank's part of the case."""
        lane = self.own
        pair = lane.case.one_pair
        one_way = pair is not None and not pair.both
        assert lane.part is not None, "a rank that belongs to no group binds nothing"
        communicator = self._communicators.of(lane.case.members)
        buffers = lane.source, lane.target
        call = MpiCall(
            self._mpi, communicator, lane.part.case, buffers, one_way, self.memory.copy
        )
        on_host = (
            self.memory is self._host_memory
        )  # a device's copy is no step of the loop in C
        if not isinstance(self._c, str) and (on_host or not call.copies):
            self._loop = self._c.launch(steps_of(call))
        self._in_python = (
            "" if self._loop else self._c if isinstance(self._c, str) else NOT_IN_C
        )
        return call.launch

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""
        if self._loop is None or self.fault:
            super().launch(times)
            return
        self._entered_seconds = time.perf_counter()
        self._loop(times)
        self._left_seconds = time.perf_counter()

    def launch_and_time_waits(self, times: int) -> float:
        """Launch; return the seconds that it took: the share of waiting in them is unknown."""
        try:  # these are a case's first launches
            if self._loop is None or self.fault:
                return super().launch_and_time_waits(times)
            began = time.perf_counter()
            self._loop(times)
            return time.perf_counter() - began
        except self._mpi.Exception as error:
            raise self._refusal(error) from None

    def _refusal(self, error: Any) -> Exception:
        """Return CannotRun where the library says that it does not support what is asked, else ``error``."""
        if error.Get_error_class() != self._mpi.ERR_UNSUPPORTED_OPERATION:
            refused: Exception = error
            return refused
        what = f"{self.case.collective} {self.case.algorithm} of {self.case.group_ranks} ranks"
        return CannotRun(f"{self.version}: {what} is {error}")

    def remark(self) -> str:
        """Return how samples were taken, where that is not the usual way."""
        remarks = [super().remark()]
        if self._in_python and not self.rank:
            remarks.append(f"{FROM_PYTHON} ({self._in_python})")
        return "; ".join(filter(None, remarks))

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; returns the algorithm that runs. Collective."""
        self._loop, self._in_python = None, ""
        memory: HostMemory | None = (
            self._device_memory if case.memory == DEVICE_MEMORY else self._host_memory
        )
        if memory is None:
            raise CannotRun("memory: device was not asked for when these ranks were started")
        self.memory = memory
        self._communicators.make(case.members)
        try:  # an algorithm of MPI_Allgather is asked for the ranks' numbers, too
            return super().prepare(case)
        except self._mpi.Exception as error:
            raise self._refusal(error) from None

    def close(self) -> None:
        """Free the communicators and finalise the library, which removes its files."""
        memory = [self._device_memory.close] if self._device_memory else []
        do_all([*memory, self._communicators.free, self._world.Free, self._mpi.Finalize])

    # -- numbers from all ranks ----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Wait in the library's barrier, and count for the watchdog that this rank has come to it."""
        self.memory.settle()
        self.count()
        try:
            self._wait_for_all()
        except self._mpi.Exception as error:  # a forced algorithm of MPI_Barrier runs here, too
            raise self._refusal(error) from None

    def agree(self, value: int) -> int:
        """Return rank 0's value, on every rank."""
        self.count()
        number = np.array([value], np.int64)
        self._world.Bcast([number, 1, self._mpi.INT64_T], 0)
        return int(number[0])

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return every rank's array, by rank."""
        self.count()
        gathered = np.empty((self.ranks, len(mine)))
        self._world.Allgather(
            [mine, len(mine), self._mpi.DOUBLE], [gathered, len(mine), self._mpi.DOUBLE]
        )
        return gathered
