"""NCCL's C functions are called here: a case's collectives, each rank's buffers in them, and its calls.

``ncclReduceScatter`` and its like stand in NATIVE; ``prepared`` makes of one rank's ``Call`` a function that
enqueues it each time it is called. Where NCCL has no function of its own, all-to-all (of equal blocks or
not), gather and scatter are sends and receives in one group, as NCCL's documentation shows them
("Point-to-point communication").

A part is one collective of some ranks: a group, the one pair, or the concurrent collective. What runs at the
same time on one device is on streams of its own.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ccbench.backends.base import CannotRun
from ccbench.backends.cuda.context import MAIN_STREAM
from ccbench.backends.kernels.layout import (
    ALIGNMENT_BYTES,
    KernelBuffers,
    rank_buffers,
    rounded_up,
)
from ccbench.backends.nccl import CTA_POLICIES, selection_of
from ccbench.backends.nccl.communicators import Communicators
from ccbench.backends.nccl.device import NcclMemory, RankContext
from ccbench.backends.nccl.library import Communicator, Library, call_config
from ccbench.cases.axes import ALL_GROUPS, NO_OP, NO_ROOT, UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.dtypes import item_bytes
from ccbench.groups import Groups, Pair, format_ranks, parse_groups
from ccbench.verification import GROUP_SEEDS, PREMULTIPLIER

BARRIER_COUNT = 1
"""Elements of the collective that stands for a barrier."""

KEEP_BYTES = 1 << 30
"""Buffers of one rank that are larger are given back after the case."""


# -- calls of NCCL -----------------------------------------------------------------------------------------

NATIVE = {
    "all_reduce": ("ncclAllReduce", "op"),
    "all_gather": ("ncclAllGather",),
    "reduce_scatter": ("ncclReduceScatter", "op"),
    "broadcast": ("ncclBroadcast", "root"),
    "reduce": ("ncclReduce", "op", "root"),
    "all_to_all": ("ncclAlltoAll",),
    "gather": ("ncclGather", "root"),
    "scatter": ("ncclScatter", "root"),
}
"""Collective -> NCCL's function, and what it takes between the type and the communicator."""

BY_CUPY = {
    "ncclAllReduce": "allReduce",
    "ncclReduce": "reduce",
    "ncclBroadcast": "broadcast",
    "ncclAllGather": "allGather",
    "ncclReduceScatter": "reduceScatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
"""Methods of CuPy's NcclCommunicator; arguments are the C function's without the communicator."""


@dataclass(frozen=True)
class Amounts:
    """Elements that a rank of an all_to_all_v sends to every rank, and gets from every rank."""

    sent: tuple[int, ...]
    received: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One rank's part of a collective.

    source and target: addresses on the rank's device; equal for what is done in place where NCCL says so (the
    rank's own block of the whole for all_gather, reduce_scatter, gather and scatter). count: elements, as in
    ``ccbench.cases.axes.Case``. op: a name of ``library.OPS``, or the number that ``Communicator.premultiplied``
    gave. pair: of send_recv, the two ranks instead of the ring. amounts: of all_to_all_v, this rank's.
    algorithms: those that this call may use, as algSelection names them; '' leaves it to NCCL. cta_policy: a
    flag of nccl.h; None leaves it to the communicator.
    """

    collective: str
    source: int
    target: int
    count: int
    dtype: str
    op: str | int = NO_OP
    root: int = NO_ROOT
    pair: Pair | None = None
    amounts: Amounts | None = None
    algorithms: str = ""
    cta_policy: int | None = None


def prepared(communicator: Communicator, call: Call, stream: int) -> Callable[[], None]:
    """Return what enqueues ``call`` on ``stream`` each time it is called, with all looked up before.

    It raises LibraryFailed with NCCL's words. Here: CannotRun for what this NCCL lacks.
    """
    nccl = communicator.library

    def bound(name: str, arguments: tuple[int, ...]) -> Callable[[], None]:
        config: tuple[Any, ...] = ()
        if call.algorithms or call.cta_policy is not None:
            selection = call_config(call.algorithms, call.cta_policy)
            name, config = f"{name}Config", (ctypes.byref(selection),)
        elif communicator.cupy is not None and name in BY_CUPY:
            return partial(
                nccl.by_cupy,
                partial(getattr(communicator.cupy, BY_CUPY[name]), *arguments),
                name,
            )
        function = nccl.function(name)

        def native() -> None:
            # Asked for now: a part of a communicator has its handle when the group that makes it has ended.
            code = function(*arguments[:-1], communicator.handle, arguments[-1], *config)
            communicator.check(code, name)

        return native

    parts = [
        bound(name, arguments)
        for name, arguments in nccl_calls(
            nccl, communicator.rank, communicator.ranks, call, stream
        )
    ]

    if len(parts) > 1 and nccl.module is None:
        nccl.function("ncclGroupStart")  # refused now rather than at each launch

    def several() -> None:
        if parts:  # a rank without a part of its own must not take time from the others
            with nccl.group():
                for enqueue in parts:
                    enqueue()

    return parts[0] if len(parts) == 1 else several


def nccl_calls(
    nccl: Library, rank: int, ranks: int, call: Call, stream: int
) -> list[tuple[str, tuple[int, ...]]]:
    """Return what ``rank`` of ``ranks`` must call, in one group if more than one; none without a part.

    Each is a C function and its arguments without the communicator, which is always the last but one.
    Raises CannotRun for what this NCCL cannot do.
    """
    if call.collective == "barrier":
        # NCCL has none: as in torch.distributed, an all-reduce of one element stands for it.
        call = replace(call, collective="all_reduce", count=1, dtype="int32", op="sum")
    dtype = nccl.dtype_number(call.dtype)
    name, *more = NATIVE.get(call.collective, ("",))
    values = {
        "send": call.source,
        "recv": call.target,
        "count": call.count,
        "dtype": dtype,
        "stream": stream,
    }
    if name and (call.collective not in TRANSFERS or nccl.has(name)):
        op = nccl.op_number(call.op) if "op" in more else 0
        if (
            "buffer" in getattr(nccl.dialect.functions.get(name), "arguments", ())
            and call.source != call.target
        ):
            raise CannotRun(
                f"{nccl.dialect.label} has no {call.collective} out of place; write placement: in_place"
            )
        values |= {"op": op, "root": call.root, "buffer": call.target}
        return [(name, ordered(nccl, name, values))]
    transfers = TRANSFERS[call.collective](rank, ranks, call)
    return [
        (
            name,
            ordered(
                nccl,
                name,
                {**values, "send": address, "recv": address, "count": count, "peer": peer},
            ),
        )
        for name, address, count, peer in transfers
    ]


def ordered(library: Library, name: str, values: Mapping[str, int]) -> tuple[int, ...]:
    """Return the arguments of a function as its dialect has them, without the communicator."""
    row = library.dialect.functions.get(name)
    if row is None:
        raise CannotRun(f"{library.dialect.label} has no function such as {name}")
    return tuple(values[word] for word in row.arguments if word != "comm")


Transfer = tuple[str, int, int, int]
"""ncclSend or ncclRecv, the address, the number of elements, and the peer."""


def _all_to_all(rank: int, ranks: int, call: Call) -> list[Transfer]:
    """One send and one receive for every peer; nothing at all between two that exchange nothing."""
    equal = call.collective == "all_to_all"
    amounts = Amounts(*[(call.count,) * ranks] * 2) if equal else call.amounts
    assert amounts is not None, "uneven blocks have them"
    item, made = item_bytes(call.dtype), list[Transfer]()
    source, target = call.source, call.target
    for peer, (sent, received) in enumerate(zip(amounts.sent, amounts.received, strict=True)):
        if sent:
            made.append(("ncclSend", source, sent, peer))
        if received:
            made.append(("ncclRecv", target, received, peer))
        source, target = source + sent * item, target + received * item
    return made


def _rooted(rank: int, ranks: int, call: Call) -> list[Transfer]:
    """gather and scatter: at the root a block for every rank, elsewhere one."""
    gathers = call.collective == "gather"
    own, whole = (call.source, call.target) if gathers else (call.target, call.source)
    with_root, with_rank = ("ncclSend", "ncclRecv") if gathers else ("ncclRecv", "ncclSend")
    block = call.count * item_bytes(call.dtype)
    mine = [(with_root, own, call.count, call.root)]
    if rank != call.root:
        return mine
    theirs = [(with_rank, whole + peer * block, call.count, peer) for peer in range(ranks)]
    if own == whole + rank * block:  # in place: the root's own block is where it belongs
        return [their for their in theirs if their[-1] != rank]
    return mine + theirs


def _send_recv(rank: int, ranks: int, call: Call) -> list[Transfer]:
    pair = call.pair
    if pair is None:
        ways = [(sender, (sender + 1) % ranks) for sender in range(ranks)]
    else:
        ways = [(pair.source, pair.target), (pair.target, pair.source)][: 1 + pair.both]
    sends = [
        ("ncclSend", call.source, call.count, target)
        for source, target in ways
        if source == rank
    ]
    return sends + [
        ("ncclRecv", call.target, call.count, source)
        for source, target in ways
        if target == rank
    ]


TRANSFERS: dict[str, Callable[[int, int, Call], list[Transfer]]] = {
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all,
    "gather": _rooted,
    "scatter": _rooted,
    "send_recv": _send_recv,
}
"""Collectives that are sends and receives, those of NATIVE only where this NCCL lacks the function."""

# -- parts of a case ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CollectivePart:
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

    def amounts(self, rank: int) -> Amounts | None:
        """Return what ``rank`` sends to and gets from every member, where that is not the same everywhere."""
        if self.case.collective != UNEVEN:
            return None
        sent = sent_elements(self.case.traffic, self.case.count, self.case.ranks)
        place = self.members.index(rank)
        return Amounts(tuple(sent[place].tolist()), tuple(sent[:, place].tolist()))

    def receives(self, rank: int) -> bool:
        """Return True if ``rank`` has a result: of a pair one way only the target has."""
        return self.pair is None or self.pair.both or rank == self.pair.target

    def buffers(self, rank: int) -> KernelBuffers:
        """Return where the team's ``rank`` reads and writes; a barrier has one element in and one out."""
        if collective(self.case.collective).moves_data:
            return rank_buffers(self.case, self.members.index(rank))
        return KernelBuffers(
            0, BARRIER_COUNT, ALIGNMENT_BYTES, BARRIER_COUNT, 2 * ALIGNMENT_BYTES
        )

    def stride(self, rank: int) -> int:
        """Return how far the rank's buffers of aggregated collectives are apart, in bytes."""
        return max(self.buffers(rank).total_bytes, ALIGNMENT_BYTES)

    def needed_bytes(self, rank: int) -> int:
        """Return the size of the rank's allocation, with all of its aggregated collectives."""
        needed = self.case.misalignment_bytes + self.case.aggregation * self.stride(rank)
        return rounded_up(needed, ALIGNMENT_BYTES)


def parts_of(case: Case) -> tuple[CollectivePart, ...]:
    """Return every part, the case's own first, then those of the concurrent collective."""
    concurrent = case.concurrent_case
    parts: list[CollectivePart] = []
    for stream, whole in enumerate([case, concurrent] if concurrent else [case]):
        groups = parse_groups(whole.groups, whole.ranks) if whole.groups else ()
        group_case = replace(
            whole,
            ranks=whole.group_ranks,
            groups="",
            active_group=ALL_GROUPS,
            pair="",
            concurrent="",
        )
        for members in whole.members:
            words = [whole.collective] if concurrent else []
            words += [f"ranks {format_ranks(members)}"] if len(whole.members) > 1 else []
            parts.append(
                CollectivePart(
                    " ".join(words),
                    group_case,
                    members,
                    len(parts),
                    stream,
                    groups,
                    whole.one_pair,
                )
            )
    return tuple(parts)


@dataclass
class Binding:
    """One rank's share of one part. calls: what enqueues it, one for each aggregated collective."""

    context: RankContext
    part: CollectivePart
    communicator: Communicator
    memory: NcclMemory
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
        return [(base + buffers.input_offset, buffers.input_bytes) for base in self._bases()]

    def outputs(self) -> list[tuple[int, int]]:
        """Return (address, bytes) of each output."""
        buffers = self.part.buffers(self.rank)
        return [(base + buffers.output_offset, buffers.output_bytes) for base in self._bases()]

    def _bases(self) -> list[int]:
        first, stride = (
            self.memory.address + self.part.case.misalignment_bytes,
            self.part.stride(self.rank),
        )
        return [first + copy * stride for copy in range(self.part.case.aggregation)]

    def prepare(self) -> None:
        """Look the calls up; CannotRun for what this NCCL does not have."""
        case, op = self.part.case, "sum" if self.part.case.op == NO_OP else self.part.case.op
        if case.op == "premulsum":
            self.premultiplied = self.communicator.premultiplied(PREMULTIPLIER, case.dtype)
        reduction = op if self.premultiplied is None else self.premultiplied
        # A variable that is set counts more than a call's own choice.
        algorithms = selection_of(case) if "NCCL_ALGO" not in os.environ else ""
        policy = (
            CTA_POLICIES.get(case.cta_policy) if "NCCL_CTA_POLICY" not in os.environ else None
        )
        stream = self.context.on(self.part.stream).handle
        for (source, _), (target, _) in zip(self.inputs(), self.outputs(), strict=True):
            call = Call(
                case.collective,
                source,
                target,
                case.count,
                case.dtype,
                reduction,
                max(case.root, 0),
                self.part.pair,
                self.part.amounts(self.rank),
                algorithms,
                policy.flag if policy else None,
            )
            self.calls.append(prepared(self.communicator, call, stream))

    def release(self) -> None:
        """Give up what NCCL holds for the case."""
        if self.premultiplied is not None:
            self.communicator.release(self.premultiplied)
        if self.registration is not None:
            self.communicator.deregister(
                self.registration, self.part.case.registration == "symmetric"
            )
        self.premultiplied = self.registration = None


class PreparedCase:
    """All bindings of a case in this process; ``release`` gives everything back."""

    def __init__(self, nccl: Library, case: Case) -> None:
        self.nccl = nccl
        self.case = case
        self.bindings: list[Binding] = []

    def by_stream(self) -> list[list[Binding]]:
        """Return the bindings of each stream, the case's own first."""
        numbers = sorted({binding.part.stream for binding in self.bindings})
        return [
            [binding for binding in self.bindings if binding.part.stream == number]
            for number in numbers
        ]

    def place_memory(
        self,
        contexts: Mapping[int, RankContext],
        parts: Sequence[CollectivePart],
        communicators: Communicators,
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

    def register(self) -> bool:
        """Let NCCL know the memory, where the case asks for it; False where it did not take all of it here.

        What it cannot use it skips as a success. Collective where symmetric.
        """
        if self.case.registration == "none":
            return True
        symmetric = self.case.registration == "symmetric"
        for bindings in self.by_stream():
            with self.nccl.group():
                for binding in bindings:
                    held = binding.memory
                    binding.registration = binding.communicator.register(
                        held.address, held.size_bytes, symmetric
                    )
        return all(
            binding.registration and binding.registration.value for binding in self.bindings
        )

    def release(self, close_communicators: Callable[[], None]) -> None:
        """Give registered memory back, and what is larger than is worth keeping.

        What NCCL registers for a graph it gives up at some group after the graph is gone, when CUDA has told
        it; only the end of a communicator waits for that (commDestroySync, src/init.cc). So memory that NCCL
        may know from a graph is freed after its communicators, which the next case makes anew.
        """
        for binding in self.bindings:
            binding.release()
        if self.case.mode == "graph" and self.case.registration != "none":
            close_communicators()
        for binding in self.bindings:
            if binding.memory.of_case or binding.memory.size_bytes > KEEP_BYTES:
                binding.context.release(binding.part.stream)
        self.bindings.clear()
