"""What measured curves say about themselves: dips, turns, and collectives that lose to others. No model.

A difference counts only where the intervals lie apart and the medians by ``CLEAR_SHARE``; points without an
interval (imported ones) are judged by twice that share, since nothing is known of their noise.

The rules between collectives are the self-consistent performance requirements of J. L. Träff, W. D. Gropp
and R. Thakur, "Self-Consistent MPI Performance Guidelines", IEEE TPDS 21 (2010).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ccbench.cases import OVERLAP, WORK
from ccbench.report.points import series_key
from ccbench.results import Point
from ccbench.topology.graph import Finding
from ccbench.units import format_ratio, format_seconds, format_size, percent, plural

CLEAR_SHARE = 0.05
"""Part by which medians must differ; clusters' own checks of dips use the same."""


@dataclass(frozen=True)
class Rule:
    """``whole`` must not be slower than all of ``parts`` one after the other, at the same size."""

    whole: str
    parts: tuple[str, ...]


RULES = (
    Rule("all_reduce", ("reduce_scatter", "all_gather")),
    Rule("all_reduce", ("reduce", "broadcast")),
    Rule("reduce_scatter", ("reduce", "scatter")),
    Rule("reduce_scatter", ("all_reduce",)),
    Rule("all_gather", ("gather", "broadcast")),
    Rule("all_gather", ("all_to_all",)),
    Rule("broadcast", ("scatter", "all_gather")),
    Rule("reduce", ("all_reduce",)),
    Rule("gather", ("all_gather",)),
    Rule("scatter", ("broadcast",)),
)
"""Sizes are nccl-tests': the whole buffer on either side, so equal sizes are equal work."""


def _judged(points: Sequence[Point]) -> list[Point]:
    """Cases with a time that follows rules; behind a computation it is that of both, which follows none."""
    return [
        one
        for one in points
        if one.median_seconds and one.size_bytes > 0 and one.group_ranks > 1
        if not (one.emulated or one.baseline or one.mode == OVERLAP)
    ]


def _doubt(kind: str, subject: str, evidence: str, advice: str, cases: int) -> Finding:
    return Finding("doubt", kind, (), evidence, advice, subject, cases)


def _seconds(point: Point) -> float:
    return point.median_seconds or 0.0


def _low(point: Point) -> float:
    """The least the time may be; of a point without an interval a little below it."""
    return point.low_seconds if point.low_seconds is not None else _seconds(point) * (1 - CLEAR_SHARE)


def _high(point: Point) -> float:
    return point.high_seconds if point.high_seconds is not None else _seconds(point)


def _curves(points: Sequence[Point]) -> list[list[Point]]:
    """Points of one line each, by size."""
    lines: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for one in points:
        place = (one.collective, one.ranks, one.nodes, one.dtype, one.op, one.simulated)
        line = (*place, *series_key(one))
        lines[line].append(one)
    return [sorted(members, key=lambda one: one.size_bytes) for members in lines.values()]


def _turns(points: Sequence[Point]) -> Iterator[Finding]:
    """Times that fall where the size grows: padding or another choice would have made the smaller faster."""
    found = []
    for line in _curves(_judged(points)):
        for before, after in pairwise(line):
            if after.size_bytes > before.size_bytes and _clearly_slower(before, [after]):
                found.append((_seconds(before) / _seconds(after), before, after))
    if found:
        ratio, before, after = max(found, key=lambda item: item[0])
        yield _doubt(
            "not_monotone", f"Time falls with size at {plural(len(found), 'place')}",
            f"most: {before.label} takes {format_seconds(_seconds(before))}, {format_ratio(ratio)} the "
            f"{format_seconds(_seconds(after))} of {format_size(after.size_bytes)}{_switch(before, after)}",
            "the smaller size is chosen badly or was disturbed: measure it again, then try other algorithms "
            "and protocols there", len(found),
        )  # fmt: skip


def _dips(points: Sequence[Point]) -> Iterator[Finding]:
    """Bus bandwidth that falls and comes back: two neighbours of a point are both clearly faster."""
    found = []
    for line in _curves(_judged(points)):
        best: Point | None = None
        for place, point in enumerate(line):
            if best is not None and _lower_rate(point, best):
                later = [one for one in line[place + 1 :] if _lower_rate(point, one)]
                if later:
                    found.append(((point.busbw or 0.0) / (best.busbw or 1.0), best, point))
            if point.busbw and (best is None or point.busbw > (best.busbw or 0.0)):
                best = point
    if found:
        share, before, dip = min(found, key=lambda item: item[0])
        yield _doubt(
            "bandwidth_dip", f"Bus bandwidth dips at {plural(len(found), 'size')}",
            f"deepest: {dip.label} has {dip.busbw:.4g} GB/s, {percent(1 - share)} less than the "
            f"{before.busbw:.4g} GB/s of {format_size(before.size_bytes)}, and larger sizes are faster again"
            f"{_switch(before, dip)}",
            "typical of a change of algorithm or protocol in the wrong place; compare forced algorithms at "
            "that size", len(found),
        )  # fmt: skip


def _lower_rate(point: Point, other: Point) -> bool:
    """Whether ``point`` is clearly below ``other`` in bus bandwidth, the interval taken at its kind end."""
    fastest, slowest = point.busbw_at(_low(point)), other.busbw_at(_high(other))
    if fastest is None or slowest is None or not point.busbw or not other.busbw:
        return False
    return fastest < slowest and point.busbw < (1 - CLEAR_SHARE) * other.busbw


def _clearly_slower(point: Point, others: Sequence[Point]) -> bool:
    """Whether ``point`` takes longer than ``others`` one after the other, beyond noise."""
    together = sum(_seconds(one) for one in others)
    apart = _low(point) > sum(_high(one) for one in others)
    return apart and _seconds(point) > (1 + CLEAR_SHARE) * together


def _switch(before: Point, after: Point) -> str:
    """What the library chose differently at the two sizes, where that is known."""
    one = " ".join(word for word in (before.algorithm_used, before.protocol_used) if word)
    two = " ".join(word for word in (after.algorithm_used, after.protocol_used) if word)
    return f" ({one} there, {two} here)" if one and two and one != two else ""


def _work(point: Point) -> tuple[object, ...]:
    """What two cases must share to be compared, collective and algorithm apart."""
    asked = (
        "backend",
        "dtype",
        "ranks",
        "nodes",
        "size_bytes",
        "mode",
        "transport",
        *(axis.name for axis in WORK),
    )
    return (point.run, point.simulated, *(getattr(point, name) for name in asked))


def _inconsistent(points: Sequence[Point]) -> Iterator[Finding]:
    """Collectives slower than others that together do the same work, each by its fastest algorithm."""
    fastest: dict[tuple[object, ...], dict[str, Point]] = defaultdict(dict)
    for one in _judged(points):
        known = fastest[_work(one)].get(one.collective)
        if known is None or _seconds(one) < _seconds(known):
            fastest[_work(one)][one.collective] = one
    for rule in RULES:
        broken = []
        for members in fastest.values():
            parts = [members[part] for part in rule.parts if part in members]
            if rule.whole not in members or len(parts) < len(rule.parts):
                continue
            whole = members[rule.whole]
            if _same_op(whole, parts) and _clearly_slower(whole, parts):
                broken.append((_seconds(whole) / sum(map(_seconds, parts)), whole))
        if broken:
            ratio, worst = max(broken, key=lambda item: item[0])
            together = " followed by ".join(rule.parts)
            yield _doubt(
                "self_inconsistent",
                f"{rule.whole} slower than {together} at {plural(len(broken), 'size')}",
                f"most: {worst.label} takes {format_seconds(_seconds(worst))}, "
                f"{format_ratio(ratio)} {together}",
                f"use {together} there, or force another algorithm of {rule.whole}", len(broken),
            )  # fmt: skip


def _same_op(whole: Point, parts: Sequence[Point]) -> bool:
    reducing = {one.op for one in (whole, *parts) if one.op != "none"}
    return len(reducing) <= 1


def _losing_defaults(points: Sequence[Point]) -> Iterator[Finding]:
    """The library's own choice against algorithms that were asked for, of the same work."""
    groups: dict[tuple[object, ...], list[Point]] = defaultdict(list)
    for one in _judged(points):
        work = (*_work(one), one.collective, one.op, one.root, one.in_place, one.registration)
        groups[work].append(one)
    lost: dict[tuple[str, str], list[tuple[float, Point, Point]]] = defaultdict(list)
    for members in groups.values():
        for default in (one for one in members if _is_default(one)):
            named = [one for one in members if not _is_default(one)]
            best = min(named, key=_seconds, default=None)
            if best is not None and _clearly_slower(default, [best]):
                lost[default.backend, default.collective].append(
                    (_seconds(default) / _seconds(best), default, best)
                )
    for (backend, collective), cases in sorted(lost.items()):
        ratio, default, best = max(cases, key=lambda item: item[0])
        words = [best.algorithm] + [best.protocol] * (best.protocol != "default")
        yield _doubt(
            "default_loses",
            f"{backend}'s choice for {collective} loses at {plural(len(cases), 'size')}",
            f"most: {default.label} takes {format_seconds(_seconds(default))}, {format_ratio(ratio)} "
            f"{' '.join(words)}",
            f"force {' '.join(words)} around {format_size(default.size_bytes)}, or tune the choice",
            len(cases),
        )  # fmt: skip


def _is_default(point: Point) -> bool:
    return point.algorithm == "default" and point.protocol == "default" and not point.channels


SHAPE_RULES = (_turns, _dips, _inconsistent, _losing_defaults)
