"""A topology as a picture: network at the top, then NICs, processors, PCIe switches, GPUs, NVSwitches.

The first machine is drawn; the others are one box, and so are devices of a kind that are linked alike, where there are
many. Kinds of links differ by colour and by dashes, rates by width; numbers stand on one link of a kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.report.drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PINK,
    SKY,
    VERMILION,
    save_picture,
)
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)
from ccbench.topology.matrix import is_counted
from ccbench.topology.node_nics import ASSUMED
from ccbench.topology.summary import device_count, node_count
from ccbench.units import format_rate, plain, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLOT, HEIGHT, ROW, MARGIN, FOOT = 0.86, 0.4, 1.0, 0.3, 1.2
"""Inches: a device with its gap, a box, a row, around the picture, and below it for the legend."""

WIDEST, MOST_IN_A_ROW = 9.2, 16
WIDEST_RATE = 450e9
"""Bytes per second of a line five points wide: all NVLinks of an H100 in one direction."""

# Row from the top, one, many, colour. Links between two kinds are counted at the one named first.
KINDS: dict[DeviceKind, tuple[int, str, str, str]] = {
    DeviceKind.GPU: (4, "GPU", "GPUs", "#d6e8f5"),
    DeviceKind.NIC: (1, "NIC", "NICs", "#d3efe5"),
    DeviceKind.PCIE_SWITCH: (3, "PCIe", "PCIe switches", "#fae3d4"),
    DeviceKind.CPU: (2, "CPU", "CPUs", "#ececec"),
    DeviceKind.NVSWITCH: (5, "NVSwitch", "NVSwitches", "#b9d7ec"),
    DeviceKind.NETWORK_SWITCH: (0, "switch", "network switches", "#b5e3d3"),
}
MERGED = (DeviceKind.NETWORK_SWITCH, DeviceKind.NVSWITCH)
OTHERS = "other machines"

NOT_UP: dict[LinkState, tuple[str, tuple[float, ...]]] = {
    LinkState.DOWN: ("#C00000", (1.0, 2.0)),
    LinkState.NOT_VISIBLE: ("#808080", (3.0, 2.0)),
}
"""Colour and dashes of links that carry nothing, or of which nobody could see whether they do."""


# Okabe and Ito, "Color Universal Design", 2008; dashes say the same on a grey print. The meshes of
# different makers never meet in one picture: all are solid, which many crossing lines need.
# Word, colour, and lengths of dashes and gaps.
LOOKS: dict[LinkKind, tuple[str, str, tuple[float, ...]]] = {
    LinkKind.NVLINK: ("NVLink", BLUE, ()),
    LinkKind.C2C: ("NVLink C2C", SKY, (7, 1, 2, 1)),
    LinkKind.XGMI: ("XGMI", PINK, ()),
    LinkKind.HCCS: ("HCCS", ORANGE, ()),
    LinkKind.PCIE: ("PCIe", VERMILION, (4, 1.5)),
    LinkKind.INTER_SOCKET: ("between processors", "#7a7a7a", (1.2, 1.2)),
    LinkKind.SHARED_MEMORY: ("shared memory", "#000000", (3, 1, 1, 1, 1, 1)),
    LinkKind.INFINIBAND: ("InfiniBand", GREEN, (6, 1.5, 1.5, 1.5)),
    LinkKind.ROCE: ("RoCE", "#7B3294", (6, 1.5)),
    LinkKind.EFA: ("EFA", "#B8860B", (6, 1.5, 1.5, 1.5, 1.5, 1.5)),
    LinkKind.ETHERNET: ("Ethernet", "#5E3C1E", (2.5, 1)),
}


@dataclass(frozen=True)
class Box:
    """One device, or several of a kind; ``x``, ``y`` (its middle) and ``width`` in inches."""

    name: str
    label: str
    kind: DeviceKind
    devices: int
    x: float = 0.0
    y: float = 0.0
    width: float = SLOT - 0.1

    @property
    def left(self) -> float:
        """Its left edge."""
        return self.x - self.width / 2

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width / 2


@dataclass(frozen=True)
class Line:
    """All links of a kind and state between two boxes, as one device of ``low`` has them."""

    low: Box
    high: Box
    kind: LinkKind
    state: LinkState
    count: int
    bytes_per_second: float | None

    @property
    def numbers(self) -> str:
        """``x18, 450 GB/s``, in one direction; the state of links that are not up."""
        if self.low.name == OTHERS:
            return ""
        if self.state is not LinkState.UP:
            return str(self.state.value).replace("_", " ")
        count = f"x{self.count}" if self.count > 1 else ""
        rate = format_rate(self.bytes_per_second) if self.bytes_per_second else ""
        each = " each" if (count or rate) and self.low.devices > 1 else ""
        return ", ".join(filter(None, (count, rate))) + each

    @property
    def style(self) -> dict[str, Any]:
        """Colour, width in points and dashes: the width grows with the root of the rate."""
        colour, dashes = NOT_UP.get(self.state, LOOKS[self.kind][1:])
        share = min((self.bytes_per_second or 10e9) / WIDEST_RATE, 1.5)
        width = 0.7 + 4.3 * share**0.5 if self.state is LinkState.UP else 1.4
        dashed = (0, tuple(1.7 * dash / width for dash in dashes)) if dashes else "solid"
        return {"color": colour, "linewidth": width, "linestyle": dashed}


def draw_topology(topology: Topology, path: Path | str) -> None:
    """Draw ``topology`` into ``path``, whose ending chooses SVG, PNG or PDF.

    The same topology gives the same bytes. Raises UsageError for another ending, and where the file cannot be written.
    """
    save_picture(lambda: picture(topology), Path(path))


def boxes_of(topology: Topology) -> dict[str, Box]:
    """Return the box of every device, placed: rows of equal width, each kind's in the order of its devices."""
    rows: dict[int, list[Box]] = defaultdict(list)
    box_of: dict[str, str] = {}
    for kind, (row, one, many, _) in KINDS.items():
        devices = [device for device in topology.of_kind(kind) if device.node <= 0]
        for group in _groups(devices, topology.links, kind in MERGED):
            number = plain(group[0].name.rpartition(".")[2].removeprefix(one.lower()), 8)
            label = f"{len(group)} {many}" if len(group) > 1 else f"{one} {number}"
            rows[row].append(Box(group[0].name, label, kind, len(group)))
            box_of |= dict.fromkeys((device.name for device in group), group[0].name)
    most = max((len(row) for row in rows.values()), default=1)
    widest = most * min(SLOT, WIDEST / most) if most > 1 else 3.2
    placed: dict[str, Box] = {}
    for height, rank in enumerate(sorted(rows, reverse=True)):
        slot = widest / len(rows[rank])
        for place, box in enumerate(rows[rank]):
            # A box of several reaches over its row, so that links drop straight into it.
            width = slot if box.devices > 1 else min(slot, SLOT)
            placed[box.name] = replace(
                box, x=(place + 0.5) * slot, y=height * ROW, width=width - 0.1
            )
    others = node_count(topology) - 1
    if others > 0:
        words = plural(others, "more machine")
        y = max((box.y for box in placed.values() if box.kind not in MERGED), default=0.0)
        placed[OTHERS] = Box(OTHERS, words, DeviceKind.NIC, others, widest + 1.1, y, 1.6)
        box_of |= {device.name: OTHERS for device in topology.devices if device.node > 0}
    return {device: placed[name] for device, name in box_of.items()}


def _groups(
    devices: Sequence[Device], links: Iterable[Link], merged: bool
) -> Iterable[Sequence[Device]]:
    """Return devices one by one, or, where there are many, those together whose links are alike."""
    ways: dict[str, set[Any]] = {device.name: set() for device in devices}
    if not merged and len(devices) <= MOST_IN_A_ROW:
        return [[device] for device in devices]
    for link in links:
        if link.source in ways:
            rate = None if merged else link.bytes_per_second
            ways[link.source].add((link.kind, link.state, rate))
    alike: dict[frozenset[Any], list[Device]] = defaultdict(list)
    for device in devices:
        alike[frozenset(ways[device.name])].append(device)
    return alike.values() if len(alike) <= MOST_IN_A_ROW else [devices]


def lines_of(topology: Topology, boxes: Mapping[str, Box]) -> list[Line]:
    """Return a line for all links of a kind and state between two boxes."""
    order = list(KINDS)
    ways: dict[tuple[Box, Box, LinkKind, LinkState], list[Link]] = defaultdict(list)
    for link in topology.links:
        low, high = boxes.get(link.source), boxes.get(link.target)
        if low and high and low is not high and low.name in (link.source, OTHERS):
            ways[low, high, link.kind, link.state].append(link)
    lines = []
    for (low, high, kind, state), links in ways.items():
        if (order.index(low.kind), low.name) > (order.index(high.kind), high.name):
            continue  # its other direction stands for both
        rates = [link.bytes_per_second for link in links]
        rate = None if None in rates else sum(filter(None, rates))
        count = sum(link.count for link in links) if all(map(is_counted, links)) else 0
        lines.append(Line(low, high, kind, state, count, rate))
    return lines


def picture(topology: Topology) -> Figure:
    """Return the drawing as a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch

    boxes = boxes_of(topology)
    shown = {box.name: box for box in boxes.values()}.values()
    lines = lines_of(topology, boxes)
    width = max([7.0, *(box.right for box in shown)]) + 2 * MARGIN
    arcs = (abs(line.low.x - line.high.x) for line in lines if line.low.y == line.high.y)
    foot = FOOT + 0.2 * max(arcs, default=0.0)
    height = max((box.y for box in shown), default=0.0) + foot + 1.1
    figure = Figure(figsize=(width, height), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-MARGIN, width - MARGIN)
    axes.set_ylim(-foot, height - foot)
    axes.axis("off")
    _draw_lines(axes, lines)
    for box in shown:
        corner, style = (box.left, box.y - HEIGHT / 2), "round,pad=0,rounding_size=0.07"
        colour = "white" if box.name == OTHERS else KINDS[box.kind][3]
        axes.add_patch(
            FancyBboxPatch(corner, box.width, HEIGHT, style, facecolor=colour, zorder=5)
        )
        axes.text(box.x, box.y, box.label, ha="center", va="center", fontsize=8, zorder=6)
    left, gpus = MARGIN / width, device_count(topology, DeviceKind.GPU) or len(topology.gpus)
    kind, nodes = topology.topology_class, node_count(topology)
    words = [kind.value] if kind is not TopologyClass.UNKNOWN else []
    words += [plural(nodes, "machine")] if nodes > 1 else []
    words += [plural(gpus, "GPU") if gpus else "no GPU seen", *map(plain, topology.models[:2])]
    if any(nic.attributes.get("place") == ASSUMED for nic in topology.of_kind(DeviceKind.NIC)):
        words.append("places of NICs assumed")
    title = plain(topology.name or topology.source, 60) or "topology"
    figure.text(left, 1 - 0.16 / height, title, fontsize=13, weight="bold", color=INK, va="top")
    figure.text(left, 1 - 0.45 / height, ", ".join(words), fontsize=9, color=GREY, va="top")
    legend: dict[str, Any] = {}
    for line in lines:
        text = ", ".join(filter(None, (LOOKS[line.kind][0], line.numbers)))
        legend[text] = Line2D([], [], **line.style)
    if legend:
        note = "A wider line carries more; numbers are links and bytes per second in one direction."
        figure.text(left, 0.1 / height, note, fontsize=7.5, color=GREY, va="bottom")
        figure.legend(
            list(legend.values())[:9],
            list(legend)[:9],
            loc="lower left",
            bbox_to_anchor=(left, 0.3 / height),
            ncols=3,
            frameon=False,
            fontsize=8.5,
        )
    return figure


def _draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw lines, straight down where two boxes lie over each other, and numbers on one between two rows."""
    from matplotlib.patches import FancyArrowPatch

    beside: Counter[tuple[str, str]] = Counter()
    labelled = set()
    for line in lines:
        lower, upper = sorted((line.low, line.high), key=lambda box: (box.y, box.x))
        left, right = max(lower.left, upper.left), min(lower.right, upper.right)
        begin, end = ((left + right) / 2,) * 2 if left < right else (lower.x, upper.x)
        # Kinds of links between the same boxes stand side by side.
        shift = 0.12 * beside[line.low.name, line.high.name]
        beside[line.low.name, line.high.name] += 1
        is_arc = lower.y == upper.y
        axes.add_patch(
            FancyArrowPatch(
                (begin + shift, lower.y - HEIGHT / 2 * is_arc),
                (end + shift, upper.y - HEIGHT / 2 * is_arc),
                arrowstyle="-",
                connectionstyle="arc3,rad=0.35" if is_arc else "arc3",
                zorder=2,
                **line.style,
            )
        )
        if line.numbers and upper.y - lower.y == ROW and lower.y not in labelled:
            labelled.add(lower.y)
            place = (begin + end) / 2 + shift, (lower.y + upper.y) / 2
            box = {"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none"}
            axes.text(*place, line.numbers, ha="center", va="center", fontsize=7, bbox=box)
