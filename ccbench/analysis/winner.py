"""Which of several configurations of one run is faster, by how much, at which sizes: the sentence of ``--vary``.

Every configuration is compared with the first by the tests of ``compare``, over rounds that were measured in turn.
Beside it the rounds of each are compared with themselves (``self_check``): a point at which that shows differences
too is undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median

from ccbench.analysis.comparison import compare_by
from ccbench.analysis.self_check import noisy_points
from ccbench.analysis.verdicts import Compared, Comparison, NoVerdict, Settings, Verdict
from ccbench.cases.axes import AXIS, Axis
from ccbench.flags import Flag
from ccbench.results import Run
from ccbench.results.keys import POINT, grouped
from ccbench.units import format_size, percent, plural

VARIANT = "variant"

MOST_BANDS = 4
"""Of one configuration, and configurations: those that a sentence names."""

SHARED = frozenset((Flag.OTHER_LOAD, Flag.CPU_CONTENTION, Flag.STEAL))
"""Flags of load that comes from outside."""


def varied(run: Run) -> tuple[Axis | None, str]:
    """The axis whose values ``run`` was made to compare, and its first value; of a suite its variants."""
    name, _, base = run.manifest.text("options", "vary").partition("=")
    variants = [*run.manifest.mapping("suite", AXIS[VARIANT].key)]
    if not name and len(variants) > 1:
        name, base = VARIANT, variants[0]
    return AXIS.get(name), base


def compared_values(
    run: Run, axis: Axis, base: str, settings: Settings | None = None
) -> Compared:
    """Compare the values of ``axis`` with ``base``; what A against A shows as well is no verdict.

    The load of others meets all alike, for they were measured in turns.
    """
    settings = settings or Settings()
    settings = replace(settings, accepted_flags=settings.accepted_flags | SHARED)
    compared = compare_by(run, axis, base, settings)
    key = POINT.without(axis.name)
    noisy = {key(point) for point in noisy_points(run, settings)}
    reason = "A against A, its rounds compared with themselves, differs as well"

    def sure(comparison: Comparison) -> Comparison:
        if comparison.verdict is Verdict.NONE or key(comparison.point) not in noisy:
            return comparison
        return replace(
            comparison, verdict=Verdict.NONE, cause=NoVerdict.TOO_WIDE, reason=reason
        )

    return replace(compared, points=tuple(map(sure, compared.points)))


def winner_sentence(run: Run) -> str:
    """``Tree is 1.42 (1.38 to 1.47) times as fast as Ring up to 64 KiB; ...``; "" where nothing was varied."""
    axis, base = varied(run)
    measured = [] if axis is None else [str(getattr(each, axis.name)) for each in run.points]
    if axis is None or base not in measured or len({*measured}) < 2:
        return ""
    compared = compared_values(run, axis, base)
    values = grouped(compared.points, lambda each: str(getattr(each.point, axis.name)))
    values.pop(base, None)
    gains = sorted(values, key=lambda value: min(each.ratio or 1.0 for each in values[value]))
    parts = [part for value in gains[:MOST_BANDS] for part in bands(values[value], value, base)]
    same = len(compared.of(Verdict.SAME))
    open_points = compared.of(Verdict.NONE)
    every = plural(len(compared.points), "point")
    parts += (
        [f"the same within {percent(compared.settings.threshold)} at {same} of {every}"]
        if same
        else []
    )
    parts += [f"{len(open_points)} of {every} undecided"] if open_points else []
    if len(open_points) == len(compared.points):
        why = open_points[0].words.removeprefix("no verdict: ")
        return f"CANNOT SAY which {axis.name} is faster: {parts[-1]} ({why})"
    if not (compared.of(Verdict.FASTER) or compared.of(Verdict.SLOWER)):
        return f"NO DIFFERENCE between {base} and {', '.join(gains)}: {'; '.join(parts)}"
    return "; ".join(parts)


def bands(points: Sequence[Comparison], value: str, base: str) -> Iterator[str]:
    """Yield a clause for each range of sizes in which ``value`` or ``base`` is faster, collective by collective."""
    decided = [each for each in points if each.verdict in (Verdict.FASTER, Verdict.SLOWER)]
    at_size = grouped(decided, lambda each: (each.point.collective, each.point.size_bytes))
    # In place and out of place are told apart only where they contradict each other.
    split = any(len({each.verdict for each in at}) > 1 for at in at_size.values())
    curves = grouped(
        points, lambda each: (each.point.collective, each.point.in_place and split)
    )
    several = len({collective for collective, _ in curves}) > 1
    for (collective, in_place), members in curves.items():
        placement = "in place" if in_place else "out of place"
        words = ([collective] if several else []) + [placement] * split
        by_size = sorted(grouped(members, lambda each: each.point.size_bytes).items())
        least, most = by_size[0][0], by_size[-1][0]
        clauses = []
        for verdict, band in groupby(by_size, key=lambda row: _common(row[1])):
            rows = list(band)
            if verdict is None:
                continue
            winner, loser = (value, base) if verdict is Verdict.FASTER else (base, value)
            times = _times([each for _, at in rows for each in at if each in decided], verdict)
            where = _where(rows[0][0], rows[-1][0], least, most)
            of = f"{' '.join(words)}: " if words else ""
            clauses.append(f"{of}{winner} is {times} times as fast as {loser} {where}")
        yield from clauses[:MOST_BANDS]


def _common(points: Sequence[Comparison]) -> Verdict | None:
    """FASTER or SLOWER where some of ``points`` of one size say that and none says the other."""
    verdicts = {each.verdict for each in points} & {Verdict.FASTER, Verdict.SLOWER}
    return verdicts.pop() if len(verdicts) == 1 else None


def _times(points: Sequence[Comparison], verdict: Verdict) -> str:
    """``1.42 (1.38 to 1.47)``: the ratio and its interval, medians over sizes; ``1.2 to 2.3`` where sizes differ."""
    power = 1 if verdict is Verdict.SLOWER else -1
    gains, *ends = (
        [(getattr(each, name) or each.ratio or 1.0) ** power for each in points]
        for name in ("ratio", "low", "high")
    )
    lows, highs = ends[::power]
    if max(lows) > min(highs):
        return f"{min(gains):.3g} to {max(gains):.3g}"
    return f"{median(gains):.3g} ({median(lows):.3g} to {median(highs):.3g})"


def _where(first: int, last: int, least: int, most: int) -> str:
    if (first, last) == (least, most):
        return "at every size"
    if first == last:
        return f"at {format_size(first)}"
    if first == least:
        return f"up to {format_size(last)}"
    return (
        f"from {format_size(first)} on"
        if last == most
        else f"from {format_size(first)} to {format_size(last)}"
    )
