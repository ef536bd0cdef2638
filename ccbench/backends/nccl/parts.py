"""What of a case runs at the same time, and the buffers, registrations and calls of each rank in it.

A part is one collective of some ranks: a group, the one pair, or the concurrent collective.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.backends.kernels.layout import ALIGNMENT_BYTES, RankBuffers, rank_buffers, rounded_up
from ccbench.backends.nccl.binding import Nccl
from ccbench.backends.nccl.collectives import Amounts, Call
from ccbench.backends.nccl.communicators import Communicator, Communicators
from ccbench.backends.nccl.launches import MAIN_STREAM, Memory, RankContext
from ccbench.backends.nccl.settings import nccl_algorithms
from ccbench.cases import ALL_GROUPS, NO_OP, UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.groups import Groups, Pair, format_ranks, parse_groups
from ccbench.verification import GROUP_SEEDS, PREMULTIPLIER

BARRIER_COUNT = 1
"""Elements of the collective that stands for a barrier."""

KEEP_BYTES = 1 << 30
"""Buffers of one rank that are larger are given back after the case."""


@dataclass(frozen=True)
class Part:
    """One collective of some ranks.

    case: as its members see it, who count from 0. members: their ranks in the team. number: of the part, for
    data of its own. stream: what is on different streams runs at the same time on one device. groups: those
    whose communicators are made at once, () for the one of all ranks; the active group has the
    communicator that it has when all groups run. pair: in ranks of the team.
    """

    name: str
    case: Case
    members: tuple[int, ...]
    number: int
    stream: int = MAIN_STREAM
    groups: Groups = ()
    pair: Pair | None = None

    def seeded(self, seed: int) -> int:
        """Return the seed of this part's data."""
        return seed + self.number * GROUP_SEEDS

    def place(self, rank: int) -> int:
        """Return what the team's ``rank`` is among the members."""
        return self.members.index(rank)

    def amounts(self, rank: int) -> Amounts | None:
        """Return what ``rank`` sends to and gets from every member, where that is not the same everywhere."""
        if self.case.collective != UNEVEN:
            return None
        sent = sent_elements(self.case.traffic, self.case.count, self.case.ranks)
        place = self.place(rank)
        return Amounts(tuple(sent[place].tolist()), tuple(sent[:, place].tolist()))

    def receives(self, rank: int) -> bool:
        """Whether ``rank`` has a result: of a pair one way only the target has."""
        return self.pair is None or self.pair.both or rank == self.pair.target

    def buffers(self, rank: int) -> RankBuffers:
        """Return where the team's ``rank`` reads and writes; a barrier has one element in and one out."""
        if collective(self.case.collective).moves_data:
            return rank_buffers(self.case, self.place(rank))
        return RankBuffers(0, BARRIER_COUNT, ALIGNMENT_BYTES, BARRIER_COUNT, 2 * ALIGNMENT_BYTES)

    def needed_bytes(self, rank: int) -> int:
        """Return the size of the rank's allocation, with all of its aggregated collectives."""
        needed = self.case.misalignment_bytes + self.case.aggregation * _stride(self.buffers(rank))
        return rounded_up(needed, ALIGNMENT_BYTES)


def _stride(buffers: RankBuffers) -> int:
    """Return how far the buffers of aggregated collectives are apart.

    Each has its own, so that every result can be checked and none waits for another's.
    """
    return max(buffers.total_bytes, ALIGNMENT_BYTES)


def parts_of(case: Case) -> tuple[Part, ...]:
    """Return every part, the case's own first, then those of the concurrent collective."""
    concurrent = case.concurrent_case
    streams = [case, *([concurrent] if concurrent else [])]
    found = [part for number, one in enumerate(streams) for part in _on_stream(one, number, len(streams) > 1)]
    return tuple(replace(part, number=number) for number, part in enumerate(found))


def _on_stream(case: Case, stream: int, several: bool) -> Iterator[Part]:
    groups = parse_groups(case.groups, case.ranks) if case.groups else ()
    seen = replace(case, ranks=case.group_ranks, groups="", active_group=ALL_GROUPS, pair="", concurrent="")
    for members in case.members:
        words = [case.collective] if several else []
        words += [f"ranks {format_ranks(members)}"] if len(case.members) > 1 else []
        yield Part(" ".join(words), seen, members, 0, stream, groups, case.one_pair)


@dataclass
class Binding:
    """One rank's share of one part. calls: what enqueues it, one for each aggregated collective."""

    context: RankContext
    part: Part
    communicator: Communicator
    memory: Memory
    calls: list[Callable[[], None]] = field(default_factory=list)
    premultiplied: int | None = None
    registration: ctypes.c_void_p | None = None

    @property
    def rank(self) -> int:
        """In the team."""
        return self.context.rank

    def inputs(self) -> list[tuple[int, int]]:
        """Return (address, bytes) of each input."""
        buffers = self.part.buffers(self.rank)
        return self._copies(buffers, buffers.input_offset, buffers.input_bytes)

    def outputs(self) -> list[tuple[int, int]]:
        """Return (address, bytes) of each output."""
        buffers = self.part.buffers(self.rank)
        return self._copies(buffers, buffers.output_offset, buffers.output_bytes)

    def _copies(self, buffers: RankBuffers, offset: int, size_bytes: int) -> list[tuple[int, int]]:
        first = self.memory.address + self.part.case.misalignment_bytes + offset
        copies = range(self.part.case.aggregation)
        return [(first + copy * _stride(buffers), size_bytes) for copy in copies]

    def prepare(self) -> None:
        """Look the calls up; CannotRun for what this NCCL does not have."""
        case, op = self.part.case, "sum" if self.part.case.op == NO_OP else self.part.case.op
        if case.op == "premulsum":
            self.premultiplied = self.communicator.premultiplied(PREMULTIPLIER, case.dtype)
        given = op if self.premultiplied is None else self.premultiplied
        # A variable that the user has set counts more than a call's own choice.
        algorithms = "" if "NCCL_ALGO" in os.environ else nccl_algorithms(case)
        stream = self.context.stream(self.part.stream).handle
        for (source, _), (target, _) in zip(self.inputs(), self.outputs(), strict=True):
            call = Call(
                case.collective, source, target, case.count, case.dtype, given, max(case.root, 0),
                self.part.pair, self.part.amounts(self.rank), algorithms,
            )  # fmt: skip
            self.calls.append(self.communicator.prepared(call, stream))

    def release(self) -> None:
        """Give up what NCCL holds for the case."""
        if self.premultiplied is not None:
            self.communicator.release(self.premultiplied)
        if self.registration is not None:
            self.communicator.deregister(self.registration, self.part.case.registration == "symmetric")
        self.premultiplied = self.registration = None


class PreparedCase:
    """All bindings of a case in this process; ``release`` gives everything back."""

    def __init__(self, nccl: Nccl, case: Case) -> None:
        self.nccl = nccl
        self.case = case
        self.bindings: list[Binding] = []

    def by_stream(self) -> list[list[Binding]]:
        """Return the bindings of each stream, the case's own first."""
        numbers = sorted({one.part.stream for one in self.bindings})
        return [[one for one in self.bindings if one.part.stream == number] for number in numbers]

    def place_memory(
        self, contexts: Mapping[int, RankContext], parts: Sequence[Part], communicators: Communicators
    ) -> None:
        """Take memory for every rank here in every part; OutOfMemory where a device has not so much."""
        registered = self.nccl if self.case.registration != "none" else None
        for part in parts:
            by_rank = communicators.of(part.stream, part.groups)
            # What all register together must be of one size: the most that a member needs.
            most = max(map(part.needed_bytes, part.members)) if registered else 0
            for rank in part.members:
                if rank in contexts:
                    size = most or part.needed_bytes(rank)
                    memory = contexts[rank].reserve(part.stream, size, registered)
                    self.bindings.append(Binding(contexts[rank], part, by_rank[rank], memory))

    def register(self) -> None:
        """Let NCCL know the memory, where the case asks for it. Collective where symmetric."""
        if self.case.registration == "none":
            return
        symmetric = self.case.registration == "symmetric"
        for bindings in self.by_stream():
            with self.nccl.group():
                for one in bindings:
                    held = one.memory
                    one.registration = one.communicator.register(held.address, held.size_bytes, symmetric)

    def registered(self) -> bool:
        """Whether NCCL took all that ``register`` asked for; what it cannot use it skips as a success."""
        return all(one.registration.value for one in self.bindings if one.registration is not None)

    def estimate_seconds(self) -> float | None:
        """Return NCCL's own estimate of the case's own collective; None where it has none."""
        calls = [one.calls[0] for bindings in self.by_stream()[:1] for one in bindings]
        return self.nccl.simulate(calls) if calls else None

    def release(self, close_communicators: Callable[[], None]) -> None:
        """Give registered memory back, and what is larger than is worth keeping.

        What NCCL registers for a graph it gives up at some group after the graph is gone, when CUDA has told
        it; only the end of a communicator waits for that (commDestroySync, src/init.cc). So memory that NCCL
        may know from a graph is freed after its communicators, which the next case makes anew.
        """
        for one in self.bindings:
            one.release()
        if self.case.mode == "graph" and self.case.registration != "none":
            close_communicators()
        for one in self.bindings:
            if one.memory.of_case or one.memory.size_bytes > KEEP_BYTES:
                one.context.release(one.part.stream)
        self.bindings.clear()
