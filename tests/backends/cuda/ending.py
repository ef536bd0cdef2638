"""``python -m tests.backends.cuda.ending HOW``: a team of real processes is dismissed; prints who did what.

The endpoints only close. One line for each rank: how far it came (0 never asked, 1 began, 2 ended), and last
how many processes are left.
"""

from __future__ import annotations

import mmap
import os
import socket
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from ccbench.backends.control_block import Control
from ccbench.runner.workers.leader import Leader
from ccbench.runner.workers.messages import GroupRequest

RANKS = 3
BEGAN, ENDED = 1, 2
GRACE_SECONDS = 1.0
FOREVER_SECONDS = 600.0


class Endpoint:
    """Has no cases, so that it needs nothing else."""

    def __init__(self, closings: mmap.mmap, rank: int, closing: Callable[[int], None]) -> None:
        self._closings, self._rank, self._closing = closings, rank, closing

    def close(self) -> None:
        self._closings[self._rank] = BEGAN
        self._closing(self._rank)
        self._closings[self._rank] = ENDED


class PlainWorkerGroup:
    """Its endpoints are not asked to close."""

    processes = RANKS
    pinned = single_process = oversubscribed = False
    closing_seconds = 0.0

    def __init__(self, closing: Callable[[int], None]) -> None:
        self.control = Control(RANKS, 4)
        self.closings = mmap.mmap(-1, RANKS)
        self._closing = closing

    def endpoint(self, process: int) -> Endpoint:
        return Endpoint(self.closings, process, self._closing)


class Closing(PlainWorkerGroup):
    """Its endpoints are."""

    closing_seconds = GRACE_SECONDS


def at_once(rank: int) -> None:
    """Nothing holds it up."""


def first_hangs(rank: int) -> None:
    """Rank 0 never ends."""
    if rank == 0:
        time.sleep(FOREVER_SECONDS)


HOW: dict[str, Callable[[], PlainWorkerGroup]] = {
    "closing": lambda: Closing(at_once),
    "hanging": lambda: Closing(first_hangs),
    "plain": lambda: PlainWorkerGroup(at_once),
}


def is_there(pid: int) -> bool:
    """Whether a process of this number is there, be it dead and not reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def main(how: str) -> None:
    group = HOW[how]()
    leader = Leader(GroupRequest("cpu", RANKS, None), group)  # type: ignore[arg-type]  # endpoints without cases
    ours, theirs = socket.socketpair()
    runner = Connection(theirs.detach())
    leader.start(runner)
    ours.shutdown(
        socket.SHUT_WR
    )  # the runner is done before it sends a case; ranks have this end too
    leader.lead(runner)
    leader.end()
    for rank in range(RANKS):
        print(group.closings[rank])
    print(sum(is_there(member.hello.place.pid) for member in leader.members))


if __name__ == "__main__":
    main(sys.argv[1])
