"""The values of a comparison, frozen: from how two runs are compared to the exit code of all their points."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

from ccbench.analysis.bits import share_text
from ccbench.analysis.speed_verdict import SpeedVerdict, gravest
from ccbench.exit_codes import FINE, NO_VERDICT, PROBLEM
from ccbench.results import Point
from ccbench.units import percent, plural

DEFAULT_THRESHOLD = 0.05
"""A fraction of the base's time; what HPC sites and benchmark libraries mostly take (3 to 5 %)."""

MODEL = "model"
"""Name of the base where a run is compared with its own predictions."""


class Verdict(str, Enum):
    """A verdict on a point. ``SAME`` is a finding: a change by the threshold is ruled out."""

    FASTER = "faster"
    SLOWER = "slower"
    SAME = "same"
    NONE = "no verdict"


class NoVerdict(str, Enum):
    """Cause of having no verdict, for programs; ``Comparison.reason`` says it in words."""

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
    BEATS_BOUND = "beats the bound"


@dataclass(frozen=True)
class Settings:
    """Settings of a comparison.

    threshold: the least change that counts, as a fraction. undecided: share of points whose interval may be too wide
    before the exit code says so. accepted_flags: flags that make nothing doubtful. across_machines: other devices
    are no reason for having no verdict. by_systems: against a model or published figures, where the spread of
    healthy systems is known, that spread counts in place of a threshold. same_bits: bits alone decide: any
    that changed are a regression, and points whose bits are not compared not decided.
    """

    threshold: float = DEFAULT_THRESHOLD
    undecided: float = 0.0
    accepted_flags: frozenset[str] = frozenset()
    across_machines: bool = False
    by_systems: bool = False
    same_bits: bool = False


@dataclass(frozen=True)
class Comparison:
    """One point of two runs. Times are medians in seconds per launch, None where there is none.

    point: of the new run, else of the base; both were asked the same.
    ratio: new time over base time, above 1 slower. low, high: its interval, None of averages.
    p_value: of no change (Welch's t of the rounds' logarithms), corrected for the number of points.
    rank_p_value: Mann-Whitney's, not corrected. in_pairs: the ratio is the median of those of rounds that
    were measured in turn, and the tests are Yuen's and the one of signs. cause and reason: of having no
    verdict; reason also says what is unusual about a verdict. wrong: the new run gave wrong elements.
    changed_bits: share of elements whose bits differ on equal inexact data (1e-9: an unknown one), None where they
    are not compared; bits_reason: why not, where one has some.
    """

    point: Point
    verdict: Verdict
    threshold: float
    cause: NoVerdict | None = None
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
    in_pairs: bool = False
    changed_bits: float | None = None
    bits_reason: str = ""

    @property
    def words(self) -> str:
        """The verdict, and its reason where there is one."""
        if self.cause is NoVerdict.DOUBTFUL:
            return f"doubtful, for {self.reason}"
        verdict = "wrong results" if self.wrong else self.verdict.value
        return f"{verdict}: {self.reason}" if self.reason else verdict

    def but(
        self, verdict: Verdict, cause: NoVerdict | None = None, reason: str = ""
    ) -> Comparison:
        """Return it with another verdict, its reason behind those that it has."""
        reasons = "; ".join(filter(None, (self.reason, reason)))
        return replace(self, verdict=verdict, cause=cause, reason=reasons)

    @property
    def change(self) -> float | None:
        """The new time over the base's, minus one."""
        return None if self.ratio is None else self.ratio - 1


@dataclass(frozen=True)
class Compared:
    """All points of two runs, in the order of runs; see ``exit_code`` for what they add up to.

    notes: what differs between the runs and keeps nothing from being compared. left_out: lines about
    points that are none (unsupported in both runs). unread: files of the runs that could not be read; notes
    name them. own: the verdicts on the new run itself, where the base is healthy systems: they decide.
    """

    base: str
    new: str
    settings: Settings
    points: tuple[Comparison, ...]
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unread: int = 0
    own: tuple[SpeedVerdict, ...] = ()

    def of(self, verdict: Verdict) -> tuple[Comparison, ...]:
        """Points with that verdict."""
        return tuple(point for point in self.points if point.verdict is verdict)

    @property
    def counts(self) -> dict[str, int]:
        """Number of points by verdict, all four."""
        counted = Counter(point.verdict for point in self.points)
        return {verdict.value: counted[verdict] for verdict in Verdict}

    @property
    def causes(self) -> dict[str, int]:
        """Number of points without a verdict, by cause, the most frequent first."""
        counted = Counter(point.cause for point in self.points if point.cause is not None)
        return {cause.value: count for cause, count in counted.most_common()}

    @property
    def exit_code(self) -> int:
        """1 where anything is slower or wrong; else 3 where anything was not decided; else 0.

        Where bits alone decide, 1 where any changed or are wrong, 3 where some or all were not compared.
        """
        if self.settings.same_bits:
            if any(self.changed_bits) or any(point.wrong for point in self.points):
                return PROBLEM
            open_bits = any(point.bits_reason for point in self.points)
            return NO_VERDICT if open_bits or self.unread or not self.changed_bits else FINE
        if self.own:
            return gravest(verdict.word for verdict in self.own).exit_code
        # What was found outranks what was not looked at.
        if any(point.verdict is Verdict.SLOWER or point.wrong for point in self.points):
            return PROBLEM
        # Nothing at all is not decided, nor is a run of which a file could not be read.
        if self.unread:
            return NO_VERDICT
        # Of the points whose interval is too wide, the share that the settings name is let pass.
        open_points = self.of(Verdict.NONE)
        wide = sum(point.cause is NoVerdict.TOO_WIDE for point in open_points)
        decided = len(self.points) - len(open_points)
        tolerated = wide <= self.settings.undecided * len(self.points)
        return FINE if decided and wide == len(open_points) and tolerated else NO_VERDICT

    @property
    def changed_bits(self) -> tuple[float, ...]:
        """Shares of elements whose bits differ, of all points that tell."""
        return tuple(
            point.changed_bits for point in self.points if point.changed_bits is not None
        )

    @property
    def bits_text(self) -> str:
        """Words about bits that changed, or did not, or were not compared; empty where no point has any."""
        shares, parts = self.changed_bits, []
        if any(shares):
            most = share_text(max(shares)).replace("differ", "an unknown share")
            changed = sum(map(bool, shares))
            parts.append(
                f"BITS CHANGED in {changed} of {len(shares)}, up to {most} of elements"
            )
        elif shares:
            parts.append(f"the same bits in {len(shares)}")
        reasons = [point.bits_reason for point in self.points if point.bits_reason]
        if reasons:
            parts.append(f"bits of {len(reasons)} not compared: {reasons[0]}")
        return ", ".join(parts)

    @property
    def threshold_text(self) -> str:
        """The least change that counts in this comparison, and what it is."""
        used = sorted({point.threshold for point in self.points if point.ratio is not None})
        span = " to ".join(dict.fromkeys(map(percent, (used[0], used[-1])))) if used else ""
        if not (self.settings.by_systems and span):
            return f"threshold {span or percent(self.settings.threshold)}"
        return (
            f"threshold {span}, by point: what 95 % of {'' if self.base == MODEL else 'pairs of '}healthy "
            f"systems stay within, {percent(self.settings.threshold)} where that is not known"
        )

    @property
    def sentence(self) -> str:
        """The verdict in one line: of the new run itself where the base is healthy systems."""
        return self.own[0].sentence if self.own else self.sums

    @property
    def sums(self) -> str:
        """Points by verdict."""
        counts = self.counts
        words = {FINE: "no regression", PROBLEM: "REGRESSION", NO_VERDICT: "NO VERDICT"}[
            self.exit_code
        ]
        wrong = sum(point.wrong for point in self.points)
        parts = [f"{counts[verdict.value]} {verdict.value}" for verdict in Verdict]
        parts += [f"{wrong} with wrong results"] if wrong else []
        unread = f"; {plural(self.unread, 'file')} could not be read" if self.unread else ""
        times = f"{', '.join(parts)} of {plural(len(self.points), 'point')}{unread}"
        if self.settings.same_bits:
            # Times decide nothing then, and must not read as if they had passed.
            return f"{words} of bits: {self.bits_text or 'no point has any'}; times: {times}"
        word = "" if self.own else f"{words}: "
        return f"{word}{times}" + (f"; {self.bits_text}" if self.bits_text else "")
