"""NCCL on the ranks that one process drives: what workers measure with.

Samples are times of the devices' clocks: from an event before the first launch to one after the last, the
longest of all ranks. A blocking kernel keeps the devices from starting until all is enqueued, where few
launches are.
"""

from __future__ import annotations

import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, replace

import numpy as np

from ccbench.backends.base import CannotRun, ControlChannel, OutOfMemory, gathered
from ccbench.backends.control_block import Activity, Control
from ccbench.backends.cuda.blocking_kernel import (
    SharedWords,
    open_blocking_kernel,
    sample_launches,
    without_blocking_kernel,
)
from ccbench.backends.cuda.context import (
    COMPUTE_STREAM,
    MAIN_STREAM,
    DeviceContext,
    DeviceOutput,
    input_period,
)
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.endpoint import (
    FIRST_OF_WARM_UP,
    Result,
    SingleProcessEndpoint,
    merged_mismatch,
)
from ccbench.backends.nccl import DEFAULT, algorithms_for
from ccbench.backends.nccl.collectives import CollectivePart, PreparedCase, parts_of
from ccbench.backends.nccl.communicators import Communicators
from ccbench.backends.nccl.device import RankContext
from ccbench.backends.nccl.diagnostics import (
    NO_FALLBACK_VERSION,
    CollectiveHung,
    LibraryChoice,
    Watchdog,
    diagnosed,
    limit_for,
    observed_choice,
    other_than_asked,
)
from ccbench.backends.nccl.launches import Launches
from ccbench.backends.nccl.library import Library, LibraryFailed
from ccbench.backends.nccl.overlap import Overlap
from ccbench.backends.nccl.setups import Setups
from ccbench.cases.axes import OVERLAP, Case
from ccbench.cases.measurement import CaseFacts
from ccbench.collectives import SETUPS, collective
from ccbench.dtypes import numpy_dtype
from ccbench.errors import CcbenchError
from ccbench.flags import Flag
from ccbench.machine.telemetry import DeviceWatch
from ccbench.units import format_seconds, format_size
from ccbench.verification import POISON_BYTE, Array, Mismatch

ABORT_SECONDS = 3.0
"""Time that an abort may take; the process is ended afterwards in any case."""


CALLS_BEFORE = ("ncclComm", "ncclMem", "ncclRedOp")
"""Prefixes of the functions that make what a collective needs: they refuse for reasons that another size need
not have."""


def of_any_size(case: Case) -> Case:
    """Return what ``case`` has in common with its other sizes.

    An algorithm or protocol that NCCL does not have here it has for none of them, and every refusal costs the
    communicators of all ranks, which are seconds on many GPUs.
    """
    return replace(case, size_bytes=0, count=0)


class NcclRanks(SingleProcessEndpoint):
    """The ranks that this process drives. Implements ``ccbench.backends.endpoint.TeamEndpoint``.

    devices: rank of the team -> device of this process. ranks_of_team: all of them. blocked: keep the devices
    from starting until what must be enqueued is, where that can be had; by ``shared_words`` together with
    other processes. shared: some ranks of the team have the same device. Also ``DeviceTimed``.
    """

    def __init__(
        self,
        control: Control,
        cuda: Cuda,
        nccl: Library,
        devices: Mapping[int, int],
        ranks_of_team: int,
        exchange: ControlChannel,
        blocked: bool = False,
        shared: bool = False,
        shared_words: tuple[SharedWords, int] | None = None,
    ) -> None:
        super().__init__(control)
        self.nccl = nccl
        self.version = f"{nccl.dialect.label} {nccl.version_text}"
        self.exchange = exchange
        self.rank, self.ranks = exchange.rank, exchange.ranks
        self.where = f"rank {self.rank} on {exchange.hosts[self.rank]}"
        self.prefix = "" if self.ranks == 1 else f"{self.where}: "
        self.flags = (Flag.LOOPBACK,) if shared else ()
        self._contexts = {
            rank: RankContext(cuda, device, rank) for rank, device in sorted(devices.items())
        }
        contexts = [*self._contexts.values()]
        opened = (
            open_blocking_kernel(cuda, contexts, shared_words, self.least)
            if blocked
            else (None, "")
        )
        self._blocking, self._not_blocked = opened
        self._communicators = Communicators(nccl, devices, ranks_of_team, exchange)
        self._watchdog = Watchdog(self._communicators.abort)
        self._launches = Launches(
            nccl, contexts, self._blocking, self._communicators.failures, self._hung
        )
        self._setups = Setups(nccl, self._communicators)
        self._overlap = Overlap(self._contexts, self._launches)
        self._devices = DeviceWatch([context.facts.bus_id for context in contexts])
        self._chosen: dict[Case, tuple[LibraryChoice, float | None]] = {}
        self._refusals: dict[Case, str] = {}
        self._prepared: PreparedCase | None = None
        self._parts: tuple[CollectivePart, ...] = ()
        self._connected, self._met = True, False
        self._begin_case()

    def _begin_case(self) -> None:
        self._sample, self._times, self._blocked_launches = -1, 1, 0
        self._host_seconds: list[float] = []
        self._part_seconds: dict[int, float] = {}
        self._samples: dict[int, dict[int, float]] = {}
        self._choice = LibraryChoice()
        self._estimate_seconds: float | None = None

    @property
    def _limit(self) -> float:
        """Seconds that one launch of the case may take."""
        return limit_for(self._case, 1)

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
        self._give_back()  # of a round that ended before its end
        self._begin_case()
        if words := self._refusals.get(of_any_size(case)):
            raise CannotRun(words)
        self._parts = parts_of(case)
        prepared = self._prepared = PreparedCase(self.nccl, case)
        try:
            with self._watchdog.limited(self._limit):
                for part in self._parts:
                    self._communicators.of(part.stream, part.groups)
                if case.collective not in SETUPS:
                    # Every process raises it where one has too little: nobody waits for who gave up.
                    failed: OutOfMemory | None = None
                    try:
                        prepared.place_memory(self._contexts, self._parts, self._communicators)
                    except OutOfMemory as error:
                        failed = error
                    if self.least(int(failed is None)) == 0:
                        prepared.bindings.clear()
                        for context in self._contexts.values():
                            context.release()
                        raise failed or OutOfMemory(
                            "another rank's device has not so much memory left"
                        )
                registered = prepared.register()
                if case.registration != "none" and not self.least(int(registered)):
                    raise CannotRun(
                        f"registration {case.registration}: NCCL does not register this memory here"
                    )
                for binding in prepared.bindings:
                    binding.prepare()
            self._launches.bind(prepared.by_stream())
            self._first_launch(prepared)
        except LibraryFailed as error:
            raise self._refused(error) from None
        except CannotRun:
            self._give_back()
            raise
        # Where NCCL does not tell: a version before NO_FALLBACK_VERSION may have run another than asked for.
        as_asked = case.algorithm == DEFAULT or self.nccl.version >= NO_FALLBACK_VERSION
        return self._choice.algorithm or (case.algorithm if as_asked else "")

    def _first_launch(self, prepared: PreparedCase) -> None:
        """Let NCCL connect and choose. What it chose is looked at in a case's first round only."""
        self.poison()
        self.refill(0)
        self.barrier()
        self._connected = False
        try:
            if (
                self._case.mode == "graph"
            ):  # a single rank connects by calls that a capture refuses
                self._guarded(self._launches.enqueue, self._limit)
            if self._case in self._chosen:
                self.launch(1)
            else:
                mine = observed_choice(
                    self.nccl.native, self._case.collective, lambda: self.launch(1)
                )
                # Rank 0 of a communicator writes it down, and every process needs it.
                told = gathered(self.exchange, astuple(mine))
                choices = [LibraryChoice(*words) for words in told]
                choice = next(
                    (candidate for candidate in choices if candidate.algorithm), LibraryChoice()
                )
                self._chosen[self._case] = choice, self._estimated(prepared)
        finally:
            self._connected = True
        self._host_seconds.clear()
        self._choice, self._estimate_seconds = self._chosen[self._case]
        reason = other_than_asked(self._case, self._choice)
        if reason:
            raise CannotRun(reason)

    def _estimated(self, prepared: PreparedCase) -> float | None:
        """Return NCCL's estimate. Whatever it complains of when asked for one is not the case's fault.

        Not of point-to-point transfers, nor of copy engines: NCCL has none, and what such a group asked for
        stays in the communicator's queues and runs with the next group (src/group.cc: only a failure empties
        them).
        """
        by_kernels = algorithms_for(self._case.collective) and self._case.cta_policy == DEFAULT
        if self._case.count == 0 or not by_kernels:
            return None
        calls = [
            binding.calls[0] for bindings in prepared.by_stream()[:1] for binding in bindings
        ]
        try:
            return self.nccl.simulate(calls) if calls else None
        except LibraryFailed:
            return None

    def _refused(self, error: LibraryFailed) -> Exception:
        """Return what a failure while preparing means: something that NCCL does not have, or a hang."""
        if self._watchdog.expired or not error.refused:
            return self._hung(self._limit if self._watchdog.expired else None, [], error)
        with suppress(LibraryFailed):  # what is refused has been said
            self._give_back()
        # Peers that a failed group was to connect for transfers stay marked as connected (hasSeen of
        # p2pTaskAppend, src/enqueue.cc): its communicators are of no more use, the next case makes new ones.
        self._abort()
        words = f"{self.nccl.dialect.label} refuses: {error}"
        of_collective = not error.call.startswith(CALLS_BEFORE)
        if of_collective and (self._case.algorithm, self._case.protocol) != (DEFAULT, DEFAULT):
            size = format_size(self._case.size_bytes)
            self._refusals[of_any_size(self._case)] = (
                f"{words}, at {size}; this size was not tried"
            )
        return CannotRun(words)

    def finish(self) -> None:
        """The case is over: give back what the next one cannot use."""
        self._give_back()
        self.say(Activity.IDLE)

    def _give_back(self) -> None:
        prepared, self._prepared = self._prepared, None
        self._setups.give_back()
        if prepared:
            self._launches.bind([])
            prepared.release(self._communicators.close)

    def close(self) -> None:
        """Give everything back."""
        self._watchdog.close()
        self._setups.give_back()
        self._launches.bind([])  # before communicators, which wait for graphs that know them
        self._overlap.close()
        self._communicators.close()
        for context in self._contexts.values():
            context.close()
        if self._blocking:
            self._blocking.free()
        self._devices.close()

    # -- data ------------------------------------------------------------------------------------------------

    def own_ranks(self, case: Case) -> Iterable[int]:
        """Return the ranks here."""
        return self._contexts

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill the inputs of every rank here with the data of ``seed``."""
        assert self._prepared is not None
        for binding in self._prepared.bindings:
            if not collective(binding.part.case.collective).moves_data:
                continue
            place = binding.part.members.index(binding.rank)
            for address, size in binding.inputs():
                period = input_period(
                    binding.part.case, place, size, binding.part.seeded(seed), launches
                )
                binding.context.write_repeated(address, size, period)

    def poison(self) -> None:
        """Make every output wrong everywhere."""
        assert self._prepared is not None
        for binding in self._prepared.bindings:
            for address, size in binding.outputs():
                binding.context.set_bytes(address, POISON_BYTE, size)

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare every output with what is right: the first wrong rank's, with the wrong elements of all."""
        self.say(Activity.CHECKING)
        if self._case.collective in SETUPS:
            return self._setups.check(self._parts)
        self._devices.ended()  # devices cool while the host compares
        return merged_mismatch(
            [
                self.compared(
                    rank,
                    output,
                    part.case,
                    part.members.index(rank),
                    part.seeded(seed),
                    launches if part.stream == MAIN_STREAM else 1,
                )
                for rank, part, output in self.outputs()
            ]
        )

    def results(self) -> Iterator[Result]:
        """Yield every rank's result in the case's own collective."""
        for rank, part, output in self.outputs():
            if part.stream == MAIN_STREAM:
                yield Result(rank, output.read())

    def outputs(self) -> Iterator[tuple[int, CollectivePart, DeviceOutput]]:
        """Yield (rank, part, output) of all that have a result, each with the same memory of the host."""
        assert self._prepared is not None
        bindings = [
            binding
            for binding in self._prepared.bindings
            if binding.part.receives(binding.rank)
            and collective(binding.part.case.collective).moves_data
        ]
        largest = max(
            (size for binding in bindings for _, size in binding.outputs()), default=0
        )
        memory: Array = np.empty(largest, np.uint8)
        for binding in bindings:
            for address, size in binding.outputs():
                output = memory[:size].view(numpy_dtype(binding.part.case.dtype))
                yield binding.rank, binding.part, DeviceOutput(binding.context, address, output)

    # -- Endpoint ------------------------------------------------------------------------------------------

    def launch(self, times: int) -> None:
        """Run the case ``times`` times and wait for the end."""
        for _, fault in self._faults:
            fault.before_launches(times)
        began = time.perf_counter()
        limit, may_block = limit_for(self._case, times), self._may_block()
        self._times = times

        def run() -> None:
            if self._case.collective in SETUPS:
                seconds = self._setups.launch(self._parts, times)
                self._part_seconds = {part.number: seconds for part in self._parts}
                return
            self._part_seconds = self._launches.run_case(self._case, times, limit, may_block)

        self._guarded(run, limit)
        self._host_seconds.append((time.perf_counter() - began) / times)

    def _guarded(self, run: Callable[[], None], limit: float) -> None:
        """Call ``run``; CollectiveHung where a call of NCCL's fails or does not return."""
        began = time.perf_counter()
        try:
            with self._watchdog.limited(
                2 * limit
            ):  # streams have a limit of their own; this is for calls
                run()
        except LibraryFailed as error:
            if error.refused and not self._watchdog.expired:
                raise
            waited = time.perf_counter() - began if self._watchdog.expired else None
            raise self._hung(waited, [], error) from None

    def _may_block(self) -> bool:
        """Return True if a blocking kernel may hold what is launched next.

        One of several processes may only after a barrier.
        Ranks that measuring has enter launches at different times must not wait for each other.
        """
        met, self._met = self._met, False
        return self._connected and (met or self._blocking is None or not self._blocking.shared)

    # -- Overlapping ---------------------------------------------------------------------------------------

    def prepare_computing(self, kind: str) -> None:
        """Have ``matmul`` or ``memory`` ready. Collective; OutOfMemory, or CannotRun without cuBLAS."""
        failed: Exception | None = None
        try:
            self._overlap.prepare(kind, self._limit)
        except OutOfMemory as error:
            failed = error
        except (
            CcbenchError
        ) as error:  # no NVRTC, no cuBLAS: the case cannot run, and nothing is broken
            failed = CannotRun(str(error))
        if self.least(int(failed is None)) == 0:
            raise failed or CannotRun(
                "another rank's device cannot compute during the collective"
            )

    def compute(self, repetitions: int) -> None:
        """Run the computation alone, to its end."""
        computing, _ = self._overlap.run(0, repetitions, self._limit, self._may_block())
        self._part_seconds = {COMPUTE_STREAM: computing}

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Run both at once; return the seconds after which each was over on the slowest device."""
        for _, fault in self._faults:
            fault.before_launches(launches)
        limit, may_block = limit_for(self._case, launches), self._may_block()
        seconds: list[float] = []
        self._guarded(
            lambda: seconds.extend(self._overlap.run(launches, repetitions, limit, may_block)),
            limit,
        )
        computing, communicating = seconds
        self._part_seconds = {COMPUTE_STREAM: max(seconds)}
        return computing, communicating

    # -- clocks and agreement --------------------------------------------------------------------------------

    def sample_launches(self, launches: int, seconds: float) -> int:
        """Return as many as its mode asks for."""
        return sample_launches(
            self._case.mode, launches, seconds, self._launches.items_per_launch
        )

    def device_seconds(self) -> float:
        """Return what the last ``launch`` took by the devices' clocks, the longest of them.

        As nccl-tests' ``-m`` does, the time of a group of collectives is shared among them.
        """
        self._blocked_launches = self._launches.blocked_launches
        shared = {
            number: s / self._case.aggregation for number, s in self._part_seconds.items()
        }
        if self._sample >= 0:
            self._samples[self._sample] = {
                number: seconds / self._times for number, seconds in shared.items()
            }
        return max(shared.values(), default=0.0)

    def begin_sample(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        self._sample = sample
        super().begin_sample(sample)
        if sample == FIRST_OF_WARM_UP:
            self._devices.before(
                lambda: self._launches.on_devices(DeviceContext.keep_busy, self._limit)
            )

    def least(self, value: int) -> int:
        """Return the least value of all processes. Collective."""
        return int(min(gathered(self.exchange, value)))

    def _hung(
        self,
        waited_seconds: float | None,
        busy: Sequence[str],
        failed: LibraryFailed | None = None,
    ) -> CollectiveHung:
        """Return the error to raise; the communicators are aborted. NCCL's watch service is asked before."""
        failures = [*([str(failed)] if failed else []), *self._communicators.failures()]
        version = self.nccl.version
        error = diagnosed(
            self._case, self.where, self._sample, waited_seconds, busy, failures, version
        )
        self._abort()
        return error

    def _abort(self) -> None:
        """End what runs, but wait for that only so long: the words on what hangs must reach the leader."""
        with suppress(Exception):  # what CUDA says of a device that hangs has been said
            self._launches.bind(
                []
            )  # an abort too waits until no graph knows the communicator (since 2.26)
        ending = threading.Thread(
            target=self._communicators.abort, name="ccbench-abort", daemon=True
        )
        ending.start()
        ending.join(ABORT_SECONDS)

    # -- what else there is to say ---------------------------------------------------------------------------

    def remark(self) -> str:
        """Return how samples were taken; what NCCL does not tell."""
        if self.rank or not self._host_seconds:
            return ""
        if any(part.case.collective in SETUPS for part in self._parts):
            return f"{self.version}, the host's time; unique ids are told before it"
        host = format_seconds(statistics.median(self._host_seconds))
        library = f"{self.nccl.dialect.label} {self.nccl.version_text}"
        words = [f"{library}, device time (events); launch and wait take the host {host}"]
        if self._not_blocked:
            words.append(without_blocking_kernel(self._not_blocked))
        return "; ".join(words)

    def facts(self) -> CaseFacts:
        """Return what NCCL chose and expected, what each part took, what the devices say. Collective."""
        several = len(self._parts) > 1 and self._case.mode != OVERLAP
        parts = self._parts if several else ()
        samples: tuple[tuple[float, ...], ...] = ()
        if parts:
            # A part took in each sample what the longest of its ranks took, in any process.
            ordered = [sample for _, sample in sorted(self._samples.items())]
            mine = [[sample.get(part.number, 0.0) for sample in ordered] for part in parts]
            by_process = gathered(self.exchange, mine)
            samples = tuple(tuple(row) for row in np.max(by_process, axis=0).tolist())
        devices, flags = self._devices.after()
        in_effect = self.nccl.settings(os.environ)
        return CaseFacts(
            protocol_used=self._choice.protocol,
            channels_used=self._choice.channels,
            library_estimate_seconds=self._estimate_seconds,
            parts=tuple(part.name for part in parts),
            group_samples_seconds=samples,
            devices=devices,
            flags=flags,
            blocked_launches=self._blocked_launches,
            library_settings=json.dumps(in_effect) if in_effect else "",
        )
