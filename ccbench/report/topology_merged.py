"""The boxes and lines of a topology's picture: whatever looks the same from the first machine is one box.

Machines after the first are one vertex each. Then vertices get colours, and a colour is split while its
vertices differ in the colours they lead to: colour refinement (Weisfeiler and Leman, 1968), which ends with
classes whose vertices all have the same number of links of a kind to each other class. The devices of the
first machine start with a colour of their own: it is shown as it is, the rest by how it lies towards it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology
from ccbench.topology.matrix import is_counted
from ccbench.topology.node_nics import ASSUMED
from ccbench.topology.summary import node_count
from ccbench.units import format_rate, plain, plural

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

    node: the machine, -1 for what machines share.
    depth: steps of a network's switch from what it connects, of a PCIe switch from a processor; else 0.
    more: others like those before it.
    per: what the numbers of a line are of, where the box stands for several devices.
    """

    name: str
    kind: DeviceKind
    node: int
    label: str
    detail: str
    count: int = 1
    depth: int = 0
    whole: bool = False
    more: bool = False
    per: str = ""
    x: float = 0.0
    y: float = 0.0
    width: float = 0.76
    height: float = 0.4
    on_circle: bool = False


@dataclass(frozen=True)
class Line:
    """All links of a kind and state between two boxes, as each device of the lower one has them.

    bytes_per_second: of one direction; None where it is not known of all links.
    back: links from target to source where they differ, (0, None) without any; None where they are alike.
    points: of the way it is drawn, on the edges of its boxes; on a circle from middle to middle.
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


def condensed(topology: Topology) -> tuple[dict[str, Box], list[Line]]:
    """The boxes, not yet placed, by the first device each stands for, and the lines between them."""
    homes, looks = _machines(topology)
    first = next(iter(homes.values()), 0)
    # Each machine after the first is one vertex, for which its first device stands.
    inside: dict[int, list[Device]] = {}
    for one in topology.devices:
        if homes.get(one.name, first) != first:
            inside.setdefault(one.node, []).append(one)
    stands = {one.name: one.name for one in topology.devices}
    stands |= {one.name: members[0].name for members in inside.values() for one in members}
    wholes = {members[0].name: members for members in inside.values()}
    devices = {one.name: one for one in topology.devices if stands[one.name] == one.name}
    links = [
        (stands[link.source], stands[link.target], link)
        for link in topology.links
        if link.source in stands and link.target in stands and stands[link.source] != stands[link.target]
    ]
    near = neighbours(devices, links)
    depths = _depths(devices, wholes.keys(), near)
    start: dict[str, Hashable] = {name: ("machine", looks[of[0].node]) for name, of in wholes.items()}
    groups = _classes(start, devices, links, depths, near)
    lines = _lines(links, groups, depths)
    boxes = _boxes([group for group in groups if group[0].name not in wholes], homes, depths, lines)
    # Of a very large cluster the graph has only the first machines; the absent are counted to the last group.
    absent = max(node_count(topology) - len({one.node for one in topology.devices if one.node >= 0}), 0)
    for group in [group for group in groups if group[0].name in wholes][::-1]:
        members = wholes[group[0].name]
        one, count, absent = members[0], len(group) + absent, 0
        counts = Counter(device.kind for device in members)
        shown = (DeviceKind.GPU, DeviceKind.NIC, DeviceKind.CPU)
        words = ", ".join(plural(counts[kind], WORDS[kind][0]) for kind in shown if counts[kind])
        label = f"… {count} more machines" if count > 1 else f"machine {one.node}"
        alike = "like machine 0" if looks[one.node] == looks[first] else ""
        detail = alike or (f"{words} each" if count > 1 else words)
        # It stands where machines do, in the row of GPUs.
        boxes[one.name] = Box(
            one.name, DeviceKind.GPU, one.node, label, detail, count, whole=True, more=count > 1,
            per="each" if count > 1 else "",
        )  # fmt: skip
    lines = [line for line in lines if line.source != line.target]
    return {name: boxes[name] for name in devices if name in boxes}, lines


def neighbours(names: Iterable[str], pairs: Iterable[tuple[str, str, object]]) -> dict[str, set[str]]:
    """For each name those that a pair joins it to."""
    near: dict[str, set[str]] = {name: set() for name in names}
    for one, other, _ in pairs:
        near[one].add(other)
        near[other].add(one)
    return near


def _machines(topology: Topology) -> tuple[dict[str, int], dict[int, frozenset[Hashable]]]:
    """(machine of each device, look of each machine); what several machines share is of none.

    A look says which devices of a machine are joined, and by what. Devices of two machines are matched by
    their order in each: what is built alike but listed otherwise looks different, which says less than could
    be said but nothing wrong.
    """
    nodes = {one.name: one.node for one in topology.devices}
    shared = {one.name for one in topology.devices if one.node < 0 or one.kind is DeviceKind.NETWORK_SWITCH}
    switches = {one.name for one in topology.of_kind(DeviceKind.NVSWITCH)}
    for link in topology.links:
        if nodes.get(link.source) != nodes.get(link.target):
            shared |= switches & {link.source, link.target}
    homes = {name: node for name, node in nodes.items() if name not in shared}
    sizes: Counter[int] = Counter()
    places: dict[str, tuple[int, DeviceKind]] = {}
    found: dict[int, Counter[Hashable]] = {}
    for one in topology.devices:
        if one.name in homes:
            places[one.name] = sizes[one.node], one.kind
            sizes[one.node] += 1
            found.setdefault(one.node, Counter())[places[one.name]] += 1
    for link in topology.links:
        if link.source in homes and homes[link.source] == homes.get(link.target):
            ends = places[link.source], places[link.target]
            look = (*ends, link.kind, link.count, link.bytes_per_second, link.state)
            found[homes[link.source]][look] += 1
    return homes, {node: frozenset(counted.items()) for node, counted in found.items()}


def _depths(
    devices: Mapping[str, Device], wholes: Collection[str], near: Mapping[str, set[str]]
) -> dict[str, int]:
    """Steps of switches from what they connect: of a network from all else, of PCIe from processors."""
    depths = dict.fromkeys(devices, 0)
    for kind in (DeviceKind.NETWORK_SWITCH, DeviceKind.PCIE_SWITCH):
        left = {name for name, one in devices.items() if one.kind is kind and name not in wholes}
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
    """Classes of devices that look the same; ``machines``: colours of the vertices that are machines."""
    # Few devices of a kind have a colour each at first; switches are told by level and machine.
    colours = dict(machines)
    own = [one for one in devices.values() if one.name not in machines]
    kinds = Counter(one.kind for one in own)
    many = kinds[DeviceKind.GPU] > MOST_SEPARATE
    for one in own:
        colour: tuple[Hashable, ...] = (one.kind, bool(near[one.name]))
        if one.kind in (DeviceKind.NVSWITCH, DeviceKind.NETWORK_SWITCH):
            colour += (one.node, depths[one.name])
        elif not many and kinds[one.kind] <= MOST_SEPARATE and colour != (DeviceKind.NIC, False):
            colour += (one.name,)
        colours[one.name] = colour
    # A colour is split until those of one lead to the same colours by the same links.
    classes = 0
    while len(set(colours.values())) > classes:
        classes = len(set(colours.values()))
        sums: dict[str, Counter[Hashable]] = {name: Counter() for name in devices}
        for source, target, link in links:
            look = (link.kind, link.state, link.count, link.bytes_per_second)
            for here, there, outward in ((source, target, True), (target, source, False)):
                # Switches of the same GPUs are one group, though some have a link more than others.
                if devices[here].kind is DeviceKind.NVSWITCH:
                    sums[here][colours[there]] = 1
                else:
                    sums[here][colours[there], outward, look] += 1
        numbers: dict[Hashable, int] = {}
        colours = {
            name: numbers.setdefault((colours[name], frozenset(sums[name].items())), len(numbers))
            for name in devices
        }
    groups: dict[Hashable, list[Device]] = {}
    for name, device in devices.items():
        groups.setdefault(colours[name], []).append(device)
    return list(groups.values())


def _lines(
    links: Sequence[_Joined], groups: Sequence[Sequence[Device]], depths: Mapping[str, int]
) -> list[Line]:
    """A line for all links of a kind and state of two groups: those of the first device of the lower one.

    Links among the devices of one group are a line from it to itself.
    """
    first = {one.name: group[0].name for group in groups for one in group}
    height = {group[0].name: (_ORDER.index(group[0].kind), depths[group[0].name]) for group in groups}
    sums: dict[tuple[str, str, LinkKind, LinkState], dict[bool, list[Link]]] = {}
    for source, target, link in links:
        lower, upper = sorted((first[source], first[target]), key=lambda name: (height[name], name))
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
        lines.append(Line(source, target, kind, state, *forth, back=different, is_counted=counted))
    return lines


def _way(links: Sequence[Link]) -> Way:
    rates = [link.bytes_per_second for link in links]
    known = [rate for rate in rates if rate is not None]
    # What is not known of one link is not known of their sum.
    return sum(link.count for link in links), sum(known) if links and len(known) == len(rates) else None


def _boxes(
    groups: Sequence[Sequence[Device]],
    homes: Mapping[str, int],
    depths: Mapping[str, int],
    lines: Sequence[Line],
) -> dict[str, Box]:
    """A box for each group of devices of the first machine and of the network."""
    kinds = {one.name: one.kind for group in groups for one in group}
    # Switches of a network are numbered in their level, of which each has a name.
    numbers: dict[str, int] = {}
    levels: Counter[int] = Counter()
    for name, depth in depths.items():
        if kinds.get(name) is DeviceKind.NETWORK_SWITCH:
            numbers[name] = levels[depth]
            levels[depth] += 1
    most = max(levels, default=0)
    boxes: dict[str, Box] = {}
    rows = set()
    for group in groups:
        one, depth = group[0], depths[group[0].name]
        words = WORDS[one.kind]
        if one.name in numbers and 1 < most <= len(_LEVELS):
            words = _LEVELS[depth - 1]
        more = len(group) > 1 and (one.kind, depth) in rows and one.kind is not DeviceKind.NVSWITCH
        rows.add((one.kind, depth))
        label, detail = _words(group, words, numbers.get(one.name) if most > 1 else None, lines)
        if len(group) > 1:
            label = f"… {len(group)} more {words[1]}" if more else f"{len(group)} {words[1]}"
        if one.kind is DeviceKind.NVSWITCH:
            # What each GPU has to them, where all GPUs have the same.
            up = [line for line in lines if line.target == one.name and line.state is LinkState.UP]
            of_gpus = [line for line in up if kinds.get(line.source) is DeviceKind.GPU]
            ways = {(line.count, line.bytes_per_second) for line in of_gpus}
            if len(ways) == 1:
                ((count, rate),) = ways
                counted = all(line.is_counted for line in of_gpus)
                detail = f"{plural(count, 'link')} per GPU" if counted else "links per GPU not stated"
                detail += f" · {format_rate(rate)} each way" if rate else ""
        per = "" if len(group) == 1 else "per GPU" if one.kind is DeviceKind.GPU else "each"
        node = homes.get(one.name, -1)
        boxes[one.name] = Box(one.name, one.kind, node, label, detail, len(group), depth, more=more, per=per)
    return boxes


def _words(
    group: Sequence[Device], words: tuple[str, str], place: int | None, lines: Sequence[Line]
) -> tuple[str, str]:
    """The two lines of a box; ``place`` is that of a switch in its level of the network.

    Of a group the second names first and last, ``gpu0 ... gpu71``, or says what is more worth knowing.
    """
    one, kind = group[0], group[0].kind
    tails = [device.name.rpartition(".")[2] for device in group]
    stem = tails[0].rstrip("0123456789")
    numbers = [tail[len(stem) :] for tail in tails]
    label = f"{words[0]} {numbers[0][-6:]}" if numbers[0] else plain(tails[0], 10)
    assumed = kind is DeviceKind.NIC and one.attributes.get("place") == ASSUMED
    own = [line for line in lines if one.name in (line.source, line.target)]
    if len(group) == 1 and place is not None:
        # The source's own name where its number is another one: a second number would only confuse.
        return f"{words[0]} {place}", "" if numbers[0] == str(place) else plain(tails[0], 13)
    if assumed:
        return label, ASSUMED
    if len(group) == 1:
        name = one.attributes.get("name") or "" if kind is DeviceKind.NIC else ""
        if kind is DeviceKind.GPU and one.bus_id:
            name = one.bus_id.removeprefix("0000:").removesuffix(".0")
        return label, plain(name, 13)
    if kind is DeviceKind.NIC and not own:
        return label, "the source states no link"
    if kind is DeviceKind.NETWORK_SWITCH and all(tail.startswith(stem) for tail in tails):
        return label, ", ".join(numbers) if len(numbers) <= 4 else f"{numbers[0]} ... {numbers[-1]}"
    names = f"{plain(tails[0], 12)} ... {plain(tails[-1], 12)}"
    among = [
        f"{plural(line.count, 'link')} each to others of them" for line in own if line.source == line.target
    ]
    return label, ", ".join([names, *among])
