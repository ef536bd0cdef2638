"""Where each device of a topology stands in its picture, and which lines join them; in inches."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.report.text import plain
from ccbench.report.topology_boxes import condensed, merged
from ccbench.report.topology_plan import BOX_HEIGHT, BOX_WIDTH, Drawn, Layout, Placed
from ccbench.report.topology_routes import Router
from ccbench.topology.graph import Device, DeviceKind, LinkKind, LinkState, Topology
from ccbench.topology.summary import node_count
from ccbench.units import format_rate

MOST_MACHINES = 2
MOST_IN_A_ROW = 16
MOST_LABELS = 20
SLOT, ROW, GAP = 0.86, 1.05, 0.14
WIDE_BOX = 3.4
FRAME_PAD = 0.3
MACHINE_GAP = 0.55

ROWS = (DeviceKind.NIC, DeviceKind.CPU, DeviceKind.PCIE_SWITCH, DeviceKind.GPU, DeviceKind.NVSWITCH)
"""From top to bottom inside a machine."""

_PLACING = (DeviceKind.GPU, DeviceKind.PCIE_SWITCH, DeviceKind.CPU, DeviceKind.NIC, DeviceKind.NVSWITCH)
"""In which order rows find their places: each stands over what it already leads to."""

_LEVELS = ("leaf", "spine", "core")
"""Switches of a network by how far they are from the machines."""

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
class _Graph:
    """The topology as the layout needs it."""

    devices: Mapping[str, Device]
    neighbours: Mapping[str, Mapping[str, LinkKind]]
    shared: frozenset[str]


def laid_out(topology: Topology) -> Layout:
    """The plan of ``topology``: of many machines the first two, of long rows the first sixteen devices."""
    topology = condensed(topology)
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
    _widen(layout, graph)
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
    if any(merged(one) > 1 or one.kind is DeviceKind.NVSWITCH for one in inside):
        longest = max(longest, 6)
    longest += sum(5 for gpu in gpus if merged(gpu) > 1)
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
    widths = [WIDE_BOX + SLOT - BOX_WIDTH if merged(gpu) > 1 else SLOT for gpu in gpus]
    for index, gpu in enumerate(gpus):
        if not circle:
            anchors[gpu.name] = sum(widths[:index]) + (widths[index] - sum(widths)) / 2
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


def _box(device: Device, x: float, y: float, on_circle: bool = False, level: str = "") -> Placed:
    tail = device.name.rpartition(".")[2]
    number = re.search(r"[0-9]+$", tail)
    label = f"{_WORDS[device.kind]} {number[0]}" if number else plain(tail, 10)
    detail = str(device.attributes.get("detail", ""))
    if device.kind is DeviceKind.NIC:
        detail = plain(device.attributes.get("name") or "", 13)
    elif device.kind is DeviceKind.GPU and device.bus_id and not detail:
        detail = plain(device.bus_id.removeprefix("0000:").removesuffix(".0"), 13)
    elif level:
        # The source's own name where its number is another one: a second number would only confuse.
        same = number is not None and level.split()[-1] == number[0]
        label, detail = level, detail or ("" if same else plain(tail, 13))
    if (count := merged(device)) > 1:
        words = {DeviceKind.GPU: "GPUs", DeviceKind.NVSWITCH: "NVSwitches"}
        level_words = f"{level.split()[0]}s" if level else "switches"
        label = f"{count} {words.get(device.kind, level_words)}"
    elif device.attributes.get("stands_for"):
        label = "all NVSwitches"
    many = device.kind is DeviceKind.GPU and count > 1
    width = WIDE_BOX if many else BOX_WIDTH
    return Placed(device.kind, x, y, label, detail, on_circle, width, stands_for=count if many else 1)


def _widen(layout: Layout, graph: _Graph) -> None:
    """Switches reach over all that hangs on them, in rows where no two would touch; from below upwards."""
    rows: dict[tuple[float, DeviceKind], list[str]] = {}
    for name, box in layout.devices.items():
        if box.kind in (DeviceKind.NVSWITCH, DeviceKind.NETWORK_SWITCH):
            rows.setdefault((round(box.y, 3), box.kind), []).append(name)
    for (y, kind), names in sorted(rows.items()):
        spans = {}
        for name in names:
            near = [layout.devices[one] for one in graph.neighbours[name] if one in layout.devices]
            near = [one for one in near if (one.y < y) == (kind is DeviceKind.NETWORK_SWITCH)]
            near = near or [layout.devices[name]]
            left = min(one.x - one.width / 2 for one in near)
            right = max(one.x + one.width / 2 for one in near)
            spare = max(0.0, WIDE_BOX - (right - left)) / 2 if layout.devices[name].detail else 0.0
            spans[name] = left - spare, right + spare
        order = sorted(spans.values())
        if all(one[1] + GAP / 2 <= other[0] for one, other in itertools.pairwise(order)):
            for name, (left, right) in spans.items():
                layout.devices[name] = replace(layout.devices[name], x=(left + right) / 2, width=right - left)
            edge = order[-1][1] + 0.6
            layout.remarks = [
                (max(x, edge) if abs(height - y) < 0.01 else x, height, text)
                for x, height, text in layout.remarks
            ]
            beside = [x + 0.65 for x, height, _ in layout.remarks if abs(height - y) < 0.01]
            layout.width = max([layout.width, *beside])


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
    rows = list(above)
    names = _LEVELS[: len(rows)] if 1 < len(rows) <= len(_LEVELS) else ()
    for place, row in enumerate(rows):
        if _place_row(layout, graph, row, y, names[place] if names else ""):
            y += ROW
    layout.height = max(layout.height, y - ROW / 2)
    y = min((one.y for one in layout.devices.values()), default=0.0) - ROW
    for row in below:
        _place_row(layout, graph, row, y)
        y -= ROW


def _place_row(layout: Layout, graph: _Graph, row: list[Device], y: float, level: str = "") -> bool:
    middle = layout.width / 2
    places = {name: placed.x - middle for name, placed in layout.devices.items()}
    near = [one for one in row if graph.neighbours[one.name].keys() & layout.devices.keys()]
    most = max(4, min(MOST_IN_A_ROW, int(layout.width / SLOT)))
    shown = near[:most]
    wanted = [_wanted(graph, one, places) for one in shown]
    # In the order of their numbers, whatever they lead to.
    numbers = {one.name: number for number, one in enumerate(row)}
    for one, x in zip(shown, sorted(_apart(wanted)), strict=True):
        words = f"{level} {numbers[one.name]}" if level else ""
        layout.devices[one.name] = _box(one, middle + x, y, level=words)
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
    """Each with its way; between rows one line of each kind and rate has words, on a circle all or none."""
    flat = [line for line in lines if not _round(line, layout)]
    ways = Router(layout.devices, [(line.source, line.target) for line in flat]).ways()
    routed = []
    for line, way in zip(flat, ways, strict=True):
        arc = len(way) == 3
        routed.append(replace(line, points=(way[0], way[2]) if arc else way, control=way[1] if arc else None))
    labelled, said = [], set()
    for line in sorted(routed, key=lambda line: min(line.points)):
        kinds = frozenset(layout.devices[one].kind for one in (line.source, line.target))
        bundle = (line.kind, line.count, line.bytes_per_second, line.state, kinds)
        down = line.state is LinkState.DOWN
        label = "" if bundle in said and not down else _words(line)
        if label and any(layout.devices[one].stands_for > 1 for one in (line.source, line.target)):
            label += " per GPU"
        said.add(bundle)
        labelled.append(replace(line, label=label))
    counts: dict[LinkKind, int] = {}
    for line in lines:
        counts[line.kind] = counts.get(line.kind, 0) + 1
    for line in lines:
        if _round(line, layout):
            worth = line.count > 1 and counts[line.kind] <= MOST_LABELS
            label = f"x{line.count}" if worth or line.state is LinkState.DOWN else ""
            place = 0.33 if line.kind in _MESHED else 0.5
            labelled.append(replace(line, label=label, label_at=place, control=_control(line, layout)))
    return sorted(labelled, key=lambda line: line.bytes_per_second or 0.0)


def _words(line: Drawn) -> str:
    number = f"x{line.count}" if line.count > 1 or line.state is LinkState.DOWN else ""
    rate = format_rate(line.bytes_per_second) if line.bytes_per_second else ""
    return ", ".join(word for word in (number, rate) if word)


def _round(line: Drawn, layout: Layout) -> bool:
    return layout.devices[line.source].on_circle or layout.devices[line.target].on_circle


def _control(line: Drawn, layout: Layout) -> tuple[float, float] | None:
    """Where a line to a circle bends: down outside it, then in from the side."""
    one, other = layout.devices[line.source], layout.devices[line.target]
    upper, lower = (one, other) if one.y >= other.y else (other, one)
    if line.kind is LinkKind.PCIE and lower.kind is DeviceKind.GPU and lower.on_circle:
        return upper.x, lower.y
    return None
