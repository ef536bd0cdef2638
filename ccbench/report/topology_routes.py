"""Ways of lines: out of a box at its upper or lower edge only, and never behind another box."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

Point = tuple[float, float]
MARGIN, STEP = 0.07, 0.05
WIDE = 0.9
HIGHEST_ARC = 0.6
"""Of the 0.69 inches between rows."""


class Box(Protocol):
    """What a way needs to know of a box; x and y are its middle."""

    @property
    def x(self) -> float:
        """Inches from the left."""

    @property
    def y(self) -> float:
        """Inches from below."""

    @property
    def width(self) -> float:
        """Inches."""

    @property
    def height(self) -> float:
        """Inches."""

    @property
    def hangs(self) -> bool:
        """Whether lines to boxes of its own row pass below."""


class Router:
    """Finds a way for each of ``pairs`` of boxes; those on a circle are not its business."""

    def __init__(self, boxes: Mapping[str, Box], pairs: list[tuple[str, str]]) -> None:
        self.boxes = boxes
        self.pairs = pairs
        self.rows: dict[float, list[Box]] = {}
        for box in boxes.values():
            self.rows.setdefault(round(box.y, 3), []).append(box)
        self.used: set[tuple[float, float]] = set()

    def ways(self) -> list[tuple[Point, ...]]:
        """The corners of each pair's way; three for an arc within a row, whose second is the control."""
        ports = self._ports()
        found: list[tuple[Point, ...]] = []
        for index, (one, other) in enumerate(self.pairs):
            start, end = ports[index, 0], ports[index, 1]
            if abs(start[1] - end[1]) < 0.01 and self._side(one, other) == self._side(other, one):
                high = min(0.2 + 0.1 * abs(start[0] - end[0]), HIGHEST_ARC) * self._side(one, other)
                found.append((start, ((start[0] + end[0]) / 2, start[1] + high), end))
            else:
                found.append((start, *self._between(start, end), end))
        return found

    def _side(self, one: str, other: str) -> int:
        """1 where the line leaves ``one`` at its upper edge, else -1."""
        box, far = self.boxes[one], self.boxes[other]
        if abs(box.y - far.y) < 0.01:
            return -1 if box.hangs else 1
        return 1 if far.y > box.y else -1

    def _ports(self) -> dict[tuple[int, int], Point]:
        edges: dict[tuple[str, int], list[tuple[float, int, int]]] = {}
        for index, pair in enumerate(self.pairs):
            for end in (0, 1):
                one, other = pair[end], pair[1 - end]
                key = one, self._side(one, other)
                edges.setdefault(key, []).append((round(self.boxes[other].x, 3), index, end))
        ports: dict[tuple[int, int], Point] = {}
        for (name, side), lines in sorted(edges.items(), key=lambda edge: self.boxes[edge[0][0]].width):
            box = self.boxes[name]
            y = box.y + side * box.height / 2
            for place, (_, index, end) in enumerate(sorted(lines)):
                x = box.x + 0.7 * box.width * ((place + 0.5) / len(lines) - 0.5)
                if box.width > WIDE:
                    over = [ports.get((i, 1 - e), (middle, 0.0))[0] for middle, i, e in sorted(lines)]
                    # Straight up or down where all can be; at a corner lines would meet.
                    reachable = all(abs(one - box.x) <= box.width / 2 - 0.1 for one in over)
                    if reachable and len(set(over)) == len(over):
                        x = over[place]
                ports[index, end] = x, y
        return ports

    def _between(self, start: Point, end: Point) -> list[Point]:
        """Through a gap of every row that lies in between."""
        low, high = sorted((start[1], end[1]))
        rows = sorted(y for y in self.rows if low < y < high)
        corners: list[Point] = []
        here = start[0]
        for y in rows if start[1] < end[1] else reversed(rows):
            here = self._gap(y, here if abs(here - end[0]) < 0.4 else (here + end[0]) / 2)
            half = max(box.height for box in self.rows[y]) / 2 + 0.05
            toward = 1 if start[1] < end[1] else -1
            corners += [(here, y - toward * half), (here, y + toward * half)]
        return corners

    def _gap(self, y: float, wanted: float) -> float:
        def free(x: float) -> bool:
            return all(abs(x - box.x) >= box.width / 2 + 0.04 for box in self.rows[y])

        offers = [wanted + STEP * turn for turn in range(-4, 5)]
        for box in self.rows[y]:
            for turn in range(8):
                away = box.width / 2 + MARGIN + STEP * turn
                offers += [box.x - away, box.x + away]
        open_ = [x for x in offers if free(x)]
        # A line of its own where there is room for one; the outermost place is always free.
        unused = [x for x in open_ if (y, round(x, 2)) not in self.used]
        chosen = min(unused or open_, key=lambda x: (abs(x - wanted), x))
        self.used.add((y, round(chosen, 2)))
        return chosen
