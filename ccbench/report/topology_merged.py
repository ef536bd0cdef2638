"""The boxes and lines of a topology's picture: whatever looks the same from the first machine is one box.

Machines after the first are one vertex each, and so are NVSwitches of the same GPUs. Then vertices get
colours, and a colour is split while its vertices differ in the colours they lead to: colour refinement
(Weisfeiler and Leman, 1968), which ends with classes whose vertices all have the same number of links of a
kind to each other class. The devices of the first machine start with a colour of their own: it is shown as it
is, the rest by how it lies towards it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.matrix import is_counted
from ccbench.topology.node_nics import ASSUMED
from ccbench.topology.summary import node_count
from ccbench.units import plain, plural

MOST_SEPARATE = 16
"""So many GPUs, processors, NICs or PCIe switches of a machine still have a box each."""

WORDS = {
    DeviceKind.GPU: ("GPU", "GPUs"),
    DeviceKind.NIC: ("NIC", "NICs"),
    DeviceKind.PCIE_SWITCH: ("PCIe", "PCIe switches"),
    DeviceKind.CPU: ("CPU", "CPUs"),
    DeviceKind.NVSWITCH: ("NVSw", "NVSwitches"),
    DeviceKind.NETWORK_SWITCH: ("switch", "switches"),
}
"""One and many; in the order of what hangs on what: links are counted at the lower end."""

_ORDER = tuple(WORDS)
_LEVELS = (("leaf", "leaves"), ("spine", "spines"), ("core", "cores"))

Way = tuple[int, float | None]
"""Links in one direction: how many, and their bytes per second together."""

Point = tuple[float, float]
_Joined = tuple[str, str, Link]
"""A link and the vertices it joins, which stand for its devices."""


@dataclass(frozen=True)
class Box:
    """A device, several that look alike, or a whole machine; ``x`` and ``y`` are its middle, in inches.

    depth: steps of a network's switch from what it connects, of a PCIe switch from a processor; else 0.
    shared: of no machine, or of several. more: others like those before it. each: its lines are those of one
        of several.
    """

    name: str
    kind: DeviceKind
    label: str
    detail: str
    count: int = 1
    depth: int = 0
    shared: bool = False
    whole: bool = False
    more: bool = False
    each: bool = False
    x: float = 0.0
    y: float = 0.0
    width: float = 0.76


@dataclass(frozen=True)
class MergedLink:
    """All links of a kind and state between two boxes, as each device of the lower one has them.

    bytes_per_second: of one direction; None where it is not known of all links.
    back: links from target to source where they differ, (0, None) without any; None where they are alike.
    """

    source: str
    target: str
    kind: LinkKind
    state: LinkState
    count: int
    bytes_per_second: float | None
    back: Way | None = None
    is_counted: bool = True
    label: str = ""
    label_at: Point = (0.0, 0.0)
    points: tuple[Point, ...] = ()


def condensed(topology: Topology) -> tuple[dict[str, Box], list[MergedLink]]:
    """The boxes, not yet placed, by the first device each stands for, and the lines between them."""
    homes, looks = _machines(topology)
    first = next(iter(homes.values()), 0)
    near = neighbours(
        (device.name for device in topology.devices),
        ((link.source, link.target) for link in topology.links),
    )
    switches = {switch.name for switch in topology.of_kind(DeviceKind.NVSWITCH)}
    stands: dict[Hashable, str] = {}
    vertices: dict[str, list[Device]] = {}
    of: dict[str, str] = {}
    for device in topology.devices:
        home = homes.get(device.name, first)
        key: Hashable = home if home != first else device.name
        if home == first and device.name in switches:
            key = device.node, frozenset(near[device.name] - switches)
        of[device.name] = stands.setdefault(key, device.name)
        vertices.setdefault(of[device.name], []).append(device)
    wholes = {name: looks[homes[name]] for name in vertices if homes.get(name, first) != first}
    devices = {name: members[0] for name, members in vertices.items()}
    ends = ((of.get(link.source, ""), of.get(link.target, ""), link) for link in topology.links)
    links = [
        (source, target, link)
        for source, target, link in ends
        if source and target and source != target
    ]
    joined = neighbours(devices, (pair[:2] for pair in links))
    depths = _depths(devices, wholes, joined)
    groups = _classes(wholes, devices, links, depths, joined)
    lines = _lines(links, groups, depths)
    boxes: dict[str, Box] = {}
    machines = [group for group in groups if group[0].name in wholes]
    levels = topology.of_kind(DeviceKind.NETWORK_SWITCH)
    top = max((depths[level.name] for level in levels if level.name in devices), default=0)
    rows = set()
    for group in (group for group in groups if group[0].name not in wholes):
        name, kind, depth = group[0].name, group[0].kind, depths[group[0].name]
        members = [device for vertex in group for device in vertices[vertex.name]]
        more = len(members) > 1 and (kind, depth) in rows and kind is not DeviceKind.NVSWITCH
        label, detail = _words(members, depth if top > 1 else 0, more, lines)
        shared, each = name not in homes, len(group) > 1
        boxes[name] = Box(
            name, kind, label, detail, len(members), depth, shared, more=more, each=each
        )
        rows.add((kind, depth))
    # Of a very large cluster the graph has only the first machines; the absent are counted to the last group.
    drawn = {device.node for device in topology.devices if device.node >= 0}
    absent = max(node_count(topology) - len(drawn), 0)
    for group in machines[::-1]:
        name, count, absent = group[0].name, len(group) + absent, 0
        kinds, more = Counter(device.kind for device in vertices[name]), count > 1
        shown = (DeviceKind.GPU, DeviceKind.NIC, DeviceKind.CPU)
        words = ", ".join(plural(kinds[kind], WORDS[kind][0]) for kind in shown if kinds[kind])
        label = f"… {count} more machines" if more else f"machine {group[0].node}"
        detail = "like machine 0" if wholes[name] == looks[first] else words + " each" * more
        # It stands where machines do, in the row of GPUs.
        boxes[name] = Box(
            name, DeviceKind.GPU, label, detail, count, whole=True, more=more, each=more
        )
    boxes = {name: boxes[name] for name in devices if name in boxes}
    return boxes, [line for line in lines if line.source != line.target]


def neighbours(names: Iterable[str], pairs: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """For each name those that a pair joins it to."""
    near: dict[str, set[str]] = {name: set() for name in names}
    for one, other in pairs:
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    return near


def _machines(topology: Topology) -> tuple[dict[str, int], dict[int, Hashable]]:
    """(machine of each device, look of each machine); what several machines share is of none.

    A look says which devices of a machine are joined, and by what. Devices of two machines are matched by
    their names: what is built alike but named otherwise looks different, which says less than could be said
    but nothing wrong.
    """
    nodes = {device.name: device.node for device in topology.devices}
    shared = {
        device.name
        for device in topology.devices
        if device.node < 0 or device.kind is DeviceKind.NETWORK_SWITCH
    }
    switches = {one.name for one in topology.of_kind(DeviceKind.NVSWITCH)}
    for link in topology.links:
        if nodes.get(link.source) != nodes.get(link.target):
            shared |= switches & {link.source, link.target}
    homes = {name: node for name, node in nodes.items() if name not in shared}
    found: dict[int, Counter[Hashable]] = {node: Counter() for node in homes.values()}
    own = {name: name.removeprefix(f"n{node}.") for name, node in homes.items()}
    for device in topology.devices:
        if device.name in homes:
            found[device.node][own[device.name], device.kind] += 1
    for link in topology.links:
        if link.source in homes and homes[link.source] == homes.get(link.target):
            ends = own[link.source], own[link.target]
            look = (*ends, link.kind, link.count, link.bytes_per_second, link.state)
            found[homes[link.source]][look] += 1
    return homes, {node: frozenset(counted.items()) for node, counted in found.items()}


def _depths(
    devices: Mapping[str, Device], wholes: Collection[str], near: Mapping[str, set[str]]
) -> dict[str, int]:
    """Steps of switches from what they connect: of a network from all else, of PCIe from processors."""
    depths = dict.fromkeys(devices, 0)
    for kind in (DeviceKind.NETWORK_SWITCH, DeviceKind.PCIE_SWITCH):
        left = {
            name for name, one in devices.items() if one.kind is kind and name not in wholes
        }
        starts = set(DeviceKind) if kind is DeviceKind.NETWORK_SWITCH else {DeviceKind.CPU}
        row = {name for name, one in devices.items() if name not in left and one.kind in starts}
        for depth in range(1, len(left) + 1):
            # Those that nothing leads to are the last.
            row = {name for name in left if near[name] & row} or left
            depths |= dict.fromkeys(row, depth)
            left = left - row
    return depths


def _classes(
    machines: Mapping[str, Hashable],
    devices: Mapping[str, Device],
    links: Sequence[_Joined],
    depths: Mapping[str, int],
    near: Mapping[str, set[str]],
) -> list[list[Device]]:
    """Classes of vertices that look the same; ``machines``: colours of those that are machines."""
    # Few devices of a kind have a colour each at first; switches are told by level and machine.
    colours: dict[str, Hashable] = {name: ("machine", look) for name, look in machines.items()}
    own = [device for device in devices.values() if device.name not in machines]
    kinds = Counter(one.kind for one in own)
    many = kinds[DeviceKind.GPU] > MOST_SEPARATE
    for one in own:
        colour: tuple[Hashable, ...] = (one.kind, bool(near[one.name]))
        if one.kind in (DeviceKind.NVSWITCH, DeviceKind.NETWORK_SWITCH):
            colour += (one.node, depths[one.name])
        elif (
            not many and kinds[one.kind] <= MOST_SEPARATE and colour != (DeviceKind.NIC, False)
        ):
            colour += (one.name,)
        colours[one.name] = colour
    # A colour is split until those of one lead to the same colours by the same links.
    classes = 0
    while len(set(colours.values())) > classes:
        classes = len(set(colours.values()))
        sums: dict[str, Counter[Hashable]] = {name: Counter() for name in devices}
        for source, target, link in links:
            look = (link.kind, link.state, link.count, link.bytes_per_second)
            sums[source][colours[target], True, look] += 1
            sums[target][colours[source], False, look] += 1
        numbers: dict[Hashable, int] = {}
        colours = {
            name: numbers.setdefault(
                (colours[name], frozenset(sums[name].items())), len(numbers)
            )
            for name in devices
        }
    groups: dict[Hashable, list[Device]] = {}
    for name, device in devices.items():
        groups.setdefault(colours[name], []).append(device)
    return list(groups.values())


def _lines(
    links: Sequence[_Joined], groups: Sequence[Sequence[Device]], depths: Mapping[str, int]
) -> list[MergedLink]:
    """A line for all links of a kind and state of two groups: those of the first device of the lower one.

    Links among the devices of one group are a line from it to itself.
    """
    first = {one.name: group[0].name for group in groups for one in group}
    height = {
        group[0].name: (_ORDER.index(group[0].kind), depths[group[0].name]) for group in groups
    }
    sums: dict[tuple[str, str, LinkKind, LinkState], dict[bool, list[Link]]] = {}
    for source, target, link in links:
        lower, upper = sorted(
            (first[source], first[target]), key=lambda name: (height[name], name)
        )
        if lower in (source, target):
            key = (lower, upper, link.kind, link.state)
            sums.setdefault(key, {True: [], False: []})[source == lower].append(link)
    lines = []
    for (lower, upper, kind, state), ways in sums.items():
        forth, back = _way(ways[True]), _way(ways[False])
        source, target = lower, upper
        if (back[1] or 0.0, back[0]) > (forth[1] or 0.0, forth[0]):
            # Drawn as the direction that carries more.
            source, target, forth, back = upper, lower, back, forth
        counted = all(is_counted(link) for link in ways[True] + ways[False])
        different = None if forth == back else back
        lines.append(
            MergedLink(source, target, kind, state, *forth, back=different, is_counted=counted)
        )
    return lines


def _way(links: Sequence[Link]) -> Way:
    rates = [link.bytes_per_second for link in links]
    known = [rate for rate in rates if rate is not None]
    # What is not known of one link is not known of their sum.
    return sum(link.count for link in links), sum(known) if links and len(known) == len(
        rates
    ) else None


def _words(
    members: Sequence[Device], level: int, more: bool, lines: Sequence[MergedLink]
) -> tuple[str, str]:
    """The two lines of a box; ``level`` is that of a switch in a network of several.

    Of a group the second names first and last, ``gpu0 ... gpu71``, or says what is more worth knowing.
    """
    one, last = members[0], members[-1]
    is_leveled = one.kind is DeviceKind.NETWORK_SWITCH and 0 < level <= len(_LEVELS)
    word, words = _LEVELS[level - 1] if is_leveled else WORDS[one.kind]
    tail = one.name.rpartition(".")[2]
    if len(members) == 1:
        number = tail[len(tail.rstrip("0123456789")) :]
        detail = (one.attributes.get("name") or "") if one.kind is DeviceKind.NIC else ""
        if one.kind is DeviceKind.GPU and one.bus_id:
            detail = one.bus_id.removeprefix("0000:").removesuffix(".0")
        if one.attributes.get("place") == ASSUMED:
            detail = ASSUMED
        return f"{word} {number[-6:]}" if number else plain(tail, 10), plain(detail, 13)
    own = [line for line in lines if one.name in (line.source, line.target)]
    if one.kind is DeviceKind.NIC and not own:
        detail = "the source states no link"
    else:
        detail = f"{plain(tail, 12)} ... {plain(last.name.rpartition('.')[2], 12)}"
    among = [
        f", {plural(line.count, 'link')} each to others of them"
        for line in own
        if line.source == line.target
    ]
    return f"… {len(members)} more {words}" if more else f"{len(members)} {words}", "".join(
        [detail, *among]
    )
