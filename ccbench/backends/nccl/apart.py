"""Ranks that a launcher has started, on one host or on many: no shared memory, perhaps no common clock."""

from __future__ import annotations

import os
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import ControlChannel, Position, local_rank
from ccbench.backends.cpu.memory import Activity, Control, Word, anonymous_file
from ccbench.backends.cuda.gate import TOKEN_BYTES, GateBoard, board_bytes
from ccbench.backends.cuda.runtime import Cuda, device_count, open_cuda, starting
from ccbench.backends.nccl.crew import HOST_NAME, connected, facts_of, refuse_together, told_apart
from ccbench.backends.nccl.endpoint import NcclRanks
from ccbench.backends.nccl.library import Nccl, open_nccl
from ccbench.backends.nccl.troubles import limit_for
from ccbench.backends.nccl.types import Call
from ccbench.cases import Case

SAMPLE_CAPACITY = 4096
SCRATCH_BYTES = 4096


class LaunchedRank(NcclRanks):
    """One rank. Also ``ccbench.backends.endpoint.Apart``.

    Ranks start a sample together by a collective of NCCL's own on one element: words over the team's
    connection arrive at times that differ by more than a small collective takes.
    """

    def __init__(
        self,
        cuda: Cuda,
        nccl: Nccl,
        device: int,
        exchange: ControlChannel,
        gated: bool = True,
        shared: bool = False,
    ) -> None:
        control = Control(exchange.ranks, SAMPLE_CAPACITY)
        devices, side = {exchange.rank: device}, side_of_host(exchange) if gated else None
        super().__init__(control, cuda, nccl, devices, exchange.ranks, exchange, gated, shared, side)
        self.version = f"NCCL {nccl.version_text}"
        self._cuda = cuda
        self._shared_stamps = 0
        self._meeting = 0

    def prepare(self, case: Case) -> str:
        """As before; stamps are shared anew."""
        self._shared_stamps = 0
        return super().prepare(case)

    def barrier(self) -> None:
        """Return when every rank has called it: exchanged over NCCL once it works, or over the connection."""
        self._met = True
        if self._bound is None:
            self.exchange.barrier()
            return
        seat = self._seats[self.rank]
        if not self._meeting:
            seat.use()
            self._meeting = self._cuda.allocate(SCRATCH_BYTES + 4 * self.ranks)
        limit = limit_for(self._case, 1)
        with self._watchman.limited(2 * limit):
            self._communicators.world()[self.rank].enqueue(self._meeting_call(), seat.device.stream)
        self._launches.wait(limit)

    def _meeting_call(self) -> Call:
        """Of a collective that the forced algorithm has: PAT has no all_reduce."""
        at = self._meeting
        if os.environ.get("NCCL_ALGO", "").upper() == "PAT":
            return Call("all_gather", at, at + SCRATCH_BYTES, 1, "int32")
        return Call("barrier", at, at, 1, "int32")

    def close(self) -> None:
        """Give everything back."""
        at, self._meeting = self._meeting, 0
        self._cuda.free(at)
        super().close()

    # -- Apart ---------------------------------------------------------------------------------------------

    def share_stamps(self, count: int) -> None:
        """Bring the first ``count`` stamps of all ranks here. Collective."""
        if count == self._shared_stamps:
            return
        mine = self.stamps[self.rank, self._shared_stamps : count]
        if not self.exchange.one_clock:
            mine = np.stack([np.zeros(len(mine)), mine[:, 1] - mine[:, 0]], axis=1)
        told = self._numbers(np.ascontiguousarray(mine).reshape(-1))
        self.stamps[:, self._shared_stamps : count] = told.reshape(self.ranks, -1, 2)
        self._shared_stamps = count

    def share_words(self) -> None:
        """Bring the processor time that the ranks of this host have used. Collective."""
        told = self._numbers(np.array([self.control.read(self.rank, Word.CPU_NANOSECONDS)], np.float64))
        here = self.exchange.hosts[self.rank]
        for rank, host in enumerate(self.exchange.hosts):
            index = self.control.index(rank, Word.CPU_NANOSECONDS)
            self.control.words[index] = int(told[rank, 0]) if host == here else 0

    def _numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        told = self.exchange.all_gather(mine.tobytes())
        return np.stack([np.frombuffer(one, np.float64) for one in told])

    # -- what the leader hears -------------------------------------------------------------------------------

    def say(self, activity: Activity) -> None:
        """Tell the leader what this rank does; only a change is sent, and none falls into a launch."""
        index = self.control.index(self.rank, Word.ACTIVITY)
        if self.control.words[index] != activity:
            self.control.words[index] = activity
            self.exchange.tell(self.position())

    def position(self) -> Position:
        """Where this rank is; asked from another thread while the rank works."""
        read = self.control.read
        return Position(
            read(self.rank, Word.ACTIVITY), read(self.rank, Word.SAMPLE), read(self.rank, Word.BARRIER)
        )


def side_of_host(exchange: ControlChannel) -> tuple[GateBoard, int] | None:
    """The gate of all ranks of this host, and this one's place there. Collective.

    Its memory is a file without a name, which the first of them made and the others find among that
    process's open files. None where a rank is the only one of its host, and everywhere where one does not
    find it, as in a container of its own: then each has a gate for itself.
    """
    hosts, rank = exchange.hosts, exchange.rank
    here = [one for one, host in enumerate(hosts) if host == hosts[rank]]
    file, board, told = -1, None, b""
    if rank == here[0]:
        file = anonymous_file()
        os.ftruncate(file, board_bytes(len(here)))
        board = GateBoard(len(here), file)
        board.token[:] = os.urandom(TOKEN_BYTES)
        told = bytes(board.token) + f"/proc/{os.getpid()}/fd/{file}".encode()
    told = exchange.all_gather(told)[here[0]]
    with suppress(OSError, ValueError):  # not to be opened, or too small: another file
        file = file if board else os.open(told[TOKEN_BYTES:], os.O_RDWR)
        board = board or GateBoard(len(here), file)
    found = board is not None and bytes(board.token) == told[:TOKEN_BYTES]
    everybody = b"0" not in exchange.all_gather(b"1" if found else b"0")
    if file >= 0:
        os.close(file)
    return (board, here.index(rank)) if board and everybody and len(here) > 1 else None


def open_launched_rank(exchange: ControlChannel) -> LaunchedRank:
    """This process's rank, on the GPU of its number on its host. Collective; CcbenchError otherwise."""
    with starting():
        cuda = open_cuda(own_kernels=False)
        count = device_count(cuda)
        place = local_rank(exchange.hosts, exchange.rank)
        here = exchange.hosts.count(exchange.hosts[exchange.rank])
        # A launcher may show each process its own GPU alone; then its number is 0 everywhere.
        device = place % count
        name = told_apart(exchange.rank, here, count, os.environ) if count > 1 or here > 1 else ""
        if name:
            os.environ[HOST_NAME] = name
        nccl = open_nccl()
        facts = facts_of(cuda, nccl, {exchange.rank: device}, exchange.ranks, os.environ)
        shared = refuse_together(facts, exchange)
        made = LaunchedRank(cuda, nccl, device, exchange, shared=shared)
        connected(made)
        return made
