"""Advice from measured points: who is fastest at each size, by how much for certain, in bands of sizes.

Rows of runs become timings that may race: what was asked for, in which situation, how long it took. What is
certain: with k choices at a size, the median of each gets an interval of confidence 1 - 0.05 / k (order
statistics, ``ccbench.stats``). By Bonferroni's inequality all k hold together with 95 %, so a ratio made of
two opposite ends holds too, though the winner was picked after looking.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import TypeVar

import numpy as np

from ccbench.analysis.significance import CONFIDENCE
from ccbench.cases.axes import AXIS, SETTINGS, WORK
from ccbench.errors import UsageError
from ccbench.results import Point, Run
from ccbench.results.keys import Key, grouped
from ccbench.stats import Interval, rounds_interval
from ccbench.units import plural, shown

DEFAULT = "default"

SETTINGS_OF_LIBRARIES = tuple(
    axis for axis in SETTINGS if axis.choice and axis.name not in ("channels", "processes")
)
"""Axes that a library can be told besides algorithm, protocol and channels."""

NOT_SET = tuple(axis.default for axis in SETTINGS_OF_LIBRARIES)

_SITUATION = Key(("collective", "ranks", "nodes", "dtype", "op", "in_place", "mode"))


@dataclass(frozen=True, order=True)
class Choice:
    """A choice that somebody can ask for. settings: values of SETTINGS_OF_LIBRARIES."""

    backend: str
    algorithm: str = DEFAULT
    protocol: str = DEFAULT
    channels: int = 0
    settings: tuple[str | int | bool, ...] = NOT_SET

    @property
    def is_default(self) -> bool:
        """True if the backend chose everything itself."""
        return self == Choice(self.backend)

    @property
    def label(self) -> str:
        """One line such as ``nccl ring/ll128, 4 channels``."""
        name = (
            self.algorithm if self.protocol == DEFAULT else f"{self.algorithm}/{self.protocol}"
        )
        words = [f"{self.backend} {name}"]
        words += [f"{self.channels} channels"] if self.channels else []
        words += [
            axis.label_of(value)
            for axis, value in zip(SETTINGS_OF_LIBRARIES, self.settings, strict=True)
        ]
        return ", ".join(filter(None, words))


@dataclass(frozen=True, order=True)
class Situation:
    """The work and the place: only timings of one situation race. nodes: 0 where a source does not say.

    place: the machine or devices as a run names them. work: what besides changes the work, or who launches it.
    """

    collective: str
    ranks: int
    nodes: int
    dtype: str
    op: str
    in_place: bool
    mode: str
    place: str = ""
    work: str = ""

    @property
    def label(self) -> str:
        """One line that tells this situation from others."""
        words = [self.collective, plural(self.ranks, "rank")]
        words += [f"{self.nodes} nodes"] if self.nodes > 1 else []
        words += [word for word in (self.dtype, self.op) if word not in ("", "none")]
        words += ["in place"] if self.in_place else []
        words += [word for word in (self.mode,) if word != "streaming"]
        words += [word for word in (self.work, self.place) if word]
        return ", ".join(words)


@dataclass(frozen=True)
class Timing:
    """One choice at one size. kept: it may be advised."""

    situation: Situation
    choice: Choice
    point: Point
    kept: bool = True

    @property
    def seconds(self) -> float:
        """Median of a launch."""
        return self.point.median_seconds or 0.0


Forced = Callable[[str], tuple[str, str] | None]
"""Source of a row -> algorithm and protocol that were forced there, where somebody knows."""


def forced_from(texts: Iterable[str]) -> Forced:
    """``SOURCE=ALGORITHM[/PROTOCOL]`` of a command line; SOURCE is a part of the source's name.

    For logs that do not print what their environment forced. Raises UsageError.
    """
    choices: list[tuple[str, str, str]] = []
    for text in texts:
        source, _, choice = text.rpartition("=")
        algorithm, _, protocol = choice.partition("/")
        if not source or not algorithm:
            raise UsageError(
                f"--assume-algorithm {shown(text)}: not SOURCE=ALGORITHM[/PROTOCOL]; "
                "write for example run2.log=ring/ll128"
            )
        choices.append((source, algorithm.lower(), (protocol or DEFAULT).lower()))

    def find(source: str) -> tuple[str, str] | None:
        return next(((a, p) for part, a, p in choices if part in source), None)

    return find


def timings_of(
    runs: Sequence[Run], forced: Forced | None = None, kept: Collection[str] | None = None
) -> tuple[Timing, ...]:
    """Points of ``runs`` that have a speed, in their order.

    kept: ids of cases that alone may be advised; None: all.

    Left out: cases that are not ok, times of an emulation, single ranks.
    """
    # The processor is said where one name of a machine stands for several, as measured-2-cores does.
    named = [(run.manifest.machine, run.manifest.processor) for run in runs]
    known = Counter(name for name, processor in {*named} if processor)
    timings = []
    for run, (name, processor) in zip(runs, named, strict=True):
        place = ", ".join(filter(None, (name, processor))) if known[name] > 1 else name
        for point in run.points:
            if point.is_timed and not point.emulated and point.ranks >= 2:
                # What somebody knows to have been forced outranks what a log does not say.
                known_choice = forced(point.source) if forced and point.source else None
                is_kept = kept is None or point.case_id in kept
                timings.append(timing_of(point, place, known_choice, is_kept))
    return tuple(timings)


def timing_of(
    point: Point,
    place: str,
    requested: tuple[str, str] | None = None,
    kept: bool = True,
) -> Timing:
    """Return the timing of ``point``. requested: algorithm and protocol, where these are not the point's own."""
    # Who launches tells in a stream; a graph is launched before the clock starts.
    launcher = (AXIS["processes"],) if point.mode != "graph" else ()
    work = (
        axis.label_of(getattr(point, axis.name)) for axis in (*WORK, AXIS["root"], *launcher)
    )
    where = place or point.device_model, ", ".join(filter(None, work))
    situation = Situation(*(*_SITUATION(point), *where))
    settings = tuple(getattr(point, axis.name) for axis in SETTINGS_OF_LIBRARIES)
    choice = requested or (point.algorithm, point.protocol)
    return Timing(
        situation, Choice(point.backend, *choice, point.channels, settings), point, kept
    )


@dataclass(frozen=True)
class Rules:
    """Thresholds above which a gain is worth telling; all are fractions of the time that the rival takes.

    minimum_gain: of measured samples. minimum_printed_gain: where there is no interval, as of averages that
    another tool printed: nobody can tell their noise, and repeated runs of nccl-tests differ by several
    percent (NVIDIA/nccl#1469, NVIDIA/nccl-tests#104), so a larger one.
    reproducible: only choices that keep bits are advised, whatever they cost.
    """

    minimum_gain: float = 0.03
    minimum_printed_gain: float = 0.10
    reproducible: bool = False


@dataclass(frozen=True)
class Gain:
    """The gain of one choice over another: time of the other over its own, minus one.

    low, high: None where an average, or too few samples for an interval, took part.
    """

    median: float
    low: float | None = None
    high: float | None = None

    @property
    def certain(self) -> bool:
        """True if there is an interval and it lies above zero."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True)
class AtSize:
    """The answer at one size. rival: the default, or the second best where no default was measured.

    gain: of the best over the rival; None where nothing else was measured.
    choice: the best where it is advised, else None, and then why says the reason.
    """

    size_bytes: int
    best: Choice
    rival: Choice | None
    gain: Gain | None
    choice: Choice | None
    why: str


@dataclass(frozen=True)
class Band:
    """Neighbouring measured sizes with one answer. choice: what to run; None: leave it as it is, see why.

    rivals, smallest_gain, largest_gain: over the sizes at which the choice was advised by itself; the
    smallest with its interval; no rivals where nothing was compared. bridged_bytes: sizes inside at which it
    could not be told from the rival.
    without_interval: averages, or too few samples for an interval, took part. channels: of the choice, as
    asked for or as the library said, 0 where they differ or are not known; ran: algorithm and protocol
    likewise, "" where not known.
    """

    low_bytes: int
    high_bytes: int
    sizes_bytes: tuple[int, ...]
    choice: Choice | None
    rivals: tuple[Choice, ...]
    smallest_gain: Gain | None
    largest_gain: Gain | None
    bridged_bytes: tuple[int, ...]
    why: str
    without_interval: bool
    channels: int = 0
    ran: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Advice:
    """Advice on one situation: bands in order of size; they hold every measured size exactly once."""

    situation: Situation
    bands: tuple[Band, ...]
    flags: tuple[str, ...]
    simulated: bool

    @property
    def compared(self) -> bool:
        """True if two choices were measured at any one size."""
        return any(band.rivals for band in self.bands)


@dataclass(frozen=True)
class _Speed:
    """One choice at one size: a median with an interval, where samples are enough for one."""

    seconds: float
    interval: Interval | None
    channels_used: int
    ran: tuple[str, str]
    kept: bool


Value = TypeVar("Value")
_Speeds = Mapping[int, Mapping[Choice, _Speed]]


def advise(timings: Iterable[Timing], rules: Rules | None = None) -> tuple[Advice, ...]:
    """Advice for every situation in ``timings``, in their order of collective, ranks, nodes and so on."""
    rules = rules or Rules()
    return tuple(advice for advice, _ in _advised(timings, rules))


def _advised(timings: Iterable[Timing], rules: Rules) -> Iterator[tuple[Advice, _Speeds]]:
    situations = grouped(timings, lambda timing: timing.situation)
    for situation, members in sorted(situations.items()):
        speeds = _speeds(members, rules)
        flags = sorted({flag for member in members for flag in member.point.flags})
        simulated = any(member.point.simulated for member in members)
        looked = [_at_size(size, at, rules) for size, at in speeds.items()]
        # Hysteresis: a choice stays until another is certainly better. It stays only between sizes at which it
        # was advised by itself: nothing trails behind the last of them.
        answers = [answer.choice for answer in looked]
        held: Choice | None = None
        since = 0  # index of the last size that advised what is held
        for index, answer in enumerate(looked):
            at = speeds[answer.size_bytes]
            if held and answer.choice == held:
                answers[since + 1 : index] = [held] * (index - since - 1)
                since = index
            elif not held or held not in at or _is_slower(at[held], at[answer.best], rules):
                held, since = answer.choice, index
        pairs = groupby(zip(looked, answers, strict=True), key=lambda pair: pair[1])
        bands = tuple(
            _band([answer for answer, _ in run], choice, speeds) for choice, run in pairs
        )
        yield Advice(situation, bands, tuple(flags), simulated), speeds


def _speeds(members: Sequence[Timing], rules: Rules) -> dict[int, dict[Choice, _Speed]]:
    """Speeds by size and choice, sizes ascending."""
    by_size: dict[int, dict[Choice, _Speed]] = {}
    for size, at in sorted(grouped(members, lambda timing: timing.point.size_bytes).items()):
        choices = grouped(at, lambda timing: timing.choice)
        confidence = 1 - (1 - CONFIDENCE) / len(choices)
        by_size[size] = {}
        for choice, timings in choices.items():
            # The same choice measured several times (in several runs): rounds count as those of one.
            points = [timing.point for timing in timings]
            seconds, interval = float(median(timing.seconds for timing in timings)), None
            if all(len(point.samples_seconds) for point in points):
                rounds = [
                    n
                    for point in points
                    for n in (point.round_samples or (len(point.samples_seconds),))
                ]
                samples = np.concatenate([point.samples_seconds for point in points])
                among = rounds_interval(samples.tolist(), rounds, confidence)
                interval = among if among.confidence >= confidence else None
                # The run's own median may be that of the rounds; the interval must hold it.
                if len(timings) > 1 or (
                    interval and not interval.low <= seconds <= interval.high
                ):
                    seconds = among.median
            by_size[size][choice] = _Speed(
                seconds,
                interval,
                _common((point.channels_used for point in points), 0),
                _common(
                    (
                        (each.algorithm_used.lower(), each.protocol_used.lower())
                        for each in points
                    ),
                    ("", ""),
                ),
                all(timing.kept for timing in timings),
            )
    return by_size


def _common(values: Iterable[Value], otherwise: Value) -> Value:
    """The one value that all are, ``otherwise`` where they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else otherwise


def _gain(faster: _Speed, slower: _Speed) -> Gain:
    """Of ``faster`` over ``slower``; negative where the names deceive."""
    central = slower.seconds / faster.seconds - 1
    if faster.interval is None or slower.interval is None or faster.interval.low <= 0:
        return Gain(central)
    low = slower.interval.low / faster.interval.high - 1
    return Gain(central, low, slower.interval.high / faster.interval.low - 1)


KEPT = "no other is"
"""Beginning of the reason for which a default is kept."""


def _at_size(size: int, speeds: Mapping[Choice, _Speed], rules: Rules) -> AtSize:
    order = sorted(
        speeds, key=lambda choice: (speeds[choice].seconds, not choice.is_default, choice)
    )
    # Where bits must stay, what is not reproducible may be a rival, and is never advised.
    kept = [choice for choice in order if speeds[choice].kept]
    if not kept:
        return AtSize(size, order[0], None, None, None, "no choice keeps bits")
    best, *others = kept
    lost = [choice for choice in order if choice not in kept]
    is_price = bool(lost) and not any(choice.is_default for choice in kept)
    rivals = lost if is_price else others
    if not rivals:
        return AtSize(size, best, None, None, None, "nothing else was measured")
    rival = next((choice for choice in rivals if choice.is_default), rivals[0])
    gain = _gain(speeds[best], speeds[rival])
    why = "" if is_price else _why_not(best, rival, gain, rules)
    return AtSize(size, best, rival, gain, None if why else best, why)


def _why_not(best: Choice, rival: Choice, gain: Gain, rules: Rules) -> str:
    """Return why the best is not advised; empty where it is."""
    small = gain.low is not None and gain.median < rules.minimum_gain
    if best.is_default or (small and rival.is_default):
        return f"{KEPT} {rules.minimum_gain:.0%} faster"
    why = f"less than {rules.minimum_gain:.0%}"
    if gain.low is None:
        # Without an interval nobody can tell noise from a gain: only a large one is told.
        if gain.median >= rules.minimum_printed_gain:
            return ""
        why = f"no intervals, and less than {rules.minimum_printed_gain:.0%}"
    elif not small:
        if gain.certain:
            return ""
        why = "not told apart from noise"
    return f"{best.label} leads {rival.label}: {why}"


def _is_slower(speed: _Speed, rival: _Speed, rules: Rules) -> bool:
    """Return True if ``speed`` is told apart from ``rival`` as slower."""
    lost = _gain(rival, speed)
    return lost.median >= rules.minimum_gain if lost.low is None else lost.certain


def _band(looked: Sequence[AtSize], choice: Choice | None, speeds: _Speeds) -> Band:
    chosen = [speeds[answer.size_bytes][choice] for answer in looked] if choice else []
    own = [answer for answer in looked if choice and answer.choice == choice]
    gains = sorted((answer.gain for answer in own if answer.gain), key=lambda gain: gain.median)
    every = dict.fromkeys(answer.why for answer in looked if answer.why)
    reasons = [] if choice else [*every]
    sizes = tuple(answer.size_bytes for answer in looked)
    used = _common((speed.channels_used for speed in chosen), 0)
    return Band(
        low_bytes=sizes[0],
        high_bytes=sizes[-1],
        sizes_bytes=sizes,
        choice=choice,
        rivals=tuple(dict.fromkeys(answer.rival for answer in (own or looked) if answer.rival)),
        smallest_gain=gains[0] if gains else None,
        largest_gain=gains[-1] if gains else None,
        bridged_bytes=tuple(
            answer.size_bytes for answer in looked if choice and answer.choice != choice
        ),
        why="; ".join(reasons[:2]) + ("; ..." if len(reasons) > 2 else ""),
        without_interval=any(answer.gain and answer.gain.low is None for answer in looked),
        channels=(choice.channels or used) if choice else 0,
        ran=_common((speed.ran for speed in chosen), ("", "")),
    )


def everywhere(timings: Iterable[Timing], rules: Rules | None = None) -> dict[str, Choice]:
    """Collective -> the one choice that may be set for all sizes and situations that were measured.

    That is a choice that is advised somewhere and nowhere told apart from the default (from the best, where
    no default was measured) as slower; of several the one that is advised at most sizes. A collective of
    which no choice passes is absent.
    """
    rules = rules or Rules()
    counted: dict[str, Counter[Choice]] = defaultdict(Counter)
    measured: dict[str, list[Mapping[Choice, _Speed]]] = defaultdict(list)
    for advice, speeds in _advised(timings, rules):
        measured[advice.situation.collective] += speeds.values()
        for band in advice.bands:
            if band.choice is not None:
                counted[advice.situation.collective][band.choice] += len(band.sizes_bytes)
    choices = {}
    for collective, sizes in counted.items():
        fit = set(sizes)
        for at in measured[collective]:
            rivals = [choice for choice in at if choice.is_default] or list(at)
            rival = min(rivals, key=lambda choice: at[choice].seconds)
            fit = {
                candidate
                for candidate in fit
                if candidate in at and not _is_slower(at[candidate], at[rival], rules)
            }
        if fit:
            choices[collective] = max(sorted(fit), key=sizes.__getitem__)
    return choices
