"""Points of runs as a report names them, and the small print: where they come from, what is doubtful."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ccbench.analysis.findings import EMULATION, LEFT_OUT, SIMULATED, provenance
from ccbench.analysis.slow_ranks import UNNAMED, flagged_devices
from ccbench.cases import NO_ROOT, SETTINGS, Status, setting_words
from ccbench.machine.flags import Flag
from ccbench.results import Point, Run
from ccbench.units import format_size, percent, plural


def points_of(run: Run, *, name: str = "", baseline: bool = False) -> tuple[Point, ...]:
    """Every case of ``run``, in the run's order. ``name`` tells runs apart where there are several.

    Imported cases that would else be one line, though they come from different tables, get the name of their
    source added.
    """
    labels = table_labels(run.points)
    if not name and not baseline and not any(labels):
        return run.points
    return tuple(
        replace(point, run=" ".join(part for part in (name, label) if part), baseline=baseline)
        for point, label in zip(run.points, labels, strict=True)
    )


def labelled(points: Iterable[Point]) -> str:
    """``provenance`` and a space, to stand before a title; or nothing."""
    label = provenance(points)
    return f"{label} " if label else ""


def meaning_of(label: str) -> str:
    """What times under a label of ``provenance`` are, for the small print."""
    if label == EMULATION:
        return "GPU kernels ran on a CPU; times say nothing about any device"
    return "times come from a model" + (" or from a CPU in a GPU's place" if EMULATION in label else "")


def imported_from(points: Iterable[Point]) -> str:
    """``imported from FILE (nccl-tests 2.13.8)``, the number of files where there are several; or nothing."""
    sources = list(
        dict.fromkeys((point.source, point.tool_and_version) for point in points if point.imported)
    )
    if not sources:
        return ""
    tools = list(dict.fromkeys(tool for _, tool in sources if tool))
    if len(tools) > 1:  # the versions are in the CSV file
        tools = list(dict.fromkeys(tool.split()[0] for tool in tools))
    files = list(dict.fromkeys(source for source, _ in sources))
    where = files[0] if len(files) == 1 else plural(len(files), "source")
    return f"imported from {where}" + (f" ({', '.join(tools)})" if tools else "")


_SETTINGS = tuple(axis.name for axis in SETTINGS)
SERIES_FIELDS = ("run", "backend", "algorithm", "protocol", "mode", "root", "in_place", *_SETTINGS)
"""What may tell one line of a figure from another; the name shows those that differ."""


SeriesKey = tuple[object, ...]


def settings_of(point: Point) -> tuple[object, ...]:
    """The settings of a case, in the order of SETTINGS."""
    return tuple(getattr(point, axis.name) for axis in SETTINGS)


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


Table = tuple[str, int]


def table_labels(points: Sequence[Point]) -> list[str]:
    """One label for each point: empty for measured ones, and for imported ones that cannot be mixed up."""
    lines: dict[tuple[object, ...], dict[Table, None]] = defaultdict(dict)
    for point in points:
        if point.imported:
            lines[point.curve][point.source, point.source_table] = None
    mixed = {table for tables in lines.values() if len(tables) > 1 for table in tables}
    names = _names(sorted(mixed))
    return [_label(point, names.get((point.source, point.source_table), "")) for point in points]


def _names(tables: Sequence[Table]) -> dict[Table, str]:
    """Short names, numbered where they are the same."""
    found: dict[str, list[Table]] = defaultdict(list)
    for table in tables:
        found[short_source(table[0])].append(table)
    return {
        table: name if len(members) == 1 else f"{name} #{place}"
        for name, members in found.items()
        for place, table in enumerate(members, start=1)
    }


def short_source(source: str) -> str:
    """``owner/repository`` of a repository and path, the name without its suffix of a file."""
    repository, separator, _ = source.partition(":")
    if separator and repository.count("/") == 1 and not any(one.isspace() for one in repository):
        return repository
    return PurePosixPath(source).stem or source


def _label(point: Point, name: str) -> str:
    shown = point.network.partition(" (")[0] if name and point.nodes != 1 else ""
    return " ".join(part for part in (name, shown) if part)


MOST_GROUPS = 6
"""Groups of unmeasured cases or flags a footnote spells out; the rest is counted."""


def footnote(points: Sequence[Point]) -> tuple[str, ...]:
    """Lines of small print for a figure drawn from ``points``."""
    lines = [_source(points), *_labels(points)]
    flagged = flag_counts(points)
    if flagged:
        named = [f"{flag} ({plural(count, 'point')})" for flag, count in flagged[:MOST_GROUPS]]
        lines.append("Flagged as doubtful (hollow in figures): " + _and_more(named, len(flagged)))
    devices = flagged_devices((point.flags, point.device_readings) for point in points)
    if any(device != UNNAMED for _, device, _ in devices):
        named = [
            f"{device} {flag} ({plural(count, 'point')})" for flag, device, count in devices[:MOST_GROUPS]
        ]
        lines.append("Devices: " + _and_more(named, len(devices)))
    missing = missing_groups(points)
    if missing:
        lines.append("No result: " + _and_more(missing[:MOST_GROUPS], len(missing)))
    return tuple(lines)


def _and_more(shown: Sequence[str], total: int) -> str:
    more = total - len(shown)
    return "; ".join(shown) + (f"; and {more} more, listed in the table" if more > 0 else "")


def _source(points: Sequence[Point]) -> str:
    parts = []
    hosts = sorted({point.host for point in points if point.host})
    machines = sorted({point.machine for point in points if point.machine})
    if hosts:
        parts.append(f"host {', '.join(hosts)}")
    if machines:
        parts.append(f"machine {', '.join(machines)}")
    parts.append(", ".join(sorted({_backend(point) for point in points})) or "no backend")
    parts.append(imported_from(points))
    parts.append(_samples([point for point in points if point.status == Status.OK]))
    parts.append(_interval(points))
    return " · ".join(part for part in parts if part)


def _samples(points: Sequence[Point]) -> str:
    """How often a point was measured: ``60 to 90 samples in 6 rounds a point``."""
    printed = sorted({point.time_statistic for point in points if not len(point.samples_seconds)})
    points = [point for point in points if len(point.samples_seconds)]
    if not points:
        return f"times as printed ({', '.join(printed)}), without samples or interval" if printed else ""
    text = _span([len(point.samples_seconds) for point in points], "sample")
    rounds = [len(point.round_samples) for point in points]
    if max(rounds) > 1:
        text += f" in {_span(rounds, 'round')}"
    return f"{text} a point"


def _span(counts: Sequence[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low} to {plural(high, noun)}" if low < high else plural(low, noun)


def _backend(point: Point) -> str:
    return f"{point.backend} ({point.backend_version})" if point.backend_version else point.backend


def _interval(points: Sequence[Point]) -> str:
    """What the interval is worth; with few samples less than was asked for, and then that is said."""
    worths = [point.interval_confidence for point in points if point.interval_confidence is not None]
    if not worths or max(worths) <= 0:
        return ""
    low, high = min(worths), max(worths)
    worth = percent(low) if percent(low) == percent(high) else f"{percent(low)} to {percent(high)}"
    return f"medians with their {worth} interval (order statistics)"


def _labels(points: Sequence[Point]) -> list[str]:
    lines = []
    label = provenance(points)
    emulated = sorted({point.backend for point in points if point.emulated})
    modelled = sorted({point.backend for point in points if point.simulated and not point.emulated})
    if label == SIMULATED:
        lines.append(f"{SIMULATED}: times come from a model, nothing was measured")
    elif modelled:
        lines.append(f"{label}: times of {', '.join(modelled)} come from a model, they were not measured")
    if emulated:
        lines.append(
            f"{EMULATION}: {', '.join(emulated)} ran GPU kernels on a CPU: results are real, "
            f"times are {LEFT_OUT}"
        )
    if any(Flag.LOOPBACK in point.flags for point in points):
        lines.append("Loopback: ranks shared a device or a host's loopback; no link was measured")
    return lines


def flag_counts(points: Iterable[Point]) -> list[tuple[str, int]]:
    """Flags of points that have a speed, most frequent first."""
    counts = Counter(flag for point in points if point.status == Status.OK for flag in point.flags)
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def missing_groups(points: Sequence[Point]) -> list[str]:
    """Cases without a speed, one text for every (series, status): ``ring 1 MiB, 2 MiB timed_out (why)``.

    Wrong results come first: they are the worst a run can find.
    """
    names = series_names(points) if points else {}
    groups: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        if point.status != Status.OK:
            groups[point.status.value, names[series_key(point)]].append(point)
    order = {status.value: place for place, status in enumerate(Status)}
    texts = []
    for (status, name), members in sorted(groups.items(), key=lambda item: (order[item[0][0]], item[0][1])):
        details = {member.detail for member in members if member.detail}
        reason = f" ({next(iter(details))})" if len(details) == 1 else ""
        texts.append(f"{name} {_sizes(members)} {status}{reason}")
    return texts


def _sizes(points: Sequence[Point]) -> str:
    sizes = sorted({point.size_bytes for point in points})
    if len(sizes) <= 3:
        return ", ".join(format_size(size) for size in sizes)
    return f"{format_size(sizes[0])} to {format_size(sizes[-1])} ({len(sizes)} sizes)"
