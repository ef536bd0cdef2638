"""One launch of each collective on a Gloo process group, prepared once and begun many times.

The group's own methods are called with options made beforehand: ``torch.distributed``'s functions look up the
group, check their arguments and log before they do the same, which costs more than a small collective.

Gloo reduces and broadcasts in place. Where a case asks for the result in another buffer, a launch begins with
a copy, as it must in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ccbench.backends.blocks import received_blocks, sent_blocks
from ccbench.cases import Case

Tensor = Any
"""A ``torch.Tensor``; torch is imported in launched ranks alone."""

Work = Any
"""What a group's methods return: ``torch.distributed.Work``."""

Call = Callable[[], object]

Begin = Callable[[], Sequence[Work]]
"""Starts a launch; it is over when all of its works have been waited for, in their order."""

TAG = 0

COPYING = ("all_reduce", "broadcast", "reduce")
"""Collectives that Gloo has in place only."""

REDUCE_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
"""Names in ``torch.distributed.ReduceOp``."""


@dataclass(frozen=True)
class Place:
    """One rank's side of one case in one group, whose members are numbered from 0.

    group: a ``ProcessGroupGloo``. input, output: one-dimensional tensors, which may share memory; scratch: as
    long as the input, for what a reduction leaves on ranks that are not its root.
    """

    group: Any
    rank: int
    ranks: int
    input: Tensor
    output: Tensor
    scratch: Tensor


def started(case: Case, place: Place) -> Begin:
    """What begins one launch of ``case`` on this rank.

    case: as the group sees it (``ccbench.verification.Part``), for a pair as the suite asked.
    """
    if case.pair:
        return _pair(case, place)
    make: Callable[[Case, Place], Begin] = globals()[f"_{case.collective}"]
    return make(case, place)


def prepared(case: Case, place: Place) -> Call:
    """One launch of ``case`` on this rank, to its end."""
    begin = started(case, place)

    def call() -> None:
        for work in begin():
            work.wait()

    return call


def _options(name: str) -> Any:
    return getattr(import_module("torch._C._distributed_c10d"), name)()


def _reducing(name: str, case: Case) -> Any:
    options = _options(name)
    options.reduceOp = getattr(import_module("torch.distributed").ReduceOp, REDUCE_OPS[case.op])
    return options


def _rooted(options: Any, case: Case) -> Any:
    options.rootRank = max(case.root, 0)
    return options


def _after_copy(target: Tensor, source: Tensor, run: Callable[..., Any], *arguments: object) -> Begin:
    """``run(*arguments)``, with ``source`` copied to ``target`` before where they differ."""
    if target.data_ptr() == source.data_ptr():
        return lambda: (run(*arguments),)
    copy = target.copy_

    def begin() -> Sequence[Work]:
        copy(source)
        return (run(*arguments),)

    return begin


def _all_reduce(case: Case, place: Place) -> Begin:
    options = _reducing("AllreduceOptions", case)
    return _after_copy(place.output, place.input, place.group.allreduce, [place.output], options)


def _broadcast(case: Case, place: Place) -> Begin:
    options = _rooted(_options("BroadcastOptions"), case)
    options.rootTensor = 0
    source = place.input if place.rank == options.rootRank else place.output
    return _after_copy(place.output, source, place.group.broadcast, [place.output], options)


def _reduce(case: Case, place: Place) -> Begin:
    options = _rooted(_reducing("ReduceOptions", case), case)
    if place.rank == options.rootRank:
        target = place.output
    else:
        target = place.input if case.in_place else place.scratch
    return _after_copy(target, place.input, place.group.reduce, [target], options)


def _all_gather(case: Case, place: Place) -> Begin:
    run, output, input_ = place.group._allgather_base, place.output, place.input
    options = _options("AllgatherOptions")
    return lambda: (run(output, input_, options),)


def _reduce_scatter(case: Case, place: Place) -> Begin:
    run, output, input_ = place.group._reduce_scatter_base, place.output, place.input
    options = _reducing("ReduceScatterOptions", case)
    return lambda: (run(output, input_, options),)


def _all_to_all(case: Case, place: Place) -> Begin:
    return _exchange(place, [], [])


def _all_to_all_v(case: Case, place: Place) -> Begin:
    received, sent = received_blocks(case, place.rank), sent_blocks(case, place.rank)
    return _exchange(place, list(received.counts), list(sent.counts))


def _exchange(place: Place, received: list[int], sent: list[int]) -> Begin:
    """Blocks of these lengths; of equal ones where none are named."""
    run, output, input_ = place.group.alltoall_base, place.output, place.input
    options = _options("AllToAllOptions")
    return lambda: (run(output, input_, received, sent, options),)


def _gather(case: Case, place: Place) -> Begin:
    options = _rooted(_options("GatherOptions"), case)
    outputs = [list(place.output.chunk(place.ranks))] if place.rank == options.rootRank else []
    run, inputs = place.group.gather, [place.input]
    return lambda: (run(outputs, inputs, options),)


def _scatter(case: Case, place: Place) -> Begin:
    options = _rooted(_options("ScatterOptions"), case)
    inputs = [list(place.input.chunk(place.ranks))] if place.rank == options.rootRank else []
    run, outputs = place.group.scatter, [place.output]
    return lambda: (run(outputs, inputs, options),)


def _barrier(case: Case, place: Place) -> Begin:
    run, options = place.group.barrier, _options("BarrierOptions")
    return lambda: (run(options),)


def _send_recv(case: Case, place: Place) -> Begin:
    if place.ranks == 1:
        copy, source = place.output.copy_, place.input

        def begin() -> Sequence[Work]:
            copy(source)
            return ()

        return begin
    return _swap(place, (place.rank + 1) % place.ranks, (place.rank - 1) % place.ranks)


def _swap(place: Place, target: int, origin: int) -> Begin:
    """Receive from one rank and send to another.

    The receive is offered first, as Gloo's own collectives do: the word that a buffer is ready would else
    wait behind the whole message on its way to the same rank, and the link work one way at a time.
    """
    send, receive, outputs, inputs = place.group.send, place.group.recv, [place.output], [place.input]

    def begin() -> Sequence[Work]:
        received = receive(outputs, origin, TAG)
        return received, send(inputs, target, TAG)

    return begin


def _pair(case: Case, place: Place) -> Begin:
    pair = case.one_pair
    assert pair is not None, "a pair is what the caller looked for"
    if place.rank not in (pair.source, pair.target):
        return tuple
    other = pair.target if place.rank == pair.source else pair.source
    if pair.both:
        return _swap(place, other, other)
    if place.rank == pair.source:
        send, inputs = place.group.send, [place.input]
        return lambda: (send(inputs, other, TAG),)
    receive, outputs = place.group.recv, [place.output]
    return lambda: (receive(outputs, other, TAG),)
