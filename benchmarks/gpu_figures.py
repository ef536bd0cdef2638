"""What own kernels should reach where all ranks share one GPU: bytes, floors, verdicts. Pure functions.

On one GPU no link is used: all that ranks exchange goes through the GPU's memory or its L2 cache. So the
floor of an all_reduce is the time in which the GPU can copy what must be read and written at all: every
rank's input once and every rank's output once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ccbench.results import Point
from ccbench.stats import Interval
from ccbench.units import format_seconds, format_size

COPY_TRAFFIC = 2
"""Bytes moved per byte copied: one read and one written."""

MIB = 1 << 20
LARGEST_BYTES = 256 * MIB
INTERPRETED = "schedule:ring"

TWO_SHOT_SHARE, RING_SHARE = 0.80, 0.60
"""Shares of the floor to be reached at LARGEST_BYTES."""

INTERPRETER_RATIO, INTERPRETER_FROM_BYTES = 1.15, 16 * MIB
"""The interpreter's time for a byte moved over the ring kernel's, from this size on. It moves more: what is
handed on goes through a message, which the ring kernel writes straight into outputs (``moved_bytes``)."""

SMALL_BYTES, SMALL_RANKS, SMALL_SECONDS = 8, 8, 10e-6
"""The smallest all_reduce, and how long it may take in a CUDA graph."""

GRAPH = "graph"


@dataclass(frozen=True)
class Timed:
    """One case that was measured. seconds: of one launch, median and interval."""

    algorithm: str
    ranks: int
    size_bytes: int
    mode: str
    seconds: Interval
    samples: int
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ceiling:
    """How long the GPU takes to copy ``size_bytes`` from one buffer to another."""

    size_bytes: int
    seconds: Interval
    samples: int

    @property
    def rate(self) -> Interval:
        """Bytes read and written per second; ``low`` and ``high`` are ends of the rate."""
        traffic = COPY_TRAFFIC * self.size_bytes
        time = self.seconds
        return Interval(
            traffic / time.high, traffic / time.median, traffic / time.low, time.confidence
        )


@dataclass(frozen=True)
class Verdict:
    """A target and what was seen of it; ``value`` is None where nothing was measured."""

    text: str
    wanted: str
    value: Interval | None
    samples: int
    verdict: str


def moved_bytes(algorithm: str, ranks: int, size_bytes: int) -> int:
    """Bytes that an all_reduce reads and writes, wherever they lie; at most so many for trees.

    Counted from the kernels, per byte of one rank's buffer, N ranks:
    mesh_two_shot 2N: every element is read from all inputs and written to all outputs once.
    ring 5N-4: 3N-2 on the way around (N inputs read, N-1 messages written and read), N outputs written, and
    N-2 read again to be handed on. tree: up as the ring, down straight into outputs, which inner ranks read
    again; at most the ring's. schedule:ring 6N-4: messages on both ways.
    mesh_one_shot 2N(N-1)+3N: N-1 messages a rank written and read, its input read twice, its output written.
    mesh_pull N(N+1): every rank reads all inputs and writes its output.
    ll 4N(N-1)+3N: the same with a flag as large as the data. One rank: a copy, 2.
    """
    n = ranks
    if n == 1:
        return COPY_TRAFFIC * size_bytes
    counts = {
        "mesh_two_shot": 2 * n,
        "ring": 5 * n - 4,
        "tree": 5 * n - 4,
        INTERPRETED: 6 * n - 4,
        "mesh_one_shot": 2 * n * (n - 1) + 3 * n,
        "mesh_pull": n * (n + 1),
        "ll": 4 * n * (n - 1) + 3 * n,
    }
    return counts[algorithm] * size_bytes


def floor_seconds(ranks: int, size_bytes: int, ceiling: Ceiling) -> Interval:
    """No all_reduce of buffers that come from memory can be faster: all inputs read, all outputs written."""
    traffic, rate = 2 * ranks * size_bytes, ceiling.rate
    return Interval(
        traffic / rate.high, traffic / rate.median, traffic / rate.low, rate.confidence
    )


def floor_share(one: Timed, ceiling: Ceiling) -> Interval:
    """Floor over time, 1 is perfect; above 1 what is read and written stays in the L2 cache.

    The ends pair the worst with the best of both intervals, so together they promise less than each.
    """
    floor = floor_seconds(one.ranks, one.size_bytes, ceiling)
    return _ratio(floor, one.seconds)


def _ratio(upper: Interval, lower: Interval) -> Interval:
    confidence = max(0.0, upper.confidence + lower.confidence - 1)
    return Interval(
        upper.low / lower.high, upper.median / lower.median, upper.high / lower.low, confidence
    )


def timed_of(points: Iterable[Point]) -> tuple[Timed, ...]:
    """Cases that have a speed, as this page sees them."""
    return tuple(
        Timed(
            point.algorithm,
            point.ranks,
            point.size_bytes,
            point.mode,
            Interval(
                point.low_seconds,
                point.median_seconds,
                point.high_seconds,
                point.interval_confidence or 0.0,
            ),
            len(point.samples_seconds),
            point.flags,
        )
        for point in points
        if point.median_seconds
        and point.low_seconds is not None
        and point.high_seconds is not None
    )


def judged(value: Interval | None, limit: float, at_least: bool) -> str:
    """PASS or FAIL where the whole interval lies on one side of ``limit``, else NO VERDICT."""
    if value is None:
        return "NO VERDICT"
    worst, best = (value.low, value.high) if at_least else (-value.high, -value.low)
    limit = limit if at_least else -limit
    return "PASS" if worst >= limit else "FAIL" if best < limit else "NO VERDICT"


def verdicts(timed: Sequence[Timed], ceiling: Ceiling, ranks: Sequence[int]) -> list[Verdict]:
    """Every target at every number of ranks, in CUDA graphs, which leave the launches' cost out."""
    places = {
        (one.algorithm, one.ranks, one.size_bytes): one for one in timed if one.mode == GRAPH
    }
    found = []
    for count in ranks:
        for name, share in (("mesh_two_shot", TWO_SHOT_SHARE), ("ring", RING_SHARE)):
            found.append(
                _of_floor(places.get((name, count, LARGEST_BYTES)), name, count, share, ceiling)
            )
        found += _interpreter(places, count)
    return [*found, _small(list(places.values()))]


def _of_floor(
    one: Timed | None, name: str, ranks: int, share: float, ceiling: Ceiling
) -> Verdict:
    value = floor_share(one, ceiling) if one else None
    text = f"{name} {format_size(LARGEST_BYTES)}, {ranks} ranks, share of the memory floor"
    return Verdict(
        text,
        f"at least {share:.2f}",
        value,
        one.samples if one else 0,
        judged(value, share, at_least=True),
    )


def _interpreter(places: dict[tuple[str, int, int], Timed], ranks: int) -> list[Verdict]:
    sizes = sorted(
        {size for _, count, size in places if count == ranks and size >= INTERPRETER_FROM_BYTES}
    )
    found = []
    for size in sizes or [INTERPRETER_FROM_BYTES]:
        own, ring = places.get((INTERPRETED, ranks, size)), places.get(("ring", ranks, size))
        value = _ratio(_a_byte(own), _a_byte(ring)) if own and ring else None
        text = f"{INTERPRETED} {format_size(size)}, {ranks} ranks, time of a byte moved over the ring kernel's"
        samples = min(own.samples, ring.samples) if own and ring else 0
        verdict = judged(value, INTERPRETER_RATIO, at_least=False)
        found.append(Verdict(text, f"at most {INTERPRETER_RATIO:.2f}", value, samples, verdict))
    return found


def _a_byte(one: Timed) -> Interval:
    moved, time = moved_bytes(one.algorithm, one.ranks, one.size_bytes), one.seconds
    return Interval(time.low / moved, time.median / moved, time.high / moved, time.confidence)


def _small(timed: Sequence[Timed]) -> Verdict:
    fitting = [
        one for one in timed if (one.ranks, one.size_bytes) == (SMALL_RANKS, SMALL_BYTES)
    ]
    best = min(fitting, key=lambda one: one.seconds.median, default=None)
    name = f" ({best.algorithm})" if best else ""
    text = f"fastest all_reduce of {SMALL_BYTES} B, {SMALL_RANKS} ranks{name}, in seconds"
    value = best.seconds if best else None
    verdict = judged(value, SMALL_SECONDS, at_least=False)
    return Verdict(
        text,
        f"at most {format_seconds(SMALL_SECONDS)}",
        value,
        best.samples if best else 0,
        verdict,
    )


def exit_code(found: Sequence[Verdict]) -> int:
    """0 all targets met, 1 one missed, 3 one could not be judged."""
    seen = {one.verdict for one in found}
    return 1 if "FAIL" in seen else 3 if "NO VERDICT" in seen else 0


def verdict_line(one: Verdict) -> str:
    """The verdict first, then what was seen with its interval and number of samples."""
    if one.value is None:
        return f"{one.verdict}: {one.text}: not measured (wanted: {one.wanted})"
    low, middle, high = (
        f"{value:.3g}" for value in (one.value.low, one.value.median, one.value.high)
    )
    return f"{one.verdict}: {one.text}: {middle} [{low}, {high}], {one.samples} samples (wanted: {one.wanted})"


def table_lines(timed: Sequence[Timed], ceiling: Ceiling, emulated: bool) -> list[str]:
    """One line a case: time with interval, bytes moved and their rate, share of the floor.

    emulated: then the last three would set an emulation beside something, and are left out.
    """
    heads = (
        "algorithm",
        "ranks",
        "size",
        "mode",
        "time [interval]",
        "samples",
        "moved",
        "GB/s",
        "of floor",
    )
    rows: list[tuple[str, ...]] = [heads[:6] if emulated else heads]
    order = sorted(timed, key=lambda one: (one.ranks, one.size_bytes, one.algorithm, one.mode))
    for one in order:
        time = one.seconds
        ends = f"[{format_seconds(time.low)}, {format_seconds(time.high)}]"
        cells: tuple[str, ...] = (
            one.algorithm,
            str(one.ranks),
            format_size(one.size_bytes),
            one.mode,
            f"{format_seconds(time.median)} {ends}",
            str(one.samples),
        )
        if not emulated:
            moved = moved_bytes(one.algorithm, one.ranks, one.size_bytes)
            share = floor_share(one, ceiling).median
            cells = (
                *cells,
                format_size(moved),
                f"{moved / time.median / 1e9:.4g}",
                f"{share:.1%}",
            )
        rows.append(cells)
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def points_document(
    timed: Sequence[Timed], ceiling: Ceiling, emulated: bool
) -> list[dict[str, object]]:
    """The same figures for machines: seconds, bytes, fractions."""
    found = []
    for one in timed:
        document: dict[str, object] = {
            "algorithm": one.algorithm,
            "ranks": one.ranks,
            "size_bytes": one.size_bytes,
            "mode": one.mode,
            "median_seconds": one.seconds.median,
            "low_seconds": one.seconds.low,
            "high_seconds": one.seconds.high,
            "confidence": one.seconds.confidence,
            "samples": one.samples,
            "flags": list(one.flags),
            "moved_bytes": moved_bytes(one.algorithm, one.ranks, one.size_bytes),
        }
        if not emulated:
            share = floor_share(one, ceiling)
            document["floor_share"] = share.median
            document["floor_share_low"], document["floor_share_high"] = share.low, share.high
        found.append(document)
    return found
