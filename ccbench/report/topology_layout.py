"""Places of the boxes of a topology's picture, in inches, and the ways and labels of the lines between them.

From top to bottom: the network's switches, NICs, processors, PCIe switches, GPUs, NVSwitches; further
machines stand right of the first. A line leaves a box at its upper or lower edge and passes rows between
boxes; within a row it is an arc. Labels cover nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ccbench.report.topology_merged import WORDS, Box, MergedLink, Point, condensed, neighbours
from ccbench.topology.graph import DeviceKind, LinkState, Topology
from ccbench.units import format_rate, plural

MOST_MACHINES = 5
MOST_IN_A_ROW = 16
WIDEST = 9.5
"""Inches for machines and what stands beside them: a page, and letters of seven points on 800 pixels."""

WIDEST_SLOT, NARROWEST_SLOT, ROW, HEIGHT, GAP = 0.86, 0.6, 1.05, 0.4, 0.1
FRAME_PAD = 0.3
MACHINE_GAP = 0.35
LABEL_POINTS = 7.0
ARC_STEPS = 24
_PLACES = tuple(0.5 + side * step / 40 for step in range(19) for side in (1, -1))
"""Places of a label: in the middle, or as near to it as there is room."""

SHARED_NVSWITCH, NVSWITCH, GPU, PCIE, CPU, NIC, NETWORK = range(7)
"""Rows from the lowest: NVSwitches of several machines, then what stands in one machine, then the network."""

_ROWS = {
    DeviceKind.NVSWITCH: NVSWITCH,
    DeviceKind.GPU: GPU,
    DeviceKind.PCIE_SWITCH: PCIE,
    DeviceKind.CPU: CPU,
    DeviceKind.NIC: NIC,
    DeviceKind.NETWORK_SWITCH: NETWORK,
}

Frame = tuple[float, float, float, float]
Row = tuple[int, int]
"""Which of the above, and how deep in it."""


@dataclass(frozen=True)
class PictureLayout:
    """The finished plan; ``frame`` is left, bottom, width and height of the first machine, if there are more.

    left_out: how many boxes of a kind found no room, in words; empty where all did.
    """

    width: float = 0.0
    height: float = 0.0
    boxes: Mapping[str, Box] = field(default_factory=dict)
    lines: Sequence[MergedLink] = ()
    frame: Frame | None = None
    left_out: str = ""


def laid_out(topology: Topology) -> PictureLayout:
    """Place the boxes of ``topology`` and draw the lines between them."""
    boxes, lines = condensed(topology)
    near = neighbours(boxes, ((line.source, line.target) for line in lines))
    # Rows from the lowest; switches that hang on switches have rows of their own.
    rows: dict[Row, list[Box]] = {}
    for box in boxes.values():
        if not box.whole:
            rank = (
                SHARED_NVSWITCH
                if box.shared and box.kind is DeviceKind.NVSWITCH
                else _ROWS[box.kind]
            )
            rows.setdefault((rank, -box.depth if rank == PCIE else box.depth), []).append(box)
    placed, framed = _across(boxes, rows, near)
    edge = 0.0
    ends: list[float] = []
    for (rank, _), row in sorted(rows.items()):
        there = {box.name for box in row} & placed.keys()
        arcs = [
            _arc_height(placed[line.source].x - placed[line.target].x)
            for line in lines
            if {line.source, line.target} <= there
        ]
        bottom = edge
        # Arcs hang below GPUs.
        edge += ROW + max(arcs, default=0.0) * (rank == GPU)
        ends += [bottom, edge] if NVSWITCH <= rank <= NIC else []
        placed |= {name: replace(placed[name], y=edge - ROW / 2) for name in there}
    low, high = min(ends, default=0.0), max(ends, default=ROW)
    placed |= {
        name: replace(box, y=high - ROW / 2) for name, box in placed.items() if box.whole
    }
    _widen(placed, near)
    left = _reach(placed)[0] - FRAME_PAD
    placed = {name: replace(box, x=box.x - left) for name, box in placed.items()}
    hidden: Counter[str] = Counter()
    for name in boxes.keys() - placed.keys():
        hidden["machine" if boxes[name].whole else WORDS[boxes[name].kind][0]] += boxes[
            name
        ].count
    return PictureLayout(
        _reach(placed)[1] + FRAME_PAD,
        max(edge, ROW),
        placed,
        drawn_lines(lines, placed),
        (0.0, low, framed - left, high - low)
        if any(box.whole for box in placed.values())
        else None,
        ", ".join(plural(count, word) for word, count in sorted(hidden.items())),
    )


def _across(
    boxes: Mapping[str, Box], rows: Mapping[Row, Sequence[Box]], near: Mapping[str, set[str]]
) -> tuple[dict[str, Box], float]:
    """The boxes that find room, left and right placed, and where the first machine's frame ends."""
    # Further machines are one box each; they and the longest row share the page's width.
    beside = [_sized(box, WIDEST_SLOT) for box in boxes.values() if box.whole][
        : MOST_MACHINES - 1
    ]
    room = WIDEST - sum(box.width + MACHINE_GAP for box in beside)
    longest = max(
        (len(row) for (rank, _), row in rows.items() if NVSWITCH <= rank <= NIC), default=1
    )
    slot = min(max(room / min(longest, MOST_IN_A_ROW), NARROWEST_SLOT), WIDEST_SLOT)
    placed: dict[str, Box] = {}

    def place(row: Sequence[Box], slot: float, most: int) -> None:
        """Place boxes over what they lead to."""
        sized = [_sized(box, slot) for box in row[:most]]
        found = _apart(
            [_wanted(box.name, placed, near) for box in sized], [box.width for box in sized]
        )
        placed.update(
            {box.name: replace(box, x=x) for box, x in zip(sized, found, strict=True)}
        )

    # Each row finds its places over what it already leads to, so GPUs come first.
    order = (GPU, PCIE, CPU, NIC, NVSWITCH, NETWORK, SHARED_NVSWITCH)
    turns = sorted(rows, key=lambda key: (order.index(key[0]), key[1]))
    for key in turns:
        if NVSWITCH <= key[0] <= NIC:
            place(rows[key], slot, MOST_IN_A_ROW)
    left, right = _reach(placed)
    framed = right = right + FRAME_PAD
    for box in beside:
        right += MACHINE_GAP + box.width
        placed[box.name] = replace(box, x=right - box.width / 2)
    most = max(4, min(MOST_IN_A_ROW, int((right - left) / WIDEST_SLOT)))
    for key in turns:
        if not NVSWITCH <= key[0] <= NIC:
            # Of the switches that nothing drawn leads to there is nothing to say.
            place(
                [box for box in rows[key] if near[box.name] & placed.keys()], WIDEST_SLOT, most
            )
    return placed, framed


def _sized(box: Box, slot: float) -> Box:
    """Give ``box`` the width that ``slot`` and its words allow."""
    if box.count > 1 or box.whole:
        least = max(text_width(box.label, 8), text_width(box.detail, 7)) + 0.16
        return replace(box, width=max(least, slot - GAP))
    return replace(box, width=slot - GAP, detail=fitting(box.detail, 7, slot - GAP - 0.04))


def _reach(placed: Mapping[str, Box]) -> tuple[float, float]:
    """Left and right end of the boxes."""
    left = min((box.x - box.width / 2 for box in placed.values()), default=0.0)
    return left, max((box.x + box.width / 2 for box in placed.values()), default=0.0)


def _wanted(name: str, placed: Mapping[str, Box], near: Mapping[str, set[str]]) -> float | None:
    """The middle of what a box leads to and stands already; None where that is nothing."""
    reached = {name}
    for _ in range(3):
        reached |= {other for one in reached for other in near[one]}
        found = [placed[one] for one in sorted(reached) if one in placed]
        # Over what the first machine has; a box for other machines is beside it anyway.
        found = [one for one in found if not one.whole] or found
        if found:
            return sum(one.x for one in found) / len(found)
    return None


def _widen(placed: dict[str, Box], near: Mapping[str, set[str]]) -> None:
    """Let switches reach over all that hangs on them, in rows where no two would touch."""
    rows: dict[tuple[float, int], list[Box]] = {}
    for box in placed.values():
        if box.kind in (DeviceKind.NVSWITCH, DeviceKind.NETWORK_SWITCH):
            rows.setdefault(
                (box.y, 1 if box.kind is DeviceKind.NETWORK_SWITCH else -1), []
            ).append(box)
    # From below upwards, for spines reach over leaves that reach over NICs.
    for (y, up), row in sorted(rows.items()):
        spans = []
        for box in row:
            own = [
                placed[one]
                for one in near[box.name]
                if one in placed and (y - placed[one].y) * up > 0.01
            ]
            left, right = _reach({one.name: one for one in own or [box]})
            spare = max(0.0, box.width - (right - left)) / 2
            spans.append((left - spare, right + spare, box))
        spans.sort(key=lambda span: span[:2])
        if all(one[1] + GAP / 2 <= other[0] for one, other in itertools.pairwise(spans)):
            for left, right, box in spans:
                placed[box.name] = replace(box, x=(left + right) / 2, width=right - left)


def _apart(wanted: Sequence[float | None], widths: Sequence[float]) -> list[float]:
    """Find the nearest places with room between boxes, in the order that is wanted; None is at the right."""
    ends = [x for x in wanted if x is not None]
    order = sorted(
        range(len(wanted)),
        key=lambda index: (wanted[index] is None, wanted[index] or 0.0, index),
    )
    # Boxes that would touch become a cluster, which stands where its members would on average.
    clusters: list[tuple[float, list[int]]] = []

    def width(members: Sequence[int]) -> float:
        return sum(widths[index] + GAP for index in members)

    for index in order:
        x = wanted[index]
        middle, members = (max(ends, default=0.0) if x is None else x), [index]
        while (
            clusters
            and clusters[-1][0] + (width(clusters[-1][1]) + width(members)) / 2 > middle + 1e-9
        ):
            before, others = clusters.pop()
            middle = (before * len(others) + middle * len(members)) / (
                len(others) + len(members)
            )
            members = others + members
        clusters.append((middle, members))
    places = [0.0] * len(wanted)
    for middle, members in clusters:
        left = middle - width(members) / 2
        for index in members:
            places[index] = left + (widths[index] + GAP) / 2
            left += widths[index] + GAP
    return places


def text_width(text: str, points: float) -> float:
    """Inches that a line of DejaVu Sans takes at most: capitals and digits are two thirds of its size."""
    widths = (
        0.36 if one in " .,:;|iljtf'·" else 0.84 if one in "→←↑↓" else 0.66 for one in text
    )
    return sum(widths) * points / 72


def fitting(text: str, points: float, width: float) -> str:
    """``text``, or its beginning and an ellipsis where it is wider than ``width`` inches."""
    kept = len(text)
    while kept and text_width(text[:kept] + "…" * (kept < len(text)), points) > width:
        kept -= 1
    return text[:kept] + "…" * (kept < len(text))


def drawn_lines(lines: Sequence[MergedLink], boxes: Mapping[str, Box]) -> list[MergedLink]:
    """Those of ``lines`` between placed boxes, with their ways and labels; the widest is drawn last."""
    lines = [line for line in lines if {line.source, line.target} <= boxes.keys()]
    ports = _ports(lines, boxes)
    rows: dict[float, list[Box]] = {}
    for box in boxes.values():
        rows.setdefault(round(box.y, 3), []).append(box)
    used: set[Point] = set()
    drawn = []
    for index, line in enumerate(lines):
        start, end = ports[index, line.source], ports[index, line.target]
        way: list[Point] = [start, *_between(rows, used, start, end), end]
        if abs(start[1] - end[1]) < 0.01:
            high = _arc_height(start[0] - end[0]) * _side(
                boxes[line.source], boxes[line.target]
            )
            if boxes[line.source].kind is not DeviceKind.GPU:
                high = max(-0.3, min(high, 0.3))
            steps = [step / ARC_STEPS for step in range(ARC_STEPS + 1)]
            way = [
                (start[0] + t * (end[0] - start[0]), start[1] + 4 * high * t * (1 - t))
                for t in steps
            ]
        drawn.append(replace(line, points=tuple(way)))
    return sorted(_labelled(drawn, boxes), key=lambda line: line.bytes_per_second or 0.0)


def _arc_height(across: float) -> float:
    """Distance that an arc within a row stands out."""
    return 0.1 + 0.26 * abs(across)


def _side(box: Box, other: Box) -> int:
    """1 where a line to ``other`` leaves ``box`` at its upper edge, else -1.

    Within a row it passes below GPUs and NVSwitches: over GPUs there is PCIe, over NVSwitches GPUs.
    """
    if abs(box.y - other.y) < 0.01:
        below = box.kind in (DeviceKind.GPU, DeviceKind.NVSWITCH) and not (
            box.whole or other.whole
        )
        return -1 if below else 1
    return 1 if other.y > box.y else -1


def _ports(
    lines: Sequence[MergedLink], boxes: Mapping[str, Box]
) -> dict[tuple[int, str], Point]:
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
        xs = [
            box.x + 0.7 * box.width * ((place + 0.5) / len(ends) - 0.5)
            for place in range(len(ends))
        ]
        over = [
            ports.get((index, other), (x, 0.0))[0]
            for x, (_, index, other) in zip(xs, ends, strict=True)
        ]
        # Straight up or down where all can be; at a corner lines would meet.
        if all(abs(x - box.x) <= box.width / 2 - 0.1 for x in over) and len(set(over)) == len(
            over
        ):
            xs = over
        for x, (_, index, _) in zip(xs, ends, strict=True):
            ports[index, name] = (x, box.y + side * HEIGHT / 2)
    return ports


def _between(
    rows: Mapping[float, Sequence[Box]], used: set[Point], start: Point, end: Point
) -> list[Point]:
    """Corners of a way through a gap of every row that lies between ``start`` and ``end``."""
    toward = 1 if start[1] < end[1] else -1
    corners: list[Point] = []
    here = start[0]
    for y in sorted((y for y in rows if (y - start[1]) * (end[1] - y) > 0), reverse=toward < 0):
        wanted = here if abs(here - end[0]) < 0.4 else (here + end[0]) / 2
        offers = [wanted] + [
            box.x + side * (box.width / 2 + 0.07 + 0.05 * turn)
            for box in rows[y]
            for turn in range(8)
            for side in (-1, 1)
        ]
        # The outermost place is always free; a place of its own where there is room for one.
        free = [
            x for x in offers if all(abs(x - box.x) >= box.width / 2 + 0.04 for box in rows[y])
        ]
        unused = [
            x for x in free if all(at != y or abs(x - other) > 0.01 for other, at in used)
        ]
        here = min(unused or free, key=lambda x: abs(x - wanted))
        used.add((here, y))
        half = toward * (HEIGHT / 2 + 0.05)
        corners += [(here, y - half), (here, y + half)]
    return corners


def _labelled(lines: Sequence[MergedLink], boxes: Mapping[str, Box]) -> list[MergedLink]:
    """Words on lines where they cover neither a box nor another label; without such a place they stay out.

    One line between rows of each number and rate has words, and all that are not as lines are meant to be.
    """
    high = 0.085
    taken = [
        (box.x - box.width / 2, box.y - HEIGHT / 2, box.x + box.width / 2, box.y + HEIGHT / 2)
        for box in boxes.values()
    ]
    said: set[object] = set()
    found = []
    # Of a bundle the line at the left has the words; those that are odd find their places first.
    for line in sorted(lines, key=lambda line: (not _is_odd(line), min(line.points))):
        label = _words(line, boxes[line.source], boxes[line.target])
        half = text_width(label, LABEL_POINTS) / 2 + 0.03
        wanted = _is_odd(line) or (label not in said and len(line.points) <= ARC_STEPS)
        for place in _PLACES if label and wanted else ():
            x, y = line_point(line.points, place)
            box = (x - half, y - high, x + half, y + high)
            if all(
                box[2] <= a or c <= box[0] or box[3] <= b or d <= box[1] for a, b, c, d in taken
            ):
                taken.append(box)
                said.add(label)
                line = replace(line, label=label, label_at=(x, y))
                break
        found.append(line)
    return found


def _is_odd(line: MergedLink) -> bool:
    """Tell whether a line has words although others like it have: it is not as lines are meant to be."""
    return line.state is not LinkState.UP or line.back is not None


def way_words(count: int, rate: float | None, is_counted: bool = True, *, one: str = "") -> str:
    """``x18, 450 GB/s``: number and rate of links in one direction. one: said of a single link."""
    number = (f"x{count}" if count > 1 else one) if is_counted else "number not stated"
    return ", ".join(word for word in (number, format_rate(rate) if rate else "") if word)


def _words(line: MergedLink, one: Box, other: Box) -> str:
    """Number and rate of the links of a line, of both directions where they differ, and what they are of."""
    is_up = line.state is LinkState.UP
    # A link that carries nothing has no rate.
    rate = line.bytes_per_second if is_up else None
    text = way_words(line.count, rate, line.is_counted, one="x1" if _is_odd(line) else "")
    if line.back is not None:
        right, up = other.x - one.x, other.y - one.y
        is_flat = abs(right) >= abs(up)
        arrows = ("→", "←") if is_flat else ("↑", "↓")
        there, here = arrows[:: 1 if (right if is_flat else up) >= 0 else -1]
        text = f"{there} {text} " + (
            f"{here} {way_words(*line.back, one='x1')}" if line.back[0] else "only"
        )
    if not is_up:
        text += f" {line.state.value.replace('_', ' ')}"
    lower = min(one, other, key=lambda box: (box.kind is not DeviceKind.GPU, box.y))
    return f"{text} each" if text and lower.each else text


def line_point(points: Sequence[Point], place: float) -> Point:
    """The point at ``place`` (0 to 1) of a way."""
    index = min(int(place * (len(points) - 1)), len(points) - 2)
    part = place * (len(points) - 1) - index
    (x, y), (end_x, end_y) = points[index : index + 2]
    return x + part * (end_x - x), y + part * (end_y - y)
