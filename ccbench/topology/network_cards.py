"""Network cards of a Linux machine from ``/sys/class/infiniband`` and ``/sys/class/net``.

Ports that are only software (loopback, bridges, soft RoCE) are left out. Addresses and GUIDs are not read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

from ccbench.topology.pci_tree import DeviceFiles, address_in, normal_address

INFINIBAND, NET = "/sys/class/infiniband", "/sys/class/net"

_RATE = re.compile(r"([0-9]{1,5}(?:\.[0-9]+)?) Gb/sec")


@dataclass(frozen=True)
class Card:
    """One function that reaches a network.

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


def read_cards(files: DeviceFiles) -> tuple[Card, ...]:
    """RDMA devices in the order of their numbers, then cards that have interfaces only."""
    rdma = [_rdma_card(files, path) for path in files.matching(INFINIBAND, "*")]
    plain = [_plain_card(files, path) for path in files.matching(NET, "*")]
    cards = sorted((card for card in rdma if card is not None), key=_order)
    places = {card.bus_id: index for index, card in enumerate(cards) if card.bus_id}
    for card in sorted((card for card in plain if card is not None), key=_order):
        if card.bus_id in places:
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


def _rdma_card(files: DeviceFiles, path: str) -> Card | None:
    real = files.target(f"{path}/device")
    if real is None or "/devices/virtual/" in real:
        return None
    ports = files.matching(f"{path}/ports", "*")
    rates = [_RATE.match(files.text(f"{port}/rate") or "") for port in ports]
    states = [files.text(f"{port}/state") or "" for port in ports]
    layers = [files.text(f"{port}/link_layer") or "" for port in ports]
    rate = sum(float(one[1]) for one in rates if one)
    return Card(
        name=path.rsplit("/", 1)[-1],
        bus_id=normal_address(address_in(real) or ""),
        rdma=True,
        bytes_per_second=rate * 1e9 / 8 or None,
        up=any("ACTIVE" in state for state in states) if any(states) else None,
        numa_node=files.number(f"{path}/device/numa_node"),
        attributes={
            "link_layer": next((layer for layer in layers if layer), None),
            "port_states": [state.partition(":")[2].strip().lower() or state for state in states],
            "ports": len(ports),
            "driver": _driver(files, f"{path}/device"),
        },
    )


def _plain_card(files: DeviceFiles, path: str) -> Card | None:
    real = files.target(path)
    device = files.target(f"{path}/device")
    if real is None or device is None or "/devices/virtual/" in real:
        return None
    megabits = files.number(f"{path}/speed")  # -1 where a virtual card has none, an error while it is down
    state = files.text(f"{path}/operstate")
    driver = _driver(files, f"{path}/device")
    return Card(
        name=path.rsplit("/", 1)[-1],
        bus_id=normal_address(address_in(device) or ""),
        rdma=False,
        bytes_per_second=megabits * 1e6 / 8 if megabits is not None and megabits > 0 else None,
        up={"up": True, "down": False}.get(state or ""),
        numa_node=files.number(f"{path}/device/numa_node"),
        attributes={"link_layer": "Ethernet", "driver": driver, "operstate": state},
    )


def _driver(files: DeviceFiles, device: str) -> str | None:
    real = files.target(f"{device}/driver")
    return real.rsplit("/", 1)[-1] if real else None
