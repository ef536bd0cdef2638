"""The rows of runs as timings that may race: what was asked for, in which situation, how long it took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ccbench.cases import AXIS, SETTINGS, WORK, Status
from ccbench.errors import UsageError
from ccbench.machine.flags import Flag
from ccbench.results import Manifest, Point, Run
from ccbench.results.manifest import LONGEST_NAME
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
