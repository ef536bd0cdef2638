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
    """All interfaces and all ports of RDMA cards, by name."""
    files = files or Files()
    ports = [port for card in files.matching(_RDMA) for port in _ports(files, card)]
    paths = [path for path in files.matching(_NET) if files.exists(f"{path}/mtu")]
    found = [_interface(files, path, ports) for path in paths]
    carried = {one.rdma_device for one in found}
    for port in ports:
        if port.name not in carried:
            kind = INFINIBAND if port.layer == "InfiniBand" else ROCE
            up = port.state.endswith("ACTIVE")
            found.append(Interface(port.name, kind, port.rate_bits_per_second, None, port.name, up, False))
    return tuple(sorted(found, key=lambda one: one.name))


def _interface(files: Files, path: str, ports: list[_Port]) -> Interface:
    name, device_type = path.rpartition("/")[2], files.number(f"{path}/type")
    port = next((one for one in ports if name in one.interfaces), None)
    kinds = {_ARPHRD_LOOPBACK: LOOPBACK, _ARPHRD_INFINIBAND: INFINIBAND}
    return Interface(
        name,
        kinds.get(device_type or 0, ROCE if port else TCP),
        _speed(files, path) or (port.rate_bits_per_second if port else None),
        files.number(f"{path}/mtu"),
        port.name if port else "",
        up=files.text(f"{path}/operstate") in ("up", "unknown"),  # loopback and tunnels are never more
        virtual=not files.exists(f"{path}/device"),
    )


def _speed(files: Files, path: str) -> float | None:
    """Bits per second of an interface; the kernel says -1, or an error, where it has none or is down."""
    megabits = files.number(f"{path}/speed")
    return megabits * 1e6 if megabits is not None and megabits > 0 else None


def _ports(files: Files, card: str) -> Iterator[_Port]:
    interfaces = [path.rpartition("/")[2] for path in files.matching(f"{card}/device/net")]
    ports = files.matching(f"{card}/ports")
    for port in ports:
        number = port.rpartition("/")[2]
        rate = _RATE.match(files.text(f"{port}/rate") or "")
        yield _Port(
            name=f"{card.rpartition('/')[2]}:{number}",
            layer=files.text(f"{port}/link_layer") or "",
            state=files.text(f"{port}/state") or "",
            rate_bits_per_second=float(rate[1]) * 1e9 if rate else None,
            # Of a card with several ports the interfaces say themselves on which they are (from 0 on).
            interfaces=frozenset(
                name
                for name in interfaces
                if len(ports) == 1 or f"{_port_of(files, f'{card}/device/net/{name}')}" == number
            ),
        )


def _port_of(files: Files, interface: str) -> int | None:
    """Number of the port, from 1 on. ``dev_port`` and, of older drivers, ``dev_id`` count from 0 on."""
    told = [files.number(f"{interface}/{name}") for name in ("dev_port", "dev_id")]
    return max((port + 1 for port in told if port is not None), default=None)


def read_cards(files: Files) -> tuple[Card, ...]:
    """RDMA devices in the order of their numbers, then cards that have interfaces only."""
    cards: list[Card] = []
    for folder in (_RDMA, _NET):
        places = {card.bus_id: place for place, card in enumerate(cards) if card.bus_id}
        found = (_card(files, path, rdma=folder == _RDMA) for path in files.matching(folder))
        for card in sorted(filter(None, found), key=_order):
            if card.bus_id in places:  # an interface over an RDMA device
                cards[places[card.bus_id]] = _with_interface(cards[places[card.bus_id]], card)
            else:
                cards.append(card)
    return tuple(cards)


def _order(card: Card) -> list[tuple[int, str]]:
    """mlx5_2 before mlx5_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", card.name)]


def _with_interface(card: Card, interface: Card) -> Card:
    names = [*card.attributes.get("interfaces", []), interface.name]
    driver = card.attributes.get("driver") or interface.attributes.get("driver")
    return replace(card, attributes={**card.attributes, "interfaces": names, "driver": driver})


def _card(files: Files, path: str, rdma: bool) -> Card | None:
    """The card of an RDMA device or interface; None for one that is only software."""
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
