"""A launch as the C functions that it is made of: names and arguments as words, for ``loop``.

The same functions with the same arguments as ``calls`` has mpi4py call; the signatures are MPI's own (MPI
4.0, chapters 3 and 6). Counts are of type int here, so larger ones are left to mpi4py. Handles are what
mpi4py holds: a pointer with Open MPI, an int with MPICH and Intel MPI.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ccbench.backends.blocks import Blocks, received_blocks, sent_blocks
from ccbench.backends.mpi.calls import (
    LARGEST_COUNT,
    NAMES,
    NONBLOCKING,
    OPS,
    PERSISTENT,
    typed_blocks,
    typed_count,
)
from ccbench.cases import Case
from ccbench.collectives import collective
from ccbench.verification import Array

COPY = "copy"
"""Not MPI's: what ``loop`` has of its own."""

STATUS_ROOM_BYTES = 1024
"""For two statuses: an MPI_Status has 20 bytes with MPICH, 24 with Open MPI, 32 in the standard ABI."""


@dataclass(frozen=True)
class Step:
    """A function and its arguments."""

    name: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Steps:
    """One launch. room: memory that the steps point into, which must live as long as they are run."""

    steps: tuple[Step, ...]
    room: Sequence[Any] = field(default=())


def _int_handle(mpi: Any, handle: Any) -> int:
    return int(mpi._handleof(handle))


class _Writer:
    """What the functions of one case share."""

    def __init__(self, mpi: Any, communicator: Any, case: Case, requests: Sequence[Any]) -> None:
        self.mpi, self.case = mpi, case
        self.communicator = _int_handle(mpi, communicator)
        self.size, self.rank = communicator.size, communicator.rank
        self.mode = case.mode
        self.request_bytes = int(mpi._sizeof(mpi.Request))
        self.slots = ctypes.create_string_buffer(2 * max(8, self.request_bytes))
        self.statuses = ctypes.create_string_buffer(STATUS_ROOM_BYTES)
        self.lists: list[Any] = []
        for number, request in enumerate(requests):
            slot, place = self.request_bytes, ctypes.addressof(self.slots)
            ctypes.memmove(place + number * slot, mpi._addressof(request), slot)

    def request(self, number: int = 0) -> int:
        return ctypes.addressof(self.slots) + number * self.request_bytes

    @property
    def status(self) -> int:
        return ctypes.addressof(self.statuses)

    def piece(self, buffer: Array, blocks: int = 1) -> tuple[int, int, int]:
        """Address, count of one block, type."""
        count, datatype = typed_count(self.mpi, self.case, buffer, blocks)
        return buffer.ctypes.data, count, _int_handle(self.mpi, datatype)

    def uneven(self, buffer: Array, blocks: Blocks) -> tuple[int, int, int, int]:
        """Address, lengths of blocks, where they begin, type."""
        counted, datatype = typed_blocks(self.mpi, self.case, blocks)
        numbers = (ctypes.c_int * (2 * self.size))(*counted.counts, *counted.offsets)
        self.lists.append(numbers)
        at = ctypes.addressof(numbers)
        offsets_at = at + self.size * ctypes.sizeof(ctypes.c_int)
        return buffer.ctypes.data, at, offsets_at, _int_handle(self.mpi, datatype)

    def done(self, *steps: Step) -> Steps:
        return Steps(steps, (self.slots, self.statuses, *self.lists))

    def complete(self, name: str, arguments: tuple[int, ...]) -> Steps:
        """The function ``name`` of a blocking call, in the mode of the case."""
        wait = Step("MPI_Wait", (self.request(), self.status))
        if self.mode == PERSISTENT:
            return self.done(Step("MPI_Start", (self.request(),)), wait)
        if self.mode == NONBLOCKING:
            return self.done(Step(f"MPI_I{name}", (*arguments, self.request())), wait)
        return self.done(Step(f"MPI_{name[0].upper()}{name[1:]}", arguments))


def steps_of(
    mpi: Any,
    communicator: Any,
    case: Case,
    source: Array,
    target: Array,
    requests: Sequence[Any],
    one_way: bool = False,
) -> Steps | None:
    """One launch of ``case``, as ``calls.bind`` and, one way, ``calls.bind_one_way`` bind it.

    case: as the communicator's ranks see it, which of a pair are two and no pair any more; so whether only
    the first of them sends is said beside it. requests: the persistent ones, already made. None where counts
    are too large for an int.
    """
    if max(source.nbytes, target.nbytes) > LARGEST_COUNT:
        return None
    writer = _Writer(mpi, communicator, case, requests)
    if one_way:
        return _one_way(writer, source, target)
    if case.collective == "send_recv":
        return _shift(writer, source, target)
    name = NAMES[case.collective]
    steps = writer.complete(name, _arguments(writer, source, target))
    if case.collective == "broadcast" and not case.in_place and writer.rank == case.root:
        copied = Step(COPY, (target.ctypes.data, source.ctypes.data, source.nbytes))
        return Steps((*steps.steps, copied), steps.room)
    return steps


def _arguments(writer: _Writer, source: Array, target: Array) -> tuple[int, ...]:
    """Of a collective's blocking function."""
    mpi, case, everyone = writer.mpi, writer.case, writer.size
    own, root = int(mpi.IN_PLACE), max(case.root, 0)
    at_root = writer.rank == root
    operation = (_int_handle(mpi, getattr(mpi, OPS[case.op])),) if collective(case.collective).reduces else ()
    end = writer.communicator
    match case.collective:
        case "barrier":
            return (end,)
        case "broadcast":
            return (*writer.piece(source if at_root else target), root, end)
        case "all_gather" | "all_to_all":
            receive = writer.piece(target, everyone)
            send = writer.piece(source, everyone if case.collective == "all_to_all" else 1)
            return (*((own, *receive[1:]) if case.in_place else send), *receive, end)
        case "all_to_all_v":
            sent, received = sent_blocks(case, writer.rank), received_blocks(case, writer.rank)
            return (*writer.uneven(source, sent), *writer.uneven(target, received), end)
        case "gather":
            receive = writer.piece(target, everyone) if at_root else (0, *writer.piece(source)[1:])
            send = (own, *receive[1:]) if case.in_place and at_root else writer.piece(source)
            return (*send, *receive, root, end)
        case "scatter":
            send = writer.piece(source, everyone) if at_root else (0, *writer.piece(target)[1:])
            receive = (own, *send[1:]) if case.in_place and at_root else writer.piece(target)
            return (*send, *receive, root, end)
        case "reduce":
            piece = writer.piece(source)
            into = target.ctypes.data if at_root else 0
            first = own if case.in_place and at_root else piece[0]
            return (first, into, *piece[1:], *operation, root, end)
        case "reduce_scatter":
            piece = writer.piece(source, everyone)
            places = (own, piece[0]) if case.in_place else (piece[0], target.ctypes.data)
            return (*places, *piece[1:], *operation, end)
    piece = writer.piece(target)
    return (own if case.in_place else source.ctypes.data, *piece, *operation, end)


def _shift(writer: _Writer, source: Array, target: Array) -> Steps:
    """To the right neighbour from the left one."""
    right, left = (writer.rank + 1) % writer.size, (writer.rank - 1) % writer.size
    send, receive = writer.piece(source), writer.piece(target)
    end, any_tag = writer.communicator, int(writer.mpi.ANY_TAG)
    wait = Step("MPI_Waitall", (2, writer.request(), writer.status))
    if writer.mode == PERSISTENT:
        return writer.done(Step("MPI_Startall", (2, writer.request())), wait)
    if writer.mode == NONBLOCKING:
        return writer.done(
            Step("MPI_Irecv", (*receive, left, any_tag, end, writer.request(0))),
            Step("MPI_Isend", (*send, right, 0, end, writer.request(1))),
            wait,
        )
    return writer.done(Step("MPI_Sendrecv", (*send, right, 0, *receive, left, 0, end, writer.status)))


def _one_way(writer: _Writer, source: Array, target: Array) -> Steps:
    """Rank 0 of the two sends, rank 1 receives."""
    peer = 1 - writer.rank
    if writer.rank == 0:
        return writer.complete("send", (*writer.piece(source), peer, 0, writer.communicator))
    own_status = () if writer.mode == NONBLOCKING else (writer.status,)
    tag = int(writer.mpi.ANY_TAG)
    return writer.complete("recv", (*writer.piece(target), peer, tag, writer.communicator, *own_status))
