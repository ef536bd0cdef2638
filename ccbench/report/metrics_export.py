"""A run for programs that watch fleets: Prometheus' text format, and one JSON summary.

Base units throughout (seconds, bytes per second). No sample carries a timestamp: node_exporter's textfile
collector refuses files that do; the age of a run is a metric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ccbench.cases import AXES, Status
from ccbench.results import Manifest, Point, Run
from ccbench.results.points import BYTES_PER_GIGABYTE, ORDER
from ccbench.units import plain

if TYPE_CHECKING:
    from prometheus_client import Metric

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

METRICS = {
    "median_seconds": ("Median time of one launch of the case.", "median_seconds", 1.0),
    "low_seconds": ("Lower end of the median's interval.", "low_seconds", 1.0),
    "high_seconds": ("Upper end of the median's interval.", "high_seconds", 1.0),
    "algbw_bytes_per_second": ("Size over median time.", "algbw", BYTES_PER_GIGABYTE),
    "busbw_bytes_per_second": (
        "Bus bandwidth, as nccl-tests' PERFORMANCE.md defines it.", "busbw", BYTES_PER_GIGABYTE,
    ),
    "bound_seconds": ("Time that no schedule can beat here.", "bound_seconds", 1.0),
    "predicted_seconds": ("Time that the model expects.", "predicted_seconds", 1.0),
    "wrong_elements": ("Elements of the timed result that were wrong.", "wrong_elements", 1.0),
}  # fmt: skip
"""Name -> help, field of a point, and the factor from its unit to the metric's."""

Samples = Iterable[tuple[Mapping[str, Any], float]]


def prometheus_text(run: Run) -> str:
    """``run`` in the text format; a figure that a case does not have is a sample that is not there."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    class OneRun(Collector):
        def collect(self) -> Iterable[Metric]:
            return _metrics(run)

    registry = CollectorRegistry()
    registry.register(OneRun())
    return generate_latest(registry).decode()


def _metrics(run: Run) -> Iterator[Metric]:
    common = {"host": run.manifest.host, "suite": run.suite}
    told = {"machine": run.manifest.machine, "ccbench_version": run.manifest.ccbench_version}
    info = [({**common, **told, "run": run.path.name}, 1.0)]
    yield _gauge("run_info", "The run that the other samples are of.", info)
    created = _created_seconds(run.manifest)
    if created is not None:
        about = "When the run began, seconds since 1970."
        yield _gauge("run_created_timestamp_seconds", about, [(common, created)])
    counts = sorted(Counter(point.status.value for point in run.points).items())
    by_status = [({**common, "status": status}, count) for status, count in counts]
    yield _gauge("run_cases", "Cases of the run by how they ended.", by_status)
    unreadable = [(common, len(run.problems))]
    yield _gauge("run_unreadable_files", "Files of the run that could not be read.", unreadable)
    labels = [{**common, **_point_labels(point)} for point in run.points]
    for name, (about, field, scale) in METRICS.items():
        values = [_finite(getattr(point, field)) for point in run.points]
        samples = [(own, one * scale) for own, one in zip(labels, values, strict=True) if one is not None]
        if samples:
            yield _gauge(name, about, samples)
    flagged = [(own, len(point.flags)) for own, point in zip(labels, run.points, strict=True)]
    if flagged:
        yield _gauge("flags", "Reasons to doubt the case's figures.", flagged)


def _gauge(name: str, about: str, samples: Samples) -> Metric:
    from prometheus_client import Metric

    metric = Metric(f"ccbench_{name}", about, "gauge")
    for labels, value in samples:
        said = {label: plain(text, LONGEST_TEXT) for label, text in labels.items()}
        metric.add_sample(metric.name, {label: text for label, text in said.items() if text}, value)
    return metric


def _point_labels(point: Point) -> dict[str, str]:
    values = {name: getattr(point, name) for name in POINT_LABELS}
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in values.items()
        if value != _LEFT_OUT.get(name)
    }


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
            "path": plain(run.path, LONGEST_TEXT),
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
        "unreadable_files": [plain(problem, LONGEST_TEXT) for problem in run.problems],
    }


def _curve(members: Sequence[Point]) -> dict[str, Any]:
    """One line of a report: the same case at several sizes."""
    ordered = sorted(members, key=lambda point: point.size_bytes)
    rated = [one for one in ordered if one.busbw is not None]
    peak = max(rated, key=lambda one: one.busbw or 0.0, default=None)
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
