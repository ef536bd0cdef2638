"""A=A: how often a comparison sees a change in data that have none, and whether it sees a real one.

Rounds are shared out anew at random many times, so that both sides come from one pot and every change seen
is a false alarm. With the rounds of two runs of one machine each share-out is a permutation; with those of
one run both sides draw as many as it has, with replacement, since half of them would be too few for a
verdict. What differs between two whole runs (placement, a neighbour) shows only in two runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ccbench.analysis.comparison import as_run, by_identity, compare, obstacle_of, side_of
from ccbench.analysis.significance import (
    Floats,
    enough_rounds,
    round_medians,
    rounds_of,
    tested,
)
from ccbench.analysis.verdicts import FINE, NO_VERDICT, Compared, Settings, Verdict
from ccbench.results import Point, Run

MOST_FALSE = 0.01
"""Share of points that may be false alarms; beyond, the settings are not to be trusted on this machine."""

FEWEST_FOUND = 0.95
"""Share of planted slow-downs that must be found: who sees nothing raises no false alarm either."""

INJECTED_THRESHOLDS = 2.0
"""The slow-down that is planted to see whether it is found, in thresholds."""


@dataclass(frozen=True)
class SelfCheck:
    """Findings of share-outs and, with two runs, of the runs themselves.

    false_alarms: share of the points judged in all share-outs. alarmed: share of share-outs with any.
    found: share of planted slow-downs (INJECTED_THRESHOLDS thresholds, a point in eight) that was found.
    noisy: points that alarm in more share-outs than the confidence lets pass.
    left_out: points that cannot be judged. direct: the two runs compared as they are.
    """

    runs: tuple[str, ...]
    settings: Settings
    points: int
    left_out: int
    splits: int
    false_alarms: float
    alarmed: float
    found: float
    direct: Compared | None
    noisy: tuple[Point, ...] = ()

    @property
    def direct_alarms(self) -> float | None:
        """Share of the points judged that are slower or faster between the two runs; None without any."""
        if self.direct is None:
            return None
        counts = self.direct.counts
        judged = len(self.direct.points) - sum(
            point.verdict is Verdict.NONE and point.ratio is None
            for point in self.direct.points
        )
        return (counts["faster"] + counts["slower"]) / judged if judged else None

    @property
    def doubt(self) -> str:
        """A reason not to trust comparisons at these settings with such data; empty where there is none."""
        if not self.points:
            return "no point can be judged: flagged, too few rounds, not measured, or not in both runs"
        if self.false_alarms > MOST_FALSE:
            return (
                f"false alarms at {self.false_alarms:.2%} of points, more than {MOST_FALSE:.0%}"
            )
        if self.direct is not None and self.direct_alarms is None:
            return "the two runs cannot be compared"
        if (self.direct_alarms or 0.0) > MOST_FALSE:
            return f"the two runs differ at {self.direct_alarms:.2%} of points, more than {MOST_FALSE:.0%}"
        if self.found < FEWEST_FOUND:
            return f"only {self.found:.0%} of planted slow-downs were found: too noisy, or too few rounds"
        return ""

    @property
    def exit_code(self) -> int:
        """0 where false alarms are few, also between two runs, and planted changes are found; else 3."""
        return NO_VERDICT if self.doubt else FINE


def check_self(
    run: Run | Path | str,
    second: Run | Path | str | None = None,
    settings: Settings | None = None,
    splits: int = 200,
) -> SelfCheck:
    """Share the rounds of one run, or of two of one machine, out ``splits`` times and count false alarms.

    Raises RunFolderError where there is no such run.
    """
    settings = settings or Settings()
    loaded = [as_run(each_run) for each_run in (run, second) if each_run is not None]
    cases = [by_identity(each_run) for each_run in loaded]
    kept: list[Point] = []
    tables = []
    for case, points in cases[0].items():
        sides = [side_of(of_case[case]) for of_case in cases if case in of_case]
        rounds = [one_round for side in sides for one_round in side.rounds]
        each = len(rounds) // len(sides)
        # The same points are judged as a comparison would judge, but for the arrangement of the two runs.
        whole = len(sides) == len(cases) and not any(
            obstacle_of(side, "run", settings) for side in sides
        )
        if whole and not sides[0].simulated and enough_rounds(each, each, settings.confidence):
            kept.append(points[0])
            tables.append(rounds)
    alarms, alarmed, detected = _share_out(
        round_medians(tables), kept, settings, splits, replacing=len(loaded) == 1
    )
    return SelfCheck(
        runs=tuple(str(loaded_run.path) for loaded_run in loaded),
        settings=settings,
        points=len(kept),
        left_out=len(cases[0]) - len(kept),
        splits=splits,
        false_alarms=float(alarms.mean()) if kept else 0.0,
        alarmed=alarmed,
        found=detected,
        direct=None if len(loaded) == 1 else compare(loaded[0], loaded[1], settings),
        noisy=tuple(
            point
            for point, share in zip(kept, alarms, strict=True)
            if share > 1 - settings.confidence
        ),
    )


def _share_out(
    medians: Floats, points: list[Point], settings: Settings, splits: int, replacing: bool
) -> tuple[Floats, float, float]:
    """Shares of false alarms by point, of share-outs with any, and of planted slow-downs that were found."""
    if not points or not splits:
        return np.zeros(len(points)), 0.0, 0.0
    random = np.random.default_rng(settings.seed)
    threshold = np.full(len(points), settings.threshold)
    counts = rounds_of(medians)[:, None]
    ordered = np.sort(medians, axis=1)  # NaN last
    places = np.arange(medians.shape[1])

    def sides() -> tuple[Floats, Floats]:
        if replacing:
            drawn = []
            for _ in range(2):
                picks = (random.random(medians.shape) * counts).astype(np.int64)
                values = np.take_along_axis(ordered, picks, axis=1)
                drawn.append(np.where(places < counts, values, np.nan))
            return drawn[0], drawn[1]
        # A random key for each round sorts them anew; those that are not there stay last.
        keys = np.where(np.isnan(ordered), 2.0, random.random(medians.shape))
        mixed = np.take_along_axis(ordered, np.argsort(keys, axis=1), axis=1)
        half = counts // 2
        return np.where(places < half, mixed, np.nan), np.where(places >= half, mixed, np.nan)

    planted = np.zeros(len(points), dtype=bool)
    alarms, runs, hits, plants = np.zeros(len(points)), 0, 0, 0
    for _ in range(splits):
        base, new = sides()
        wrong = tested(base, new, settings.confidence).beyond(threshold)
        alarms += wrong
        runs += bool(wrong.any())
        # Who sees nothing raises no false alarm either: a slow-down is planted in one point of eight.
        planted[:] = False
        planted[random.choice(len(points), max(1, len(points) // 8), replace=False)] = True
        factor = np.where(planted, 1 + INJECTED_THRESHOLDS * threshold, 1.0)
        test = tested(base, new * factor[:, None], settings.confidence)
        hits += int((test.beyond(threshold) & planted & (test.ratio > 1)).sum())
        plants += int(planted.sum())
    return alarms / splits, runs / splits, hits / plants
