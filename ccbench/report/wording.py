"""Words of a report: names of runs and of lines, the small print, and the verdict."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from statistics import median
from typing import Any

from ccbench.analysis.bits import bit_rows, bits_sentence
from ccbench.analysis.box import box_lines
from ccbench.analysis.codes import code_of
from ccbench.analysis.findings import (
    EMULATION,
    LEFT_OUT,
    MOST_NAMED,
    SIMULATED,
    provenance,
    run_findings,
)
from ccbench.analysis.machine_verdict import BLAMES, machine_verdict
from ccbench.analysis.slow_ranks import UNNAMED, flagged_devices
from ccbench.analysis.speed_verdict import (
    UNJUDGED_FLAGS,
    SpeedVerdict,
    expected_from,
    speed_verdicts,
)
from ccbench.analysis.winner import winner_sentence
from ccbench.cases.axes import DEFAULT, NO_ROOT, setting_labels
from ccbench.cases.measurement import Status
from ccbench.collectives import COLLECTIVES
from ccbench.findings import Finding
from ccbench.flags import Flag
from ccbench.report.present import first, two_lines, wrapped
from ccbench.results import Point, Run
from ccbench.results.keys import CURVE, SETTING, Key, grouped
from ccbench.units import MANIFOLD, format_ratio, format_seconds, format_size, percent, plural

SERIES = Key(
    ("run", "backend", "algorithm", "protocol", "mode", "root", "in_place", *SETTING.columns)
)
"""Fields that may tell one line of a figure from another; its name shows those that differ."""

TABLE = Key(("source", "source_table"))
"""Of points that were imported from one table."""

DOUBTFUL = "~"
"""Before a figure whose case was flagged."""

BUS_ID = re.compile(r'"bus_id": *"([^"]+)"')
"""Of each device in the column device_readings."""

SeriesKey = tuple[object, ...]

MOST_GROUPS = 6
"""Groups of unmeasured cases or flags a footnote spells out; the rest is counted."""


MOST_VERDICTS = 8
"""Collectives whose verdict is said one by one; the others are counted."""

SMALLEST_FOR_BOUND = 64 * 1024
"""Bytes; below, the bound is the time of little more than one flag, and a share of it says nothing."""


def points_of(run: Run, *, name: str = "", baseline: bool = False) -> tuple[Point, ...]:
    """Every case of ``run``, in the run's order. ``name`` tells runs apart where there are several.

    Imported cases that would else be one line, though they come from different tables, get the name of their
    source added.
    """
    labels = table_labels(run.points)
    points = run.points
    if not name and not baseline and not any(labels):
        return points
    return tuple(
        replace(point, run=" ".join(part for part in (name, label) if part), baseline=baseline)
        for point, label in zip(points, labels, strict=True)
    )


def table_labels(points: Sequence[Point]) -> list[str]:
    """One label for each point: empty for measured ones, and for imported ones that cannot be mixed up."""
    tables = [
        {TABLE(point) for point in line}
        for line in grouped((point for point in points if point.imported), CURVE).values()
    ]
    mixed = sorted({table for several in tables if len(several) > 1 for table in several})
    names = {}
    for name, alike in grouped(mixed, lambda table: short_source(table[0])).items():
        # Tables of one source have the same short name and are numbered.
        for place, table in enumerate(alike, start=1):
            names[table] = name if len(alike) == 1 else f"{name} #{place}"
    labels = []
    for point in points:
        # The network is part of the label only where there is another like it to be told from.
        name = names.get(TABLE(point), "")
        network = point.network.partition(" (")[0] if name and point.nodes != 1 else ""
        labels.append(f"{name} {network}".rstrip())
    return labels


def short_source(source: str) -> str:
    """``owner/repository`` of a repository and path, the name without its suffix of a file."""
    repository = re.match(r"([^/:\s]+/[^/:\s]+):", source)
    return repository[1] if repository else PurePosixPath(source).stem or source


def labelled(points: Iterable[Point]) -> str:
    """``provenance`` and a space, to stand before a title; or nothing."""
    label = provenance(points)
    return f"{label} " if label else ""


def meaning_of(label: str) -> str:
    """Words for the small print about times under a label of ``provenance``."""
    if label == EMULATION:
        return "GPU kernels ran on a CPU; times say nothing about any device"
    return "times come from a model" + (
        " or from a CPU in a GPU's place" if EMULATION in label else ""
    )


def imported_from(points: Iterable[Point]) -> str:
    """``imported from FILE (nccl-tests 2.13.8)``, the number of files where there are several; or nothing."""
    imported = [point for point in points if point.imported]
    files = list(dict.fromkeys(point.source for point in imported))
    tools = list(dict.fromkeys(filter(None, (point.tool_and_version for point in imported))))
    if len(tools) > 1:  # the versions are in the CSV file
        tools = list(dict.fromkeys(tool.split()[0] for tool in tools))
    where = files[0] if len(files) == 1 else plural(len(files), "source")
    by = f" ({', '.join(tools)})" if tools else ""
    return f"imported from {where}{by}" if files else ""


def unusual(point: Point) -> list[str]:
    """Protocol and mode of a case, where they are not the usual ones."""
    words = ((point.protocol, "default"), (point.mode, "streaming"))
    return [word for word, usual in words if word != usual]


def series_names(points: Sequence[Point]) -> dict[SeriesKey, str]:
    """Series key -> the shortest words that tell it from the others among ``points``."""
    keys = sorted({SERIES(point) for point in points}, key=str)
    varying = {
        name
        for index, name in enumerate(SERIES.columns)
        if len({key[index] for key in keys}) > 1
    }
    names = {}
    for key in keys:
        fields: Mapping[str, Any] = dict(zip(SERIES.columns, key, strict=True))
        words = [fields["run"]] if "run" in varying and fields["run"] else []
        words += [fields["backend"]] if "backend" in varying else []
        words.append(fields["algorithm"])
        if "protocol" in varying or fields["protocol"] != "default":
            words.append(fields["protocol"])
        words += [fields["mode"]] if "mode" in varying else []
        if "root" in varying and fields["root"] != NO_ROOT:
            words.append(f"root {fields['root']}")
        if "in_place" in varying:
            words.append("in place" if fields["in_place"] else "out of place")
        names[key] = " ".join([*words, *setting_labels(fields, varying)])
    return names


def footnote(points: Sequence[Point]) -> tuple[str, ...]:
    """Lines of small print for a figure drawn from ``points``."""
    lines = [_source(points)]
    label = provenance(points)
    # First of all, that times are none of this machine.
    emulated = sorted({point.backend for point in points if point.emulated})
    modelled = sorted(
        {point.backend for point in points if point.simulated and not point.emulated}
    )
    if label == SIMULATED:
        lines.append(f"{SIMULATED}: times come from a model, nothing was measured")
    elif modelled:
        lines.append(
            f"{label}: times of {', '.join(modelled)} come from a model, they were not measured"
        )
    if emulated:
        lines.append(
            f"{EMULATION}: {', '.join(emulated)} ran GPU kernels on a CPU: results are real, "
            f"times are {LEFT_OUT}"
        )
    if any(Flag.LOOPBACK in point.flags for point in points):
        lines.append(
            "Loopback: ranks shared a device or a host's loopback; no link was measured"
        )
    return (*lines, *doubts(points))


def doubts(points: Sequence[Point]) -> list[str]:
    """Lines that say what was flagged, which devices were, and what has no result and why."""
    # Flags of points that have a speed, most frequent first.
    counts = Counter(
        flag for point in points if point.status == Status.OK for flag in point.flags
    )
    flagged = [
        f"{flag} ({plural(count, 'point')})"
        for flag, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    found = flagged_devices((point.flags, point.device_readings) for point in points)
    devices = [f"{device} {flag} ({plural(count, 'point')})" for flag, device, count in found]
    named = any(device != UNNAMED for _, device, _ in found)
    lines = []
    for title, texts in (
        ("Flagged as doubtful", flagged),
        ("Devices", devices if named else []),
        ("No result", missing_groups(points)),
    ):
        shown = first(texts, MOST_GROUPS, "and {} more, listed in the table")
        lines += [f"{title}: {'; '.join(shown)}"] if texts else []
    return lines


def machines_of(points: Iterable[Point]) -> str:
    """``2 x hgx-h100``: the machines of ``points``, with how many of each are joined where there are several."""
    counts = sorted({(point.machine, max(1, point.nodes)) for point in points if point.machine})
    return ", ".join(f"{count} x {name}" if count > 1 else name for name, count in counts)


def _source(points: Sequence[Point]) -> str:
    """Say where points come from, how often they were measured, and what their interval is worth."""
    hosts = ", ".join(sorted({point.host for point in points} - {""}))
    machines = machines_of(points)
    backends = sorted(
        f"{point.backend} ({point.backend_version})" if point.backend_version else point.backend
        for point in {
            (point.backend, point.backend_version): point for point in points
        }.values()
    )
    parts = [
        f"host {hosts}" if hosts else "",
        f"machine {machines}" if machines else "",
        ", ".join(backends) or "no backend",
        imported_from(points),
    ]
    ok = [point for point in points if point.status == Status.OK]
    printed = sorted({point.time_statistic for point in ok if not len(point.samples_seconds)})
    sampled = [point for point in ok if len(point.samples_seconds)]
    if sampled:
        text = _span([len(point.samples_seconds) for point in sampled], "sample")
        rounds = [len(point.round_samples) for point in sampled]
        text += f" in {_span(rounds, 'round')}" if max(rounds) > 1 else ""
        parts.append(f"{text} a point")
    elif printed:
        parts.append(f"times as printed ({', '.join(printed)}), without samples or interval")
    # With few samples the interval is worth less than was asked for, and then that is said.
    worths = [
        point.interval_confidence for point in points if point.interval_confidence is not None
    ]
    if any(worths):
        worth = " to ".join(dict.fromkeys((percent(min(worths)), percent(max(worths)))))
        parts.append(f"medians with their {worth} interval (order statistics)")
    return " · ".join(filter(None, parts))


def _span(counts: Sequence[int], noun: str) -> str:
    low, high = min(counts), max(counts)
    return f"{low} to {plural(high, noun)}" if low < high else plural(low, noun)


def missing_groups(points: Sequence[Point]) -> list[str]:
    """Cases without a speed, a text for each series, status and reason: ``ring 1 MiB, 2 MiB failed (why)``.

    Wrong results come first: they are the worst a run can find.
    """
    names = series_names(points)
    missing = grouped(
        (point for point in points if point.status != Status.OK),
        lambda point: (
            [*Status].index(point.status),
            names[SERIES(point)],
            point.status.value,
            point.detail,
        ),
    )
    texts = []
    for (_, name, status, detail), members in sorted(missing.items()):
        sizes = [format_size(size) for size in sorted({point.size_bytes for point in members})]
        if len(sizes) > 3:
            sizes = [f"{sizes[0]} to {sizes[-1]} ({len(sizes)} sizes)"]
        texts.append(f"{name} {', '.join(sizes)} {status}" + (f" ({detail})" if detail else ""))
    return texts


def verdict_lines(run: Run) -> list[str]:
    """Return the summary and the first findings with advice; whom health blames is in the summary."""
    found = run_findings(run, points_of(run))
    told = [one for one in found if one.severity != "note" and one.kind not in BLAMES]
    lines = [*summary_lines(run), *map(str, told[:MOST_NAMED])]
    rest = plural(len(told) - MOST_NAMED, "more finding")
    return lines + ([f"... and {rest}, in the report's page"] if len(told) > MOST_NAMED else [])


def finding_lines(finding: Finding, width: int, whole: bool) -> list[str]:
    """A finding with its code on two lines at most; the ``whole`` of it with its evidence."""
    begin = finding.severity.capitalize()
    code = code_of(finding.kind)
    if whole:
        return wrapped(str(finding).replace(begin, f"{begin} {code}".rstrip(), 1), width)
    return two_lines(f"{begin} {code}".rstrip() + f": {finding.subject}", finding.advice, width)


def summary_lines(run: Run) -> list[str]:
    """Return the verdict without the findings."""
    points = points_of(run)
    lines = (
        shared_text(points),
        *health_lines(run),
        winner_sentence(run),
        *speed_lines(speed_verdicts(run)),
        measured_text(points),
        *closeness(points),
    )
    return [*filter(None, lines)]


def shared_text(points: Sequence[Point]) -> str:
    """Say that ranks shared GPUs in every case that has a time, and the fastest figures; "" elsewhere."""
    timed = [point for point in points if point.is_timed and point.size_bytes]
    if not timed or any(Flag.LOOPBACK not in point.flags or point.emulated for point in timed):
        return ""
    ids = {name for point in timed for name in BUS_ID.findall(point.device_readings)}
    devices = "one GPU" if len(ids) == 1 == timed[0].nodes else "GPUs"
    counts = {point.ranks for point in timed}
    ranks = f"{min(counts)} ranks" if len(counts) == 1 else "ranks"
    timed.sort(key=lambda point: point.median_seconds or 0.0)
    largest = max(timed, key=lambda point: point.size_bytes)  # the fastest of that size
    figures = (
        f"{format_seconds(point.median_seconds or 0.0)} ({point.label})"
        for point in dict.fromkeys((timed[0], largest))
    )
    return f"NOT A MEASUREMENT OF LINKS: all {ranks} share {devices}; fastest: {', '.join(figures)}"


def speed_lines(verdicts: Sequence[SpeedVerdict]) -> list[str]:
    """Say whether the numbers are normal, the gravest first, and what that stands on."""
    lines = [verdict.sentence for verdict in verdicts[:MOST_VERDICTS]]
    rest = Counter(verdict.word.value for verdict in verdicts[MOST_VERDICTS:])
    counts = ", ".join(f"{count} {word}" for word, count in rest.items())
    lines += [f"... and {counts}, in ccbench report --json"] if rest else []
    stands_on = expected_from(verdicts)
    return lines + ([stands_on] if stands_on else [])


def health_lines(run: Run) -> list[str]:
    """Return the verdict about machine, fleet or bits, or the card of a box, of a suite that asks for it; the blamed
    stand first.
    """
    verdict = machine_verdict(run)
    lines = verdict.lines() if verdict else []
    sentence = bits_sentence(bit_rows(run.points))
    asked_for = any(sweep.get("accuracy") for sweep in run.manifest.mappings("suite", "sweep"))
    if asked_for and not sentence and run.points:
        sentence = (
            "No bits: the suite asks for accuracy, but no case that was measured adds floating point numbers of "
            "several ranks"
        )
    return [*box_lines(run), *lines, *filter(None, [sentence])]


def place_of(collective: str) -> int:
    """Place of a collective in a report: all_reduce first, the others by the table of collectives."""
    return [*COLLECTIVES, collective].index(collective)


def measured_text(points: Sequence[Point]) -> str:
    """Say how many cases are correct, how fast one curve is at its ends, how noisy times are, and who disturbed them.

    Cases without a result come first. The curve is that of the collective that stands first in tables, with the
    default algorithm and the most ranks, of the first backend. Noise is the width of the median's interval over
    the median, the middle one of all cases.
    """
    if not points:
        return "The run holds no case."
    label = provenance(points)
    ok = [point for point in points if point.status == Status.OK]
    statuses = Counter(point.status for point in points)
    lost = ", ".join(
        f"{statuses[status]} {status.value.replace('_', ' ')}"
        for status in Status
        if statuses[status] and status != Status.OK
    )
    verb = {SIMULATED: "computed by a model", EMULATION: "emulated"}.get(label, "measured")
    if verb == "measured" and all(point.wrong_elements == 0 for point in ok):
        verb = "correct"
    parts = [
        lost,
        f"{len(ok)} of {plural(len(points), 'case')} {imported_from(points) or verb}",
    ]
    real = [point for point in ok if point.is_timed and not point.emulated]
    widths = [
        ((point.high_seconds or 0.0) - point.low_seconds) / (point.median_seconds or 1.0)
        for point in real
        if point.low_seconds is not None
    ]
    loaded = sum(not _LOADED.isdisjoint(point.flags) for point in ok)
    parts += [_ends_of_curve(real), f"noise {percent(median(widths))}" if widths else ""]
    if 2 * loaded > len(ok):
        parts.append(f"other programs were running ({loaded} of {plural(len(ok), 'case')})")
    where = f" for {machines_of(points)}" if label == SIMULATED and points[0].machine else ""
    return (f"{label}{where}: " if label else "") + "; ".join(filter(None, parts)) + "."


_LOADED = frozenset((Flag.OTHER_LOAD, Flag.CPU_CONTENTION))


def _ends_of_curve(points: Sequence[Point]) -> str:
    """``all_reduce over 2 ranks on cpu 0.66 us at 64 B, 14.7 GB/s busbw at 16 MiB``; "" of no times."""
    first = min(
        points,
        key=lambda point: (
            place_of(point.collective),
            bool(point.pair) + (point.mode != "streaming") + (point.algorithm != DEFAULT),
            -point.group_ranks,
        ),
        default=None,
    )
    if first is None:
        return ""
    curve = sorted(
        (point for point in points if CURVE(point) == CURVE(first)),
        key=lambda point: point.size_bytes,
    )
    small, large = curve[0], curve[-1]
    words = [first.collective, *([first.algorithm] if first.algorithm != DEFAULT else [])]
    text = f"{' '.join(words)} over {plural(first.group_ranks, 'rank')} on {first.backend}"
    text += f" {format_seconds(float(f'{small.median_seconds:.3g}'))} at {small.size}"
    # A single rank moves nothing over a link, nor do ranks that share a device.
    if large.busbw and large.group_ranks > 1 and large.of_links:
        text += f", {float(f'{large.busbw:.3g}'):g} GB/s busbw" + (
            f" at {large.size}" if large is not small else ""
        )
    return text


def closeness(points: Sequence[Point]) -> list[str]:
    """Say how near cases come to the prediction, and large ones to the bound; a single rank has no bound.

    Cases with both intervals around their prediction have a verdict, which says the former.
    """
    lines = []
    # A model's own times lie at its predictions.
    points = [point for point in points if not (point.simulated or point.emulated)] or points
    points = [point for point in points if not UNJUDGED_FLAGS & {*point.flags}]
    priced = [
        point
        for point in points
        if point.predicted_low_95_seconds is None is not point.prediction_error
    ]
    if priced:
        error, bias = error_and_bias(priced)
        text = f"Median error of the prediction {percent(error)}; {bias_text(bias)}"
        lines.append(f"{text} ({plural(len(priced), 'case')}).")
    large = [point for point in points if point.size_bytes >= SMALLEST_FOR_BOUND]
    shares = [point.bound_share for point in large if point.bound_share is not None]
    usual = [point.usual_bound_shares for point in large if point.usual_bound_shares]
    if shares:
        low, high = (median(ends) for ends in zip(*usual, strict=True)) if usual else (0.0, 0.0)
        normal = f" (normal: {100 * low:.0f} to {percent(high)})" if usual else ""
        lines.append(
            f"Median share of the bound, {format_size(SMALLEST_FOR_BOUND)} and up: "
            f"{percent(median(shares))}{normal}."
        )
    return lines


def error_and_bias(points: Sequence[Point]) -> tuple[float, float]:
    """Median of |predicted / measured - 1|, and median of measured / predicted - 1, as fractions.

    The bias is positive where the machine is slower than predicted. ``points`` have a prediction.
    """
    errors = [point.prediction_error for point in points if point.prediction_error is not None]
    # A prediction of zero seconds is infinitely exceeded: error -1 has no finite bias.
    biases = [1 / (1 + error) - 1 if error > -1 else math.inf for error in errors]
    return median(abs(error) for error in errors), median(biases)


def bias_text(bias: float) -> str:
    """Words for the side of the prediction on which the measured times typically lie."""
    if abs(bias) <= 0.005:
        return "measured times typically lie at the prediction"
    if bias >= MANIFOLD:
        return f"measured times are typically {format_ratio(1 + bias)} the prediction"
    side = "above" if bias > 0 else "below"
    return f"measured times are typically {percent(abs(bias))} {side} the prediction"
