"""The rows of runs as timings that may race: what was asked for, in which situation, how long it took.

From timings to advice: who is fastest at each size, by how much for certain, in bands that noise cannot
cut.

What is certain: with k choices at a size, the median of each gets an interval of confidence 1 - 0.05 / k
(order statistics, ``ccbench.stats``). By Bonferroni's inequality all k hold together with 95 %, so a ratio
made of two opposite ends holds too, though the winner was picked after looking.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from ccbench.cases import AXIS, SETTINGS, WORK, Status
from ccbench.errors import UsageError
from ccbench.machine.flags import Flag
from ccbench.results import Manifest, Point, Run
from ccbench.results.manifest import LONGEST_NAME
from ccbench.stats import Interval, rounds_interval
from ccbench.units import plain, plural, shown

DEFAULT = "default"

SIZE_NOT_STATED = -1
"""Size of a timing whose source prints a bandwidth and not the size it was measured at."""


SETTINGS_OF_LIBRARIES = tuple(axis for axis in SETTINGS if axis.choice and axis.name != "channels")
"""What a library can be told besides algorithm, protocol and channels."""

NOT_SET = tuple(axis.default for axis in SETTINGS_OF_LIBRARIES)


@dataclass(frozen=True, order=True)
class Choice:
    """What somebody can ask for. settings: values of SETTINGS_OF_LIBRARIES.

    variant: of a library started differently, in the words of a source.
    """

    backend: str
    algorithm: str = DEFAULT
    protocol: str = DEFAULT
    channels: int = 0
    settings: tuple[str | int | bool, ...] = NOT_SET
    variant: str = ""

    @property
    def is_default(self) -> bool:
        """Whether the backend chose everything itself."""
        return self == Choice(self.backend)

    @property
    def label(self) -> str:
        """One line such as ``nccl ring/ll128, 4 channels``."""
        name = self.algorithm if self.protocol == DEFAULT else f"{self.algorithm}/{self.protocol}"
        words = [f"{self.backend} {name}"]
        words += [f"{self.channels} channels"] if self.channels else []
        words += [axis.said(one) for axis, one in zip(SETTINGS_OF_LIBRARIES, self.settings, strict=True)]
        return ", ".join(filter(None, (*words, self.variant)))


@dataclass(frozen=True, order=True)
class Situation:
    """The work and the place: only timings of one situation race. nodes: 0 where a source does not say.

    place: the machine or devices as a run names them. work: what besides changes the work, in words.
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
    """One choice at one size, in seconds per launch.

    samples_seconds, round_samples: as a run keeps them; empty where a source prints an average only.
    ran: algorithm and protocol that the library said it ran, "" where it did not; channels_used: 0 likewise.
    simulated: computed, not measured.
    """

    situation: Situation
    choice: Choice
    size_bytes: int
    median_seconds: float
    samples_seconds: tuple[float, ...] = ()
    round_samples: tuple[int, ...] = ()
    flags: tuple[str, ...] = ()
    simulated: bool = False
    channels_used: int = 0
    ran: tuple[str, str] = ("", "")


Forced = Callable[[str], tuple[str, str] | None]
"""Source of a row -> algorithm and protocol that were forced there, where somebody knows."""


def forced_from(texts: Iterable[str]) -> Forced:
    """``SOURCE=ALGORITHM[/PROTOCOL]`` of a command line; SOURCE is a part of the source's name.

    For logs that do not print what their environment forced. Raises UsageError.
    """
    known: list[tuple[str, str, str]] = []
    for text in texts:
        source, _, choice = text.rpartition("=")
        algorithm, _, protocol = choice.partition("/")
        if not source or not algorithm:
            raise UsageError(
                f"--assume-algorithm {shown(text)}: not SOURCE=ALGORITHM[/PROTOCOL]; "
                "write for example run2.log=ring/ll128"
            )
        known.append((source, algorithm.lower(), (protocol or DEFAULT).lower()))

    def find(source: str) -> tuple[str, str] | None:
        return next(((a, p) for part, a, p in known if part in source), None)

    return find


def timings_of(runs: Sequence[Run], forced: Forced | None = None) -> tuple[Timing, ...]:
    """Everything in ``runs`` that has a speed, in their order.

    Left out: cases that are not ok, times of an emulation, single ranks. A row that states a bandwidth but
    not its size stands with SIZE_NOT_STATED and the inverse of its bus bandwidth: only ratios are formed.
    """
    return tuple(
        timing
        for run, place in zip(runs, _places(runs), strict=True)
        for variants in (_variants(run.manifest),)
        for point in run.points
        if (timing := _timing(point, place, variants, forced)) is not None
    )


def _places(runs: Sequence[Run]) -> list[str]:
    """The machine of every run; the processor is said where one name stands for several, as measured-2-cores
    does."""
    named = [(run.manifest.machine, run.manifest.processor) for run in runs]
    known = {one for one in named if one[1]}
    several = {name for name in dict(named) if sum(other == name for other, _ in known) > 1}
    return [", ".join(filter(None, (name, model))) if name in several else name for name, model in named]


def _timing(
    point: Point, place: str, variants: Mapping[tuple[str, int], str], forced: Forced | None
) -> Timing | None:
    speed = _speed(point)
    if speed is None or point.emulated or point.ranks < 2:
        return None
    size_bytes, seconds = speed
    return Timing(
        situation=_situation(point, place),
        choice=_choice(point, variants, forced),
        size_bytes=size_bytes,
        median_seconds=seconds,
        samples_seconds=tuple(point.samples_seconds.tolist()),
        round_samples=point.round_samples,
        flags=point.flags,
        simulated=point.simulated,
        channels_used=point.channels_used,
        ran=(point.algorithm_used.lower(), point.protocol_used.lower()),
    )


def _speed(point: Point) -> tuple[int, float] | None:
    """(size, seconds), or (SIZE_NOT_STATED, inverse bandwidth), or nothing."""
    if point.is_timed:
        return point.size_bytes, point.median_seconds or 0.0
    unsized = point.status is Status.SKIPPED and Flag.SIZE_NOT_STATED in point.flags
    if unsized and point.printed_busbw is not None and point.printed_busbw > 0:
        return SIZE_NOT_STATED, 1e-9 / point.printed_busbw
    return None


def _situation(point: Point, place: str) -> Situation:
    words = (axis.said(getattr(point, axis.name)) for axis in (*WORK, AXIS["root"]))
    return Situation(
        collective=point.collective,
        ranks=point.ranks,
        nodes=point.nodes,
        dtype=point.dtype,
        op=point.op,
        in_place=point.in_place,
        mode=point.mode,
        place=place or point.device_model,
        work=", ".join(filter(None, words)),
    )


def _choice(point: Point, variants: Mapping[tuple[str, int], str], forced: Forced | None) -> Choice:
    known = forced(point.source) if forced is not None and point.source else None
    algorithm, protocol = known or (point.algorithm, point.protocol)
    return Choice(
        backend=point.backend,
        algorithm=algorithm,
        protocol=protocol,
        channels=point.channels,
        settings=tuple(getattr(point, axis.name) for axis in SETTINGS_OF_LIBRARIES),
        variant=variants.get((point.source, point.source_table), ""),
    )


def _variants(manifest: Manifest) -> dict[tuple[str, int], str]:
    """(source, table from 1) -> the words with which an imported table sets itself apart, if it does."""
    return {
        (plain(file.get("source", ""), LONGEST_NAME), number): str(variant)[:60]
        for file in manifest.mappings("imported")
        for number, table in enumerate(Manifest(file).mappings("tables"), start=1)
        if (variant := Manifest(table).at("facts", "variant"))
    }


@dataclass(frozen=True)
class Rules:
    """When a gain is worth telling; all are fractions of the time that the rival takes.

    minimum_gain: of measured samples. minimum_printed_gain: where there is no interval, as of averages that
    another tool printed: nobody can tell their noise, and repeated runs of nccl-tests differ by several
    percent (NVIDIA/nccl#1469, NVIDIA/nccl-tests#104), so a larger one. confidence: that all intervals of one
    size hold together.
    """

    minimum_gain: float = 0.03
    minimum_printed_gain: float = 0.10
    confidence: float = 0.95


@dataclass(frozen=True)
class Gain:
    """How much faster one choice is than another: time of the other over its own, minus one.

    low, high: None where an average, or too few samples for an interval, took part.
    """

    median: float
    low: float | None = None
    high: float | None = None

    @property
    def certain(self) -> bool:
        """Whether there is an interval and it lies above zero."""
        return self.low is not None and self.low > 0


@dataclass(frozen=True)
class AtSize:
    """What is known at one size. rival: the default, or the second best where no default was measured.

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
    """Everything about one situation: bands in order of size; they hold every measured size exactly once."""

    situation: Situation
    bands: tuple[Band, ...]
    flags: tuple[str, ...]
    simulated: bool

    @property
    def compared(self) -> bool:
        """Whether two choices were measured at any one size."""
        return any(band.rivals for band in self.bands)


@dataclass(frozen=True)
class _Speed:
    """One choice at one size: a median with an interval, where samples are enough for one."""

    seconds: float
    interval: Interval | None
    channels_used: int
    ran: tuple[str, str]


Value = TypeVar("Value")
_Speeds = Mapping[int, Mapping[Choice, _Speed]]


def advise(timings: Iterable[Timing], rules: Rules | None = None) -> tuple[Advice, ...]:
    """Advice for every situation in ``timings``, in their order of collective, ranks, nodes and so on."""
    rules = rules or Rules()
    return tuple(
        _advice(situation, members, _speeds(members, rules), rules)
        for situation, members in _situations(timings)
    )


def _situations(timings: Iterable[Timing]) -> list[tuple[Situation, list[Timing]]]:
    found: dict[Situation, list[Timing]] = defaultdict(list)
    for timing in timings:
        found[timing.situation].append(timing)
    return sorted(found.items())


def _advice(situation: Situation, members: Sequence[Timing], speeds: _Speeds, rules: Rules) -> Advice:
    looked = [_at_size(size, speeds[size], rules) for size in sorted(speeds)]
    return Advice(
        situation,
        _bands(looked, speeds, rules),
        tuple(sorted({flag for one in members for flag in one.flags})),
        any(one.simulated for one in members),
    )


def _speeds(members: Sequence[Timing], rules: Rules) -> dict[int, dict[Choice, _Speed]]:
    grouped: dict[int, dict[Choice, list[Timing]]] = defaultdict(lambda: defaultdict(list))
    for one in members:
        grouped[one.size_bytes][one.choice].append(one)
    found = {}
    for size, choices in grouped.items():
        each = 1 - (1 - rules.confidence) / len(choices)
        found[size] = {choice: _speed_of(timings, each) for choice, timings in choices.items()}
    return found


def _speed_of(timings: Sequence[Timing], confidence: float) -> _Speed:
    """The same choice measured several times (in several runs): their rounds count as those of one."""
    channels = _common((one.channels_used for one in timings), 0)
    ran = _common((one.ran for one in timings), ("", ""))
    if not all(one.samples_seconds for one in timings):
        return _Speed(float(median(one.median_seconds for one in timings)), None, channels, ran)
    samples = [sample for one in timings for sample in one.samples_seconds]
    rounds = [n for one in timings for n in (one.round_samples or (len(one.samples_seconds),))]
    interval = rounds_interval(samples, rounds, confidence)
    kept = interval if interval.confidence >= confidence else None
    seconds = timings[0].median_seconds if len(timings) == 1 else interval.median
    # The run's own median may be that of the rounds; the interval must hold it.
    if kept is not None and not kept.low <= seconds <= kept.high:
        seconds = kept.median
    return _Speed(seconds, kept, channels, ran)


def _common(values: Iterable[Value], otherwise: Value) -> Value:
    """The one value that all are, ``otherwise`` where they differ."""
    found = set(values)
    return found.pop() if len(found) == 1 else otherwise


def _gain(faster: _Speed, slower: _Speed) -> Gain:
    """Of ``faster`` over ``slower``; negative where the names deceive."""
    central = slower.seconds / faster.seconds - 1
    if faster.interval is None or slower.interval is None or faster.interval.low <= 0:
        return Gain(central)
    low = slower.interval.low / faster.interval.high - 1
    return Gain(central, low, slower.interval.high / faster.interval.low - 1)


def _worth(gain: Gain, rules: Rules) -> str:
    """Empty where the gain is to be told, else why not."""
    if gain.low is None:
        if gain.median < rules.minimum_printed_gain:
            return f"no intervals, and less than {rules.minimum_printed_gain:.0%}"
        return ""
    if gain.median < rules.minimum_gain:
        return f"less than {rules.minimum_gain:.0%}"
    return "" if gain.certain else "not told apart from noise"


def _at_size(size: int, speeds: Mapping[Choice, _Speed], rules: Rules) -> AtSize:
    order = sorted(speeds, key=lambda choice: (speeds[choice].seconds, not choice.is_default, choice))
    best = order[0]
    if len(order) == 1:
        return AtSize(size, best, None, None, None, "nothing else was measured")
    defaults = [choice for choice in order if choice.is_default]
    rival = defaults[0] if defaults and defaults[0] != best else order[1]
    gain = _gain(speeds[best], speeds[rival])
    if best.is_default:
        return AtSize(size, best, rival, gain, None, "the default is the fastest")
    why = _worth(gain, rules)
    if why:
        return AtSize(size, best, rival, gain, None, f"{best.label} leads {rival.label}: {why}")
    return AtSize(size, best, rival, gain, best, "")


def _bands(looked: Sequence[AtSize], speeds: _Speeds, rules: Rules) -> tuple[Band, ...]:
    answers = _steadied(looked, speeds, rules)
    bands: list[Band] = []
    start = 0
    for index in range(1, len(looked) + 1):
        if index == len(looked) or answers[index] != answers[start]:
            bands.append(_band(looked[start:index], answers[start], speeds))
            start = index
    return tuple(bands)


def _steadied(looked: Sequence[AtSize], speeds: _Speeds, rules: Rules) -> list[Choice | None]:
    """The answer at each size after hysteresis: a choice stays until another is certainly better.

    It stays only between sizes at which it was advised by itself: nothing trails behind the last of them.
    """
    answers = [one.choice for one in looked]
    held: Choice | None = None
    since = 0  # index of the last size that advised what is held
    for index, one in enumerate(looked):
        if held is not None and one.choice == held:
            answers[since + 1 : index] = [held] * (index - since - 1)
            since = index
            continue
        if held is not None and _holds(held, one, speeds[one.size_bytes], rules):
            continue
        held, since = one.choice, index
    return answers


def _holds(held: Choice, one: AtSize, speeds: Mapping[Choice, _Speed], rules: Rules) -> bool:
    """Whether ``held`` may stay at this size: measured there, and not told apart from the best as slower."""
    return held in speeds and not _is_slower(speeds[held], speeds[one.best], rules)


def _is_slower(one: _Speed, rival: _Speed, rules: Rules) -> bool:
    """Whether ``one`` is told apart from ``rival`` as slower."""
    lost = _gain(rival, one)
    return lost.median >= rules.minimum_gain if lost.low is None else lost.certain


def _band(looked: Sequence[AtSize], choice: Choice | None, speeds: _Speeds) -> Band:
    at_sizes = [speeds[one.size_bytes][choice] for one in looked] if choice is not None else []
    own = [one for one in looked if choice is not None and one.choice == choice and one.gain is not None]
    gains = sorted((one.gain for one in own if one.gain is not None), key=lambda gain: gain.median)
    reasons = list(dict.fromkeys(one.why for one in looked if one.why)) if choice is None else []
    sizes = tuple(one.size_bytes for one in looked)
    return Band(
        low_bytes=sizes[0],
        high_bytes=sizes[-1],
        sizes_bytes=sizes,
        choice=choice,
        rivals=tuple(dict.fromkeys(one.rival for one in (own or looked) if one.rival is not None)),
        smallest_gain=gains[0] if gains else None,
        largest_gain=gains[-1] if gains else None,
        bridged_bytes=tuple(one.size_bytes for one in looked if choice is not None and one.choice != choice),
        why="; ".join(reasons[:2]) + ("; ..." if len(reasons) > 2 else ""),
        without_interval=any(one.gain is not None and one.gain.low is None for one in looked),
        channels=choice.channels or _common((one.channels_used for one in at_sizes), 0) if choice else 0,
        ran=_common((one.ran for one in at_sizes), ("", "")),
    )


def everywhere(timings: Iterable[Timing], rules: Rules | None = None) -> dict[str, Choice]:
    """Collective -> the one choice that may be set for all sizes and situations that were measured.

    That is a choice that is advised somewhere and nowhere told apart from the default (from the best, where
    no default was measured) as slower; of several the one that is advised at most sizes. A collective of
    which no choice passes is absent.
    """
    rules = rules or Rules()
    counted: dict[str, dict[Choice, int]] = defaultdict(lambda: defaultdict(int))
    measured: dict[str, list[Mapping[Choice, _Speed]]] = defaultdict(list)
    for situation, members in _situations(timings):
        speeds = _speeds(members, rules)
        measured[situation.collective] += speeds.values()
        for band in _advice(situation, members, speeds, rules).bands:
            if band.choice is not None:
                counted[situation.collective][band.choice] += len(band.sizes_bytes)
    found = {}
    for collective, sizes in counted.items():
        fit = [
            one for one in sorted(sizes) if all(_not_slower(one, at, rules) for at in measured[collective])
        ]
        if fit:
            found[collective] = max(fit, key=lambda choice: sizes[choice])
    return found


def _not_slower(choice: Choice, speeds: Mapping[Choice, _Speed], rules: Rules) -> bool:
    """Whether ``choice`` was measured at this size and is not told apart from the default as slower."""
    rivals = [other for other in speeds if other.is_default] or list(speeds)
    rival = min(rivals, key=lambda other: speeds[other].seconds)
    return choice in speeds and not _is_slower(speeds[choice], speeds[rival], rules)
