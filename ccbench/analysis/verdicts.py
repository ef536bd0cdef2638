"""The least change that counts, by collective, backend and band of sizes, from a small YAML file.

default: 5%
rules:                      # the last that fits a point is taken
  - size: {to: 32 KiB}      # from and to are inclusive
    threshold: 15%
  - collective: [all_reduce, all_gather]
    backend: nccl
    size: {from: 1 MiB}
    threshold: 3%

The values of a comparison, frozen: from how two runs are compared to the exit code of all their points.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from ccbench.analysis.bits import share_text
from ccbench.collectives import COLLECTIVES
from ccbench.documents import MOST_BYTES, FileKind, read_document
from ccbench.errors import UsageError
from ccbench.results import Point
from ccbench.suite.model import StrictModel, first_error
from ccbench.suite.readers import MisfitError
from ccbench.units import parse_fraction, parse_size, percent, plural, shown, suggestion

DEFAULT_THRESHOLD = 0.05
"""A fraction of the base's time; what HPC sites and benchmark libraries mostly take (3 to 5 %)."""

MODEL = "model"
"""Name of the base where a run is compared with its own predictions."""

LARGEST_SIZE_BYTES = 2**62


@dataclass(frozen=True)
class ThresholdRule:
    """A threshold and what it is for; an empty set is for all. Sizes are inclusive.

    place: file, line and number, for what is said of the rule.
    """

    threshold: float
    collectives: frozenset[str] = frozenset()
    backends: frozenset[str] = frozenset()
    from_bytes: int = 0
    to_bytes: int = LARGEST_SIZE_BYTES
    place: str = field(default="", compare=False)

    def fits(self, collective: str, backend: str, size_bytes: int) -> bool:
        """True if the rule is for such a point."""
        return (
            (not self.collectives or collective in self.collectives)
            and (not self.backends or backend in self.backends)
            and self.from_bytes <= size_bytes <= self.to_bytes
        )


@dataclass(frozen=True)
class Thresholds:
    """The default and its exceptions; of those that fit a point the last one rules."""

    default: float = DEFAULT_THRESHOLD
    rules: tuple[ThresholdRule, ...] = ()

    def of(self, collective: str, backend: str, size_bytes: int) -> float:
        """The threshold of one point, a fraction."""
        for rule in reversed(self.rules):
            if rule.fits(collective, backend, size_bytes):
                return rule.threshold
        return self.default

    def unused(self, points: Collection[tuple[str, str, int]]) -> tuple[str, ...]:
        """A line for each rule that is for none of ``points``, and for each backend that none of them has.

        points: collective, backend and bytes of each. Nothing is said where there are none at all.
        """
        # Backends of imported logs may have any name, so that a name by itself is never wrong; but one that
        # fits nothing is most likely misspelt, and then the rule is not in force.
        there = sorted({backend for _, backend, _ in points})
        lines = []
        for rule in self.rules if points else ():
            for name in sorted(rule.backends - set(there)):
                cure = suggestion(name, there)
                lines.append(
                    f"{rule.place}.backend: {shown(name)} is a backend of no point; {cure}"
                )
            if not any(rule.fits(*point) for point in points) and rule.backends <= set(there):
                cure = "check its collective and size, or leave it out"
                lines.append(f"{rule.place}: fits no point of either side; {cure}")
        return tuple(lines)


def load_thresholds(path: Path | str, default: float = DEFAULT_THRESHOLD) -> Thresholds:
    """The thresholds of a YAML file; ``default`` where it names none. Raises UsageError with the place."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror}); name a file of thresholds"
        ) from None
    return read_thresholds(content, str(path), default)


def read_thresholds(
    content: bytes, place: str = "thresholds", default: float = DEFAULT_THRESHOLD
) -> Thresholds:
    """The thresholds that YAML text describes. Raises UsageError that begins with ``place``."""
    kind = FileKind("file of thresholds", "'default: 5%' or 'rules:'", raises=UsageError)
    document = read_document(content, place, kind)
    try:
        rules_file = _File.model_validate(document.tree)
    except ValidationError as problem:
        raise first_error(problem, document.origin) from None
    rules = (
        ThresholdRule(
            rule.threshold,
            rule.collective,
            rule.backend,
            rule.size.low,
            rule.size.high,
            place=str(document.origin.error(("rules", number), "")),
        )
        for number, rule in enumerate(rules_file.rules)
    )
    return Thresholds(
        default if rules_file.default is None else rules_file.default, tuple(rules)
    )


def _threshold(value: Any) -> float:
    fraction = parse_fraction(value)
    if not 0 < fraction < 1:
        raise MisfitError(
            f"{shown(value)} decides nothing; write more than 0 % and less than 100 %"
        )
    return fraction


def _names(value: Any) -> frozenset[str]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise MisfitError(f"{shown(value)} is neither a name nor a list of names")
    return frozenset(names)


class _Size(StrictModel):
    low: Annotated[int, BeforeValidator(parse_size)] = Field(0, alias="from")
    high: Annotated[int, BeforeValidator(parse_size)] = Field(LARGEST_SIZE_BYTES, alias="to")

    @model_validator(mode="after")
    def _ends_are_in_order(self) -> _Size:
        if self.low > self.high:
            raise MisfitError("from is larger than to; exchange the two")
        return self


class _Rule(StrictModel):
    threshold: Annotated[float, BeforeValidator(_threshold)]
    collective: Annotated[frozenset[str], BeforeValidator(_names)] = frozenset()
    backend: Annotated[frozenset[str], BeforeValidator(_names)] = frozenset()
    size: _Size = Field(default_factory=lambda: _Size.model_validate({}))

    @field_validator("collective")
    @classmethod
    def _collectives_are_known(cls, names: frozenset[str]) -> frozenset[str]:
        # A backend of another tool's log may have any name, a collective has one of ccbench's.
        for name in sorted(names - set(COLLECTIVES)):
            raise MisfitError(
                f"{shown(name)} is no collective; {suggestion(name, COLLECTIVES)}"
            )
        return names


class _File(StrictModel):
    default: Annotated[float | None, BeforeValidator(_threshold)] = None
    rules: list[_Rule] = Field(default_factory=list)

    @field_validator("rules", mode="before")
    @classmethod
    def _rules_are_a_list(cls, value: Any) -> Any:
        if not isinstance(value, list):
            raise MisfitError(
                f"{shown(value)} is not a list; write '- threshold: 10%' below it"
            )
        return value


FINE, REGRESSION, NO_VERDICT = 0, 1, 3
"""Exit codes."""


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
    NO_PREDICTION = "no prediction"
    BEATS_BOUND = "beats the bound"


@dataclass(frozen=True)
class Settings:
    """Settings of a comparison.

    thresholds: the least change that counts, as a fraction. confidence: of intervals, and one minus the
    share of false findings that is let pass. undecided: share of points whose interval may be too wide before
    the exit code says so. accepted_flags: flags that make nothing doubtful. across_machines: other devices
    are no reason for having no verdict. by_systems: against a model or published figures, where the spread of
    healthy systems is known, that spread counts in place of a threshold. same_bits: bits alone decide: any
    that changed are a regression, and points whose bits are not compared not decided. draws: of the bootstrap. seed: of
    everything that is drawn.
    """

    thresholds: Thresholds = field(default_factory=lambda: Thresholds(DEFAULT_THRESHOLD))
    confidence: float = 0.95
    undecided: float = 0.0
    accepted_flags: frozenset[str] = frozenset()
    across_machines: bool = False
    by_systems: bool = False
    draws: int = 1000
    seed: int = 1
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
        verdict = "wrong results" if self.wrong else self.verdict.value
        return f"{verdict}: {self.reason}" if self.reason else verdict

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
    def unused_rules(self) -> tuple[str, ...]:
        """Lines about rules for thresholds that are in force nowhere, for want of points that they fit."""
        points = [point.point for point in self.points]
        return self.settings.thresholds.unused(
            {(point.collective, point.backend, point.size_bytes) for point in points}
        )

    @property
    def exit_code(self) -> int:
        """1 where anything is slower or wrong; else 3 where anything was not decided; else 0.

        Where bits alone decide, 1 where any changed or are wrong, 3 where some or all were not compared.
        """
        if self.settings.same_bits:
            if any(self.changed_bits) or any(point.wrong for point in self.points):
                return REGRESSION
            open_bits = any(point.bits_reason for point in self.points)
            return NO_VERDICT if open_bits or self.unread or not self.changed_bits else FINE
        # What was found outranks what was not looked at.
        if any(point.verdict is Verdict.SLOWER or point.wrong for point in self.points):
            return REGRESSION
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
        if not self.settings.by_systems:
            named = " (rules by point)" * bool(self.settings.thresholds.rules)
            return f"threshold {span or percent(self.settings.thresholds.default)}{named}"
        return (
            f"threshold {span}, by point: what 95 % of {'' if self.base == MODEL else 'pairs of '}healthy "
            f"systems stay within, {percent(self.settings.thresholds.default)} where that is not known"
        )

    @property
    def sentence(self) -> str:
        """The verdict in one line."""
        counts = self.counts
        words = {FINE: "no regression", REGRESSION: "REGRESSION", NO_VERDICT: "NO VERDICT"}[
            self.exit_code
        ]
        wrong = sum(point.wrong for point in self.points)
        parts = [f"{counts[verdict.value]} {verdict.value}" for verdict in Verdict]
        parts += [f"{wrong} with wrong results"] * bool(wrong)
        unread = f"; {plural(self.unread, 'file')} could not be read" if self.unread else ""
        times = f"{', '.join(parts)} of {plural(len(self.points), 'point')}{unread}"
        if self.settings.same_bits:
            # Times decide nothing then, and must not read as if they had passed.
            return f"{words} of bits: {self.bits_text or 'no point has any'}; times: {times}"
        return f"{words}: {times}" + (f"; {self.bits_text}" if self.bits_text else "")


def worst(each: Sequence[Compared]) -> int:
    """The exit code of several comparisons: a regression outranks what was not decided."""
    codes = {compared.exit_code for compared in each}
    return REGRESSION if REGRESSION in codes else max(codes)
