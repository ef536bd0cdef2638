"""Which of several like things is worse than the others, by the median absolute deviation.

Which group of ranks is slow: all groups measured at once and ranked, then halved down to the smallest.

Groups of one size are compared with their peers in the same case (median absolute deviation, as pairs are):
those that are joined by the same links. One that lies across two hosts among others inside a host is no peer.
Where groups lie inside each other (halves, quarters, neighbours), a walk from the whole machine down follows
the slow one at each size: of two halves the slower is the odd one, for the other shows what can be had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ccbench.analysis.health.matrix import Joined, LinkClass, doubts_of
from ccbench.cases import OVERLAP
from ccbench.errors import UsageError
from ccbench.groups import format_ranks, parse_groups
from ccbench.results import Point

LIMIT = 3.5
"""Scaled deviations from the median at which a value is an outlier (B. Iglewicz and D. C. Hoaglin, "How to
Detect and Handle Outliers", ASQC 1993: modified z-scores above 3.5)."""

SCALE = 1.4826
"""Median absolute deviation of normally distributed values times this is their standard deviation."""


def high_outliers(values: Sequence[float], least: float) -> tuple[int, ...]:
    """Places of values that lie above the median by more than LIMIT scaled deviations and by ``least``.

    ``least`` keeps a difference without consequence from being one, where all the others are very alike. Of
    fewer than three values none is an outlier: nobody knows which of two is the odd one.
    """
    if len(values) < 3:
        return ()
    middle = median(values)
    spread = SCALE * median(abs(value - middle) for value in values)
    edge = middle + max(LIMIT * spread, least)
    return tuple(place for place, value in enumerate(values) if value > edge)


def relative_spread(values: Sequence[float]) -> float:
    """Scaled median absolute deviation over the median; 0 for fewer than two values or a median of 0."""
    if len(values) < 2:
        return 0.0
    middle = median(values)
    return SCALE * median(abs(value - middle) for value in values) / middle if middle else 0.0


SLOW_GROUP = 0.10
"""A group this much slower than its peers is a finding."""

SLOW_HALF = 0.25
"""The same of a half against the other: two values have no spread that would tell noise from a difference."""

GROSS = 3.0
"""Where times are in doubt, a group must be this many times slower."""

DECIDED = 0.75
"""Share of the cases in which a group must be slow to be named."""

FEWEST_CASES = 2
"""Cases that must show the same half as the slow one."""

Members = tuple[int, ...]
Parts = tuple[Members, ...]


@dataclass(frozen=True)
class SlowGroup:
    """One slow group. evidence: one sentence without its full stop."""

    backend: str
    members: Members
    evidence: str

    @property
    def name(self) -> str:
        """``ranks 4-5``."""
        return f"ranks {format_ranks(self.members)}"


@dataclass(frozen=True)
class _Seen:
    """One case in which several groups ran at once: seconds, and what joins the group, by members."""

    backend: str
    expression: str
    ranks: int
    seconds: Mapping[Members, float]
    link_class: Mapping[Members, LinkClass]
    doubted: bool


def slow_groups(timed: Sequence[Point], joined: Callable[[Point], Joined]) -> list[SlowGroup]:
    """Groups slower than their peers, the smallest that a walk through nested groups ends at first.

    joined: how the ranks of a case are joined. A group inside which, or around which, another one is named
    already is not named again.
    """
    seen = list(_seen(timed, joined))
    named: list[SlowGroup] = []
    for backend in dict.fromkeys(one.backend for one in seen):
        mine = [one for one in seen if one.backend == backend]
        ended = _walk(backend, mine)
        found = [] if ended is None else [ended]
        for odd in _odd_among_likes(backend, mine):
            if not any(_nested(odd.members, other.members) for other in found):
                found.append(odd)
        named += found
    return named


def _seen(timed: Sequence[Point], joined: Callable[[Point], Joined]) -> Iterator[_Seen]:
    teams: dict[tuple[object, ...], Joined] = {}
    for point in timed:
        if not point.groups or point.concurrent or point.mode == OVERLAP:
            continue
        try:
            members = parse_groups(point.groups, point.ranks)
        except UsageError:
            continue  # an import whose groups ccbench cannot form
        medians = point.group_median_seconds
        if len(medians) == len(members) > 1 and min(medians) > 0:
            key = (point.backend, point.ranks, point.nodes)
            if key not in teams:
                teams[key] = joined(point)
            link_class = {group: teams[key].link_class(group) for group in members}
            times = dict(zip(members, medians, strict=True))
            doubted = bool(doubts_of(point))
            yield _Seen(point.backend, point.groups, point.ranks, times, link_class, doubted)


def _least(doubted: bool, share: float = SLOW_GROUP) -> float:
    """By how much, as a logarithm, a group must be slower."""
    return math.log(GROSS) if doubted else math.log1p(share)


def _odd_among_likes(backend: str, seen: Sequence[_Seen]) -> Iterator[SlowGroup]:
    """Outliers among the groups of one expression, in most of its cases."""
    by_expression: dict[str, list[_Seen]] = defaultdict(list)
    for one in seen:
        by_expression[one.expression].append(one)
    for expression, cases in by_expression.items():
        ratios: dict[Members, list[float]] = defaultdict(list)
        for one in cases:
            for groups in _peers(one):
                usual = median(one.seconds[group] for group in groups)
                logs = [math.log(one.seconds[group] / usual) for group in groups]
                for place in high_outliers(logs, _least(one.doubted)):
                    ratios[groups[place]].append(math.exp(logs[place]))
        for group, times in ratios.items():
            if len(times) >= max(FEWEST_CASES, DECIDED * len(cases)):
                text = (
                    f"{median(times):.2f} times the usual time of its peers ({expression}) in "
                    f"{len(times)} of {len(cases)} cases on {backend}"
                )
                yield SlowGroup(backend, group, text)


def _peers(one: _Seen) -> list[list[Members]]:
    """The groups of a case, those that are joined alike together."""
    peers: dict[LinkClass, list[Members]] = defaultdict(list)
    for group, link_class in one.link_class.items():
        peers[link_class].append(group)
    return list(peers.values())


def _walk(backend: str, seen: Sequence[_Seen]) -> SlowGroup | None:
    """From all ranks to the smallest slow group, by way of the slow one of each size; None without any."""
    current: Members = tuple(range(max((one.ranks for one in seen), default=0)))
    path: list[str] = []
    while True:
        step = _slow_child(current, seen)
        if step is None:
            break
        current, text = step
        path.append(text)
    return SlowGroup(backend, current, f"halved from {', then '.join(path)}, on {backend}") if path else None


def _slow_child(parent: Members, seen: Sequence[_Seen]) -> tuple[Members, str] | None:
    """The largest group inside ``parent`` that is slower than its siblings there, in most of their cases.

    Ways to part the same ranks (``rank // 2``, ``rank % 2``) are asked one by one: what is slow in one of
    them may be spread over all parts of the other.
    """
    inside = set(parent)
    ratios: dict[Parts, list[tuple[Members, float]]] = defaultdict(list)
    for one in seen:
        siblings = {group: time for group, time in one.seconds.items() if set(group) < inside}
        alike = len({one.link_class[group] for group in siblings}) == 1
        if len(siblings) < 2 or sum(map(len, siblings)) != len(parent) or not alike:
            continue
        slowest = max(siblings, key=siblings.__getitem__)
        ratio = siblings[slowest] / median(time for group, time in siblings.items() if group != slowest)
        is_slow = math.log(ratio) >= _least(one.doubted, SLOW_HALF)
        ratios[tuple(siblings)].append((slowest, ratio if is_slow else 0.0))
    for parts in sorted(ratios, key=lambda groups: -len(groups[0])):
        for group in parts:
            times = [ratio for slowest, ratio in ratios[parts] if slowest == group and ratio]
            if len(times) >= max(FEWEST_CASES, DECIDED * len(ratios[parts])):
                words = f"ranks {format_ranks(group)} ({median(times):.2f} times as long as the rest of "
                return group, f"{words}{format_ranks(parent)} in {len(times)} of {len(ratios[parts])} cases)"
    return None


def _nested(one: Members, other: Members) -> bool:
    return set(one) <= set(other) or set(other) <= set(one)
