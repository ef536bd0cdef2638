"""The NICs of a network inside one machine: where they hang, and what a machine needs to be copied."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from ccbench.errors import MachineError
from ccbench.topology.fabric import Wire
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, Notice, Topology, carries
from ccbench.topology.matrix import NOT_VISIBLE, path_labels
from ccbench.topology.networks import Network

_OF_NICS = ("nic_", "nearest_nics", "net_devices", "paths")
"""How facts begin that a source states with NICs in mind; they are wrong once the NICs are others."""

_MOST_NAMED = 4


def port_wire(network: Network, ports: int) -> Wire:
    """What joins each of ``ports`` vertices to the network, when they share the machine's NICs evenly."""
    count = max(1, network.nics // ports)
    rate = network.bytes_per_second * network.nics / ports
    return Wire(rate, 0.0, network.kind, count, f"{network}: nominal rate of its ports")


def with_nics(machine: Topology, network: Network, ports: int) -> Topology:
    """``machine`` with the NICs of ``network`` on ``ports`` vertices.

    Its own NICs stay where they are as many as the network's and as the vertices. Else they make room, which
    a notice says: new ones are dealt to the GPUs evenly and in order, each on the PCIe switch of its GPUs,
    on their processor where they are on several switches, or on the GPUs themselves where the machine shows
    no PCIe. Links are as fast as the port (assumed).
    """
    own = machine.of_kind(DeviceKind.NIC)
    if len(own) == network.nics == ports:
        return machine
    old = {device.name for device in own}
    wire = port_wire(network, ports)
    origin = f"{network}: assumed as fast as its port"
    link = Link("", "", LinkKind.PCIE, wire.bytes_per_second, None, wire.count, origin=origin)
    devices = [device for device in machine.devices if device.name not in old]
    links = [one for one in machine.links if one.source not in old and one.target not in old]
    upwards = _upwards(machine)
    attributes = {"bytes_per_second": network.bytes_per_second}
    for port in range(ports):
        name = f"nic{port}"
        devices.append(Device(name, DeviceKind.NIC, machine.gpus[0].node, attributes=attributes))
        for place in _places(_dealt([gpu.name for gpu in machine.gpus], port, ports), upwards):
            ends = ((place, name), (name, place))
            links += [replace(link, source=source, target=target) for source, target in ends]
    return replace(
        machine,
        devices=tuple(devices),
        links=tuple(links),
        notices=(*machine.notices, *_replacement(machine, network)),
        facts={name: value for name, value in machine.facts.items() if not name.startswith(_OF_NICS)},
        matrix=_words(machine, old),
    )


def _words(machine: Topology, old: set[str]) -> dict[tuple[str, str], str]:
    """What the source calls the paths that stay; what it does not show stays unknown.

    The new NICs are in no print, so the fact that says that only printed words count is given up.
    """
    words = {pair: label for pair, label in machine.matrix.items() if not old & set(pair)}
    if machine.matrix and machine.facts.get("paths") == "as printed":
        labels = path_labels(machine, machine.gpus)
        words |= {pair: label for pair, label in labels.items() if label == NOT_VISIBLE}
    return words


def _replacement(machine: Topology, network: Network) -> Iterator[Notice]:
    own = len(machine.of_kind(DeviceKind.NIC))
    if own and own != network.nics:
        text = (
            f"{machine.name} has {own} of its own NICs, {network} says {network.nics}: the latter are shown"
        )
        yield Notice("contradiction", text)


def _dealt(gpus: list[str], port: int, ports: int) -> list[str]:
    """The GPUs that port number ``port`` serves; with more ports than GPUs the one whose port it is."""
    if ports > len(gpus):
        return [gpus[port * len(gpus) // ports]]
    return [gpu for index, gpu in enumerate(gpus) if index * ports // len(gpus) == port]


def _places(gpus: list[str], upwards: dict[str, tuple[str, bool]]) -> list[str]:
    """What a NIC of these GPUs hangs on: one place, unless they are shown without anything above them."""
    above = list(dict.fromkeys(upwards[gpu][0] for gpu in gpus if gpu in upwards))
    if not above:
        return gpus
    place = above[0]
    seen = {place}
    while len(above) > 1 and place in upwards and upwards[place][0] not in seen:
        place, is_processor = upwards[place]
        seen.add(place)
        if is_processor:
            return [place]
    return above[:1]


def _upwards(machine: Topology) -> dict[str, tuple[str, bool]]:
    """GPU or PCIe switch -> the PCIe switch or processor it hangs on, and whether that is a processor."""
    kinds = {device.name: device.kind for device in machine.devices}
    found: dict[str, tuple[str, bool]] = {}
    for link in reversed(machine.links):
        source, target = kinds.get(link.source), kinds.get(link.target)
        is_processor = target is DeviceKind.CPU
        above_gpu = source is DeviceKind.GPU and target is DeviceKind.PCIE_SWITCH
        above_switch = source is DeviceKind.PCIE_SWITCH and is_processor
        if carries(link) and (above_gpu or above_switch or (source is DeviceKind.GPU and is_processor)):
            found[link.source] = (link.target, is_processor)
    return found


def check_rates(machine: Topology) -> None:
    """MachineError naming the links without a rate: routes of a cluster are chosen by rates."""
    kinds = {device.name: device.kind for device in machine.devices}
    lacking = [
        link
        for link in machine.links
        if not link.bytes_per_second and carries(link) and link.source != link.target
    ]
    if not lacking:
        return
    groups: Counter[tuple[object, ...]] = Counter()
    first: dict[tuple[object, ...], Link] = {}
    for link in lacking:
        key = (link.kind, frozenset((kinds.get(link.source), kinds.get(link.target))))
        groups[key] += 1
        first.setdefault(key, link)
    named = [
        f"{groups[key]} {link.kind.value} ({link.source} -> {link.target}{' ...' * (groups[key] > 1)})"
        for key, link in first.items()
    ]
    listed = ", ".join(named[:_MOST_NAMED]) + (", ..." if len(named) > _MOST_NAMED else "")
    raise MachineError(
        f"{machine.name}: {len(lacking)} of {len(machine.links)} links have no rate, which a cluster needs: "
        f"{listed}; name a machine of the catalog (hgx-h100, pcie5-x16), or write this one with "
        "'ccbench topo SOURCE --yaml', give each of these links its bytes_per_second and name that file"
    )


def check_joined(machine: Topology) -> None:
    """MachineError naming a GPU that no links join to the first one."""
    onward: dict[str, set[str]] = {}
    for link in machine.links:
        if carries(link):
            onward.setdefault(link.source, set()).add(link.target)
            onward.setdefault(link.target, set()).add(link.source)
    first = machine.gpus[0].name
    reached, waiting = {first}, [first]
    while waiting:
        new = onward.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    lost = [gpu.name for gpu in machine.gpus if gpu.name not in reached]
    if lost:
        listed = ", ".join(lost[:_MOST_NAMED]) + (" ..." if len(lost) > _MOST_NAMED else "")
        raise MachineError(
            f"{machine.name}: shows no link that joins {first} to {listed}, which a cluster needs; name a "
            "machine of the catalog, or write this one with 'ccbench topo SOURCE --yaml' and add the links"
        )
