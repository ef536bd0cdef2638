"""``processes: per_gpu``: one process for each rank, which opens the others' memory through CUDA IPC.

Handles travel through shared memory that the leader made before it forked; there lies the word of the
blocking kernel too, by which all devices start together. Without MPS, processes that share a GPU take turns
on it: right, but slow.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.control_block import Control, Word, fence
from ccbench.backends.cuda.blocking_kernel import SharedWords
from ccbench.backends.cuda.context import DeviceContext, RankPlaces
from ccbench.backends.cuda.endpoint import LIMIT_SECONDS, CudaRanks, T
from ccbench.backends.cuda.runtime import (
    Cuda,
    DeviceFacts,
    device_count,
    do_all,
    open_cuda,
    starting,
)
from ccbench.backends.endpoint import WorkerGroup
from ccbench.backends.kernels.layout import device_of_rank, ranks_of_devices
from ccbench.cases.axes import Case
from ccbench.errors import CcbenchError

SPIN_SECONDS, SLEEP_SECONDS = 0.02, 5e-5
"""A barrier before a sample is over long before it would sleep: who sleeps starts late."""

CLOSE_LIMIT_SECONDS = 0.8
"""Time that closing waits for a peer that may be dead."""

CLOSING_SECONDS = 1.5
"""Time that a team may take to close before it is killed: longer than one waits for the dead, shorter than the
runner waits for the team's leader (CLOSE_SECONDS)."""

NOTE_BYTES = 1000
"""Of what a rank tells with a step: CUDA's handles have 64 bytes, a reason is cut where it is longer."""

FINE, CANNOT_RUN, OUT_OF_MEMORY, FAILED, CLOSING = range(5)
"""Verdicts on one rank's share of a step that all ranks take together, and on its share in anything."""

RAISED: dict[int, type[Exception]] = {CANNOT_RUN: CannotRun, OUT_OF_MEMORY: OutOfMemory}
"""Errors that every rank raises where one rank did; others become CcbenchError."""


class Notes:
    """A verdict and some bytes of every rank, in memory that is made before the fork."""

    def __init__(self, ranks: int) -> None:
        self._memory = mmap.mmap(-1, ranks * NOTE_BYTES)

    def write(self, rank: int, verdict: int, text: bytes = b"") -> None:
        """Leave a rank's."""
        begin, text = rank * NOTE_BYTES, text[: NOTE_BYTES - 3]
        self._memory[begin + 1 : begin + 3] = len(text).to_bytes(2, "little")
        self._memory[begin + 3 : begin + 3 + len(text)] = text
        fence()
        self._memory[begin] = verdict  # last: whoever sees it sees the text

    def read(self, rank: int) -> tuple[int, bytes]:
        """Verdict and bytes that a rank left."""
        begin = rank * NOTE_BYTES
        verdict = self._memory[begin]
        fence()
        length = int.from_bytes(self._memory[begin + 1 : begin + 3], "little")
        return verdict, self._memory[begin + 3 : begin + 3 + length]


class Board:
    """Memory in which ranks tell each other more than numbers; made before the fork.

    steps: of each rank what became of its share of a step, with the reason or what the others need of it;
    readers may look between the next two barriers. blocking: words by which all devices start together.
    """

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.steps = Notes(ranks)
        self._parted = Notes(ranks)
        self.blocking = SharedWords(ranks)

    def close(self, rank: int) -> None:
        """Say that this rank has nothing of others' open any more, and never will have."""
        self._parted.write(rank, CLOSING)

    def all_closing(self) -> bool:
        """Return whether every rank is closing."""
        return all(self._parted.read(rank)[0] == CLOSING for rank in range(self.ranks))

    def leave(self, rank: int, text: str) -> None:
        """Say that this rank takes part in nothing, for good."""
        self._parted.write(rank, FAILED, text.encode())

    def absence(self, rank: int) -> str:
        """Reason why a rank takes part in nothing; '' when it takes part, or has not said yet."""
        verdict, text = self._parted.read(rank)
        return text.decode(errors="ignore") if verdict == FAILED else ""


class IpcEndpoint(CudaRanks):
    """Implements ``ccbench.backends.endpoint.TeamEndpoint`` for one rank."""

    def __init__(self, rank: int, control: Control, board: Board, cuda: Cuda) -> None:
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
        context = DeviceContext(cuda, cuda.facts(device), range(rank, rank + 1))
        self._device_facts = [cuda.facts(gpu) for gpu in range(len(shares))]
        # All ranks must lay out memory alike, so the smallest device counts for all.
        processors = min(facts.processors for facts in self._device_facts)
        no_access = cuda.pair_without_access(
            range(len(shares))
        )  # every rank comes to the same answer
        super().__init__(control, [context], shares, processors, LIMIT_SECONDS, no_access)
        self._shared_words = (board.blocking, rank)

    def refusal(self) -> str | None:
        """Return why peers cannot exchange data: processes share no pinned memory that could take them."""
        if self._no_access is None:
            return None
        gpu, peer = self._no_access
        return (
            f"GPU {gpu} cannot address the memory of GPU {peer} (no peer access; `nvidia-smi topo -p2p w` "
            "shows why), and these kernels write into each other's memory; take `processes: one`, which goes "
            "through the host's memory there, or choose GPUs that can with CUDA_VISIBLE_DEVICES"
        )

    @property
    def device_facts(self) -> Sequence[DeviceFacts]:
        """Those of the other processes too, so that all ranks take the same kernel and plan."""
        return self._device_facts

    def own_ranks(self, case: Case) -> Sequence[int]:
        """Return the rank here."""
        return (self.rank,)

    # -- each other's memory -----------------------------------------------------------------------------

    def _exchange(self, address: int) -> dict[int, int]:
        """Addresses of all ranks' allocations, as this process sees them. Collective; all succeed or none."""
        runtime = self._cuda.runtime
        self._cuda.use(self.contexts[0].facts.number)
        # Handles go round first, so that nobody opens memory of a rank that has none.
        _, handles = self._step(lambda: bytes(runtime.ipcGetMemHandle(address)), bytes)
        opened = {self.rank: address}

        def open_all() -> None:
            for rank in range(self.ranks):
                if rank != self.rank:
                    opened[rank] = int(runtime.ipcOpenMemHandle(handles[rank]))

        try:
            self.together(open_all)
        except BaseException:
            self._close(opened)
            raise
        return opened

    def _close(self, opened: Mapping[int, int]) -> None:
        close = self._cuda.runtime.ipcCloseMemHandle
        do_all(
            [partial(close, address) for rank, address in opened.items() if rank != self.rank]
        )

    def reserve_work(self) -> None:
        """Reserve this rank's work space and open that of its peers. Collective."""
        super().reserve_work()
        if not self._peer_work:
            self._peer_work = self._exchange(self.communicator.device[self.rank])

    def reserve_buffers(self) -> None:
        """Reserve on every rank what the largest needs: all know without communication when all must grow."""
        needed = max(buffers.total_bytes for buffers in self._layout)
        if needed <= self._capacity_bytes and self._peer_buffers:
            return
        self.release_buffers()
        try:
            self.together(lambda: self.contexts[0].reserve_buffer(self.rank, needed))
        except BaseException:
            self.contexts[0].release_buffers()  # nobody has opened it
            raise
        self._peer_buffers = self._exchange(self.contexts[0].buffers[self.rank].address)
        self._capacity_bytes = needed

    def release_buffers(self) -> None:
        """Memory may go only when nobody has it open any more. Collective."""
        self._close(self._peer_buffers)
        self._peer_buffers = {}
        self._capacity_bytes = 0
        self.barrier()
        super().release_buffers()

    def rank_places(self) -> dict[int, RankPlaces]:
        """Return the addresses of all ranks, of peers as their memory is open here."""
        places = self.communicator.places
        return {
            rank: RankPlaces(places(rank, self._peer_work[rank]), at)
            for rank, at in self._peer_buffers.items()
        }

    def close(self) -> None:
        """Give everything back; what a peer may still have open stays until this process ends.

        To free exported memory before it has been closed elsewhere is undefined (CUDA Runtime API,
        cudaIpcCloseMemHandle), so all meet first; a peer that died does not come, and is not waited for for
        longer than CLOSE_LIMIT_SECONDS.
        """
        opened = {**self._peer_work}, {**self._peer_buffers}
        self._peer_work, self._peer_buffers = {}, {}

        def keep_what_was_exported() -> None:
            # Words of its own, since who closes has not come to the barrier that others may still wait in.
            self._board.close(self.rank)
            deadline = time.monotonic() + CLOSE_LIMIT_SECONDS
            while not self._board.all_closing():
                absent = any(self._board.absence(rank) for rank in range(self.ranks))
                if absent or time.monotonic() > deadline:
                    self.contexts[0].buffers.clear()
                    for communicator in self._communicators.values():
                        communicator.device.clear()
                    return
                time.sleep(SLEEP_SECONDS)

        closing = [partial(self._close, memory) for memory in opened]
        do_all([*closing, keep_what_was_exported, super().close])

    # -- all ranks together ---------------------------------------------------------------------------------

    def together(self, action: Callable[[], T]) -> T:
        """Return what ``action`` gives, if it succeeds on every rank; else this rank's error, or the first's.

        Every rank ends the case in the same way, and nobody waits for a rank that gave up.
        """
        return self._step(action, lambda value: b"")[0]

    def _step(
        self, action: Callable[[], T], describe: Callable[[T], bytes]
    ) -> tuple[T, list[bytes]]:
        """Act as ``together`` does; return every rank's description of its result, too."""
        failed: Exception | None = None
        try:
            value = action()
            verdict, text = FINE, describe(value)
        except Exception as error:
            failed, text = error, str(error).encode()
            verdict = next(
                (code for code, kind in RAISED.items() if isinstance(error, kind)), FAILED
            )
        # A rank that failed comes to the barrier too: else the others would wait for it for ever.
        self._board.steps.write(self.rank, verdict, text)
        self.barrier()
        notes = [self._board.steps.read(rank) for rank in range(self.ranks)]
        self.barrier()  # nobody writes again before all have read
        if failed is not None:
            raise failed
        for rank, (verdict, text) in enumerate(notes):
            if verdict != FINE:
                raise RAISED.get(verdict, CcbenchError)(
                    f"rank {rank}: {text.decode(errors='ignore')}"
                )
        return value, [text for _, text in notes]

    def _numbers(self, mine: int) -> list[int]:
        """Every rank's number. Collective."""
        _, payloads = self._step(
            lambda: mine, lambda value: value.to_bytes(8, "little", signed=True)
        )
        return [int.from_bytes(payload, "little", signed=True) for payload in payloads]

    def least(self, value: int) -> int:
        """The least value of all ranks. Collective."""
        return min(self._numbers(value))

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        return self._numbers(value)[0]

    # -- Endpoint ------------------------------------------------------------------------------------------

    def barrier(self) -> None:
        """All ranks' barrier counters reach the same number; CannotRun when one takes part in nothing."""
        self._barriers += 1
        fence()
        self.control.words[self.control.index(self.rank, Word.BARRIER)] = self._barriers
        words = self.control.words
        for step in range(1, self.ranks):
            peer = (self.rank + step) % self.ranks
            index = self.control.index(peer, Word.BARRIER)
            spin_until = time.monotonic() + SPIN_SECONDS
            while words[index] < self._barriers:  # the team's watchdog ends a wait in vain
                if time.monotonic() < spin_until:
                    os.sched_yield()
                    continue
                time.sleep(SLEEP_SECONDS)
                absence = self._board.absence(peer)
                if absence:
                    raise CannotRun(f"rank {peer}: {absence}")
        fence()
        self._met = True


class IpcWorkerGroup(WorkerGroup):
    """A process for each rank; they map each other's memory, and part in order."""

    closing_seconds = CLOSING_SECONDS

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        super().__init__(ranks, sample_capacity)
        self._board = Board(ranks)

    def endpoint(self, process: int) -> IpcEndpoint:
        """The endpoint of rank ``process``; CUDA starts here, in the process that uses it."""
        try:
            with starting():
                return IpcEndpoint(process, self.control, self._board, open_cuda())
        except CcbenchError as error:
            self._board.leave(process, str(error))
            raise
