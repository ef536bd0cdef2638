"""From points to figures: bandwidth, time, and algorithms against size, one figure per kind of case.

Pure functions. The figures of prediction and of ranks are in ``figures_across``.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from ccbench.analysis.findings import provenance
from ccbench.cases import NO_OP, WORK, Status
from ccbench.report.crossovers import Crossover, Curve, leads
from ccbench.report.figure import Axis, Figure, Kind, Mark, Row, Series, Span, measured_series
from ccbench.report.figures_across import prediction_figures, rank_figures
from ccbench.report.points import (
    SeriesKey,
    footnote,
    imported_from,
    labelled,
    missing_groups,
    series_key,
    series_names,
)
from ccbench.results import Point
from ccbench.stats import Interval
from ccbench.units import format_size, plain, plural

MOST_SERIES = 6
"""Lines one figure can hold and still be read; more are spread over several figures."""

MOST_BASELINES = 4
"""Lines of a baseline, which are all grey."""

FEWEST_JOINED = 4
WIDEST_GAP = 16
"""Points are joined by lines only where there are enough of them and neighbours are close in size."""

SIZE = Axis("size", "bytes", "log2")
TIME = Axis("time per launch", "seconds", "log10")
BANDWIDTH = Axis("bus bandwidth", "GB/s", "linear")
SLOWDOWN = Axis("time relative to the fastest", "ratio", "log10")

BOUND_LABEL = f": {Kind.BOUND.value}"

GROUP_FIELDS = ("collective", "ranks", "nodes", "dtype", "op", "emulated")

Value = Callable[[Point, float | None], float | None]
Maker = Callable[[], list[Figure]]


def figures_of(points: Sequence[Point], problems: list[str] | None = None) -> tuple[Figure, ...]:
    """Every figure of a report; one that says so when nothing was measured.

    problems: takes one line for every kind of figure that could not be made, so that the rest is not lost;
        without it the first failure is raised.
    """
    makers: list[tuple[str, Maker]] = []
    for group in _groups(points):
        makers.append((f"bandwidth and time of {group_key(group[0])}", partial(_size_figures, group)))
        makers.append((f"algorithms of {group_key(group[0])}", partial(_race_figures, group)))
    makers.append(("collectives without data", partial(_barrier_figures, points)))
    makers.append(("measured against predicted", partial(prediction_figures, points)))
    makers.append(("ranks", partial(rank_figures, points)))
    figures = [figure for name, make in makers for figure in made(name, make, problems)]
    return tuple(figures) or (() if problems else (_nothing(points),))


def made(name: str, make: Maker, problems: list[str] | None) -> list[Figure]:
    """What ``make`` gives; where it fails nothing, and a line in ``problems``, without which it is raised."""
    try:
        return make()
    except Exception as error:
        if problems is None:
            raise
        problems.append(f"{name}: {type(error).__name__}: {plain(error, 200)}")
        return []


def _groups(points: Sequence[Point]) -> list[list[Point]]:
    """Points that belong in one figure, groups without any speed left out."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        if not point.pair:  # pairs have figures of their own
            groups[tuple(getattr(point, name) for name in GROUP_FIELDS)].append(point)
    return [group for _, group in sorted(groups.items(), key=str) if any(_has_size(one) for one in group)]


def _has_size(point: Point) -> bool:
    return point.size_bytes > 0 and bool(point.median_seconds)


def _size_figures(group: Sequence[Point]) -> list[Figure]:
    parts = _parts(group)
    figures = []
    for index, part in enumerate(parts):
        suffix = f" ({index + 1} of {len(parts)})" if len(parts) > 1 else ""
        key = f"-{index + 1}" if len(parts) > 1 else ""
        if any(point.busbw is not None and point.group_ranks > 1 and not point.emulated for point in part):
            figures.append(_against_size(part, "bandwidth", suffix, key))
        figures.append(_against_size(part, "time", suffix, key))
    return figures


def _parts(group: Sequence[Point]) -> list[list[Point]]:
    """``group`` in parts of at most MOST_SERIES series: by backend first, then by number."""
    by_backend: dict[str, list[Point]] = defaultdict(list)
    whole = {series_key(point) for point in group if not point.baseline}
    for point in group:
        by_backend["" if len(whole) <= MOST_SERIES else point.backend].append(point)
    parts = []
    for _, members in sorted(by_backend.items()):
        keys = sorted({series_key(point) for point in members if not point.baseline}, key=str)
        for start in range(0, max(len(keys), 1), MOST_SERIES):
            chosen = set(keys[start : start + MOST_SERIES])
            part = [one for one in members if one.baseline or series_key(one) in chosen]
            if any(_has_size(one) for one in part):
                parts.append(part)
    return parts


def _title(points: Sequence[Point], what: str) -> str:
    return f"{labelled(points)}{points[0].collective}: {what}"


def _subtitle(points: Sequence[Point]) -> str:
    first = points[0]
    parts = [plural(first.ranks, "rank")]
    if first.nodes > 1:
        parts.append(plural(first.nodes, "node"))
    parts.append(first.dtype + ("" if first.op == NO_OP else f" {first.op}"))
    backends = sorted({point.backend for point in points})
    parts.append(", ".join(backends))
    parts.append(imported_from([point for point in points if not point.baseline]))
    return " · ".join(part for part in parts if part)


def group_key(point: Point) -> str:
    """Words that name a figure's file."""
    nodes = f"-{point.nodes}nodes" if point.nodes else ""
    emulated = "-emulated" if point.emulated else ""
    return f"{point.collective}-{point.ranks}ranks{nodes}-{point.dtype or 'unknown'}-{point.op}{emulated}"


def _against_size(points: Sequence[Point], topic: str, suffix: str, key: str) -> Figure:
    bandwidth = topic == "bandwidth"
    value: Value = Point.busbw_at if bandwidth else _seconds
    names = series_names(points)
    keys = sorted({series_key(point) for point in points if not point.baseline}, key=str)
    series: list[Series] = []
    for style, one in enumerate(keys):
        series += _lines(
            [p for p in points if not p.baseline and series_key(p) == one], names[one], style, value
        )
    behind, left_out = _baseline_keys(points)
    for style, one in enumerate(behind):
        curve = _measured([p for p in points if p.baseline and series_key(p) == one], "", style, value)
        label = names[one] if names[one].startswith("published") else f"baseline {names[one]}"
        series += [replace(curve, kind=Kind.BASELINE, label=label, low=(), high=())]
    notes = list(footnote(points))
    if left_out:
        notes.append(
            f"Not drawn for want of room: {plural(left_out, 'line')} of the baseline with fewer points"
        )
    if any(point.size_bytes == 0 and point.median_seconds for point in points):
        notes.append("Not drawn: 0 bytes, which has no place on a logarithmic axis")
    return Figure(
        key=f"{topic}-{group_key(points[0])}{key}",
        topic="bandwidth" if bandwidth else "time",
        title=_title(points, f"{'bus bandwidth' if bandwidth else 'time'} against size{suffix}"),
        subtitle=_subtitle(points),
        x=SIZE,
        y=BANDWIDTH if bandwidth else TIME,
        series=tuple(_shared_bounds(series)),
        footnote=tuple(notes),
    )


def _baseline_keys(points: Sequence[Point]) -> tuple[list[SeriesKey], int]:
    """The baseline's lines with the most points, as many as can be read, and how many were left out."""
    counts = Counter(series_key(point) for point in points if point.baseline and _has_size(point))
    ranked = sorted(counts, key=lambda key: (-counts[key], str(key)))
    return sorted(ranked[:MOST_BASELINES], key=str), len(ranked[MOST_BASELINES:])


def _seconds(point: Point, seconds: float | None) -> float | None:
    return seconds if seconds and seconds > 0 else None


def _lines(points: Sequence[Point], name: str, style: int, value: Value) -> list[Series]:
    """Measured, predicted and bound lines of one series, those that have points."""
    lines = [_measured(points, name, style, value)]
    for kind, seconds in ((Kind.PREDICTED, "predicted_seconds"), (Kind.BOUND, "bound_seconds")):
        drawn = sorted(
            (point.size_bytes, figure)
            for point in points
            if point.size_bytes > 0 and (figure := value(point, getattr(point, seconds))) is not None
        )
        label = f"{name}: {kind.value}"
        x, y = tuple(float(size) for size, _ in drawn), tuple(figure for _, figure in drawn)
        lines.append(Series(label, kind, style, x, y, joined=joinable(x)))
    return [line for line in lines if line.x or line.missing]


def _measured(points: Sequence[Point], name: str, style: int, value: Value) -> Series:
    """The measured line of one series, by size; low and high are ends of y, whichever way y runs."""
    rows: list[Row] = []
    for point in sorted(points, key=lambda one: one.size_bytes):
        middle = value(point, point.median_seconds)
        if point.size_bytes > 0 and middle is not None:
            ends = [value(point, point.low_seconds), value(point, point.high_seconds), middle]
            known = [end for end in ends if end is not None]
            low, high = (None, None) if point.low_seconds is None else (min(known), max(known))
            rows.append((float(point.size_bytes), middle, low, high, point.trusted))
    missing = tuple(sorted({float(one.size_bytes) for one in points if _has_no_result(one)}))
    return measured_series(name, style, rows, joined=joinable([row[0] for row in rows]), missing=missing)


def _has_no_result(point: Point) -> bool:
    return point.size_bytes > 0 and point.status not in (Status.OK, Status.SKIPPED, Status.UNSUPPORTED)


def joinable(sizes: Sequence[float]) -> bool:
    """Whether lines between neighbouring sizes say something that was nearly measured."""
    gaps = [high / low for low, high in pairwise(sizes)]
    return len(sizes) >= FEWEST_JOINED and max(gaps) <= WIDEST_GAP


def _shared_bounds(series: Sequence[Series]) -> list[Series]:
    """One bound for all series whose bounds are equal: it depends on the groups, not on the algorithm."""
    alike: list[tuple[dict[float, float], list[Series]]] = []
    for bound in sorted((one for one in series if one.kind == Kind.BOUND), key=lambda one: -len(one.x)):
        own = dict(zip(bound.x, bound.y, strict=True))
        for known, members in alike:
            both = own.keys() & known.keys()
            if both and all(math.isclose(known[size], own[size], rel_tol=1e-6) for size in both):
                known.update(own)
                members.append(bound)
                break
        else:
            alike.append((own, [bound]))
    shared = []
    for values, members in alike:
        sizes = tuple(sorted(values))
        names = ", ".join(one.label.removesuffix(BOUND_LABEL) for one in members)
        label, style = (f"{names}{BOUND_LABEL}", members[0].style) if len(alike) > 1 else ("bound", -1)
        heights = tuple(values[size] for size in sizes)
        shared.append(Series(label, Kind.BOUND, style, sizes, heights, joined=joinable(sizes)))
    return [*(one for one in series if one.kind != Kind.BOUND), *shared]


def _race_figures(group: Sequence[Point]) -> list[Figure]:
    """Who is fastest: among measured points, and among simulated ones, which never race against measured.

    Emulated ones race against nobody, not even each other; other groups do other work, and pairs have a
    figure of their own.
    """
    racing = [point for point in group if not (point.baseline or point.emulated or point.pair)]
    races: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in racing:
        kind = (point.simulated, *(getattr(point, axis.name) for axis in WORK))
        races[kind].append(point)
    several = len({key[0] for key in races}) > 1
    figures = []
    for key, members in sorted(races.items(), key=str):
        figure = _race(members)
        if figure is not None:
            words = [figure.key, *map(str, key[1:]), "simulated" if several and key[0] else ""]
            plain_work = all(getattr(members[0], axis.name) == axis.default for axis in WORK)
            words = [words[0], words[-1]] if plain_work else words
            figures.append(replace(figure, key="-".join(word for word in words if word)))
    return figures


def _race(points: Sequence[Point]) -> Figure | None:
    """All series relative to the fastest at each size that two or more reached, with the crossovers.

    None where no size has two.
    """
    names = series_names(points)
    curves = {key: curve for key in sorted(names, key=str) if (curve := _curve(points, key))}
    best = _best(curves.values())
    if not best:
        return None
    curves = {key: curve for key, curve in curves.items() if best.keys() & curve.keys()}
    found, crossings = leads({names[key]: curve for key, curve in curves.items()})
    ahead = {one.name for one in found}
    drawn = sorted(curves, key=lambda key: (names[key] not in ahead, *_closest(curves[key], best)))
    drawn = sorted(drawn[:MOST_SERIES], key=str)
    style = {names[key]: place for place, key in enumerate(drawn)}
    series = [
        _measured(
            [p for p in points if series_key(p) == key], names[key], style[names[key]],
            lambda p, seconds: seconds / best[p.size_bytes] if seconds and p.size_bytes in best else None,
        )
        for key in drawn
    ]  # fmt: skip
    notes = _crossing_notes(crossings, sorted(names[key] for key in curves if key not in set(drawn)))
    alone = sorted({size for curve in curves.values() for size in curve} - best.keys())
    if alone:
        notes.append(f"Not drawn, because only one was measured there: {', '.join(map(format_size, alone))}")
    return Figure(
        key=f"algorithms-{group_key(points[0])}",
        topic="algorithms",
        title=_title(points, "which is fastest at which size"),
        subtitle=_subtitle(points),
        x=SIZE,
        y=SLOWDOWN,
        series=tuple(series),
        footnote=(*notes, *footnote(points)),
        spans=tuple(
            Span(one.low_bytes, one.high_bytes, one.name, style[one.name])
            for one in found
            if one.name in style
        ),
        marks=tuple(Mark(one.size_bytes, _crossing_label(one)) for one in crossings),
    )


def _best(curves: Collection[Curve]) -> dict[int, float]:
    """The shortest median in seconds at each size that at least two of ``curves`` have."""
    sizes = Counter(size for curve in curves for size in curve)
    return {
        size: min(curve[size].median for curve in curves if size in curve)
        for size, count in sizes.items()
        if count > 1
    }


def _curve(points: Sequence[Point], key: SeriesKey) -> dict[int, Interval]:
    return {
        point.size_bytes: Interval(point.low_seconds, point.median_seconds, point.high_seconds, 0.0)
        for point in points
        if series_key(point) == key and _has_size(point)
        and point.median_seconds and point.low_seconds is not None and point.high_seconds is not None
    }  # fmt: skip


def _closest(curve: Curve, best: dict[int, float]) -> tuple[float, float]:
    """How near a curve comes to the fastest anywhere, then how far it is in the middle."""
    ratios = sorted(interval.median / best[size] for size, interval in curve.items() if size in best)
    return ratios[0], ratios[len(ratios) // 2]


def _crossing_notes(crossings: Sequence[Crossover], left_out: Sequence[str]) -> list[str]:
    lines = []
    if crossings:
        texts = [
            f"{one.after} overtakes {one.before} {_crossing_place(one)} "
            f"(measured at {format_size(one.low_bytes)} and {format_size(one.high_bytes)})"
            for one in crossings
        ]
        lines.append("; ".join(texts) + "; straight lines on log-log axes between measured sizes")
    else:
        lines.append("No crossover: nowhere does the leader's interval lie wholly above another's")
    if left_out:
        lines.append(f"Not drawn for want of room: {', '.join(left_out)}")
    return lines


def _crossing_place(crossing: Crossover) -> str:
    """Where, as exactly as the distance between the measured sizes allows."""
    if crossing.high_bytes > WIDEST_GAP * crossing.low_bytes:
        return "somewhere between"
    return f"at about {approximate_size(crossing.size_bytes)}"


def _crossing_label(crossing: Crossover) -> str:
    if crossing.high_bytes > WIDEST_GAP * crossing.low_bytes:
        return f"{format_size(crossing.low_bytes)} to {format_size(crossing.high_bytes)}"
    return approximate_size(crossing.size_bytes)


def approximate_size(size_bytes: float) -> str:
    """A size to two digits, for sizes that were estimated: ``96 KiB``."""
    power = min(int(math.log2(max(size_bytes, 1.0)) // 10), 4)
    value = size_bytes / 1024**power
    digits = 1 - math.floor(math.log10(value)) if value >= 1 else 1
    return f"{round(value, digits):g} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def _barrier_figures(points: Sequence[Point]) -> list[Figure]:
    """Collectives that move no data, against the number of ranks."""
    moved = [p for p in points if p.size_bytes == 0 and p.busbw_at(1.0) is None and not p.baseline]
    figures = []
    for collective, emulated in sorted({(point.collective, point.emulated) for point in moved}):
        members = [one for one in moved if (one.collective, one.emulated) == (collective, emulated)]
        if len({point.ranks for point in members if point.median_seconds}) < 2:
            continue
        names = series_names(members)
        # Ranks take the place of the size: the rest of the line is built the same way.
        shifted = [replace(point, size_bytes=point.ranks) for point in members]
        series = [
            replace(line, joined=len(line.x) >= FEWEST_JOINED)
            for style, key in enumerate(sorted(names, key=str)[:MOST_SERIES])
            for line in _lines([p for p in shifted if series_key(p) == key], names[key], style, _seconds)
        ]
        figures.append(
            Figure(
                key=f"time-{collective}-by-ranks" + ("-emulated" if emulated else ""),
                topic="time",
                title=_title(members, "time against ranks"),
                subtitle=", ".join(sorted({point.backend for point in members})),
                x=Axis("ranks", "ranks", "log2"),
                y=TIME,
                series=tuple(_shared_bounds(series)),
                footnote=footnote(members),
            )
        )
    return figures


def _nothing(points: Sequence[Point]) -> Figure:
    reasons = missing_groups(points)
    label = provenance(points)
    return Figure(
        key="nothing-measured",
        topic="nothing",
        title=f"{label}: no case has a speed" if label else "No case has a speed",
        subtitle=plural(len(points), "case"),
        x=SIZE,
        y=TIME,
        footnote=footnote(points) if points else (),
        message="The run holds no case." if not reasons else f"{plural(len(points), 'case')}, none ended ok.",
    )
