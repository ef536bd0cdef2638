"""Launches of a case on all devices: enqueue, wait without blocking, read the clocks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ccbench.backends.cuda.blocking_kernel import BlockingKernel, blocked, launch_sample
from ccbench.backends.cuda.context import MAIN_STREAM, DeviceContext
from ccbench.backends.nccl.collectives import Binding
from ccbench.backends.nccl.device import RankContext
from ccbench.backends.nccl.library import Library
from ccbench.cases.axes import ALONE, Case

POLLS_BEFORE_SLEEP = 2000
SLEEP_SECONDS = 5e-5
LOOK_EVERY_POLLS = 1000
"""Polls of the streams after which NCCL is asked whether it has failed."""


class Launches:
    """Launches on all devices of a process.

    blocking: None where kernels cannot be compiled; then times of few launches contain what the host takes to
    enqueue them. failures: what NCCL says of communicators. hung: (seconds waited, who still waits) -> the
    error to raise.
    """

    def __init__(
        self,
        nccl: Library,
        contexts: Sequence[RankContext],
        blocking: BlockingKernel | None,
        failures: Callable[[], list[str]],
        hung: Callable[[float, Sequence[str]], Exception],
    ) -> None:
        self._nccl = nccl
        self._contexts = contexts
        self._blocking = blocking
        self._failures = failures
        self._hung = hung
        self.streams: list[list[Binding]] = []
        self.blocked_launches = 0

    def bind(self, streams: list[list[Binding]]) -> None:
        """Set what ``run`` runs from here on, by streams; graphs of what was before are forgotten."""
        for context in self._contexts:
            context.forget_graphs()
        self.streams = streams

    # -- enqueueing ------------------------------------------------------------------------------------------

    def enqueue(self) -> None:
        """Enqueue everything once. What one thread asks of several ranks, or at once, must be in one group.

        Streams come in the same order on every rank, as NCCL's guide asks where communicators share a device
        ("Using multiple NCCL communicators concurrently").
        """
        for bindings in self.streams:
            calls = [call for binding in bindings for call in binding.calls]
            if len(calls) == 1:
                bindings[0].context.use()
                calls[0]()
                continue
            with self._nccl.group():
                for call in calls:
                    call()

    def run_case(
        self, case: Case, times: int, limit_seconds: float, may_block: bool
    ) -> dict[int, float]:
        """Run ``case`` so often, as its mode has it; return what each part took."""
        if case.mode not in ALONE:
            self.run(times, case.mode, limit_seconds, may_block)
            return self.part_seconds()
        taken: dict[int, float] = {}
        for _ in range(times):
            if case.mode == "cold":
                self.on_devices(DeviceContext.fill_cache, limit_seconds)
            self.run(1, case.mode, limit_seconds, may_block)
            for number, seconds in self.part_seconds().items():
                taken[number] = taken.get(number, 0.0) + seconds
        return taken

    def run(self, times: int, mode: str, limit_seconds: float, may_block: bool = True) -> None:
        """Run everything ``times`` times, between events; returns when all devices have ended.

        may_block: False where NCCL may still connect, register or load a kernel. Any of these can wait for
        what runs on the device, and takes longer than a blocking kernel may run.
        """
        timed = partial(self.timed, limit_seconds, may_block)
        on_main_stream = [
            binding.context for bindings in self.streams[:1] for binding in bindings
        ]
        launch_sample(on_main_stream, mode, times, self.items_per_launch, self.enqueue, timed)

    @contextmanager
    def timed(
        self, limit_seconds: float, may_block: bool, held: int
    ) -> Iterator[Callable[[], None]]:
        """Run what is enqueued inside between events, behind the blocking kernel; wait until all has ended.

        Gives what releases the devices, for whoever enqueues more than a device's queue takes. held: launches
        that are enqueued before that.
        """
        kernel = self._blocking if may_block else None
        self.blocked_launches = held if kernel else 0
        with blocked(kernel, self._contexts) as release:
            # Clocks start on all streams of a device at once, when it is released. On every device, for a
            # rank may be in the concurrent collective only.
            for context in self._contexts:
                context.begin(MAIN_STREAM)
            for binding in self._bindings():
                if binding.part.stream != MAIN_STREAM:
                    binding.context.follow(binding.part.stream)
                    binding.context.begin(binding.part.stream)
            yield release
            for binding in self._bindings():
                binding.context.end(binding.part.stream)
        self.wait(limit_seconds)
        if kernel:
            kernel.raise_if_timed_out()

    @property
    def items_per_launch(self) -> int:
        """Places of NCCL's or of a stream's queue that a launch takes at most.

        A call is one piece of work to NCCL, or one for every peer. NCCL too queues what the device has not
        begun, and waits where there is no room (NCCL_WORK_FIFO_BYTES).
        """
        several = ("all_to_all", "all_to_all_v", "gather", "scatter")
        cases = [(len(binding.calls), binding.part.case) for binding in self._bindings()]
        return max(
            (n * (case.ranks if case.collective in several else 1) for n, case in cases),
            default=1,
        )

    def _bindings(self) -> list[Binding]:
        return [binding for bindings in self.streams for binding in bindings]

    def on_devices(
        self, enqueue: Callable[[DeviceContext], None], limit_seconds: float
    ) -> None:
        """Enqueue something on every device, such as ``DeviceContext.keep_busy``, and wait for its end."""
        for context in self._contexts:
            enqueue(context)
        self.wait(limit_seconds)

    # -- waiting, clocks -------------------------------------------------------------------------------------

    def wait(self, limit_seconds: float) -> None:
        """Return when no device is busy; raise what ``hung`` makes of a failure or of the limit."""
        began = time.monotonic()
        polls = 0
        while busy := [context for context in self._contexts if context.busy()]:
            polls += 1
            waited = time.monotonic() - began
            # NCCL is asked seldom: while it answers nobody looks at the streams.
            if waited > limit_seconds or (polls % LOOK_EVERY_POLLS == 0 and self._failures()):
                raise self._hung(waited, [str(context) for context in busy])
            if polls > POLLS_BEFORE_SLEEP:
                time.sleep(SLEEP_SECONDS)

    def part_seconds(self) -> dict[int, float]:
        """Return, by the number of a part, what the last ``run`` took on the slowest of its devices here."""
        slowest: dict[int, float] = {}
        for binding in self._bindings():
            seconds, number = (
                binding.context.elapsed_seconds(binding.part.stream),
                binding.part.number,
            )
            slowest[number] = max(seconds, slowest.get(number, 0.0))
        return slowest
