"""The rows of a run as typed values, and where they come from in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ccbench.cases import ALL_GROUPS, MORE_VISITS, NO_ROOT, OVERLAP, Status, setting_words
from ccbench.collectives import COLLECTIVES
from ccbench.errors import UsageError
from ccbench.groups import parse_groups
from ccbench.machine.flags import Flag
from ccbench.report.settings import SETTING_FIELDS
from ccbench.report.sources import table_labels
from ccbench.report.text import plain, plural
from ccbench.runs import Run
from ccbench.runs.rows import is_null, usual_waits
from ccbench.units import format_change, format_size

BYTES_PER_GIGABYTE = 1e9

IMPOSSIBLE = 0.98
"""A time below this share of the bound is faster than rounding explains: bound or measurement are wrong."""

BEATEN = 0.05
"""A case beats its bound when more than this share of its samples does: fewer may be the clock's doing."""

LONGEST_GROUPS = 100_000
"""Characters of lists of groups, which must stay whole to be read; tables cut them."""

LONGEST_SOURCE = 200
"""Characters of a source's name that are shown: a repository and a path may be long."""

SIMULATED = "SIMULATED"
EMULATION = Flag.EMULATION.upper()

LEFT_OUT = (
    "in no ranking, ratio, peak, crossover or prediction: times of an emulation say nothing about any device"
)
"""Where emulated times are, and why."""


@dataclass(frozen=True)
class Point:
    """One case of a run, as the report sees it. Text is plain; times are seconds per launch.

    beaten_share: share of the samples that are faster than the bound allows; None where there is no bound.
    rank_waiting: share of a launch each rank waited for others, in rank order; empty where not known.
    complete: False while visits are planned that the run did not come to.
    machine: as the run's manifest names it, else the devices as an imported output does.
    source, tool: of an imported case, else empty. time_statistic: what median_seconds is.
    pair to misalignment_bytes: as ``Case`` has them; busbw is that of a pair or a group.
    protocol_used, channels_used, library_estimate_seconds: what the library says, empty, 0, None where it
    does not. parts: name and median of all that ran at the same time, () where it was not timed apart.
    overlap: share of the shorter of computation and collective that ran beside the longer, and its interval.
    device_readings: text of the devices' state, as ``ccbench.telemetry`` writes it.
    network: between nodes, as the run's options or a published row name it; empty where neither does.
    Figures of speed are None unless the case is OK; bound and prediction unless one was made.
    """

    run: str
    baseline: bool
    backend: str
    backend_version: str
    collective: str
    algorithm: str
    algorithm_used: str
    protocol: str
    dtype: str
    op: str
    size_bytes: int
    count: int
    ranks: int
    nodes: int
    root: int
    in_place: bool
    mode: str
    simulated: bool
    status: Status
    detail: str
    samples: int
    visits: int
    complete: bool
    median_seconds: float | None
    low_seconds: float | None
    high_seconds: float | None
    confidence: float | None
    algbw: float | None
    busbw: float | None
    bound_seconds: float | None
    predicted_seconds: float | None
    bottleneck: str
    wrong_elements: int | None
    beaten_share: float | None
    rank_medians: tuple[float, ...]
    rank_waiting: tuple[float, ...]
    slowest_rank: int | None
    flags: tuple[str, ...]
    host: str
    machine: str
    source: str = ""
    tool: str = ""
    time_statistic: str = "median"
    pair: str = ""
    groups: str = ""
    alone: int = ALL_GROUPS
    beside: str = ""
    traffic: str = ""
    computing: str = ""
    overlap: tuple[float, float, float] | None = None
    channels: int = 0
    transport: str = "default"
    registration: str = "none"
    aggregation: int = 1
    misalignment_bytes: int = 0
    protocol_used: str = ""
    channels_used: int = 0
    library_estimate_seconds: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    device_readings: str = ""
    network: str = ""

    @property
    def group_ranks(self) -> int:
        """Ranks that communicate with each other: two of a pair, those of a group, or all."""
        if self.pair:
            return 2
        try:
            return len(parse_groups(self.groups, self.ranks)[0]) if self.groups else self.ranks
        except UsageError:  # of a stored row that no version of ccbench wrote
            return self.ranks

    @property
    def setting(self) -> str:
        """Words for what differs from a plain case, nothing for one."""
        return ", ".join(setting_words({name: getattr(self, name) for name in SETTING_FIELDS}))

    @property
    def slowest_part(self) -> str:
        """Name of the slowest of what ran at the same time, and how much longer it took than the fastest."""
        if len(self.parts) < 2 or self.mode == OVERLAP:
            return ""
        fastest, slowest = (choose(self.parts, key=lambda part: part[1]) for choose in (min, max))
        if slowest[1] <= fastest[1] or not fastest[1]:
            return "none"
        return f"{slowest[0]} {format_change(slowest[1] / fastest[1] - 1)}"

    @property
    def imported(self) -> bool:
        """Whether another tool measured the case."""
        return bool(self.source)

    @property
    def emulated(self) -> bool:
        """Whether the device was emulated: the result is real, the time says nothing about any device."""
        return Flag.EMULATION in self.flags

    @property
    def trusted(self) -> bool:
        """Whether nothing was flagged while the case ran."""
        return not self.flags

    @property
    def bound_share(self) -> float | None:
        """How much of the speed of light was reached: bound over measured time; one rank has no bound."""
        if not self.median_seconds or self.bound_seconds is None or self.group_ranks < 2 or self.emulated:
            return None
        return self.bound_seconds / self.median_seconds

    @property
    def beats_bound(self) -> bool:
        """Whether more than BEATEN of the samples, or the printed time, are faster than the bound allows."""
        if self.beaten_share is None or self.bound_share is None:
            return (self.bound_share or 0.0) * IMPOSSIBLE > 1.0
        return self.beaten_share > BEATEN

    @property
    def prediction_error(self) -> float | None:
        """Predicted over measured time, minus one: negative where the machine was slower than predicted."""
        if not self.median_seconds or self.predicted_seconds is None or self.emulated:
            return None
        return self.predicted_seconds / self.median_seconds - 1

    def busbw_at(self, seconds: float | None) -> float | None:
        """Bus bandwidth in GB/s this case would have if it took ``seconds``; None where no bus is used."""
        row = COLLECTIVES.get(self.collective)
        if not seconds or not self.size_bytes or self.group_ranks < 2 or row is None or not row.moves_data:
            return None
        return self.size_bytes / seconds / BYTES_PER_GIGABYTE * row.bus_factor(self.group_ranks)

    @property
    def label(self) -> str:
        """One line that tells this case from the others of its run."""
        words = [self.backend, self.collective, self.algorithm, self.dtype, format_size(self.size_bytes)]
        words.append(f"on {plural(self.ranks, 'rank')}")
        if self.in_place:
            words.append("in place")
        return ", ".join(part for part in (" ".join(words), self.setting) if part)


def points_of(run: Run, *, name: str = "", baseline: bool = False) -> tuple[Point, ...]:
    """Every case of ``run``, in the run's order. ``name`` tells runs apart where there are several.

    Imported cases that would else be one line, though they come from different tables, get the name of their
    source added.
    """
    host, machine = host_name(run.manifest), machine_name(run.manifest)
    records = run.cases.to_dict("records")
    labels = table_labels(records)
    return tuple(
        replace(
            _point(record, " ".join(part for part in (name, label) if part), baseline, host, machine),
            network=_network(record.get("network", run.network)),
        )
        for record, label in zip(records, labels, strict=True)
    )


def _network(said: str) -> str:
    """A network's words; empty for those that say that there is none."""
    return "" if said.startswith("none") else plain(said)


def _point(row: Mapping[Any, Any], run: str, baseline: bool, host: str, machine: str) -> Point:
    flags = tuple(plain(flag) for flag in row["flags"])
    if row["oversubscribed"] and not flags:
        flags = (Flag.OVERSUBSCRIBED,)
    # Whatever an older run stored: a bound or a price says nothing about an emulation.
    priced = Flag.EMULATION not in flags
    return Point(
        run=run,
        baseline=baseline,
        flags=flags,
        host=host,
        machine=machine or plain(row["device_model"]),
        bound_seconds=_number(row["bound_seconds"]) if priced else None,
        predicted_seconds=_number(row["predicted_seconds"]) if priced else None,
        beaten_share=_beaten(row, _number(row["bound_seconds"])) if priced else None,
        **_asked(row),
        **_came_back(row),
        **_seen_by_ranks(row),
    )


def _asked(row: Mapping[Any, Any]) -> dict[str, Any]:
    """What was asked of the case, and where the row comes from."""
    texts = ("backend", "backend_version", "collective", "algorithm", "algorithm_used", "protocol", "dtype",
             "op", "mode", "time_statistic", "pair", "beside", "traffic", "computing", "transport",
             "registration", "protocol_used")  # fmt: skip
    numbers = (
        "size_bytes",
        "count",
        "ranks",
        "nodes",
        "root",
        "alone",
        "channels",
        "aggregation",
        "misalignment_bytes",
    )
    return {
        **{name: plain(row[name]) for name in texts},
        **{name: int(row[name]) for name in numbers},
        "in_place": bool(row["in_place"]),
        "groups": plain(row["groups"], LONGEST_GROUPS),
        "source": plain(row["source"], LONGEST_SOURCE),
        "tool": " ".join(part for part in (plain(row["tool"]), plain(row["tool_version"])) if part),
    }


def _came_back(row: Mapping[Any, Any]) -> dict[str, Any]:
    """How the case ended and how fast it was."""
    return {
        "simulated": bool(row["simulated"]),
        "status": Status(row["status"]),
        "detail": plain(row["detail"], 300),
        "samples": 0 if is_null(row["samples_seconds"]) else len(row["samples_seconds"]),
        "visits": 0 if is_null(row["visit_samples"]) else len(row["visit_samples"]),
        "complete": row["stop_reason"] != MORE_VISITS,
        "median_seconds": _number(row["median_seconds"]),
        "low_seconds": _number(row["low_seconds"]),
        "high_seconds": _number(row["high_seconds"]),
        "confidence": _number(row["interval_confidence"]),
        "algbw": _number(row["algbw_GB_s"]),
        "busbw": _number(row["busbw_GB_s"]),
        "overlap": _overlap(row),
        "bottleneck": "" if is_null(row["bottleneck"]) else plain(row["bottleneck"], 200),
        "channels_used": 0 if is_null(row["channels_used"]) else int(row["channels_used"]),
        "library_estimate_seconds": _number(row["library_estimate_seconds"]),
        "wrong_elements": None if is_null(row["wrong_elements"]) else int(row["wrong_elements"]),
    }


def _overlap(row: Mapping[Any, Any]) -> tuple[float, float, float] | None:
    found = [_number(row[name]) for name in ("overlap_efficiency", "overlap_low", "overlap_high")]
    known = [one for one in found if one is not None]
    return (known[0], known[1], known[2]) if len(known) == 3 else None


def _seen_by_ranks(row: Mapping[Any, Any]) -> dict[str, Any]:
    medians = () if is_null(row["rank_median_seconds"]) else row["rank_median_seconds"]
    return {
        "rank_medians": tuple(float(one) for one in medians),
        "parts": _parts(row),
        "device_readings": "" if is_null(row["device_readings"]) else str(row["device_readings"]),
        "rank_waiting": _waiting(row["rank_waiting_seconds"], _number(row["median_seconds"])),
        "slowest_rank": None if is_null(row["slowest_rank"]) else int(row["slowest_rank"]),
    }


def _parts(row: Mapping[Any, Any]) -> tuple[tuple[str, float], ...]:
    names, medians = row["part_names"], row["part_median_seconds"]
    if is_null(names) or is_null(medians):
        return ()
    return tuple((plain(name), float(seconds)) for name, seconds in zip(names, medians, strict=False))


def _beaten(row: Mapping[Any, Any], bound_seconds: float | None) -> float | None:
    samples: Sequence[float] = () if is_null(row["samples_seconds"]) else row["samples_seconds"]
    if bound_seconds is None or not len(samples):
        return None
    return sum(one < IMPOSSIBLE * bound_seconds for one in samples) / len(samples)


def _waiting(waiting: Any, launch_seconds: float | None) -> tuple[float, ...]:
    if not launch_seconds:
        return ()
    return tuple(seconds / launch_seconds for seconds in usual_waits(waiting))


def _number(value: Any) -> float | None:
    return None if is_null(value) else float(value)


def host_name(manifest: Mapping[str, Any]) -> str:
    """The host of a run's environment, empty when run.json does not tell."""
    environment = manifest.get("environment")
    host = environment.get("host") if isinstance(environment, Mapping) else manifest.get("host")
    return _name_in(host)


def machine_name(manifest: Mapping[str, Any]) -> str:
    """The machine predictions were priced on, empty when run.json does not tell."""
    return _name_in(manifest.get("machine"))


def suite_name(run: Run) -> str:
    """The suite's name, from the manifest or else the cases."""
    name = _name_in(run.manifest.get("suite"))
    if not name and len(run.cases):
        name = plain(run.cases["suite"].iloc[0])
    return name


def _name_in(value: object) -> str:
    """``value`` itself when it is text, or the name inside a mapping."""
    if isinstance(value, Mapping):
        value = value.get("name", "")
    return plain(value) if isinstance(value, str) else ""


def provenance(points: Iterable[Point]) -> str:
    """``SIMULATED`` or ``EMULATION`` when every point is, ``PARTLY ...`` when some are, or nothing.

    Points that were not even started do not count where there are others.
    """
    points = list(points)
    begun = [point for point in points if point.status is not Status.UNSUPPORTED]
    kinds = {_kind(point) for point in begun or points}
    named = " AND ".join(sorted(kinds - {""}, reverse=True))
    return f"PARTLY {named}" if "" in kinds and named else named


def meaning_of(label: str) -> str:
    """What times under a label of ``provenance`` are, for the small print."""
    if label == EMULATION:
        return "GPU kernels ran on a CPU; times say nothing about any device"
    return "times come from a model" + (" or from a CPU in a GPU's place" if EMULATION in label else "")


def _kind(point: Point) -> str:
    if point.emulated:
        return EMULATION
    return SIMULATED if point.simulated else ""


def imported_from(points: Iterable[Point]) -> str:
    """``imported from FILE (nccl-tests 2.13.8)``, the number of files where there are several; or nothing."""
    sources = list(dict.fromkeys((point.source, point.tool) for point in points if point.imported))
    if not sources:
        return ""
    tools = list(dict.fromkeys(tool for _, tool in sources if tool))
    if len(tools) > 1:  # the versions are in the CSV file
        tools = list(dict.fromkeys(tool.split()[0] for tool in tools))
    files = list(dict.fromkeys(source for source, _ in sources))
    where = files[0] if len(files) == 1 else plural(len(files), "source")
    return f"imported from {where}" + (f" ({', '.join(tools)})" if tools else "")


def is_loopback(points: Iterable[Point]) -> bool:
    """Whether a flag says that ranks talked to themselves (several ranks on one device or over loopback)."""
    return any(Flag.LOOPBACK in point.flags for point in points)


SERIES_FIELDS = ("run", "backend", "algorithm", "protocol", "mode", "root", "in_place", *SETTING_FIELDS)
"""What may tell one line of a figure from another; the name shows those that differ."""


SeriesKey = tuple[object, ...]


def settings_of(point: Point) -> tuple[object, ...]:
    """The settings of a case, in the order of SETTING_FIELDS."""
    return tuple(getattr(point, name) for name in SETTING_FIELDS)


def series_key(point: Point) -> SeriesKey:
    """What all points of one line have in common."""
    return tuple(getattr(point, name) for name in SERIES_FIELDS)


def series_names(points: Sequence[Point]) -> dict[SeriesKey, str]:
    """Series key -> the shortest words that tell it from the others among ``points``."""
    keys = sorted({series_key(point) for point in points}, key=str)
    varying = {name for index, name in enumerate(SERIES_FIELDS) if len({key[index] for key in keys}) > 1}
    return {key: _series_name(dict(zip(SERIES_FIELDS, key, strict=True)), varying) for key in keys}


def _series_name(fields: Mapping[str, Any], varying: set[str]) -> str:
    words = [str(fields["run"])] if "run" in varying and fields["run"] else []
    if "backend" in varying:
        words.append(str(fields["backend"]))
    words.append(str(fields["algorithm"]))
    if "protocol" in varying or fields["protocol"] != "default":
        words.append(str(fields["protocol"]))
    if "mode" in varying:
        words.append(str(fields["mode"]))
    if "root" in varying and fields["root"] != NO_ROOT:
        words.append(f"root {fields['root']}")
    if "in_place" in varying:
        words.append("in place" if fields["in_place"] else "out of place")
    words += setting_words(fields, varying)
    return " ".join(words)
