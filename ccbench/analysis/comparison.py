"""What the environments of two runs say: whether the machines are the same, and what else differs.

Other hardware makes times incomparable; another name alone does not, since containers and the nodes of a
cluster get names of their own. Versions and settings may be the very thing that is compared: they are told.

Which published figures stand for the same work as a run's points.

The same collective, ranks, placement, size and settings, and the same nodes, element type and op as far as
both say, over a network of the kind and rate that the run declares; another element type stands in where none
of the same is there and bytes are all that counts. The library and its choice of algorithm may differ: what
such a machine gives is the question.

From two sides of many points to verdicts: all points at once, since the correction needs them all.

Two runs, a run and its predictions, or a run and published figures, compared point by point.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.significance import (
    corrected,
    differ,
    enough_rounds,
    rank_p,
    ratio_intervals,
    rounds_needed,
    welch_p,
)
from ccbench.analysis.verdicts import (
    Cause,
    Compared,
    Comparison,
    Floats,
    Obstacle,
    Settings,
    Side,
    Thresholds,
    Verdict,
    by_identity,
    obstacle_between,
    obstacle_of,
    round_medians,
    side_of,
)
from ccbench.cases import NO_OP, WORK, Status, moves_alike
from ccbench.results import Point, Run, open_run
from ccbench.results.importers.runs import UNKNOWN_COLLECTIVE
from ccbench.results.importers.same_machine import is_other_model
from ccbench.results.points import IMPOSSIBLE
from ccbench.results.published import PREFIX
from ccbench.topology.node_nics import is_other_network
from ccbench.units import format_change

_HARDWARE = {
    "processor": ("processor", "model"),
    "processors": ("processor", "cores_allowed"),
    "sockets": ("processor", "sockets"),
    "threads a core": ("processor", "threads_per_core"),
}
"""What makes a machine, where both runs say it."""

_TOLD = {
    "host": ("host", "name"),
    "kernel": ("host", "kernel"),
    "kernel options": ("host", "kernel_options"),
    "governors": ("processor", "governors"),
    "boost": ("processor", "boost"),
    "Python": ("software", "python"),
    "libraries": ("software", "libraries"),
    "driver": ("accelerators", "driver"),
    "variables": ("variables",),
}
"""What is told where it differs."""

_BESIDE_THE_POINT = frozenset(
    ("click", "matplotlib", "pandas", "pyarrow", "pydantic", "PyYAML", "rich", "scipy")
)
"""Libraries that no timed launch uses."""

MOST_SHOWN = 60
"""Characters of a value in a note."""


def hardware_difference(base: Run, new: Run) -> str:
    """Words for the first part of the hardware that surely differs; empty where none does or nobody says."""
    for words, path in _HARDWARE.items():
        left, right = (run.manifest.at("environment", *path) for run in (base, new))
        if left is not None and right is not None and left != right:
            return f"{words}: {_short(left)} in base, {_short(right)} in new"
    models = [sorted(run.devices) for run in (base, new)]
    if all(models):
        if all(is_other_model(a, b) for a in models[0] for b in models[1]):
            return f"devices: {', '.join(models[0])} in base, {', '.join(models[1])} in new"
        counts = [len(run.manifest.gpus) for run in (base, new)]
        if all(counts) and counts[0] != counts[1]:
            return f"number of devices: {counts[0]} in base, {counts[1]} in new"
    return ""


def notes_on(base: Run, new: Run) -> tuple[str, ...]:
    """One line for everything else that differs."""
    lines = [
        line
        for words, path in _TOLD.items()
        for line in _differences(words, *(run.manifest.at("environment", *path) for run in (base, new)))
    ]
    return (*_versions(base, new), *lines)


def _versions(base: Run, new: Run) -> Iterator[str]:
    """Backends whose library has another version in the other run."""
    found = [_of_backends(run) for run in (base, new)]
    for backend in sorted(found[0].keys() & found[1].keys()):
        left, right = (", ".join(sorted(one[backend])) for one in found)
        if left != right:
            yield f"{backend}: {_short(left)} in base, {_short(right)} in new"


def _of_backends(run: Run) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for point in run.points:
        if point.backend_version:
            found.setdefault(point.backend, set()).add(point.backend_version)
    return found


def _differences(words: str, left: Any, right: Any) -> Iterator[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right} - _BESIDE_THE_POINT, key=str):
            yield from _differences(f"{words}: {key}", left.get(key, "not set"), right.get(key, "not set"))
    elif left is not None and right is not None and left != right:
        yield f"{words}: {_short(left)} in base, {_short(right)} in new"


def _short(value: Any) -> str:
    text = "".join(letter if letter.isprintable() else "?" for letter in str(value))
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


Face = tuple[Sequence[Point], Sequence[Point], str]
"""What the base and the new run have of a case, () where nothing, and what to say about the pair."""


def facing_published(base: Run, cases: Iterable[Sequence[Point]]) -> list[Face]:
    """Every case of a run with the point that is most like it of ``base``, published results of a machine."""
    published: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in base.points:
        published[_surely(point)].append(point)
    return [_face(points, published.get(_surely(points[0]), ())) for points in cases]


def _face(points: Sequence[Point], published: Sequence[Point]) -> Face:
    point = points[0]
    found = [other for other in published if may_be_alike(other, point)]
    found = [other for other in found if other.dtype in (point.dtype, "")] or found
    if not found:
        return (), points, ""
    middle, others = middle_of(found, point)
    return (middle,), points, _told_of(middle, point, others + 1)


def _surely(point: Point) -> tuple[object, ...]:
    names = ("collective", "ranks", "in_place", "size_bytes", *(axis.name for axis in WORK))
    return tuple(getattr(point, name) for name in names)


def may_be_alike(other: Point, point: Point) -> bool:
    """Whether nothing that both say of collective, op, nodes, network and type tells the two apart."""
    known = other.collective == point.collective != UNKNOWN_COLLECTIVE
    same_op = other.op == point.op or NO_OP in (other.op, point.op)  # as where an all-reduce names none
    same_nodes = other.nodes == point.nodes or not other.nodes or not point.nodes
    over = 1 in (other.nodes, point.nodes) or not is_other_network(point.network, other.network)
    alike = moves_alike(point.collective, (other.backend, point.backend), (other.dtype, point.dtype))
    return known and same_op and same_nodes and over and alike


def middle_of(found: Sequence[Point], point: Point) -> tuple[Point, int]:
    """The middle one by time, and how many others there are beside it.

    Of those of the same algorithm and protocol, else of those left to the library, else of all.
    """
    alike = [one for one in found if (one.algorithm, one.protocol) == (point.algorithm, point.protocol)]
    left = [one for one in found if (one.algorithm, one.protocol) == ("default", "default")]
    chosen = alike or left or found
    ordered = sorted(chosen, key=lambda one: (one.median_seconds or math.inf, one.source, one.run))
    return ordered[(len(ordered) - 1) // 2], len(ordered) - 1


def library_of(point: Point) -> str:
    """Library, choice of algorithm, and where a point was published or measured."""
    chosen = " ".join(word for word in (point.algorithm, point.protocol) if word != "default")
    words = (point.backend_version or point.backend, chosen, point.source or point.run)
    return ", ".join(filter(None, words))


def _told_of(other: Point, point: Point, count: int) -> str:
    parts = [f"base: {library_of(other)}"]
    parts += [f"the middle of {count} like it"] * (count > 1)
    parts += ["nodes not stated"] * (not other.nodes or not point.nodes)
    parts += [f"over {other.network}"] * bool(other.network and other.nodes != 1)
    parts += [f"measured with {other.dtype}"] * (other.dtype not in (point.dtype, ""))
    return ", ".join(parts)


BY_RATIO_ALONE = "printed averages: the ratio against the threshold, nothing is known of their spread"


@dataclass(frozen=True)
class Facing:
    """A point that both runs have a time of. told: what is unusual about the pair."""

    point: Point
    base: Side
    new: Side
    told: str = ""


@dataclass(frozen=True)
class Tested:
    """Of many points: ratio of medians, corrected and rank p, and whether the two sides differ.

    would_differ: whether they would, had the point been the only one.
    """

    ratio: Floats
    p_value: Floats
    rank_p_value: Floats
    differs: NDArray[np.bool_]
    would_differ: NDArray[np.bool_]

    def beyond(self, threshold: Floats) -> NDArray[np.bool_]:
        """Points that differ, and by the threshold or more in either direction."""
        return self.differs & self._is_far(threshold)

    def kept_back(self, threshold: Floats) -> NDArray[np.bool_]:
        """Points that the correction for the number of points alone keeps from being ``beyond``."""
        return self.would_differ & ~self.differs & self._is_far(threshold)

    def _is_far(self, threshold: Floats) -> NDArray[np.bool_]:
        return np.abs(np.log(self.ratio)) >= np.log1p(threshold)


def tested(base: Floats, new: Floats, confidence: float) -> Tested:
    """base, new: medians of rounds in seconds, a row a point, NaN where a row has no further round."""
    alone = welch_p(np.log(base), np.log(new))
    welch, ranks = corrected(alone), rank_p(base, new)
    ratio = np.nanmedian(new, axis=1) / np.nanmedian(base, axis=1)
    return Tested(ratio, welch, ranks, differ(welch, ranks, confidence), differ(alone, ranks, confidence))


def _plain(pair: Facing, settings: Settings) -> Comparison:
    """All that is known before any verdict."""
    point = pair.point
    base, new = pair.base.seconds or 0.0, pair.new.seconds or 0.0
    return Comparison(
        point, Verdict.NONE, settings.thresholds.of(point.collective, point.backend, point.size_bytes),
        reason=pair.told, base_seconds=base, new_seconds=new, ratio=new / base,
        base_rounds=len(pair.base.rounds), new_rounds=len(pair.new.rounds),
    )  # fmt: skip


def _without_test(pair: Facing, settings: Settings) -> Comparison:
    """Of too few rounds: none of a measured point, the ratio's alone of what another tool printed."""
    plain = _plain(pair, settings)
    if not (pair.base.averages or pair.new.averages or (pair.base.imported and pair.new.imported)):
        needed = rounds_needed(settings.confidence)
        reason = (
            f"{plain.base_rounds} rounds against {plain.new_rounds} cannot show a change at "
            f"{settings.confidence:.4g}; {needed} against {needed} can"
        )
        return replace(plain, cause=Cause.TOO_FEW_ROUNDS, reason=joined(pair.told, reason))
    verdict = by_ratio(plain.ratio or 1.0, plain.threshold)
    return replace(plain, verdict=verdict, reason=joined(pair.told, BY_RATIO_ALONE))


def by_ratio(ratio: float, threshold: float) -> Verdict:
    """A verdict on a number that has no interval."""
    if ratio >= 1 + threshold:
        return Verdict.SLOWER
    return Verdict.FASTER if ratio <= 1 / (1 + threshold) else Verdict.SAME


def _by_test(pairs: Sequence[Facing], settings: Settings) -> list[Comparison]:
    if not pairs:
        return []
    base = round_medians([pair.base.rounds for pair in pairs])
    new = round_medians([pair.new.rounds for pair in pairs])
    found = tested(base, new, settings.confidence)
    low, high = ratio_intervals(base, new, settings.confidence, settings.draws, settings.seed)
    plain = [_plain(pair, settings) for pair in pairs]
    thresholds = np.array([one.threshold for one in plain])
    beyond, kept_back = found.beyond(thresholds), found.kept_back(thresholds)
    comparisons = []
    for place, one in enumerate(plain):
        full = replace(
            one,
            base_seconds=float(np.nanmedian(base[place])),
            new_seconds=float(np.nanmedian(new[place])),
            ratio=float(found.ratio[place]),
            # Of few values the median of the replicates is not always the median itself.
            low=float(min(low[place], found.ratio[place])),
            high=float(max(high[place], found.ratio[place])),
            p_value=float(found.p_value[place]),
            rank_p_value=float(found.rank_p_value[place]),
        )
        one = _with_verdict(full, bool(beyond[place]))
        if one.cause is Cause.TOO_WIDE and kept_back[place]:
            text = _among_many(full, len(pairs), settings.confidence)
            one = replace(one, reason=joined(full.reason, text))
        comparisons.append(one)
    return comparisons


def _among_many(one: Comparison, count: int, confidence: float) -> str:
    """What keeps a change from being shown that a comparison of this point alone would show."""
    change = format_change((one.ratio or 1.0) - 1)
    return (
        f"{change}: as the only point a change, but one among {count} is found by chance too easily (p "
        f"{one.p_value:.2g}, corrected for their number, is above {1 - confidence:.2g}); more rounds show it,"
        " or runs of fewer points (--only)"
    )


def _with_verdict(one: Comparison, beyond: bool) -> Comparison:
    ratio, low, high = one.ratio or 1.0, one.low or 0.0, one.high or np.inf
    if beyond:
        return replace(one, verdict=Verdict.SLOWER if ratio > 1 else Verdict.FASTER)
    if within(low, high, one.threshold):
        return replace(one, verdict=Verdict.SAME)
    return replace(one, cause=Cause.TOO_WIDE, reason=joined(one.reason, too_wide(one, low, high)))


def within(low: float, high: float, threshold: float) -> bool:
    """Whether a change by the threshold in either direction is ruled out."""
    return 1 / (1 + threshold) < low and high < 1 + threshold


def too_wide(one: Comparison, low: float, high: float) -> str:
    """What the interval leaves open."""
    span = f"between {format_change(low - 1)} and {format_change(high - 1)}"
    return f"{span}: neither a change by {one.threshold:.3g} nor the lack of one is shown"


def joined(*parts: str) -> str:
    """Reasons in one line."""
    return "; ".join(part for part in parts if part)


MODEL_THRESHOLD = 0.30
"""Default distance from a prediction, a fraction; predictions are off by tens of per cent (docs/model.md)."""


def compare(base: Run | Path | str, new: Run | Path | str, settings: Settings | None = None) -> Compared:
    """Compare two runs: folders, ``published:NAME`` as the base, or what ``load_run`` gave.

    Every point of either run is in the result, save those that neither supports; of published results only
    those that the new run has. Raises RunFolderError or UsageError where there is no such run.
    """
    settings = settings or Settings()
    base, new = as_run(base), as_run(new)
    other = "" if settings.across_machines else hardware_difference(base, new)
    if str(base.path).startswith(PREFIX):
        faces = facing_published(base, by_identity(new).values())
    else:
        olds, news = by_identity(base), by_identity(new)
        # The base's order; what only the new run has comes last.
        faces = [(olds.get(case, ()), news.get(case, ()), "") for case in dict.fromkeys((*olds, *news))]
    results: list[Comparison | Facing] = []
    left_out = 0
    for old_points, new_points, told in faces:
        point = (new_points or old_points)[0]
        old, now = (side_of(points) if points else None for points in (old_points, new_points))
        if old and now and old.status is now.status is Status.UNSUPPORTED:
            left_out += 1
            continue
        obstacle = _obstacle(old, now, other, settings)
        if old and now and not obstacle:
            results.append(Facing(point, old, now, told))
        else:
            results.append(_without(point, old, now, obstacle, settings))
    notes = (*base.problems, *new.problems, *notes_on(base, new), *_repeats(faces))
    return Compared(
        str(base.path), str(new.path), settings, _judged(results, settings), notes, _left_out(left_out),
        unread=len(base.problems) + len(new.problems),
    )  # fmt: skip


def compare_with_model(run: Run | Path | str, settings: Settings | None = None) -> Compared:
    """Compare a run with the predictions that stand in it: slower, faster, the same, or beating the bound.

    A miss counts where the whole interval is beyond the threshold, since a prediction has no spread. The
    base's times are the predictions. Raises RunFolderError where there is no such run.
    """
    settings = settings or Settings(Thresholds(MODEL_THRESHOLD))
    run = as_run(run)
    results, left_out = [], 0
    for points in by_identity(run).values():
        side = side_of(points)
        if side.status is Status.UNSUPPORTED:
            left_out += 1
        else:
            results.append(_against_model(points[0], side, settings))
    return Compared(
        "model", str(run.path), settings, tuple(results), tuple(run.problems), _left_out(left_out),
        unread=len(run.problems),
    )  # fmt: skip


def as_run(run: Run | Path | str) -> Run:
    """The run itself, or the one that a folder or ``published:NAME`` names, without DETAILS."""
    return run if isinstance(run, Run) else open_run(run, details=False)


def _left_out(count: int) -> tuple[str, ...]:
    return (f"{count} points are not supported and left out",) if count else ()


def _obstacle(base: Side | None, new: Side | None, other: str, settings: Settings) -> Obstacle | None:
    if base is None:
        return Cause.MISSING_IN_BASE, "the base has no such point"
    if new is None:
        return Cause.MISSING_IN_NEW, "the new run has no such point"
    if new.status is Status.OK and base.status is Status.OK and other:
        return Cause.OTHER_MACHINE, f"other machine, {other}"
    return obstacle_between(base, new, settings)


def _without(
    point: Point, base: Side | None, new: Side | None, obstacle: Obstacle | None, settings: Settings
) -> Comparison:
    cause, reason = obstacle or (None, "")
    threshold = settings.thresholds.of(point.collective, point.backend, point.size_bytes)
    times = [None if side is None else side.seconds for side in (base, new)]
    return Comparison(
        point, Verdict.NONE, threshold, cause, reason, times[0], times[1],
        base_rounds=len(base.rounds) if base else 0, new_rounds=len(new.rounds) if new else 0,
        wrong=new is not None and new.status is Status.WRONG,
    )  # fmt: skip


def _judged(results: Sequence[Comparison | Facing], settings: Settings) -> tuple[Comparison, ...]:
    """The results with every pair judged; the correction for many points is over all pairs."""
    testable = [
        isinstance(one, Facing)
        and enough_rounds(len(one.base.rounds), len(one.new.rounds), settings.confidence)
        for one in results
    ]
    pairs = zip(results, testable, strict=True)
    by_test = iter(_by_test([one for one, tests in pairs if isinstance(one, Facing) and tests], settings))
    return tuple(
        one if isinstance(one, Comparison) else next(by_test) if tests else _without_test(one, settings)
        for one, tests in zip(results, testable, strict=True)
    )


def _repeats(faces: Sequence[Face]) -> list[str]:
    """A note where a run holds points several times, as imports of several logs do."""
    several = sum(len(base) > 1 or len(new) > 1 for base, new, _ in faces)
    return [f"{several} points were measured several times in a run; each time counts as a round"] * bool(
        several
    )


def _against_model(point: Point, side: Side, settings: Settings) -> Comparison:
    obstacle = obstacle_of(side, "run", settings)
    if not obstacle and side.simulated:
        obstacle = Cause.SIMULATED, "the times were computed from the model themselves"
    if not obstacle and not side.predicted_seconds:
        obstacle = Cause.NO_PREDICTION, "no prediction was made; give the machine when running or importing"
    seconds, predicted = side.seconds or 0.0, side.predicted_seconds
    if not obstacle and side.bound_seconds and seconds < IMPOSSIBLE * side.bound_seconds:
        by = f"{1 - seconds / side.bound_seconds:.0%}"
        obstacle = Cause.BEATS_BOUND, f"{by} below what nothing should beat; the bound or the clock is wrong"
    if obstacle or not predicted:
        return replace(_without(point, None, side, obstacle, settings), base_seconds=predicted)
    plain = replace(
        _without(point, None, side, None, settings), base_seconds=predicted, ratio=seconds / predicted
    )
    if len(side.rounds) < rounds_needed(settings.confidence):
        return _few_against_model(plain, side)
    new = round_medians([side.rounds])
    middle = float(np.nanmedian(new))
    ends = ratio_intervals(
        np.full_like(new, predicted), new, settings.confidence, settings.draws, settings.seed
    )
    low, high = (float(end[0]) for end in ends)
    full = replace(plain, new_seconds=middle, ratio=middle / predicted, low=low, high=high)
    threshold = full.threshold
    if low >= 1 + threshold or high <= 1 / (1 + threshold):
        costs = f"costs most: {side.bottleneck}" if side.bottleneck else ""
        return replace(full, verdict=Verdict.SLOWER if low > 1 else Verdict.FASTER, reason=costs)
    if within(low, high, threshold):
        return replace(full, verdict=Verdict.SAME)
    return replace(full, cause=Cause.TOO_WIDE, reason=too_wide(full, low, high))


def _few_against_model(plain: Comparison, side: Side) -> Comparison:
    if side.averages or side.imported:
        verdict = by_ratio(plain.ratio or 1.0, plain.threshold)
        return replace(plain, verdict=verdict, reason=joined(BY_RATIO_ALONE))
    return replace(plain, cause=Cause.TOO_FEW_ROUNDS, reason=f"{plain.new_rounds} rounds are too few")
