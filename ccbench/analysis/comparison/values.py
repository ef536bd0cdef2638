"""What a comparison says: frozen values from the point's identity to the exit code of all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from ccbench.analysis.comparison.thresholds import DEFAULT_THRESHOLD, Thresholds
from ccbench.results import Point
from ccbench.units import plural

FINE, REGRESSION, NO_VERDICT = 0, 1, 3
"""Exit codes."""


class Verdict(str, Enum):
    """What is known of a point. ``SAME`` is a finding: a change by the threshold is ruled out."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    NONE = "no verdict"


class Cause(str, Enum):
    """Why a point has no verdict, for programs; ``Comparison.reason`` says it in words."""

    MISSING_IN_BASE = "missing in base"
    MISSING_IN_NEW = "missing in new"
    NOT_OK = "not ok"
    WRONG = "wrong results"
    OTHER_MACHINE = "other machine"
    DOUBTFUL = "doubtful"
    ARRANGEMENT = "other arrangement"
    EMULATED = "emulated"
    SIMULATED = "simulated"
    NO_TIME = "no time"
    TOO_FEW_ROUNDS = "too few rounds"
    TOO_WIDE = "interval too wide"
    NO_PREDICTION = "no prediction"
    BEATS_BOUND = "beats the bound"


@dataclass(frozen=True)
class Settings:
    """How two runs are compared.

    thresholds: the least change that counts, as a fraction. confidence: of intervals, and one minus the
    share of false findings that is let pass. undecided: share of points whose interval may be too wide before
    the exit code says so. accepted_flags: flags that make nothing doubtful. across_machines: other devices
    are no reason for having no verdict. draws: of the bootstrap. seed: of everything that is drawn.
    """

    thresholds: Thresholds = field(default_factory=lambda: Thresholds(DEFAULT_THRESHOLD))
    confidence: float = 0.95
    undecided: float = 0.0
    accepted_flags: frozenset[str] = frozenset()
    across_machines: bool = False
    draws: int = 1000
    seed: int = 1


@dataclass(frozen=True)
class Comparison:
    """One point of two runs. Times are medians in seconds per launch, None where there is none.

    point: of the new run, else of the base; both were asked the same.
    ratio: new time over base time, above 1 slower. low, high: its interval, None of averages.
    p_value: of no change (Welch's t of the rounds' logarithms), corrected for the number of points.
    rank_p_value: Mann-Whitney's, not corrected. cause and reason: of having no verdict; reason also says what
    is unusual about a verdict. wrong: the new run gave wrong elements.
    """

    point: Point
    verdict: Verdict
    threshold: float
    cause: Cause | None = None
    reason: str = ""
    base_seconds: float | None = None
    new_seconds: float | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p_value: float | None = None
    rank_p_value: float | None = None
    base_rounds: int = 0
    new_rounds: int = 0
    wrong: bool = False

    @property
    def change(self) -> float | None:
        """The new time over the base's, minus one."""
        return None if self.ratio is None else self.ratio - 1


@dataclass(frozen=True)
class Compared:
    """All points of two runs, in the order of runs; see ``exit_code`` for what they add up to.

    notes: what differs between the runs and keeps nothing from being compared. left_out: lines about
    points that are none (unsupported in both runs). unread: files of the runs that could not be read; notes
    name them.
    """

    base: str
    new: str
    settings: Settings
    points: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unread: int = 0

    def of(self, verdict: Verdict) -> tuple[Comparison, ...]:
        """Points with that verdict."""
        return tuple(one for one in self.points if one.verdict is verdict)

    @property
    def counts(self) -> dict[str, int]:
        """Number of points by verdict, all four."""
        found = Counter(one.verdict for one in self.points)
        return {verdict.value: found[verdict] for verdict in Verdict}

    @property
    def causes(self) -> dict[str, int]:
        """Number of points without a verdict, by cause, the most frequent first."""
        found = Counter(one.cause for one in self.points if one.cause is not None)
        return {cause.value: count for cause, count in found.most_common()}

    @property
    def unused_rules(self) -> tuple[str, ...]:
        """Lines about rules for thresholds that are in force nowhere, for want of points that they fit."""
        points = [one.point for one in self.points]
        return self.settings.thresholds.unused(
            {(one.collective, one.backend, one.size_bytes) for one in points}
        )

    @property
    def exit_code(self) -> int:
        """1 where anything is slower or wrong; else 3 where anything was not decided; else 0.

        What was found outranks what was not looked at; nothing at all is not decided, nor is a run of which
        a file could not be read. Of the points whose interval is too wide, the share that the settings name
        is let pass.
        """
        if any(one.verdict is Verdict.SLOWER or one.wrong for one in self.points):
            return REGRESSION
        if self.unread:
            return NO_VERDICT
        open_points = self.of(Verdict.NONE)
        wide = sum(one.cause is Cause.TOO_WIDE for one in open_points)
        decided = len(self.points) - len(open_points)
        tolerated = wide <= self.settings.undecided * len(self.points)
        return FINE if decided and wide == len(open_points) and tolerated else NO_VERDICT

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        counts = self.counts
        words = {FINE: "no regression", REGRESSION: "REGRESSION", NO_VERDICT: "NO VERDICT"}[self.exit_code]
        wrong = sum(one.wrong for one in self.points)
        parts = [f"{counts[verdict.value]} {verdict.value}" for verdict in Verdict]
        parts += [f"{wrong} with wrong results"] * bool(wrong)
        unread = f"; {plural(self.unread, 'file')} could not be read" if self.unread else ""
        return f"{words}: {', '.join(parts)} of {plural(len(self.points), 'point')}{unread}"
