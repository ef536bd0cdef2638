"""A run for programs that watch fleets: Prometheus' text format, and one JSON summary.

Text format 0.0.4 (Prometheus' documentation, "Exposition formats"): ``# HELP`` and ``# TYPE`` once per metric
before its samples, labels in quotes with backslash, quote and newline escaped, base units (seconds, bytes per
second). No sample carries a timestamp: node_exporter's textfile collector refuses files that do; the age of a
run is a metric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ccbench.cases import AXES, Status
from ccbench.results import Manifest, Point, Run
from ccbench.results.points import BYTES_PER_GIGABYTE, ORDER

SUMMARY_FORMAT = "ccbench-summary"
SUMMARY_VERSION = 1
"""Of ``json_summary``; it changes when a key is dropped or means another thing. New keys may come."""

LONGEST_TEXT = 200

POINT_LABELS = ("case_id", "backend_version", *ORDER, "simulated")
"""Labels of every point's samples, after ``host`` and ``suite``; case_id tells cases of a run apart."""

_ALWAYS_SAID = ("algorithm", "nodes", "in_place")
_LEFT_OUT = {
    "simulated": False,
    **{axis.name: axis.default for axis in AXES if axis.name not in _ALWAYS_SAID},
}
"""Values whose label is left out: to Prometheus a missing label and an empty one are the same."""


@dataclass(frozen=True)
class Metric:
    """One gauge of a point. field: of ``Point``. scale: from its unit to the metric's."""

    name: str
    help: str
    field: str
    scale: float = 1.0


METRICS = (
    Metric("ccbench_median_seconds", "Median time of one launch of the case.", "median_seconds"),
    Metric("ccbench_low_seconds", "Lower end of the median's interval.", "low_seconds"),
    Metric("ccbench_high_seconds", "Upper end of the median's interval.", "high_seconds"),
    Metric("ccbench_algbw_bytes_per_second", "Size over median time.", "algbw", BYTES_PER_GIGABYTE),
    Metric(
        "ccbench_busbw_bytes_per_second", "Bus bandwidth, as nccl-tests' PERFORMANCE.md defines it.",
        "busbw", BYTES_PER_GIGABYTE,
    ),
    Metric("ccbench_bound_seconds", "Time that no schedule can beat here.", "bound_seconds"),
    Metric("ccbench_predicted_seconds", "Time that the model expects.", "predicted_seconds"),
    Metric("ccbench_wrong_elements", "Elements of the timed result that were wrong.", "wrong_elements"),
)  # fmt: skip


def prometheus_text(run: Run) -> str:
    """``run`` in the text format; a figure that a case does not have is a sample that is not there."""
    common = {"host": run.manifest.host, "suite": run.suite}
    labels = [_labels({**common, **_point_labels(point)}) for point in run.points]
    lines = list(_about_the_run(run, common))
    for metric in METRICS:
        samples = [
            f"{metric.name}{label} {_figure(value * metric.scale)}"
            for point, label in zip(run.points, labels, strict=True)
            if (value := _finite(getattr(point, metric.field))) is not None
        ]
        lines += [*_head(metric.name, metric.help), *samples] if samples else []
    flagged = [
        f"ccbench_flags{label} {len(point.flags)}" for point, label in zip(run.points, labels, strict=True)
    ]
    lines += [*_head("ccbench_flags", "Reasons to doubt the case's figures."), *flagged] if flagged else []
    return "\n".join(lines) + "\n"


def _about_the_run(run: Run, common: Mapping[str, str]) -> Iterator[str]:
    information = {
        **common,
        "machine": run.manifest.machine,
        "ccbench_version": run.manifest.ccbench_version,
        "run": run.path.name,
    }
    yield from _head("ccbench_run_info", "The run that the other samples are of.")
    yield f"ccbench_run_info{_labels(information)} 1"
    created = _created_seconds(run.manifest)
    if created is not None:
        yield from _head("ccbench_run_created_timestamp_seconds", "When the run began, seconds since 1970.")
        yield f"ccbench_run_created_timestamp_seconds{_labels(common)} {_figure(created)}"
    yield from _head("ccbench_run_cases", "Cases of the run by how they ended.")
    for status, count in sorted(Counter(point.status.value for point in run.points).items()):
        yield f"ccbench_run_cases{_labels({**common, 'status': status})} {count}"
    yield from _head("ccbench_run_unreadable_files", "Files of the run that could not be read.")
    yield f"ccbench_run_unreadable_files{_labels(common)} {len(run.problems)}"


def _head(name: str, text: str) -> tuple[str, str]:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {escaped}", f"# TYPE {name} gauge"


def _point_labels(point: Point) -> dict[str, str]:
    values = {name: getattr(point, name) for name in POINT_LABELS}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value != _LEFT_OUT.get(name)
    }


def _labels(values: Mapping[str, Any]) -> str:
    """``{name="value",...}``; empty ones are left out, and no character can end a value or a line early."""
    parts = []
    for name, value in values.items():
        text = _clean(value)
        if text:
            escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            parts.append(f'{name}="{escaped}"')
    return "{" + ",".join(parts) + "}" if parts else ""


def _clean(value: Any) -> str:
    """Text that UTF-8 can carry, of bounded length; line ends of other systems become spaces."""
    text = str(value).encode("utf-8", "replace").decode()[:LONGEST_TEXT]
    return "".join(one if one.isprintable() or one == "\n" else " " for one in text)


def _figure(value: float) -> str:
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _finite(number: float | None) -> float | None:
    return None if number is None or not math.isfinite(number) else number


def json_summary(run: Run) -> dict[str, Any]:
    """``run`` as one JSON document: what ran, how it ended, the best figures per curve, what is doubtful.

    Times in seconds, sizes in bytes, rates in bytes per second; what is not known is null. docs/feeds.md
    lists the keys.
    """
    flags = Counter(flag for point in run.points for flag in point.flags)
    curves: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in run.points:
        if point.is_timed:
            key = (*point.curve, point.simulated)
            curves[key].append(point)
    return {
        "format": SUMMARY_FORMAT,
        "version": SUMMARY_VERSION,
        "run": {
            "path": _clean(run.path),
            "suite": run.suite,
            "host": run.manifest.host,
            "machine": run.manifest.machine,
            "created_at": run.manifest.created_at or None,
            "ccbench_version": run.manifest.ccbench_version,
        },
        "cases": {"total": len(run.points), **Counter(point.status.value for point in run.points)},
        "curves": [_curve(members) for _, members in sorted(curves.items())],
        "flags": dict(sorted(flags.items())),
        "failures": [
            _failure(point) for point in run.points if point.status not in (Status.OK, Status.UNSUPPORTED)
        ],
        "unreadable_files": [_clean(problem) for problem in run.problems],
    }


def _curve(members: Sequence[Point]) -> dict[str, Any]:
    """One line of a report: the same case at several sizes."""
    ordered = sorted(members, key=lambda point: point.size_bytes)
    peak = max(
        (one for one in ordered if one.busbw is not None), key=lambda one: one.busbw or 0.0, default=None
    )
    return {
        **{name: getattr(ordered[0], name) for name in (*ORDER, "simulated") if name != "size_bytes"},
        "points": len(ordered),
        "smallest": _figures(ordered[0]),
        "largest": _figures(ordered[-1]),
        "peak": None if peak is None else _figures(peak),
        "flagged_points": sum(not point.trusted for point in ordered),
    }


def _figures(point: Point) -> dict[str, Any]:
    bandwidth = _finite(point.busbw)
    times = ("median_seconds", "low_seconds", "high_seconds", "bound_seconds", "predicted_seconds")
    return {
        "size_bytes": point.size_bytes,
        "busbw_bytes_per_second": None if bandwidth is None else bandwidth * BYTES_PER_GIGABYTE,
        **{name: _finite(getattr(point, name)) for name in times},
    }


def _failure(point: Point) -> dict[str, Any]:
    names = ("case_id", "collective", "backend", "algorithm", "size_bytes", "ranks", "detail")
    return {"status": point.status.value, **{name: getattr(point, name) for name in names}}


def _created_seconds(manifest: Manifest) -> float | None:
    try:
        moment = datetime.fromisoformat(manifest.created_at)
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
