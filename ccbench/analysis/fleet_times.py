"""Times of groups of nodes in a run of a fleet check, and the groups that were lost."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ccbench.cases.measurement import NO_TEAM, Status
from ccbench.errors import UsageError
from ccbench.groups import Groups, parse_groups, parse_round
from ccbench.results import Point, Run
from ccbench.units import format_size, plural

QUANTILE = 0.25
"""Of a group's samples, and of the groups' times: the first guess at what is usual."""


LOST = (Status.TIMED_OUT, Status.FAILED, Status.WRONG)
"""Statuses of cases of which a group was lost."""


@dataclass(frozen=True)
class GroupTime:
    """Time of one group in one case.

    kind: of what it may be compared with: ``work`` (collective, size, library) and ranks. nodes: one, or two
    of a pair. rail: place in the node of a pair of single ranks, -1 of whole nodes. seconds: None where the
    group was lost (it hung, failed or gave wrong data); detail says how. limit_seconds: the longest that the
    model expects of this group on this topology, None where it gives no interval. proven: of a lost group the
    nodes whose ranks are said to have died or not to answer: the others only waited.
    """

    kind: str
    nodes: tuple[int, ...]
    seconds: float | None
    limit_seconds: float | None = None
    rail: int = -1
    detail: str = ""
    work: str = ""
    proven: tuple[int, ...] = ()


def node_numbers(point: Point) -> tuple[int, ...]:
    """Return the node of each rank of a point: where it was found, else spread evenly over ``nodes``."""
    if len(point.node_of_rank) == point.ranks:
        return point.node_of_rank
    return tuple(rank * max(1, point.nodes) // point.ranks for rank in range(point.ranks))


def blocks_of(run: Run) -> dict[int, int]:
    """Return the block of each node, where the suite made pairs inside blocks of nodes alone."""
    for point in run.points:
        made = parse_round(point.groups)
        if made and made.within:
            node = node_numbers(point)
            return {
                node[rank]: rank // made.unit_ranks // made.within
                for rank in range(point.ranks)
            }
    return {}


def observations_of(run: Run) -> list[GroupTime]:
    """Read the times of groups that are nodes, or pairs of nodes, of every case of ``run``."""
    times_of_groups: list[GroupTime] = []
    for point in run.points:
        if not point.groups or point.concurrent:
            continue
        try:
            members = parse_groups(point.groups, point.ranks)
        except UsageError:
            continue  # an import whose groups ccbench cannot form
        # Load of others on the processors adds time to some samples, a bad adapter, cable or port to most:
        # the lower quartile counts, where samples were not read the median.
        groups = point.group_samples_seconds or (point.samples_seconds,)
        times: Sequence[float | None] = point.group_median_seconds or (
            point.median_seconds or 0.0,
        )
        if all(map(len, groups)) and len(groups) == len(point.members):
            times = [float(np.quantile(samples, QUANTILE)) for samples in groups]
        if not point.is_timed:
            members = lost_groups(point)
            times = (None,) * len(members)
        if len(times) == len(members):
            pairs = zip(members, times, strict=True)
            times_of_groups += [
                observation
                for group, seconds in pairs
                if (observation := _observed(point, group, seconds))
            ]
    return times_of_groups


def lost_groups(point: Point) -> Groups:
    """Return the groups of a case that hung, failed or gave wrong data, by the ranks that its words name.

    Where no team could be started at all, each of these ranks is one: its partners are not to blame.
    """
    if point.status not in LOST:
        return ()
    named = _ranks_named(point)
    if point.stop_reason == NO_TEAM:
        return tuple((rank,) for rank in sorted(named) if rank < point.ranks)
    return tuple(member for member in point.members if named & set(member))


def _ranks_named(point: Point) -> set[int]:
    lists = re.findall(r"\brank (\d+(?:, \d+)*)", point.detail)
    return {int(rank) for ranks in lists for rank in ranks.split(", ")}


def lost_partners(observations: Sequence[GroupTime]) -> dict[int, set[tuple[int, ...]]]:
    """Return of each node of a lost group the groups that were lost with it."""
    partners: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for observation in observations:
        for node in observation.nodes if observation.seconds is None else ():
            partners[node].add(observation.nodes)
    return partners


def _observed(point: Point, members: Sequence[int], seconds: float | None) -> GroupTime | None:
    node_of_rank = node_numbers(point)
    nodes = tuple(sorted({node_of_rank[rank] for rank in members}))
    places = [rank - node_of_rank.index(node_of_rank[rank]) for rank in members]
    single = len(nodes) == len(members) == 2 and max(Counter(node_of_rank).values()) > 1
    if len(nodes) > 2 or (single and places[0] != places[1]):
        return None  # neither nodes nor rails are told by it
    work = f"{point.collective} {format_size(point.size_bytes)}, {point.backend}"
    work += f", {point.setting}" if not point.groups else ""
    kind = f"{work}, on {plural(len(members), 'rank')} of {plural(len(nodes), 'node')}"
    # Whoever is furthest behind may wait for the other; who died or does not answer is sure.
    sure = point.status is Status.FAILED or "no answer from rank" in point.detail
    named = _ranks_named(point) & set(members) if seconds is None and sure else set()
    return GroupTime(
        kind,
        nodes,
        seconds,
        point.predicted_high_95_seconds,
        places[0] if single else -1,
        point.detail if seconds is None else "",
        work,
        tuple(sorted({node_of_rank[rank] for rank in named})),
    )
