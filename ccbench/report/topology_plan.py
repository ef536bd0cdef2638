"""The finished plan of a topology's picture: boxes, lines, frames and remarks; in inches."""

from __future__ import annotations

from dataclasses import dataclass, field

from ccbench.topology.graph import DeviceKind, LinkKind, LinkState

BOX_WIDTH, BOX_HEIGHT = 0.76, 0.4


Way = tuple[int, float | None]
"""Links in one direction: how many, and their bytes per second together."""

SHORT_ARC = 0.13
"""Inches from a short arc to its label."""


def text_width(text: str, points: float) -> float:
    """Inches that a line of DejaVu Sans takes at most: capitals and digits are two thirds of its size."""
    widths = (0.36 if one in " .,:;|iljtf'·" else 0.84 if one in "→←↑↓" else 0.66 for one in text)
    return sum(widths) * points / 72


def fitting(text: str, points: float, width: float) -> str:
    """``text``, or its beginning and an ellipsis where it is wider than ``width`` inches."""
    if text_width(text, points) <= width:
        return text
    kept = next(
        (size for size in range(len(text) - 1, 0, -1) if text_width(f"{text[:size]}…", points) <= width), 0
    )
    return f"{text[:kept]}…"


@dataclass(frozen=True)
class Placed:
    """A box; ``x`` and ``y`` are its middle.

    per: what a line's numbers are of where the box stands for several devices. ghost: more like others.
    """

    kind: DeviceKind
    x: float
    y: float
    label: str
    detail: str = ""
    on_circle: bool = False
    width: float = BOX_WIDTH
    height: float = BOX_HEIGHT
    per: str = ""
    ghost: bool = False

    @property
    def hangs(self) -> bool:
        """Whether lines to boxes of its own row pass below: over GPUs there is PCIe, over NVSwitches GPUs."""
        return self.kind in (DeviceKind.GPU, DeviceKind.NVSWITCH)


@dataclass(frozen=True)
class Drawn:
    """One line: all links of a kind and state between two devices; the rate is of one direction.

    bytes_per_second: None where it is not known of all of them.
    back: number and rate of the links from target to source where they differ, (0, None) without any; None
    where both directions are alike.
    control: the point a curved line bends towards; None for a straight one.
    points: its ends and the corners between them, on the edges of its boxes; empty on a circle.
    """

    source: str
    target: str
    kind: LinkKind
    state: LinkState
    count: int
    bytes_per_second: float | None
    back: Way | None = None
    label: str = ""
    label_at: float = 0.5
    control: tuple[float, float] | None = None
    points: tuple[tuple[float, float], ...] = ()

    def begin(self, layout: Layout) -> tuple[float, float]:
        """Where the line leaves its source: at its edge, on a circle from its middle."""
        if self.points:
            return self.points[0]
        one = layout.devices[self.source]
        return one.x, one.y

    def end(self, layout: Layout) -> tuple[float, float]:
        """Where it meets its target."""
        if self.points:
            return self.points[-1]
        one = layout.devices[self.target]
        return one.x, one.y


@dataclass
class Layout:
    """The finished plan; frames are (left, bottom, width, height), remarks (x, y, text)."""

    width: float = 0.0
    height: float = 0.0
    devices: dict[str, Placed] = field(default_factory=dict)
    links: list[Drawn] = field(default_factory=list)
    frames: list[tuple[float, float, float, float]] = field(default_factory=list)
    remarks: list[tuple[float, float, str]] = field(default_factory=list)


def line_point(line: Drawn, layout: Layout, place: float) -> tuple[float, float]:
    """The point at ``place`` (0 to 1) of a line: of its curve, or of the first stretch between corners."""
    begin, end = line.begin(layout), line.end(layout)
    control = line.control
    if control is None:
        begin, end = line.points[:2] if line.points else (begin, end)
        control = (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2
    near, far = (1 - place) ** 2, place**2
    across = 1 - near - far
    x, y = (near * begin[axis] + across * control[axis] + far * end[axis] for axis in (0, 1))
    return x, y


def label_point(line: Drawn, layout: Layout, place: float) -> tuple[float, float]:
    """Where a label at ``place`` has its middle: on the line, but beside an arc that it would hide."""
    x, y = line_point(line, layout, place)
    if line.control is not None and line.points:
        span = abs(line.points[0][0] - line.points[-1][0])
        if span < 1.6 * text_width(line.label, 7):
            y += SHORT_ARC if line.control[1] > line.points[0][1] else -SHORT_ARC
    return x, y
