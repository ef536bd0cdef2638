"""A case made ready on the ranks of one process: memory, registrations, and calls looked up before."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ccbench.backends.base import OutOfMemory
from ccbench.backends.nccl.communicator import Communicator
from ccbench.backends.nccl.communicators import Communicators
from ccbench.backends.nccl.library import Nccl
from ccbench.backends.nccl.parts import Copies, Part, alike_bytes, copies_for
from ccbench.backends.nccl.seat import Memory, Seat
from ccbench.backends.nccl.settings import nccl_algorithms
from ccbench.backends.nccl.types import Call, Registration
from ccbench.cases import NO_OP, Case
from ccbench.verification import PREMULTIPLIER

KEEP_BYTES = 1 << 30
"""Buffers of one rank that are larger are given back after the case."""


@dataclass
class Binding:
    """One rank's share of one part. calls: what enqueues it, one for each aggregated collective."""

    seat: Seat
    part: Part
    copies: Copies
    communicator: Communicator
    memory: Memory
    nccl_calls: list[Call] = field(default_factory=list)
    calls: list[Callable[[], None]] = field(default_factory=list)
    premultiplied: int | None = None
    registrations: list[Registration] = field(default_factory=list)

    @property
    def rank(self) -> int:
        """In the team."""
        return self.seat.rank

    def inputs(self) -> Iterator[tuple[int, int]]:
        """(address, bytes) of each input."""
        for begin in self.copies.offsets():
            yield self.memory.address + begin + self.copies.one.input_offset, self.copies.one.input_bytes

    def outputs(self) -> Iterator[tuple[int, int]]:
        """(address, bytes) of each output."""
        for begin in self.copies.offsets():
            yield self.memory.address + begin + self.copies.one.output_offset, self.copies.one.output_bytes


class Bound:
    """All bindings of a case in this process; ``release`` gives everything back."""

    def __init__(self, nccl: Nccl, case: Case) -> None:
        self.nccl = nccl
        self.case = case
        self.bindings: list[Binding] = []

    def lanes(self) -> list[list[Binding]]:
        """Bindings of each lane, the case's own first."""
        numbers = sorted({one.part.lane for one in self.bindings})
        return [[one for one in self.bindings if one.part.lane == number] for number in numbers]

    def place_memory(
        self, seats: Mapping[int, Seat], parts: Sequence[Part], communicators: Communicators
    ) -> None:
        """Memory for every rank here in every part; OutOfMemory where a device has not so much."""
        allocate = None if self.case.registration == "none" else self.nccl.allocate
        for part in parts:
            by_rank = communicators.of(part)
            for rank in part.members:
                if rank not in seats:
                    continue
                seat, copies = seats[rank], copies_for(part, rank)
                size = copies.total_bytes if allocate is None else alike_bytes(part)
                memory = seat.reserve(part.lane, size, allocate)
                self.bindings.append(Binding(seat, part, copies, by_rank[rank], memory))

    def register(self) -> None:
        """Let NCCL know the memory, where the case asks for it. Collective where symmetric."""
        if self.case.registration == "none":
            return
        symmetric = self.case.registration == "symmetric"
        for lane in self.lanes():
            with self.nccl.group():
                for one in lane:
                    held = one.memory
                    one.registrations.append(
                        one.communicator.register(held.address, held.size_bytes, symmetric)
                    )

    def prepare_calls(self) -> None:
        """Look everything up; CannotRun for what this NCCL does not have."""
        for one in self.bindings:
            case, stream = one.part.case, one.seat.lane(one.part.lane).stream
            op: str | int = case.op
            algorithms = "" if "NCCL_ALGO" in os.environ else nccl_algorithms(case)
            if case.op == "premulsum":
                op = one.premultiplied = one.communicator.premultiplied(PREMULTIPLIER, case.dtype)
            both = zip(one.inputs(), one.outputs(), strict=True)
            for (source, _), (target, _) in both:
                one.nccl_calls.append(
                    Call(case.collective, source, target, case.count, case.dtype,
                         "sum" if op == NO_OP else op, max(case.root, 0), one.part.pair,
                         one.part.amounts(one.rank), algorithms)
                )  # fmt: skip
            one.calls = [one.communicator.prepared(call, stream) for call in one.nccl_calls]

    def estimate_seconds(self) -> float | None:
        """NCCL's own estimate of the case's own collective; None where it has none."""
        lane = self.lanes()[:1]
        asked = [
            (one.communicator, one.nccl_calls[0], one.seat.lane(one.part.lane).stream)
            for binding in lane
            for one in binding
        ]
        return self.nccl.simulate(asked) if asked else None

    def registered(self) -> bool:
        """NCCL took all that ``register`` asked for; what it cannot use it passes over as a success."""
        return all(held.held.value for one in self.bindings for held in one.registrations)

    def release(self, close_communicators: Callable[[], None]) -> None:
        """Give registered memory back, and what is larger than is worth keeping.

        What NCCL registers for a graph it gives up at some group after the graph is gone, when CUDA has told
        it; only the end of a communicator waits for that (commDestroySync, src/init.cc). So memory that NCCL
        may know from a graph is freed after its communicators, which the next case makes anew.
        """
        for one in self.bindings:
            if one.premultiplied is not None:
                one.communicator.release(one.premultiplied)
            for registration in one.registrations:
                one.communicator.deregister(registration)
            one.registrations.clear()
        if self.case.mode == "graph" and self.case.registration != "none":
            close_communicators()
        for one in self.bindings:
            held = one.seat.memory.get(one.part.lane)
            if held and (held.by_library or held.size_bytes > KEEP_BYTES):
                one.seat.release(one.part.lane, self.nccl.free)
        self.bindings.clear()


def refuse_out_of_memory(failed: OutOfMemory | None, all_well: bool) -> None:
    """OutOfMemory on every process where one has too little, so that nobody waits for who gave up."""
    if not all_well:
        raise failed or OutOfMemory("another rank's device has not so much memory left")
