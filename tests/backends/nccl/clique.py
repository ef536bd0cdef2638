"""What the ranks of a communicator of NCCL's double share: who has called what, and the moving of bytes.

Collectives are matched by their order on each rank, sends and receives by their order between two ranks, as
NCCL's documentation has it; what does not match is an error, where NCCL would hang or corrupt.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.dtypes import numpy_dtype
from tests.backends.cuda.streams import Task, World

from .devices import cost_seconds

DTYPE_NAMES = (
    "int8",
    "uint8",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "float8_e4m3",
    "float8_e5m2",
)

Array = NDArray[Any]


@dataclass(frozen=True)
class Reduction:
    """An op as a collective uses it. scalar: of premulsum, this rank's own."""

    name: str
    scalar: Any = None


SUM = Reduction("sum")


@dataclass
class Request:
    """One rank's call. peer: the root, or whom a send goes to and a receive comes from."""

    name: str
    source: int
    target: int
    count: int
    dtype: int
    op: Reduction | None = None
    peer: int = -1
    device: int = 0
    done: bool = False
    launch: Launch | None = None

    @property
    def agreed(self) -> tuple[Any, ...]:
        """What all ranks must give alike."""
        return (self.name, self.count, self.dtype, self.op and self.op.name, self.peer)


class Launch(Task):
    """What one group asks of one rank of one communicator on one stream: runs as one."""

    def __init__(self, clique: Clique, rank: int, requests: list[Request]) -> None:
        self.clique = clique
        self.rank = rank
        self.requests = requests
        self.posted = False
        self.clock = 0.0

    def attempt(self) -> bool:
        if not self.posted:
            self.posted = True
            self.clock = self.stream.seconds
            for request in self.requests:
                request.launch = self
                self.clique.post(self.rank, request)
        self.stream.seconds = max(self.stream.seconds, self.clock)
        return all(request.done for request in self.requests) or self.clique.aborted

    def again(self) -> Launch:
        return Launch(
            self.clique, self.rank, [replace(request, done=False) for request in self.requests]
        )


@dataclass
class Clique:
    """The ranks of one communicator. ``joined``: rank -> device."""

    world: World
    ranks: int
    joined: dict[int, int] = field(default_factory=dict)
    aborted: bool = False
    arrived: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    rounds: dict[int, dict[int, Request]] = field(default_factory=lambda: defaultdict(dict))
    sends: dict[tuple[int, int], deque[Request]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    receives: dict[tuple[int, int], deque[Request]] = field(
        default_factory=lambda: defaultdict(deque)
    )
    brought: dict[tuple[str, int], dict[int, Any]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    made: dict[tuple[int, int], Clique] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.joined) == self.ranks

    def part(self, colours: dict[int, Any], colour: int) -> tuple[Clique, list[int]]:
        """The clique of the ranks that gave ``colour`` in a split, and those ranks in new order."""
        members = sorted((key, rank) for rank, (mine, key) in colours.items() if mine == colour)
        part = self.made.setdefault((id(colours), colour), Clique(self.world, len(members)))
        return part, [rank for _, rank in members]

    def post(self, rank: int, request: Request) -> None:
        """A rank has come to a call; whoever comes last moves the bytes."""
        if request.name in ("ncclSend", "ncclRecv"):
            self._post_half(rank, request)
            return
        number = self.arrived[rank]
        self.arrived[rank] += 1
        self.rounds[number][rank] = request
        if len(self.rounds[number]) == self.ranks:
            requests = [
                self.rounds[number][number_of_rank] for number_of_rank in range(self.ranks)
            ]
            del self.rounds[number]
            self._run(requests)

    def _post_half(self, rank: int, request: Request) -> None:
        sends = request.name == "ncclSend"
        between = (rank, request.peer) if sends else (request.peer, rank)
        (self.sends if sends else self.receives)[between].append(request)
        if self.sends[between] and self.receives[between]:
            sent, received = self.sends[between].popleft(), self.receives[between].popleft()
            sent.done = received.done = True
            assert (sent.count, sent.dtype) == (received.count, received.dtype), between
            self._write(received, self._read(sent, sent.count))
            spend([sent, received], sent.count * item_bytes(sent))

    # -- bytes ---------------------------------------------------------------------------------------------

    def _read(self, request: Request, count: int) -> Array:
        dtype = numpy_dtype(DTYPE_NAMES[request.dtype])
        raw = self.world.view(request.source, count * dtype.itemsize, request.device)
        values: Array = raw.copy().view(dtype)
        return values

    def _write(self, request: Request, values: Array) -> None:
        raw = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        self.world.view(request.target, raw.nbytes, request.device)[...] = raw

    def _run(self, requests: list[Request]) -> None:
        for request in requests:
            request.done = True
        first = requests[0]
        for rank, request_of_peer in enumerate(requests):
            assert request_of_peer.agreed == first.agreed, f"rank {rank} calls another"
        spend(requests, self.bytes_of(first))
        results = moved(
            first.name,
            self.ranks,
            first.count,
            first.peer,
            lambda rank, count: self._read(requests[rank], count),
            [request.op or SUM for request in requests],
        )
        for request_of_rank, result in zip(requests, results, strict=True):
            if result is not None:
                self._write(request_of_rank, result)

    def bytes_of(self, request: Request) -> int:
        """Of the whole buffer."""
        blocked = request.name not in ("ncclAllReduce", "ncclReduce", "ncclBroadcast")
        return request.count * item_bytes(request) * (self.ranks if blocked else 1)


def moved(
    name: str,
    ranks: int,
    count: int,
    root: int,
    read: Callable[[int, int], Array],
    ops: Sequence[Reduction],
) -> list[Array | None]:
    """What every rank gets, None for nothing. read: of a rank, so many elements."""

    def together(elements: int) -> list[Array]:
        return [read(rank, elements) for rank in range(ranks)]

    if name == "ncclReduceScatter":
        return list(reduced(together(count * ranks), ops).reshape(ranks, count))
    if name == "ncclScatter":
        return list(read(root, count * ranks).reshape(ranks, count))
    if name == "ncclAlltoAll":
        blocks = np.concatenate(together(count * ranks)).reshape(ranks, ranks, count)
        return list(blocks.swapaxes(0, 1))
    if name in ("ncclAllReduce", "ncclReduce"):
        whole = reduced(together(count), ops)
    else:
        whole = (
            read(root, count) if name == "ncclBroadcast" else np.concatenate(together(count))
        )
    everybody = name not in ("ncclReduce", "ncclGather")
    return [whole if everybody or rank == root else None for rank in range(ranks)]


def spend(requests: list[Request], size_bytes: int) -> None:
    """All who share in it begin when the last has come, and each does one thing after another."""
    launches = [request.launch for request in requests if request.launch is not None]
    end = max(launch.clock for launch in launches) + cost_seconds(size_bytes)
    for launch in launches:
        launch.clock = end


def item_bytes(request: Request) -> int:
    return int(numpy_dtype(DTYPE_NAMES[request.dtype]).itemsize)


def reduced(inputs: Sequence[Array], ops: Sequence[Reduction]) -> Array:
    """The inputs combined in rank order: whole numbers wrap around, small floats are added in float32.

    avg is what NCCL makes of it (src/enqueue.cc, hostToDevRedOp): of whole numbers the sum, divided towards
    zero; of floats every input times 1/ranks, both as exact as the dtype is, then the sum.
    """
    dtype, ranks = inputs[0].dtype, len(inputs)
    whole = dtype.kind in "iu"
    wide = dtype if whole or dtype.itemsize >= 4 else np.dtype(np.float32)
    values = [values_of_rank.astype(wide) for values_of_rank in inputs]
    name = ops[0].name
    with np.errstate(over="ignore", invalid="ignore"):
        if name == "premulsum":
            values = [
                values_of_rank * np.asarray(op.scalar).astype(wide)
                for values_of_rank, op in zip(values, ops, strict=True)
            ]
        elif name == "avg" and not whole:
            share = np.asarray(1 / ranks).astype(dtype).astype(wide)
            values = [
                (values_of_rank * share).astype(dtype).astype(wide) for values_of_rank in values
            ]
        result = values[0]
        for values_of_rank in values[1:]:
            result = _STEP.get(name, np.add)(result, values_of_rank)
        if name == "avg" and whole:
            result = np.array(
                [_towards_zero(int(values_of_rank), ranks) for values_of_rank in result],
                dtype=wide,
            )
        return np.asarray(result.astype(dtype))


def _towards_zero(total: int, ranks: int) -> int:
    return total // ranks if total >= 0 else -(-total // ranks)


_STEP = {"prod": np.multiply, "max": np.maximum, "min": np.minimum}
