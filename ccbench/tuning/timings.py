"""The rows of runs as timings that may race: what was asked for, in which situation, how long it took."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ccbench.cases import ALL_GROUPS
from ccbench.errors import UsageError
from ccbench.machine.flags import Flag
from ccbench.runs import Run
from ccbench.units import plural, shown

DEFAULT = "default"

SIZE_NOT_STATED = -1
"""Size of a timing whose source prints a bandwidth and not the size it was measured at."""


@dataclass(frozen=True, order=True)
class Choice:
    """What somebody can ask for. variant: of a library started differently, in the words of a source."""

    backend: str
    algorithm: str = DEFAULT
    protocol: str = DEFAULT
    channels: int = 0
    transport: str = DEFAULT
    registration: str = "none"
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
        words += [f"transport {self.transport}"] if self.transport != DEFAULT else []
        words += [f"registration {self.registration}"] if self.registration != "none" else []
        words += [self.variant] if self.variant else []
        return ", ".join(words)


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

    samples_seconds, visit_samples: as a run keeps them; empty where a source prints an average only.
    ran: algorithm and protocol that the library said it ran, "" where it did not; channels_used: 0 likewise.
    simulated: computed, not measured.
    """

    situation: Situation
    choice: Choice
    size_bytes: int
    median_seconds: float
    samples_seconds: tuple[float, ...] = ()
    visit_samples: tuple[int, ...] = ()
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
                f"--forced {shown(text)}: not SOURCE=ALGORITHM[/PROTOCOL]; "
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
    found: list[Timing] = []
    for run, place in zip(runs, _places(runs), strict=True):
        variants = _variants(run.manifest)
        for row in run.cases.to_dict("records"):
            timing = _timing(row, place, variants, forced)
            if timing is not None:
                found.append(timing)
    return tuple(found)


def _places(runs: Sequence[Run]) -> list[str]:
    """The machine of every run; the processor is said where one name stands for several, as measured-2-cores
    does."""
    named = [(_machine(run.manifest), _processor(run.manifest)) for run in runs]
    known = {one for one in named if one[1]}
    several = {name for name in dict(named) if sum(other == name for other, _ in known) > 1}
    return [", ".join(filter(None, (name, model))) if name in several else name for name, model in named]


def _machine(manifest: Mapping[str, Any]) -> str:
    machine = manifest.get("machine")
    return str(machine.get("name") or "") if isinstance(machine, Mapping) else ""


def _processor(manifest: Mapping[str, Any]) -> str:
    environment = manifest.get("environment")
    processor = environment.get("processor") if isinstance(environment, Mapping) else None
    return str(processor.get("model") or "") if isinstance(processor, Mapping) else ""


def _timing(
    row: Mapping[Any, Any],
    place: str,
    variants: Mapping[tuple[str, int], str],
    forced: Forced | None,
) -> Timing | None:
    flags = () if _absent(row["flags"]) else tuple(str(flag) for flag in row["flags"])
    speed = _speed(row)
    if speed is None or Flag.EMULATION in flags or int(row["ranks"]) < 2:
        return None
    size_bytes, seconds = speed
    samples = () if _absent(row["samples_seconds"]) else tuple(map(float, row["samples_seconds"]))
    visits = () if _absent(row["visit_samples"]) else tuple(map(int, row["visit_samples"]))
    return Timing(
        situation=_situation(row, place),
        choice=_choice(row, variants, forced),
        size_bytes=size_bytes,
        median_seconds=seconds,
        samples_seconds=samples,
        visit_samples=visits,
        flags=flags,
        simulated=bool(row["simulated"]),
        channels_used=0 if _absent(row["channels_used"]) else int(row["channels_used"]),
        ran=(str(row["algorithm_used"]).lower(), str(row["protocol_used"]).lower()),
    )


def _speed(row: Mapping[Any, Any]) -> tuple[int, float] | None:
    """(size, seconds), or (SIZE_NOT_STATED, inverse bandwidth), or nothing."""
    median = row["median_seconds"]
    if row["status"] == "ok" and not _absent(median) and float(median) > 0:
        return int(row["size_bytes"]), float(median)
    rate = row["printed_busbw_GB_s"]
    unsized = row["status"] == "skipped" and Flag.SIZE_NOT_STATED in row["flags"]
    if unsized and not _absent(rate) and float(rate) > 0:
        return SIZE_NOT_STATED, 1e-9 / float(rate)
    return None


def _situation(row: Mapping[Any, Any], place: str) -> Situation:
    work = [str(row[name]) for name in ("pair", "groups", "beside", "traffic", "computing") if row[name]]
    work += [f"group {row['alone']} alone"] if int(row["alone"]) != ALL_GROUPS else []
    work += [f"{row['aggregation']} at once"] if int(row["aggregation"]) != 1 else []
    work += [f"{row['misalignment_bytes']} B off"] if int(row["misalignment_bytes"]) else []
    work += [f"root {row['root']}"] if int(row["root"]) > 0 else []
    return Situation(
        collective=str(row["collective"]),
        ranks=int(row["ranks"]),
        nodes=int(row["nodes"]),
        dtype=str(row["dtype"]),
        op=str(row["op"]),
        in_place=bool(row["in_place"]),
        mode=str(row["mode"]),
        place=place or str(row["device_model"]),
        work=", ".join(work),
    )


def _choice(row: Mapping[Any, Any], variants: Mapping[tuple[str, int], str], forced: Forced | None) -> Choice:
    source = str(row["source"])
    table = 0 if _absent(row["source_table"]) else int(row["source_table"])
    algorithm, protocol = str(row["algorithm"]), str(row["protocol"])
    known = forced(source) if forced is not None and source else None
    if known is not None:
        algorithm, protocol = known
    return Choice(
        backend=str(row["backend"]),
        algorithm=algorithm,
        protocol=protocol,
        channels=int(row["channels"]),
        transport=str(row["transport"]),
        registration=str(row["registration"]),
        variant=variants.get((source, table), ""),
    )


def _variants(manifest: Mapping[str, Any]) -> dict[tuple[str, int], str]:
    """(source, table from 1) -> the words with which an imported table sets itself apart, where it has
    some."""
    found: dict[tuple[str, int], str] = {}
    imported = manifest.get("imported")
    for file in imported if isinstance(imported, list) else []:
        tables = file.get("tables") if isinstance(file, Mapping) else None
        for number, table in enumerate(tables if isinstance(tables, list) else [], start=1):
            facts = table.get("facts") if isinstance(table, Mapping) else None
            variant = facts.get("variant") if isinstance(facts, Mapping) else None
            if variant:
                found[str(file.get("source", "")), number] = str(variant)[:60]
    return found


def _absent(value: Any) -> bool:
    """Whether a cell of a run's table holds nothing."""
    from ccbench.runs.rows import is_null

    return is_null(value)
