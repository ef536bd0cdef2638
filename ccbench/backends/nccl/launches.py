"""Enqueue a case's calls on all devices, wait for the end without blocking, read the devices' clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ccbench.backends.cuda.gate import Gate, holding
from ccbench.backends.cuda.launching import graph_sizes, held_launches
from ccbench.backends.nccl.bindings import Binding
from ccbench.backends.nccl.library import Nccl
from ccbench.backends.nccl.parts import OWN_LANE
from ccbench.backends.nccl.seat import Seat
from ccbench.cases import ALONE, Case

POLLS_BEFORE_SLEEP = 2000
SLEEP_SECONDS = 5e-5
LOOK_EVERY_POLLS = 1000
"""How often, in polls of the streams, NCCL is asked whether it has failed."""

Trouble = Callable[[float, Sequence[str]], Exception]
"""(seconds waited, who still waits) -> what to raise."""


class Launches:
    """See the module. complaints: what NCCL says of failed communicators; trouble: makes the error to raise.

    gate: None where kernels cannot be compiled; then times of few launches contain what the host takes to
    enqueue them.
    """

    def __init__(
        self,
        nccl: Nccl,
        seats: Sequence[Seat],
        gate: Gate | None,
        complaints: Callable[[], list[str]],
        trouble: Trouble,
    ) -> None:
        self._nccl = nccl
        self._seats = seats
        self._gate = gate
        self._complaints = complaints
        self._trouble = trouble
        self.lanes: list[list[Binding]] = []
        self.gated_launches = 0

    def bind(self, lanes: list[list[Binding]]) -> None:
        """What ``run`` runs from here on; graphs of what was before are forgotten."""
        for seat in self._seats:
            seat.forget_graphs()
        self.lanes = lanes

    # -- enqueueing ------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Everything once. What one thread asks of several ranks, or at once, must be in one group.

        Lanes come in the same order on every rank, as NCCL's guide asks where communicators share a device
        ("Using multiple NCCL communicators concurrently").
        """
        for lane in self.lanes:
            calls = [call for one in lane for call in one.calls]
            if len(calls) == 1:
                lane[0].seat.use()
                calls[0]()
                continue
            with self._nccl.group():
                for call in calls:
                    call()

    def _graph(self, launches: int) -> None:
        """Capture ``launches`` on all devices at once, where that was not done before."""
        seats = [one.seat for one in self.lanes[0]] if self.lanes else []
        if all(seat.has_graph(launches) for seat in seats):
            return
        for seat in seats:
            seat.lane(OWN_LANE)  # nothing may be made any more once the first of them captures
        try:
            for seat in seats:
                seat.capture()
            for _ in range(launches):
                self.enqueue()
            for seat in seats:
                seat.end_capture(launches)
            for seat in seats:
                seat.instantiate(launches)
        except BaseException:
            for seat in seats:
                seat.abandon_capture()
            raise

    def run_case(self, case: Case, times: int, limit_seconds: float, gated: bool) -> dict[int, float]:
        """``case`` so often, as its mode has it; what each part took."""
        if case.mode not in ALONE:
            self.run(times, case.mode, limit_seconds, gated)
            return self.part_seconds()
        taken: dict[int, float] = {}
        for _ in range(times):
            if case.mode == "cold":
                self.flush_caches(limit_seconds)
            self.run(1, case.mode, limit_seconds, gated)
            for number, seconds in self.part_seconds().items():
                taken[number] = taken.get(number, 0.0) + seconds
        return taken

    def run(self, times: int, mode: str, limit_seconds: float, gated: bool = True) -> None:
        """Everything ``times`` times, between events; returns when all devices have ended.

        gated: False where NCCL may still connect, register or load a kernel. Any of these can wait for what
        runs on the device, and takes longer than a gate may be closed.
        """
        graph = mode == "graph"
        sizes = graph_sizes(times) if graph else (1,) * times
        for size in dict.fromkeys(sizes) if graph else ():
            self._graph(size)  # made before the clock starts
        held = held_launches(mode, self.items_per_launch)
        self.count_gated(sum(sizes[:held]), gated)
        with self.timed(limit_seconds, gated) as let_go:
            for number, size in enumerate(sizes):
                if number == held:
                    let_go()
                if graph:
                    for one in self.lanes[0] if self.lanes else []:
                        one.seat.launch_graph(size)
                else:
                    self.enqueue()

    def count_gated(self, launches: int, gated: bool) -> None:
        """Remember how many launches were enqueued before the devices were let go."""
        self.gated_launches = launches if gated and self._gate else 0

    @contextmanager
    def timed(self, limit_seconds: float, gated: bool = True) -> Iterator[Callable[[], None]]:
        """What is enqueued inside runs between events, behind the gate; then wait until all has ended.

        Gives what lets the devices go, for whoever enqueues more than a device's queue takes.
        """
        gate = self._gate if gated else None
        with holding(gate, [seat.device for seat in self._seats]) as let_go:
            self._begin()
            yield let_go
            for one in self._bindings():
                one.seat.end(one.part.lane)
        self.wait(limit_seconds)
        if gate:
            gate.raise_if_missed()

    @property
    def items_per_launch(self) -> int:
        """How many places of NCCL's or of a stream's queue a launch takes at most."""
        return max((len(one.calls) * transfers(one.part.case) for one in self._bindings()), default=1)

    def _bindings(self) -> list[Binding]:
        return [one for lane in self.lanes for one in lane]

    def _begin(self) -> None:
        """Events where the clock starts: on all lanes of a device at once, behind its gate.

        On every device, for a rank may be in what runs beside alone.
        """
        for seat in self._seats:
            seat.begin(OWN_LANE)
        for one in self._bindings():
            if one.part.lane != OWN_LANE:
                one.seat.follow(one.part.lane)
                one.seat.begin(one.part.lane)

    def flush_caches(self, limit_seconds: float) -> None:
        """Empty the caches of all devices."""
        for seat in self._seats:
            seat.device.flush_cache()
        self.wait(limit_seconds)

    def keep_busy(self, limit_seconds: float) -> None:
        """Have all devices work for about a millisecond."""
        for seat in self._seats:
            seat.device.keep_busy()
        self.wait(limit_seconds)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, limit_seconds: float) -> None:
        """Return when no device is busy; raise what ``trouble`` makes of a failure or of the limit."""
        began = time.monotonic()
        polls = 0
        while busy := [seat for seat in self._seats if seat.busy()]:
            polls += 1
            waited = time.monotonic() - began
            if waited > limit_seconds or (polls % LOOK_EVERY_POLLS == 0 and self._complaints()):
                names = [f"rank {seat.rank} (GPU {seat.number}, {seat.device.facts.bus_id})" for seat in busy]
                raise self._trouble(waited, names)
            if polls > POLLS_BEFORE_SLEEP:
                time.sleep(SLEEP_SECONDS)

    # -- clocks ----------------------------------------------------------------------------------------------

    def part_seconds(self) -> dict[int, float]:
        """Number of a part -> what the last ``run`` took on the slowest of its devices here."""
        found: dict[int, list[float]] = {}
        for one in self._bindings():
            found.setdefault(one.part.number, []).append(one.seat.elapsed_seconds(one.part.lane))
        return {number: max(seconds) for number, seconds in found.items()}


def transfers(case: Case) -> int:
    """What one call of ``case`` is to NCCL: one piece of work, or one for every peer.

    NCCL too queues what the device has not begun, and waits where there is no room (NCCL_WORK_FIFO_BYTES).
    """
    several = ("all_to_all", "all_to_all_v", "gather", "scatter")
    return case.ranks if case.collective in several else 1
