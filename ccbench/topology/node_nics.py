"""The NICs of a network inside one machine: where they hang, and what a machine needs to be copied.

``<kind>-<Gb/s>x<NICs>``: what joins the nodes of a cluster, in one word.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.topology.classes import connected_groups, peers_of
from ccbench.topology.fabrics import Wire
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Topology
from ccbench.topology.matrix import NOT_VISIBLE, path_labels
from ccbench.topology.words import said_and_denied
from ccbench.units import shown, suggestion

KINDS: dict[str, LinkKind] = {
    "ib": LinkKind.INFINIBAND,
    "ib-fdr": LinkKind.INFINIBAND,
    "ib-edr": LinkKind.INFINIBAND,
    "ib-hdr": LinkKind.INFINIBAND,
    "ib-ndr": LinkKind.INFINIBAND,
    "ib-xdr": LinkKind.INFINIBAND,
    "roce": LinkKind.ROCE,
    "efa": LinkKind.EFA,
    "tcp": LinkKind.ETHERNET,
    "tcpx": LinkKind.ETHERNET,
    "tcpxo": LinkKind.ETHERNET,
    "slingshot": LinkKind.ETHERNET,
}
"""Words before the rate. Slingshot is Ethernet with its own transport, tcp is Ethernet with the kernel's,
tcpx and tcpxo are GPUDirect-TCPX and FasTrak of Google's A3 machines."""

MOST_GIGABITS = 10_000
MOST_NICS = 256

PORT_GIGABITS: dict[str, int] = {
    "ib-fdr": 56,
    "ib-edr": 100,
    "ib-hdr": 200,
    "ib-ndr": 400,
    "ib-xdr": 800,
}
"""Rate of a port of four lanes, as the InfiniBand Trade Association's roadmap names the generations."""

RAILS = "rails"
"""The shape with a switch for each NIC of a node, which nothing joins."""

_SHAPE = (
    rf"{RAILS}|(?:fat-tree|dragonfly\+?|torus|hypercube|full-mesh)"
    r":[0-9]{1,6}(?:x[0-9]{1,6}){0,5}(?::[0-9]{1,3}(?:\.[0-9]{1,2})?)?"
)
_TEXT = re.compile(
    rf"([a-z]+(?:-[a-z]+)?)-([0-9]{{1,6}}(?:\.[0-9]{{1,3}})?)x([0-9]{{1,4}})(?:/({_SHAPE}))?",
    re.ASCII,
)
_LONGEST = 100


@dataclass(frozen=True)
class Network:
    """NICs of each node and the fabric they are of.

    word: the kind as written; bytes_per_second: nominal rate of one NIC in one direction. shape: of the
    switches between NICs, as ``composition.fabric_of`` reads it; "" for one switch that never blocks, "rails"
    for one for each NIC of a node.
    """

    word: str
    kind: LinkKind
    bytes_per_second: float
    nics: int
    shape: str = ""

    def __str__(self) -> str:
        shape = f"/{self.shape}" if self.shape else ""
        return f"{self.word}-{self.bytes_per_second * 8 / 1e9:g}x{self.nics}{shape}"

    @property
    def of_any_size(self) -> bool:
        """True where the network joins any number of nodes; a shape with sizes joins exactly so many."""
        return self.shape in ("", RAILS)


def is_other_network(declared: str, stated: str) -> bool:
    """Return True if ``stated`` does not begin with a network of the declared kind and rate of a node.

    Nothing is other where nothing is declared, and everything is that cannot be read where something is: a
    log over sockets would else pass for what InfiniBand gives.
    """
    return bool(declared) and _kind_and_rate(declared) != _kind_and_rate(stated)


def _kind_and_rate(text: str) -> tuple[str, float] | None:
    try:
        network = parse_network(said_and_denied(text)[0].partition(" ")[0])
    except MachineError:
        return None
    return network.word.partition("-")[0], network.bytes_per_second * network.nics


AS_IWARP = (
    "no collective over it was published; RDMA over TCP has the rates of Ethernet and a latency between the two, so "
    "write roce for the least time and tcp for the most"
)
"""Said of iWARP (RFC 5040, 5041, 5044)."""


def parse_network(text: str) -> Network:
    """``ib-ndr-400x8``: eight InfiniBand NDR NICs of 400 Gb/s per node. Raises MachineError."""
    spelled = text if isinstance(text, str) and len(text) <= _LONGEST else ""
    match = _TEXT.fullmatch(spelled)
    if match is None and _TEXT.fullmatch(spelled.lower()):
        raise MachineError(
            f"network: {shown(text)} is read in lower case only; write {text.lower()}"
        )
    if match is None:
        raise MachineError(
            f"network: {shown(text)} is not <kind>-<Gb/s>x<NICs per node>; write for example ib-ndr-400x8 "
            "('ccbench list networks'), or, with the shape of its switches, ib-ndr-400x8/fat-tree:16x8"
        )
    word, gigabits, nics = match[1], float(match[2]), int(match[3])
    if word not in KINDS:
        cure = AS_IWARP if word == "iwarp" else suggestion(word, KINDS)
        raise MachineError(f"network: kind {word!r} in {shown(text)} is not known; {cure}")
    if not 0 < gigabits <= MOST_GIGABITS or not 0 < nics <= MOST_NICS:
        raise MachineError(
            f"network: {shown(text)} is out of range; write up to {MOST_GIGABITS} Gb/s and {MOST_NICS} NICs"
        )
    return Network(word, KINDS[word], gigabits * 1e9 / 8, nics, match[4] or "")


_RATES = ("bytes_per_second", "net_bytes_per_second")
"""Attributes in which sources state the rate of a NIC's port."""

_OF_NICS = ("nic_", "nearest_nics", "net_devices", "paths")
"""Beginnings of the names of facts about NICs, which are wrong once the NICs are others."""

_MOST_NAMED = 4

ASSUMED = "assumed"
"""Attribute ``place`` of a NIC of which nobody said where it hangs: no advice is built on it."""


def port_wire(network: Network, ports: int) -> Wire:
    """Return the wire that joins each of ``ports`` vertices, which share the machine's NICs evenly."""
    count = max(1, network.nics // ports)
    rate = network.bytes_per_second * network.nics / ports
    return Wire(rate, 0.0, network.kind, count, f"{network}: nominal rate of its ports")


def with_nics(machine: Topology, network: Network, ports: int) -> Topology:
    """Return ``machine`` with the NICs of ``network`` on ``ports`` vertices.

    Its own NICs stay where they are as many as the network's and as the vertices, and none of them is down;
    of their rates the network's count. Else they make room: new ones are dealt to the GPUs evenly and in
    order, each on the PCIe switch of its GPUs, on the processor of most of them where they are on several
    switches, or on the GPUs themselves where the machine shows no PCIe. Their places and that their slots
    are as fast as their ports are assumptions. Warnings say what was assumed and what contradicts.
    """
    own, down = machine.of_kind(DeviceKind.NIC), _down(machine)
    if len(own) == network.nics == ports and not down:
        return _rated(machine, network)
    warnings: list[SourceWarning] = []
    if own and (len(own) != network.nics or down):
        which = f" ({_listed(down)} down)" if down else ""
        text = f"{machine.name} has {len(own)} of its own NICs{which}, {network} says {network.nics}"
        warnings.append(SourceWarning("contradiction", f"{text}: the latter are shown"))
    old = {device.name for device in own}
    wire = port_wire(network, ports)
    origin = f"{network}: assumed as fast as its port"
    link = Link("", "", LinkKind.PCIE, wire.bytes_per_second, None, wire.count, origin=origin)
    devices = [device for device in machine.devices if device.name not in old]
    links = [link for link in machine.links if not old & {link.source, link.target}]
    upwards = _upwards(machine)
    processors = {device.name for device in machine.of_kind(DeviceKind.CPU)}
    place = (
        "next to the GPUs it serves"
        if upwards
        else "on the GPUs it serves, for no PCIe is shown"
    )
    text = f"where the NICs of {network} hang is not known: each is put {place}, in a slot as fast as its port"
    warnings.append(SourceWarning("assumed", text))
    attributes = {"bytes_per_second": network.bytes_per_second, "place": ASSUMED}
    taken = {device.name for device in devices}
    free = (name for name in map("nic{}".format, itertools.count()) if name not in taken)
    gpus = [gpu.name for gpu in machine.gpus]
    for port, name in zip(range(ports), free, strict=False):
        devices.append(
            Device(name, DeviceKind.NIC, machine.gpus[0].node, attributes=attributes)
        )
        # The GPUs that the port serves; with more ports than GPUs the one whose port it is.
        served = [gpu for index, gpu in enumerate(gpus) if index * ports // len(gpus) == port]
        served = [gpus[port * len(gpus) // ports]] if ports > len(gpus) else served
        for above in _places(served, upwards, processors):
            links += replace(link, source=above, target=name).both_ways()
    # The words that the source has for the paths that stay. The new NICs are in no print, so the fact that
    # says that only printed words count is given up; what the source does not show stays unknown.
    words = {pair: label for pair, label in machine.matrix.items() if not old & set(pair)}
    if machine.matrix and machine.facts.get("paths") == "as printed":
        labels = path_labels(machine, machine.gpus)
        words |= {pair: label for pair, label in labels.items() if label == NOT_VISIBLE}
    return replace(
        machine,
        devices=tuple(devices),
        links=tuple(links),
        warnings=(*machine.warnings, *warnings),
        facts={
            name: value
            for name, value in machine.facts.items()
            if not name.startswith(_OF_NICS)
        },
        matrix=words,
    )


def _upwards(machine: Topology) -> dict[str, Link]:
    """PCIe switch or GPU -> the link above it.

    A GPU hangs on what it is linked to first, whether a processor is shown above that or not.
    """
    devices = machine.by_name
    hosts = (DeviceKind.PCIE_SWITCH, DeviceKind.CPU)
    up: dict[DeviceKind, list[Link]] = {kind: [] for kind in DeviceKind}
    for link in machine.links:
        if link.carries and devices[link.target].kind in hosts:
            up[devices[link.source].kind].append(link)
    of_gpus = {link.source: link for link in reversed(up[DeviceKind.GPU])}
    return towards_processors(machine, up[DeviceKind.PCIE_SWITCH]) | of_gpus


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_MOST_NAMED]) + (" ..." if len(names) > _MOST_NAMED else "")


def _down(machine: Topology) -> list[str]:
    """NICs that are said to be down, or whose links are all down."""
    links: dict[str, list[bool]] = {}
    for link in machine.links:
        links.setdefault(link.source, []).append(link.may_carry)
    return [
        nic.name
        for nic in machine.of_kind(DeviceKind.NIC)
        if nic.attributes.get("up") is False or not any(links.get(nic.name, [True]))
    ]


def _rated(machine: Topology, network: Network) -> Topology:
    """``machine`` whose own NICs have the rate of ``network``; a warning where that is not theirs."""
    rate = network.bytes_per_second
    own_rates: dict[str, float] = {}
    for nic in machine.of_kind(DeviceKind.NIC):
        rates = (nic.attributes.get(name) for name in _RATES)
        own = next((own for own in rates if isinstance(own, (int, float))), rate)
        # Rates that differ by less are the same number, written with more or fewer digits.
        if not math.isclose(own, rate, rel_tol=0.01):
            own_rates[nic.name] = own
    if not own_rates:
        return machine
    figures = " and ".join(f"{own * 8 / 1e9:g}" for own in sorted(set(own_rates.values())))
    text = f"{_listed([*own_rates])} of {machine.name}: {figures} Gb/s, {network} says {rate * 8 / 1e9:g}"
    warning = SourceWarning("contradiction", f"{text}: the latter is taken")
    devices = tuple(
        replace(device, attributes={**device.attributes, **dict.fromkeys(_RATES, rate)})
        if device.name in own_rates
        else device
        for device in machine.devices
    )
    return replace(machine, devices=devices, warnings=(*machine.warnings, warning))


def _places(
    gpus: Sequence[str], upwards: Mapping[str, Link], processors: set[str]
) -> list[str]:
    """Places of a NIC of these GPUs: one, unless they are shown without anything above them."""
    above = list(dict.fromkeys(upwards[gpu].target for gpu in gpus if gpu in upwards))
    if len(above) <= 1:
        return above or list(gpus)
    # On several switches: the processor of most of the GPUs, over however many switches.
    processors_above: Counter[str] = Counter()
    for name in gpus:
        while name in upwards:
            name = upwards[name].target
        processors_above[name] += name in processors
    most, number = processors_above.most_common(1)[0]
    return [most] if number else above[:1]


def towards_processors(machine: Topology, links: Iterable[Link]) -> dict[str, Link]:
    """Device -> the one of ``links`` that leads from it towards a processor.

    Links go both ways, so which of two cascaded switches is the upper one is told by the way to a processor:
    they are followed from the processors downwards.
    """
    below: dict[str, list[Link]] = {}
    for link in links:
        below.setdefault(link.target, []).append(link)
    upwards: dict[str, Link] = {}
    processors = [device.name for device in machine.of_kind(DeviceKind.CPU)]
    waiting = list(processors)
    for upper in waiting:
        for link in below.get(upper, ()):
            if link.source not in upwards and link.source not in processors:
                upwards[link.source] = link
                waiting.append(link.source)
    return upwards


def check_rates(machine: Topology) -> None:
    """MachineError naming the links without a rate: routes of a cluster are chosen by rates."""
    devices = machine.by_name
    lacking = [
        link
        for link in machine.links
        if not link.bytes_per_second and link.carries and link.source != link.target
    ]
    if not lacking:
        return
    groups: dict[tuple[object, ...], list[Link]] = {}
    for link in lacking:
        ends = frozenset(devices[end].kind for end in (link.source, link.target))
        groups.setdefault((link.kind, ends), []).append(link)
    named = [
        f"{len(links)} {links[0].kind.value} ({links[0].source} -> {links[0].target}"
        f"{' ...' if len(links) > 1 else ''})"
        for links in groups.values()
    ]
    listed = ", ".join(named[:_MOST_NAMED]) + (", ..." if len(named) > _MOST_NAMED else "")
    raise MachineError(
        f"{machine.name}: {len(lacking)} of {len(machine.links)} links have no rate, which a cluster needs: "
        f"{listed}; state the GPUs' model (--gpu 'NVIDIA A100-SXM4'), name a machine of the catalog (hgx-h100), or "
        "write this one with 'ccbench topo SOURCE --yaml' and give each of these links its bytes_per_second"
    )


def check_joined(machine: Topology) -> None:
    """MachineError naming a GPU that no links join to the first one."""
    peers = peers_of(
        [device.name for device in machine.devices],
        [(link.source, link.target) for link in machine.links if link.carries],
    )
    first = machine.gpus[0].name
    reached = next(group for group in connected_groups(peers) if first in group)
    lost = [gpu.name for gpu in machine.gpus if gpu.name not in reached]
    if lost:
        raise MachineError(
            f"{machine.name}: shows no link that joins {first} to {_listed(lost)}, which a cluster needs; "
            "name a machine of the catalog, or write this one with 'ccbench topo SOURCE --yaml' and add the "
            "links"
        )
