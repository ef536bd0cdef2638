"""How processes of one host that were forked together tell each other what NCCL needs to come up.

Both implement ``ccbench.backends.base.ControlChannel``. A board is memory that the leader made before it
forked.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import time

from ccbench.backends.base import Position
from ccbench.backends.cpu.memory import Control, Word, fence

BOARD_BYTES = 16 << 10
"""Room of each process on the board: unique ids have 128 bytes, facts and times of parts a few hundred."""

SPIN_SECONDS, SLEEP_SECONDS = 0.02, 5e-5
"""A barrier before a sample is over long before it would sleep: who sleeps starts late."""

_LENGTH = struct.Struct("=q")


class WaitedInVain(Exception):
    """A process did not come to where all others wait; ``late`` are those furthest behind."""

    def __init__(self, late: tuple[int, ...], seconds: float) -> None:
        super().__init__(f"processes {late} are furthest behind")
        self.late = late
        self.seconds = seconds


class Alone:
    """One process that drives all ranks has nobody to talk to."""

    rank = 0
    ranks = 1
    one_clock = True
    oversubscribed = False

    def __init__(self) -> None:
        self.hosts: tuple[str, ...] = (socket.gethostname(),)

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What this process gave."""
        return [mine]

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """What this process gave."""
        assert mine is not None
        return mine

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def tell(self, position: Position) -> None:
        """The leader reads the control words."""


class Board:
    """The memory; made before the fork."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._memory = mmap.mmap(-1, ranks * BOARD_BYTES)

    def write(self, rank: int, text: bytes) -> None:
        """Leave at most BOARD_BYTES less 8; readers may look after the next barrier."""
        begin = rank * BOARD_BYTES
        self._memory[begin : begin + _LENGTH.size] = _LENGTH.pack(len(text))
        self._memory[begin + _LENGTH.size : begin + _LENGTH.size + len(text)] = text

    def read(self, rank: int) -> bytes:
        """What ``rank`` left."""
        begin = rank * BOARD_BYTES
        (length,) = _LENGTH.unpack(self._memory[begin : begin + _LENGTH.size])
        return self._memory[begin + _LENGTH.size : begin + _LENGTH.size + length]


class Forked:
    """One process's side. limit_seconds: how long it waits for the others before WaitedInVain."""

    one_clock = True
    oversubscribed = False

    def __init__(self, rank: int, control: Control, board: Board, limit_seconds: float) -> None:
        self.rank = rank
        self.ranks = board.ranks
        self.hosts = (socket.gethostname(),) * board.ranks
        self.limit_seconds = limit_seconds
        self._control = control
        self._board = board
        self._barriers = 0

    def barrier(self) -> None:
        """All processes' barrier counters reach the same number."""
        self._barriers += 1
        control, goal = self._control, self._barriers
        fence()
        control.words[control.index(self.rank, Word.BARRIER)] = goal
        for step in range(1, self.ranks):
            self._until(control.index((self.rank + step) % self.ranks, Word.BARRIER), goal)
        fence()

    def _until(self, index: int, goal: int) -> None:
        words, began = self._control.words, time.monotonic()
        while words[index] < goal:
            waited = time.monotonic() - began
            if waited < SPIN_SECONDS:
                os.sched_yield()
                continue
            if waited > self.limit_seconds:
                raise WaitedInVain(self.late(), self.limit_seconds)
            time.sleep(SLEEP_SECONDS)

    def late(self) -> tuple[int, ...]:
        """Processes that have passed fewest barriers."""
        passed = [self._control.read(rank, Word.BARRIER) for rank in range(self.ranks)]
        return tuple(rank for rank, count in enumerate(passed) if count == min(passed))

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every process gave, in pieces where the board is too small for it."""
        room = BOARD_BYTES - _LENGTH.size
        pieces = [mine[start : start + room] for start in range(0, len(mine), room)] or [b""]
        most = max(int.from_bytes(one, "little") for one in self._once(len(pieces).to_bytes(8, "little")))
        found = [b""] * self.ranks
        for number in range(most):
            given = self._once(pieces[number] if number < len(pieces) else b"")
            found = [one + more for one, more in zip(found, given, strict=True)]
        return found

    def _once(self, mine: bytes) -> list[bytes]:
        self._board.write(self.rank, mine)
        self.barrier()
        found = [self._board.read(rank) for rank in range(self.ranks)]
        self.barrier()  # nobody writes again before all have read
        return found

    def tell(self, position: Position) -> None:
        """The leader reads the control words."""

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """What ``root`` gave."""
        return self.all_gather(mine or b"")[root]
