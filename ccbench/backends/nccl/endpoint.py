"""NCCL on the ranks that one process drives: what workers of ``nccl`` and ``nccl-processes`` measure with.

Samples are times of the devices' clocks: from an event before the first launch to one after the last, the
longest of all ranks. A gate keeps the devices from starting until all is enqueued, where few launches are.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np

from ccbench.backends.base import CannotRun, ControlChannel, OutOfMemory
from ccbench.backends.cpu.memory import Activity, Control
from ccbench.backends.crew import WholeEndpoint, of_all_ranks
from ccbench.backends.cuda.gate import GateBoard, open_gate, without_gate
from ccbench.backends.cuda.launching import DeviceOutput, input_period, sample_launches
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.endpoint import FIRST_OF_WARM_UP
from ccbench.backends.nccl.bindings import Bound, refuse_out_of_memory
from ccbench.backends.nccl.communicators import Communicators
from ccbench.backends.nccl.exchanges import Alone, Forked, WaitedInVain
from ccbench.backends.nccl.launches import Launches
from ccbench.backends.nccl.library import Nccl
from ccbench.backends.nccl.observing import observed_choice
from ccbench.backends.nccl.overlapping import Overlap
from ccbench.backends.nccl.parts import COMPUTING_LANE, OWN_LANE, Part, part_samples, parts_of
from ccbench.backends.nccl.seat import Seat
from ccbench.backends.nccl.settings import DEFAULT, NO_FALLBACK_VERSION, algorithms_for, other_than_asked
from ccbench.backends.nccl.troubles import CollectiveHung, hung, limit_for
from ccbench.backends.nccl.tuning_log import Choice
from ccbench.backends.nccl.types import NcclFailed
from ccbench.backends.nccl.watchman import Watchman
from ccbench.cases import OVERLAP, Case, CaseFacts
from ccbench.collectives import collective
from ccbench.dtypes import numpy_dtype
from ccbench.machine.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.units import format_seconds
from ccbench.verification import POISON_BYTE, Array, Mismatch

ABORT_SECONDS = 3.0
"""How long an abort may take; the process is ended afterwards in any case."""


class NcclRanks(WholeEndpoint):
    """The ranks that this process drives. Implements ``ccbench.backends.crew.TeamEndpoint``.

    devices: rank of the team -> device of this process. ranks_of_team: all of them. gated: keep the devices
    from starting until what must be enqueued is, where that can be had; by ``gate_side`` together with other
    processes. shared: some ranks of the team have the same device. Also ``DeviceTimed``.
    """

    def __init__(
        self,
        control: Control,
        cuda: Cuda,
        nccl: Nccl,
        devices: Mapping[int, int],
        ranks_of_team: int,
        exchange: ControlChannel | None = None,
        gated: bool = False,
        shared: bool = False,
        gate_side: tuple[GateBoard, int] | None = None,
    ) -> None:
        super().__init__(control)
        self.nccl = nccl
        self.exchange: ControlChannel = exchange or Alone()
        self.rank, self.ranks = self.exchange.rank, self.exchange.ranks
        self.where = f"rank {self.rank} on {self.exchange.hosts[self.rank]}"
        self.prefix = "" if self.ranks == 1 else f"{self.where}: "
        self.flags = (Flag.LOOPBACK,) if shared else ()
        self._seats = {rank: Seat(cuda, device, rank) for rank, device in sorted(devices.items())}
        seats = [*self._seats.values()]
        here = [one.device for one in seats]
        opened = open_gate(cuda, here, gate_side, self.least) if gated else (None, "")
        self._gate, self._no_gate = opened
        self._communicators = Communicators(nccl, devices, ranks_of_team, self.exchange)
        self._watchman = Watchman(self._communicators.abort)
        self._launches = Launches(nccl, seats, self._gate, self._communicators.complaints, self._hung)
        self._overlap = Overlap(self._seats, self._launches)
        self._devices = DeviceWatch([device.facts.bus_id for device in here])
        self._chosen: dict[Case, tuple[Choice, float | None]] = {}
        self._bound: Bound | None = None
        self._parts: tuple[Part, ...] = ()
        self._connected, self._met = True, False
        self._begin_case()

    def _begin_case(self) -> None:
        self._sample, self._times, self._gated_launches = -1, 1, 0
        self._host_seconds: list[float] = []
        self._part_seconds: dict[int, float] = {}
        self._samples: dict[int, dict[int, float]] = {}
        self._choice = Choice()
        self._estimate_seconds: float | None = None

    def connect(self) -> None:
        """Make the communicator of all ranks. Collective."""
        self._communicators.world()

    # -- one case --------------------------------------------------------------------------------------------

    def prepare(self, case: Case) -> str:
        """Communicators, buffers, registrations, a first launch; returns the algorithm that runs. Collective.

        CannotRun with NCCL's words for what it refuses; OutOfMemory on all processes alike; CollectiveHung.
        """
        self.say(Activity.PREPARING)
        self.arm(case)
        if self._bound is not None:  # of a round that ended before its end
            self._give_back(self._bound)
        self._begin_case()
        self._parts = parts_of(case)
        if isinstance(self.exchange, Forked):  # hosts too fill and compare, and none as fast as the other
            self.exchange.limit_seconds = limit_for(case, 1)
        bound = Bound(self.nccl, case)
        try:
            with self._watchman.limited(limit_for(case, 1)):
                self._place_memory(bound)
                bound.register()
                if case.registration != "none" and not self.least(int(bound.registered())):
                    raise CannotRun(
                        f"registration {case.registration}: NCCL does not register this memory here"
                    )
                bound.prepare_calls()
            self._bound = bound
            self._launches.bind(bound.lanes())
            self._first_launch(bound)
        except NcclFailed as error:
            raise self._refused(bound, error) from None
        except CannotRun:
            self._give_back(bound)
            raise
        return self._choice.algorithm or self._forced(case)

    def _forced(self, case: Case) -> str:
        """What ran where NCCL does not tell: versions before NO_FALLBACK_VERSION may run another."""
        told = case.algorithm == DEFAULT or self.nccl.version >= NO_FALLBACK_VERSION
        return case.algorithm if told else ""

    def _place_memory(self, bound: Bound) -> None:
        """OutOfMemory on every process where one has too little, so that nobody waits for who gave up."""
        for part in self._parts:
            self._communicators.of(part)
        failed: OutOfMemory | None = None
        try:
            bound.place_memory(self._seats, self._parts, self._communicators)
        except OutOfMemory as error:
            failed = error
        all_well = self.least(0 if failed else 1) == 1
        if not all_well:
            bound.bindings.clear()
            for seat in self._seats.values():
                seat.release_all(self.nccl.free)
        refuse_out_of_memory(failed, all_well)

    def _first_launch(self, bound: Bound) -> None:
        """NCCL connects and chooses. What it chose is looked at in a case's first round only."""
        self.poison()
        self.refill(0)
        self.barrier()
        self._connected = False
        try:
            if self._case.mode == "graph":  # a single rank connects by calls that a capture refuses
                self._guarded(self._launches.enqueue, limit_for(self._case, 1))
            if self._case in self._chosen:
                self.launch(1)
            else:
                chosen = observed_choice(self.nccl.native, self._case.collective, lambda: self.launch(1))
                self._chosen[self._case] = self._everyones(chosen), self._estimated(bound)
        finally:
            self._connected = True
        self._host_seconds.clear()
        self._choice, self._estimate_seconds = self._chosen[self._case]
        other = other_than_asked(self._case, self._choice)
        if other:
            raise CannotRun(other)

    def _everyones(self, mine: Choice) -> Choice:
        """The choice that rank 0 of a communicator wrote down, in every process. Collective."""
        words = json.dumps([mine.algorithm, mine.protocol, mine.channels]).encode()
        told = [Choice(*json.loads(one)) for one in self.exchange.all_gather(words)]
        return next((one for one in told if one.algorithm), Choice())

    def _estimated(self, bound: Bound) -> float | None:
        """NCCL's estimate. Whatever it complains of when asked for one is not the case's fault.

        Not of point-to-point transfers: NCCL has none, and what such a group asked for stays in the
        communicator's queues and runs with the next group (src/group.cc: only a failure empties them).
        """
        if self._case.count == 0 or not algorithms_for(self._case.collective):
            return None
        try:
            return bound.estimate_seconds()
        except NcclFailed:
            return None

    def _refused(self, bound: Bound, error: NcclFailed) -> Exception:
        """What a failure while preparing means: something that NCCL does not have, or trouble."""
        complaints = self._communicators.complaints()
        if self._watchman.expired or not error.refused:
            waited = limit_for(self._case, 1) if self._watchman.expired else None
            return self._hung(waited, [], [str(error), *complaints])
        with suppress(NcclFailed):  # what is refused has been said
            self._give_back(bound)
        if complaints:  # these are of no more use: the next case makes new ones
            self._abort()
        return CannotRun(f"NCCL refuses: {error}")

    def finish(self) -> None:
        """The case is over: give back what the next one cannot use."""
        if self._bound is not None:
            self._give_back(self._bound)
        self.say(Activity.IDLE)

    def _give_back(self, bound: Bound) -> None:
        self._bound = None
        self._launches.bind([])
        bound.release(self._communicators.close)

    def close(self) -> None:
        """Give everything back."""
        self._watchman.close()
        self._launches.bind([])  # before communicators, which wait for graphs that know them
        self._overlap.close()
        self._communicators.close()
        for seat in self._seats.values():
            seat.close()
        if self._gate:
            self._gate.free()
        self._devices.close()

    # -- data ------------------------------------------------------------------------------------------------

    def arm(self, case: Case) -> None:
        """Only the faults of ranks here are this process's."""
        super().arm(case)
        self._faults = [(rank, fault) for rank, fault in self._faults if rank in self._seats]

    def refill(self, salt: int, launches: int = 1) -> None:
        """Fill the inputs of every rank here with the data of ``salt``."""
        assert self._bound is not None
        for one in self._bound.bindings:
            if not collective(one.part.case.collective).moves_data:
                continue
            place = one.part.place(one.rank)
            for address, size in one.inputs():
                period = input_period(one.part.case, place, size, one.part.salted(salt), launches)
                one.seat.device.write_repeated(address, size, period)

    def poison(self) -> None:
        """Make every output wrong everywhere."""
        assert self._bound is not None
        for one in self._bound.bindings:
            for address, size in one.outputs():
                one.seat.device.set_bytes(address, POISON_BYTE, size)

    def check(self, salt: int, launches: int) -> Mismatch | None:
        """Compare every output with what is right: the first wrong rank's, with the wrong elements of all."""
        self.say(Activity.CHECKING)
        self._devices.ended()  # devices cool while the host compares
        return of_all_ranks(
            [
                self.compared(
                    rank, output, part.case, part.place(rank), part.salted(salt),
                    launches if part.lane == OWN_LANE else 1,
                )
                for rank, part, output in self.outputs()
            ]
        )  # fmt: skip

    def outputs(self) -> Iterator[tuple[int, Part, DeviceOutput]]:
        """(rank, part, output) of all that have a result, one at a time with the same memory of the host."""
        assert self._bound is not None
        bindings = [one for one in self._bound.bindings if one.part.receives(one.rank)]
        bindings = [one for one in bindings if collective(one.part.case.collective).moves_data]
        largest = max((one.copies.one.output_bytes for one in bindings), default=0)
        memory: Array = np.empty(largest, np.uint8)
        for one in bindings:
            for address, size in one.outputs():
                output = memory[:size].view(numpy_dtype(one.part.case.dtype))
                yield one.rank, one.part, DeviceOutput(one.seat.device, address, output)

    # -- Endpoint ------------------------------------------------------------------------------------------

    def launch(self, times: int) -> None:
        """Run the case ``times`` times and wait for the end."""
        self._slow_down(times)
        began = time.perf_counter()
        limit, gated = limit_for(self._case, times), self._gates()
        self._times = times

        def run() -> None:
            self._part_seconds = self._launches.run_case(self._case, times, limit, gated)

        self._guarded(run, limit)
        self._host_seconds.append((time.perf_counter() - began) / times)

    def _slow_down(self, times: int) -> None:
        for _, fault in self._faults:
            fault.before_launches(times)

    def _guarded(self, run: Callable[[], None], limit: float) -> None:
        """Do ``run``; CollectiveHung where a call of NCCL's fails or does not return."""
        began = time.perf_counter()
        try:
            with self._watchman.limited(2 * limit):  # streams have a limit of their own; this is for calls
                run()
        except NcclFailed as error:
            if error.refused and not self._watchman.expired:
                raise
            complaints = [str(error), *self._communicators.complaints()]
            waited = time.perf_counter() - began if self._watchman.expired else None
            raise self._hung(waited, [], complaints) from None

    def _gates(self) -> bool:
        """Whether a gate may hold what is launched next: that of several processes only after a barrier.

        Ranks that measuring has enter launches at different times must not wait for each other.
        """
        met, self._met = self._met, False
        return self._connected and (met or self._gate is None or not self._gate.shared)

    def launch_and_time_waits(self, times: int) -> float:
        """As ``launch``; what devices wait for each other is inside NCCL's kernels, and nobody can tell."""
        self.launch(times)
        return 0.0

    # -- Overlapping ---------------------------------------------------------------------------------------

    def prepare_computing(self, kind: str) -> None:
        """``matmul`` or ``memory`` on every device. Collective; OutOfMemory, or CannotRun without cuBLAS."""
        failed = self._overlap.prepare(kind, limit_for(self._case, 1))
        if self.least(0 if failed else 1) == 0:
            raise failed or CannotRun("another rank's device cannot compute beside the collective")

    def compute(self, repetitions: int) -> None:
        """The computation alone, to its end."""
        self._part_seconds = self._overlap.compute(repetitions, limit_for(self._case, 1), self._gates())

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Both at once; the seconds after which each was over, by the clock of the slowest device."""
        self._slow_down(launches)
        limit, gated = limit_for(self._case, launches), self._gates()
        found: list[float] = []
        self._guarded(lambda: found.extend(self._overlap.run(launches, repetitions, limit, gated)), limit)
        computing, communicating = found
        self._part_seconds = {COMPUTING_LANE: max(found)}
        return computing, communicating

    # -- clocks and agreement --------------------------------------------------------------------------------

    def sample_launches(self, wanted: int, seconds: float) -> int:
        """As many as its mode asks for."""
        return sample_launches(self._case.mode, wanted, seconds, self._launches.items_per_launch)

    def device_seconds(self) -> float:
        """What the last ``launch`` took by the devices' clocks, the longest of them.

        As nccl-tests' ``-m`` does, the time of a group of collectives is shared among them.
        """
        self._gated_launches = self._launches.gated_launches
        shared = {number: s / self._case.aggregation for number, s in self._part_seconds.items()}
        if self._sample >= 0:
            self._samples[self._sample] = {
                number: seconds / self._times for number, seconds in shared.items()
            }
        return max(shared.values(), default=0.0)

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        self._sample = sample
        super().watch(sample)
        if sample == FIRST_OF_WARM_UP:
            self._devices.before(lambda: self._launches.keep_busy(limit_for(self._case, 1)))

    def barrier(self) -> None:
        """Return when every process has called it."""
        try:
            self.exchange.barrier()
        except WaitedInVain as vain:
            late = [f"rank {rank}" for rank in vain.late]
            raise self._hung(vain.seconds, late, self._communicators.complaints()) from None
        self._met = True

    def least(self, value: int) -> int:
        """The least value of all processes. Collective."""
        return min(int(one) for one in self.exchange.all_gather(str(value).encode()))

    def agree(self, value: int) -> int:
        """Process 0's value, in every process."""
        if self.ranks == 1:
            return value
        return int(self.exchange.broadcast(str(value).encode() if self.rank == 0 else None, 0))

    def _hung(
        self, waited_seconds: float | None, busy: Sequence[str], complaints: Sequence[str] | None = None
    ) -> CollectiveHung:
        """The error to raise; the communicators are aborted. NCCL's watch service is asked before."""
        said = self._communicators.complaints() if complaints is None else complaints
        error = hung(
            self._case,
            self.where,
            self._sample,
            waited_seconds,
            busy,
            list(dict.fromkeys(said)),
            self.nccl.version,
        )
        self._abort()
        return error

    def _abort(self) -> None:
        """End what runs, but wait for that only so long: the words on what hangs must reach the leader."""
        with suppress(Exception):  # what CUDA says of a device that hangs has been said
            self._launches.bind([])  # an abort too waits until no graph knows the communicator (since 2.26)
        ending = threading.Thread(target=self._communicators.abort, name="ccbench-abort", daemon=True)
        ending.start()
        ending.join(ABORT_SECONDS)

    # -- what else there is to say ---------------------------------------------------------------------------

    def remark(self) -> str:
        """How samples were taken; what NCCL does not tell."""
        if self.rank or not self._host_seconds:
            return ""
        host = format_seconds(statistics.median(self._host_seconds))
        words = [f"NCCL {self.nccl.version_text}, device time (events); launch and wait take the host {host}"]
        if self._no_gate:
            words.append(without_gate(self._no_gate))
        return "; ".join(words)

    def facts(self) -> CaseFacts:
        """What NCCL chose and expected, what each part took, what the devices say. Collective."""
        several = len(self._parts) > 1 and self._case.mode != OVERLAP
        parts = self._parts if several else ()
        samples = part_samples(parts, self._samples, self.exchange) if parts else ()
        devices, flags = self._devices.after()
        return CaseFacts(
            protocol_used=self._choice.protocol,
            channels_used=self._choice.channels,
            library_estimate_seconds=self._estimate_seconds,
            parts=tuple(part.name for part in parts),
            group_samples_seconds=samples,
            devices=devices,
            flags=flags,
            gated_launches=self._gated_launches,
        )
