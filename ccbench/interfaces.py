"""Network interfaces of this host as the kernel describes them: rate, MTU, and what travels over them.

Everything is read from sysfs (Documentation/ABI/testing/sysfs-class-net and sysfs-class-infiniband of the
Linux kernel), from a tree that a test may give instead. Nothing that is absent or unreadable is an error: a
container often sees less than the host.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

TCP, ROCE, INFINIBAND, LOOPBACK = "TCP", "RoCE", "InfiniBand", "loopback"

_ARPHRD_INFINIBAND, _ARPHRD_LOOPBACK = 32, 772
"""Values of ``type``: linux/if_arp.h."""

_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*Gb/sec", re.ASCII)


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
class _Port:
    """A port of an RDMA card."""

    name: str
    is_infiniband: bool
    rate_bits_per_second: float | None
    up: bool
    interfaces: frozenset[str]


def read_interfaces(sys_root: Path = Path("/sys")) -> tuple[Interface, ...]:
    """All interfaces and all ports of RDMA cards, by name."""
    ports = _ports(sys_root / "class/infiniband")
    found = [
        _interface(folder, ports) for folder in _folders(sys_root / "class/net") if (folder / "mtu").exists()
    ]
    carried = {one.rdma_device for one in found}
    for port in ports:
        if port.name not in carried:
            kind = INFINIBAND if port.is_infiniband else ROCE
            rate = port.rate_bits_per_second
            found.append(Interface(port.name, kind, rate, None, port.name, port.up, virtual=False))
    return tuple(sorted(found, key=lambda one: one.name))


def _interface(folder: Path, ports: tuple[_Port, ...]) -> Interface:
    name, device_type = folder.name, _number(folder / "type")
    port = next((one for one in ports if name in one.interfaces), None)
    if device_type == _ARPHRD_LOOPBACK:
        kind = LOOPBACK
    elif device_type == _ARPHRD_INFINIBAND:
        kind = INFINIBAND
    else:
        kind = ROCE if port else TCP
    megabits = _number(folder / "speed")
    rate = megabits * 1e6 if megabits is not None and megabits > 0 else None
    if port and rate is None:
        rate = port.rate_bits_per_second
    up = _text(folder / "operstate") in ("up", "unknown")  # loopback and tunnels are never more than unknown
    virtual = not (folder / "device").exists()
    return Interface(name, kind, rate, _number(folder / "mtu"), port.name if port else "", up, virtual)


def _ports(folder: Path) -> tuple[_Port, ...]:
    ports = []
    for card in _folders(folder):
        interfaces = {one.name for one in _folders(card / "device/net")}
        numbers = [port.name for port in _folders(card / "ports")]
        for number in numbers:
            port = card / "ports" / number
            rate = _RATE.match(_text(port / "rate"))
            ports.append(
                _Port(
                    name=f"{card.name}:{number}",
                    is_infiniband=_text(port / "link_layer") == "InfiniBand",
                    rate_bits_per_second=float(rate[1]) * 1e9 if rate else None,
                    up=_text(port / "state").endswith("ACTIVE"),
                    interfaces=_of_port(card, interfaces, number, len(numbers)),
                )
            )
    return tuple(ports)


def _of_port(card: Path, interfaces: set[str], number: str, ports: int) -> frozenset[str]:
    """The interfaces on one port; of a card with several ports they say themselves which (from 0 on)."""
    if ports == 1:
        return frozenset(interfaces)
    mine = int(number) - 1 if number.isdigit() else -1
    told = {name: _port_of(card / "device/net" / name) for name in interfaces}
    return frozenset(name for name, port in told.items() if port == mine)


def _port_of(folder: Path) -> int | None:
    """``dev_port`` counts from 0 on; older drivers say it in ``dev_id``, in hexadecimal."""
    told = [port for port in (_number(folder / "dev_port"), _number(folder / "dev_id")) if port is not None]
    return max(told, default=None)


def _folders(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted(folder.iterdir())
    return []


def _text(file: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):  # ``speed`` of a link that is down: EINVAL
        return file.read_text().strip()
    return ""


def _number(file: Path) -> int | None:
    text = _text(file)
    with suppress(ValueError):
        return int(text, 0) if text else None
    return None
