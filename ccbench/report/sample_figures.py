"""Maps of ranks against samples: whether slow samples were one rank's doing or the whole system's.

Pure functions of points. Columns of a map are samples in the order they were taken, rows are ranks; a
cell is that rank's time over the case's median. Where there are more samples than columns a cell shows the
slowest of those it stands for, so that no spike is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ccbench.cases import WORK
from ccbench.report.figure import Axis, Figure, Grid
from ccbench.report.points import EMULATION
from ccbench.results import Point
from ccbench.units import format_ratio, format_size, plural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_MAPS = 6
"""Cases of a run that get a map: of every kind the one whose samples spread most, the widest spread first."""

MOST_COLUMNS, MOST_ROWS = 120, 64

FEWEST_SAMPLES = 8

DARKEST = 4.0
"""Times the median from which all cells are alike: one huge outlier would leave the rest without a shade."""

SPIKE = 1.5
"""A sample this many times the median is a spike."""


def sample_figures(points: Sequence[Point]) -> list[Figure]:
    """Maps of the cases worth one."""
    widest: dict[tuple[object, ...], tuple[float, int]] = {}
    fields = ("backend", "collective", "ranks", "nodes", *(axis.name for axis in WORK))
    for place, point in enumerate(points):
        if not _has_map(point):
            continue
        spread = max(float(row.max()) for row in point.rank_samples_seconds) / (point.median_seconds or 1.0)
        kind = tuple(getattr(point, name) for name in fields)
        if spread > widest.get(kind, (0.0, 0))[0]:
            widest[kind] = (spread, place)
    chosen = sorted(widest.values(), key=lambda one: (-one[0], one[1]))[:MOST_MAPS]
    return [_figure(points[place]) for _, place in chosen]


def _has_map(point: Point) -> bool:
    if not point.is_timed or point.ranks < 2 or point.emulated:
        return False
    lengths = {len(row) for row in point.rank_samples_seconds}
    return (
        len(point.rank_samples_seconds) == point.ranks
        and len(lengths) == 1
        and min(lengths) >= FEWEST_SAMPLES
    )


def _figure(point: Point) -> Figure:
    import numpy as np

    seconds = np.array(point.rank_samples_seconds)
    ratios = seconds / float(np.median(seconds.max(axis=0)))
    rows, columns = _gathered(ratios, MOST_ROWS, 0), MOST_COLUMNS
    cells = _gathered(rows, columns, 1)
    ranks, samples = ratios.shape
    notes = []
    if ratios.max() > DARKEST:
        notes.append(
            f"Cells of {DARKEST:g} times the median and more are alike, up to {format_ratio(ratios.max())}"
        )
    if cells.shape[1] < samples:
        notes.append(f"A column is {-(-samples // cells.shape[1])} samples or fewer, their slowest shown")
    if cells.shape[0] < ranks:
        notes.append(f"A row is {-(-ranks // cells.shape[0])} ranks or fewer, their slowest shown")
    label = "SIMULATED " if point.simulated else f"{EMULATION} " if point.emulated else ""
    return Figure(
        key=f"samples-{point.backend}-{point.collective}-{point.algorithm}-{point.ranks}ranks-"
        f"{point.size_bytes}B{'-' + point.setting if point.setting else ''}",
        topic="ranks",
        title=f"{label}{point.backend} {point.collective} {point.algorithm} {format_size(point.size_bytes)}: "
        "every sample of every rank",
        subtitle=f"{plural(ranks, 'rank')} · {plural(samples, 'sample')} · {spike_text(ratios)}",
        x=Axis("sample, in the order they were taken", "rank", "linear"),
        y=Axis("rank", "rank", "linear"),
        series=(),
        footnote=(
            point.label,
            "A stripe from top to bottom is the whole system's; one row alone is that rank's",
            *notes,
        ),
        grid=Grid(
            values=tuple(tuple(min(float(cell), DARKEST) for cell in row) for row in cells),
            texts=(),
            marked=(),
            unit="time over the median",
            large_is_good=False,
        ),
    )


def _gathered(values: NDArray[np.float64], most: int, axis: int) -> NDArray[np.float64]:
    """``values`` with at most ``most`` entries along ``axis``: the largest of each stretch."""
    import numpy as np

    count = values.shape[axis]
    if count <= most:
        return values
    step = -(-count // most)
    starts = np.arange(0, count, step)
    gathered: NDArray[np.float64] = np.maximum.reduceat(values, starts, axis=axis)
    return gathered


def spike_text(ratios: NDArray[np.float64]) -> str:
    """How many samples were spikes, and whether all ranks had them together; rows are ranks.

    Ranks that wait for a slow one are slow with it, so one rank alone is rarely seen: it must end
    late without holding the others up, as a receiver does.
    """
    high = ratios > SPIKE
    spikes = high.any(axis=0)
    count = int(spikes.sum())
    if not count:
        return f"no sample beyond {SPIKE} times the median"
    together = int((high.sum(axis=0) * 2 > len(ratios)).sum())
    parts = [f"{together} in most ranks at once"] if together else []
    parts += [f"{count - together} in few ranks"] if count > together else []
    return f"{count} beyond {SPIKE} times the median, {', '.join(parts)}"
