"""A map of cells with matplotlib: colours that everybody can tell apart, numbers, frames round findings.

The colours are matplotlib's cividis (J. R. Nuñez, C. R. Anderton and R. S. Renslow, "Optimizing colormaps
with consideration for color vision deficiency", PLoS ONE 13 (2018)): even in lightness, also in grey.
"""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from ccbench.report.drawing import GREY, INK, VERMILION
from ccbench.report.figure import Figure, Grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.image import AxesImage

EMPTY = "#efefef"
MOST_TICKS = 16
LEGEND_COLUMNS = 34


def draw_map(figure: Figure, grid: Grid, axes: Axes) -> None:
    """Rows from above, columns from the left; dark cells are the bad ones."""
    import numpy as np

    values = np.array([[math.nan if one is None else one for one in row] for row in grid.values])
    known = values[np.isfinite(values)]
    low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    # Small differences shall look small: a scale ends at nothing, or at twice the least where less is better.
    limits = (0.0, high or 1.0) if grid.large_is_good else (low, max(high, 2 * low) or 1.0)
    colours = "cividis" if grid.large_is_good else "cividis_r"
    axes.set_facecolor(EMPTY)
    image = axes.imshow(values, cmap=colours, vmin=limits[0], vmax=limits[1], aspect="auto")
    axes.grid(visible=False)
    _ticks(axes.yaxis, len(values))
    _ticks(axes.xaxis, values.shape[1])
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label, labelpad=6)
    _numbers(grid, limits, axes)
    _frames(grid, axes)
    _legend(grid, image, axes)


def _ticks(axis: Axis, cells: int) -> None:
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


def _legend(grid: Grid, image: AxesImage, axes: Axes) -> None:
    """A bar of colours, and the lines of the legend below it, right of the map."""
    beside = axes.inset_axes((1.04, 0.56, 0.035, 0.44))
    bar = axes.figure.colorbar(image, cax=beside)
    bar.set_label(grid.unit, fontsize=8.5)
    bar.outline.set_visible(False)
    beside.tick_params(labelsize=8)
    lines = [part for line in grid.legend for part in textwrap.wrap(line, LEGEND_COLUMNS)]
    lines += ["framed: slower than its class"] * bool(grid.marked)
    axes.text(
        1.03, 0.5, "\n".join(lines), transform=axes.transAxes, va="top", ha="left", fontsize=7.6, color=GREY,
        linespacing=1.35,
    )  # fmt: skip
