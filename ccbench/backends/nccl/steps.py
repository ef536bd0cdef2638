"""ccbench's collectives as calls of NCCL's C functions: one rank's part, as data.

Where NCCL has no call of its own, all-to-all (of equal blocks or not), gather and scatter are sends and
receives in one group, as NCCL's documentation shows them ("Point-to-point communication").
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ccbench.backends.base import CannotRun
from ccbench.backends.nccl.library import Nccl
from ccbench.backends.nccl.types import Call
from ccbench.dtypes import item_bytes
from ccbench.errors import UsageError
from ccbench.groups import Pair

Step = tuple[str, tuple[int, ...]]
"""A C function, and its arguments without the communicator, which is always the last but one."""


def steps(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    """What ``rank`` of ``ranks`` must call, in one group if more than one; none where it has no part.

    Raises UsageError for what is no collective, CannotRun for what this NCCL or these ranks cannot do.
    """
    if call.collective not in _STEPS:
        raise UsageError(f"collective: NCCL has no {call.collective!r}; one of {', '.join(_STEPS)}")
    return _STEPS[call.collective](nccl, rank, ranks, call, stream)


def _reducing(name: str, nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    dtype, op = nccl.dtype_number(call.dtype), nccl.op_number(call.op)
    return [(name, (call.source, call.target, call.count, dtype, op, stream))]


def _reduce(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    dtype, op = nccl.dtype_number(call.dtype), nccl.op_number(call.op)
    return [("ncclReduce", (call.source, call.target, call.count, dtype, op, call.root, stream))]


def _all_gather(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    dtype = nccl.dtype_number(call.dtype)
    return [("ncclAllGather", (call.source, call.target, call.count, dtype, stream))]


def _broadcast(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    dtype = nccl.dtype_number(call.dtype)
    return [("ncclBroadcast", (call.source, call.target, call.count, dtype, call.root, stream))]


def _all_to_all(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    dtype = nccl.dtype_number(call.dtype)
    if nccl.has("ncclAlltoAll"):
        return [("ncclAlltoAll", (call.source, call.target, call.count, dtype, stream))]
    block = call.count * item_bytes(call.dtype)
    return [
        step
        for peer in range(ranks)
        for step in (
            ("ncclSend", (call.source + peer * block, call.count, dtype, peer, stream)),
            ("ncclRecv", (call.target + peer * block, call.count, dtype, peer, stream)),
        )
    ]


def _all_to_all_v(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    """One send and one receive for every peer; nothing at all between two that exchange nothing."""
    amounts = call.amounts
    if amounts is None or {len(amounts.sent), len(amounts.received)} != {ranks}:
        raise UsageError(f"all_to_all_v: amounts for {ranks} ranks are needed, one to and one from each")
    dtype, item = nccl.dtype_number(call.dtype), item_bytes(call.dtype)
    made: list[Step] = []
    source, target = call.source, call.target
    for peer, (sent, received) in enumerate(zip(amounts.sent, amounts.received, strict=True)):
        if sent:
            made.append(("ncclSend", (source, sent, dtype, peer, stream)))
        if received:
            made.append(("ncclRecv", (target, received, dtype, peer, stream)))
        source, target = source + sent * item, target + received * item
    return made


def _rooted_blocks(name: str, nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    """gather and scatter: at the root a block for every rank, elsewhere one."""
    dtype, gathers = nccl.dtype_number(call.dtype), name == "ncclGather"
    if nccl.has(name):
        return [(name, (call.source, call.target, call.count, dtype, call.root, stream))]
    one, whole = (call.source, call.target) if gathers else (call.target, call.source)
    with_root, with_rank = ("ncclSend", "ncclRecv") if gathers else ("ncclRecv", "ncclSend")
    block = call.count * item_bytes(call.dtype)
    mine: list[Step] = [(with_root, (one, call.count, dtype, call.root, stream))]
    if rank != call.root:
        return mine
    in_place = one == whole + rank * block  # the root's own block is where it belongs
    peers = [peer for peer in range(ranks) if not (in_place and peer == rank)]
    theirs: list[Step] = [
        (with_rank, (whole + peer * block, call.count, dtype, peer, stream)) for peer in peers
    ]
    return theirs if in_place else mine + theirs


def _send_recv(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    if call.pair is not None:
        return _pair(nccl, rank, ranks, call, call.pair, stream)
    dtype = nccl.dtype_number(call.dtype)
    return [
        ("ncclSend", (call.source, call.count, dtype, (rank + 1) % ranks, stream)),
        ("ncclRecv", (call.target, call.count, dtype, (rank - 1) % ranks, stream)),
    ]


def _pair(nccl: Nccl, rank: int, ranks: int, call: Call, pair: Pair, stream: int) -> list[Step]:
    if pair.source == pair.target or not {pair.source, pair.target} <= set(range(ranks)):
        raise CannotRun(f"pair {pair}: expected two different ranks of the communicator's {ranks}")
    dtype, parts = nccl.dtype_number(call.dtype), list[Step]()
    for source, target in ((pair.source, pair.target), (pair.target, pair.source))[: 1 + pair.both]:
        if rank == source:
            parts.append(("ncclSend", (call.source, call.count, dtype, target, stream)))
        if rank == target:
            parts.append(("ncclRecv", (call.target, call.count, dtype, source, stream)))
    return parts


def _barrier(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[Step]:
    dtype, op = nccl.dtype_number("int32"), nccl.op_number("sum")
    return [("ncclAllReduce", (call.source, call.target, 1, dtype, op, stream))]


_STEPS: dict[str, Callable[[Nccl, int, int, Call, int], list[Step]]] = {
    "all_reduce": partial(_reducing, "ncclAllReduce"),
    "all_gather": _all_gather,
    "reduce_scatter": partial(_reducing, "ncclReduceScatter"),
    "broadcast": _broadcast,
    "reduce": _reduce,
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "gather": partial(_rooted_blocks, "ncclGather"),
    "scatter": partial(_rooted_blocks, "ncclScatter"),
    "send_recv": _send_recv,
    "barrier": _barrier,
}
