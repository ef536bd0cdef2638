"""Ways of the lines between placed boxes, and labels where they cover nothing.

A line leaves a box at its upper or lower edge and passes rows between boxes; on a circle it goes straight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ccbench.report.topology_merged import Box, Line, Point, Way
from ccbench.topology.graph import DeviceKind, LinkKind, LinkState
from ccbench.units import format_rate

MOST_LABELS = 20
LABEL_POINTS = 7.0
WIDE = 0.9
HIGHEST_ARC = 0.6
"""Of the 0.65 inches between rows."""

SHORT_ARC = 0.13
"""Inches from a short arc to its label."""

CURVE_STEPS = 24
_PLACES = tuple(0.5 + side * step / 40 for step in range(19) for side in (1, -1))
"""Where a label may stand: in the middle, or as near to it as there is room."""


def text_width(text: str, points: float) -> float:
    """Inches that a line of DejaVu Sans takes at most: capitals and digits are two thirds of its size."""
    widths = (0.36 if one in " .,:;|iljtf'·" else 0.84 if one in "→←↑↓" else 0.66 for one in text)
    return sum(widths) * points / 72


def fitting(text: str, points: float, width: float) -> str:
    """``text``, or its beginning and an ellipsis where it is wider than ``width`` inches."""
    if text_width(text, points) <= width:
        return text
    kept = len(text) - 1
    while kept > 0 and text_width(f"{text[:kept]}…", points) > width:
        kept -= 1
    return f"{text[:kept]}…"


def drawn_lines(lines: Sequence[Line], boxes: Mapping[str, Box]) -> list[Line]:
    """Those of ``lines`` between placed boxes, with their ways and labels; the widest is drawn last."""
    lines = [line for line in lines if {line.source, line.target} <= boxes.keys()]
    ports = _ports(lines, boxes)
    rows: dict[float, list[Box]] = {}
    for box in boxes.values():
        rows.setdefault(round(box.y, 3), []).append(box)
    used: set[Point] = set()
    drawn = []
    for index, line in enumerate(lines):
        one, other = boxes[line.source], boxes[line.target]
        start, end = ports[index, one.name], ports[index, other.name]
        way: tuple[Point, ...]
        if _is_round(line, boxes):
            lower, upper = sorted((one, other), key=lambda box: box.y)
            way = ((one.x, one.y), (other.x, other.y))
            if line.kind is LinkKind.PCIE and not upper.on_circle:
                # Down outside the circle, then in from the side.
                way = _curve((upper.x, upper.y), (upper.x, lower.y), (lower.x, lower.y))
        elif abs(start[1] - end[1]) < 0.01:
            high = min(0.2 + 0.1 * abs(start[0] - end[0]), HIGHEST_ARC) * _side(one, other)
            way = _curve(start, ((start[0] + end[0]) / 2, start[1] + high), end)
        else:
            way = (start, *_between(rows, used, start, end), end)
        drawn.append(replace(line, points=way))
    return sorted(_labelled(drawn, boxes), key=lambda line: line.bytes_per_second or 0.0)


def _is_round(line: Line, boxes: Mapping[str, Box]) -> bool:
    return boxes[line.source].on_circle or boxes[line.target].on_circle


def _curve(start: Point, control: Point, end: Point) -> tuple[Point, ...]:
    """Points of a quadratic curve that bends towards ``control``."""
    steps = [step / CURVE_STEPS for step in range(CURVE_STEPS + 1)]
    weights = [((1 - t) ** 2, 2 * t * (1 - t), t * t) for t in steps]
    return tuple(
        (a * start[0] + b * control[0] + c * end[0], a * start[1] + b * control[1] + c * end[1])
        for a, b, c in weights
    )


def _side(box: Box, other: Box) -> int:
    """1 where a line to ``other`` leaves ``box`` at its upper edge, else -1.

    Within a row it passes below GPUs and NVSwitches: over GPUs there is PCIe, over NVSwitches GPUs.
    """
    if abs(box.y - other.y) < 0.01:
        below = box.kind in (DeviceKind.GPU, DeviceKind.NVSWITCH) and not (box.whole or other.whole)
        return -1 if below else 1
    return 1 if other.y > box.y else -1


def _ports(lines: Sequence[Line], boxes: Mapping[str, Box]) -> dict[tuple[int, str], Point]:
    """Where each line meets its boxes: side by side on an edge, in the order of where they lead."""
    edges: dict[tuple[str, int], list[tuple[float, int, str]]] = {}
    for index, line in enumerate(lines):
        for one, other in ((line.source, line.target), (line.target, line.source)):
            side = _side(boxes[one], boxes[other])
            edges.setdefault((one, side), []).append((round(boxes[other].x, 3), index, other))
    ports: dict[tuple[int, str], Point] = {}
    # Narrow boxes first: wide ones follow them.
    for (name, side), ends in sorted(edges.items(), key=lambda edge: boxes[edge[0][0]].width):
        box = boxes[name]
        ends.sort()
        xs = [box.x + 0.7 * box.width * ((place + 0.5) / len(ends) - 0.5) for place in range(len(ends))]
        over = [ports.get((index, other), (x, 0.0))[0] for x, index, other in ends]
        # Straight up or down where all can be; at a corner lines would meet.
        reachable = all(abs(x - box.x) <= box.width / 2 - 0.1 for x in over)
        if box.width > WIDE and reachable and len(set(over)) == len(over):
            xs = over
        ports |= {
            (index, name): (x, box.y + side * box.height / 2)
            for x, (_, index, _) in zip(xs, ends, strict=True)
        }
    return ports


def _between(rows: Mapping[float, Sequence[Box]], used: set[Point], start: Point, end: Point) -> list[Point]:
    """Corners of a way through a gap of every row that lies between ``start`` and ``end``."""
    toward = 1 if start[1] < end[1] else -1
    corners: list[Point] = []
    here = start[0]
    for y in sorted((y for y in rows if (y - start[1]) * (end[1] - y) > 0), reverse=toward < 0):
        wanted = here if abs(here - end[0]) < 0.4 else (here + end[0]) / 2
        here = _gap(rows[y], wanted, {x for x, at in used if at == y})
        used.add((here, y))
        half = max(box.height for box in rows[y]) / 2 + 0.05
        corners += [(here, y - toward * half), (here, y + toward * half)]
    return corners


def _gap(row: Sequence[Box], wanted: float, used: set[float]) -> float:
    """The free place of a row next to ``wanted``, of its own where there is room for one."""
    offers = [wanted + 0.05 * turn for turn in range(-4, 5)]
    offers += [
        box.x + side * (box.width / 2 + 0.07 + 0.05 * turn)
        for box in row
        for turn in range(8)
        for side in (-1, 1)
    ]
    # The outermost place is always free.
    free = [x for x in offers if all(abs(x - box.x) >= box.width / 2 + 0.04 for box in row)]
    unused = [x for x in free if all(abs(x - other) > 0.01 for other in used)]
    return min(unused or free, key=lambda x: (abs(x - wanted), x))


def _labelled(lines: Sequence[Line], boxes: Mapping[str, Box]) -> list[Line]:
    """Words on lines where they cover neither a box nor another label; without such a place they stay out.

    Between rows one line of each kind and rate has words; on a circle all or none.
    """
    counts = Counter(line.kind for line in lines)
    taken = [
        (box.x - box.width / 2, box.y - box.height / 2, box.x + box.width / 2, box.y + box.height / 2)
        for box in boxes.values()
    ]
    said: set[object] = set()
    found = []
    # Of a bundle the line at the left has the words.
    leftmost = sorted(lines, key=lambda line: (0.0, 0.0) if _is_round(line, boxes) else min(line.points))
    for line in sorted(leftmost, key=lambda line: not _is_odd(line)):
        one, other = boxes[line.source], boxes[line.target]
        label = ""
        if _is_odd(line):
            # There is no room on a circle for the rate of a link that carries nothing.
            short = _is_round(line, boxes) and line.back is None
            label = _words(replace(line, bytes_per_second=None) if short else line, one, other)
        elif not _is_round(line, boxes):
            rows = frozenset((one.kind, one.y)), frozenset((other.kind, other.y))
            bundle = (line.kind, line.count, line.bytes_per_second, frozenset(rows))
            label = "" if bundle in said else _words(line, one, other)
            said.add(bundle)
        elif line.count > 1 and counts[line.kind] <= MOST_LABELS:
            label = f"x{line.count}"
        place = _free_place(line, label, taken) if label else None
        found.append(replace(line, label=label, label_at=place) if place else line)
    return found


def _is_odd(line: Line) -> bool:
    """Tell whether a line has words although others like it have: it is not as lines are meant to be."""
    return line.state is not LinkState.UP or line.back is not None


def _words(line: Line, one: Box, other: Box) -> str:
    forth = line.count, line.bytes_per_second
    text = _numbers(forth, even_one=_is_odd(line))
    if line.back is not None:
        right, up = other.x - one.x, other.y - one.y
        arrows = ("→", "←") if abs(right) >= abs(up) else ("↑", "↓")
        there, here = arrows if (right if arrows[0] == "→" else up) >= 0 else arrows[::-1]
        back = f" {here} {_numbers(line.back, even_one=True)}" if line.back[0] else " only"
        text = f"{there} {text}{back}"
    if line.state is not LinkState.UP:
        text += f" {line.state.value.replace('_', ' ')}"
    per = one.per if one.y <= other.y else other.per
    if DeviceKind.GPU in (one.kind, other.kind) and one.kind is not other.kind:
        per = one.per if one.kind is DeviceKind.GPU else other.per
    return f"{text} {per}" if text and per else text


def _numbers(way: Way, *, even_one: bool) -> str:
    count, rate = way
    number = f"x{count}" if count > 1 or even_one else ""
    return ", ".join(word for word in (number, format_rate(rate) if rate else "") if word)


def _free_place(line: Line, label: str, taken: list[tuple[float, float, float, float]]) -> Point | None:
    """Find room for a label on its line, or beside an arc that it would hide; it is taken then."""
    half, high = text_width(label, LABEL_POINTS) / 2 + 0.03, 0.085
    start, end = line.points[0], line.points[-1]
    aside = 0.0
    if abs(start[1] - end[1]) < 0.01 and len(line.points) > 2 and abs(start[0] - end[0]) < 3.2 * half:
        aside = SHORT_ARC if line.points[1][1] > start[1] else -SHORT_ARC
    for place in _PLACES:
        x, y = line_point(line.points, place)
        y += aside
        box = (x - half, y - high, x + half, y + high)
        if all(box[2] <= a or c <= box[0] or box[3] <= b or d <= box[1] for a, b, c, d in taken):
            taken.append(box)
            return x, y
    return None


def line_point(points: Sequence[Point], place: float) -> Point:
    """The point at ``place`` (0 to 1) of a way."""
    index = min(int(place * (len(points) - 1)), len(points) - 2)
    part = place * (len(points) - 1) - index
    (x, y), (end_x, end_y) = points[index : index + 2]
    return x + part * (end_x - x), y + part * (end_y - y)
