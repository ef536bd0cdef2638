"""A run in nccl-tests' text format, for programs that read it.

The layout follows the tables that nccl-tests 2.13 to 2.16 print (github.com/NVIDIA/nccl-tests, src/common.cu):
sizes in bytes, times in us, rates in GB/s, two placements a row, N/A for what is not there. Importing gives
the run back. Comment lines, which readers skip, say what the format has no room for: who wrote it, the
statuses of cases without figures, and that nccl-tests has no such program (barrier).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ccbench.analysis.findings import provenance
from ccbench.cases.axes import OVERLAP, SETTINGS
from ccbench.cases.measurement import Status
from ccbench.report.wording import imported_from, meaning_of, unusual
from ccbench.results import Point
from ccbench.results.keys import Key, grouped
from ccbench.units import plain, plural

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


def nccl_tests_tables(points: Sequence[Point]) -> list[tuple[str, str]]:
    """Name and text for every (backend, collective, algorithm, ranks) and whatever else tells runs apart.

    Each is what one run of an nccl-tests binary would have printed.
    """
    groups = grouped(points, Key(TABLE_FIELDS))
    return [_table(groups[key]) for key in sorted(groups, key=str)]


def _table(points: Sequence[Point]) -> tuple[str, str]:
    first = points[0]
    words = [first.backend, first.collective, first.algorithm, f"{first.ranks}ranks"]
    words += [*unusual(first), *([f"{first.nodes}nodes"] if first.nodes > 1 else [])]
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
    return "-".join(words), "\n".join(lines) + "\n"


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
    lines += ([f"# measured with {'; '.join(versions)}"] if versions else []) + (
        [f"# {origin}"] if origin else []
    )
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
