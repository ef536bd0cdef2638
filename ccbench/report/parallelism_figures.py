"""Figures of a plan: what steps are made of, by layout or by number of devices, and one step over time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ccbench.plan.planned import Planned
from ccbench.plan.step import Step
from ccbench.plan.text import plan_document, plan_lines
from ccbench.plan.textbook import Bucketed
from ccbench.plan.timeline import KINDS, timeline
from ccbench.report.figure import Axis, Bars, Figure, Lanes, Layer, Piece
from ccbench.report.writing import write_file
from ccbench.units import format_seconds

TIME = Axis("time of a step", "seconds", "linear")

AXIS_WORDS = {
    "tp": "tensor parallel", "pp": "pipeline", "dp": "data parallel", "ep": "expert parallel",
    "cp": "context parallel",
}  # fmt: skip
"""Kinds of communication in words, in the order they are stacked."""

_KIND_OF_AXIS = {"etp": "ep", "edp": "dp", "dp-cp": "dp", "cp-dp": "dp"}

COMPUTING_STYLE, BUBBLE_STYLE = 0, 1
_STYLES = {"tp": 2, "pp": 3, "dp": 4, "ep": 5, "cp": 6}

_LANE_STYLES = dict(zip(KINDS, (0, 6, 2, 4, 3, 5), strict=True))

MOST_BARS = 10


@dataclass(frozen=True)
class NamedStep:
    """A step with the words below its bar and above it."""

    name: str
    step: Step
    top: str = ""


def kind_of_axis(axis: str) -> str:
    """tp, pp, dp, ep or cp: whose communication an axis' is, experts' own axes counted to theirs."""
    return _KIND_OF_AXIS.get(axis, axis)


def by_kind(step: Step) -> dict[str, tuple[float, float]]:
    """(exposed, hidden) seconds of each kind of communication that the step has."""
    found: dict[str, tuple[float, float]] = {}
    for line in step.lines:
        kind = kind_of_axis(line.communication.axis)
        exposed, hidden = found.get(kind, (0.0, 0.0))
        found[kind] = (exposed + line.exposed_seconds, hidden + line.hidden_seconds)
    return found


def bars_figure(
    key: str,
    title: str,
    subtitle: str,
    steps: Sequence[NamedStep],
    footnote: Sequence[str],
    below: str,
    most: int = 0,
) -> Figure:
    """Stacked bars: computing, bubble, exposed communication by kind; beside each what is hidden.

    below: label of the axis. most: bars that are drawn, 0: all.
    """
    shown = steps[: most or len(steps)]
    kinds = [by_kind(one.step) for one in shown]
    layers = [
        Layer("computing", COMPUTING_STYLE, tuple(one.step.computing_seconds for one in shown)),
        Layer("pipeline bubble", BUBBLE_STYLE, tuple(one.step.bubble_seconds for one in shown)),
    ]
    beside: list[Layer] = []
    for kind, words in AXIS_WORDS.items():
        exposed = tuple(one.get(kind, (0.0, 0.0))[0] for one in kinds)
        hidden = tuple(one.get(kind, (0.0, 0.0))[1] for one in kinds)
        if any(exposed):
            layers.append(Layer(f"{words}, exposed", _STYLES[kind], exposed))
        if any(hidden):
            beside.append(Layer(f"{words}, hidden (beside)", _STYLES[kind], hidden, hatched=True))
    notes = list(footnote)
    if len(steps) > len(shown):
        notes.append(f"The first {len(shown)} of {len(steps)} are drawn")
    return Figure(
        key=key,
        topic="plan",
        title=title,
        subtitle=subtitle,
        x=Axis(below, "ranks", "linear"),
        y=TIME,
        series=(),
        footnote=tuple(notes) if beside else tuple(notes[len(footnote) :]),
        bars=Bars(
            names=tuple(one.name for one in shown),
            layers=tuple(layer for layer in layers if any(layer.values)),
            beside=tuple(beside),
            tops=tuple(one.top or format_seconds(one.step.seconds) for one in shown),
        ),
    )


def timeline_figure(key: str, title: str, subtitle: str, step: Step, footnote: Sequence[str]) -> Figure:
    """One step: a lane for each stage, and one for what is sent when the backward pass ends."""
    drawn = timeline(step)
    styles = [kind for kind in KINDS if any(piece.kind == kind for piece in drawn.pieces)]
    notes = ["What is waited for inside a pass stands behind its computing; really they alternate by layer"]
    if step.strategy.zero_stage >= 2:
        notes.append("Gradients and weights that a pass sends stand at its start")
    if drawn.left_out:
        notes.append(drawn.left_out)
    if drawn.cut:
        cut = format_seconds(drawn.cut)
        notes.append(f"{cut} in the middle, where stages do the same again and again, are cut out")
    return Figure(
        key=key,
        topic="plan",
        title=title,
        subtitle=subtitle,
        x=Axis("time from the step's start", "seconds", "linear"),
        y=Axis("", "rank", "linear"),
        series=(),
        footnote=(*notes, *footnote),
        lanes=Lanes(
            names=drawn.lanes,
            pieces=tuple(
                Piece(one.lane, one.begin_seconds, one.end_seconds, _LANE_STYLES[one.kind], one.text)
                for one in drawn.pieces
            ),
            legend=tuple((_LANE_STYLES[kind], kind) for kind in styles),
            cut_at=drawn.cut_at,
            cut=drawn.cut,
        ),
    )


def plan_figures(planned: Planned) -> tuple[Figure, ...]:
    """Layouts side by side, numbers of devices side by side, and the best one's step over time."""
    if planned.textbook:
        return (_textbook_figure(planned),)
    shape, cluster, _ = planned.where
    notes = (
        "Hidden communication is no part of a step; the narrow bars at the right show how much there is",
    )
    found = []
    if len(planned.outcomes) > 1:
        subtitle = f"{cluster.ranks} devices · {cluster.name} · {planned.plan.dtype}"
        steps = [NamedStep(one.name, one.step) for one in planned.outcomes]
        found.append(
            bars_figure(
                "layouts", f"{shape.name}: a step by layout", subtitle, steps, notes, "layout", MOST_BARS
            )
        )
    there = [one.outcome for one in planned.scaled if one.outcome is not None]
    if there:
        steps = [NamedStep(f"{one.ranks:,}", one.step, f"{one.tflops:.0f}") for one in there]
        subtitle = f"{planned.plan.scaling} scaling · above each bar TFLOP/s a device"
        found.append(
            bars_figure("scale", f"{shape.name}: a step by devices", subtitle, steps, notes, "devices")
        )
    best = min(planned.outcomes, key=lambda one: (not one.fits, -one.tflops))
    if len(planned.outcomes) == 1:
        subtitle = f"{cluster.ranks} devices · {cluster.name}"
        named = [NamedStep(best.name, best.step)]
        found.append(
            bars_figure(
                "step", f"{shape.name}: what a step is made of", subtitle, named, notes, "layout", MOST_BARS
            )
        )
    subtitle = f"{best.name} · {cluster.name} · {format_seconds(best.step.seconds)}"
    found.append(timeline_figure("timeline", f"{shape.name}: one step over time", subtitle, best.step, ()))
    return tuple(found)


def _textbook_figure(planned: Planned) -> Figure:
    gradients = planned.plan.gradients
    assert gradients is not None
    rows = planned.textbook
    names = tuple(_bucket_name(one, gradients.startup_seconds is None) for one in rows)
    return Figure(
        key="gradients",
        topic="plan",
        title=f"{gradients.layers} layers x {gradients.per_layer} gradients: a step by how they are sent",
        subtitle=(
            f"{format_seconds(gradients.compute_seconds)} to compute and "
            f"{format_seconds(gradients.communicate_seconds)} to communicate each"
        ),
        x=Axis("gradients in one message", "ranks", "linear"),
        y=TIME,
        series=(),
        footnote=("Start-up is the part of a communication that a larger message does not pay again",),
        bars=Bars(
            names=names,
            layers=(
                Layer("computing", COMPUTING_STYLE, tuple(one.computing_seconds for one in rows)),
                Layer("gradients, exposed", _STYLES["dp"], tuple(one.exposed_seconds for one in rows)),
            ),
            beside=(
                Layer(
                    "gradients, hidden (beside)",
                    _STYLES["dp"],
                    tuple(one.hidden_seconds for one in rows),
                    True,
                ),
            ),
            tops=tuple(f"{one.seconds * 1e3:,.0f} ms" for one in rows),
        ),
    )


def _bucket_name(one: Bucketed, open_ended: bool) -> str:
    if one.bucket == 0:
        return "in series"
    part = (
        "" if one.bucket == 1 or not open_ended else "\nbytes" if one.startup_seconds == 0 else "\nstart-up"
    )
    return f"{one.bucket}{part}"


def write_plan(planned: Planned, folder: Path) -> tuple[Path, ...]:
    """Figures as SVG and PNG, plan.json and plan.txt. RunFolderError where the folder cannot be written."""
    from ccbench.report.matplotlib_renderer import render

    files: dict[str, bytes] = {
        "plan.txt": ("\n".join(plan_lines(planned)) + "\n").encode(),
        "plan.json": (json.dumps(plan_document(planned), indent=2, allow_nan=False) + "\n").encode(),
    }
    for figure in plan_figures(planned):
        for form in ("svg", "png"):
            files[f"{figure.key}.{form}"] = render(figure, form)
    for name, content in files.items():
        write_file(folder / name, content)
    return tuple(folder / name for name in files)
