"""Figures of a plan: what steps are made of, by layout or by number of devices, and one step over time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ccbench.plan.pipeline import Bucketed
from ccbench.plan.planner import Planned
from ccbench.plan.step import Step
from ccbench.plan.text import plan_document, plan_lines
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


HIDDEN_NOTE = "Hidden communication is no part of a step; the narrow bars at the right show how much there is"


@dataclass(frozen=True)
class Stack:
    """One step with the words below its bar and above it. waits: as of ``by_kind``."""

    name: str
    top: str
    computing_seconds: float
    bubble_seconds: float
    waits: Mapping[str, tuple[float, float]]


def _stack(name: str, step: Step, top: str = "") -> Stack:
    top = top or format_seconds(step.seconds)
    return Stack(name, top, step.computing_seconds, step.bubble_seconds, by_kind(step))


def by_kind(step: Step) -> dict[str, tuple[float, float]]:
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


def _bars(stacks: Sequence[Stack], words: Mapping[str, str] = AXIS_WORDS) -> Bars:
    """Stacked bars: computing, bubble, exposed communication by kind; beside each what is hidden."""
    layers = [
        Layer("computing", COMPUTING_STYLE, tuple(one.computing_seconds for one in stacks)),
        Layer("pipeline bubble", BUBBLE_STYLE, tuple(one.bubble_seconds for one in stacks)),
    ]
    beside = []
    for kind, text in words.items():
        waits = [one.waits.get(kind, (0.0, 0.0)) for one in stacks]
        layers.append(Layer(f"{text}, exposed", _STYLES[kind], tuple(exposed for exposed, _ in waits)))
        hidden = tuple(hidden for _, hidden in waits)
        beside.append(Layer(f"{text}, hidden (beside)", _STYLES[kind], hidden, hatched=True))
    return Bars(
        names=tuple(one.name for one in stacks),
        layers=tuple(layer for layer in layers if any(layer.values)),
        beside=tuple(layer for layer in beside if any(layer.values)),
        tops=tuple(one.top for one in stacks),
    )


def _bars_figure(
    key: str, title: str, subtitle: str, below: str, stacks: Sequence[Stack], most: int
) -> Figure:
    bars = _bars(stacks[:most])
    notes = [HIDDEN_NOTE] * bool(bars.beside)
    notes += [f"The first {most} of {len(stacks)} are drawn"] * (len(stacks) > most)
    x = Axis(below, "ranks", "linear")
    return Figure(key, "plan", title, subtitle, x, TIME, footnote=tuple(notes), bars=bars)


def plan_figures(planned: Planned) -> tuple[Figure, ...]:
    """Layouts side by side, numbers of devices side by side, and the best one's step over time."""
    if planned.textbook:
        return (_textbook_figure(planned),)
    shape, cluster, _ = planned.where
    devices = f"{cluster.ranks} devices · {cluster.name}"
    layouts = [_stack(one.name, one.step) for one in planned.outcomes]
    there = [one.outcome for one in planned.scaled if one.outcome is not None]
    scaled = [_stack(f"{one.ranks:,}", one.step, f"{one.tflops:.0f}") for one in there]
    found = []
    if len(layouts) > 1:
        title, subtitle = f"{shape.name}: a step by layout", f"{devices} · {planned.plan.dtype}"
        found.append(_bars_figure("layouts", title, subtitle, "layout", layouts, MOST_BARS))
    if scaled:
        subtitle = f"{planned.plan.scaling} scaling · above each bar TFLOP/s a device"
        title = f"{shape.name}: a step by devices"
        found.append(_bars_figure("scale", title, subtitle, "devices", scaled, len(scaled)))
    if len(layouts) == 1:
        title = f"{shape.name}: what a step is made of"
        found.append(_bars_figure("step", title, devices, "layout", layouts, MOST_BARS))
    best = min(planned.outcomes, key=lambda one: (not one.fits, -one.tflops))
    subtitle = f"{best.name} · {cluster.name} · {format_seconds(best.step.seconds)}"
    return (*found, _timeline_figure(f"{shape.name}: one step over time", subtitle, best.step))


def _timeline_figure(title: str, subtitle: str, step: Step) -> Figure:
    """One step: a lane for each stage, and one for what is sent when the backward pass ends."""
    drawn = timeline(step)
    kinds = {piece.kind for piece in drawn.pieces}
    notes = ["What is waited for inside a pass stands behind its computing; really they alternate by layer"]
    if step.strategy.zero_stage >= 2:
        notes.append("Gradients and weights that a pass sends stand at its start")
    if drawn.left_out:
        notes.append(drawn.left_out)
    if drawn.cut:
        cut = format_seconds(drawn.cut)
        notes.append(f"{cut} in the middle, where stages do the same again and again, are cut out")
    pieces = [
        Piece(one.lane, one.begin_seconds, one.end_seconds, _LANE_STYLES[one.kind], one.text)
        for one in drawn.pieces
    ]
    legend = tuple((_LANE_STYLES[kind], kind) for kind in KINDS if kind in kinds)
    x, y = Axis("time from the step's start", "seconds", "linear"), Axis("", "rank", "linear")
    lanes = Lanes(drawn.lanes, tuple(pieces), legend, drawn.cut_at, drawn.cut)
    return Figure("timeline", "plan", title, subtitle, x, y, footnote=tuple(notes), lanes=lanes)


def _textbook_figure(planned: Planned) -> Figure:
    gradients = planned.plan.gradients
    assert gradients is not None
    stacks = [
        Stack(
            _bucket_name(one, gradients.startup_seconds is None), f"{one.seconds * 1e3:,.0f} ms",
            one.computing_seconds, 0.0, {"dp": (one.exposed_seconds, one.hidden_seconds)},
        )
        for one in planned.textbook
    ]  # fmt: skip
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
        footnote=("Start-up is the part of a communication that a larger message does not pay again",),
        bars=_bars(stacks, {"dp": "gradients"}),
    )


def _bucket_name(one: Bucketed, open_ended: bool) -> str:
    if one.bucket == 0:
        return "in series"
    if one.bucket == 1 or not open_ended:
        return f"{one.bucket}"
    return f"{one.bucket}\n{'start-up' if one.startup_seconds else 'bytes'}"


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
