"""Figures of a plan: what steps are made of, by layout or by number of devices, and one step over time.

What is hidden is pale and striped, so that a grey print says the same.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.plan.planner import Planned
from ccbench.plan.step import TrainingStep
from ccbench.plan.timeline import IN_PHASES, KINDS, Timeline, timeline
from ccbench.report.drawing import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    LEGEND_COLUMNS,
    ORANGE,
    PALE,
    PINK,
    SKY,
    VERMILION,
    canvas_of,
    draw_legend,
    picture_bytes,
)
from ccbench.report.figure import Figure, FigureAxis
from ccbench.report.plan_text import best_of, plan_document, plan_lines
from ccbench.report.writing import write_file
from ccbench.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

TIME = FigureAxis("time of a step", "seconds", "linear")

AXIS_WORDS = {
    "tp": "tensor parallel",
    "pp": "pipeline",
    "dp": "data parallel",
    "ep": "expert parallel",
    "cp": "context parallel",
}
"""Kinds of communication in words, in the order they are stacked."""

_KIND_OF_AXIS = {"etp": "ep", "edp": "dp", "dp-cp": "dp", "cp-dp": "dp"}

COMPUTING_COLOUR = BLUE
COLOURS = {"tp": VERMILION, "pp": ORANGE, "dp": PINK, "ep": GREEN, "cp": SKY}
COMPUTED, TRANSFERRED, WAITED = "computing", "transfer", "waiting for other ranks"
"""Pieces of a recorded step."""

KIND_COLOURS = {
    **dict(zip(KINDS, (BLUE, SKY, VERMILION, PINK, ORANGE, GREEN), strict=True)),
    COMPUTED: BLUE,
    TRANSFERRED: GREEN,
    WAITED: VERMILION,
}
"""Of the pieces of a timeline; the pipeline's bubble is grey, for what nobody works in."""

UNREADABLE = (ORANGE, SKY)
"""Colours on which white letters could not be read."""

MOST_BARS = 10
FEWEST_LANES = 4
STACK_WIDTH, BESIDE_WIDTH = 0.56, 0.14
INCHES_FOR_NAMES = 6.1
LETTER_INCHES = 0.066
"""Width of the axes, and of a letter of a name."""

HIDDEN_NOTE = "Hidden communication is no part of a step; the narrow bars at the right show how much there is"


@dataclass(frozen=True)
class Layer:
    """One colour of stacked bars: a value for every bar, from below in the order of the layers."""

    label: str
    colour: str
    values: tuple[float, ...]
    hidden: bool = False

    @property
    def look(self) -> dict[str, Any]:
        """Keywords of matplotlib's patches; hidden layers are striped."""
        look = {"facecolor": self.colour, "edgecolor": "white"}
        return {**look, "alpha": 0.55, "hatch": "////"} if self.hidden else look


@dataclass(frozen=True)
class Bars:
    """Bars side by side, each of the same layers. names: below them. tops: short words above them.

    beside: layers of a narrow bar at each bar's right: what is no part of the sum.
    """

    names: tuple[str, ...]
    layers: tuple[Layer, ...]
    beside: tuple[Layer, ...] = ()
    tops: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlanFigure:
    """One figure of a plan: the words around it, and bars or a step over time inside."""

    figure: Figure
    body: Bars | Timeline

    def canvas(self) -> Canvas:
        """Return the drawn figure."""

        def draw(axes: Axes) -> None:
            if isinstance(self.body, Bars):
                _draw_bars(self.figure, self.body, axes)
            else:
                _draw_timeline(self.figure, self.body, axes)

        return canvas_of(self.figure, draw)

    def render(self, form: str) -> bytes:
        """Return the figure as a file of ``form`` (png, svg or pdf); the same plan gives the same bytes."""
        return picture_bytes(self.canvas, form)


Stack = tuple[str, TrainingStep, str]
"""One step with the words below its bar and above it."""


def by_kind(step: TrainingStep) -> dict[str, tuple[float, float]]:
    """(exposed, hidden) seconds of each kind of communication that the step has: tp, pp, dp, ep or cp.

    Experts' own axes are counted to theirs.
    """
    found: dict[str, tuple[float, float]] = {}
    for line in step.lines:
        axis = line.communication.axis
        kind = _KIND_OF_AXIS.get(axis, axis)
        exposed, hidden = found.get(kind, (0.0, 0.0))
        found[kind] = (exposed + line.exposed_seconds, hidden + line.hidden_seconds)
    return found


def plan_figures(planned: Planned) -> tuple[PlanFigure, ...]:
    """Layouts side by side, numbers of devices side by side, and the best one's step over time."""
    if planned.textbook:
        return ()
    shape, cluster, _ = planned.where
    devices = f"{cluster.ranks} devices · {cluster.name}"
    layouts = [
        (outcome.name, outcome.step, format_seconds(outcome.step.seconds))
        for outcome in planned.outcomes
    ]
    there = [one.outcome for one in planned.scaled if one.outcome is not None]
    scaled = [(f"{one.ranks:,}", one.step, f"{one.tflops:.0f}") for one in there]
    title = f"{shape.name}: a step by layout"
    found = [
        _bars_figure("layouts", title, f"{devices} · {planned.plan.dtype}", "layout", layouts)
    ]
    if scaled:
        subtitle = f"{planned.plan.scaling} scaling · above each bar TFLOP/s a device"
        found.append(
            _bars_figure(
                "scale", f"{shape.name}: a step by devices", subtitle, "devices", scaled
            )
        )
    best = best_of(planned)
    subtitle = f"{best.name} · {cluster.name} · {format_seconds(best.step.seconds)}"
    drawn = timeline(best.step)
    # The axis ends where the pieces do.
    subtitle += " in all, drawn shortened" * drawn.shortened
    inside = "What is waited for inside a pass stands behind its computing; really they alternate by layer"
    notes = [IN_PHASES if drawn.in_phases else inside]
    if best.step.strategy.zero_stage >= 2:
        notes.append("Gradients and weights that a pass sends stand at its start")
    notes += [drawn.left_out] * bool(drawn.left_out)
    x, y = (
        FigureAxis("time from the step's start", "seconds", "linear"),
        FigureAxis("", "rank", "linear"),
    )
    title = f"{shape.name}: one step over time"
    figure = Figure("timeline", "plan", title, subtitle, x, y, footnote=tuple(notes))
    return (*found, PlanFigure(figure, drawn))


def _bars_figure(
    key: str, title: str, subtitle: str, below: str, stacks: Sequence[Stack]
) -> PlanFigure:
    """Stacked bars: computing, bubble, exposed communication by kind; beside each what is hidden."""
    most = MOST_BARS if key == "layouts" else len(stacks)
    names, steps, tops = zip(*stacks[:most], strict=True)
    layers = [
        Layer("computing", COMPUTING_COLOUR, tuple(step.computing_seconds for step in steps)),
        Layer("pipeline bubble", PALE, tuple(step.bubble_seconds for step in steps)),
    ]
    beside = []
    waits = [by_kind(step) for step in steps]
    for kind, text in AXIS_WORDS.items():
        exposed, hidden = zip(*(wait.get(kind, (0.0, 0.0)) for wait in waits), strict=True)
        layers.append(Layer(f"{text}, exposed", COLOURS[kind], exposed))
        beside.append(Layer(f"{text}, hidden (beside)", COLOURS[kind], hidden, hidden=True))
    layers, beside = ([one for one in some if any(one.values)] for some in (layers, beside))
    notes = [HIDDEN_NOTE] * bool(beside)
    notes += [f"The first {most} of {len(stacks)} are drawn"] * (len(stacks) > most)
    figure = Figure(
        key,
        "plan",
        title,
        subtitle,
        FigureAxis(below, "ranks", "linear"),
        TIME,
        footnote=tuple(notes),
    )
    return PlanFigure(figure, Bars(names, tuple(layers), tuple(beside), tops))


def _draw_bars(figure: Figure, bars: Bars, axes: Axes) -> None:
    """Draw stacks from below in the order of the layers; what is beside them at their right, narrow."""
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    count = len(bars.names)
    places = [float(place) for place in range(count)]
    shift = STACK_WIDTH / 2 + BESIDE_WIDTH / 2 + 0.03
    heights, aside = [0.0] * count, [0.0] * count
    for layers, tops, width, right in (
        (bars.layers, heights, STACK_WIDTH, 0.0),
        (bars.beside, aside, BESIDE_WIDTH, shift),
    ):
        for layer in layers:
            at = [place + right for place in places]
            axes.bar(at, layer.values, width, bottom=tuple(tops), linewidth=0.5, **layer.look)
            tops[:] = [low + value for low, value in zip(tops, layer.values, strict=True)]
    highest = max([*heights, *aside], default=0.0) or 1.0
    letters = 8 if count <= 8 else 7.2
    for place, height, text in zip(places, heights, bars.tops, strict=False):
        axes.text(
            place,
            height + 0.012 * highest,
            text,
            ha="center",
            va="bottom",
            color=INK,
            fontsize=letters,
            linespacing=1.1,
        )
    axes.set_ylim(0, highest * 1.12)
    # A stack keeps its width however few there are.
    room = max(0.0, 3 - count) / 2
    axes.set_xlim(-0.6 - room, count - 0.4 + room)
    # Words below a bar stand on as many lines as its width asks for.
    wide = max(6, int(INCHES_FOR_NAMES / max(count, 3) / LETTER_INCHES))
    names = [
        "\n".join(
            part for line in name.split("\n") for part in textwrap.wrap(line, wide) or [""]
        )
        for name in bars.names
    ]
    axes.set_xticks(places, names, fontsize=letters, linespacing=1.15)
    axes.tick_params(axis="x", length=0)
    lines = max((name.count("\n") for name in names), default=0)
    axes.set_xlabel("" if lines > 1 else figure.x.label, labelpad=6)
    axes.set_ylabel(figure.y.label, labelpad=6)
    axes.yaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    _legend(list(reversed((*bars.layers, *bars.beside))), axes)


def _draw_timeline(figure: Figure, drawn: Timeline, axes: Axes) -> None:
    """Draw a row for each lane, time from the left; a piece's text only where it has room."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    end = max((piece.end_seconds for piece in drawn.pieces), default=1.0) or 1.0
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_axisbelow(True)
    axes.grid(visible=True, axis="x", color=FAINT, linewidth=0.6)
    kinds = [kind for kind in KIND_COLOURS if any(piece.kind == kind for piece in drawn.pieces)]
    for kind in kinds:
        mine = [piece for piece in drawn.pieces if piece.kind == kind]
        lengths = [one.end_seconds - one.begin_seconds for one in mine]
        boxes = [
            Rectangle((one.begin_seconds, one.lane - 0.4), length, 0.8)
            for one, length in zip(mine, lengths, strict=True)
        ]
        # White seams between pieces would hide pieces that are narrower than a seam.
        seam = 0 if min(lengths) < 0.004 * end else 0.5
        collection = PatchCollection(
            boxes, facecolor=KIND_COLOURS[kind], edgecolor="white", linewidth=seam
        )
        axes.add_collection(collection)
    for piece in drawn.pieces:
        begin, until = piece.begin_seconds, piece.end_seconds
        if piece.text and (until - begin) / end > 0.005 + 0.0065 * len(piece.text):
            axes.text(
                (begin + until) / 2,
                piece.lane,
                piece.text,
                ha="center",
                va="center",
                fontsize=6.6 if len(piece.text) < 3 else 5.6,
                color=INK if KIND_COLOURS[piece.kind] in UNREADABLE else "white",
            )
    axes.set_xlim(0, end)
    # One lane alone is no wall.
    room = max(0, FEWEST_LANES - len(drawn.lanes)) / 2
    axes.set_ylim(len(drawn.lanes) - 0.4 + room, -0.6 - room)
    axes.set_yticks(range(len(drawn.lanes)), list(drawn.lanes), fontsize=8)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(figure.x.label, labelpad=6)
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value) if value else "0")
    _legend([Layer(kind, KIND_COLOURS[kind], ()) for kind in kinds], axes)


def _legend(layers: Sequence[Layer], axes: Axes) -> None:
    from matplotlib.patches import Patch

    labels = ["\n".join(textwrap.wrap(layer.label, LEGEND_COLUMNS)) for layer in layers]
    draw_legend([Patch(**layer.look) for layer in layers], labels, axes)


def write_plan(planned: Planned, folder: Path) -> tuple[Path, ...]:
    """Figures as SVG and PNG, plan.json and plan.txt. RunFolderError where the folder cannot be written."""
    files: dict[str, bytes] = {
        "plan.txt": ("\n".join(plan_lines(planned)) + "\n").encode(),
        "plan.json": (
            json.dumps(plan_document(planned), indent=2, allow_nan=False) + "\n"
        ).encode(),
    }
    for figure in plan_figures(planned):
        for form in ("svg", "png"):
            files[f"{figure.figure.key}.{form}"] = figure.render(form)
    for name, content in files.items():
        write_file(folder / name, content)
    return tuple(folder / name for name in files)
