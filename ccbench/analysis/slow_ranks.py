"""Things that are worse than their peers: outliers, slow groups of ranks, slow ranks, flagged devices.

An outlier lies far above the median, by the median absolute deviation.

A slow group of ranks: all groups are measured at once and ranked, then halved down to the smallest.

Groups of one size are compared with their peers in the same case (median absolute deviation, as pairs are):
those that are joined by the same links. One that lies across two hosts among others inside a host is no peer.
Where groups lie inside each other (halves, quarters, neighbours), a walk from the whole machine down follows
the slow one at each size: of two halves the slower is the odd one, for the other shows what can be had.

A slow rank, by collectives of all ranks: the others wait for it, or it is not given its processor.

A rank that works slowly waits least. One whose process is stopped now and then (a quota of processor time) is
stopped while it waits as well, and then all ranks wait alike: it shows by the processor time that it got. One
whose processor other programs had is late by their fault: the system tells how long it stood in the queue.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ccbench.analysis.pair_matrix import Joined, LinkClass, doubts_of
from ccbench.cases.axes import OVERLAP
from ccbench.cases.capabilities import capabilities_of
from ccbench.errors import RunFolderError, UsageError
from ccbench.flags import DEVICE_FLAGS, LOAD_FLAGS, Flag
from ccbench.groups import format_ranks, parse_groups
from ccbench.machine.readings import flags_of, readings_from_json
from ccbench.results import Point
from ccbench.results.keys import grouped
from ccbench.results.schema import WAITING_SHARE
from ccbench.stats import CHANCE, chance_of_most

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
"""A half this much slower than the other is one: two values have no spread that would tell noise."""

GROSS = 3.0
"""A group must be this many times slower if times are in doubt."""

DECIDED = 0.75
"""Share of the cases in which a group must be slow to be named."""

FEWEST_CASES = 2
"""Cases that must show the same half as the slow one."""

Members = tuple[int, ...]
Parts = tuple[Members, ...]


@dataclass(frozen=True)
class SlowGroup:
    """One slow group. evidence: one sentence without its full stop."""

    members: Members
    evidence: str

    @property
    def name(self) -> str:
        """``ranks 4-5``."""
        return f"ranks {format_ranks(self.members)}"


@dataclass(frozen=True)
class _Case:
    """One case in which several groups ran at once: seconds, and what joins the group, by members."""

    point: Point
    seconds: Mapping[Members, float]
    link_class: Mapping[Members, LinkClass]

    def least(self, share: float) -> float:
        """Return by how much, as a logarithm, an outlier must be slower."""
        return math.log(GROSS) if doubts_of(self.point) else math.log1p(share)


def slow_groups(timed: Sequence[Point], joined: Callable[[Point], Joined]) -> list[SlowGroup]:
    """Groups slower than their peers, the smallest that a walk through nested groups ends at first.

    joined: how the ranks of a case are joined. A group inside which, or around which, another one is named
    already is not named again.
    """
    cases: list[_Case] = []
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
            cases.append(_Case(point, dict(zip(members, medians, strict=True)), link_class))
    named: list[SlowGroup] = []
    for backend, own in grouped(cases, lambda case: case.point.backend).items():
        # From all ranks to the smallest slow group, by way of the slow one of each size.
        current: Members = tuple(range(max(case.point.ranks for case in own)))
        path: list[str] = []
        while step := _slow_child(current, own):
            current, text = step
            path.append(text)
        walked = f"halved from {', then '.join(path)}, on {backend}"
        slow = [SlowGroup(current, walked)] if path else []
        for odd in _odd_among_peers(backend, own):
            if not any(
                set(odd.members) <= set(kept.members) or set(odd.members) >= set(kept.members)
                for kept in slow
            ):
                slow.append(odd)
        named += slow
    return named


def _slow_child(parent: Members, cases: Sequence[_Case]) -> tuple[Members, str] | None:
    """The largest group inside ``parent`` that is slower than its siblings there, in most of their cases."""
    inside = set(parent)
    slowest: list[tuple[Parts, Members, float]] = []
    for case in cases:
        siblings = {group: time for group, time in case.seconds.items() if set(group) < inside}
        alike = len({case.link_class[group] for group in siblings}) == 1
        if len(siblings) < 2 or sum(map(len, siblings)) != len(parent) or not alike:
            continue
        parts, group = tuple(siblings), max(siblings, key=siblings.__getitem__)
        ratio = siblings.pop(group) / median(siblings.values())
        is_slow = math.log(ratio) >= case.least(SLOW_HALF)
        slowest.append((parts, group, ratio if is_slow else 0.0))
    # Ways to part the same ranks (``rank // 2``, ``rank % 2``) are asked one by one: what is slow in one of
    # them may be spread over all parts of the other.
    ways = grouped(slowest, lambda row: row[0])
    for parts in sorted(ways, key=lambda groups: -len(groups[0])):
        for group in parts:
            times = [ratio for _, slow, ratio in ways[parts] if slow == group and ratio]
            if len(times) >= max(FEWEST_CASES, DECIDED * len(ways[parts])):
                words = f"ranks {format_ranks(group)} ({median(times):.2f} times as long as the rest of "
                return (
                    group,
                    f"{words}{format_ranks(parent)} in {len(times)} of {len(ways[parts])} cases)",
                )
    return None


def _odd_among_peers(backend: str, cases: Sequence[_Case]) -> Iterator[SlowGroup]:
    """Outliers among the groups of one expression, in most of its cases."""
    for expression, members in grouped(cases, lambda case: case.point.groups).items():
        ratios: list[tuple[Members, float]] = []
        for case in members:
            # Peers are groups that are joined alike.
            for groups in grouped(case.link_class, case.link_class.__getitem__).values():
                usual = median(case.seconds[group] for group in groups)
                logs = [math.log(case.seconds[group] / usual) for group in groups]
                outliers = high_outliers(logs, case.least(SLOW_GROUP))
                ratios += [(groups[place], math.exp(logs[place])) for place in outliers]
        for group, odd in grouped(ratios, lambda row: row[0]).items():
            if len(odd) >= max(FEWEST_CASES, DECIDED * len(members)):
                middle = median(ratio for _, ratio in odd)
                text = (
                    f"{middle:.2f} times the usual time of its peers ({expression}) in "
                    f"{len(odd)} of {len(members)} cases on {backend}"
                )
                yield SlowGroup(group, text)


UNNAMED = "a device"
"""Name of the device behind a flag where no reading tells whose it is."""


def flagged_devices(
    cases: Iterable[tuple[Collection[str], str]], flags: Collection[str] = DEVICE_FLAGS
) -> list[tuple[str, str, int]]:
    """(flag, device, number of cases), the most frequent first.

    cases: of each its flags and the text of its readings. flags: those that count.
    """
    counts = Counter(
        (flag, device)
        for case_flags, readings in cases
        for flag in {*case_flags} & {*flags}
        for device in devices_with(readings, flag) or [UNNAMED]
    )
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(flag, device, count) for (flag, device), count in ordered]


def devices_with(readings: str, flag: str) -> list[str]:
    """Host, bus id and model of the devices that gave ``flag``; nothing where the readings do not tell."""
    try:
        before, after = readings_from_json(readings)
    except RunFolderError:
        return []
    later = {reading.device: reading for reading in after}
    return [
        " ".join(word for word in (*reading.device, reading.model) if word)
        for reading in before
        if reading.device in later and flag in flags_of((reading,), (later[reading.device],))
    ]


SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives in which every rank does as much: in others a root is late for good reason."""

FEWEST_DECIDED = 4
"""Cases in which one rank is clearly the slowest; of these in DECIDED it must be the same one to be named."""

TELLING_SECONDS = 1e-5
"""Launches that are shorter tell nothing of waiting: a tenth of them is less than what a cache line takes
longer or shorter between two processors, by where these and the buffers happen to be."""

QUEUED = 0.05
"""Of the time: a rank that stood longer in the queue for its processor is late because of what had it."""

STARVED = 0.75
"""Of the processor time of every other rank: a rank that gets less is not given what they are."""


def waited_for(timed: Sequence[Point]) -> Iterator[tuple[int, str]]:
    """Yield ranks that the others wait for, one of a team at most, each with the evidence."""

    def waits_least(point: Point) -> tuple[int, ...]:
        waits, rank = sorted(point.rank_waiting), point.slowest_rank
        # The medians of ranks alone decide nothing.
        if rank is None or not waits or Flag.STEAL in point.flags:
            return ()
        # Where other programs kept processors busy, whichever rank shared its own with them was late, and of
        # two ranks one is that by chance: there the rank must not have stood in the queue for its processor.
        # Where ranks share processors all stand there: it must not have done so longer than another did.
        queued = point.rank_queued_share
        usual = min(queued) if queued and point.oversubscribed else 0.0
        if queued[rank] - usual > QUEUED if queued else _is_loaded(point):
            return ()
        # Two values have no spread that would tell noise from a difference.
        least = WAITING_SHARE if len(waits) > 2 else SLOW_HALF
        return (rank,) if waits[1] - waits[0] >= least else ()

    telling = [point for point in timed if (point.median_seconds or 0.0) >= TELLING_SECONDS]
    for rank, _, share in _blamed(telling, waits_least, CHANCE):
        yield rank, f"the others wait for it in {share}"


def starved_ranks(timed: Sequence[Point]) -> Iterator[tuple[int, str]]:
    """Yield ranks that get less processor time than all others, less than half of a team, each with the evidence.

    What other programs took is no rank's fault.
    """
    # Ranks that poll keep their processors busy while they wait, so that each has all it is given.
    polling = [
        polled
        for polled in timed
        if capabilities_of(polled.backend).polls and Flag.STEAL not in polled.flags
    ]
    for starved, against, share in _blamed(polling, _gets_least):
        # A rank's processor time over the least that a rank gets that does not lack it.
        ratios = []
        for point in against:
            shares, lacking = _could_run(point), _gets_least(point)
            least = min(share for rank, share in enumerate(shares) if rank not in lacking)
            ratios.append(shares[starved] / least)
        yield (
            starved,
            f"it gets {median(ratios):.0%} of the next one's processor time in {share}",
        )


def _blamed(
    timed: Sequence[Point], of_case: Callable[[Point], tuple[int, ...]], chance: float = 1.0
) -> Iterator[tuple[int, Sequence[Point], str]]:
    """Yield ranks that ``of_case`` gives for most of the cases of a team that decide, with these and their share.

    of_case: the ranks that one case speaks against. chance: how likely ranks that are all alike may be to
    give one of them as many cases.
    """
    of_all = (
        point
        for point in timed
        if not (point.pair or point.groups or point.concurrent)
        and point.collective in SYMMETRIC
        and point.ranks > 1
    )
    teams = grouped(of_all, lambda point: (point.backend, point.ranks))
    sizes = Counter(backend for backend, _ in teams)
    for (backend, size), cases in teams.items():
        ranks_of = [(point, of_case(point)) for point in cases]
        decided = sum(bool(ranks) for _, ranks in ranks_of)
        if decided < max(FEWEST_DECIDED, len(cases) / 2):
            continue
        for rank in sorted({rank for _, ranks in ranks_of for rank in ranks}):
            against = [point for point, ranks in ranks_of if rank in ranks]
            if (
                len(against) >= DECIDED * decided
                and chance_of_most(len(against), decided, size) <= chance
            ):
                team = f"{backend} with {size} ranks" if sizes[backend] > 1 else backend
                yield rank, against, f"{len(against)} of {len(cases)} collectives on {team}"


def _is_loaded(point: Point) -> bool:
    """True if other programs kept processors busy."""
    return not {*LOAD_FLAGS}.isdisjoint(point.flags)


def _gets_least(point: Point) -> tuple[int, ...]:
    """The ranks that get clearly less processor time than all others, of a team less than half."""
    shares = _could_run(point)
    order = sorted(range(len(shares)), key=shares.__getitem__)
    # Where ranks share processors only one: those on the fullest processor get less than others for good
    # reason, but as much as each other.
    crowded = point.oversubscribed or len(set(point.binding)) < len(point.binding)
    most = 1 if crowded else max(1, (len(shares) - 1) // 2)
    for count in range(min(most, len(shares) - 1), 0, -1):
        if shares[order[count - 1]] < STARVED * shares[order[count]]:
            return tuple(order[:count])
    return ()


def _could_run(point: Point) -> list[float]:
    """Of each rank, the share of the time in which nothing but other programs kept it from running.

    Empty where that is not told.
    """
    shares, queued = point.rank_cpu_share, point.rank_queued_share
    # A rank with a quota of processor time may stand in the queue for it as well, so the queue counts beside
    # other load alone.
    if not _is_loaded(point):
        return list(shares)
    return (
        [had + waited for had, waited in zip(shares, queued, strict=True)]
        if shares and queued
        else []
    )
