"""``cuda-ipc``: one process for each rank, which opens the others' memory through CUDA IPC.

Handles travel through shared memory that the leader made before it forked. Ranks share a clock but no stream,
so samples are times of the host: launches and one wait at the end. Without MPS, processes that share a GPU
take turns on it: right, but slow.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Mapping

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cpu.memory import Control, Word, fence
from ccbench.backends.cuda.endpoint import CudaRanks
from ccbench.backends.cuda.group import Group
from ccbench.backends.cuda.launching import LIMIT_SECONDS
from ccbench.backends.cuda.runtime import Cuda, device_count, no_peer_access, open_cuda, starting
from ccbench.cases import Case
from ccbench.kernels.layout import device_of_rank, ranks_of_devices

HANDLE_BYTES = 64
"""CUDA_IPC_HANDLE_SIZE."""

WORK, BUFFERS = 0, 1
"""The two allocations of a rank."""

POLLS_BEFORE_SLEEP = 200
SLEEP_SECONDS = 5e-5


class HandleBoard:
    """Where every rank leaves the handles of its two allocations; made before the fork."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._memory = mmap.mmap(-1, ranks * 2 * HANDLE_BYTES)

    def _place(self, rank: int, allocation: int) -> slice:
        begin = (2 * rank + allocation) * HANDLE_BYTES
        return slice(begin, begin + HANDLE_BYTES)

    def write(self, rank: int, allocation: int, handle: bytes) -> None:
        """Leave a handle; readers may look after the next barrier."""
        self._memory[self._place(rank, allocation)] = handle.ljust(HANDLE_BYTES, b"\0")

    def read(self, rank: int, allocation: int) -> bytes:
        """The handle that a rank left."""
        return self._memory[self._place(rank, allocation)]


class IpcEndpoint(CudaRanks):
    """Implements ``ccbench.backends.crew.TeamEndpoint`` for one rank."""

    def __init__(self, rank: int, control: Control, board: HandleBoard, cuda: Cuda) -> None:
        self.rank = rank
        self.ranks = board.ranks
        self.prefix = f"rank {rank}: "
        self._board = board
        self._cuda = cuda
        self._barriers = 0
        self._capacity_bytes = 0
        self._peer_work: dict[int, int] = {}
        self._peer_buffers: dict[int, int] = {}
        shares = ranks_of_devices(board.ranks, device_count(cuda))
        device = device_of_rank(shares, rank)
        for one, other in itertools.permutations(range(len(shares)), 2):
            if not cuda.runtime.deviceCanAccessPeer(one, other):  # every rank comes to the same answer
                raise CannotRun(no_peer_access(one, other))
        group = Group(cuda, cuda.facts(device), range(rank, rank + 1))
        processors = min(cuda.facts(one).processors for one in range(len(shares)))
        super().__init__(control, [group], shares, processors, LIMIT_SECONDS)

    def arm(self, case: Case) -> None:
        """Only this rank's faults are this process's."""
        super().arm(case)
        self._faults = [(rank, fault) for rank, fault in self._faults if rank == self.rank]

    # -- each other's memory -----------------------------------------------------------------------------

    def _exchange(self, allocation: int, address: int) -> dict[int, int]:
        """Addresses of all ranks' allocations, as this process sees them. Collective."""
        runtime = self._cuda.runtime
        self._cuda.use(self.groups[0].facts.number)
        self._board.write(self.rank, allocation, runtime.ipcGetMemHandle(address))
        self.barrier()
        peers = (rank for rank in range(self.ranks) if rank != self.rank)
        opened = {rank: int(runtime.ipcOpenMemHandle(self._board.read(rank, allocation))) for rank in peers}
        self.barrier()
        return {**opened, self.rank: address}

    def _close(self, opened: Mapping[int, int]) -> None:
        for rank, address in opened.items():
            if rank != self.rank:
                self._cuda.runtime.ipcCloseMemHandle(address)

    def _reserve_buffers(self) -> None:
        """As large on every rank as the largest needs, so that all know without asking when all must grow."""
        needed = max(one.total_bytes for one in self._layout)
        if needed <= self._capacity_bytes and self._peer_buffers:
            return
        self._release_buffers()
        self._reserve_everywhere(needed)
        self._capacity_bytes = needed
        self._peer_buffers = self._exchange(BUFFERS, self.groups[0].buffers[self.rank])

    def _reserve_everywhere(self, size_bytes: int) -> None:
        """OutOfMemory on every rank when there is one that it concerns: nobody waits for who gave up."""
        failed: OutOfMemory | None = None
        try:
            self.groups[0].reserve_buffer(self.rank, size_bytes)
        except OutOfMemory as error:
            failed = error
        if not self.least(0 if failed else 1):
            self.groups[0].release_buffers()
            raise failed or OutOfMemory(f"another rank's device has no {size_bytes} bytes left")

    def _release_buffers(self) -> None:
        """Memory may go only when nobody has it open any more. Collective."""
        self._close(self._peer_buffers)
        self._peer_buffers = {}
        self._capacity_bytes = 0
        self.barrier()
        super()._release_buffers()

    def _work_addresses(self) -> dict[int, int]:
        if not self._peer_work:
            self._peer_work = self._exchange(WORK, self.groups[0].work[self.rank])
        return self._peer_work

    def _buffer_addresses(self) -> dict[int, int]:
        return self._peer_buffers

    # -- ccbench.measure.Endpoint --------------------------------------------------------------------------

    def barrier(self) -> None:
        """All ranks' barrier counters reach the same number."""
        self._barriers += 1
        control, goal = self.control, self._barriers
        fence()
        control.words[control.index(self.rank, Word.BARRIER)] = goal
        for step in range(1, self.ranks):
            self._until(control.index((self.rank + step) % self.ranks, Word.BARRIER), goal)

    def _until(self, index: int, goal: int) -> None:
        words = self.control.words
        polls = 0
        while words[index] < goal:
            polls += 1
            if polls > POLLS_BEFORE_SLEEP:
                time.sleep(SLEEP_SECONDS)
            else:
                os.sched_yield()
        fence()

    def least(self, value: int) -> int:
        """The least value of all ranks. Collective."""
        control = self.control
        control.words[control.index(self.rank, Word.ARRIVED)] = value
        self.barrier()
        found = min(control.read(rank, Word.ARRIVED) for rank in range(self.ranks))
        self.barrier()
        return found

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        control = self.control
        if self.rank == 0:
            control.words[control.index(0, Word.DECISION)] = value
        self.barrier()
        agreed = control.read(0, Word.DECISION)
        self.barrier()
        return agreed


class IpcCrew:
    """Implements ``ccbench.backends.crew.Crew``."""

    pinned = False
    whole = False
    oversubscribed = False

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        self.processes = ranks
        self.control = Control(ranks, sample_capacity)
        self._board = HandleBoard(ranks)

    def endpoint(self, process: int) -> IpcEndpoint:
        """The endpoint of rank ``process``; CUDA starts here, in the process that uses it."""
        with starting():
            return IpcEndpoint(process, self.control, self._board, open_cuda())


def crew(ranks: int, sample_capacity: int) -> IpcCrew:
    """A crew of ``ranks`` processes."""
    return IpcCrew(ranks, sample_capacity)
