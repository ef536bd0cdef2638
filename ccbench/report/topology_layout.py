"""Where each device of a topology stands in its picture, and which lines join them; in inches."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.report.text import plain
from ccbench.topology.graph import Device, DeviceKind, LinkKind, LinkState, Topology
from ccbench.topology.summary import node_count

MOST_MACHINES = 2
MOST_IN_A_ROW = 16
MOST_LABELS = 20
SLOT, ROW, GAP = 0.86, 1.05, 0.14
BOX_WIDTH, BOX_HEIGHT = 0.72, 0.36
FRAME_PAD = 0.3
MACHINE_GAP = 0.55

ROWS = (DeviceKind.NIC, DeviceKind.CPU, DeviceKind.PCIE_SWITCH, DeviceKind.GPU, DeviceKind.NVSWITCH)
"""From top to bottom inside a machine."""

_PLACING = (DeviceKind.GPU, DeviceKind.PCIE_SWITCH, DeviceKind.CPU, DeviceKind.NIC, DeviceKind.NVSWITCH)
"""In which order rows find their places: each stands over what it already leads to."""

_MESHED = frozenset({LinkKind.NVLINK, LinkKind.XGMI, LinkKind.HCCS})
_WORDS = {
    DeviceKind.GPU: "GPU",
    DeviceKind.CPU: "CPU",
    DeviceKind.NIC: "NIC",
    DeviceKind.PCIE_SWITCH: "PCIe",
    DeviceKind.NVSWITCH: "NVSw",
    DeviceKind.NETWORK_SWITCH: "switch",
}


@dataclass(frozen=True)
class Placed:
    """A box; ``x`` and ``y`` are its middle."""

    kind: DeviceKind
    x: float
    y: float
    label: str
    detail: str = ""
    on_circle: bool = False
    width: float = BOX_WIDTH
    height: float = BOX_HEIGHT


@dataclass(frozen=True)
class Drawn:
    """One line: all links of a kind and state between two devices; the rate is of one direction.

    control: the point a curved line bends towards; None for a straight one.
    """

    source: str
    target: str
    kind: LinkKind
    state: LinkState
    count: int
    bytes_per_second: float | None
    label: str = ""
    label_at: float = 0.5
    control: tuple[float, float] | None = None

    def begin(self, layout: Layout) -> tuple[float, float]:
        """Where the line leaves its source's middle."""
        one = layout.devices[self.source]
        return one.x, one.y

    def end(self, layout: Layout) -> tuple[float, float]:
        """Where it meets its target's middle."""
        one = layout.devices[self.target]
        return one.x, one.y


@dataclass
class Layout:
    """The finished plan; frames are (left, bottom, width, height, label), remarks (x, y, text)."""

    width: float = 0.0
    height: float = 0.0
    devices: dict[str, Placed] = field(default_factory=dict)
    links: list[Drawn] = field(default_factory=list)
    frames: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    remarks: list[tuple[float, float, str]] = field(default_factory=list)


@dataclass(frozen=True)
class _Graph:
    """The topology as the layout needs it."""

    devices: Mapping[str, Device]
    neighbours: Mapping[str, Mapping[str, LinkKind]]
    shared: frozenset[str]


def laid_out(topology: Topology) -> Layout:
    """The plan of ``topology``: of many machines the first two, of long rows the first sixteen devices."""
    graph = _graph(topology)
    machines = sorted({device.node for device in topology.devices if device.name not in graph.shared})
    layout = Layout()
    left, plans = 0.0, []
    for node in machines[:MOST_MACHINES]:
        inside = [one for one in topology.devices if one.node == node and one.name not in graph.shared]
        plans.append((node, _machine(graph, inside)))
    tallest = max((plan.height for _, plan in plans), default=0.0)
    below = _shared_rows(graph, topology, DeviceKind.NVSWITCH)
    above = _shared_rows(graph, topology, DeviceKind.NETWORK_SWITCH)
    bottom = ROW * len(below)
    for node, plan in plans:
        _take(layout, plan, left, bottom + tallest - plan.height)
        if len(machines) > 1:
            layout.frames.append(
                (left, bottom + tallest - plan.height, plan.width, plan.height, f"machine {node}")
            )
        left += plan.width + MACHINE_GAP
    layout.width = max(left - MACHINE_GAP, 0.0)
    if (nodes := max(node_count(topology), len(machines))) > MOST_MACHINES:
        more = f"… and {nodes - MOST_MACHINES}\nmore\nmachines"
        layout.remarks.append((layout.width + 0.65, bottom + tallest / 2, more))
        layout.width += 1.3
    layout.height = bottom + tallest
    _shared(layout, graph, above, below)
    layout.links = _lines(topology, layout)
    return layout


def _graph(topology: Topology) -> _Graph:
    devices = {device.name: device for device in topology.devices}
    neighbours: dict[str, dict[str, LinkKind]] = {name: {} for name in devices}
    for link in topology.links:
        if link.source in devices and link.target in devices:
            neighbours[link.source][link.target] = link.kind
            neighbours[link.target].setdefault(link.source, link.kind)
    shared = {
        name
        for name, device in devices.items()
        if device.kind is DeviceKind.NETWORK_SWITCH
        or device.node < 0
        or (device.kind is DeviceKind.NVSWITCH and len({devices[one].node for one in neighbours[name]}) > 1)
    }
    return _Graph(devices, neighbours, frozenset(shared))


def _take(layout: Layout, plan: Layout, left: float, bottom: float) -> None:
    for name, placed in plan.devices.items():
        layout.devices[name] = replace(placed, x=placed.x + left, y=placed.y + bottom)
    layout.remarks += [(x + left, y + bottom, text) for x, y, text in plan.remarks]


def _machine(graph: _Graph, inside: Sequence[Device]) -> Layout:
    """One machine by itself, its lower left corner at the origin."""
    rows = _rows(graph, inside)
    gpus = next((row[:MOST_IN_A_ROW] for row in rows if row[0].kind is DeviceKind.GPU), [])
    circle = _on_circle(graph, gpus)
    longest = max((min(len(row), MOST_IN_A_ROW) for row in rows), default=1)
    places = _anchors(gpus, circle)
    heights = [max(2.5, 0.5 * len(gpus)) if circle and row[0].kind is DeviceKind.GPU else ROW for row in rows]
    levels = [sum(heights[place:]) - height / 2 for place, height in enumerate(heights)]
    shown = {place: _chosen(graph, row) for place, row in enumerate(rows)}
    for place in sorted(shown, key=lambda place: _PLACING.index(rows[place][0].kind) * 100 - place):
        if rows[place][0].kind is not DeviceKind.GPU:
            wanted = [_wanted(graph, one, places) for one in shown[place]]
            places.update(zip((one.name for one in shown[place]), _apart(wanted), strict=True))
    reach = max((abs(x) for x in places.values()), default=0.0)
    plan = Layout(2 * max(reach + SLOT / 2, SLOT * max(longest, 2) / 2) + 2 * FRAME_PAD, sum(heights))
    middle = plan.width / 2
    for place, row in enumerate(rows):
        if circle and row[0].kind is DeviceKind.GPU:
            _place_circle(plan, gpus, middle, levels[place], heights[place])
        else:
            for one in shown[place]:
                plan.devices[one.name] = _box(one, middle + places[one.name], levels[place])
        if len(row) > len(shown[place]):
            plan.remarks.append(
                (plan.width + 0.45, levels[place], f"… and {len(row) - len(shown[place])} more")
            )
    plan.width += 1.3 if plan.remarks else 0.0
    return plan


def _rows(graph: _Graph, inside: Sequence[Device]) -> list[list[Device]]:
    """Devices by row from top to bottom; switches below switches have rows of their own."""
    depth = {one.name: 0 for one in inside if one.kind is DeviceKind.CPU}
    waiting = list(depth)
    switches = {one.name for one in inside if one.kind is DeviceKind.PCIE_SWITCH}
    for name in waiting:
        for other in graph.neighbours[name]:
            if other in switches and other not in depth:
                depth[other] = depth[name] + 1
                waiting.append(other)
    rows: dict[tuple[int, int], list[Device]] = {}
    for one in inside:
        if one.kind in ROWS:
            level = depth.get(one.name, 1) if one.kind is DeviceKind.PCIE_SWITCH else 0
            rows.setdefault((ROWS.index(one.kind), level), []).append(one)
    return [rows[key] for key in sorted(rows)]


def _chosen(graph: _Graph, row: Sequence[Device]) -> list[Device]:
    """At most a row's worth; of PCIe switches those that GPUs hang on come first."""

    def without_gpu(device: Device) -> bool:
        return not any(graph.devices[one].kind is DeviceKind.GPU for one in graph.neighbours[device.name])

    if row[0].kind is not DeviceKind.PCIE_SWITCH:
        return list(row[:MOST_IN_A_ROW])
    kept = {one.name for one in sorted(row, key=without_gpu)[:MOST_IN_A_ROW]}
    return [one for one in row if one.name in kept]


def _on_circle(graph: _Graph, gpus: Sequence[Device]) -> bool:
    names = {gpu.name for gpu in gpus}
    return len(gpus) > 2 and any(
        kind in _MESHED
        for gpu in gpus
        for other, kind in graph.neighbours[gpu.name].items()
        if other in names
    )


def _anchors(gpus: Sequence[Device], circle: bool) -> dict[str, float]:
    """Where what a GPU hangs on should stand, the machine's middle being 0.

    On a circle the lower GPUs' switches stand outside, so that their lines go round it.
    """
    half = (len(gpus) + 1) // 2
    anchors = {}
    for index, gpu in enumerate(gpus):
        if not circle:
            anchors[gpu.name] = (index - (len(gpus) - 1) / 2) * SLOT
        elif index < half:
            anchors[gpu.name] = -(index + 0.5) * 1.25 * SLOT
        else:
            anchors[gpu.name] = (index - half + 0.5) * 1.25 * SLOT
    return anchors


def _place_circle(plan: Layout, gpus: Sequence[Device], x: float, y: float, height: float) -> None:
    half = (len(gpus) + 1) // 2
    across, up = min(2.1, plan.width / 2 - BOX_WIDTH), height / 2 - BOX_HEIGHT
    for index, gpu in enumerate(gpus):
        left = index < half
        number, count = (index, half) if left else (index - half, len(gpus) - half)
        angle = math.pi * (number + 0.5) / count
        side = -1 if left else 1
        place = (x + side * across * math.sin(angle), y + up * math.cos(angle))
        plan.devices[gpu.name] = _box(gpu, *place, on_circle=True)


def _wanted(graph: _Graph, device: Device, places: Mapping[str, float]) -> float | None:
    """Above or below the middle of what it leads to and stands already; None where it leads to nothing."""
    reached = {device.name}
    for _ in range(3):
        reached |= {
            other
            for one in reached
            for other in graph.neighbours[one]
            if graph.devices[other].kind is not DeviceKind.CPU or device.kind is DeviceKind.NIC
        }
        near = [places[one] for one in reached if one in places and one != device.name]
        if near:
            return sum(near) / len(near)
    return None


def _apart(wanted: Sequence[float | None]) -> list[float]:
    """The nearest places with room between boxes, in the order that is wanted; None goes to the right."""
    stated = sorted((x, index) for index, x in enumerate(wanted) if x is not None)
    order, loose = [index for _, index in stated], [x for x, _ in stated]
    found = list(loose)
    for position in range(1, len(found)):
        found[position] = max(found[position], found[position - 1] + SLOT)
    # Pushing only to the right leans the row; move clusters that were pushed back by half.
    start = 0
    for position in range(1, len(found) + 1):
        if position == len(found) or found[position] - found[position - 1] > SLOT + 1e-9:
            cluster = range(start, position)
            shift = sum(found[one] - loose[one] for one in cluster) / len(cluster)
            room = found[start] - SLOT - found[start - 1] if start else math.inf
            for one in cluster:
                found[one] -= min(shift, room)
            start = position
    places = [0.0] * len(wanted)
    for position, index in enumerate(order):
        places[index] = found[position]
    right = found[-1] if found else -SLOT * (len(wanted) + 1) / 2
    for index, x in enumerate(wanted):
        if x is None:
            right += SLOT
            places[index] = right
    return places


def _box(device: Device, x: float, y: float, on_circle: bool = False) -> Placed:
    tail = device.name.rpartition(".")[2]
    number = re.search(r"[0-9]+$", tail)
    label = f"{_WORDS[device.kind]} {number[0]}" if number else plain(tail, 10)
    detail = ""
    if device.kind is DeviceKind.NIC:
        detail = plain(device.attributes.get("name") or "", 13)
    elif device.kind is DeviceKind.GPU and device.bus_id:
        detail = plain(device.bus_id.removeprefix("0000:").removesuffix(".0"), 13)
    return Placed(device.kind, x, y, label, detail, on_circle)


def _shared_rows(graph: _Graph, topology: Topology, kind: DeviceKind) -> list[list[Device]]:
    """Devices outside the machines, by how far they are from one: leaves first, then spines."""
    inside = {one.name for one in topology.devices if one.name not in graph.shared}
    left = {name for name in graph.shared if graph.devices[name].kind is kind}
    reached, rows = inside, []
    while left:
        row = {name for name in left if reached & graph.neighbours[name].keys()}
        row = row or set(left)
        rows.append([one for one in topology.devices if one.name in row])
        left -= row
        reached = row
    return rows


def _shared(
    layout: Layout, graph: _Graph, above: Iterable[list[Device]], below: Iterable[list[Device]]
) -> None:
    """Rows of switches over and under the machines; only those that what is drawn leads to."""
    bottom = layout.height
    y = bottom + ROW / 2
    for row in above:
        if _place_row(layout, graph, row, y):
            y += ROW
    layout.height = max(layout.height, y - ROW / 2)
    y = min((one.y for one in layout.devices.values()), default=0.0) - ROW
    for row in below:
        _place_row(layout, graph, row, y)
        y -= ROW


def _place_row(layout: Layout, graph: _Graph, row: list[Device], y: float) -> bool:
    middle = layout.width / 2
    places = {name: placed.x - middle for name, placed in layout.devices.items()}
    near = [one for one in row if graph.neighbours[one.name].keys() & layout.devices.keys()]
    most = max(4, min(MOST_IN_A_ROW, int(layout.width / SLOT)))
    shown = near[:most]
    wanted = [_wanted(graph, one, places) for one in shown]
    for one, x in zip(shown, _apart(wanted), strict=True):
        layout.devices[one.name] = _box(one, middle + x, y)
    if shown and len(row) > len(shown):
        right = max(layout.devices[one.name].x for one in shown)
        layout.remarks.append((right + 0.95, y, f"… and {len(row) - len(shown)} more"))
        layout.width = max(layout.width, right + 1.6)
    return bool(shown)


def _lines(topology: Topology, layout: Layout) -> list[Drawn]:
    """One line for all links of a kind and state between two boxes."""
    found: dict[tuple[str, str, LinkKind, LinkState], list[tuple[int, float | None]]] = {}
    seen: dict[tuple[str, str, LinkKind, LinkState], str] = {}
    for link in topology.links:
        if (
            link.source not in layout.devices
            or link.target not in layout.devices
            or link.source == link.target
        ):
            continue
        pair = (link.source, link.target) if link.source <= link.target else (link.target, link.source)
        key = (*pair, link.kind, link.state)
        # Both directions are given as a rule; the one that comes first stands for the pair.
        if seen.setdefault(key, link.source) == link.source:
            found.setdefault(key, []).append((link.count, link.bytes_per_second))
    lines = []
    for (one, other, kind, state), links in found.items():
        rates = [rate for _, rate in links if rate is not None]
        count = sum(count for count, _ in links)
        lines.append(Drawn(one, other, kind, state, count, sum(rates) if rates else None))
    lines.sort(key=lambda line: line.bytes_per_second or 0.0)
    return _labelled(lines, layout)


def _labelled(lines: Sequence[Drawn], layout: Layout) -> list[Drawn]:
    """Numbers of parallel links where they differ and where there is room; arcs over boxes in between."""
    counts: dict[LinkKind, list[int]] = {}
    for line in lines:
        counts.setdefault(line.kind, []).append(line.count)
    labelled = []
    for line in lines:
        worth = line.count > 1 and len(counts[line.kind]) <= MOST_LABELS
        label = f"x{line.count}" if worth or line.state is LinkState.DOWN else ""
        place = 0.33 if line.kind in _MESHED else 0.5
        labelled.append(replace(line, label=label, label_at=place, control=_control(line, layout)))
    return labelled


def _control(line: Drawn, layout: Layout) -> tuple[float, float] | None:
    """Where a line bends so that it passes the boxes between its ends."""
    one, other = layout.devices[line.source], layout.devices[line.target]
    upper, lower = (one, other) if one.y >= other.y else (other, one)
    if line.kind is LinkKind.PCIE and lower.kind is DeviceKind.GPU and lower.on_circle:
        return upper.x, lower.y  # down outside the circle, then in from the side
    if abs(one.y - other.y) > 0.01 or abs(one.x - other.x) < 1.5 * SLOT:
        return None
    between = (min(one.x, other.x), max(one.x, other.x))
    for box in layout.devices.values():
        if abs(box.y - one.y) < BOX_HEIGHT and between[0] < box.x < between[1]:
            return (one.x + other.x) / 2, one.y + 0.55 + 0.12 * (between[1] - between[0])
    return None
