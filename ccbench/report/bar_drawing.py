"""Stacked bars and lanes of time with matplotlib: what a step is made of, and when.

Colours are those of M. Okabe and K. Ito, "Color Universal Design" (2008); what is hidden is pale and striped,
so that a grey print says the same.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from ccbench.report.figure import Bars, Figure, Lanes, Layer
from ccbench.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GREY, FAINT = "#222222", "#666666", "#d9d9d9"

COLOURS = ("#0072B2", "#9a9a9a", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#7A5195", "#F0E442")
"""By the number of a style; the second is grey, for what nobody works in."""

STACK_WIDTH, BESIDE_WIDTH = 0.56, 0.14
LEGEND_COLUMNS = 27
MOST_LETTERS_BELOW = 110
"""Letters of all bars' names that fit below the axis side by side; more are turned."""


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
            place, height + 0.012 * highest, text, ha="center", va="bottom", fontsize=8, color=INK,
            linespacing=1.1,
        )  # fmt: skip
    axes.set_ylim(0, highest * 1.12)
    # A stack keeps its width however few there are.
    room = max(0.0, 3 - len(places)) / 2
    axes.set_xlim(-0.6 - room, len(places) - 0.4 + room)
    turned = sum(map(len, bars.names)) > MOST_LETTERS_BELOW
    axes.set_xticks(
        places, list(bars.names), fontsize=8 if not turned else 7.2, rotation=28 if turned else 0,
        ha="right" if turned else "center", rotation_mode="anchor" if turned else None,
    )  # fmt: skip
    axes.tick_params(axis="x", length=0)
    axes.set_xlabel("" if turned else figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label, labelpad=6)
    if figure.y.unit == "seconds":
        axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    _legend([(one.style, one.hatched, one.label) for one in reversed((*bars.layers, *bars.beside))], axes)


def _stack(layers: tuple[Layer, ...], places: list[float], width: float, axes: Axes) -> list[float]:
    heights = [0.0] * len(places)
    for layer in layers:
        axes.bar(
            places, layer.values, width, bottom=heights, linewidth=0.5, edgecolor="white",
            **_look(layer.style, layer.hatched),
        )  # fmt: skip
        heights = [low + value for low, value in zip(heights, layer.values, strict=True)]
    return heights


def _look(style: int, hatched: bool) -> dict[str, Any]:
    colour = COLOURS[style % len(COLOURS)]
    return {"facecolor": colour, "alpha": 0.45, "hatch": "////"} if hatched else {"facecolor": colour}


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
                boxes, facecolor=COLOURS[style % len(COLOURS)], edgecolor="white", linewidth=0 if thin else 0.5
            )
        )
    for piece in lanes.pieces:
        if piece.text and (piece.end - piece.begin) / end > 0.011 * max(1, len(piece.text)):
            axes.text(
                (piece.begin + piece.end) / 2, piece.lane, piece.text, ha="center", va="center", fontsize=6.6,
                color="white",
            )  # fmt: skip
    axes.set_xlim(0, end)
    axes.set_ylim(len(lanes.names) - 0.4, -0.6)
    axes.set_yticks(range(len(lanes.names)), list(lanes.names), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    _legend([(style, False, label) for style, label in lanes.legend], axes)


def _legend(rows: list[tuple[int, bool, str]], axes: Axes) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(**_look(style, hatched)) for style, hatched, _ in rows]
    labels = ["\n".join(textwrap.wrap(label, LEGEND_COLUMNS)) for _, _, label in rows]
    legend = axes.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(1.015, 1.0), frameon=False, fontsize=8.5,
        borderaxespad=0.0, labelspacing=0.65,
    )  # fmt: skip
    for text in legend.get_texts():
        text.set_color(INK)
