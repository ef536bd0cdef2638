"""Places of the boxes of a topology's picture, in inches, and the ways and labels of the lines between them.

From top to bottom: the network's switches, NICs, processors, PCIe switches, GPUs, NVSwitches. GPUs that are
joined among themselves stand on a circle; further machines stand right of the first. A line leaves a box at
its upper or lower edge and passes rows between boxes; on a circle it goes straight. Labels cover nothing.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.report.topology_merged import WORDS, Box, Line, Point, condensed, neighbours
from ccbench.topology.graph import DeviceKind, LinkKind, LinkState, Topology
from ccbench.units import format_rate, plural

MOST_MACHINES = 5
MOST_IN_A_ROW = 16
WIDEST = 9.6
"""Inches for machines and what stands beside them: a page, and letters of seven points on 800 pixels."""

WIDEST_SLOT, NARROWEST_SLOT, ROW, GAP = 0.86, 0.6, 1.05, 0.1
WIDE_BOX, FLAT_HEIGHT = 3.4, 0.28
FRAME_PAD = 0.3
MACHINE_GAP = 0.35

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


SHARED_NVSWITCH, NVSWITCH, GPU, PCIE, CPU, NIC, NETWORK = range(7)
"""Rows from the lowest: NVSwitches of several machines, then what stands in one machine, then the network."""

_ROWS = {
    DeviceKind.NVSWITCH: NVSWITCH, DeviceKind.GPU: GPU, DeviceKind.PCIE_SWITCH: PCIE, DeviceKind.CPU: CPU,
    DeviceKind.NIC: NIC, DeviceKind.NETWORK_SWITCH: NETWORK,
}  # fmt: skip
_NOT_A_MESH = {LinkKind.PCIE, LinkKind.INTER_SOCKET, LinkKind.SHARED_MEMORY}

Frame = tuple[float, float, float, float]


@dataclass(frozen=True)
class Layout:
    """The finished plan; ``frame`` is left, bottom, width and height of the first machine, if there are more.

    left_out: how many boxes of a kind found no room, in words; empty where all did.
    """

    width: float = 0.0
    height: float = 0.0
    boxes: Mapping[str, Box] = field(default_factory=dict)
    lines: Sequence[Line] = ()
    frame: Frame | None = None
    label_at: Point = (0.0, 0.0)
    left_out: str = ""


def laid_out(topology: Topology) -> Layout:
    """Place the boxes of ``topology`` and draw the lines between them."""
    boxes, lines = condensed(topology)
    plan = _Plan(boxes, neighbours(boxes, [(line.source, line.target, line) for line in lines]))
    # Rows from the lowest; switches that hang on switches have rows of their own.
    by_row: dict[tuple[int, int], list[Box]] = {}
    for box in boxes.values():
        if not box.whole:
            shared = box.kind is DeviceKind.NVSWITCH and box.node < 0
            rank = SHARED_NVSWITCH if shared else _ROWS[box.kind]
            by_row.setdefault((rank, -box.depth if rank == PCIE else box.depth), []).append(box)
    rows = dict(sorted(by_row.items()))
    own = {key: row for key, row in rows.items() if NVSWITCH <= key[0] <= NIC}
    # Further machines are one box each; they and the longest row share the page's width.
    wholes = [box for box in boxes.values() if box.whole]
    beside = [_sized(box, WIDEST_SLOT) for box in wholes[: MOST_MACHINES - 1]]
    plan.left_out["machine"] = sum(box.count for box in wholes[len(beside) :])
    room = WIDEST - sum(box.width + MACHINE_GAP for box in beside)
    longest = max((len(row) for row in own.values()), default=1)
    slot = min(max(room / min(longest, MOST_IN_A_ROW), NARROWEST_SLOT), WIDEST_SLOT)
    gpus = [_sized(gpu, slot) for gpu in own.get((GPU, 0), [])[:MOST_IN_A_ROW]]
    circle = _is_mesh(gpus, lines)
    heights = {key: max(4.0, 0.52 * len(gpus)) if circle and key[0] == GPU else ROW for key in rows}
    tops = dict(zip(heights, itertools.accumulate(heights.values()), strict=True))
    levels = {key: tops[key] - height / 2 for key, height in heights.items()}
    plan.anchor(gpus, slot, circle)
    # Each row finds its places over what it already leads to, so GPUs come first.
    order = (GPU, PCIE, CPU, NIC, NVSWITCH, NETWORK, SHARED_NVSWITCH)
    turns = sorted(rows, key=lambda key: (order.index(key[0]), key[1]))
    for key in turns:
        if key in own:
            plan.place_row(own[key], levels[key], slot, MOST_IN_A_ROW)
    if circle:
        plan.place_circle(gpus, levels[GPU, 0], heights[GPU, 0])
    left, right = plan.reach()
    top = max((tops[key] for key in own), default=ROW)
    bottom = min((tops[key] - heights[key] for key in own), default=0.0)
    frame = (left - FRAME_PAD, bottom, right - left + 2 * FRAME_PAD, top - bottom) if beside else None
    right += FRAME_PAD
    for box in beside:
        plan.put(box, right + MACHINE_GAP + box.width / 2, top - ROW / 2)
        right += MACHINE_GAP + box.width
    most = max(4, min(MOST_IN_A_ROW, int((right - left) / WIDEST_SLOT)))
    for key in turns:
        if key not in own:
            # Of the switches that nothing drawn leads to there is nothing to say.
            row = sorted(rows[key], key=lambda box: not plan.near[box.name] & plan.boxes.keys())
            joined = sum(bool(plan.near[box.name] & plan.boxes.keys()) for box in row)
            plan.place_row(row, levels[key], WIDEST_SLOT, min(most, joined))
    plan.widen()
    return _finished(plan, lines, frame)


def _is_mesh(gpus: Sequence[Box], lines: Sequence[Line]) -> bool:
    """True if GPUs are joined among themselves more than in pairs: a bridge is an arc in the row."""
    names = {gpu.name for gpu in gpus}
    pairs = {
        frozenset((line.source, line.target))
        for line in lines
        if line.kind not in _NOT_A_MESH and {line.source, line.target} <= names
    }
    return max(Counter(name for pair in pairs for name in pair).values(), default=0) > 1


def _finished(plan: _Plan, lines: Sequence[Line], frame: Frame | None) -> Layout:
    """Move the whole plan to the right of and above the origin, and draw its lines."""
    left, right = plan.reach()
    left, right = (min(left, frame[0]), right) if frame else (left - FRAME_PAD, right + FRAME_PAD)
    boxes = {name: replace(box, x=box.x - left) for name, box in plan.boxes.items()}
    drawn = drawn_lines(lines, boxes)
    edges = [box.y + ROW / 2 for box in boxes.values()]
    arcs = [y + 0.12 for line in drawn for _, y in line.points]
    label_at = (0.0, 0.0)
    if frame:
        frame = (frame[0] - left, *frame[1:])
        shared_below = any(box.y < frame[1] for box in boxes.values())
        # In the corner that no line to the network or to shared switches passes.
        label_at = frame[0] + 0.5, frame[1] + (frame[3] - 0.16 if shared_below else 0.16)
    left_out = ", ".join(plural(count, word) for word, count in plan.left_out.items() if count)
    return Layout(right - left, max([*edges, *arcs], default=0.0), boxes, drawn, frame, label_at, left_out)


def _sized(box: Box, slot: float) -> Box:
    """Give ``box`` the width that ``slot`` and its words allow."""
    narrow = slot - GAP
    if box.count > 1 or box.whole:
        wide = box.kind is DeviceKind.GPU and box.count > MOST_IN_A_ROW and not (box.more or box.whole)
        least = max(text_width(box.label, 8), text_width(box.detail, 7)) + 0.16
        return replace(box, width=max(least, WIDE_BOX if wide else narrow))
    # Over NVSwitches there is room: they reach over their GPUs.
    fits = box.kind is DeviceKind.NVSWITCH
    return replace(box, width=narrow, detail=box.detail if fits else fitting(box.detail, 7, narrow - 0.04))


class _Plan:
    """Boxes placed so far; ``x_of`` is also where GPUs of a circle would stand in a row."""

    def __init__(self, every: Mapping[str, Box], near: Mapping[str, set[str]]) -> None:
        self.every = every
        self.near = near
        self.boxes: dict[str, Box] = {}
        self.x_of: dict[str, float] = {}
        self.left_out: Counter[str] = Counter()

    def put(self, box: Box, x: float, y: float) -> None:
        """Place ``box`` with its middle at ``x`` and ``y``."""
        self.boxes[box.name] = replace(box, x=x, y=y)
        self.x_of.setdefault(box.name, x)

    def reach(self) -> tuple[float, float]:
        """Left and right end of the boxes."""
        boxes = self.boxes.values()
        left = min((box.x - box.width / 2 for box in boxes), default=0.0)
        return left, max((box.x + box.width / 2 for box in boxes), default=0.0)

    def anchor(self, gpus: Sequence[Box], slot: float, circle: bool) -> None:
        """Set where what a GPU hangs on should stand, the machine's middle being 0.

        On a circle the lower GPUs' switches stand outside, so that their lines go round it.
        """
        if circle:
            half = (len(gpus) + 1) // 2
            step = min(1.25 * slot, WIDEST / len(gpus))
            for index, gpu in enumerate(gpus):
                self.x_of[gpu.name] = (-(index + 0.5) if index < half else index - half + 0.5) * step
            return
        rights = list(itertools.accumulate(gpu.width + GAP for gpu in gpus))
        for gpu, right in zip(gpus, rights, strict=True):
            self.x_of[gpu.name] = right - (gpu.width + GAP) / 2 - rights[-1] / 2

    def place_row(self, row: Sequence[Box], y: float, slot: float, most: int) -> None:
        """Place at most so many boxes of ``row`` over what they lead to."""
        for box in row[most:]:
            self.left_out[WORDS[box.kind][0]] += box.count
        sized = [_sized(box, slot) for box in row[:most]]
        found = _apart([self.wanted(box) for box in sized], [box.width for box in sized])
        if sized and sized[0].node < 0 and len({box.width for box in sized}) == 1:
            # Shared switches in the order of their numbers, whatever they lead to.
            found = sorted(found)
        for box, x in zip(sized, found, strict=True):
            self.put(box, x, y)

    def place_circle(self, gpus: Sequence[Box], y: float, height: float) -> None:
        """Place GPUs on an ellipse, half of them on either side, in order round a ring."""
        names = [gpu.name for gpu in gpus]
        half = (len(gpus) + 1) // 2
        near = self.near
        # In a ring GPUs follow each other all the way round; else the two halves face each other.
        ring = names[half] in near[names[half - 1]] - near[names[0]] and names[-1] in near[names[0]]
        # A line past one neighbour must not touch its box. Where GPUs hang on something the circle is
        # narrow instead: those lines go round it.
        hang = any(near[name] - set(names) for name in names)
        across = 2.05 + (0.0 if hang else 0.25 * max(len(gpus) - 8, 0))
        for index, gpu in enumerate(gpus):
            left = index < half
            number, count = (index, half) if left else (index - half, len(gpus) - half)
            number = count - 1 - number if ring and not left else number
            angle = math.pi * (number + 0.5) / count
            if len(gpus) > 8 and not gpu.detail:
                gpu = replace(gpu, height=FLAT_HEIGHT)
            side = -across if left else across
            up = (height / 2 - Box.height) * math.cos(angle)
            self.put(replace(gpu, on_circle=True), side * math.sin(angle), y + up)

    def wanted(self, box: Box) -> float | None:
        """Find the middle of what ``box`` leads to and stands already; None where that is nothing."""
        if box.name in self.x_of:
            return self.x_of[box.name]
        reached = {box.name}
        for _ in range(3):
            # Processors join all that is in a machine: only a NIC may stand over one.
            reached |= {
                other
                for one in reached
                for other in self.near[one]
                if box.kind is DeviceKind.NIC or self.every[other].kind is not DeviceKind.CPU
            }
            found = sorted(one for one in reached if one in self.x_of)
            # Over what the first machine has; a box for other machines is beside it anyway.
            found = [one for one in found if not self.every[one].whole] or found
            if found:
                return sum(self.x_of[one] for one in found) / len(found)
        return None

    def widen(self) -> None:
        """Let switches reach over all that hangs on them, in rows where no two would touch."""
        rows: dict[tuple[float, int], list[Box]] = {}
        for box in self.boxes.values():
            if box.kind in (DeviceKind.NVSWITCH, DeviceKind.NETWORK_SWITCH):
                rows.setdefault((box.y, 1 if box.kind is DeviceKind.NETWORK_SWITCH else -1), []).append(box)
        # From below upwards, for spines reach over leaves that reach over NICs.
        for (y, up), row in sorted(rows.items()):
            spans = []
            for box in row:
                near = [self.boxes[one] for one in self.near[box.name] if one in self.boxes]
                near = [one for one in near if (y - one.y) * up > 0.01] or [box]
                left = min(one.x - one.width / 2 for one in near)
                right = max(one.x + one.width / 2 for one in near)
                least = max(text_width(box.label, 8), text_width(box.detail, 7)) + 0.2
                spare = max(0.0, least - (right - left)) / 2
                spans.append((left - spare, right + spare, box))
            spans.sort(key=lambda span: span[:2])
            if all(one[1] + GAP / 2 <= other[0] for one, other in itertools.pairwise(spans)):
                for left, right, box in spans:
                    self.boxes[box.name] = replace(box, x=(left + right) / 2, width=right - left)


def _apart(wanted: Sequence[float | None], widths: Sequence[float]) -> list[float]:
    """Find the nearest places with room between boxes, in the order that is wanted; None is at the right."""
    order = sorted((x, index) for index, x in enumerate(wanted) if x is not None)
    # Boxes that would touch become a cluster, which stands where its members would on average.
    clusters: list[tuple[float, list[int]]] = []

    def width(members: Sequence[int]) -> float:
        return sum(widths[index] + GAP for index in members)

    for x, index in order:
        middle, members = x, [index]
        while clusters and clusters[-1][0] + (width(clusters[-1][1]) + width(members)) / 2 > middle + 1e-9:
            before, others = clusters.pop()
            middle = (before * len(others) + middle * len(members)) / (len(others) + len(members))
            members = others + members
        clusters.append((middle, members))
    loose = [index for index, x in enumerate(wanted) if x is None]
    end = clusters[-1][0] + width(clusters[-1][1]) / 2 if clusters else -width(loose) / 2
    clusters.append((end + width(loose) / 2, loose))
    places = [0.0] * len(wanted)
    for middle, members in clusters:
        left = middle - width(members) / 2
        for index in members:
            places[index] = left + (widths[index] + GAP) / 2
            left += widths[index] + GAP
    return places


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
    """Points where lines meet their boxes: side by side on an edge, in the order of where they lead."""
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
        offers = [wanted + 0.05 * turn for turn in range(-4, 5)]
        offers += [
            box.x + side * (box.width / 2 + 0.07 + 0.05 * turn)
            for box in rows[y]
            for turn in range(8)
            for side in (-1, 1)
        ]
        # The outermost place is always free; a place of its own where there is room for one.
        free = [x for x in offers if all(abs(x - box.x) >= box.width / 2 + 0.04 for box in rows[y])]
        others = {x for x, at in used if at == y}
        unused = [x for x in free if all(abs(x - other) > 0.01 for other in others)]
        nearest = [(abs(x - wanted), x) for x in unused or free]
        here = min(nearest)[1]
        used.add((here, y))
        half = max(box.height for box in rows[y]) / 2 + 0.05
        corners += [(here, y - toward * half), (here, y + toward * half)]
    return corners


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
            bare = _is_round(line, boxes) and line.back is None
            label = _words(replace(line, bytes_per_second=None) if bare else line, one, other)
        elif not _is_round(line, boxes):
            rows = frozenset((one.kind, one.y)), frozenset((other.kind, other.y))
            bundle = (line.kind, line.count, line.bytes_per_second, frozenset(rows))
            label = "" if bundle in said else _words(line, one, other)
            said.add(bundle)
        elif line.count > 1 and counts[line.kind] <= MOST_LABELS:
            label = f"x{line.count}"
        # On its line, or beside a short arc, which it would hide.
        half, high, aside = text_width(label, LABEL_POINTS) / 2 + 0.03, 0.085, 0.0
        start, end = line.points[0], line.points[-1]
        if abs(start[1] - end[1]) < 0.01 and len(line.points) > 2 and abs(start[0] - end[0]) < 3.2 * half:
            aside = SHORT_ARC if line.points[1][1] > start[1] else -SHORT_ARC
        for place in _PLACES if label else ():
            x, y = line_point(line.points, place)
            y += aside
            box = (x - half, y - high, x + half, y + high)
            if all(box[2] <= a or c <= box[0] or box[3] <= b or d <= box[1] for a, b, c, d in taken):
                taken.append(box)
                line = replace(line, label=label, label_at=(x, y))
                break
        found.append(line)
    return found


def _is_odd(line: Line) -> bool:
    """Tell whether a line has words although others like it have: it is not as lines are meant to be."""
    return line.state is not LinkState.UP or line.back is not None


def _words(line: Line, one: Box, other: Box) -> str:
    """Number and rate of the links of a line, of both directions where they differ, and what they are of."""

    def numbers(count: int, rate: float | None) -> str:
        number = f"x{count}" if count > 1 or _is_odd(line) else ""
        return ", ".join(word for word in (number, format_rate(rate) if rate else "") if word)

    text = numbers(line.count, line.bytes_per_second)
    if line.back is not None:
        right, up = other.x - one.x, other.y - one.y
        arrows = ("→", "←") if abs(right) >= abs(up) else ("↑", "↓")
        there, here = arrows if (right if arrows[0] == "→" else up) >= 0 else arrows[::-1]
        back = f" {here} {numbers(*line.back)}" if line.back[0] else " only"
        text = f"{there} {text}{back}"
    if line.state is not LinkState.UP:
        text += f" {line.state.value.replace('_', ' ')}"
    per = one.per if one.y <= other.y else other.per
    if DeviceKind.GPU in (one.kind, other.kind) and one.kind is not other.kind:
        per = one.per if one.kind is DeviceKind.GPU else other.per
    return f"{text} {per}" if text and per else text


def line_point(points: Sequence[Point], place: float) -> Point:
    """The point at ``place`` (0 to 1) of a way."""
    index = min(int(place * (len(points) - 1)), len(points) - 2)
    part = place * (len(points) - 1) - index
    (x, y), (end_x, end_y) = points[index : index + 2]
    return x + part * (end_x - x), y + part * (end_y - y)
