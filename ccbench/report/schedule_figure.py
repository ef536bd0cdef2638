"""A schedule as a picture: a lane for each rank, time from left to right, an arrow for each flow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.errors import UsageError
from ccbench.report.drawing import BLUE, GREY, INK, VERMILION, check_ending, save_picture
from ccbench.schedules.describe import sent_text
from ccbench.schedules.schedule import Schedule, Step
from ccbench.units import plural

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_LANES, MOST_ARROWS_A_STEP = 64, 250
FIRST_STEPS, LAST_STEPS = 12, 6
STEP_INCHES, LANE_INCHES, BORDER_INCHES = 1.2, 0.4, 1.5

LOOKS: dict[bool, tuple[str, str, Any, str]] = {
    True: ("combined", VERMILION, "solid", "-|>"),
    False: ("copied", BLUE, (0, (3.2, 1.6)), "->"),
}
"""Of a step that reduces, and of one that copies: word, colour, dashes and head; dashes show on a grey print."""


def draw_schedule(schedule: Schedule, path: Path | str) -> None:
    """Draw ``schedule`` into ``path``, whose ending chooses SVG, PNG or PDF.

    Solid vermilion arrows are combined with what the target holds, dashed blue ones are copied there. Of long
    schedules the first 12 and the last 6 steps are drawn. Raises UsageError as ``check_drawable`` does, and where
    the file cannot be written.
    """
    path = Path(path)
    check_drawable(schedule, path)
    save_picture(lambda: picture(schedule), path)


def check_drawable(schedule: Schedule, path: Path) -> None:
    """Raise UsageError for another ending, for more ranks than lanes, and for steps of too many flows."""
    check_ending(path)
    flows = max((phase.flows for phase in schedule.phases), default=0)
    for number, most, words in (
        (schedule.ranks, MOST_LANES, "ranks have no room in one picture"),
        (flows, MOST_ARROWS_A_STEP, "flows in one step cannot be told apart"),
    ):
        if number > most:
            raise UsageError(
                f"{path}: {number} {words}, {most} can; draw fewer ranks, the pattern is the same"
            )


def picture(schedule: Schedule) -> Figure:
    """Return the drawing as a matplotlib figure."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    # Of many steps the first and the last; None is the gap between them.
    columns: list[Step | None] = list(schedule.expanded())
    if len(columns) > FIRST_STEPS + LAST_STEPS + 1:
        columns = [*columns[:FIRST_STEPS], None, *columns[-LAST_STEPS:]]
    size = (
        max(len(columns), 4) * STEP_INCHES + BORDER_INCHES,
        schedule.ranks * LANE_INCHES + BORDER_INCHES,
    )
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.set_xlim(-0.1, max(len(columns), 1) + 0.1)
    axes.set_ylim(schedule.ranks - 0.5, -0.5)
    axes.set_yticks(range(schedule.ranks), [f"rank {rank}" for rank in range(schedule.ranks)])
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=9, labelcolor=INK)
    axes.spines[:].set_visible(False)
    axes.hlines(range(schedule.ranks), 0, max(len(columns), 1), color="#dddddd", zorder=1)
    if not columns:
        axes.text(0.5, 0, "nothing to move", ha="center", va="bottom", color=GREY)
    for left, step in enumerate(columns):
        _draw_step(axes, left, step, schedule)
    root = f", root {schedule.root}" if schedule.root >= 0 else ""
    axes.set_title(
        f"{schedule.collective} {schedule.algorithm}, {plural(schedule.ranks, 'rank')}{root}\n"
        f"{plural(schedule.steps, 'step')}; each rank sends {sent_text(schedule)}",
        loc="left",
        fontsize=10,
        pad=18,
    )
    looks = [LOOKS[way] for way in LOOKS if way in {phase.reduces for phase in schedule.phases}]
    lines = [Line2D([], [], color=colour, linestyle=dashes) for _, colour, dashes, _ in looks]
    if looks:
        figure.legend(
            lines, [look[0] for look in looks], loc="outside lower left", ncols=2, frameon=False
        )
    return figure


def _draw_step(axes: Axes, left: int, step: Step | None, schedule: Schedule) -> None:
    """Draw the arrows of a step; None is the gap that stands for the steps left out."""
    hidden = schedule.steps - FIRST_STEPS - LAST_STEPS
    axes.annotate(
        f"step {step.index + 1}" if step else f"{hidden} more",
        (left + 0.5, 1),
        (0, 2),
        xycoords=axes.get_xaxis_transform(),
        textcoords="offset points",
        ha="center",
        fontsize=8.5,
        color=GREY,
    )
    if step is None:
        axes.axvspan(left + 0.1, left + 0.9, color="white", zorder=2)
        return
    _, colour, dashes, head = LOOKS[step.phase.reduces]
    for source, target in zip(step.source.tolist(), step.target.tolist(), strict=True):
        arrow = {"arrowstyle": head, "linestyle": dashes, "shrinkA": 2, "shrinkB": 2}
        arrow["color"] = GREY if source == target else colour
        axes.annotate("", (left + 1, target), (left, source), arrowprops=arrow, zorder=3)
