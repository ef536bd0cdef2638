"""Which lines join the boxes of a topology's picture, what is written on them and where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ccbench.report.topology_plan import Drawn, Layout, Way, label_point, text_width
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
    ways: dict[tuple[str, str, LinkKind, LinkState], Way] = {}
    for link in topology.links:
        ends = {link.source, link.target}
        if len(ends) == 1 or not ends <= layout.devices.keys():
            continue
        key = (link.source, link.target, link.kind, link.state)
        count, rate = ways.get(key, (0, 0.0))
        # What is not known of one link is not known of their sum.
        known = rate is not None and link.bytes_per_second is not None
        total = (rate or 0.0) + (link.bytes_per_second or 0.0)
        ways[key] = count + link.count, total if known else None
    made = [_line(ways, key) for key in ways if _is_first(ways, key)]
    made.sort(key=lambda line: line.bytes_per_second or 0.0)
    return _placed(_labelled(made, layout), layout)


_Key = tuple[str, str, LinkKind, LinkState]


def _is_first(ways: Mapping[_Key, Way], key: _Key) -> bool:
    source, target, kind, state = key
    return source <= target or (target, source, kind, state) not in ways


def _line(ways: Mapping[_Key, Way], key: _Key) -> Drawn:
    """The line for both directions; where they differ it is drawn as the one that carries more."""
    source, target, kind, state = key
    forth, back = ways[key], ways.get((target, source, kind, state), (0, None))
    if forth == back:
        return Drawn(source, target, kind, state, *forth)
    if (back[1] or 0.0, back[0]) > (forth[1] or 0.0, forth[0]):
        return Drawn(target, source, kind, state, *back, forth)
    return Drawn(source, target, kind, state, *forth, back)


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
        label = "" if bundle in said and not _is_odd(line) else _words(line, layout)
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
            if line.state is not LinkState.UP or (line.back and counts[line.kind] <= MOST_LABELS):
                label = _words(replace(line, bytes_per_second=None) if line.back is None else line, layout)
            found.append(replace(line, label=label, control=_control(line, layout)))
    return found


def _per(line: Drawn, layout: Layout) -> str:
    """Of what the numbers are, where the end whose links were counted stands for several devices."""
    one, other = layout.devices[line.source], layout.devices[line.target]
    if DeviceKind.GPU in (one.kind, other.kind) and one.kind is not other.kind:
        return one.per if one.kind is DeviceKind.GPU else other.per
    return (one if one.y <= other.y else other).per


def _is_odd(line: Drawn) -> bool:
    """Whether a line is to have words although others like it have: it is not as lines are meant to be."""
    return line.state is not LinkState.UP or line.back is not None


def _words(line: Drawn, layout: Layout) -> str:
    text = _numbers((line.count, line.bytes_per_second), line.state is not LinkState.UP)
    if line.back is not None:
        forth, back = _arrows(line, layout)
        text = f"{forth} {_numbers((line.count, line.bytes_per_second), True)}"
        text += f" {back} {_numbers(line.back, True)}" if line.back[0] else " only"
    return text if line.state is LinkState.UP else f"{text} {line.state.value.replace('_', ' ')}"


def _numbers(way: Way, even_one: bool) -> str:
    count, rate = way
    number = f"x{count}" if count > 1 or even_one else ""
    return ", ".join(word for word in (number, format_rate(rate) if rate else "") if word)


def _arrows(line: Drawn, layout: Layout) -> tuple[str, str]:
    """Which way source to target is in the picture, and which way back."""
    one, other = layout.devices[line.source], layout.devices[line.target]
    right, up = other.x - one.x, other.y - one.y
    arrows = ("→", "←") if abs(right) >= abs(up) else ("↑", "↓")
    return arrows if (right if arrows[0] == "→" else up) >= 0 else (arrows[1], arrows[0])


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
    for line in sorted(drawn, key=lambda line: not _is_odd(line)):
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
