"""A schedule as a picture: a lane for each rank, time from left to right, an arrow for each flow."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ccbench.errors import UsageError
from ccbench.report.drawing import BLUE, GREY, INK, VERMILION, check_ending, save_picture
from ccbench.schedules import ALGORITHMS, added_algorithms
from ccbench.schedules.describe import local_steps, sent_text, slot_range
from ccbench.schedules.schedule import Schedule, Step
from ccbench.units import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LANES, MOST_WIDE_LANES = 64, 16
FIRST_STEPS, LAST_STEPS = 12, 6
MOST_LABELS_A_STEP = 20
MOST_ARROWS_A_STEP = 250

# Dashes and markers say the same on a grey print.
COMBINE, COPY = VERMILION, BLUE
DASHES = (0, (3.2, 1.6))
LANE, BAND = "#dddddd", "#f4f4f2"

STEP_INCHES, LANE_INCHES = 1.3, 0.52
LABEL_LANES, LABEL_INCHES = 0.27, 0.16
LETTER_INCHES, LINE_INCHES = 0.064, 0.135
"""Room for a letter and a line of a label: seven points of DejaVu Sans with its white frame."""
MARGIN_STEPS = 0.12
LEFT_INCHES, RIGHT_INCHES, TOP_INCHES, BOTTOM_INCHES = 0.9, 0.3, 0.95, 0.62
MOST_WIDTH_INCHES, LEAST_WIDTH_INCHES = 26.0, 6.6


@dataclass(frozen=True)
class Panel:
    """Room for the arrows; ``step_inches`` and ``lane_inches`` are a step and a lane on paper.

    taken: the labels so far, as left, right, top and bottom on paper in inches.
    """

    axes: Axes
    schedule: Schedule
    step_inches: float
    lane_inches: float
    taken: list[tuple[float, float, float, float]] = field(default_factory=list)

    def take(self, left: float, x: float, y: float, side: str, text: str) -> bool:
        """Reserve a label's room inside its step; False where there is none or another label has it."""
        width = LETTER_INCHES * max(len(text), 2)
        begin = x * self.step_inches - {"left": 0.0, "center": width / 2, "right": width}[side]
        middle = y * self.lane_inches
        box = (begin, begin + width, middle - LINE_INCHES / 2, middle + LINE_INCHES / 2)
        spare = LETTER_INCHES / 2
        if (
            box[0] < left * self.step_inches - spare
            or box[1] > (left + 1) * self.step_inches + spare
        ):
            return False
        if any(
            box[0] < b[1] and b[0] < box[1] and box[2] < b[3] and b[2] < box[3]
            for b in self.taken
        ):
            return False
        self.taken.append(box)
        return True


def draw_schedule(schedule: Schedule, path: Path | str) -> None:
    """Draw ``schedule`` into ``path``, whose ending chooses SVG, PNG or PDF.

    Steps run from left to right; what a rank holds after a step is the dot at the step's right edge.
    Vermilion solid arrows into a plus are combined, blue dashed arrows into a ring are copied. Wider
    lines carry more pieces; labels name the slots where there is room. Of long schedules the first 12
    and the last 6 steps are drawn.

    Raises UsageError for another ending, for more ranks than there is room for lanes (64), for steps of
    more flows than can be told apart, and where the file cannot be written.
    """
    path = Path(path)
    check_drawable(schedule, path)
    save_picture(lambda: picture(schedule), path)


def check_drawable(schedule: Schedule, path: Path) -> None:
    """Raise UsageError where ``draw_schedule`` would refuse the schedule or the file's ending."""
    check_ending(path)
    if schedule.ranks > MOST_LANES:
        raise UsageError(
            f"{path}: {schedule.ranks} ranks have no room in one picture; draw {MOST_LANES} or fewer, the "
            "pattern is the same"
        )
    flows = max((phase.flows for phase in schedule.phases), default=0)
    if flows > MOST_ARROWS_A_STEP:
        raise UsageError(
            f"{path}: {flows} flows in one step cannot be told apart, {MOST_ARROWS_A_STEP} can; draw fewer "
            "ranks, the pattern is the same"
        )


def picture(schedule: Schedule) -> Figure:
    """The drawing as a matplotlib figure, one arrow for each flow of the steps that are drawn."""
    from matplotlib.figure import Figure

    # Of many steps the first and the last; None is the gap between them.
    columns: list[Step | None] = list(schedule.expanded())
    if len(columns) > FIRST_STEPS + LAST_STEPS + 1:
        columns = [*columns[:FIRST_STEPS], None, *columns[-LAST_STEPS:]]
    steps, ranks = max(len(columns), 1), schedule.ranks
    width = min(
        max(steps * STEP_INCHES + LEFT_INCHES + RIGHT_INCHES, LEAST_WIDTH_INCHES),
        MOST_WIDTH_INCHES,
    )
    lane = LANE_INCHES if ranks <= MOST_WIDE_LANES else LANE_INCHES / 2
    height = max(ranks, 2) * lane + TOP_INCHES + BOTTOM_INCHES
    figure = Figure(figsize=(width, height), facecolor="white")
    inner_width, inner_height = (
        width - LEFT_INCHES - RIGHT_INCHES,
        height - TOP_INCHES - BOTTOM_INCHES,
    )
    axes = figure.add_axes(
        (
            LEFT_INCHES / width,
            BOTTOM_INCHES / height,
            inner_width / width,
            inner_height / height,
        )
    )
    # Lanes, and on them a dot for what a rank holds before and after each step.
    axes.set_xlim(-MARGIN_STEPS, steps + MARGIN_STEPS)
    axes.set_ylim(max(ranks, 2) - 0.5, -0.5)
    if not columns:
        axes.text(
            0.5, 0.5, "nothing to move", transform=axes.transAxes, ha="center", color=GREY
        )
    for rank in range(ranks):
        axes.axhline(rank, color=LANE, linewidth=1.0, zorder=1)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    edges = sorted(
        {left + side for left, step in enumerate(columns) if step for side in (0, 1)} or {0}
    )
    grid_x, grid_y = np.meshgrid(edges, np.arange(ranks))
    axes.plot(grid_x.ravel(), grid_y.ravel(), ".", color="#aaaaaa", markersize=4, zorder=2)
    panel = Panel(axes, schedule, inner_width / (steps + 2 * MARGIN_STEPS), lane)
    for left, step in enumerate(columns):
        _draw_step(panel, left, step)
        if step is not None and step.phase.flows <= MOST_LABELS_A_STEP:
            _draw_labels(panel, left, step)
    _draw_words(figure, schedule, width, height)
    return figure


def _draw_step(panel: Panel, left: int, step: Step | None) -> None:
    """Draw the arrows of a step and the marks they end in; None is the gap that stands for left-out steps."""
    from matplotlib.patches import FancyArrowPatch

    axes = panel.axes
    if step is None:
        hidden = sum(phase.repeat for phase in panel.schedule.phases) - FIRST_STEPS - LAST_STEPS
        axes.axvspan(left + 0.12, left + 0.88, color="white", zorder=6)
        axes.text(
            left + 0.5,
            0.5,
            f"{hidden} more steps",
            transform=axes.get_xaxis_transform(),
            rotation=90,
            ha="center",
            va="center",
            fontsize=9,
            color=GREY,
            zorder=7,
        )
        return
    if step.index % 2 == 0:
        axes.axvspan(left, left + 1, color=BAND, zorder=0, linewidth=0)
    axes.annotate(
        f"step {step.index + 1}",
        (left + 0.5, 1),
        (0, 4),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=8.5,
        color=GREY,
    )
    phase = step.phase
    colour, head, style = (COMBINE, "-|>", "solid") if phase.reduces else (COPY, "->", DASHES)
    widest = max(int(phase.width.max()) for phase in panel.schedule.phases)
    lines = 1.0 + 1.6 * phase.width / widest if widest > 1 else np.full(phase.flows, 1.5)
    for source, target, line in zip(step.source, step.target, lines.tolist(), strict=True):
        arrow = FancyArrowPatch(
            (left, int(source)),
            (left + 1, int(target)),
            arrowstyle=head,
            linestyle=style,
            linewidth=line,
            color=GREY if source == target else colour,
            mutation_scale=9,
            shrinkA=2.5,
            shrinkB=6,
            zorder=3,
        )
        axes.add_patch(arrow)
    written = np.unique(step.target[step.source != step.target])
    at = np.full(len(written), left + 1)
    if phase.reduces:
        axes.plot(at, written, "o", color=COMBINE, markersize=8.5, zorder=5)
        axes.plot(
            at, written, "+", color="white", markersize=5.5, markeredgewidth=1.4, zorder=5.5
        )
    else:
        axes.plot(at, written, "o", color=COPY, mfc="white", markersize=7, mew=1.7, zorder=5)


def _draw_labels(panel: Panel, left: int, step: Step) -> None:
    """Draw the slots of each arrow; an arrow whose label finds no room has none."""
    texts = _slots_moved(panel.schedule, step)
    ways = [(source, np.sign(target - source)) for source, target in texts]
    colour = COMBINE if step.phase.reduces else COPY
    box = {
        "boxstyle": "round,pad=0.14",
        "facecolor": "white",
        "edgecolor": "none",
        "alpha": 0.85,
    }
    for (source, target), text in texts.items():
        way = int(np.sign(target - source))
        x, y, side = left + 0.5, source - LABEL_LANES, "center"
        # Always a quarter of a lane away from a rank: labels of arrows down from one rank and up from the
        # next would else meet half-way.
        if way:
            along = max(LABEL_LANES / abs(target - source), LABEL_INCHES / panel.step_inches)
            x, y, side = left + along, source + LABEL_LANES * way, "left"
            # At its source, but at its target where others leave the source the same way.
            if ways.count((source, way)) > 1:
                x, y, side = left + 1 - along, target - LABEL_LANES * way, "right"
        side = side if len(text) > 3 else "center"
        if panel.take(left, x, y, side, text):
            panel.axes.text(
                x,
                y,
                text,
                ha=side,
                va="center",
                fontsize=7,
                color=colour if way else GREY,
                bbox=box,
                zorder=4,
            )


def _slots_moved(schedule: Schedule, step: Step) -> dict[tuple[int, int], str]:
    """(source, target) -> the slots that move between them: ``work 1,3,5`` for three of one region."""
    texts: dict[tuple[int, int], list[str]] = {}
    for flow in range(step.phase.flows):
        width = int(step.phase.width[flow])
        read = slot_range(schedule, int(step.source_slot[flow]), width)
        written = slot_range(schedule, int(step.target_slot[flow]), width)
        pair = (int(step.source[flow]), int(step.target[flow]))
        texts.setdefault(pair, []).append(read if read == written else f"{read} → {written}")
    found = {}
    for pair, parts in texts.items():
        word, space, _ = parts[0].partition(" ")
        start = word + space
        is_one_region = space and not any(
            "→" in part or not part.startswith(start) for part in parts
        )
        tails = ",".join(part.removeprefix(start) for part in parts)
        found[pair] = start + tails if is_one_region else ", ".join(parts)
    return found


def _draw_words(figure: Figure, schedule: Schedule, width: float, height: float) -> None:
    """Draw title, source and legend."""
    from matplotlib.lines import Line2D

    left = 0.25 / width
    root = f", root {schedule.root}" if schedule.root >= 0 else ""
    title = (
        f"{schedule.collective} {schedule.algorithm}, {plural(schedule.ranks, 'rank')}{root}"
    )
    local = local_steps(schedule)
    steps = plural(schedule.steps, "step") + (f" (+ {local} of local moves)" if local else "")
    subtitle = f"{steps}; each rank sends {sent_text(schedule)}"
    if any(phase.flows <= MOST_LABELS_A_STEP for phase in schedule.phases):
        subtitle += "; labels are slots"
    figure.text(left, 1 - 0.18 / height, title, fontsize=13, weight="bold", color=INK, va="top")
    figure.text(left, 1 - 0.43 / height, subtitle, fontsize=9, color=GREY, va="top")
    for row in (*ALGORITHMS, *added_algorithms()):
        if (row.collective, row.name) == (schedule.collective, schedule.algorithm):
            note = f"After {row.source or row.file}"
            figure.text(left, 0.12 / height, note, fontsize=7, color=GREY, va="bottom")
    entries: dict[str, Any] = {}
    remote = [phase for phase in schedule.phases if bool(np.any(phase.source != phase.target))]
    if any(phase.reduces for phase in remote):
        disc = Line2D([], [], color=COMBINE, linewidth=1.5, marker="o", markersize=8)
        plus = Line2D(
            [], [], color="white", linewidth=0, marker="+", markersize=5, markeredgewidth=1.3
        )
        entries["combined"] = (disc, plus)
    if any(not phase.reduces for phase in remote):
        entries["copied"] = Line2D(
            [],
            [],
            color=COPY,
            linewidth=1.5,
            linestyle=DASHES,
            marker="o",
            markerfacecolor="white",
            markeredgewidth=1.6,
            markersize=6.5,
        )
    if any(bool(np.any(phase.source == phase.target)) for phase in schedule.phases):
        entries["moved inside the rank"] = Line2D(
            [], [], color=GREY, linewidth=1.5, linestyle=DASHES
        )
    if len({width for phase in schedule.phases for width in phase.width.tolist()}) > 1:
        entries["wider: more pieces"] = Line2D([], [], color=INK, linewidth=2.6)
    figure.legend(
        list(entries.values()),
        list(entries),
        loc="lower left",
        bbox_to_anchor=(left, 0.3 / height),
        ncols=4,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        handlelength=3.4,
        fontsize=8.5,
    )
