"""A topology as a picture: network at the top, then NICs, processors, PCIe switches, GPUs, NVSwitches.

Kinds of links differ by colour and by dashes, rates by width; equal links side by side are one line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
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
from ccbench.report.topology_layout import (
    HEIGHT,
    LABEL_POINTS,
    PictureLayout,
    laid_out,
    way_words,
)
from ccbench.report.topology_merged import MergedLink
from ccbench.topology.graph import DeviceKind, LinkKind, LinkState, Topology, TopologyClass
from ccbench.topology.summary import device_count, node_count
from ccbench.units import plain, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOT_UP: dict[LinkState, tuple[str, tuple[float, ...]]] = {
    LinkState.DOWN: ("#C00000", (1.0, 2.0)),
    LinkState.NOT_VISIBLE: ("#808080", (3.0, 2.0)),
}
"""Colour and dashes of links that carry nothing, or of which nobody could see whether they do."""

NOT_UP_POINTS = 1.4
WIDEST_RATE = 450e9
"""Bytes per second of a line five points wide: all NVLinks of an H100 in one direction."""

DASH_POINTS = 1.7
"""Length of a dash of length one."""

LEAST_WIDTH = 7.6
"""Inches: room for the title and the legend."""

LABEL_BOX = {
    "boxstyle": "square,pad=0.08",
    "facecolor": "white",
    "edgecolor": "none",
    "alpha": 0.9,
}
LEGEND_COLUMNS = 3
MOST_OF_A_KIND = 4


@dataclass(frozen=True)
class Look:
    """Drawing of a kind of link; ``dashes`` are on and off lengths, empty for a solid line."""

    label: str
    colour: str
    dashes: tuple[float, ...]


# Okabe and Ito, "Color Universal Design", 2008; dashes say the same on a grey print. The meshes of
# different makers never meet in one picture: all are solid, which many crossing lines need.
LOOKS: dict[LinkKind, Look] = {
    LinkKind.NVLINK: Look("NVLink", BLUE, ()),
    LinkKind.C2C: Look("NVLink C2C", SKY, (7, 1, 2, 1)),
    LinkKind.XGMI: Look("XGMI", PINK, ()),
    LinkKind.HCCS: Look("HCCS", ORANGE, ()),
    LinkKind.PCIE: Look("PCIe", VERMILION, (4, 1.5)),
    LinkKind.INTER_SOCKET: Look("between processors", "#7a7a7a", (1.2, 1.2)),
    LinkKind.SHARED_MEMORY: Look("shared memory", "#000000", (3, 1, 1, 1, 1, 1)),
    LinkKind.INFINIBAND: Look("InfiniBand", GREEN, (6, 1.5, 1.5, 1.5)),
    LinkKind.ROCE: Look("RoCE", "#7B3294", (6, 1.5)),
    LinkKind.EFA: Look("EFA", "#B8860B", (6, 1.5, 1.5, 1.5, 1.5, 1.5)),
    LinkKind.ETHERNET: Look("Ethernet", "#5E3C1E", (2.5, 1)),
}
FILLS: dict[DeviceKind, str] = {
    DeviceKind.GPU: "#d6e8f5",
    DeviceKind.CPU: "#ececec",
    DeviceKind.NIC: "#d3efe5",
    DeviceKind.PCIE_SWITCH: "#fae3d4",
    DeviceKind.NVSWITCH: "#b9d7ec",
    DeviceKind.NETWORK_SWITCH: "#b5e3d3",
}


def draw_topology(topology: Topology, path: Path | str) -> None:
    """Draw ``topology`` into ``path``, whose ending chooses SVG, PNG or PDF.

    Of a cluster the first machines are drawn, then how many more there are. The same topology gives the
    same bytes. Raises UsageError for another ending, and where the file cannot be written.
    """
    save_picture(lambda: picture(topology), Path(path))


def picture(topology: Topology) -> Figure:
    """The drawing as a matplotlib figure."""
    from matplotlib.figure import Figure

    layout = laid_out(topology)
    handles, labels = _legend(layout.lines)
    note = "A wider line carries more; numbers are links and bytes per second in one direction."
    note = (note if handles else "") + (
        f"\nNot shown: {layout.left_out}." if layout.left_out else ""
    )
    margin, top, foot = 0.3, 0.62, 0.36 if "\n" not in note else 0.5
    bottom = foot + 0.12 + 0.2 * -(-len(labels) // LEGEND_COLUMNS)
    width = max(layout.width + 2 * margin, LEAST_WIDTH)
    height = layout.height + top + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    shift = (width - layout.width) / 2
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-shift, width - shift)
    axes.set_ylim(-bottom, layout.height + top)
    axes.axis("off")
    _draw(layout, axes)
    # The title, and what kind of machine it is.
    left = margin / width
    title = plain(topology.name or topology.source) or "topology"
    figure.text(left, 1 - 0.16 / height, title, fontsize=13, weight="bold", color=INK, va="top")
    nodes, gpus = (
        node_count(topology),
        device_count(topology, DeviceKind.GPU) or len(topology.gpus),
    )
    known = topology.topology_class is not TopologyClass.UNKNOWN
    words = [topology.topology_class.value] if known else []
    words += [plural(nodes, "machine")] if nodes > 1 else []
    words += [plural(gpus, "GPU") if gpus else "no GPU seen"]
    words += map(plain, topology.models[:2])
    figure.text(left, 1 - 0.42 / height, ", ".join(words), fontsize=9, color=GREY, va="top")
    figure.text(left, 0.14 / height, note, fontsize=7.5, color=GREY, va="bottom")
    if handles:
        figure.legend(
            handles,
            labels,
            loc="lower left",
            bbox_to_anchor=(left, foot / height),
            ncols=LEGEND_COLUMNS,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            handlelength=3.2,
            fontsize=8.5,
            columnspacing=1.6,
        )
    return figure


def _draw(layout: PictureLayout, axes: Axes) -> None:
    """Draw the first machine's frame where there are more, then lines, then boxes over them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch

    def rounded(
        left: float, low: float, width: float, height: float, rounding: float, **style: Any
    ) -> None:
        shape = f"round,pad=0,rounding_size={rounding}"
        axes.add_patch(FancyBboxPatch((left, low), width, height, boxstyle=shape, **style))

    def centred(x: float, y: float, text: str, **style: Any) -> None:
        axes.text(x, y, text, ha="center", va="center", **style)

    if layout.frame:
        rounded(
            *layout.frame,
            rounding=0.12,
            zorder=0,
            facecolor="#fafaf8",
            edgecolor="#c8c8c8",
            linewidth=0.9,
        )
        left, low, _, height = layout.frame
        # In the corner that no line to the network or to shared switches passes.
        y = low + (height - 0.16 if any(box.y < low for box in layout.boxes.values()) else 0.16)
        centred(left + 0.5, y, "machine 0", fontsize=9, color=GREY, zorder=8)
    for line in layout.lines:
        style = _style(line.kind, line.state, _line_width(line.count, line.bytes_per_second))
        xs, ys = zip(*line.points, strict=True)
        axes.add_line(
            Line2D(
                xs,
                ys,
                dash_capstyle="butt",
                solid_capstyle="butt",
                alpha=0.85,
                zorder=2,
                **style,
            )
        )
        if line.label:
            label = {"fontsize": LABEL_POINTS, "color": style["color"], "bbox": LABEL_BOX}
            centred(*line.label_at, line.label, zorder=4, **label)
    for box in layout.boxes.values():
        fill, edge = ("white", GREY) if box.more else (FILLS[box.kind], INK)
        rounded(
            box.x - box.width / 2,
            box.y - HEIGHT / 2,
            box.width,
            HEIGHT,
            rounding=0.07,
            facecolor=fill,
            edgecolor=edge,
            linewidth=0.8,
            linestyle=(0, (4, 2)) if box.more else "solid",
            zorder=5,
        )
        bold = box.kind is DeviceKind.GPU and box.width > 0.6 and not box.more
        y, weight = box.y + (0.075 if box.detail else 0.0), "bold" if bold else "normal"
        centred(box.x, y, box.label, fontsize=8, color=INK, weight=weight, zorder=6)
        if box.detail:
            centred(box.x, box.y - 0.095, box.detail, fontsize=7, color="#555555", zorder=6)


def _line_width(count: int, bytes_per_second: float | None) -> float:
    """Points: grows with the square root of the rate, so that 12 and 900 GB/s can both be seen."""
    if bytes_per_second is None:
        return 0.6 + 0.5 * float(min(count, 36) ** 0.5)
    return 0.7 + 4.3 * float(min(bytes_per_second / WIDEST_RATE, 1.5) ** 0.5)


def _style(kind: LinkKind, state: LinkState, points: float) -> dict[str, Any]:
    """Colour, width and dashes; matplotlib multiplies dashes by the width, these are to stay as they are."""
    colour, dashes = NOT_UP.get(state, (LOOKS[kind].colour, LOOKS[kind].dashes))
    points = NOT_UP_POINTS if state in NOT_UP else points
    style = (0, tuple(dash * DASH_POINTS / points for dash in dashes)) if dashes else "solid"
    return {"color": colour, "linewidth": points, "linestyle": style}


def _legend(lines: Sequence[MergedLink]) -> tuple[list[Any], list[str]]:
    """A row for each kind, number and rate, the fastest first; of a kind with many the most frequent."""
    from matplotlib.lines import Line2D

    looks = Counter(
        (line.kind, line.count, line.bytes_per_second, line.is_counted)
        for line in lines
        if line.state is LinkState.UP
    )
    chosen: list[tuple[LinkKind, int, float | None, bool]] = []
    for entry, _ in looks.most_common():
        if sum(entry[0] is other[0] for other in chosen) < MOST_OF_A_KIND:
            chosen.append(entry)
    chosen.sort(key=lambda entry: (-(entry[2] or 0.0), -entry[1], LOOKS[entry[0]].label))
    entries: dict[str, Any] = {}
    for kind, count, rate, counted in chosen:
        style = _style(kind, LinkState.UP, _line_width(count, rate))
        words = ", ".join(
            word for word in (LOOKS[kind].label, way_words(count, rate, counted)) if word
        )
        entries.setdefault(words, Line2D([], [], **style))
    for line in lines:
        if line.state in NOT_UP:
            style = _style(line.kind, line.state, NOT_UP_POINTS)
            entries.setdefault(line.state.value.replace("_", " "), Line2D([], [], **style))
    return list(entries.values()), list(entries)
