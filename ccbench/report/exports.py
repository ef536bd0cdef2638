"""A run for other programs: nccl-tests' text format, Prometheus' text format, and one JSON summary.

nccl-tests: the layout follows the tables that nccl-tests 2.13 to 2.16 print (github.com/NVIDIA/nccl-tests,
src/common.cu): sizes in bytes, times in us, rates in GB/s, two placements a row, N/A for what is not there.
Importing gives the run back. Comment lines, which readers skip, say what the format has no room for: who
wrote it, the statuses of cases without figures, and that nccl-tests has no such program (barrier).

Prometheus and JSON: base units throughout (seconds, bytes per second). No sample carries a timestamp:
node_exporter's textfile collector refuses files that do; the age of a run is a metric.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ccbench.analysis.findings import provenance
from ccbench.analysis.fleet import FleetVerdict
from ccbench.analysis.gate import CODES, verdict_parts
from ccbench.analysis.machine_verdict import machine_verdict
from ccbench.analysis.speed_verdict import speed_verdicts
from ccbench.cases.axes import AXES, OVERLAP, SETTINGS
from ccbench.cases.measurement import Status
from ccbench.report.present import values_of
from ccbench.report.wording import imported_from, meaning_of, unusual
from ccbench.results import Point, Run
from ccbench.results.keys import CURVE, Key, grouped
from ccbench.results.points import ORDER
from ccbench.results.schema import BYTES_PER_GIGABYTE
from ccbench.units import plain, plural

if TYPE_CHECKING:
    from prometheus_client import Metric

TYPE_NAMES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
"""nccl-tests' names of element types, where they are not ours."""

COLLECTIVE_NAMES = {
    "all_to_all": "alltoall",
    "all_to_all_v": "alltoallv",
    "send_recv": "sendrecv",
}

PROGRAMS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "send_recv",
)
"""Collectives that nccl-tests has a program for.

Of alltoallv there are two, which count alike (``AlltoAllvGetBw`` of src/alltoallv.cu in NVIDIA/nccl-tests and
in ROCm/rccl-tests): size is what a rank sends to all, algbw size over time, busbw (n - 1) / n of it. NVIDIA's
sends blocks of one size, AMD's blocks that grow with (source + target) mod n; what was sent here is in the
preamble.
"""

TABLE_FIELDS = (
    "run",
    "backend",
    "collective",
    "algorithm",
    "protocol",
    "ranks",
    "nodes",
    "mode",
    *(axis.name for axis in SETTINGS),
)

_HEADER = (
    "#                                                              out-of-place"
    "                       in-place          ",
    "#       size         count      type   redop    root     time   algbw   busbw #wrong"
    "     time   algbw   busbw #wrong",
    "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)       "
    "     (us)  (GB/s)  (GB/s)       ",
)


@dataclass(frozen=True)
class NcclTestsTable:
    """One table: what one run of an nccl-tests binary would have printed."""

    name: str
    text: str


def nccl_tests_tables(points: Sequence[Point]) -> tuple[NcclTestsTable, ...]:
    """One table for every (backend, collective, algorithm, ranks) and whatever else tells runs apart."""
    groups = grouped(points, Key(TABLE_FIELDS))
    return tuple(_table(groups[key]) for key in sorted(groups, key=str))


def _table(points: Sequence[Point]) -> NcclTestsTable:
    first = points[0]
    words = [first.backend, first.collective, first.algorithm, f"{first.ranks}ranks"]
    words += [*unusual(first), *[f"{first.nodes}nodes"] * (first.nodes > 1)]
    words += filter(None, (first.run, first.setting))
    lines = [*_preamble(points), *_HEADER]
    rows: dict[tuple[str, str, int, int, int], dict[bool, Point]] = defaultdict(dict)
    for point in points:
        rows[point.dtype, point.op, point.root, point.size_bytes, point.count][
            point.in_place
        ] = point
    for dtype, op, root, size, count in sorted(rows, key=lambda key: key[:4]):
        placements = rows[dtype, op, root, size, count]
        kind = TYPE_NAMES.get(dtype, dtype)
        lines.append(
            f"{size:>12}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}"
            + "".join(_placement(placements.get(in_place)) for in_place in (False, True))
        )
        for placement in placements.values():
            if placement.status != Status.OK:
                # Readers pass over the figures of a placement without a time, wrong elements included.
                parts = (
                    [plural(placement.wrong_elements, "wrong element")]
                    if placement.wrong_elements
                    else []
                )
                parts += [plain(placement.detail, 200)] if placement.detail else []
                lines.append(
                    f"# {_where(placement)}: {placement.status.value} {': '.join(parts)}".rstrip()
                )
        # Flags are one word each, so that importing gives the same.
        lines += [
            f"# {_where(placement)}: flags {' '.join('_'.join(flag.split()) for flag in placement.flags)}"
            for placement in placements.values()
            if placement.flags
        ]
    # Like nccl-tests', the average is over all sizes and says little.
    wrong = sum(point.status is Status.WRONG for point in points)
    timed = [
        point for point in points if point.median_seconds is not None and point.mode != OVERLAP
    ]
    rates = [point.busbw or 0.0 for point in timed]
    average = f"{sum(rates) / len(rates):g}" if rates else "N/A"
    lines += [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {average} ",
        "#",
    ]
    return NcclTestsTable("-".join(words), "\n".join(lines) + "\n")


def _where(point: Point) -> str:
    return f"{point.size_bytes} B {'in place' if point.in_place else 'out of place'}"


def _preamble(points: Sequence[Point]) -> list[str]:
    first = points[0]
    sizes = [point.size_bytes for point in points]
    label, origin = provenance(points), imported_from(points)
    program = f"{COLLECTIVE_NAMES.get(first.collective, first.collective)}_perf"
    # For a collective without a program the first line says so and claims nothing.
    starting = f"# Collective test starting: {program}"
    if first.collective not in PROGRAMS:
        starting = f"# {program}: nccl-tests has no such program, this is ccbench's own table in its layout"
    kinds = {"median": "medians", "mean": "means as printed", "printed": "as printed"}
    times = ", ".join(
        kinds.get(kind, kind) for kind in sorted({point.time_statistic for point in points})
    )
    lines = [
        starting,
        f"# nThread 1 nGpus {first.ranks} minBytes {min(sizes)} maxBytes {max(sizes)}",
        "#",
        f"# written by ccbench: backend {first.backend}, algorithm {first.algorithm}, protocol "
        f"{first.protocol}, mode {first.mode}"
        + (f", {first.setting}" if first.setting else ""),
        f"# {plural(first.ranks, 'rank')} on {plural(first.nodes, 'node')}; "
        f"{'0 nodes: not known; ' if not first.nodes else ''}host {first.host or 'unknown'}, "
        f"machine {first.machine or 'unknown'}; times are {times}",
    ]
    versions = sorted({point.backend_version for point in points if point.backend_version})
    lines += [f"# measured with {'; '.join(versions)}"] * bool(versions) + [
        f"# {origin}"
    ] * bool(origin)
    lines += [f"# {label}: {meaning_of(label)}"] if label else []
    return [*lines, "#"]


def _placement(point: Point | None) -> str:
    """Four columns of one placement; N/A wherever nothing was measured."""
    time = algbw = busbw = wrong = "N/A"
    if point is not None and point.median_seconds is not None:
        time = launch_time(point.median_seconds)
        # A case that moves no data has no bandwidth here; nccl-tests prints zero for it. A computation and a
        # collective together have none either, and zero would be taken for the collective's.
        none = "N/A" if point.mode == OVERLAP else "0.00"
        algbw, busbw = (f"{rate:.2f}" if rate else none for rate in (point.algbw, point.busbw))
    if point is not None and point.wrong_elements is not None:
        wrong = f"{point.wrong_elements:g}"
    return f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>5}"


def launch_time(seconds: float) -> str:
    """Microseconds as nccl-tests writes them: two decimals below 100, one below 10000, none above."""
    microseconds = seconds * 1e6
    decimals = 2 if microseconds < 100 else 1 if microseconds < 10_000 else 0
    return f"{microseconds:.{decimals}f}"


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
    "median_seconds": "Median time of one launch of the case.",
    "low_seconds": "Lower end of the median's interval.",
    "high_seconds": "Upper end of the median's interval.",
    "algbw_bytes_per_second": "Size over median time.",
    "busbw_bytes_per_second": "Bus bandwidth, as nccl-tests' PERFORMANCE.md defines it.",
    "bound_seconds": "Time that no schedule can beat here.",
    "predicted_seconds": "Time that the model expects.",
    "wrong_elements": "Elements of the timed result that were wrong.",
}
"""Name -> help."""

Samples = Iterable[tuple[Mapping[str, Any], float]]


def prometheus_text(run: Run) -> str:
    """``run`` in the text format; a figure that a case does not have is a sample that is not there."""
    from prometheus_client import CollectorRegistry, Metric, generate_latest
    from prometheus_client.registry import Collector

    class OneRun(Collector):
        def collect(self) -> Iterable[Metric]:
            for name, about, samples in _metrics(run):
                metric = Metric(f"ccbench_{name}", about, "gauge")
                for labels, value in samples:
                    # An empty label is the same as none.
                    texts = {label: plain(text, LONGEST_TEXT) for label, text in labels.items()}
                    metric.add_sample(
                        metric.name, {name: text for name, text in texts.items() if text}, value
                    )
                yield metric

    registry = CollectorRegistry()
    registry.register(OneRun())
    return generate_latest(registry).decode()


def _metrics(run: Run) -> Iterator[tuple[str, str, Samples]]:
    """(name, help, samples) of every metric of a run."""
    common = {"host": run.manifest.host, "suite": run.suite}
    made = {"machine": run.manifest.machine, "ccbench_version": run.manifest.ccbench_version}
    info = [({**common, **made, "run": run.path.name}, 1.0)]
    yield "run_info", "The run that the other samples are of.", info
    try:
        moment: datetime | None = datetime.fromisoformat(run.manifest.created_at)
    except ValueError:
        moment = None
    # Without a zone nobody knows when it was.
    if moment is not None and moment.tzinfo is not None:
        about = "When the run began, seconds since 1970."
        yield "run_created_timestamp_seconds", about, [(common, moment.timestamp())]
    counts = sorted(Counter(point.status.value for point in run.points).items())
    by_status = [({**common, "status": status}, count) for status, count in counts]
    yield "run_cases", "Cases of the run by how they ended.", by_status
    unreadable = [(common, len(run.problems))]
    yield "run_unreadable_files", "Files of the run that could not be read.", unreadable
    verdict = machine_verdict(run)
    if verdict is not None:
        about = "Verdict of a health or fleet check: 0 healthy, 1 not healthy, 3 no verdict."
        yield "verdict", about, [(common, verdict.exit_code)]
    parts = [
        ({**common, "subject": part.subject, "regime": part.regime}, CODES[part.word])
        for part in verdict_parts(speed_verdicts(run))
    ]
    if parts:
        about = "Verdict on speed: 0 NORMAL or FAST, 1 SLOW or WRONG, 3 CANNOT SAY."
        yield "collective_verdict", about, parts
    if isinstance(verdict, FleetVerdict):
        nodes = enumerate(verdict.names)
        bad = [({**common, "node": name}, node in verdict.excluded) for node, name in nodes]
        yield "node_bad", "1 for a node that the fleet check blames.", bad
        links = [tuple(verdict.names[node] for node in link) for link in verdict.links]
        slow = [({**common, "node": near, "other": far}, 1.0) for near, far in links]
        yield "link_bad", "1 for a link between nodes that the fleet check blames.", slow
    labels = []
    for point in run.points:
        own = values_of(point, *POINT_LABELS)
        labels.append(
            common
            | {
                name: str(value).lower() if isinstance(value, bool) else str(value)
                for name, value in own.items()
                if value != _LEFT_OUT.get(name)
            }
        )
    for name, about in METRICS.items():
        numbers = [figure(point, name) for point in run.points]
        samples = [
            (own, number)
            for own, number in zip(labels, numbers, strict=True)
            if number is not None
        ]
        if samples:
            yield name, about, samples
    if labels:
        flagged = [
            (own, len(point.flags)) for own, point in zip(labels, run.points, strict=True)
        ]
        yield "flags", "Reasons to doubt the case's figures.", flagged


def fleet_document(run: Run) -> dict[str, object] | None:
    """The verdict of a fleet check as JSON has it; None of another run."""
    verdict = machine_verdict(run)
    return verdict.document if isinstance(verdict, FleetVerdict) else None


def figure(point: Point, name: str) -> float | None:
    """A figure of METRICS in base units; None where it is not known or not finite."""
    field, rate, _ = name.partition("_bytes_per_second")
    number = getattr(point, field)
    if number is None or not math.isfinite(number):
        return None
    return number * BYTES_PER_GIGABYTE if rate else float(number)


def json_summary(run: Run) -> dict[str, Any]:
    """``run`` as one JSON document: what ran, how it ended, the best figures per curve, what is doubtful.

    Times in seconds, sizes in bytes, rates in bytes per second; what is not known is null. docs/feeds.md
    lists the keys.
    """
    # A simulated curve and a measured one are two, even of one case.
    timed = [point for point in run.points if point.is_timed]
    lines = grouped(timed, lambda point: (*CURVE(point), point.simulated))
    curves = []
    for _, members in sorted(lines.items()):
        ordered = sorted(members, key=lambda point: point.size_bytes)
        rated = [point for point in ordered if point.busbw is not None]
        peak = max(rated, key=lambda point: point.busbw or 0.0, default=None)
        curves.append(
            {
                **values_of(
                    ordered[0], *(name for name in ORDER if name != "size_bytes"), "simulated"
                ),
                "points": len(ordered),
                "smallest": _figures(ordered[0]),
                "largest": _figures(ordered[-1]),
                "peak": None if peak is None else _figures(peak),
                "flagged_points": sum(not point.trusted for point in ordered),
            }
        )
    names = ("case_id", "collective", "backend", "algorithm", "size_bytes", "ranks", "detail")
    manifest = run.manifest
    return {
        "format": SUMMARY_FORMAT,
        "version": SUMMARY_VERSION,
        "run": {
            "path": plain(run.path, LONGEST_TEXT),
            "suite": run.suite,
            "created_at": manifest.created_at or None,
            **values_of(manifest, "host", "machine", "ccbench_version"),
        },
        "cases": {
            "total": len(run.points),
            **Counter(point.status.value for point in run.points),
        },
        "fleet": fleet_document(run),
        "speed_verdicts": [verdict.document for verdict in speed_verdicts(run)],
        "curves": curves,
        "flags": dict(
            sorted(Counter(flag for point in run.points for flag in point.flags).items())
        ),
        "failures": [
            {"status": point.status.value, **values_of(point, *names)}
            for point in run.points
            if point.status not in (Status.OK, Status.UNSUPPORTED)
        ],
        "unreadable_files": [plain(problem, LONGEST_TEXT) for problem in run.problems],
    }


def _figures(point: Point) -> dict[str, Any]:
    names = ("busbw_bytes_per_second", "median_seconds", "low_seconds", "high_seconds")
    further = ("bound_seconds", "predicted_seconds")
    return {
        "size_bytes": point.size_bytes,
        **{name: figure(point, name) for name in (*names, *further)},
    }
