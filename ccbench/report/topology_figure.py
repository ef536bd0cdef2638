"""A topology as a picture: network at the top, then NICs, processors, PCIe switches, GPUs, NVSwitches.

GPUs that are joined among themselves stand on a circle, so that every link can be followed. Kinds of links
differ by colour and by dashes, rates by width; equal links side by side are one line with their number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.report.drawing import save_picture
from ccbench.report.topology_layout import laid_out
from ccbench.report.topology_lines import LABEL_POINTS
from ccbench.report.topology_plan import Drawn, Layout, Placed, label_point
from ccbench.topology.graph import DeviceKind, LinkKind, LinkState, Topology, TopologyClass
from ccbench.topology.summary import node_count
from ccbench.units import format_rate, plain, plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, FAINT = "#222222", "#666666", "#f4f4f2"
NOT_UP: dict[LinkState, tuple[str, tuple[float, ...]]] = {
    LinkState.DOWN: ("#C00000", (1.0, 2.0)),
    LinkState.NOT_VISIBLE: ("#808080", (3.0, 2.0)),
}
"""Colour and dashes of links that carry nothing, or of which nobody could see whether they do."""

NOT_UP_POINTS = 1.4
WIDEST_RATE = 450e9
"""Bytes per second of a line five points wide: all NVLinks of an H100 in one direction."""

MOST_FULL_LINES = 80
"""More lines than these are drawn thinner, all by the same factor."""

DASH_POINTS = 1.7
"""How long a dash of length one is."""

LEAST_WIDTH = 7.6
"""Inches: room for the title and the legend."""

LEGEND_COLUMNS = 3
MOST_OF_A_KIND = 4


@dataclass(frozen=True)
class Look:
    """How a kind of link is drawn; ``dashes`` are on and off lengths, empty for a solid line."""

    label: str
    colour: str
    dashes: tuple[float, ...]


# Okabe and Ito, "Color Universal Design", 2008; dashes say the same on a grey print. The meshes of
# different makers never meet in one picture: all are solid, which many crossing lines need.
LOOKS: dict[LinkKind, Look] = {
    LinkKind.NVLINK: Look("NVLink", "#0072B2", ()),
    LinkKind.C2C: Look("NVLink C2C", "#56B4E9", (7, 1, 2, 1)),
    LinkKind.XGMI: Look("XGMI", "#CC79A7", ()),
    LinkKind.HCCS: Look("HCCS", "#E69F00", ()),
    LinkKind.PCIE: Look("PCIe", "#D55E00", (4, 1.5)),
    LinkKind.INTER_SOCKET: Look("between processors", "#7a7a7a", (1.2, 1.2)),
    LinkKind.SHARED_MEMORY: Look("shared memory", "#000000", (3, 1, 1, 1, 1, 1)),
    LinkKind.INFINIBAND: Look("InfiniBand", "#009E73", (6, 1.5, 1.5, 1.5)),
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
    thinner = min(1.0, (MOST_FULL_LINES / max(len(layout.links), 1)) ** 0.5)
    handles, labels = _legend(layout.links, thinner)
    rows = -(-len(labels) // LEGEND_COLUMNS)
    margin, top, bottom = 0.3, 0.62, 0.48 + 0.2 * rows
    width = max(layout.width + 2 * margin, LEAST_WIDTH)
    height = layout.height + top + bottom
    figure = Figure(figsize=(width, height), facecolor="white")
    shift = (width - layout.width) / 2
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(-shift, width - shift)
    axes.set_ylim(-bottom, layout.height + top)
    axes.axis("off")
    for frame in layout.frames:
        _frame(axes, frame)
    for link in layout.links:
        _link(axes, layout, link, thinner)
    for device in layout.devices.values():
        _device(axes, device)
    for x, y, text in layout.remarks:
        axes.text(x, y, text, ha="center", va="center", fontsize=9, color=GREY, zorder=8)
    _texts(figure, topology, width, height)
    if handles:
        note = "A wider line carries more; numbers are links and bytes per second in one direction."
        figure.text(0.3 / width, 0.14 / height, note, fontsize=7.5, color=GREY, va="bottom")
        figure.legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0.3 / width, 0.36 / height),
            ncols=LEGEND_COLUMNS, frameon=False, borderpad=0, borderaxespad=0, handlelength=3.2,
            fontsize=8.5, columnspacing=1.6,
        )  # fmt: skip
    return figure


def _frame(axes: Axes, frame: tuple[float, float, float, float]) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, bottom, width, height = frame
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, boxstyle="round,pad=0,rounding_size=0.12", facecolor="#fafaf8",
            edgecolor="#c8c8c8", linewidth=0.9, zorder=0,
        )
    )  # fmt: skip


def _line_width(link: Drawn) -> float:
    """Points: grows with the square root of the rate, so that 12 and 900 GB/s can both be seen."""
    if link.bytes_per_second is None:
        return 0.6 + 0.5 * float(min(link.count, 36) ** 0.5)
    return 0.7 + 4.3 * float(min(link.bytes_per_second / WIDEST_RATE, 1.5) ** 0.5)


def _dashes(dashes: Sequence[float], points: float) -> Any:
    """Dashes of the same length whatever the line's width, which matplotlib multiplies them by."""
    return (0, tuple(one * DASH_POINTS / points for one in dashes)) if dashes else "solid"


def _link(axes: Axes, layout: Layout, link: Drawn, thinner: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Curve

    look = LOOKS[link.kind]
    colour, dashes = NOT_UP.get(link.state, (look.colour, look.dashes))
    begin, end = link.begin(layout), link.end(layout)
    middle = ((begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2)
    control = link.control or middle
    points = NOT_UP_POINTS if link.state in NOT_UP else thinner * _line_width(link)
    corners, codes = [begin, control, end], [Curve.MOVETO, Curve.CURVE3, Curve.CURVE3]
    if link.points and link.control is None:
        corners, codes = list(link.points), [Curve.MOVETO] + [Curve.LINETO] * (len(link.points) - 1)
    axes.add_patch(
        PathPatch(
            Curve(corners, codes), facecolor="none",
            edgecolor=colour, linewidth=points,
            linestyle=_dashes(dashes, points), capstyle="butt", alpha=0.85, zorder=2,
        )
    )  # fmt: skip
    if link.label:
        x, y = label_point(link, layout, link.label_at)
        axes.text(
            x, y, link.label, ha="center", va="center", fontsize=LABEL_POINTS,
            color=colour, zorder=4,
            bbox={"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.9},
        )  # fmt: skip


def _device(axes: Axes, device: Placed) -> None:
    from matplotlib.patches import FancyBboxPatch

    left, bottom = device.x - device.width / 2, device.y - device.height / 2
    fill, edge = ("white", GREY) if device.ghost else (FILLS[device.kind], INK)
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), device.width, device.height, boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=fill, edgecolor=edge,
            linewidth=0.8, linestyle=(0, (4, 2)) if device.ghost else "solid", zorder=5,
        )
    )  # fmt: skip
    shift = 0.075 if device.detail else 0.0
    bold = device.kind is DeviceKind.GPU and device.width > 0.6 and not device.ghost
    axes.text(
        device.x, device.y + shift, device.label, ha="center", va="center", fontsize=8, color=INK,
        weight="bold" if bold else "normal", zorder=6,
    )  # fmt: skip
    if device.detail:
        axes.text(
            device.x, device.y - 0.095, device.detail, ha="center", va="center", fontsize=7,
            color="#555555", zorder=6,
        )  # fmt: skip


def _texts(figure: Figure, topology: Topology, width: float, height: float) -> None:
    left = 0.3 / width
    figure.text(
        left,
        1 - 0.16 / height,
        plain(topology.name or topology.source) or "topology",
        fontsize=13,
        weight="bold",
        color=INK,
        va="top",
    )
    nodes = node_count(topology)
    present = len({device.node for device in topology.devices if device.node >= 0})
    # Of a very large cluster only the first machines are in the graph.
    gpus = len(topology.gpus) * nodes // max(present, 1) if nodes > present else len(topology.gpus)
    known = topology.topology_class is not TopologyClass.UNKNOWN
    words = [topology.topology_class.value] if known else []
    words += [plural(nodes, "machine")] if nodes > 1 else []
    words += [plural(gpus, "GPU") if gpus else "no GPU seen"]
    models = {str(gpu.attributes["model"]): None for gpu in topology.gpus if gpu.attributes.get("model")}
    words += [plain(model) for model in list(models)[:2]]
    figure.text(left, 1 - 0.42 / height, ", ".join(words), fontsize=9, color=GREY, va="top")


def _legend(links: Sequence[Drawn], thinner: float) -> tuple[list[Any], list[str]]:
    """A row for each kind, number and rate, the fastest first; of a kind with many the most frequent."""
    from matplotlib.lines import Line2D

    counted = Counter(
        (LOOKS[one.kind].label, one.count, one.bytes_per_second, one.kind, one.back)
        for one in links
        if one.state is LinkState.UP
    )
    shown: Counter[str] = Counter()
    chosen = []
    for entry, _ in counted.most_common():
        shown[entry[0]] += 1
        if shown[entry[0]] <= MOST_OF_A_KIND:
            chosen.append(entry)
    chosen.sort(key=lambda entry: (-(entry[2] or 0.0), -entry[1], entry[0]))
    entries: dict[str, Any] = {}
    for label, count, rate, kind, back in chosen:
        words = label + (f" x{count}" if count > 1 else "") + (f", {format_rate(rate)}" if rate else "")
        if back is not None:
            words += f", back x{back[0]}" + (f", {format_rate(back[1])}" if back[1] else "")
        one = Drawn("", "", kind, LinkState.UP, count, rate)
        dashes = LOOKS[kind].dashes
        points = thinner * _line_width(one)
        style = _dashes(dashes, points)
        entries.setdefault(words, Line2D([], [], color=LOOKS[kind].colour, linewidth=points, linestyle=style))
    for state, (colour, state_dashes) in NOT_UP.items():
        if any(link.state is state for link in links):
            style = _dashes(state_dashes, NOT_UP_POINTS)
            line = Line2D([], [], color=colour, linewidth=NOT_UP_POINTS, linestyle=style)
            entries[state.value.replace("_", " ")] = line
    return list(entries.values()), list(entries)
