"""The small print under a figure or table: where the figures come from, what is doubtful, what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from ccbench.analysis.health.ranks import UNNAMED, flagged_devices
from ccbench.cases import Status
from ccbench.report.points import (
    EMULATION,
    LEFT_OUT,
    SIMULATED,
    imported_from,
    is_loopback,
    provenance,
    series_key,
    series_names,
)
from ccbench.results import Point
from ccbench.units import format_size, percent, plural

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
    if is_loopback(points):
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
