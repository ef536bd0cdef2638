"""Where each device of a topology stands in its picture; in inches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ccbench.report.topology_boxes import condensed, merged, words
from ccbench.report.topology_lines import lines
from ccbench.report.topology_plan import BOX_HEIGHT, Layout, Placed, fitting, text_width
from ccbench.topology.graph import Device, DeviceKind, LinkKind, Topology
from ccbench.topology.summary import node_count

MOST_MACHINES = 5
MOST_IN_A_ROW = 16
WIDEST = 9.6
"""Inches for machines and what stands beside them: a page, and letters of seven points on 800 pixels."""

WIDEST_SLOT, NARROWEST_SLOT, ROW, GAP = 0.86, 0.6, 1.05, 0.1
WIDE_BOX, FLAT_HEIGHT = 3.4, 0.28
FRAME_PAD = 0.3
MACHINE_GAP = 0.35

WITH_NETWORK = (DeviceKind.NIC, DeviceKind.CPU, DeviceKind.PCIE_SWITCH, DeviceKind.GPU, DeviceKind.NVSWITCH)
"""From top to bottom inside a machine of a cluster: NICs below the network's switches."""

ALONE = (DeviceKind.CPU, DeviceKind.PCIE_SWITCH, DeviceKind.NIC, DeviceKind.GPU, DeviceKind.NVSWITCH)
"""The same without a network: NICs below what they hang on."""

AROUND = (DeviceKind.CPU, DeviceKind.NIC, DeviceKind.PCIE_SWITCH, DeviceKind.GPU, DeviceKind.NVSWITCH)
"""The same with GPUs on a circle: lines to it may pass nothing, so NICs stand above."""

_PLACING = (DeviceKind.GPU, DeviceKind.PCIE_SWITCH, DeviceKind.CPU, DeviceKind.NIC, DeviceKind.NVSWITCH)
"""In which order rows find their places: each stands over what it already leads to."""

_MESHED = frozenset(set(LinkKind) - {LinkKind.PCIE, LinkKind.INTER_SOCKET, LinkKind.SHARED_MEMORY})


@dataclass(frozen=True)
class _Graph:
    """The topology as the layout needs it; ``slot`` is the room of one small box."""

    devices: Mapping[str, Device]
    neighbours: Mapping[str, Mapping[str, LinkKind]]
    shared: frozenset[str]
    rows: tuple[DeviceKind, ...] = ALONE
    slot: float = WIDEST_SLOT


def laid_out(topology: Topology) -> Layout:
    """The plan of ``topology``: the first machine, what is like it beside it, the network above."""
    nodes = node_count(topology)
    present = len({device.node for device in topology.devices if device.node >= 0})
    topology = condensed(topology)
    graph = _graph(topology)
    own = [one for one in topology.devices if one.name not in graph.shared]
    beside = [one for one in own if "folded" in one.attributes][: MOST_MACHINES - 1]
    inside = [one for one in own if "folded" not in one.attributes]
    if beside and nodes > present:
        # The graph has only the first machines of a very large cluster.
        count = merged(beside[-1]) + nodes - present
        beside[-1] = replace(beside[-1], attributes={**beside[-1].attributes, "merged": count})
    gpus = [one for one in inside if one.kind is DeviceKind.GPU]
    if graph.rows == ALONE and _on_circle(graph, gpus[:MOST_IN_A_ROW]):
        graph = replace(graph, rows=AROUND)
    graph = replace(graph, slot=_slot(graph, inside, beside))
    layout = Layout()
    first = _machine(graph, inside) if inside else Layout()
    below = _shared_rows(graph, topology, DeviceKind.NVSWITCH)
    above = _shared_rows(graph, topology, DeviceKind.NETWORK_SWITCH)
    bottom = ROW * len(below)
    _take(layout, first, 0.0, bottom)
    if beside:
        layout.frames.append((0.0, bottom, first.width, first.height))
        # In the corner that no line to the network or to shared switches passes.
        label_y = bottom + (first.height - 0.16 if below else 0.16)
        layout.remarks.append((0.5, label_y, f"machine {max(inside[0].node, 0)}"))
    layout.width, layout.height = first.width, bottom + first.height
    for one in beside:
        box = _box(one, 0.0, bottom + first.height - ROW / 2, graph.slot)
        layout.width += MACHINE_GAP
        layout.devices[one.name] = replace(box, x=layout.width + box.width / 2)
        layout.width += box.width
    _shared(layout, graph, above, below)
    _widen(layout, graph)
    layout.links = lines(topology, layout)
    peaks = [(one.points[0][1] + one.control[1]) / 2 for one in layout.links if one.control and one.points]
    layout.height = max([layout.height, *(peak + 0.12 for peak in peaks)])
    return layout


def _slot(graph: _Graph, inside: Sequence[Device], beside: Sequence[Device]) -> float:
    """As much room for a box as lets the longest row stand on a page."""
    longest = max((len(row) for row in _rows(graph, inside)), default=1)
    room = WIDEST - sum(_box(one, 0.0, 0.0, NARROWEST_SLOT).width + MACHINE_GAP for one in beside)
    return min(max(room / min(longest, MOST_IN_A_ROW), NARROWEST_SLOT), WIDEST_SLOT)


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
    networked = any(one.kind is DeviceKind.NETWORK_SWITCH for one in topology.devices)
    return _Graph(devices, neighbours, frozenset(shared), WITH_NETWORK if networked else ALONE)


def _take(layout: Layout, plan: Layout, left: float, bottom: float) -> None:
    for name, placed in plan.devices.items():
        layout.devices[name] = replace(placed, x=placed.x + left, y=placed.y + bottom)
    layout.remarks += [(x + left, y + bottom, text) for x, y, text in plan.remarks]


def _machine(graph: _Graph, inside: Sequence[Device]) -> Layout:
    """One machine by itself, its lower left corner at the origin."""
    rows = _rows(graph, inside)
    gpus = [gpu for row in rows if row[0].kind is DeviceKind.GPU for gpu in row[:MOST_IN_A_ROW]]
    circle = _on_circle(graph, gpus)
    heights = [
        max(4.0, 0.52 * len(gpus)) if circle and row[0].kind is DeviceKind.GPU else ROW for row in rows
    ]
    levels = [sum(heights[place:]) - height / 2 for place, height in enumerate(heights)]
    shown = {place: _chosen(graph, row) for place, row in enumerate(rows)}
    places = _anchors(graph, gpus, circle)
    boxes: dict[str, Placed] = {}
    for place in sorted(shown, key=lambda place: _PLACING.index(rows[place][0].kind) * 100 - place):
        made = [_box(one, 0.0, levels[place], graph.slot - _between(graph, one)) for one in shown[place]]
        if rows[place][0].kind is not DeviceKind.GPU:
            wanted = [_wanted(graph, one, places) for one in shown[place]]
            widths = [box.width + _between(graph, one) for one, box in zip(shown[place], made, strict=True)]
            found = _apart(wanted, widths)
            places.update(zip((one.name for one in shown[place]), found, strict=True))
        if not (circle and rows[place][0].kind is DeviceKind.GPU):
            for one, box in zip(shown[place], made, strict=True):
                boxes[one.name] = replace(box, x=places[one.name], width=box.width)
    reach = [box.x + side * box.width / 2 for box in boxes.values() for side in (-1, 1)]
    reach += (
        [-_across(graph, gpus) - 0.45, _across(graph, gpus) + 0.45] if circle else [-graph.slot, graph.slot]
    )
    plan = Layout(max(reach) - min(reach) + 2 * FRAME_PAD, sum(heights))
    shift = FRAME_PAD - min(reach)
    plan.devices = {name: replace(box, x=box.x + shift) for name, box in boxes.items()}
    for place, row in enumerate(rows):
        if circle and row[0].kind is DeviceKind.GPU:
            _place_circle(plan, graph, gpus, shift, levels[place], heights[place])
        if len(row) > len(shown[place]):
            text = f"… and {len(row) - len(shown[place])} more"
            right = max(plan.devices[one.name].x + plan.devices[one.name].width / 2 for one in shown[place])
            plan.remarks.append((right + 0.65, levels[place], text))
    plan.width = max([plan.width, *(x + 0.65 for x, _, _ in plan.remarks)])
    return plan


def _between(graph: _Graph, device: Device) -> float:
    """NICs above GPUs leave room for the lines that pass between them."""
    passed = graph.rows != WITH_NETWORK and graph.slot > 0.75
    return 0.16 if device.kind is DeviceKind.NIC and passed else 0.0


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
        if one.kind in graph.rows:
            level = depth.get(one.name, 1) if one.kind is DeviceKind.PCIE_SWITCH else _hop(one)
            key = graph.rows.index(one.kind), level
            if one.kind is DeviceKind.NIC and switches and _on_processor(graph, one):
                key = graph.rows.index(DeviceKind.CPU), 1
            rows.setdefault(key, []).append(one)
    return [rows[key] for key in sorted(rows)]


def _on_processor(graph: _Graph, nic: Device) -> bool:
    """Whether it hangs on processors alone and nothing stands above them: then it is just below."""
    kinds = {graph.devices[one].kind for one in graph.neighbours[nic.name]}
    return graph.rows == ALONE and kinds == {DeviceKind.CPU}


def _hop(device: Device) -> int:
    """Rows of GPUs that are told by their distance from the first."""
    hop = device.attributes.get("hop", 0)
    return hop if isinstance(hop, int) else 0


def _chosen(graph: _Graph, row: Sequence[Device]) -> list[Device]:
    """At most a row's worth; of PCIe switches those that GPUs hang on come first."""

    def without_gpu(device: Device) -> bool:
        return not any(graph.devices[one].kind is DeviceKind.GPU for one in graph.neighbours[device.name])

    if row[0].kind is not DeviceKind.PCIE_SWITCH:
        return list(row[:MOST_IN_A_ROW])
    kept = {one.name for one in sorted(row, key=without_gpu)[:MOST_IN_A_ROW]}
    return [one for one in row if one.name in kept]


def _on_circle(graph: _Graph, gpus: Sequence[Device]) -> bool:
    """Whether GPUs are joined among themselves, more than in pairs: a bridge is an arc in the row."""
    if len(gpus) < 3 or any("hop" in gpu.attributes for gpu in gpus):
        return False
    names = {gpu.name for gpu in gpus}
    return any(
        sum(kind in _MESHED for other, kind in graph.neighbours[gpu.name].items() if other in names) > 1
        for gpu in gpus
    )


def _anchors(graph: _Graph, gpus: Sequence[Device], circle: bool) -> dict[str, float]:
    """Where what a GPU hangs on should stand, the machine's middle being 0.

    On a circle the lower GPUs' switches stand outside, so that their lines go round it.
    """
    if any("hop" in gpu.attributes for gpu in gpus):
        return {gpu.name: 0.0 for gpu in gpus}
    half = (len(gpus) + 1) // 2
    anchors = {}
    step = min(1.25 * graph.slot, WIDEST / max(len(gpus), 1))
    widths = [_box(gpu, 0.0, 0.0, graph.slot).width + GAP for gpu in gpus]
    for index, gpu in enumerate(gpus):
        if not circle:
            anchors[gpu.name] = sum(widths[:index]) + (widths[index] - sum(widths)) / 2
        elif index < half:
            anchors[gpu.name] = -(index + 0.5) * step
        else:
            anchors[gpu.name] = (index - half + 0.5) * step
    return anchors


def _is_ring(graph: _Graph, gpus: Sequence[Device], half: int) -> bool:
    """Whether GPUs follow each other all the way round; else the two halves face each other."""
    names = [gpu.name for gpu in gpus]
    joined = names[half] in graph.neighbours[names[half - 1]] and names[-1] in graph.neighbours[names[0]]
    return joined and names[half] not in graph.neighbours[names[0]]


def _across(graph: _Graph, gpus: Sequence[Device]) -> float:
    """Half the width of the circle of GPUs: a line past one neighbour must not touch its box.

    Where GPUs hang on something the circle is narrow instead: those lines go round it.
    """
    names = {gpu.name for gpu in gpus}
    hang = any(other not in names for name in names for other in graph.neighbours[name])
    return 2.05 + (0.0 if hang else 0.25 * max(len(gpus) - 8, 0))


def _place_circle(
    plan: Layout, graph: _Graph, gpus: Sequence[Device], x: float, y: float, height: float
) -> None:
    half = (len(gpus) + 1) // 2
    around = _is_ring(graph, gpus, half)
    across, up = _across(graph, gpus), height / 2 - BOX_HEIGHT
    for index, gpu in enumerate(gpus):
        left = index < half
        number, count = (index, half) if left else (index - half, len(gpus) - half)
        number = count - 1 - number if around and not left else number
        angle = math.pi * (number + 0.5) / count
        side = -1 if left else 1
        place = (x + side * across * math.sin(angle), y + up * math.cos(angle))
        box = _box(gpu, *place, graph.slot, on_circle=True)
        # Of many a line past one neighbour would touch a full box.
        flat = len(gpus) > 8 and not box.detail
        plan.devices[gpu.name] = replace(box, height=FLAT_HEIGHT) if flat else box


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
        near = [one for one in reached if one in places and one != device.name]
        # Over what the first machine has; a box for other machines is beside it anyway.
        near = [one for one in near if "folded" not in graph.devices[one].attributes] or near
        if near:
            return sum(places[one] for one in near) / len(near)
    return None


def _apart(wanted: Sequence[float | None], widths: Sequence[float]) -> list[float]:
    """The nearest places with room between boxes, in the order that is wanted; None goes to the right."""
    stated = sorted((x, index) for index, x in enumerate(wanted) if x is not None)
    order, loose = [index for _, index in stated], [x for x, _ in stated]
    steps = [(widths[one] + widths[other]) / 2 + GAP for one, other in itertools.pairwise(order)]
    found = list(loose)
    for position, step in enumerate(steps, 1):
        found[position] = max(found[position], found[position - 1] + step)
    # Pushing only to the right leans the row; move clusters that were pushed back by half.
    start = 0
    for position in range(1, len(found) + 1):
        if position == len(found) or found[position] - found[position - 1] > steps[position - 1] + 1e-9:
            cluster = range(start, position)
            shift = sum(found[one] - loose[one] for one in cluster) / len(cluster)
            room = found[start] - steps[start - 1] - found[start - 1] if start else math.inf
            for one in cluster:
                found[one] -= min(shift, room)
            start = position
    places = [0.0] * len(wanted)
    for position, index in enumerate(order):
        places[index] = found[position]
    right = found[-1] + widths[order[-1]] / 2 if found else -(sum(widths) + GAP * len(widths)) / 2 - GAP
    for index, x in enumerate(wanted):
        if x is None:
            places[index] = right + GAP + widths[index] / 2
            right += GAP + widths[index]
    return places


def _box(device: Device, x: float, y: float, slot: float, on_circle: bool = False) -> Placed:
    label, detail = words(device)
    count = merged(device)
    narrow = slot - GAP
    whole = "folded" in device.attributes
    many = device.kind is DeviceKind.GPU and count > MOST_IN_A_ROW and not device.attributes.get("more")
    least = WIDE_BOX if many and not whole and "hop" not in device.attributes else narrow
    if count > 1 or whole or "hop" in device.attributes:
        least = max(least, text_width(label, 8) + 0.16, text_width(detail, 7) + 0.16)
    elif device.kind is not DeviceKind.NVSWITCH:
        # Over NVSwitches there is room: they reach over their GPUs.
        detail = fitting(detail, 7, narrow - 0.04)
    ghost = bool(device.attributes.get("more") or ("folded" in device.attributes and count > 1))
    per = "in all" if "hop" in device.attributes else "each"
    per = "per GPU" if per == "each" and device.kind is DeviceKind.GPU and not whole else per
    per = per if count > 1 else ""
    return Placed(device.kind, x, y, label, detail, on_circle, least, per=per, ghost=ghost)


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
            side = 1 if kind is DeviceKind.NETWORK_SWITCH else -1
            near = [one for one in near if (y - one.y) * side > 0.01]
            near = near or [layout.devices[name]]
            left = min(one.x - one.width / 2 for one in near)
            right = max(one.x + one.width / 2 for one in near)
            box = layout.devices[name]
            least = max(text_width(box.label, 8), text_width(box.detail, 7)) + 0.2
            spare = max(0.0, least - (right - left)) / 2
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
    most = max(4, min(MOST_IN_A_ROW, int(layout.width / WIDEST_SLOT)))
    shown = near[:most]
    wanted = [_wanted(graph, one, places) for one in shown]
    boxes = [_box(one, 0.0, y, WIDEST_SLOT) for one in shown]
    found = _apart(wanted, [box.width for box in boxes])
    if len({box.width for box in boxes}) == 1:
        # In the order of their numbers, whatever they lead to.
        found = sorted(found)
    for one, box, x in zip(shown, boxes, found, strict=True):
        layout.devices[one.name] = replace(box, x=middle + x)
    if shown and len(row) > len(shown):
        right = max(layout.devices[one.name].x + layout.devices[one.name].width / 2 for one in shown)
        layout.remarks.append((right + 0.6, y, f"… and {len(row) - len(shown)} more"))
        layout.width = max(layout.width, right + 1.2)
    return bool(shown)
