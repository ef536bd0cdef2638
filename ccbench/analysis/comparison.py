"""From two sides of many points to verdicts: all points at once, since the correction needs them all.

Two runs, a run and its predictions, or a run and published figures, compared point by point. Other hardware
makes times incomparable; another name alone does not, since containers and the nodes of a cluster get names
of their own. Versions and settings may be the very thing that is compared: they are told.

Published figures stand for the same work as a run's point: the same collective, ranks, placement, size and
settings, and the same nodes, element type and op as far as both say, over a network of the kind and rate that
the run declares; another element type stands in where none of the same is there and bytes are all that
counts. The library and its choice of algorithm may differ: what such a machine gives is the question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ccbench.analysis.bits import changed_share, not_compared
from ccbench.analysis.significance import (
    CONFIDENCE,
    ROUNDS_NEEDED,
    Rounds,
    as_pairs,
    enough_rounds,
    ratio_intervals,
    round_medians,
    tested,
)
from ccbench.analysis.speed_verdict import BROKEN_FROM, speed_verdicts
from ccbench.analysis.verdicts import (
    MODEL,
    Compared,
    Comparison,
    NoVerdict,
    Settings,
    Verdict,
)
from ccbench.cases.axes import IDENTITY, NO_OP, ONE_PROCESS, Axis, moves_alike
from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import Status
from ccbench.errors import UsageError
from ccbench.flags import Flag
from ccbench.model.library.constants import shipped
from ccbench.model.library.costs import MICRO
from ccbench.model.library.intervals import regime_of
from ccbench.results import Point, Run, open_run
from ccbench.results.imported_runs import UNKNOWN_COLLECTIVE
from ccbench.results.keys import POINT, WORK, Key, grouped
from ccbench.results.loading import PREFIX
from ccbench.results.systems import is_other_model
from ccbench.topology.node_nics import is_other_network
from ccbench.units import format_change, format_size, plain, plural, shown, suggestion

BY_RATIO_ALONE = (
    "printed averages: the ratio against the threshold, nothing is known of their spread"
)

VARIANT = "variant"

STARTED_ONCE = (
    "the ranks of each variant were started once: where their memory came to lie may cost one of them some "
    "per cent in all rounds; ranks started for each round tell (sampling: {start_ranks: each_round})"
)

MODEL_THRESHOLD = 0.30
"""Default distance from a prediction, a fraction; predictions are off by tens of per cent (docs/model.md)."""

BY_SYSTEMS = Settings(MODEL_THRESHOLD, by_systems=True)
"""Settings against a model or published figures, which nobody measured here."""

TWO_SYSTEMS = math.sqrt(2)
"""The logarithms of two independent systems differ so many times as widely as that of one from its prediction."""

ARRANGEMENTS = frozenset(flag for flag in Flag if flag.arrangement)

_HARDWARE = {
    "processor": ("processor", "model"),
    "processors": ("processor", "cores_allowed"),
    "sockets": ("processor", "sockets"),
    "threads a core": ("processor", "threads_per_core"),
}
"""Facts that make a machine, where both runs have them."""

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
"""Facts that are told where they differ."""

_BESIDE_THE_POINT = frozenset(
    ("click", "matplotlib", "pandas", "pyarrow", "pydantic", "PyYAML", "rich", "scipy")
)
"""Libraries that no timed launch uses."""

MOST_SHOWN = 60
"""Characters of a value in a note."""

Obstacle = tuple[NoVerdict, str]
"""Cause of having no verdict, for programs and in words."""

Face = tuple[Sequence[Point], Sequence[Point], str]
"""Points of a case in the base and the new run, () where there are none, and words about the pair."""


@dataclass(frozen=True)
class Side:
    """One run's share of a point; of logs imported together, from several of their points.

    points: those that count. rounds: samples by round; each printed average of an imported log is a round of its
    own. seconds: the run's median, the median of several.
    """

    points: Sequence[Point]
    rounds: Rounds
    seconds: float | None

    @property
    def status(self) -> Status:
        """How the case ended."""
        return self.points[0].status

    @property
    def flags(self) -> frozenset[str]:
        """Flags of any of the points."""
        return frozenset(flag for point in self.points for flag in point.flags)

    def any_is(self, name: str) -> bool:
        """Return whether that property holds for any of the points."""
        return any(getattr(point, name) for point in self.points)


def as_run(run: Run | Path | str) -> Run:
    """The run itself, or the one that a folder or ``published:NAME`` names, without DETAILS."""
    return run if isinstance(run, Run) else open_run(run, details=False)


def by_identity(run: Run) -> dict[tuple[object, ...], list[Point]]:
    """Points of ``run`` by case, in the run's order."""
    return grouped(run.points, POINT)


def side_of(points: Sequence[Point]) -> Side:
    """The sum of ``points``, all of one case: wrong results outrank a speed, a speed any other end."""
    chosen: Sequence[Point] = points
    for status in (Status.OK, Status.WRONG):
        chosen = [point for point in points if point.status is status] or chosen
    timed = [
        point
        for point in chosen
        if point.status is Status.OK and point.median_seconds is not None
    ]
    rounds = [
        one_round
        for point in timed
        for one_round in point.rounds or [np.array([point.median_seconds])]
    ]
    medians = [point.median_seconds or 0.0 for point in timed]
    return Side(chosen, rounds, float(np.median(medians)) if medians else None)


def obstacle_of(side: Side, name: str, settings: Settings) -> Obstacle | None:
    """An obstacle to comparing one side with anything, None without one; ``name`` is base or new."""
    detail = f": {side.points[0].detail}" if side.points[0].detail else ""
    if side.status is Status.WRONG:
        return NoVerdict.WRONG, f"{name} gave wrong results{detail}"
    if side.status is not Status.OK:
        return NoVerdict.NOT_OK, f"{name} is {side.status.value}{detail}"
    if Flag.EMULATION in side.flags:
        return (
            NoVerdict.EMULATED,
            f"{name} was emulated: its times say nothing about any device",
        )
    if side.any_is("beats_bound"):
        return (
            NoVerdict.BEATS_BOUND,
            f"{name} is faster than its bound: one of the two is wrong",
        )
    doubtful = sorted(side.flags - ARRANGEMENTS - settings.accepted_flags)
    if doubtful:
        # An imported table may carry a word that this version does not know, which nobody can accept.
        accept = (
            f", or let that count: --accept-flags {','.join(doubtful)}"
            if {*doubtful} <= {*Flag}
            else ""
        )
        return (
            NoVerdict.DOUBTFUL,
            f"{name} is flagged {', '.join(doubtful)}; measure it again{accept}",
        )
    # The least sample of a round mostly tells at once that its median is above zero.
    if not (side.seconds or 0) > 0 or not all(
        np.isfinite(one_round).all() and (one_round.min() > 0 or np.median(one_round) > 0)
        for one_round in side.rounds
    ):
        return NoVerdict.NO_TIME, f"{name} has no time above zero, or rounds without one"
    return None


def obstacle_between(
    base: Side | None, new: Side | None, settings: Settings, hardware: str, of_model: bool
) -> Obstacle | None:
    """An obstacle to comparing two sides with each other, None without one.

    hardware: words for other hardware. of_model: the base is predictions.
    """
    if base is None:
        missing = "no prediction was made" if of_model else "the base has no such point"
        return NoVerdict.MISSING_IN_BASE, missing
    if new is None:
        return NoVerdict.MISSING_IN_NEW, "the new run has no such point"
    if hardware and base.status is new.status is Status.OK:
        return NoVerdict.OTHER_MACHINE, f"other machine, {hardware}"
    # Wrong results of the new run come first.
    for side, name in ((new, "new"), (base, "base")):
        if obstacle := obstacle_of(side, name, settings):
            return obstacle
    computed = [side.any_is("simulated") for side in (base, new)]
    if computed[0] != computed[1]:
        name = "base" if computed[0] else "new"
        return NoVerdict.SIMULATED, f"{name} was computed from a model, the other measured"
    # Of one arrangement (two ranks on one core) times are comparable, of two they are not.
    odd = sorted((base.flags ^ new.flags) - settings.accepted_flags)
    if odd:
        only = "base" if odd[0] in base.flags else "new"
        return NoVerdict.ARRANGEMENT, f"only {only} is flagged {odd[0]}"
    return None


# -- what stands beside what --------------------------------------------------------------------------------


def hardware_difference(base: Run, new: Run) -> str:
    """Words for the first part of the hardware that surely differs; empty where none does or nobody says."""
    for words, path in _HARDWARE.items():
        for difference in _differences(
            words, *(run.manifest.at("environment", *path) for run in (base, new))
        ):
            return difference
    priced = [
        sorted({point.machine for point in run.points if point.simulated and point.machine})
        for run in (base, new)
    ]
    if all(priced) and not {*priced[0]} & {*priced[1]}:
        return _in_either("simulated machine", *map(", ".join, priced))
    models = [sorted(run.devices) for run in (base, new)]
    if all(models) and all(is_other_model(a, b) for a in models[0] for b in models[1]):
        return _in_either("devices", *map(", ".join, models))
    counts = [len(run.manifest.gpus) for run in (base, new)]
    if all((*models, *counts)) and counts[0] != counts[1]:
        return _in_either("number of devices", *counts)
    return ""


def _in_either(words: str, left: object, right: object) -> str:
    return f"{words}: {left} in base, {right} in new"


def notes_on(base: Run, new: Run) -> Iterator[str]:
    """One line for everything else that differs: versions of a backend's library, then the environment."""
    versions = [
        grouped(
            sorted({(point.backend, point.backend_version) for point in run.points}),
            lambda release: release[0],
        )
        for run in (base, new)
    ]
    for backend in sorted(versions[0].keys() & versions[1].keys()):
        names = (
            ", ".join(filter(None, (release for _, release in version[backend])))
            for version in versions
        )
        yield from _differences(backend, *(name or None for name in names))
    for words, path in _TOLD.items():
        yield from _differences(
            words, *(run.manifest.at("environment", *path) for run in (base, new))
        )


def _differences(words: str, left: Any, right: Any) -> Iterator[str]:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        for key in sorted({*left, *right} - _BESIDE_THE_POINT, key=str):
            yield from _differences(
                f"{words}: {key}", left.get(key, "not set"), right.get(key, "not set")
            )
    elif left is not None and right is not None and left != right:
        yield _in_either(words, plain(left, MOST_SHOWN), plain(right, MOST_SHOWN))


def measures_launches(point: Point, published: Point) -> bool:
    """Return True if one process needs longer to launch on its GPUs than ``published`` took."""
    by_one = capabilities_of(point.backend).one_process and point.processes == ONE_PROCESS
    if (
        not by_one
        or point.imported
        or point.mode != "streaming"
        or point.status is not Status.OK
    ):
        return False
    launches_us = shipped().table["launch_us"] * point.ranks / point.nodes
    return (
        published.median_seconds is not None and launches_us * MICRO >= published.median_seconds
    )


def facing_published(base: Run, cases: Iterable[Sequence[Point]]) -> list[Face]:
    """Every case of a run with the point that is most like it of ``base``, published results of a machine."""

    # What a source may leave open does not tell two apart yet.
    surely = WORK.without("backend", "dtype", "op", "nodes", "root", "mode")
    published = grouped(base.points, surely)
    faces: list[Face] = []
    for points in cases:
        point = points[0]
        candidates = [
            candidate
            for candidate in published.get(surely(point), ())
            if may_be_alike(candidate, point)
        ]
        # Another element type stands in only where none of the same is there.
        candidates = [
            candidate for candidate in candidates if candidate.dtype in (point.dtype, "")
        ] or candidates
        if not candidates:
            faces.append(((), points, ""))
            continue
        middle, beside = middle_of(candidates, point)
        words = [f"base: {library_of(middle)}"]
        words += [f"the middle of {beside + 1} like it"] if beside > 0 else []
        words += ["nodes not stated"] if not middle.nodes or not point.nodes else []
        words += [f"over {middle.network}"] if middle.network and middle.nodes != 1 else []
        words += (
            [f"measured with {middle.dtype}"] if middle.dtype not in (point.dtype, "") else []
        )
        faces.append(((middle,), points, ", ".join(words)))
    return faces


def may_be_alike(published: Point, point: Point) -> bool:
    """True if nothing that both say of collective, op, nodes, network and type tells the two apart."""
    same_collective = published.collective == point.collective != UNKNOWN_COLLECTIVE
    same_op = published.op == point.op or NO_OP in (
        published.op,
        point.op,
    )  # as where an all-reduce names none
    same_nodes = published.nodes == point.nodes or not published.nodes or not point.nodes
    over = 1 in (published.nodes, point.nodes) or not is_other_network(
        point.network, published.network
    )
    alike = moves_alike(
        point.collective, (published.backend, point.backend), (published.dtype, point.dtype)
    )
    # The launch is a large part of a short time, and servers launch in graphs.
    launched_alike = (
        published.mode == point.mode
        or "graph" not in (published.mode, point.mode)
        or bool(capabilities_of(published.backend).library)
    )
    return same_collective and same_op and same_nodes and over and alike and launched_alike


def middle_of(candidates: Sequence[Point], point: Point) -> tuple[Point, int]:
    """The middle one by time, and how many others there are beside it.

    Of those of the same algorithm and protocol, else of those left to the library, else of all.
    """
    choice = Key(("algorithm", "protocol"))
    by_choice = grouped(candidates, choice)
    left = by_choice.get(("default", "default"), candidates)
    chosen = by_choice.get(choice(point), left)
    ordered = sorted(
        chosen,
        key=lambda candidate: (
            candidate.median_seconds or math.inf,
            candidate.source,
            candidate.run,
        ),
    )
    return ordered[(len(ordered) - 1) // 2], len(ordered) - 1


def library_of(point: Point) -> str:
    """Library, choice of algorithm, and where a point was published or measured."""
    chosen = " ".join(word for word in (point.algorithm, point.protocol) if word != "default")
    words = (point.backend_version or point.backend, chosen, point.source or point.run)
    return ", ".join(filter(None, words))


# -- verdicts -----------------------------------------------------------------------------------------------


def compare(
    base: Run | Path | str, new: Run | Path | str, settings: Settings | None = None
) -> Compared:
    """Compare two runs: folders, ``published:NAME`` as the base, or what ``load_run`` gave.

    Every point of either run is in the result, save those that neither supports; of published results only
    those that the new run has. Raises RunFolderError or UsageError where there is no such run.
    """
    base, new = as_run(base), as_run(new)
    published = str(base.path).startswith(PREFIX)
    settings = settings or (BY_SYSTEMS if published else Settings())
    hardware = "" if settings.across_machines else hardware_difference(base, new)
    notes, unlike = list[str](), list[Point]()
    if published:
        faces = list[Face]()
        for face in facing_published(base, by_identity(new).values()):
            if face[0] and measures_launches(face[1][0], face[0][0]):
                unlike.append(face[1][0])
            else:
                faces.append(face)
    else:
        faces = facing(by_identity(base), by_identity(new))
        if not any(old and now for old, now, _ in faces):
            faces, words = _along_one_axis(base, new)
            notes.append(words)
    notes += notes_on(base, new)
    if unlike:
        least, most = (
            format_size(of(point.size_bytes for point in unlike)) for of in (min, max)
        )
        notes.append(
            f"{plural(len(unlike), 'point')} of {least} to {most} left out: one process launched on all "
            "GPUs, which takes longer than what is published; take --processes per_gpu or mode graph"
        )
    # Imports of several logs hold points several times.
    if several := sum(max(len(old), len(now)) > 1 for old, now, _ in faces):
        notes.append(
            f"{several} points were measured several times in a run; each time counts as a round"
        )
    names = str(base.path), str(new.path)
    return _compared(names, (base, new), faces, settings, notes, hardware=hardware)


def _along_one_axis(base: Run, new: Run) -> tuple[list[Face], str]:
    """Return (cases of two runs that have none in common, by all but the axis in which they differ; a note on it)."""
    olds, news = (
        {axis.name: {getattr(each, axis.name) for each in run.points} for axis in IDENTITY}
        for run in (base, new)
    )
    differ = [name for name, values in olds.items() if values != news[name]]
    names = " and ".join(differ)
    # Ways to do the same work may stand beside each other, other work may not.
    ways = {axis.name for axis in IDENTITY if axis.choice or axis.name == "backend"}
    if {*differ} <= ways and [len({*olds[name], *news[name]}) for name in differ] == [2]:
        faces = facing(*(grouped(run.points, POINT.without(*differ)) for run in (base, new)))
        return faces, f"the runs differ in {names}: compared by all else"
    cure = "measure them in one run: ccbench run SUITE --vary NAME=A,B"
    return facing(by_identity(base), by_identity(new)), f"the runs differ in {names}; {cure}"


def compare_by(
    run: Run | Path | str, axis: Axis, base: str = "", settings: Settings | None = None
) -> Compared:
    """Compare points of one run that differ in ``axis`` alone: those of one value with those of each other.

    base: that value, as columns have it; '' for the axis' default, else the first that the suite lists. The
    correction for many points is over all values together. Raises UsageError where there are no two.
    """
    run = as_run(run)
    values = grouped(run.points, lambda point: str(getattr(point, axis.name)))
    sides = {
        value: grouped(members, POINT.without(axis.name)) for value, members in values.items()
    }
    if len(sides) < 2:
        only = ", ".join(map(shown, sides)) or "no case"
        raise UsageError(
            f"--by {axis.key}: {run.path} has {only}; name an axis with several values there"
        )
    if base and base not in sides:
        raise UsageError(
            f"--base: {shown(base)} is no value of {axis.key} there; {suggestion(base, sides)}"
        )
    first = base or next(
        value
        for value in (str(axis.default), *run.manifest.mapping("suite", axis.key), *sides)
        if value in sides
    )
    new = [side for side in sides if side != first]
    faces = [face for value in new for face in facing(sides[first], sides[value])]
    in_turn = axis.name == VARIANT or bool(run.manifest.text("options", "vary"))
    versions = {
        value: {point.backend_version for point in members} for value, members in values.items()
    }
    notes = [
        f"{axis.name} {value}: {', '.join(sorted(filter(None, versions[value])))}"
        for value in (first, *new)
        if versions[value] != versions[first] or value == first
    ]
    if in_turn and run.manifest.at("suite", "sampling", "start_ranks") == "once":
        notes.append(STARTED_ONCE)
    names = f"{run.path}, {axis.name} {first}", ", ".join(new)
    return _compared(names, (run,), faces, settings or Settings(), notes, in_turn=in_turn)


Cases = Mapping[tuple[object, ...], Sequence[Point]]


def facing(olds: Cases, news: Cases) -> list[Face]:
    """Every case of either side, in the base's order; what only the new one has comes last."""
    return [
        (olds.get(case, ()), news.get(case, ()), "") for case in dict.fromkeys((*olds, *news))
    ]


def _compared(
    names: tuple[str, str],
    runs: Sequence[Run],
    faces: Sequence[Face],
    settings: Settings,
    notes: Iterable[str] = (),
    hardware: str = "",
    in_turn: bool = False,
) -> Compared:
    """Return a verdict on each of ``faces``, points of ``runs``, of which the last is the new one.

    names: of base and new. hardware: words for other hardware. in_turn: rounds of both sides were measured one right
    after the other.
    """
    of_model = names[0] == MODEL
    results: list[Comparison] = []
    testable: dict[int, tuple[Rounds, Rounds]] = {}
    left_out = 0
    for old_points, new_points, words in faces:
        old, now = (side_of(points) if points else None for points in (old_points, new_points))
        if old and now and old.status is now.status is Status.UNSUPPORTED:
            left_out += 1
            continue
        obstacle = obstacle_between(old, now, settings, hardware, of_model)
        result = _undecided(old, now, obstacle or (None, words), settings, of_model)
        if old and now and not obstacle:
            if enough_rounds(len(old.rounds), len(now.rounds)):
                testable[len(results)] = old.rounds, now.rounds
            else:
                result = _without_test(result, old, now)
        results.append(result)
    # The correction for many points is over all that are tested.
    tests = _by_test([results[place] for place in testable], list(testable.values()), in_turn)
    for place, result in zip(testable, tests, strict=True):
        results[place] = result
    problems = [problem for run in runs for problem in run.problems]
    return Compared(
        *names,
        settings,
        tuple(_decided(result, settings) for result in results),
        (*problems, *notes),
        (f"{left_out} points are not supported and left out",) if left_out else (),
        unread=len(problems),
        own=speed_verdicts(runs[-1]) if settings.by_systems else (),
    )


def _decided(comparison: Comparison, settings: Settings) -> Comparison:
    """``comparison``, without a verdict where healthy systems differ too widely to call it the same."""
    ratio = comparison.ratio
    if not settings.by_systems or comparison.verdict is not Verdict.SAME or ratio is None:
        return comparison
    if within(ratio, ratio, MODEL_THRESHOLD):
        return comparison
    most = format_change(comparison.threshold)
    reason = f"inside what healthy systems differ by, {most} here: too wide to decide about {format_change(ratio - 1)}"
    return comparison.but(Verdict.NONE, NoVerdict.TOO_WIDE, reason)


def compare_with_model(run: Run | Path | str, settings: Settings | None = None) -> Compared:
    """Compare a run with the predictions that stand in it: a base that takes what was predicted in every round.

    Raises RunFolderError where there is no such run.
    """
    run = as_run(run)
    faces: list[Face] = [
        ([_as_predicted(point) for point in points if point.predicted_seconds], points, "")
        for points in by_identity(run).values()
    ]
    return _compared((MODEL, str(run.path)), (run,), faces, settings or BY_SYSTEMS)


def _as_predicted(point: Point) -> Point:
    """``point`` as it would be, had every launch taken what was predicted."""
    return replace(
        point,
        status=Status.OK if point.status is not Status.UNSUPPORTED else point.status,
        median_seconds=point.predicted_seconds,
        samples_seconds=np.full_like(point.samples_seconds, point.predicted_seconds),
        flags=tuple(flag for flag in point.flags if flag in ARRANGEMENTS),
        simulated=False,
    )


def _undecided(
    base: Side | None,
    new: Side | None,
    why: tuple[NoVerdict | None, str],
    settings: Settings,
    of_model: bool,
) -> Comparison:
    """Return the comparison before any test. why: cause and reason of having no verdict, or words about the pair."""
    sides = [side for side in (new, base) if side]
    pair = [side.points[0] for side in reversed(sides)]
    point, threshold = pair[-1], settings.threshold
    high, predicted = point.predicted_high_95_seconds, point.predicted_seconds
    if settings.by_systems and high and predicted:
        # Of two systems each may be off. No healthy system is as far off as what is called broken, however few
        # are known.
        spread = (high / predicted) ** (1.0 if of_model else TWO_SYSTEMS)
        threshold = min(spread, BROKEN_FROM[regime_of(point.size_bytes)]) - 1
    old_seconds, seconds = (side.seconds if side else None for side in (base, new))
    is_other = why[0] is NoVerdict.OTHER_MACHINE
    ratio = seconds / old_seconds if seconds and old_seconds and not is_other else None
    return Comparison(
        point,
        Verdict.NONE,
        threshold,
        *why,
        base_seconds=old_seconds,
        new_seconds=seconds,
        ratio=ratio,
        base_rounds=len(base.rounds) if base else 0,
        new_rounds=len(new.rounds) if new else 0,
        wrong=new is not None and new.status is Status.WRONG,
        changed_bits=changed_share(*pair) if len(pair) == 2 else None,
        bits_reason=not_compared(*pair) if len(pair) == 2 else "",
    )


def _without_test(comparison: Comparison, base: Side, new: Side) -> Comparison:
    """Of too few rounds: none of a measured point, the ratio's alone of what another tool printed."""
    sides = base, new
    printed = any(not len(point.samples_seconds) for side in sides for point in side.points)
    if printed or all(side.any_is("imported") for side in sides):
        verdict = by_ratio(comparison.ratio or 1.0, comparison.threshold)
        return comparison.but(verdict, None, BY_RATIO_ALONE)
    reason = (
        f"{comparison.base_rounds} rounds against {comparison.new_rounds} cannot show a change at "
        f"{CONFIDENCE:.4g}; {ROUNDS_NEEDED} against {ROUNDS_NEEDED} can"
    )
    return comparison.but(Verdict.NONE, NoVerdict.TOO_FEW_ROUNDS, reason)


def by_ratio(ratio: float, threshold: float) -> Verdict:
    """A verdict on a number that has no interval."""
    if ratio >= 1 + threshold:
        return Verdict.SLOWER
    return Verdict.FASTER if ratio <= 1 / (1 + threshold) else Verdict.SAME


def _by_test(
    undecided: Sequence[Comparison],
    rounds: Sequence[tuple[Rounds, Rounds]],
    in_turn: bool,
) -> Iterator[Comparison]:
    if not undecided:
        return
    base, new = (round_medians([pair[side] for pair in rounds]) for side in (0, 1))
    middles = [np.nanmedian(side, axis=1) for side in (base, new)]
    pairs = None
    if in_turn:
        base, new, pairs = as_pairs(base, new)
    test = tested(base, new, pairs)
    lows, highs = ratio_intervals(base, new)
    thresholds = np.array([comparison.threshold for comparison in undecided])
    beyond, kept_back = test.beyond(thresholds), test.kept_back(thresholds)
    for place, untested in enumerate(undecided):
        ratio = float(test.ratio[place])
        # Of few values the median of the replicates is not always the median itself.
        low, high = min(float(lows[place]), ratio), max(float(highs[place]), ratio)
        comparison = replace(
            untested,
            base_seconds=float(middles[0][place]),
            new_seconds=float(middles[1][place]),
            ratio=ratio,
            low=low,
            high=high,
            p_value=float(test.p_value[place]),
            rank_p_value=float(test.rank_p_value[place]),
            in_pairs=pairs is not None and bool(pairs[place]),
        )
        if beyond[place]:
            yield comparison.but(Verdict.SLOWER if ratio > 1 else Verdict.FASTER)
        elif within(low, high, comparison.threshold):
            yield comparison.but(Verdict.SAME)
        else:
            among_many = (
                f"{format_change(ratio - 1)}: as the only point a change, but one among {len(undecided)} is "
                f"found by chance too easily (p {comparison.p_value:.2g}, corrected for their number, is above "
                f"{1 - CONFIDENCE:.2g}); more rounds show it, or runs of fewer points (--only)"
            )
            why = among_many if kept_back[place] else too_wide(comparison.threshold, low, high)
            yield comparison.but(Verdict.NONE, NoVerdict.TOO_WIDE, why)


def within(low: float, high: float, threshold: float) -> bool:
    """True if a change by the threshold in either direction is ruled out."""
    return 1 / (1 + threshold) < low and high < 1 + threshold


def too_wide(threshold: float, low: float, high: float) -> str:
    """A sentence about what the interval leaves open."""
    span = f"between {format_change(low - 1)} and {format_change(high - 1)}"
    return f"{span}: neither a change by {100 * threshold:.3g} % nor the lack of one is shown"
