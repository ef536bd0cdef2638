"""Which lines join the boxes of a topology's picture, what is written on them and where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ccbench.report.topology_plan import Drawn, Layout, label_point, text_width
from ccbench.report.topology_routes import Router
from ccbench.topology.graph import DeviceKind, LinkKind, LinkState, Topology
from ccbench.units import format_rate

MOST_LABELS = 20
LABEL_POINTS = 7.0
_PLACES = tuple(0.5 + side * step / 40 for step in range(19) for side in (1, -1))
"""Where a label may stand: in the middle, or as near to it as there is room."""

_Rectangle = tuple[float, float, float, float]


def lines(topology: Topology, layout: Layout) -> list[Drawn]:
    """One line for all links of a kind and state between two boxes; the widest is drawn last."""
    found: dict[tuple[str, str, LinkKind, LinkState], list[tuple[int, float | None]]] = {}
    seen: dict[tuple[str, str, LinkKind, LinkState], str] = {}
    for link in topology.links:
        ends = {link.source, link.target}
        if len(ends) == 1 or not ends <= layout.devices.keys():
            continue
        pair = (link.source, link.target) if link.source <= link.target else (link.target, link.source)
        key = (*pair, link.kind, link.state)
        # Both directions are given as a rule; the one that comes first stands for the pair.
        if seen.setdefault(key, link.source) == link.source:
            found.setdefault(key, []).append((link.count, link.bytes_per_second))
    made = []
    for (one, other, kind, state), links in found.items():
        rates = [rate for _, rate in links if rate is not None]
        count = sum(count for count, _ in links)
        made.append(Drawn(one, other, kind, state, count, sum(rates) if rates else None))
    made.sort(key=lambda line: line.bytes_per_second or 0.0)
    return _placed(_labelled(made, layout), layout)


def _labelled(drawn: Sequence[Drawn], layout: Layout) -> list[Drawn]:
    """Each with its way; between rows one line of each kind and rate has words, on a circle all or none."""
    flat = [line for line in drawn if not _round(line, layout)]
    ways = Router(layout.devices, [(line.source, line.target) for line in flat]).ways()
    routed = []
    for line, way in zip(flat, ways, strict=True):
        arc = len(way) == 3
        routed.append(replace(line, points=(way[0], way[2]) if arc else way, control=way[1] if arc else None))
    labelled, said = [], set()
    for line in sorted(routed, key=lambda line: min(line.points)):
        kinds = frozenset(layout.devices[one].kind for one in (line.source, line.target))
        per = _per(line, layout)
        heights = {round(layout.devices[one].y, 2) for one in (line.source, line.target)}
        bundle = (line.kind, line.count, line.bytes_per_second, line.state, kinds, tuple(sorted(heights)))
        label = "" if bundle in said and line.state is not LinkState.DOWN else _words(line)
        label += f" {per}" if label and per else ""
        said.add(bundle)
        labelled.append(replace(line, label=label))
    return labelled + _labelled_round(drawn, layout)


def _labelled_round(drawn: Sequence[Drawn], layout: Layout) -> list[Drawn]:
    counts: dict[LinkKind, int] = {}
    for line in drawn:
        counts[line.kind] = counts.get(line.kind, 0) + 1
    found = []
    for line in drawn:
        if _round(line, layout):
            worth = line.count > 1 and counts[line.kind] <= MOST_LABELS
            label = f"x{line.count}" if worth else ""
            label = f"x{line.count} down" if line.state is LinkState.DOWN else label
            found.append(replace(line, label=label, control=_control(line, layout)))
    return found


def _per(line: Drawn, layout: Layout) -> str:
    """Of what the numbers are, where the end whose links were counted stands for several devices."""
    one, other = layout.devices[line.source], layout.devices[line.target]
    if DeviceKind.GPU in (one.kind, other.kind) and one.kind is not other.kind:
        return one.per if one.kind is DeviceKind.GPU else other.per
    return (one if one.y <= other.y else other).per


def _words(line: Drawn) -> str:
    number = f"x{line.count}" if line.count > 1 or line.state is LinkState.DOWN else ""
    rate = format_rate(line.bytes_per_second) if line.bytes_per_second else ""
    text = ", ".join(word for word in (number, rate) if word)
    return f"{text} down" if line.state is LinkState.DOWN else text


def _placed(drawn: Sequence[Drawn], layout: Layout) -> list[Drawn]:
    """Labels where they cover neither a box nor another label; one that has no such place is left out."""
    taken: list[_Rectangle] = [
        (box.x - box.width / 2, box.y - box.height / 2, box.x + box.width / 2, box.y + box.height / 2)
        for box in layout.devices.values()
    ]
    for x, y, text in layout.remarks:
        half = text_width(max(text.split("\n"), key=len), 9) / 2
        taken.append((x - half, y - 0.12, x + half, y + 0.12))
    found = []
    for line in sorted(drawn, key=lambda line: line.state is not LinkState.DOWN):
        if line.label:
            place = _free_place(line, layout, taken)
            line = replace(line, label="") if place is None else replace(line, label_at=place)
        found.append(line)
    return sorted(found, key=lambda line: line.bytes_per_second or 0.0)


def _free_place(line: Drawn, layout: Layout, taken: list[_Rectangle]) -> float | None:
    half, high = text_width(line.label, LABEL_POINTS) / 2 + 0.03, 0.085
    for place in _PLACES:
        x, y = label_point(line, layout, place)
        box = (x - half, y - high, x + half, y + high)
        if all(box[2] <= a or c <= box[0] or box[3] <= b or d <= box[1] for a, b, c, d in taken):
            taken.append(box)
            return place
    return None


def _round(line: Drawn, layout: Layout) -> bool:
    return layout.devices[line.source].on_circle or layout.devices[line.target].on_circle


def _control(line: Drawn, layout: Layout) -> tuple[float, float] | None:
    """Where a line to a circle bends: down outside it, then in from the side."""
    one, other = layout.devices[line.source], layout.devices[line.target]
    upper, lower = (one, other) if one.y >= other.y else (other, one)
    if line.kind is LinkKind.PCIE and lower.kind is DeviceKind.GPU and lower.on_circle:
        return upper.x, lower.y
    return None
