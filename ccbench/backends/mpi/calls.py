"""Which MPI function a case is, and that function bound to its buffers: one call into C for each launch.

Three ways of calling: blocking, non-blocking (``MPI_Iallreduce`` and ``MPI_Wait``), and persistent
(``MPI_Allreduce_init`` once, then ``MPI_Start`` and ``MPI_Wait``; MPI 4.0, section 6.13). What MPI asks for
beyond ccbench's own meaning of a collective is said in ``refusal``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from ccbench.backends.mpi.library import OPEN_MPI, Library
from ccbench.cases import Case
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
    if row.reduces and case.op not in OPS:
        return f"MPI has no operation {case.op}; it has {', '.join(OPS)}"
    if row.reduces and case.op == "sum" and case.dtype in CLIPPED and library.vendor == OPEN_MPI:
        return (
            f"Open MPI clips sums of {case.dtype} that overflow, on processors with AVX "
            "(open-mpi/ompi issue 8045), so a result cannot be told from a wrong one; use another dtype"
        )
    if case.mode == PERSISTENT and not library.persistent and not swaps:
        return f"persistent collectives came with MPI 4.0; {library.name} has none"
    if swaps and case.in_place and (case.mode in (NONBLOCKING, PERSISTENT) or case.pair):
        return "in place MPI has MPI_Sendrecv_replace alone, which blocks and goes round the ring"
    if case.count * max(1, case.ranks) > LARGEST_COUNT and not library.large_counts:
        return f"{case.count} elements: larger counts came with MPI 4.0; {library.name} has none"
    return None


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
    copies_at_root = case.collective == "broadcast" and not case.in_place and communicator.rank == case.root
    return Bound(_then_copied(bound.call, source, target), bound.requests) if copies_at_root else bound


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
    if case.in_place:
        spec = _spec(mpi, case, target)
        return Bound(partial(communicator.Sendrecv_replace, spec, right, 0, left, 0))
    send, receive = _spec(mpi, case, source), _spec(mpi, case, target)
    if case.mode == PERSISTENT:
        requests = [communicator.Recv_init(receive, left), communicator.Send_init(send, right)]
        return Bound(partial(_start_all, mpi, requests), requests)
    if case.mode == NONBLOCKING:

        def call() -> None:
            mpi.Request.Waitall([communicator.Irecv(receive, left), communicator.Isend(send, right)])

        return Bound(call)
    return Bound(partial(communicator.Sendrecv, send, right, 0, receive, left, 0))


def _start_all(mpi: Any, requests: list[Any]) -> None:
    mpi.Prequest.Startall(requests)
    mpi.Request.Waitall(requests)


def bind_one_way(mpi: Any, communicator: Any, case: Case, source: Array, target: Array) -> Bound:
    """Rank 0 of the two sends, rank 1 receives."""
    sends = communicator.rank == 0
    spec = _spec(mpi, case, source if sends else target)
    peer = 1 - communicator.rank
    names = ("Send", "Recv") if case.mode != NONBLOCKING else ("Isend", "Irecv")
    if case.mode == PERSISTENT:
        request = (communicator.Send_init if sends else communicator.Recv_init)(spec, peer)
        return Bound(_started(request), (request,))
    begin = partial(getattr(communicator, names[0] if sends else names[1]), spec, peer)
    return Bound(_waited(begin) if case.mode == NONBLOCKING else begin)
