"""The least change that counts, by collective, backend and band of sizes, from a small YAML file.

default: 5%
rules:                      # the last that fits a point is taken
  - size: {to: 32 KiB}      # from and to are inclusive
    threshold: 15%
  - collective: [all_reduce, all_gather]
    backend: nccl
    size: {from: 1 MiB}
    threshold: 3%

What a comparison says: frozen values from the point's identity to the exit code of all of them.

Samples of many points at once, as flat NumPy arrays: medians of rounds, and of points.

A case is measured in several rounds, and samples of one round resemble each other more than those of
different rounds; so what is tested is a round's median, and a round counts once however many samples it has.

One side of a comparison: what a run has of a case; of logs imported together, from several points.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, ValidationError, model_validator

from ccbench.cases import Status
from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.machine.flags import Flag
from ccbench.results import Point, Run
from ccbench.suite.documents import MOST_BYTES, FileKind, read_document
from ccbench.suite.model import StrictModel, first_error
from ccbench.suite.readers import MisfitError
from ccbench.units import parse_fraction, parse_size, plural, shown, suggestion

DEFAULT_THRESHOLD = 0.05
"""As a fraction of the base's time; what HPC sites and benchmark libraries mostly take (3 to 5 %)."""

LARGEST_SIZE_BYTES = 2**62

THRESHOLDS_FILE = FileKind("file of thresholds", "'default: 5%' or 'rules:'", raises=UsageError)

Kind = tuple[str, str, int]
"""Collective, backend and bytes of a point."""


@dataclass(frozen=True)
class Rule:
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
        """Whether the rule is for such a point."""
        named = not self.collectives or collective in self.collectives
        named = named and (not self.backends or backend in self.backends)
        return named and self.from_bytes <= size_bytes <= self.to_bytes


@dataclass(frozen=True)
class Thresholds:
    """The default and its exceptions; of those that fit a point the last one rules."""

    default: float = DEFAULT_THRESHOLD
    rules: tuple[Rule, ...] = ()

    def of(self, collective: str, backend: str, size_bytes: int) -> float:
        """The threshold of one point, a fraction."""
        for rule in reversed(self.rules):
            if rule.fits(collective, backend, size_bytes):
                return rule.threshold
        return self.default

    def unused(self, points: Collection[Kind]) -> tuple[str, ...]:
        """A line for each rule that is for none of ``points``, and for each backend that none of them has.

        Backends of imported logs may have any name, so that a name by itself is never wrong; but one that
        fits nothing is most likely misspelt, and then the rule is not in force. Nothing is said where there
        are no points at all.
        """
        there = sorted({backend for _, backend, _ in points})
        found = []
        for rule in self.rules if points else ():
            for name in sorted(rule.backends - set(there)):
                cure = suggestion(name, there)
                found.append(f"{rule.place}.backend: {shown(name)} is a backend of no point; {cure}")
            if not any(rule.fits(*point) for point in points) and rule.backends <= set(there):
                cure = "check its collective and size, or leave it out"
                found.append(f"{rule.place}: fits no point of either side; {cure}")
        return tuple(found)


def load_thresholds(path: Path | str, default: float = DEFAULT_THRESHOLD) -> Thresholds:
    """The thresholds of a YAML file; ``default`` where it names none. Raises UsageError with the place."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}); name a file of thresholds") from None
    return read_thresholds(content, str(path), default)


def read_thresholds(
    content: bytes, place: str = "thresholds", default: float = DEFAULT_THRESHOLD
) -> Thresholds:
    """The thresholds that YAML text describes. Raises UsageError that begins with ``place``."""
    document = read_document(content, place, THRESHOLDS_FILE)
    try:
        found = _File.model_validate(document.tree)
    except ValidationError as problem:
        raise first_error(problem, document.origin) from None
    rules = (
        Rule(
            rule.threshold, rule.collective, rule.backend, rule.size.low, rule.size.high,
            place=str(document.origin.error(("rules", number), "")),
        )
        for number, rule in enumerate(found.rules)
    )  # fmt: skip
    return Thresholds(default if found.default is None else found.default, tuple(rules))


def _threshold(value: Any) -> float:
    fraction = parse_fraction(value)
    if not 0 < fraction < 1:
        raise MisfitError(f"{shown(value)} decides nothing; write more than 0 % and less than 100 %")
    return fraction


def _names(value: Any) -> frozenset[str]:
    names = value if isinstance(value, list) else [value]
    if not names or not all(isinstance(name, str) and name for name in names):
        raise MisfitError(f"{shown(value)} is neither a name nor a list of names")
    return frozenset(names)


def _collectives(value: Any) -> frozenset[str]:
    names = _names(value)
    for name in sorted(names - set(COLLECTIVES)):
        raise MisfitError(f"{shown(name)} is no collective; {suggestion(name, COLLECTIVES)}")
    return names


def _rules(value: Any) -> Any:
    if not isinstance(value, list):
        raise MisfitError(f"{shown(value)} is not a list; write '- threshold: 10%' below it")
    return value


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
    collective: Annotated[frozenset[str], BeforeValidator(_collectives)] = frozenset()
    backend: Annotated[frozenset[str], BeforeValidator(_names)] = frozenset()
    size: _Size = Field(default_factory=lambda: _Size.model_validate({}))


class _File(StrictModel):
    default: Annotated[float | None, BeforeValidator(_threshold)] = None
    rules: Annotated[list[_Rule], BeforeValidator(_rules)] = Field(default_factory=list)


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


Floats = NDArray[np.float64]
Whole = NDArray[np.int64]


Rounds = Sequence[Floats]
"""The samples of one point, one array a round, none of them empty."""


def round_medians(points: Sequence[Rounds]) -> Floats:
    """The median of every round, a row for each point; NaN where a point has fewer rounds than the others."""
    parts = [one_round for rounds in points for one_round in rounds]
    counts = np.array([len(rounds) for rounds in points], dtype=np.int64)
    table = np.full((len(points), int(counts.max(initial=0))), np.nan)
    if parts:
        lengths = np.array([len(part) for part in parts], dtype=np.int64)
        values = np.concatenate(parts).astype(np.float64)
        # All rounds are sorted at once: a call for each takes seconds for ten thousand points.
        ordered = values[np.lexsort((values, np.repeat(np.arange(len(parts)), lengths)))]
        starts = np.cumsum(lengths) - lengths
        place = np.arange(len(parts)) - np.repeat(np.cumsum(counts) - counts, counts)
        middles = (ordered[starts + (lengths - 1) // 2] + ordered[starts + lengths // 2]) / 2
        table[np.repeat(np.arange(len(points)), counts), place] = middles
    return table


ARRANGEMENTS = frozenset(flag for flag in Flag if flag.arrangement)


@dataclass(frozen=True)
class Side:
    """What one run has for a point.

    rounds: samples by round; each printed average of an imported log is a round of its own. seconds: the
    run's median, the median of several. averages: no samples are known. bound, prediction: as in the run.
    """

    status: Status
    detail: str
    rounds: Rounds
    seconds: float | None
    averages: bool
    imported: bool
    simulated: bool
    flags: frozenset[str]
    bound_seconds: float | None = None
    predicted_seconds: float | None = None
    bottleneck: str = ""


def by_identity(run: Run) -> dict[tuple[object, ...], list[Point]]:
    """What ``run`` has of every case, in the run's order."""
    found: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in run.points:
        found[point.identity].append(point)
    return found


def side_of(points: Sequence[Point]) -> Side:
    """What ``points``, all of one case, add up to: wrong results outrank a speed, a speed any other end."""
    chosen: Sequence[Point] = points
    for status in (Status.OK, Status.WRONG):
        chosen = [point for point in points if point.status is status] or chosen
    first = chosen[0]
    timed = [point for point in chosen if first.status is Status.OK and point.median_seconds is not None]
    return Side(
        status=first.status,
        detail=first.detail,
        rounds=[
            one_round for point in timed for one_round in point.rounds or [np.array([point.median_seconds])]
        ],
        seconds=float(np.median([point.median_seconds for point in timed])) if timed else None,
        averages=any(not len(point.samples_seconds) for point in timed),
        imported=any(point.imported for point in chosen),
        simulated=any(point.simulated for point in chosen),
        flags=frozenset(flag for point in chosen for flag in point.flags),
        bound_seconds=first.bound_seconds,
        predicted_seconds=first.predicted_seconds,
        bottleneck=first.bottleneck,
    )


Obstacle = tuple[Cause, str]
"""Why there is no verdict, for programs and in words."""


def obstacle_of(side: Side, name: str, settings: Settings) -> Obstacle | None:
    """What keeps one side from being compared with anything; ``name`` is base or new."""
    if side.status is Status.WRONG:
        return Cause.WRONG, f"{name} gave wrong results" + (f": {side.detail}" if side.detail else "")
    if side.status is not Status.OK:
        return Cause.NOT_OK, f"{name} is {side.status.value}" + (f": {side.detail}" if side.detail else "")
    if Flag.EMULATION in side.flags:
        return Cause.EMULATED, f"{name} was emulated: its times say nothing about any device"
    doubtful = sorted(side.flags - ARRANGEMENTS - settings.accepted_flags)
    if doubtful:
        # An imported table may carry a word that this version does not know, which nobody can accept.
        accept = f", or let that count: --accept-flags {','.join(doubtful)}" if {*doubtful} <= {*Flag} else ""
        return Cause.DOUBTFUL, f"{name} is flagged {', '.join(doubtful)}; measure it again{accept}"
    if (
        side.seconds is None
        or not side.seconds > 0
        or not all(_timed(one_round) for one_round in side.rounds)
    ):
        return Cause.NO_TIME, f"{name} has no time above zero, or rounds without one"
    return None


def _timed(one_round: NDArray[np.float64]) -> bool:
    """Whether the round's median is a time above zero; its least sample mostly tells at once."""
    if not np.isfinite(one_round).all():
        return False
    return bool(one_round.min() > 0) or float(np.median(one_round)) > 0


def obstacle_between(base: Side, new: Side, settings: Settings) -> Obstacle | None:
    """What keeps two sides from being compared with each other."""
    for side, name in ((new, "new"), (base, "base")):  # wrong results of the new run come first
        found = obstacle_of(side, name, settings)
        if found:
            return found
    if base.simulated != new.simulated:
        return (
            Cause.SIMULATED,
            f"{'base' if base.simulated else 'new'} was computed from a model, the other measured",
        )
    odd = sorted((base.flags ^ new.flags) - settings.accepted_flags)
    if odd:
        only = "base" if odd[0] in base.flags else "new"
        return Cause.ARRANGEMENT, f"only {only} is flagged {odd[0]}"
    return None
