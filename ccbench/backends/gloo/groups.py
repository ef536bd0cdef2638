"""Process groups of Gloo among launched ranks: how they find each other, and over which interface they talk.

Rank 0 opens the store through which Gloo exchanges its addresses, on a port that the system chooses, and
tells the others by way of the exchange. On one host it listens on loopback alone. Between hosts each rank
tries rank 0's addresses in turn and then talks from the address by which it got through, unless
``GLOO_SOCKET_IFNAME`` names an interface; the store knows no password, as with any program that uses Gloo.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any

from ccbench.backends.base import ControlChannel
from ccbench.errors import BackendUnavailable

INTERFACE_VARIABLE = "GLOO_SOCKET_IFNAME"
TRANSPORT_VARIABLE = "GLOO_DEVICE_TRANSPORT"
"""Torch's own variables."""

LOOPBACK = "127.0.0.1"

TRY_SECONDS = 3.0
MEET_SECONDS = 60.0
"""How long ranks wait for each other to come up."""

CASE_TIMEOUT = timedelta(days=1)
"""Gloo's own limit for one collective; ccbench's watchdog has a shorter one that names who hangs."""

_SIOCGIFADDR = 0x8915
"""The interface's IPv4 address: linux/sockios.h."""


def addresses_by_interface() -> dict[str, str]:
    """Return the IPv4 address of each interface that has one, loopback last."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name[:15].encode())
            try:
                answer = fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # down, or without IPv4
            found[name] = socket.inet_ntoa(answer[20:24])
    return dict(sorted(found.items(), key=lambda one: one[1].startswith("127.")))


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


def meet(exchange: ControlChannel) -> Route:
    """Find the way to the other ranks. Collective; BackendUnavailable where there is none."""
    interfaces = addresses_by_interface()
    name = os.environ.get(INTERFACE_VARIABLE, "").split(",")[0]
    if name and name not in interfaces:
        known = ", ".join(interfaces) or "none"
        raise BackendUnavailable(
            f"gloo: {INTERFACE_VARIABLE}={name} on {socket.gethostname()}: no interface of that name has an "
            f"IPv4 address; those that have: {known}"
        )
    chosen = interfaces.get(name, "")
    local = len(set(exchange.hosts)) == 1
    store = offer = None
    if exchange.rank == 0:
        listener = socket.create_server((LOOPBACK if local else "", 0), backlog=max(128, exchange.ranks))
        port = listener.getsockname()[1]
        outside = [address for address in interfaces.values() if not address.startswith("127.")]
        candidates = [LOOPBACK] if local else [chosen] if chosen else outside or [LOOPBACK]
        offer = json.dumps([candidates, port]).encode()
        # The store takes the listening socket over, and no port is free for others in between.
        store = import_module("torch.distributed").TCPStore(
            *(candidates[0], port, None, True),
            timeout=timedelta(seconds=MEET_SECONDS),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    candidates, port = json.loads(exchange.broadcast(offer, 0))
    theirs = mine = ""
    if store is None:
        # The first of rank 0's addresses that answers, and this rank's own towards it.
        for theirs in candidates:
            with suppress(OSError), socket.create_connection((theirs, port), timeout=TRY_SECONDS) as way:
                mine = str(way.getsockname()[0])
                break
        else:
            theirs = ""
        store = import_module("torch.distributed").TCPStore(
            *(theirs, port, None, False),
            timeout=timedelta(seconds=MEET_SECONDS),
            wait_for_workers=False,
        ) if theirs else None  # fmt: skip
    told = [way.decode() for way in exchange.all_gather(theirs.encode())]
    lost = [rank for rank, way in enumerate(told) if rank and not way]
    if lost:
        raise BackendUnavailable(
            f"gloo: rank {lost[0]} on {exchange.hosts[lost[0]]} reaches rank 0 on {exchange.hosts[0]} by "
            f"none of {', '.join(candidates)}; name the interface between the hosts in {INTERFACE_VARIABLE}"
        )
    if exchange.rank == 0:
        mine = told[-1] if exchange.ranks > 1 else candidates[0]
    address = LOOPBACK if local and not chosen else chosen or mine
    interface = next((name for name, one in interfaces.items() if one == address), "unknown interface")
    return Route(address, interface, os.environ.get(TRANSPORT_VARIABLE, "tcp").lower(), store)


def open_group(route: Route, name: str, rank: int, ranks: int) -> Any:
    """Return a ``ProcessGroupGloo`` of ``ranks`` ranks that all give ``name``. Collective among them."""
    distributed = import_module("torch.distributed")
    gloo = distributed.ProcessGroupGloo
    options = gloo._Options()
    options._devices = [gloo.create_device(hostname=route.address)]
    options._timeout = CASE_TIMEOUT
    options._threads = 1  # one collective at a time: a second thread would only compete for the core
    return gloo(distributed.PrefixStore(name, route.store), rank, ranks, options)
