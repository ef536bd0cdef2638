"""Where each box of a topology's picture stands, in inches.

From top to bottom: the network's switches, NICs, processors, PCIe switches, GPUs, NVSwitches. GPUs that are
joined among themselves stand on a circle; further machines stand right of the first.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.report.topology_lines import drawn_lines, fitting, text_width
from ccbench.report.topology_merged import WORDS, Box, Line, Point, condensed, neighbours
from ccbench.topology.graph import DeviceKind, LinkKind, Topology
from ccbench.units import plural

MOST_MACHINES = 5
MOST_IN_A_ROW = 16
WIDEST = 9.6
"""Inches for machines and what stands beside them: a page, and letters of seven points on 800 pixels."""

WIDEST_SLOT, NARROWEST_SLOT, ROW, GAP = 0.86, 0.6, 1.05, 0.1
WIDE_BOX, FLAT_HEIGHT = 3.4, 0.28
FRAME_PAD = 0.3
MACHINE_GAP = 0.35

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
    rows = _rows([box for box in boxes.values() if not box.whole])
    wholes = [box for box in boxes.values() if box.whole]
    beside = [_sized(box, WIDEST_SLOT) for box in wholes[: MOST_MACHINES - 1]]
    plan.left_out["machine"] = sum(box.count for box in wholes[len(beside) :])
    own = {key: row for key, row in rows.items() if NVSWITCH <= key[0] <= NIC}
    room = WIDEST - sum(box.width + MACHINE_GAP for box in beside)
    longest = max((len(row) for row in own.values()), default=1)
    slot = min(max(room / min(longest, MOST_IN_A_ROW), NARROWEST_SLOT), WIDEST_SLOT)
    gpus = [_sized(gpu, slot) for gpu in own.get((GPU, 0), [])[:MOST_IN_A_ROW]]
    circle = _on_circle(gpus, lines)
    heights = {key: max(4.0, 0.52 * len(gpus)) if circle and key[0] == GPU else ROW for key in rows}
    tops = dict(zip(heights, itertools.accumulate(heights.values()), strict=True))
    levels = {key: tops[key] - height / 2 for key, height in heights.items()}
    plan.x_of |= _anchors(gpus, slot, circle)
    for key in sorted(own, key=_placing):
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
    for key in sorted(rows.keys() - own.keys(), key=_placing):
        # Of the switches that nothing drawn leads to there is nothing to say.
        row = sorted(rows[key], key=lambda box: not plan.near[box.name] & plan.boxes.keys())
        joined = sum(bool(plan.near[box.name] & plan.boxes.keys()) for box in row)
        plan.place_row(row, levels[key], WIDEST_SLOT, min(most, joined))
    plan.widen()
    return _finished(plan, lines, frame)


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


def _rows(boxes: Sequence[Box]) -> dict[tuple[int, int], list[Box]]:
    """Sort boxes into rows, from the lowest; switches that hang on switches have rows of their own."""
    rows: dict[tuple[int, int], list[Box]] = {}
    for box in boxes:
        shared = box.kind is DeviceKind.NVSWITCH and box.node < 0
        rank = SHARED_NVSWITCH if shared else _ROWS[box.kind]
        rows.setdefault((rank, -box.depth if rank == PCIE else box.depth), []).append(box)
    return dict(sorted(rows.items()))


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


def _on_circle(gpus: Sequence[Box], lines: Sequence[Line]) -> bool:
    """Tell whether GPUs are joined among themselves, more than in pairs: a bridge is an arc in the row."""
    names = {gpu.name for gpu in gpus}
    pairs = {
        frozenset((line.source, line.target))
        for line in lines
        if line.kind not in _NOT_A_MESH and {line.source, line.target} <= names
    }
    degrees = Counter(name for pair in pairs for name in pair)
    return max(degrees.values(), default=0) > 1


def _anchors(gpus: Sequence[Box], slot: float, circle: bool) -> dict[str, float]:
    """Where what a GPU hangs on should stand, the machine's middle being 0.

    On a circle the lower GPUs' switches stand outside, so that their lines go round it.
    """
    if not circle:
        rights = list(itertools.accumulate(gpu.width + GAP for gpu in gpus))
        return {
            gpu.name: right - (gpu.width + GAP) / 2 - rights[-1] / 2
            for gpu, right in zip(gpus, rights, strict=True)
        }
    half = (len(gpus) + 1) // 2
    step = min(1.25 * slot, WIDEST / len(gpus))
    places = [-(index + 0.5) if index < half else index - half + 0.5 for index in range(len(gpus))]
    return {gpu.name: place * step for gpu, place in zip(gpus, places, strict=True)}


def _placing(row: tuple[int, int]) -> tuple[int, int]:
    """Sort rows by when they find their places: each stands over what it already leads to."""
    return (GPU, PCIE, CPU, NIC, NVSWITCH, NETWORK, SHARED_NVSWITCH).index(row[0]), row[1]


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
        """How far the boxes reach to the left and right."""
        boxes = self.boxes.values()
        left = min((box.x - box.width / 2 for box in boxes), default=0.0)
        return left, max((box.x + box.width / 2 for box in boxes), default=0.0)

    def place_row(self, row: Sequence[Box], y: float, slot: float, most: int) -> None:
        """Place at most so many boxes of ``row`` over what they lead to."""
        for box in row[most:]:
            self.left_out[WORDS[box.kind][0]] += box.count
        sized = [_sized(box, slot) for box in row[:most]]
        found = _apart([self._wanted(box) for box in sized], [box.width for box in sized])
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

    def _wanted(self, box: Box) -> float | None:
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
            found = [one for one in reached if one in self.x_of]
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
