"""Stacked bars, lanes of time and maps of cells with matplotlib: what a step is made of and when, and pairs.

What is hidden is pale and striped, so that a grey print says the same. The colours of maps are matplotlib's
cividis (J. R. Nuñez, C. R. Anderton and R. S. Renslow, "Optimizing colormaps with consideration for color
vision deficiency", PLoS ONE 13 (2018)): even in lightness, also in grey.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ccbench.report.drawing import BLUE, FAINT, GREEN, GREY, INK, ORANGE, PINK, SKY, VERMILION
from ccbench.report.figure import Bars, Figure, Grid, Lanes, Layer, Piece
from ccbench.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.image import AxesImage

COLOURS = (BLUE, "#9a9a9a", VERMILION, ORANGE, PINK, GREEN, SKY, "#7A5195", "#F0E442")
"""By the number of a style; the second is grey, for what nobody works in."""

PALE = (1, 3, 6, 8)
"""Styles on which white letters could not be read."""

FEWEST_LANES = 4
STACK_WIDTH, BESIDE_WIDTH = 0.56, 0.14
LEGEND_COLUMNS = 27
INCHES_FOR_NAMES = 6.1
LETTER_INCHES = 0.066
"""Width of the axes, and of a letter of a name."""


def draw_bars(figure: Figure, bars: Bars, axes: Axes) -> None:
    """Stacks from below in the order of the layers; what is beside them at their right, narrow."""
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    places = [float(place) for place in range(len(bars.names))]
    heights = _stack(bars.layers, places, STACK_WIDTH, axes)
    shift = STACK_WIDTH / 2 + BESIDE_WIDTH / 2 + 0.03
    aside = _stack(bars.beside, [place + shift for place in places], BESIDE_WIDTH, axes)
    highest = max([*heights, *aside], default=0.0) or 1.0
    for place, height, text in zip(places, heights, bars.tops, strict=False):
        axes.text(
            place, height + 0.012 * highest, text, ha="center", va="bottom", color=INK,
            fontsize=8 if len(places) <= 8 else 7.2, linespacing=1.1,
        )  # fmt: skip
    axes.set_ylim(0, highest * 1.12)
    # A stack keeps its width however few there are.
    room = max(0.0, 3 - len(places)) / 2
    axes.set_xlim(-0.6 - room, len(places) - 0.4 + room)
    names = [_name(name, len(places)) for name in bars.names]
    axes.set_xticks(places, names, fontsize=8 if len(places) <= 8 else 7.2, linespacing=1.15)
    axes.tick_params(axis="x", length=0)
    lines = max((name.count("\n") for name in names), default=0)
    axes.set_xlabel("" if lines > 1 else figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label, labelpad=6)
    if figure.y.unit == "seconds":
        axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    _legend([(one.style, one.hatched, one.label) for one in reversed((*bars.layers, *bars.beside))], axes)


def _name(name: str, bars: int) -> str:
    """Words below a bar, on as many lines as its width asks for."""
    letters = max(6, int(INCHES_FOR_NAMES / max(bars, 3) / LETTER_INCHES))
    return "\n".join(part for line in name.split("\n") for part in textwrap.wrap(line, letters) or [""])


def _stack(layers: tuple[Layer, ...], places: list[float], width: float, axes: Axes) -> list[float]:
    heights = [0.0] * len(places)
    for layer in layers:
        axes.bar(
            places, layer.values, width, bottom=heights, linewidth=0.5, **_look(layer.style, layer.hatched)
        )  # fmt: skip
        heights = [low + value for low, value in zip(heights, layer.values, strict=True)]
    return heights


def _look(style: int, hatched: bool) -> dict[str, Any]:
    colour = COLOURS[style % len(COLOURS)]
    look = {"facecolor": colour, "edgecolor": "white"}
    return {**look, "alpha": 0.55, "hatch": "////"} if hatched else look


def draw_lanes(figure: Figure, lanes: Lanes, axes: Axes) -> None:
    """A row for each lane, time from the left; a piece's text only where it has room."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    end = max((piece.end for piece in lanes.pieces), default=1.0) or 1.0
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x", color=FAINT, linewidth=0.6)
    for style, _ in lanes.legend:
        mine = [piece for piece in lanes.pieces if piece.style == style]
        boxes = [Rectangle((one.begin, one.lane - 0.4), one.end - one.begin, 0.8) for one in mine]
        # White seams between pieces would hide pieces that are narrower than a seam.
        thin = bool(mine) and min(one.end - one.begin for one in mine) < 0.004 * end
        axes.add_collection(
            PatchCollection(
                boxes,
                facecolor=COLOURS[style % len(COLOURS)],
                edgecolor="white",
                linewidth=0 if thin else 0.5,
            )
        )
    for piece in lanes.pieces:
        begin, until = _seen(piece, lanes, end)
        if piece.text and (until - begin) / end > 0.005 + 0.0065 * len(piece.text):
            axes.text(
                (begin + until) / 2, piece.lane, piece.text, ha="center", va="center",
                fontsize=6.6 if len(piece.text) < 3 else 5.6,
                color=INK if piece.style in PALE else "white",
            )  # fmt: skip
    axes.set_xlim(0, end)
    # One lane alone is no wall.
    room = max(0, FEWEST_LANES - len(lanes.names)) / 2
    axes.set_ylim(len(lanes.names) - 0.4 + room, -0.6 - room)
    axes.set_yticks(range(len(lanes.names)), list(lanes.names), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.xaxis.set_major_formatter(lambda value, _: _time(value, lanes))
    if lanes.cut:
        axes.set_xticks(_ticks_around(lanes, end))
        axes.axvline(lanes.cut_at, color="white", linewidth=7, zorder=5)
        for shift in (-0.004, 0.004):
            axes.axvline(
                lanes.cut_at + shift * end, color=GREY, linewidth=0.9, linestyle=(0, (2, 2)), zorder=6
            )
    _legend([(style, False, label) for style, label in lanes.legend], axes)


def _seen(piece: Piece, lanes: Lanes, end: float) -> tuple[float, float]:
    """What of a piece the cut leaves to be seen."""
    gap = 0.008 * end if lanes.cut else 0.0
    if not lanes.cut or piece.begin > lanes.cut_at + gap:
        return piece.begin, piece.end
    if piece.begin >= lanes.cut_at:
        return lanes.cut_at + gap, piece.end
    return piece.begin, min(piece.end, lanes.cut_at - gap)


def _ticks_around(lanes: Lanes, end: float) -> list[float]:
    """Places of round moments on both sides of the cut, none so near that their words would meet."""
    from matplotlib.ticker import MaxNLocator

    places = MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]).tick_values(0, end)
    step, gap = float(places[1] - places[0]), 0.03 * end
    before = [number * step for number in range(int((lanes.cut_at - gap) / step) + 1)]
    first = math.ceil((lanes.cut_at + lanes.cut + gap) / step)
    last = math.floor((end + lanes.cut) / step)
    return before + [number * step - lanes.cut for number in range(first, last + 1)]


def _time(value: float, lanes: Lanes) -> str:
    """At a tick; behind the cut, what was left out is added."""
    moment = value + (lanes.cut if lanes.cut and value > lanes.cut_at else 0.0)
    return format_seconds(moment) if moment else "0"


def _legend(rows: list[tuple[int, bool, str]], axes: Axes) -> None:
    from matplotlib.patches import Patch

    labels = ["\n".join(textwrap.wrap(label, LEGEND_COLUMNS)) for _, _, label in rows]
    draw_legend([Patch(**_look(style, hatched)) for style, hatched, _ in rows], labels, axes)


def draw_legend(handles: Sequence[Artist], labels: Sequence[str], axes: Axes) -> None:
    """Draw a legend at the right of ``axes``."""
    # matplotlib leaves out labels that begin with an underscore.
    shown = [f" {label}" if label.startswith("_") else label for label in labels]
    axes.legend(
        handles, shown, loc="upper left", bbox_to_anchor=(1.015, 1.0), frameon=False, fontsize=8.5,
        handlelength=2.4, borderaxespad=0.0, labelspacing=0.65, labelcolor=INK,
    )  # fmt: skip


EMPTY = "#efefef"
MOST_TICKS = 16
MAP_LEGEND_COLUMNS = 34


def draw_map(figure: Figure, grid: Grid, axes: Axes) -> None:
    """Rows from above, columns from the left; dark cells are the bad ones."""
    import numpy as np

    values = np.array([[math.nan if one is None else one for one in row] for row in grid.values])
    limits = grid.limits
    colours = "cividis" if grid.large_is_good else "cividis_r"
    axes.set_facecolor(EMPTY)
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.grid(visible=False)
    _map_ticks(axes.yaxis, len(values))
    _map_ticks(axes.xaxis, values.shape[1])
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label, labelpad=6)
    _numbers(grid, limits, axes)
    _frames(grid, axes)
    _map_legend(grid, image, axes)


def _map_ticks(axis: Axis, cells: int) -> None:
    places = list(range(0, cells, -(-cells // MOST_TICKS)))
    axis.set_ticks(places, [str(place) for place in places], fontsize=8.5)
    axis.set_tick_params(length=0)


def _numbers(grid: Grid, limits: tuple[float, float], axes: Axes) -> None:
    size = 9.5 if len(grid.values) <= 8 else 6.5
    for row, texts in enumerate(grid.texts):
        for column, text in enumerate(texts):
            number = grid.values[row][column]
            if not text or number is None:
                continue
            share = (number - limits[0]) / ((limits[1] - limits[0]) or 1.0)
            is_dark = share < 0.55 if grid.large_is_good else share > 0.45
            axes.text(
                column, row, text, ha="center", va="center", fontsize=size, linespacing=1.15,
                color="white" if is_dark else INK,
            )  # fmt: skip


def _frames(grid: Grid, axes: Axes) -> None:
    from matplotlib.patches import Rectangle

    for row, column in grid.marked:
        axes.add_patch(
            Rectangle((column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=VERMILION, linewidth=2.4)
        )


def _map_legend(grid: Grid, image: AxesImage, axes: Axes) -> None:
    """A bar of colours, and the lines of the legend below it, right of the map."""
    beside = axes.inset_axes((1.04, 0.56, 0.035, 0.44))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.set_label(grid.unit, fontsize=8.5)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    lines = [part for line in grid.legend for part in textwrap.wrap(line, MAP_LEGEND_COLUMNS)]
    lines += ["framed: slower than its class"] * bool(grid.marked)
    axes.text(
        1.03, 0.5, "\n".join(lines), transform=axes.transAxes, va="top", ha="left", fontsize=7.6, color=GREY,
        linespacing=1.35,
    )  # fmt: skip
