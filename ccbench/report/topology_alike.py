"""A smaller graph to draw: whatever looks the same, seen from the first machine, becomes one vertex.

Machines after the first, and groups of switches after the first, are folded into one vertex each. Then
vertices get colours, and a colour is split while its vertices differ in the colours they lead to: colour
refinement (Weisfeiler and Leman, 1968), which ends with a partition in which every vertex of a class has the
same number of links of a kind to each other class. The devices of the first machine start with a colour of
their own, so it is shown as it is and the rest by how it lies towards it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.matrix import is_counted
from ccbench.units import plural

MOST_SEPARATE = 16
"""So many GPUs of a machine still have a box each."""

MOST_OTHERS = 24
"""So many processors, NICs or PCIe switches of a machine still do."""

FIRST_OF_MANY = 3
"""GPUs on the first switch that are shown before the rest of them is counted."""

MOST_ROUNDS = 40
_ORDER = (
    DeviceKind.GPU, DeviceKind.NIC, DeviceKind.PCIE_SWITCH, DeviceKind.CPU, DeviceKind.NVSWITCH,
    DeviceKind.NETWORK_SWITCH,
)  # fmt: skip
_LEVELS = ("leaf", "spine", "core")


@dataclass
class _Sum:
    """Links of a kind and state from one vertex to one class."""

    count: int = 0
    bytes_per_second: float | None = 0.0
    is_counted: bool = True

    def add(self, link: Link) -> None:
        self.count += link.count
        self.is_counted = self.is_counted and is_counted(link)
        # What is not known of one link is not known of their sum.
        known = self.bytes_per_second is not None and link.bytes_per_second is not None
        total = (self.bytes_per_second or 0.0) + (link.bytes_per_second or 0.0)
        self.bytes_per_second = total if known else None


def reduced(topology: Topology) -> Topology:
    """``topology`` with one device, the first, for each class of devices that look the same.

    Its attributes: ``merged`` (how many), ``members`` (their names), ``more`` (another of the kind is shown
    before it), ``level`` and ``number`` of a network's switch, ``folded`` (a whole machine or group),
    ``like_first``, ``inside`` (words for what is folded). A link between two classes is what each device of
    the lower one has: GPUs and NICs below switches, leaves below spines.
    """
    folded = _with_levels(_folded(topology))
    return _merged(folded, _colours(folded))


def _known(links: Iterable[Link], names: Mapping[str, object]) -> list[Link]:
    return [one for one in links if one.source in names and one.target in names and one.source != one.target]


def _folded(topology: Topology) -> Topology:
    homes = _machines(topology) | _groups(topology)
    inside: dict[Hashable, list[Device]] = {}
    for one in topology.devices:
        if one.name in homes:
            inside.setdefault(homes[one.name], []).append(one)
    first = next(iter(inside), None)
    looks = _looks(topology, homes)
    kinds = {
        home: looks[home] + tuple(sorted(Counter(one.kind.value for one in members).items()))
        for home, members in inside.items()
    }
    keep = {home for home in inside if home == first or len(inside) == 1}
    stands = {
        one.name: members[0].name for home, members in inside.items() if home not in keep for one in members
    }
    devices = []
    for one in topology.devices:
        if stands.get(one.name, one.name) == one.name:
            if one.name in stands:
                home = homes[one.name]
                one = _whole(one, home, inside[home], kinds[home], kinds[home] == kinds[first])
            devices.append(one)
    links = tuple(
        replace(
            link, source=stands.get(link.source, link.source), target=stands.get(link.target, link.target)
        )
        for link in topology.links
    )
    return replace(topology, devices=tuple(devices), links=links)


def _whole(
    device: Device, home: tuple[str, str], members: Sequence[Device], look: Hashable, like_first: bool
) -> Device:
    """One vertex for a machine or group; it stands where machines do, a group above the switches."""
    words = {DeviceKind.GPU: "GPU", DeviceKind.NIC: "NIC", DeviceKind.CPU: "CPU"}
    counts = Counter(one.kind for one in members)
    inside = ", ".join(plural(counts[kind], word) for kind, word in words.items() if counts[kind])
    machine = home[0] == "machine"
    kind, node = (DeviceKind.GPU, device.node) if machine else (DeviceKind.NETWORK_SWITCH, -1)
    name = f"machine {home[1]}" if machine else home[1]
    attributes = {"folded": name, "look": look, "like_first": like_first, "inside": inside}
    return Device(device.name, kind, node, attributes=attributes)


def _looks(topology: Topology, homes: Mapping[str, tuple[str, str]]) -> dict[Hashable, tuple[object, ...]]:
    """What is inside each machine or group: which of its devices are joined, and by what.

    Devices of two machines are matched by their order in each: what is built alike but listed otherwise
    looks different, which says less than could be said but nothing wrong.
    """
    found: dict[Hashable, Counter[tuple[object, ...]]] = {home: Counter() for home in homes.values()}
    sizes: Counter[tuple[str, str]] = Counter()
    places: dict[str, int] = {}
    for one in topology.devices:
        if one.name in homes:
            places[one.name] = sizes[homes[one.name]]
            sizes[homes[one.name]] += 1
    for link in topology.links:
        home = homes.get(link.source)
        if home is not None and home == homes.get(link.target):
            numbers = (
                places[link.source],
                places[link.target],
                link.kind.value,
                link.count,
                str(link.bytes_per_second),
                link.state.value,
            )
            found[home][numbers] += 1
    return {home: (frozenset(counted.items()),) for home, counted in found.items()}


def _machines(topology: Topology) -> dict[str, tuple[str, str]]:
    """The machine of each device; empty where there is one. What several machines share is of none."""
    nodes = {one.name: one.node for one in topology.devices}
    switches = {one.name for one in topology.of_kind(DeviceKind.NVSWITCH)}
    shared = {one.name for one in topology.devices if one.node < 0}
    shared |= {one.name for one in topology.of_kind(DeviceKind.NETWORK_SWITCH)}
    for link in _known(topology.links, nodes):
        if nodes[link.source] != nodes[link.target]:
            shared |= switches & {link.source, link.target}
    homes = {name: ("machine", str(node)) for name, node in nodes.items() if name not in shared}
    return homes if len(set(homes.values())) > 1 else {}


def _groups(topology: Topology) -> dict[str, tuple[str, str]]:
    """Groups of a dragonfly: switches that share a prefix and are joined, with the GPUs on them."""
    switches = {one.name for one in topology.of_kind(DeviceKind.NETWORK_SWITCH)}
    prefix = {name: name.rpartition(".")[0] for name in switches}
    joined = {
        prefix[link.source]
        for link in topology.links
        if link.source in switches and link.target in switches and prefix[link.source] == prefix[link.target]
    } - {""}
    homes = {name: ("group", stem) for name, stem in prefix.items() if stem in joined}
    if len(set(homes.values())) < 2 or len({one.node for one in topology.gpus}) > 1:
        return {}
    gpus = {one.name for one in topology.gpus}
    for link in topology.links:
        if link.source in gpus and link.target in homes:
            homes[link.source] = homes[link.target]
    # In the order of the devices, so that the first group is the one that stays.
    return {one.name: homes[one.name] for one in topology.devices if one.name in homes}


def _with_levels(topology: Topology) -> Topology:
    """Switches of a network know their level: how far they are from what they connect."""
    switches = {
        one.name for one in topology.of_kind(DeviceKind.NETWORK_SWITCH) if "folded" not in one.attributes
    }
    near: dict[str, set[str]] = {one.name: set() for one in topology.devices}
    for link in _known(topology.links, near):
        near[link.source].add(link.target)
        near[link.target].add(link.source)
    levels: dict[str, int] = {}
    reached = {one.name for one in topology.devices if one.kind is not DeviceKind.NETWORK_SWITCH}
    while left := switches - levels.keys():
        row = {name for name in left if near[name] & reached} or left
        levels.update(dict.fromkeys(row, max(levels.values(), default=0) + 1))
        reached = row
    most = max(levels.values(), default=0)
    grouped = any("folded" in one.attributes and one.node < 0 for one in topology.devices)
    numbers: Counter[int] = Counter()
    devices = []
    for one in topology.devices:
        if level := levels.get(one.name):
            words = _LEVELS[level - 1] if 1 < most <= len(_LEVELS) and not grouped else ""
            extra = {"height": level, "level": words, "number": numbers[level]}
            one = replace(one, attributes={**one.attributes, **extra})
            numbers[level] += 1
        devices.append(one)
    return replace(topology, devices=tuple(devices))


def _colours(topology: Topology) -> dict[str, int]:
    seen = _first_colours(topology)
    colours = _numbered(seen)
    kinds = {one.name: one.kind for one in topology.devices}
    links = _known(topology.links, kinds)
    for _ in range(MOST_ROUNDS):
        sums: dict[str, dict[Hashable, list[int]]] = {name: {} for name in colours}
        for link in links:
            rate = round(link.bytes_per_second or 0.0)
            for here, there, way in ((link.source, link.target, 0), (link.target, link.source, 1)):
                # Switches of the same GPUs are one group, though some have a link more than others.
                exact = kinds[here] is not DeviceKind.NVSWITCH
                key = (colours[there], link.kind, link.state, way) if exact else colours[there]
                entry = sums[here].setdefault(key, [0, 0, 0])
                if exact:
                    entry[0] += link.count
                    entry[1] += rate
                    entry[2] += link.bytes_per_second is None
        finer = _numbered(
            {
                name: (colours[name], frozenset((key, *entry) for key, entry in sums[name].items()))
                for name in colours
            }
        )
        if len(set(finer.values())) == len(set(colours.values())):
            break
        colours = finer
    return colours


def _numbered(keys: Mapping[str, Hashable]) -> dict[str, int]:
    numbers: dict[Hashable, int] = {}
    return {name: numbers.setdefault(key, len(numbers)) for name, key in keys.items()}


def _first_colours(topology: Topology) -> dict[str, Hashable]:
    kinds = Counter(one.kind for one in topology.devices if "folded" not in one.attributes)
    touching = {name for link in topology.links for name in (link.source, link.target)}
    many = kinds[DeviceKind.GPU] > MOST_SEPARATE
    shown = _first_gpus(topology) if many else {one.name for one in topology.gpus}
    found: dict[str, Hashable] = {}
    for one in topology.devices:
        if "folded" in one.attributes:
            found[one.name] = ("folded", one.attributes["look"])
        elif one.kind is DeviceKind.NETWORK_SWITCH:
            found[one.name] = ("switch", one.attributes.get("height", 0))
        elif one.kind is DeviceKind.NVSWITCH:
            found[one.name] = ("nvswitch", one.node, one.name in touching)
        elif one.kind is DeviceKind.GPU:
            found[one.name] = one.name if one.name in shown else ("gpu", one.name in touching)
        elif one.name not in touching and one.kind is DeviceKind.NIC:
            found[one.name] = "a NIC without a link"
        else:
            alone = not many and kinds[one.kind] <= MOST_OTHERS
            found[one.name] = ("one", one.name) if alone else ("many", one.kind)
    return found


def _first_gpus(topology: Topology) -> set[str]:
    """Of many GPUs on a network's switches the first of the first switch."""
    switches = {one.name for one in topology.of_kind(DeviceKind.NETWORK_SWITCH)}
    over = {
        link.source: link.target
        for link in reversed(topology.links)
        if link.target in switches and link.source not in switches
    }
    home = over.get(topology.gpus[0].name)
    on_it = [one.name for one in topology.gpus if home is not None and over.get(one.name) == home]
    return set(on_it[:FIRST_OF_MANY])


def _merged(topology: Topology, colours: Mapping[str, int]) -> Topology:
    members: dict[int, list[Device]] = {}
    for one in topology.devices:
        members.setdefault(colours[one.name], []).append(one)
    homes = {one.name: group[0].name for group in members.values() for one in group}
    rows: Counter[tuple[object, ...]] = Counter()
    devices = []
    for one in topology.devices:
        if homes[one.name] == one.name:
            group = members[colours[one.name]]
            row = (one.kind, one.attributes.get("height"), "folded" in one.attributes)
            names = [each.name for each in group]
            extra = {
                "merged": len(group),
                "members": names,
                "more": rows[row] > 0 and one.kind is not DeviceKind.NVSWITCH,
            }
            rows[row] += 1
            devices.append(replace(one, attributes={**one.attributes, **extra}) if len(group) > 1 else one)
    by_name = {one.name: one for one in devices}
    return replace(topology, devices=tuple(devices), links=_links(topology, by_name, homes))


def height(device: Device) -> tuple[int, int]:
    """Which of two joined devices is the lower one, whose links are counted."""
    level = device.attributes.get("height", 0)
    return _ORDER.index(device.kind), level if isinstance(level, int) else 0


def _links(topology: Topology, devices: Mapping[str, Device], homes: Mapping[str, str]) -> tuple[Link, ...]:
    sums: dict[tuple[str, str, LinkKind, LinkState, bool], _Sum] = {}
    for link in _known(topology.links, homes):
        one, other = homes[link.source], homes[link.target]
        if one == other:
            continue
        lower = min(one, other, key=lambda name: (height(devices[name]), name))
        if lower == one == link.source:
            sums.setdefault((one, other, link.kind, link.state, True), _Sum()).add(link)
        elif lower == other == link.target:
            sums.setdefault((other, one, link.kind, link.state, False), _Sum()).add(link)
    made = []
    for (lower, upper, kind, state, outward), total in sums.items():
        ends = (lower, upper) if outward else (upper, lower)
        attributes = {} if total.is_counted else {"count_known": False}
        rate = total.bytes_per_second
        made.append(Link(*ends, kind, rate, None, total.count, state, attributes=attributes))
    return tuple(made)
