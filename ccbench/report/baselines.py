"""A run and its baseline: which points stand for the same work, and how the two compare.

Only like points are compared: the same collective, op, ranks, nodes, placement, size and settings (pair,
groups, what ran beside, channels, registration and so on), as far as both say, and a network of the kind and
rate that the run declares. Another element type stands in where none of the same is there and bytes are all
that counts. The library and the algorithm may differ, since the question is what such a machine gives; every
baseline point therefore says what it is. GPUs may differ, too: lines above the pairs say so, and also where a
baseline has the run's own figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ccbench.analysis.comparison import library_of, may_be_alike, middle_of
from ccbench.analysis.findings import LEFT_OUT
from ccbench.cases.axes import NO_OP
from ccbench.errors import RunFolderError
from ccbench.model.library.clusters import generations_in
from ccbench.report.present import ShownColumn, Table, aligned, beyond, csv_of, named, table_of
from ccbench.report.wording import points_of
from ccbench.results import Point, Run
from ccbench.results.keys import SETTING, grouped
from ccbench.results.loading import PREFIX, load_published, open_run, published_names
from ccbench.results.systems import is_other_model
from ccbench.units import format_seconds, format_size, plural

PAIRS_FILE = "baseline-pairs.csv"

MOST_OFFERED = 5
"""Kinds of points that a baseline has, named where none is like the run's."""

MOST_LINES = 60
"""Pairs that the screen shows; the files have all of them."""


@dataclass(frozen=True)
class BaselinePair:
    """One point of a run and the baseline's for the same work.

    baseline: the middle one by time where there are several, ``others`` how many more there are.
    """

    point: Point
    baseline: Point
    others: int

    @property
    def speed_ratio(self) -> float:
        """The run's speed over the baseline's: above 1 the run is faster."""
        return (self.baseline.median_seconds or 0.0) / (self.point.median_seconds or 1.0)

    @property
    def heading(self) -> str:
        """The point without its size, which has a column."""
        return f"{self.point.run} {self.point.name}".strip()

    @property
    def legend(self) -> str:
        """Library, network and source of the baseline, and what is not known of it."""
        point = self.baseline
        parts = ([f"over {point.network}"] if point.network and point.nodes != 1 else []) + [
            point.detail
        ]
        more = "; ".join(part for part in parts if part)
        return library_of(point) + (f" ({more})" if more else "")


def comparable_points(points: Sequence[Point], baseline: Run) -> tuple[Point, ...]:
    """Points of ``baseline`` that did the same work as any of ``points``, at whatever size.

    What a source leaves open (nodes, element type, op) is taken to be as in the run, so that both are drawn
    in one figure; what differs or is not known of a point stands in its detail. Emulated times on either side
    have no like.
    """
    name = baseline.path.name.partition(":")[
        0
    ]  # of published results the machine is in the small print
    # Emulated times and failures have no like.
    theirs = [
        candidate
        for candidate in points_of(baseline, name=name, baseline=True)
        if _has_speed(candidate)
    ]
    comparable: list[Point] = []
    # One point stands for every kind of work.
    for kind in {_work(point): point for point in points if not point.emulated}.values():
        alike = [their for their in theirs if _same_work(their, kind)]
        of_type = {candidate.size_bytes for candidate in alike if _same_type(candidate, kind)}
        for candidate in alike:
            same_type = _same_type(candidate, kind)
            # Another element type stands in only where none of the same is there.
            if not same_type and candidate.size_bytes in of_type:
                continue
            detail, run = [], candidate.run
            if not candidate.nodes:
                detail.append("nodes not stated")
            elif not kind.nodes:
                detail.append(
                    f"of {plural(candidate.nodes, 'node')}, this run's are not stated"
                )
            if not same_type:
                detail.append(f"measured with {candidate.dtype}")
                run = f"{run} with {candidate.dtype}"
            comparable.append(
                replace(
                    candidate,
                    run=run,
                    nodes=kind.nodes,
                    dtype=kind.dtype,
                    op=kind.op,
                    detail="; ".join(detail),
                )
            )
    return tuple(comparable)


def _has_speed(point: Point) -> bool:
    """True if there is a time that may be compared."""
    return bool(point.median_seconds) and not point.emulated


def _work(point: Point) -> tuple[object, ...]:
    words = (point.collective, point.dtype, point.op, point.ranks, point.nodes, point.in_place)
    return (*words, *SETTING(point))


def _same_work(baseline: Point, point: Point) -> bool:
    """True if sizes apart the two did the same; what a source does not say does not tell them apart."""
    alike = baseline.ranks == point.ranks and baseline.in_place == point.in_place
    return alike and SETTING(baseline) == SETTING(point) and may_be_alike(baseline, point)


def _same_type(baseline: Point, point: Point) -> bool:
    return baseline.dtype == point.dtype or not baseline.dtype or not point.dtype


def beside(points: Sequence[Point], behind: Sequence[Point]) -> tuple[BaselinePair, ...]:
    """Every point that has a speed with its like in the baseline, in the order of ``points``."""
    by_size: dict[int, list[Point]] = defaultdict(list)
    for candidate in behind:
        by_size[candidate.size_bytes].append(candidate)
    pairs = []
    for point in points:
        alike = by_size[point.size_bytes] if _has_speed(point) else []
        alike = [
            candidate
            for candidate in alike
            if _has_speed(candidate) and candidate.dtype == point.dtype
        ]
        likes = [candidate for candidate in alike if _same_work(candidate, point)]
        if likes:
            pairs.append(BaselinePair(point, *middle_of(likes, point)))
    return tuple(pairs)


def baseline_lines(points: Sequence[Point], baseline: Run) -> list[str]:
    """Lines for the screen: the pairs, or why there are none and what the baseline has instead."""
    behind = comparable_points(points, baseline)
    pairs = beside(points, behind)
    name = baseline.path.name or str(baseline.path)
    timed = [point for point in points if point.median_seconds]
    if timed and all(point.emulated for point in timed):
        return [f"{name}: nothing of this run is compared with it; its times are {LEFT_OUT}"]
    if not pairs:
        theirs = [candidate for candidate in points_of(baseline) if _has_speed(candidate)]
        names, ranks = {point.collective for point in points}, {point.ranks for point in points}
        # Those of the run's collectives and ranks first.
        theirs.sort(
            key=lambda candidate: (
                candidate.collective not in names,
                candidate.ranks not in ranks,
                _offer(candidate),
            )
        )
        offered = []
        for text, alike in grouped(theirs, _offer).items():
            sizes = sorted(point.size_bytes for point in alike)
            ends = dict.fromkeys(map(format_size, (sizes[0], sizes[-1])))
            offered.append(f"{text} at {' to '.join(ends)}")
        near = f"it has {'; '.join(offered[:MOST_OFFERED])}" if offered else "it has no speed"
        over = "".join(f" over {point.network}" for point in points[:1] if point.network)
        return [
            f"{name}: nothing like this run's points{over}; {near}{_elsewhere(points, baseline)}"
        ]
    # What a baseline point is stands once below the lines, by number.
    marks = {
        text: place
        for place, text in enumerate(dict.fromkeys(pair.legend for pair in pairs), 1)
    }
    lines = [f"Compared with {name} (x: its time over this run's; above 1 this run is faster):"]
    lines += [f"  note: {caution}" for caution in cautions(points, behind, baseline)]

    def mark(pair: BaselinePair) -> str:
        return f"[{marks[pair.legend]}]" + (
            f" (middle of {pair.others + 1})" if pair.others else ""
        )

    rows = aligned(table_of((*FIGURES, ShownColumn("baseline", right=False, show=mark)), pairs))
    lines.append(f"  {rows[0]}")
    heading = ""
    for pair, row in zip(pairs[:MOST_LINES], rows[1:], strict=False):
        if pair.heading != heading:
            heading = pair.heading
            lines.append(f"  {heading}")
        lines.append(f"  {row}")
    lines += beyond(pairs, MOST_LINES, "  and {} more, in the report's files")
    return lines + [f"  [{place}] {text}" for text, place in marks.items()]


def _elsewhere(points: Sequence[Point], baseline: Run) -> str:
    """Words for the published results with the most points like this run's; '' where another run is asked for."""
    if not str(baseline.path).startswith(PREFIX):
        return ""
    near, alike = nearest_published(points)
    if near is None:
        return "; nor have other published results"
    return f"; try {near.path}, which has {plural(alike, 'point')} like it"


def nearest_published(points: Sequence[Point]) -> tuple[Run | None, int]:
    """Return (published results, number of points like ``points``): of the same machine, else GPU, else the most.

    None where no published results have any point like these.
    """
    gpus = {_gpu(point.machine) for point in points} - {""}
    best: tuple[tuple[bool, bool, int], Run | None] = ((False, False, 0), None)
    for name in published_names():
        run = load_published(name)
        alike = len(beside(points, comparable_points(points, run)))
        theirs = {_gpu(model) for model in run.devices} - {""}
        same = any(not is_other_model(own, other) for own in gpus for other in theirs)
        rank = (same, name in {point.machine for point in points}, alike)
        if alike and rank > best[0]:
            best = rank, run
    return best[1], best[0][2]


def open_base(name: Path | str, points: Sequence[Point]) -> Run:
    """The run of that name; of ``published`` the published results nearest to ``points``.

    Raises RunFolderError where none are like them, and as ``open_run`` does.
    """
    if str(name) != PREFIX.rstrip(":"):
        return open_run(name)
    run, _ = nearest_published(points)
    if run is None:
        raise RunFolderError(f"{name}: no published results have a point like this run's")
    return run


FEWEST_ALIKE = 3
"""Points with the very same time that make a coincidence unlikely: printed times have four digits or so."""


def cautions(points: Sequence[Point], behind: Sequence[Point], baseline: Run) -> list[str]:
    """Lines that speak against the comparison: other GPUs, or the run's very own figures."""
    lines = []
    own_gpus = {_gpu(point.machine) for point in points} - {""}
    gpus = {_gpu(model) for model in baseline.devices} - {""}
    # Only where they surely differ: names of one GPU are many.
    if (
        own_gpus
        and gpus
        and all(is_other_model(gpu, theirs) for gpu in own_gpus for theirs in gpus)
    ):
        lines.append(
            f"this run is of {', '.join(sorted(own_gpus))}, the baseline of {', '.join(sorted(gpus))}"
        )
    own = {
        (_work(point), point.size_bytes, point.median_seconds)
        for point in points
        if point.median_seconds
    }
    sources: dict[str, list[bool]] = defaultdict(list)
    for theirs in behind:
        figures = (_work(theirs), theirs.size_bytes, theirs.median_seconds)
        sources[theirs.source or theirs.run].append(figures in own)
    lines += [
        f"{source} has this run's very figures: the run is compared with itself"
        for source, alike in sources.items()
        if len(alike) >= FEWEST_ALIKE and all(alike)
    ]
    return lines


def _gpu(words: str) -> str:
    """The model of GPU that ``words`` name: themselves, or those of that machine of the catalog; else ""."""
    from ccbench.topology.files import catalog_names, load_catalog

    if words in catalog_names():
        gpus = load_catalog(words).gpus
        words = str(gpus[0].attributes.get("model", "")) if gpus else ""
    return words if generations_in(words) else ""


def _offer(point: Point) -> str:
    op = "" if point.op in (NO_OP, "sum") else point.op
    words = " ".join(filter(None, (point.backend, point.collective, point.dtype, op)))
    where = f" on {point.nodes} nodes" if point.nodes > 1 else ""
    where += f" over {point.network}" if point.network and point.nodes != 1 else ""
    where += ", in place" if point.in_place else ""
    return f"{words} {plural(point.ranks, 'rank')}{where}"


format_busbw = "{:.4g} GB/s".format
_SECONDS = partial(ShownColumn, form=format_seconds)
_RATE = partial(ShownColumn, form=format_busbw, absent="no rate")
FIGURES = (
    ShownColumn("size", value="point.size_bytes", form=format_size, name="size_bytes"),
    _SECONDS("time", value="point.median_seconds", name="median_seconds"),
    _RATE("busbw", value="point.busbw", name="busbw_GB_s"),
    ShownColumn(name="baseline", value="legend"),
    _SECONDS("its time", value="baseline.median_seconds", name="baseline_median_seconds"),
    _RATE("its busbw", value="baseline.busbw", name="baseline_busbw_GB_s"),
    *named("others"),
    ShownColumn("ratio", form="x{:.3g}".format, name="speed_ratio"),
)
"""Figures of a pair, of its point and of its baseline."""

_WORDS = (
    "run",
    "collective",
    "backend",
    "algorithm",
    "dtype",
    "op",
    "ranks",
    "nodes",
    "in_place",
)


def pairs_csv(pairs: Sequence[BaselinePair]) -> str:
    """Every pair as CSV; units are in the names."""
    return csv_of(
        (*named(*(f"point.{name}" for name in (*_WORDS, "setting"))), *FIGURES), pairs
    )


def pairs_table(pairs: Sequence[BaselinePair]) -> Table:
    """Every pair for people."""
    text = "Of several comparable points of the baseline the median is shown; ratio: its time over this run's."
    case = ShownColumn("case", right=False, value="point.label")
    legend = ShownColumn("baseline", right=False, value="legend")
    return table_of((case, *FIGURES, legend), pairs, text=text)
