"""A computation and a collective at the same time on the same devices, each on streams of its own.

On every device both begin behind one gate, at one event; how long each took from there its clock says. Of a
launch and its share of the computation the launch is enqueued first, as a training step enqueues a bucket's
collective when its gradients are there and goes on with computing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cuda.gate import MOST_ITEMS_HELD, Gate
from ccbench.backends.nccl.computing import Computation, computation
from ccbench.backends.nccl.launches import Launches
from ccbench.backends.nccl.parts import COMPUTING_LANE
from ccbench.backends.nccl.seat import Seat
from ccbench.errors import CcbenchError


class Overlap:
    """The computations of all devices that this process drives, and the launches beside them."""

    def __init__(self, seats: Mapping[int, Seat], launches: Launches) -> None:
        self._seats = seats
        self._launches = launches
        self._kind = ""
        self._computations: dict[int, Computation] = {}

    def prepare(self, kind: str, limit_seconds: float) -> OutOfMemory | CannotRun | None:
        """Have ``kind`` ready on every device; why that cannot be, for all processes must hear of it.

        It runs once, with no gate closed: the first time, libraries load what waits for the device.
        """
        if kind == self._kind:
            return None
        self.close()
        try:
            for rank, seat in self._seats.items():
                self._computations[rank] = computation(kind, seat)
            self._enqueue(self._computations)
            self._launches.wait(limit_seconds)
        except OutOfMemory as error:
            self.close()
            return error
        except CcbenchError as error:  # no NVRTC, no cuBLAS: the case cannot run, and nothing is broken
            self.close()
            return CannotRun(str(error))
        self._kind = kind
        return None

    def compute(self, repetitions: int, limit_seconds: float, gated: bool = True) -> dict[int, float]:
        """The computation alone; what it took on the slowest device here, in seconds, by its lane."""
        return {COMPUTING_LANE: self.run(0, repetitions, limit_seconds, gated)[0]}

    def run(
        self, launches: int, repetitions: int, limit_seconds: float, gated: bool = True
    ) -> tuple[float, float]:
        """Both at once; seconds until the computation, and until the collective, was over everywhere here."""
        # A device that stands by does not compute either: what it would take is no part of the case.
        working = sorted({one.rank for lane in self._launches.lanes for one in lane})
        with self._launches.timed(limit_seconds, gated) as let_go:
            for seat in self._seats.values():
                seat.follow(COMPUTING_LANE)
            queued, of_a_launch = 0, self._launches.items_per_launch
            self._launches.count_gated(min(launches, Gate.most_held(of_a_launch)), gated)
            for number, share in enumerate(shared_out(repetitions, max(launches, 1))):
                if launches:
                    if number == Gate.most_held(of_a_launch):
                        let_go()
                    self._launches.enqueue()
                    queued += of_a_launch
                for _ in range(share):
                    if queued >= MOST_ITEMS_HELD:
                        let_go()
                    self._enqueue(working)
                    queued += 1
            for seat in self._seats.values():
                seat.end(COMPUTING_LANE)
        computing = max(seat.seconds_since_start(COMPUTING_LANE) for seat in self._seats.values())
        return computing, max(self._launches.part_seconds().values(), default=0.0)

    def _enqueue(self, ranks: Collection[int]) -> None:
        for rank in ranks:
            self._computations[rank].enqueue()

    def close(self) -> None:
        """Give the devices' memory back."""
        made, self._computations = self._computations, {}
        self._kind = ""
        for one in made.values():
            one.close()


def shared_out(total: int, parts: int) -> Sequence[int]:
    """``total`` in ``parts`` whole numbers that differ by at most one."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]
