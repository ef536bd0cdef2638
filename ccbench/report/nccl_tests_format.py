"""A run in the text format of NVIDIA's nccl-tests, for the many tools that read it; importing gives it back.

The layout follows the tables nccl-tests 2.13 to 2.16 print (github.com/NVIDIA/nccl-tests,
src/common.cu): sizes in bytes, times in us, rates in GB/s, two placements a row, N/A for what is not there.
Comment lines, which readers skip, say what the format has no room for: who wrote it, the statuses of cases
without figures, and that nccl-tests itself has no such program (barrier).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.cases import OVERLAP, SETTINGS, Status
from ccbench.report.points import imported_from, meaning_of, provenance
from ccbench.results import Point
from ccbench.units import plain, plural

TYPE_NAMES = {
    "float16": "half",
    "bfloat16": "bfloat16",
    "float32": "float",
    "float64": "double",
    "float8_e4m3": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}
"""nccl-tests' names of element types, where they are not ours."""

COLLECTIVE_NAMES = {"all_to_all": "alltoall", "all_to_all_v": "alltoallv", "send_recv": "sendrecv"}

PROGRAMS = (
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "all_to_all_v",
    "gather", "scatter", "send_recv",
)  # fmt: skip
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
class Table:
    """One table: what one run of an nccl-tests binary would have printed."""

    name: str
    text: str


def nccl_tests_tables(points: Sequence[Point]) -> tuple[Table, ...]:
    """One table for every (backend, collective, algorithm, ranks) and whatever else tells runs apart."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for point in points:
        groups[tuple(getattr(point, name) for name in TABLE_FIELDS)].append(point)
    return tuple(_table(group) for _, group in sorted(groups.items(), key=lambda item: str(item[0])))


def _table(points: Sequence[Point]) -> Table:
    first = points[0]
    words = [first.backend, first.collective, first.algorithm, f"{first.ranks}ranks"]
    words += [first.protocol] * (first.protocol != "default") + [first.mode] * (first.mode != "streaming")
    words += [f"{first.nodes}nodes"] * (first.nodes > 1) + [first.run] * bool(first.run)
    words += [first.setting] * bool(first.setting)
    lines = [*_preamble(points), *_HEADER]
    rows: dict[tuple[object, ...], dict[bool, Point]] = defaultdict(dict)
    for point in points:
        rows[point.dtype, point.op, point.root, point.size_bytes, point.count][point.in_place] = point
    for placements in (rows[key] for key in sorted(rows, key=_row_order)):
        lines.append(_row(next(iter(placements.values())), placements))
        lines += [_remark(one) for one in placements.values() if one.status != Status.OK]
        lines += [_flags(one) for one in placements.values() if one.flags]
    return Table("-".join(words), "\n".join([*lines, *_summary(points)]) + "\n")


def _row_order(key: tuple[object, ...]) -> tuple[str, str, int, int]:
    dtype, op, root, size, _ = key
    return str(dtype), str(op), int(str(root)), int(str(size))


def _preamble(points: Sequence[Point]) -> list[str]:
    first = points[0]
    sizes = [point.size_bytes for point in points]
    label, origin = provenance(points), imported_from(points)
    lines = [
        _program(first.collective),
        f"# nThread 1 nGpus {first.ranks} minBytes {min(sizes)} maxBytes {max(sizes)}",
        "#",
        f"# written by ccbench: backend {first.backend}, algorithm {first.algorithm}, protocol "
        f"{first.protocol}, mode {first.mode}" + (f", {first.setting}" if first.setting else ""),
        f"# {plural(first.ranks, 'rank')} on {plural(first.nodes, 'node')}; "
        f"{'0 nodes: not known; ' if not first.nodes else ''}host {first.host or 'unknown'}, "
        f"machine {first.machine or 'unknown'}; times are {_times(points)}",
    ]
    versions = sorted({point.backend_version for point in points if point.backend_version})
    lines += [f"# measured with {'; '.join(versions)}"] * bool(versions) + [f"# {origin}"] * bool(origin)
    if label:
        lines.append(f"# {label}: {meaning_of(label)}")
    return [*lines, "#"]


def _program(collective: str) -> str:
    """The line that names the program; for a collective without one it says so and claims nothing."""
    name = COLLECTIVE_NAMES.get(collective, collective)
    if collective in PROGRAMS:
        return f"# Collective test starting: {name}_perf"
    return f"# {name}_perf: nccl-tests has no such program, this is ccbench's own table in its layout"


def _times(points: Sequence[Point]) -> str:
    """What the times are: medians, or what an imported output printed."""
    kinds = sorted({point.time_statistic for point in points})
    names = {"median": "medians", "mean": "means as printed", "printed": "as printed"}
    return ", ".join(names.get(kind, kind) for kind in kinds)


def _row(point: Point, placements: dict[bool, Point]) -> str:
    kind = TYPE_NAMES.get(point.dtype, point.dtype)
    start = f"{point.size_bytes:>12}  {point.count:>12}  {kind:>8}  {point.op:>6}  {point.root:>6}"
    return start + "".join(_placement(placements.get(in_place)) for in_place in (False, True))


def _placement(point: Point | None) -> str:
    """Four columns of one placement; N/A wherever nothing was measured."""
    if point is None or point.median_seconds is None:
        time = algbw = busbw = "N/A"
    else:
        time = _microseconds(point.median_seconds)
        # A case that moves no data has no bandwidth here; nccl-tests prints zero for it. A computation and a
        # collective together have none either, and zero would be taken for the collective's.
        none = "N/A" if point.mode == OVERLAP else "0.00"
        algbw, busbw = (f"{rate:.2f}" if rate else none for rate in (point.algbw, point.busbw))
    wrong = "N/A" if point is None or point.wrong_elements is None else f"{point.wrong_elements:g}"
    return f"  {time:>7}  {algbw:>6}  {busbw:>6}  {wrong:>5}"


def _microseconds(seconds: float) -> str:
    """As nccl-tests writes times: two decimals below 100 us, one below 10000, none above."""
    value = seconds * 1e6
    return f"{value:.2f}" if value < 100 else f"{value:.1f}" if value < 10_000 else f"{value:.0f}"


def _remark(point: Point) -> str:
    where = "in place" if point.in_place else "out of place"
    detail = plain(point.detail, 200)
    if point.wrong_elements:
        # Readers pass over the figures of a placement without a time, the count of wrong elements included.
        count = plural(point.wrong_elements, "wrong element")
        detail = f"{count}: {detail}" if detail else count
    return f"# {point.size_bytes} B {where}: {point.status.value} {detail}".rstrip()


def _flags(point: Point) -> str:
    """What makes the figures doubtful, one word each, so that importing gives the same flags."""
    where = "in place" if point.in_place else "out of place"
    return f"# {point.size_bytes} B {where}: flags {' '.join('_'.join(one.split()) for one in point.flags)}"


def _summary(points: Sequence[Point]) -> list[str]:
    """The two closing lines; like nccl-tests', the average is over all sizes and says little."""
    wrong = sum(bool(point.wrong_elements) for point in points)
    timed = [point for point in points if point.median_seconds is not None and point.mode != OVERLAP]
    rates = [point.busbw or 0.0 for point in timed]
    average = f"{sum(rates) / len(rates):g}" if rates else "N/A"
    return [
        f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}",
        f"# Avg bus bandwidth    : {average} ",
        "#",
    ]
