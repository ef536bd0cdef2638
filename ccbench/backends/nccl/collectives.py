"""ccbench's collectives as calls of NCCL's C functions: one rank's part, as data.

Where NCCL has no call of its own, all-to-all (of equal blocks or not), gather and scatter are sends and
receives in one group, as NCCL's documentation shows them ("Point-to-point communication").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ccbench.backends.base import CannotRun
from ccbench.backends.nccl.binding import Nccl
from ccbench.cases import NO_OP, NO_ROOT
from ccbench.dtypes import item_bytes
from ccbench.errors import UsageError
from ccbench.groups import Pair


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
    ``ccbench.cases.Case``. op: a name of ``calls.OPS``, or the number that ``Communicator.premultiplied``
    gave. pair: of send_recv, the two ranks instead of the ring. amounts: of all_to_all_v, this rank's.
    algorithms: those that this call may use, as NCCL_ALGO lists them; '' leaves it to NCCL.
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


NcclCall = tuple[str, tuple[int, ...]]
"""A C function, and its arguments without the communicator, which is always the last but one."""

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


def nccl_calls(nccl: Nccl, rank: int, ranks: int, call: Call, stream: int) -> list[NcclCall]:
    """Return what ``rank`` of ``ranks`` must call, in one group if more than one; none without a part.

    Raises UsageError for what is no collective, CannotRun for what this NCCL or these ranks cannot do.
    """
    if call.collective == "barrier":
        # NCCL has none: as in torch.distributed, an all-reduce of one element stands for it.
        call = replace(call, collective="all_reduce", count=1, dtype="int32", op="sum")
    if call.collective not in NATIVE and call.collective not in TRANSFERS:
        raise UsageError(f"collective: NCCL has no {call.collective!r}; one of {', '.join(ALL)}")
    dtype = nccl.dtype_number(call.dtype)
    name, *more = NATIVE.get(call.collective, ("",))
    if name and (call.collective not in TRANSFERS or nccl.has(name)):
        extra = [nccl.op_number(call.op) if one == "op" else call.root for one in more]
        return [(name, (call.source, call.target, call.count, dtype, *extra, stream))]
    transfers = TRANSFERS[call.collective](rank, ranks, call)
    return [(name, (address, count, dtype, peer, stream)) for name, address, count, peer in transfers]


Transfer = tuple[str, int, int, int]
"""ncclSend or ncclRecv, the address, the number of elements, and the peer."""


def _all_to_all(rank: int, ranks: int, call: Call) -> list[Transfer]:
    return _all_to_all_v(rank, ranks, replace(call, amounts=Amounts(*[(call.count,) * ranks] * 2)))


def _all_to_all_v(rank: int, ranks: int, call: Call) -> list[Transfer]:
    """One send and one receive for every peer; nothing at all between two that exchange nothing."""
    amounts = call.amounts
    if amounts is None or {len(amounts.sent), len(amounts.received)} != {ranks}:
        raise UsageError(f"all_to_all_v: amounts for {ranks} ranks are needed, one to and one from each")
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
        return [one for one in theirs if one[-1] != rank]
    return mine + theirs


def _send_recv(rank: int, ranks: int, call: Call) -> list[Transfer]:
    pair = call.pair
    if pair is None:
        ways = [(one, (one + 1) % ranks) for one in range(ranks)]
    elif pair.source == pair.target or not {pair.source, pair.target} <= set(range(ranks)):
        raise CannotRun(f"pair {pair}: expected two different ranks of the communicator's {ranks}")
    else:
        ways = [(pair.source, pair.target), (pair.target, pair.source)][: 1 + pair.both]
    sends = [("ncclSend", call.source, call.count, target) for source, target in ways if source == rank]
    return sends + [
        ("ncclRecv", call.target, call.count, source) for source, target in ways if target == rank
    ]


TRANSFERS: dict[str, Callable[[int, int, Call], list[Transfer]]] = {
    "all_to_all": _all_to_all,
    "all_to_all_v": _all_to_all_v,
    "gather": _rooted,
    "scatter": _rooted,
    "send_recv": _send_recv,
}
"""Collectives that are sends and receives, those of NATIVE only where this NCCL lacks the function."""

ALL = (*NATIVE, *(name for name in TRANSFERS if name not in NATIVE), "barrier")
