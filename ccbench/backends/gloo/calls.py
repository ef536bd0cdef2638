"""One launch of each collective on a Gloo process group, prepared once and begun many times.

The group's own methods are called with options made beforehand: ``torch.distributed``'s functions look up the
group, check their arguments and log before they do the same, which costs more than a small collective.

Gloo reduces and broadcasts in place. Where a case asks for the result in another buffer, a launch begins with
a copy, as it must in a program.

A process group's own thread runs what is begun, so the rank has nothing to look after. When a work is over,
that thread says so through the work's future. Sends and receives between two ranks have none, nor has a
reduce_scatter, which torch makes of Gloo's all-reduce and a copy: these are over when they were waited for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

from ccbench.cases import UNEVEN, Case
from ccbench.collectives import collective, sent_elements

Tensor = Any
"""A ``torch.Tensor``; torch is imported in launched ranks alone."""

Work = Any
"""What a group's methods return: ``torch.distributed.Work``."""

TAG = 0

COPYING = ("all_reduce", "broadcast", "reduce")
"""Collectives that Gloo has in place only."""

SILENT = ("send_recv", "reduce_scatter")
"""Collectives that do not tell when they are over (``Work::getFuture not implemented``, torch 2.13)."""

REDUCE_OPS = {"sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG"}
"""Names in ``torch.distributed.ReduceOp``."""

OPTIONS = {
    "all_reduce": "AllreduceOptions",
    "all_gather": "AllgatherOptions",
    "reduce_scatter": "ReduceScatterOptions",
    "broadcast": "BroadcastOptions",
    "reduce": "ReduceOptions",
    "all_to_all": "AllToAllOptions",
    "all_to_all_v": "AllToAllOptions",
    "gather": "GatherOptions",
    "scatter": "ScatterOptions",
    "barrier": "BarrierOptions",
}
"""Names in ``torch._C._distributed_c10d``."""


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


def options_of(name: str) -> Any:
    """Torch's options of a collective's method, as they are made."""
    return getattr(import_module("torch._C._distributed_c10d"), OPTIONS[name])()


class Call:
    """One launch of ``case`` on this rank. Implements ``ccbench.backends.overlap.Background``.

    case: as the group sees it (``ccbench.verification.Part``), for a pair as the suite asked.
    """

    def __init__(self, case: Case, place: Place) -> None:
        self.tells = case.collective not in SILENT
        self.works: Sequence[Work] = ()
        begun = _messages(case, place) if case.collective == "send_recv" else _collective(case, place)
        self._copies, self._methods = begun

    def begin(self) -> None:
        """Start a launch; a copy that Gloo needs before is done here."""
        for copy in self._copies:
            copy()
        self.works = [method() for method in self._methods]

    def over(self) -> bool:
        """Whether the launch is over."""
        if not all(work.is_completed() for work in self.works):
            return False
        self.wait()  # at once; raises what went wrong in the other thread
        return True

    def wait(self) -> None:
        """Return when the launch is over."""
        for work in self.works:
            work.wait()

    def launch(self) -> None:
        """One launch to its end."""
        self.begin()
        self.wait()


Begun = tuple[Sequence[Callable[[], object]], Sequence[Callable[[], Work]]]
"""Copies, then methods that return the launch's works, to be waited for in their order."""


def _collective(case: Case, place: Place) -> Begun:
    group, source, target = place.group, place.input, place.output
    row, options = collective(case.collective), options_of(case.collective)
    if row.reduces:
        options.reduceOp = getattr(import_module("torch.distributed").ReduceOp, REDUCE_OPS[case.op])
    if row.rooted:
        options.rootRank = max(case.root, 0)
    at_root = row.rooted and place.rank == options.rootRank
    match case.collective:
        case "all_reduce":
            return _copied(target, source), [partial(group.allreduce, [target], options)]
        case "broadcast":
            options.rootTensor = 0
            copies = _copied(target, source) if at_root else ()
            return copies, [partial(group.broadcast, [target], options)]
        case "reduce":
            into = target if at_root else source if case.in_place else place.scratch
            return _copied(into, source), [partial(group.reduce, [into], options)]
        case "all_gather":
            return (), [partial(group._allgather_base, target, source, options)]
        case "reduce_scatter":
            return (), [partial(group._reduce_scatter_base, target, source, options)]
        case "gather":
            gathered = [list(target.chunk(place.ranks))] if at_root else []
            return (), [partial(group.gather, gathered, [source], options)]
        case "scatter":
            scattered = [list(source.chunk(place.ranks))] if at_root else []
            return (), [partial(group.scatter, [target], scattered, options)]
        case "barrier":
            return (), [partial(group.barrier, options)]
    received, sent = [], []  # blocks of one size
    if case.collective == UNEVEN:
        elements = sent_elements(case.traffic, case.count, case.ranks)
        received, sent = elements[:, place.rank].tolist(), elements[place.rank].tolist()
    return (), [partial(group.alltoall_base, target, source, received, sent, options)]


def _copied(target: Tensor, source: Tensor) -> Sequence[Callable[[], object]]:
    """A copy of ``source`` to ``target`` where they differ."""
    return () if target.data_ptr() == source.data_ptr() else [partial(target.copy_, source)]


def _messages(case: Case, place: Place) -> Begun:
    """The ring shift of all ranks, or a pair's messages.

    The receive is offered first, as Gloo's own collectives do: the word that a buffer is ready would else
    wait behind the whole message on its way to the same rank, and the link work one way at a time.
    """
    to, origin = (place.rank + 1) % place.ranks, (place.rank - 1) % place.ranks
    sends = receives = True
    pair = case.one_pair
    if pair:
        to = origin = pair.target if place.rank == pair.source else pair.source
        sends = place.rank == pair.source or (pair.both and place.rank == pair.target)
        receives = place.rank == pair.target or (pair.both and place.rank == pair.source)
    elif place.ranks == 1:
        return _copied(place.output, place.input), []
    receive = partial(place.group.recv, [place.output], origin, TAG)
    send = partial(place.group.send, [place.input], to, TAG)
    return (), [*[receive] * receives, *[send] * sends]


class ConcurrentCalls:
    """Two collectives on process groups of their own, the case's own begun first.

    seconds: each launch adds how long either took from the launch's begin; None where they cannot be told
    apart. One that does not tell when it is over is waited for before the one that does, so that the end of
    its wait is its end.
    """

    def __init__(self, calls: Sequence[Call | None], seconds: list[float] | None) -> None:
        """calls: None where this rank has no part in a collective."""
        self._calls = [(lane, call) for lane, call in enumerate(calls) if call is not None]
        self._silent_first = sorted(self._calls, key=lambda one: one[1].tells)
        self._seconds = seconds

    def __call__(self) -> None:
        """One launch, which is over when both are."""
        began = time.perf_counter()
        ended: dict[int, dict[int, float]] = {lane: {} for lane, _ in self._calls}
        for _, call in self._calls:
            call.begin()
        for lane, call in self._calls:
            if self._seconds is not None and call.tells:
                for number, work in enumerate(call.works):
                    work.get_future().add_done_callback(partial(_note, ended[lane], number))
        for lane, call in self._silent_first:
            for number, work in enumerate(call.works):
                work.wait()
                ended[lane].setdefault(number, time.perf_counter())
            if self._seconds is not None:
                self._seconds[lane] += max(ended[lane].values(), default=began) - began


def _note(ends: dict[int, float], number: int, future: object) -> None:
    """Called in the process group's thread."""
    ends[number] = time.perf_counter()
