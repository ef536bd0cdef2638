"""Network interfaces and cards of this host as the kernel describes them.

Read from sysfs (Documentation/ABI/testing/sysfs-class-net and sysfs-class-infiniband of the Linux kernel).
Addresses and GUIDs are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.machine.files import Files
from ccbench.topology.pci import ADDRESS, normal_address

TCP, ROCE, INFINIBAND, LOOPBACK = "TCP", "RoCE", "InfiniBand", "loopback"

_ARPHRD_INFINIBAND, _ARPHRD_LOOPBACK = 32, 772
"""Values of ``type``: linux/if_arp.h."""

_RDMA, _NET = "/sys/class/infiniband", "/sys/class/net"
_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]+)?)\s*Gb/sec", re.ASCII)


@dataclass(frozen=True)
class Interface:
    """One interface, or one InfiniBand port without any (``name`` is then ``mlx5_0:1``).

    kind: the fastest way over it: ``InfiniBand``, ``RoCE`` (Ethernet whose card does RDMA), ``TCP``,
        ``loopback``. rate_bits_per_second: of the link, None where the kernel does not know (virtual links
        often claim a figure that they do not keep). mtu_bytes: None for a port without an interface.
    rdma_device: ``mlx5_0:1``, '' without one. up: whether the link is.
    """

    name: str
    kind: str
    rate_bits_per_second: float | None
    mtu_bytes: int | None
    rdma_device: str
    up: bool
    virtual: bool

    def __str__(self) -> str:
        rate = self.rate_bits_per_second
        words = [self.name, self.kind, f"{rate / 1e9:g} Gb/s" if rate else "rate unknown"]
        if self.mtu_bytes:
            words.append(f"MTU {self.mtu_bytes}")
        words += [f"card {self.rdma_device}"] if self.rdma_device not in ("", self.name) else []
        words += ["virtual"] if self.virtual and self.kind != LOOPBACK else []
        return ", ".join(words if self.up else [*words, "down"])


@dataclass(frozen=True)
class Card:
    """One PCI function that reaches a network; what is only software has none.

    name: of the RDMA device (``mlx5_0``) or else of the interface (``eth0``). bus_id: empty where it has no
    PCI address (a hypervisor's own bus). bytes_per_second: of its ports together, None where unknown.
    """

    name: str
    bus_id: str
    rdma: bool
    bytes_per_second: float | None
    up: bool | None
    numa_node: int | None
    attributes: dict[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class _Port:
    """A port of an RDMA device. interfaces: those that run over it."""

    name: str
    layer: str
    state: str
    rate_bits_per_second: float | None
    interfaces: frozenset[str]


def read_interfaces(files: Files | None = None) -> tuple[Interface, ...]:
    """Return all interfaces and all ports of RDMA cards, by name."""
    files = files or Files()
    ports = [port for card in files.matching(_RDMA) for port in _ports(files, card)]
    kinds = {_ARPHRD_LOOPBACK: LOOPBACK, _ARPHRD_INFINIBAND: INFINIBAND}
    found: list[Interface] = []
    for path in files.matching(_NET):
        if not files.exists(f"{path}/mtu"):
            continue
        name = path.rpartition("/")[2]
        port = next((one for one in ports if name in one.interfaces), None)
        found.append(
            Interface(
                name,
                kinds.get(files.number(f"{path}/type") or 0, ROCE if port else TCP),
                _speed(files, path) or (port.rate_bits_per_second if port else None),
                files.number(f"{path}/mtu"),
                port.name if port else "",
                up=files.text(f"{path}/operstate")
                in ("up", "unknown"),  # loopback and tunnels are never more
                virtual=not files.exists(f"{path}/device"),
            )
        )
    # InfiniBand works without an interface of IP over it.
    carried = {one.rdma_device for one in found}
    for port in ports:
        if port.name not in carried:
            kind = INFINIBAND if port.layer == "InfiniBand" else ROCE
            up = port.state.endswith("ACTIVE")
            found.append(Interface(port.name, kind, port.rate_bits_per_second, None, port.name, up, False))
    return tuple(sorted(found, key=lambda one: one.name))


def _speed(files: Files, path: str) -> float | None:
    """Return bits per second of an interface, None where it has none."""
    # The kernel says -1, or an error, of a link that is down.
    megabits = files.number(f"{path}/speed")
    return megabits * 1e6 if megabits is not None and megabits > 0 else None


def _ports(files: Files, card: str) -> Iterator[_Port]:
    interfaces = files.matching(f"{card}/device/net")
    ports = files.matching(f"{card}/ports")
    for port in ports:
        number = port.rpartition("/")[2]
        rate = _RATE.match(files.text(f"{port}/rate") or "")
        over = set()
        for interface in interfaces:
            # Of a card with several ports the interfaces say themselves on which they are: ``dev_port`` and,
            # of older drivers, ``dev_id`` count from 0 on, ports from 1.
            told = [files.number(f"{interface}/{name}") for name in ("dev_port", "dev_id")]
            own = max((place + 1 for place in told if place is not None), default=None)
            if len(ports) == 1 or f"{own}" == number:
                over.add(interface.rpartition("/")[2])
        yield _Port(
            name=f"{card.rpartition('/')[2]}:{number}",
            layer=files.text(f"{port}/link_layer") or "",
            state=files.text(f"{port}/state") or "",
            rate_bits_per_second=float(rate[1]) * 1e9 if rate else None,
            interfaces=frozenset(over),
        )


def read_cards(files: Files) -> tuple[Card, ...]:
    """Return RDMA devices in the order of their numbers, then cards that have interfaces only."""

    def order(card: Card) -> list[tuple[int, str]]:
        # mlx5_2 before mlx5_10.
        parts = re.split(r"([0-9]+)", card.name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    cards: list[Card] = []
    for folder in (_RDMA, _NET):
        places = {card.bus_id: place for place, card in enumerate(cards) if card.bus_id}
        found = (_card(files, path, rdma=folder == _RDMA) for path in files.matching(folder))
        for card in sorted(filter(None, found), key=order):
            if card.bus_id not in places:
                cards.append(card)
                continue
            # An interface over an RDMA device is no card of its own.
            rdma = cards[places[card.bus_id]]
            names = [*rdma.attributes.get("interfaces", []), card.name]
            driver = rdma.attributes.get("driver") or card.attributes.get("driver")
            attributes = {**rdma.attributes, "interfaces": names, "driver": driver}
            cards[places[card.bus_id]] = replace(rdma, attributes=attributes)
    return tuple(cards)


def _card(files: Files, path: str, rdma: bool) -> Card | None:
    """Return the card of an RDMA device or interface; None for one that is only software."""
    # Bridges, bonds and tunnels have no device of their own.
    device = files.target(f"{path}/device")
    if device is None or "/devices/virtual/" in f"{device}{files.target(path)}":
        return None
    address = next((part for part in reversed(device.split("/")) if ADDRESS.fullmatch(part)), "")
    driver = files.target(f"{path}/device/driver")
    attributes: dict[str, Any]
    if rdma:
        ports = list(_ports(files, path))
        rate = sum(port.rate_bits_per_second or 0 for port in ports) or None
        states = [port.state for port in ports]
        up = any("ACTIVE" in state for state in states) if any(states) else None
        attributes = {
            "link_layer": next((port.layer for port in ports if port.layer), None),
            "port_states": [state.partition(":")[2].strip().lower() or state for state in states],
            "ports": len(ports),
        }
    else:
        rate, state = _speed(files, path), files.text(f"{path}/operstate")
        up = {"up": True, "down": False}.get(state or "")
        attributes = {"link_layer": "Ethernet", "operstate": state}
    return Card(
        name=path.rpartition("/")[2],
        bus_id=normal_address(address),
        rdma=rdma,
        bytes_per_second=rate and rate / 8,
        up=up,
        numa_node=files.number(f"{path}/device/numa_node"),
        attributes={**attributes, "driver": driver and driver.rpartition("/")[2]},
    )
