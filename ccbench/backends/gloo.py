"""Gloo, the library that PyTorch uses for collectives between CPUs: one process per rank, over TCP even on
one host, started by ccbench or by a launcher.

Rank 0 opens the store through which Gloo exchanges its addresses, on a port that the system chooses, and
tells the others by way of the exchange. On one host it listens on loopback alone. Between hosts each rank
tries rank 0's addresses in turn and then talks from the address by which it got through, unless
``GLOO_SOCKET_IFNAME`` names an interface; the store knows no password, as with any program that uses Gloo.

A process group's own methods are called with options made beforehand: ``torch.distributed``'s functions look
up the group, check their arguments and log before they do the same, which costs more than a small collective.

Gloo reduces and broadcasts in place. Where a case asks for the result in another buffer, a launch begins with
a copy, as it must in a program.

A process group's own thread runs what is begun, so the rank has nothing to look after.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import Backend, ControlChannel, TeamLaunch, TeamRequest, gathered
from ccbench.backends.rank_endpoint import RankBuffers, RankEndpoint
from ccbench.cases.axes import UNEVEN, Case
from ccbench.collectives import collective, sent_elements
from ccbench.errors import BackendUnavailable
from ccbench.machine.software import install_line, installed_version
from ccbench.verification import Array

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
TRANSPORT_VARIABLE = "GLOO_DEVICE_TRANSPORT"
"""Torch's own variables."""

LOOPBACK = "127.0.0.1"

TRY_SECONDS = 3.0
MEET_SECONDS = 60.0
"""Time that ranks wait for each other to come up."""

CASE_TIMEOUT = timedelta(days=1)
"""Gloo's own limit for one collective; ccbench's watchdog has a shorter one that names who hangs."""

_SIOCGIFADDR = 0x8915
"""The interface's IPv4 address: linux/sockios.h."""


def addresses_by_interface() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, loopback last."""
    addresses = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name[:15].encode())
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # down, or without IPv4
            addresses[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(addresses.items(), key=lambda pair: pair[1].startswith("127.")))


@dataclass(frozen=True)
class Route:
    """A rank's own address, and the store through which the ranks meet.

    transport: ``tcp``, ``uv`` or what else torch was told to use.
    """

    address: str
    interface: str
    transport: str
    store: Any

    def __str__(self) -> str:
        return f"gloo over {self.transport}, {self.interface} ({self.address})"


def open_store(host: str, port: int, **listening: int) -> Any:
    """Return torch's store at ``host``; listening: the socket of whoever keeps it, ``master_listen_fd``."""
    store, limit = import_module("torch.distributed").TCPStore, timedelta(seconds=MEET_SECONDS)
    return store(
        host, port, None, bool(listening), timeout=limit, wait_for_workers=False, **listening
    )


def meet(exchange: ControlChannel) -> Route:
    """Find the way to the other ranks. Collective; BackendUnavailable where there is none."""
    interfaces = addresses_by_interface()
    name = os.environ.get(INTERFACE_VARIABLE, "").split(",")[0]
    if name and name not in interfaces:
        names = ", ".join(interfaces) or "none"
        raise BackendUnavailable(
            f"gloo: {INTERFACE_VARIABLE}={name} on {socket.gethostname()}: no interface of that name has an "
            f"IPv4 address; those that have: {names}"
        )
    chosen = interfaces.get(name, "")
    local = len(set(exchange.hosts)) == 1
    store = offer = None
    if exchange.rank == 0:
        listener = socket.create_server(
            (LOOPBACK if local else "", 0), backlog=max(128, exchange.ranks)
        )
        port = listener.getsockname()[1]
        outside = [address for address in interfaces.values() if not address.startswith("127.")]
        candidates = [LOOPBACK] if local else [chosen] if chosen else outside or [LOOPBACK]
        offer = json.dumps([candidates, port]).encode()
        # The store takes the listening socket over, and no port is free for others in between.
        store = open_store(candidates[0], port, master_listen_fd=listener.detach())
    candidates, port = json.loads(exchange.broadcast(offer, 0))
    theirs = mine = ""
    if store is None:
        # The first of rank 0's addresses that answers, and this rank's own towards it.
        for theirs in candidates:
            with (
                suppress(OSError),
                socket.create_connection((theirs, port), timeout=TRY_SECONDS) as way,
            ):
                mine = str(way.getsockname()[0])
                break
        else:
            theirs = ""
        store = open_store(theirs, port) if theirs else None
    ways = gathered(exchange, theirs)
    lost = [rank for rank, way in enumerate(ways) if rank and not way]
    if lost:
        raise BackendUnavailable(
            f"gloo: rank {lost[0]} on {exchange.hosts[lost[0]]} reaches rank 0 on {exchange.hosts[0]} by "
            f"none of {', '.join(candidates)}; name the interface between the hosts in {INTERFACE_VARIABLE}"
        )
    if exchange.rank == 0:
        mine = ways[-1] if exchange.ranks > 1 else candidates[0]
    address = LOOPBACK if local and not chosen else chosen or mine
    interface = next(
        (name for name, ipv4 in interfaces.items() if ipv4 == address), "unknown interface"
    )
    return Route(address, interface, os.environ.get(TRANSPORT_VARIABLE, "tcp").lower(), store)


def open_group(route: Route, name: str, rank: int, ranks: int) -> Any:
    """Return a ``ProcessGroupGloo`` of ``ranks`` ranks that all give ``name``. Collective among them."""
    distributed = import_module("torch.distributed")
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=route.address)]
    options._timeout = CASE_TIMEOUT
    options._threads = (
        1  # one collective at a time: a second thread would only compete for the core
    )
    return gloo(distributed.PrefixStore(name, route.store), rank, ranks, options)


Tensor = Any
"""A ``torch.Tensor``; torch is imported in launched ranks alone."""

Work = Any
"""Result of a group's methods: ``torch.distributed.Work``."""

TAG = 0

COPYING = ("all_reduce", "broadcast", "reduce")
"""Collectives that Gloo has in place only."""

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
class GlooPlace:
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
    """Return torch's options of a collective's method, as they are made."""
    return getattr(import_module("torch._C._distributed_c10d"), OPTIONS[name])()


class GlooCall:
    """One launch of ``case`` on this rank.

    case: as the group sees it (``ccbench.verification.Part``), for a pair as the suite asked.
    """

    def __init__(self, case: Case, place: GlooPlace) -> None:
        self._copies: Sequence[Callable[[], object]] = ()
        if case.collective == "send_recv":
            self._methods = self._messages(case, place)
        else:
            self._methods = [self._method(case, place)]

    def launch(self) -> None:
        """Run one launch to its end; a copy that Gloo needs before is part of it."""
        for copy in self._copies:
            copy()
        for work in [method() for method in self._methods]:
            work.wait()

    def _copy_before(self, target: Tensor, source: Tensor) -> None:
        """Begin every launch with a copy of ``source`` to ``target`` where they differ."""
        if target.data_ptr() != source.data_ptr():
            self._copies = [partial(target.copy_, source)]

    def _method(self, case: Case, place: GlooPlace) -> Callable[[], Work]:
        """Return the group's method with its arguments."""
        group, source, target = place.group, place.input, place.output
        row, options = collective(case.collective), options_of(case.collective)
        if row.reduces:
            options.reduceOp = getattr(
                import_module("torch.distributed").ReduceOp, REDUCE_OPS[case.op]
            )
        if row.rooted:
            options.rootRank = max(case.root, 0)
        at_root = row.rooted and place.rank == options.rootRank
        match case.collective:
            case "all_reduce":
                self._copy_before(target, source)
                return partial(group.allreduce, [target], options)
            case "broadcast":
                options.rootTensor = 0
                if at_root:
                    self._copy_before(target, source)
                return partial(group.broadcast, [target], options)
            case "reduce":
                # Gloo leaves partial sums on every rank, which must not stand in a buffer of the case.
                into = target if at_root else source if case.in_place else place.scratch
                self._copy_before(into, source)
                return partial(group.reduce, [into], options)
            case "all_gather":
                return partial(group._allgather_base, target, source, options)
            case "reduce_scatter":
                return partial(group._reduce_scatter_base, target, source, options)
            case "gather":
                gathered = [list(target.chunk(place.ranks))] if at_root else []
                return partial(group.gather, gathered, [source], options)
            case "scatter":
                scattered = [list(source.chunk(place.ranks))] if at_root else []
                return partial(group.scatter, [target], scattered, options)
            case "barrier":
                return partial(group.barrier, options)
        received, sent = [], []  # blocks of one size
        if case.collective == UNEVEN:
            elements = sent_elements(case.traffic, case.count, case.ranks)
            received, sent = elements[:, place.rank].tolist(), elements[place.rank].tolist()
        return partial(group.alltoall_base, target, source, received, sent, options)

    def _messages(self, case: Case, place: GlooPlace) -> list[Callable[[], Work]]:
        """Return the messages of a ring shift of all ranks, or of a pair; they are waited for in order."""
        to, origin = (place.rank + 1) % place.ranks, (place.rank - 1) % place.ranks
        sends = receives = True
        pair = case.one_pair
        if pair:
            to = origin = pair.target if place.rank == pair.source else pair.source
            sends = place.rank == pair.source or (pair.both and place.rank == pair.target)
            receives = place.rank == pair.target or (pair.both and place.rank == pair.source)
        elif place.ranks == 1:
            self._copy_before(place.output, place.input)
            return []
        receive = partial(place.group.recv, [place.output], origin, TAG)
        send = partial(place.group.send, [place.input], to, TAG)
        # The receive is offered first, as Gloo's own collectives do: the word that a buffer is ready would
        # else wait behind the whole message on its way to the same rank, and the link work one way at a time.
        return [*[receive] * receives, *[send] * sends]


class GlooEndpoint(RankEndpoint):
    """One rank in a process of its own."""

    def __init__(self, exchange: ControlChannel) -> None:
        super().__init__(exchange)
        torch = import_module("torch")
        # Ranks share the processors: threads of torch's own would take those of other ranks.
        torch.set_num_threads(1)
        self._route = meet(exchange)
        self._everyone = open_group(self._route, "everyone", self.rank, self.ranks)
        self._groups: dict[tuple[int, ...], Any] = {}
        self._barrier_options = options_of("barrier")
        self._broadcast_options = options_of("broadcast")
        self._gather_options = options_of("all_gather")
        self._decision = np.zeros(1, np.int64)
        self._decision_tensor = torch.from_numpy(self._decision)
        # Each rank has an address of its own; rank 0's stands for all where versions must be alike.
        way = exchange.broadcast(
            str(self._route).encode() if self.rank == 0 else None, 0
        ).decode()
        self.version = f"torch {torch.__version__}, {way}"

    # -- one case ------------------------------------------------------------------------------------------

    def bind(self) -> Any:
        """Return the groups' calls, with options and tensors made beforehand."""
        return self._call_of(self.own).launch

    def _call_of(self, lane: RankBuffers) -> GlooCall:
        scratch = np.empty(0, lane.source.dtype)
        if lane.case.collective == "reduce" and not lane.case.in_place:
            scratch = np.empty_like(lane.input)
        tensors = (tensor_of(lane.input), tensor_of(lane.output), tensor_of(scratch))
        if lane.case.pair:  # the group of all has both, under the numbers that the suite gave
            return GlooCall(
                lane.case, GlooPlace(self._everyone, self.rank, self.ranks, *tensors)
            )
        assert lane.part is not None, "a rank that belongs to no group binds nothing"
        members, rank = lane.part.members, lane.part.group_rank
        group = self._everyone
        if members != tuple(range(self.ranks)):
            # All members ask for it at the same time, and nobody waits in a circle: groups are disjoint.
            if members not in self._groups:
                self._groups[members] = open_group(
                    self._route, f"group {members}", rank, len(members)
                )
            group = self._groups[members]
        return GlooCall(lane.part.case, GlooPlace(group, rank, len(members), *tensors))

    def remark(self) -> str:
        """Say that a copy is part of the time, where that is so."""
        remarks = [super().remark()]
        if not self.rank and not self.case.in_place and self.case.collective in COPYING:
            remarks.append(
                "Gloo works in place: the copy to the other buffer is part of the time"
            )
        return "; ".join(text for text in remarks if text)

    def close(self) -> None:
        """Say goodbye: connections are closed when nobody needs them any more."""
        self._everyone.barrier(self._barrier_options).wait()
        self._groups.clear()
        self._everyone = None

    # -- numbers from all ranks ----------------------------------------------------------------------------

    def barrier(self) -> None:
        """Gloo's own, so that ranks leave it as they do in programs."""
        self.count()
        self._everyone.barrier(self._barrier_options).wait()

    def agree(self, value: int) -> int:
        """Return rank 0's value, on every rank."""
        self.count()
        self._decision[0] = value
        self._everyone.broadcast([self._decision_tensor], self._broadcast_options).wait()
        return int(self._decision[0])

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return every rank's array, by rank: shape (ranks, elements). Collective."""
        gathered = np.empty((self.ranks, len(mine)), np.float64)
        if len(mine):
            self.count()
            self._everyone._allgather_base(
                tensor_of(gathered.reshape(-1)),
                tensor_of(np.ascontiguousarray(mine)),
                self._gather_options,
            ).wait()
        return gathered


def tensor_of(array: Array) -> Tensor:
    """Return a tensor on the same memory."""
    torch = import_module("torch")
    if (
        array.dtype.kind == "V" or array.dtype.name == "bfloat16"
    ):  # ml_dtypes' type, which torch cannot read
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


class GlooBackend(Backend):
    """Gloo through torch."""

    name = "gloo"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return what is missing: torch, whose CPU build is enough."""
        if find_spec("torch") is None:
            return f"torch is not installed: {install_line('gloo')} (its CPU build is enough)"
        return None

    def version(self) -> str:
        """Return PyTorch's, which has no other number for the Gloo inside."""
        return f"torch {installed_version('torch') or 'is not installed'}"

    def refused(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run here."""
        if case.algorithm != "default":
            return "Gloo's algorithms cannot be chosen through torch; write default"
        if case.op == "avg" and case.dtype.startswith(("int", "uint")):
            return f"Gloo has no avg of {case.dtype}: torch divides the sum as a float"
        return None

    def launch(self, request: TeamRequest) -> TeamLaunch | None:
        """Return the user's own launcher; without one the leader starts the ranks on its host."""
        # Gloo's threads need processors, too: with one for each rank, 64 KiB between two took ten times as long.
        return request.launch or TeamLaunch(pinned=False)


BACKEND = GlooBackend()
