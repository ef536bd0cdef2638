"""The finished plan of a topology's picture: boxes, lines, frames and remarks; in inches."""

from __future__ import annotations

from dataclasses import dataclass, field

from ccbench.topology.graph import DeviceKind, LinkKind, LinkState

BOX_WIDTH, BOX_HEIGHT = 0.72, 0.36


@dataclass(frozen=True)
class Placed:
    """A box; ``x`` and ``y`` are its middle."""

    kind: DeviceKind
    x: float
    y: float
    label: str
    detail: str = ""
    on_circle: bool = False
    width: float = BOX_WIDTH
    height: float = BOX_HEIGHT
    stands_for: int = 1

    @property
    def hangs(self) -> bool:
        """Whether lines to boxes of its own row pass below: over GPUs there is PCIe."""
        return self.kind is DeviceKind.GPU


@dataclass(frozen=True)
class Drawn:
    """One line: all links of a kind and state between two devices; the rate is of one direction.

    control: the point a curved line bends towards; None for a straight one.
    points: its ends and the corners between them, on the edges of its boxes; empty on a circle.
    """

    source: str
    target: str
    kind: LinkKind
    state: LinkState
    count: int
    bytes_per_second: float | None
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
    """The finished plan; frames are (left, bottom, width, height, label), remarks (x, y, text)."""

    width: float = 0.0
    height: float = 0.0
    devices: dict[str, Placed] = field(default_factory=dict)
    links: list[Drawn] = field(default_factory=list)
    frames: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    remarks: list[tuple[float, float, str]] = field(default_factory=list)
