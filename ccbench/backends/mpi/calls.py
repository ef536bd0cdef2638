"""Which MPI function a case is, and that function bound to its buffers: one call into C for each launch.

Three ways of calling: blocking, non-blocking (``MPI_Iallreduce`` and ``MPI_Wait``), and persistent
(``MPI_Allreduce_init`` once, then ``MPI_Start`` and ``MPI_Wait``; MPI 4.0, section 6.13). What MPI asks for
beyond ccbench's own meaning of a collective is said in ``refusal``. ``starter`` is the non-blocking call
without its wait, for what goes on in the background.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ccbench.backends.blocks import Blocks, received_blocks, sent_blocks
from ccbench.backends.mpi.library import OPEN_MPI, Library
from ccbench.cases import UNEVEN, Case
from ccbench.collectives import collective
from ccbench.dtypes import item_bytes
from ccbench.verification import Array

Call = Callable[[], object]

NONBLOCKING, PERSISTENT = "nonblocking", "persistent"

TYPES = {
    "int8": "INT8_T",
    "uint8": "UINT8_T",
    "int32": "INT32_T",
    "uint32": "UINT32_T",
    "int64": "INT64_T",
    "uint64": "UINT64_T",
    "float32": "FLOAT",
    "float64": "DOUBLE",
}
"""Element types that MPI can do arithmetic with (MPI 4.0, section 6.9.2); others travel as bytes."""

CLIPPED = ("int8", "uint8")
"""Sums of these wrap around in C and in ccbench's data, and MPI does not say what becomes of them."""

OPS = {"sum": "SUM", "prod": "PROD", "min": "MIN", "max": "MAX"}

NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reduce_scatter_block",
    "broadcast": "bcast",
    "reduce": "reduce",
    "all_to_all": "alltoall",
    "all_to_all_v": "alltoallv",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
"""MPI's names of the collectives, in small letters. send_recv is no collective of MPI's."""

LARGEST_COUNT = 2**31 - 1
"""What an ``int`` counts; larger counts came with MPI 4.0."""


@dataclass(frozen=True)
class Bound:
    """A call ready to be made. requests: persistent ones, to be freed when the case is over."""

    call: Call
    requests: Sequence[Any] = field(default=())

    def free(self) -> None:
        """Give the library back what it holds for the call."""
        for request in self.requests:
            request.Free()


def refusal(case: Case, library: Library) -> str | None:
    """Why this MPI (or any) has no call for ``case``; None where it has."""
    row = collective(case.collective)
    swaps = case.collective == "send_recv"
    if row.reduces and case.dtype not in TYPES:
        return f"MPI does no arithmetic with {case.dtype}; it can reduce {', '.join(TYPES)}"
    if row.reduces and case.op == "sum" and case.dtype in CLIPPED and library.vendor == OPEN_MPI:
        return (
            f"Open MPI clips sums of {case.dtype} that overflow, on processors with AVX "
            "(open-mpi/ompi issue 8045), so a result cannot be told from a wrong one; use another dtype"
        )
    if case.mode == PERSISTENT and not library.persistent and not swaps:
        return f"persistent collectives came with MPI 4.0; {library.name} has none"
    largest = _largest_count(case)
    if largest > LARGEST_COUNT and not library.large_counts:
        return f"{largest} elements: larger counts came with MPI 4.0; {library.name} has none"
    return None


def _largest_count(case: Case) -> int:
    """Elements of the largest buffer."""
    if case.collective != UNEVEN:
        return case.count * max(1, case.ranks)
    unit = 1 if case.dtype in TYPES else item_bytes(case.dtype)
    seats = range(case.group_ranks)
    return unit * max(max(case.input_count(seat), case.output_count(seat)) for seat in seats)


def bind(mpi: Any, communicator: Any, case: Case, source: Array, target: Array) -> Bound:
    """The collective of ``case`` among the ranks of ``communicator``. source is target in place."""
    if case.collective == "send_recv":
        return _shift(mpi, communicator, case, source, target)
    arguments = _arguments(mpi, communicator, case, source, target)
    name = NAMES[case.collective]
    if case.mode == PERSISTENT:
        request = getattr(communicator, f"{name.capitalize()}_init")(*arguments)
        bound = Bound(_started(request), (request,))
    elif case.mode == NONBLOCKING:
        bound = Bound(_waited(partial(getattr(communicator, f"I{name}"), *arguments)))
    else:
        bound = Bound(partial(getattr(communicator, name.capitalize()), *arguments))
    if _copies_at_root(communicator, case):
        return Bound(_then_copied(bound.call, source, target), bound.requests)
    return bound


def _copies_at_root(communicator: Any, case: Case) -> bool:
    return case.collective == "broadcast" and not case.in_place and bool(communicator.rank == case.root)


@dataclass(frozen=True)
class Starter:
    """A launch that is begun and goes on. begin: returns its requests; after: to be called when they are
    complete, before the launch is over.
    """

    begin: Callable[[], list[Any]]
    after: Call | None = None


def starter(
    mpi: Any, communicator: Any, case: Case, source: Array, target: Array, one_way: bool = False
) -> Starter:
    """The collective of ``case`` without blocking, whatever its mode. one_way: as ``bind_one_way``."""
    if one_way:
        begin_one = _one_way_begun(mpi, communicator, case, source, target)
        return Starter(lambda: [begin_one()])
    if case.collective == "send_recv":
        return Starter(_shift_begun(mpi, communicator, case, source, target))
    arguments = _arguments(mpi, communicator, case, source, target)
    function = getattr(communicator, f"I{NAMES[case.collective]}")
    after = partial(np.copyto, target, source) if _copies_at_root(communicator, case) else None
    return Starter(lambda: [function(*arguments)], after)


def _started(request: Any) -> Call:
    start, wait = request.Start, request.Wait

    def call() -> None:
        start()
        wait()

    return call


def _waited(begin: Call) -> Call:
    def call() -> None:
        begin().Wait()  # type: ignore[attr-defined]  # a Request

    return call


def _then_copied(call: Call, source: Array, target: Array) -> Call:
    """MPI_Bcast has one buffer: where ccbench asks for two, the root copies what it has sent."""

    def both() -> None:
        call()
        np.copyto(target, source)

    return both


def typed_count(mpi: Any, case: Case, buffer: Array, blocks: int = 1) -> tuple[int, Any]:
    """How many elements one block of ``buffer`` has, and of which of MPI's types."""
    count = len(buffer) // blocks
    if case.dtype in TYPES:
        return count, getattr(mpi, TYPES[case.dtype])
    return count * item_bytes(case.dtype), mpi.BYTE


def typed_blocks(mpi: Any, case: Case, blocks: Blocks) -> tuple[Blocks, Any]:
    """Blocks that differ in length, in units of the second: one of MPI's types."""
    if case.dtype in TYPES:
        return blocks, getattr(mpi, TYPES[case.dtype])
    return blocks.times(item_bytes(case.dtype)), mpi.BYTE


def _uneven_spec(mpi: Any, case: Case, buffer: Array, blocks: Blocks) -> list[Any]:
    """What mpi4py takes for a buffer of such blocks: memory, (lengths, beginnings), type."""
    memory = getattr(mpi, "buffer", None) or mpi.memory
    counted, datatype = typed_blocks(mpi, case, blocks)
    return [memory.frombuffer(buffer.view(np.uint8)), (counted.counts, counted.offsets), datatype]


def _spec(mpi: Any, case: Case, buffer: Array, blocks: int = 1) -> list[Any]:
    """What mpi4py takes for a buffer, made once: memory, count (of one block), type."""
    memory = getattr(mpi, "buffer", None) or mpi.memory  # its name before mpi4py 4
    return [memory.frombuffer(buffer.view(np.uint8)), *typed_count(mpi, case, buffer, blocks)]


def _arguments(mpi: Any, communicator: Any, case: Case, source: Array, target: Array) -> list[Any]:
    """What the function takes, without a request."""
    row, root = collective(case.collective), max(case.root, 0)
    at_root = communicator.rank == root
    operation = [getattr(mpi, OPS[case.op])] if row.reduces else []
    blocks = communicator.size
    match case.collective:
        case "barrier":
            return []
        case "broadcast":
            return [_spec(mpi, case, source if at_root else target), root]
        case "all_gather" | "all_to_all":
            send = _spec(mpi, case, source, blocks if case.collective == "all_to_all" else 1)
            return [mpi.IN_PLACE if case.in_place else send, _spec(mpi, case, target, blocks)]
        case "all_to_all_v":
            sent, received = sent_blocks(case, communicator.rank), received_blocks(case, communicator.rank)
            return [_uneven_spec(mpi, case, source, sent), _uneven_spec(mpi, case, target, received)]
        case "gather":
            send = mpi.IN_PLACE if case.in_place and at_root else _spec(mpi, case, source)
            return [send, _spec(mpi, case, target, blocks) if at_root else None, root]
        case "scatter":
            receive = mpi.IN_PLACE if case.in_place and at_root else _spec(mpi, case, target)
            return [_spec(mpi, case, source, blocks) if at_root else None, receive, root]
        case "reduce":
            send = mpi.IN_PLACE if case.in_place and at_root else _spec(mpi, case, source)
            return [send, _spec(mpi, case, target) if at_root else None, *operation, root]
        case "reduce_scatter":
            send = _spec(mpi, case, source, blocks)
            receive = send if case.in_place else _spec(mpi, case, target)
            return [mpi.IN_PLACE if case.in_place else send, receive, *operation]
    send = mpi.IN_PLACE if case.in_place else _spec(mpi, case, source)
    return [send, _spec(mpi, case, target), *operation]


def _shift(mpi: Any, communicator: Any, case: Case, source: Array, target: Array) -> Bound:
    """To the right neighbour from the left one, as nccl-tests' sendrecv."""
    right = (communicator.rank + 1) % communicator.size
    left = (communicator.rank - 1) % communicator.size
    send, receive = _spec(mpi, case, source), _spec(mpi, case, target)
    if case.mode == PERSISTENT:
        requests = [communicator.Recv_init(receive, left), communicator.Send_init(send, right)]
        return Bound(partial(_start_all, mpi, requests), requests)
    if case.mode == NONBLOCKING:
        begin = _shift_begun(mpi, communicator, case, source, target)
        return Bound(lambda: mpi.Request.Waitall(begin()))
    return Bound(partial(communicator.Sendrecv, send, right, 0, receive, left, 0))


def _shift_begun(
    mpi: Any, communicator: Any, case: Case, source: Array, target: Array
) -> Callable[[], list[Any]]:
    right = (communicator.rank + 1) % communicator.size
    left = (communicator.rank - 1) % communicator.size
    send, receive = _spec(mpi, case, source), _spec(mpi, case, target)
    return lambda: [communicator.Irecv(receive, left), communicator.Isend(send, right)]


def _start_all(mpi: Any, requests: list[Any]) -> None:
    mpi.Prequest.Startall(requests)
    mpi.Request.Waitall(requests)


def bind_one_way(mpi: Any, communicator: Any, case: Case, source: Array, target: Array) -> Bound:
    """Rank 0 of the two sends, rank 1 receives."""
    sends = communicator.rank == 0
    spec = _spec(mpi, case, source if sends else target)
    peer = 1 - communicator.rank
    if case.mode == NONBLOCKING:
        return Bound(_waited(_one_way_begun(mpi, communicator, case, source, target)))
    if case.mode == PERSISTENT:
        request = (communicator.Send_init if sends else communicator.Recv_init)(spec, peer)
        return Bound(_started(request), (request,))
    return Bound(partial(communicator.Send if sends else communicator.Recv, spec, peer))


def _one_way_begun(mpi: Any, communicator: Any, case: Case, source: Array, target: Array) -> Call:
    sends = communicator.rank == 0
    spec = _spec(mpi, case, source if sends else target)
    return partial(communicator.Isend if sends else communicator.Irecv, spec, 1 - communicator.rank)
