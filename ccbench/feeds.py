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

from ccbench.runs import Run
from ccbench.runs.rows import is_null

SUMMARY_FORMAT = "ccbench-summary"
SUMMARY_VERSION = 1
"""Of ``json_summary``; it changes when a key is dropped or means another thing. New keys may come."""

BYTES_PER_GIGABYTE = 1e9

LONGEST_TEXT = 200

POINT_LABELS = (
    "case_id", "backend", "backend_version", "collective", "algorithm", "protocol", "dtype", "op",
    "size_bytes", "ranks", "nodes", "root", "in_place", "mode", "channels", "transport", "registration",
    "aggregation", "misalignment_bytes", "pair", "groups", "alone", "beside", "traffic", "computing",
    "simulated",
)  # fmt: skip
"""Labels of every point's samples, after ``host`` and ``suite``; case_id tells cases of a run apart."""

LABELS_OF_DEFAULTS = {
    "protocol": "default", "mode": "streaming", "channels": "0", "transport": "default",
    "registration": "none",
    "aggregation": "1", "misalignment_bytes": "0", "simulated": "false", "root": "-1", "op": "none",
    "alone": "-1",
}  # fmt: skip
"""Left out at these values: to Prometheus a label that is missing and an empty one are the same."""


@dataclass(frozen=True)
class Metric:
    """One gauge of a point. column: of the run's table. scale: from its unit to the metric's."""

    name: str
    help: str
    column: str
    scale: float = 1.0


METRICS = (
    Metric("ccbench_median_seconds", "Median time of one launch of the case.", "median_seconds"),
    Metric("ccbench_low_seconds", "Lower end of the median's interval.", "low_seconds"),
    Metric("ccbench_high_seconds", "Upper end of the median's interval.", "high_seconds"),
    Metric("ccbench_algbw_bytes_per_second", "Size over median time.", "algbw_GB_s", BYTES_PER_GIGABYTE),
    Metric(
        "ccbench_busbw_bytes_per_second", "Bus bandwidth, as nccl-tests' PERFORMANCE.md defines it.",
        "busbw_GB_s", BYTES_PER_GIGABYTE,
    ),
    Metric("ccbench_bound_seconds", "Time that no schedule can beat here.", "bound_seconds"),
    Metric("ccbench_predicted_seconds", "Time that the model expects.", "predicted_seconds"),
    Metric("ccbench_wrong_elements", "Elements of the timed result that were wrong.", "wrong_elements"),
)  # fmt: skip


def prometheus_text(run: Run) -> str:
    """``run`` in the text format; a figure that a case does not have is a sample that is not there."""
    rows = run.cases.to_dict("records")
    common = {"host": _host(run.manifest), "suite": _suite(run)}
    labels = [_labels({**common, **_point_labels(row)}) for row in rows]
    lines = list(_about_the_run(run, rows, common))
    for metric in METRICS:
        samples = [
            f"{metric.name}{label} {_figure(value * metric.scale)}"
            for row, label in zip(rows, labels, strict=True)
            if (value := _number(row[metric.column])) is not None
        ]
        lines += [*_head(metric.name, metric.help), *samples] if samples else []
    flagged = [f"ccbench_flags{label} {_flag_count(row)}" for row, label in zip(rows, labels, strict=True)]
    lines += [*_head("ccbench_flags", "Reasons to doubt the case's figures."), *flagged] if flagged else []
    return "\n".join(lines) + "\n"


def _about_the_run(run: Run, rows: Sequence[Mapping[Any, Any]], common: Mapping[str, str]) -> Iterator[str]:
    version = _ccbench_version(run.manifest)
    information = {
        **common,
        "machine": _machine(run.manifest),
        "ccbench_version": version,
        "run": run.path.name,
    }
    yield from _head("ccbench_run_info", "The run that the other samples are of.")
    yield f"ccbench_run_info{_labels(information)} 1"
    created = _created_seconds(run.manifest)
    if created is not None:
        yield from _head("ccbench_run_created_timestamp_seconds", "When the run began, seconds since 1970.")
        yield f"ccbench_run_created_timestamp_seconds{_labels(common)} {_figure(created)}"
    yield from _head("ccbench_run_cases", "Cases of the run by how they ended.")
    for status, count in sorted(Counter(str(row["status"]) for row in rows).items()):
        yield f"ccbench_run_cases{_labels({**common, 'status': status})} {count}"
    yield from _head("ccbench_run_unreadable_files", "Files of the run that could not be read.")
    yield f"ccbench_run_unreadable_files{_labels(common)} {len(run.problems)}"


def _head(name: str, text: str) -> tuple[str, str]:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n")
    return f"# HELP {name} {escaped}", f"# TYPE {name} gauge"


def _point_labels(row: Mapping[Any, Any]) -> dict[str, str]:
    found = {}
    for name in POINT_LABELS:
        value = row[name]
        text = str(value).lower() if name in ("in_place", "simulated") else str(value)
        if text != LABELS_OF_DEFAULTS.get(name):
            found[name] = text
    return found


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


def _number(value: Any) -> float | None:
    if is_null(value):
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _flag_count(row: Mapping[Any, Any]) -> int:
    return 0 if is_null(row["flags"]) else len(row["flags"])


def json_summary(run: Run) -> dict[str, Any]:
    """``run`` as one JSON document: what ran, how it ended, the best figures per curve, what is doubtful.

    Times in seconds, sizes in bytes, rates in bytes per second; what is not known is null. docs/feeds.md
    lists the keys.
    """
    rows = run.cases.to_dict("records")
    flags = Counter(str(flag) for row in rows if not is_null(row["flags"]) for flag in row["flags"])
    return {
        "format": SUMMARY_FORMAT,
        "version": SUMMARY_VERSION,
        "run": {
            "path": _clean(run.path),
            "suite": _clean(_suite(run)),
            "host": _clean(_host(run.manifest)),
            "machine": _clean(_machine(run.manifest)),
            "created_at": _clean(run.manifest.get("created_at", "")) or None,
            "ccbench_version": _clean(_ccbench_version(run.manifest)),
        },
        "cases": {"total": len(rows), **Counter(str(row["status"]) for row in rows)},
        "curves": [_curve(members) for _, members in sorted(_curves(rows).items())],
        "flags": dict(sorted(flags.items())),
        "failures": [_failure(row) for row in rows if row["status"] not in ("ok", "unsupported")],
        "unreadable_files": [_clean(problem) for problem in run.problems],
    }


_CURVE = (
    "collective", "backend", "algorithm", "protocol", "dtype", "op", "ranks", "nodes", "root", "in_place",
    "mode", "channels", "transport", "registration", "aggregation", "misalignment_bytes", "pair", "groups",
    "alone", "beside", "traffic", "computing", "simulated",
)  # fmt: skip


def _curves(rows: Sequence[Mapping[Any, Any]]) -> dict[tuple[Any, ...], list[Mapping[Any, Any]]]:
    found: dict[tuple[Any, ...], list[Mapping[Any, Any]]] = defaultdict(list)
    for row in rows:
        if row["status"] == "ok" and _number(row["median_seconds"]) is not None:
            found[tuple(row[name] for name in _CURVE)].append(row)
    return found


def _curve(members: Sequence[Mapping[Any, Any]]) -> dict[str, Any]:
    """One line of a report: the same case at several sizes."""
    ordered = sorted(members, key=lambda row: int(row["size_bytes"]))
    rated = [row for row in ordered if _number(row["busbw_GB_s"]) is not None]
    peak = max(rated, key=lambda row: float(row["busbw_GB_s"])) if rated else None
    first = ordered[0]
    return {
        **{name: _plain(first[name]) for name in _CURVE},
        "points": len(ordered),
        "smallest": _point(ordered[0]),
        "largest": _point(ordered[-1]),
        "peak": None if peak is None else _point(peak),
        "flagged_points": sum(_flag_count(row) > 0 for row in ordered),
    }


def _point(row: Mapping[Any, Any]) -> dict[str, Any]:
    bandwidth, median = _number(row["busbw_GB_s"]), _number(row["median_seconds"])
    bound, predicted = _number(row["bound_seconds"]), _number(row["predicted_seconds"])
    return {
        "size_bytes": int(row["size_bytes"]),
        "median_seconds": median,
        "low_seconds": _number(row["low_seconds"]),
        "high_seconds": _number(row["high_seconds"]),
        "busbw_bytes_per_second": None if bandwidth is None else bandwidth * BYTES_PER_GIGABYTE,
        "bound_seconds": bound,
        "predicted_seconds": predicted,
    }


def _failure(row: Mapping[Any, Any]) -> dict[str, Any]:
    names = ("case_id", "status", "collective", "backend", "algorithm", "size_bytes", "ranks", "detail")
    return {name: _plain(row[name]) for name in names}


def _plain(value: Any) -> Any:
    if is_null(value):
        return None
    if isinstance(value, str):
        return _clean(value)
    return bool(value) if isinstance(value, bool) or type(value).__name__ == "bool_" else int(value)


def _suite(run: Run) -> str:
    suite = run.manifest.get("suite")
    if isinstance(suite, Mapping):
        return str(suite.get("suite") or suite.get("name") or "")
    return str(run.cases["suite"].iloc[0]) if len(run.cases) else ""


def _host(manifest: Mapping[str, Any]) -> str:
    environment = manifest.get("environment")
    host = environment.get("host") if isinstance(environment, Mapping) else None
    return str(host.get("name") or "") if isinstance(host, Mapping) else ""


def _ccbench_version(manifest: Mapping[str, Any]) -> str:
    """Imports state it among their versions, measured runs among the libraries of their environment."""
    environment = manifest.get("environment")
    software = environment.get("software") if isinstance(environment, Mapping) else None
    libraries = software.get("libraries") if isinstance(software, Mapping) else None
    for versions in (manifest.get("versions"), libraries):
        if isinstance(versions, Mapping) and versions.get("ccbench"):
            return str(versions["ccbench"])
    return ""


def _machine(manifest: Mapping[str, Any]) -> str:
    machine = manifest.get("machine")
    return str(machine.get("name") or "") if isinstance(machine, Mapping) else ""


def _created_seconds(manifest: Mapping[str, Any]) -> float | None:
    try:
        moment = datetime.fromisoformat(str(manifest.get("created_at", "")))
    except ValueError:
        return None
    return moment.timestamp() if moment.tzinfo is not None else None
