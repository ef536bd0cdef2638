"""From rounds of pairs of nodes to the nodes, links and rails to blame: a verdict on a fleet.

Each node alone and random pairs of nodes, all at once, take a time each. Times that are usual for their kind
are fast; a slow one needs a cause: a node, a node's network where the node alone is fast, one rail of it, the
uplink of a leaf switch, or the path between two nodes. A cause is possible if nothing that it touches was
fast, and the verdict is the smallest set of possible causes that touches everything slow (a minimum set
cover, by SciPy's mixed integer solver). Where another set is as small, they are told as alternatives.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from ccbench.analysis.health import HealthVerdict
from ccbench.cases import NO_TEAM, Status
from ccbench.errors import UsageError
from ccbench.groups import Groups, PairingRound, parse_groups
from ccbench.results import Point, Run
from ccbench.topology.graph import Finding
from ccbench.units import format_ratio, format_size, plural

FLEET = "fleet"
"""Value of a suite's key ``verdict`` when its runs are judged here."""

LEAST_SLOW = math.log(1.08)
"""Natural logarithm of the ratio to the usual time from which a time is slow: half of a fault of 15 %."""

SLOW_SIGMAS = 4.0
"""The same in standard deviations of the usual half, where these scatter more."""

MEDIAN_DISTANCE_SIGMAS = 0.6745
"""Median distance of a normal distribution from its middle, in standard deviations."""

QUANTILE = 0.25

FEWEST_ALIKE = 3
"""Times of one kind; of fewer nobody knows which is usual."""

PARTNERS_AGAIN = 2
"""Rounds of a second look: partners that each suspect gets."""

MOST_NEIGHBOURS = 8
"""Nodes among which a suspected link is looked for by a round robin."""

ADVICE = {
    "slow_node": "drain the node (--exclude) and run its maker's diagnosis, on its own it is slow already",
    "slow_network": "drain the node (--exclude) and look at its adapters: cable, port counters, PCIe width",
    "slow_rail": "look at this adapter of the node, its cable and its port on the switch",
    "slow_leaf": "look at the uplinks of the leaf switch: ports that are down, rates, routing",
    "slow_link": "look at what the path of the two alone has: a spine port, routing (ECMP), a cable",
    "unknown": "measure again with other partners; the pairs so far do not tell these apart",
    "lost": "drain the node (--exclude); look at its processes, its adapters and its kernel log",
    "lost_link": "look at what the path of the two alone has: MTU, routing (ECMP), a cable",
    "unstable": "measure this pair again",
    "slow_fleet": "all are slower than this topology gives: look at what they share, such as settings",
}


@dataclass(frozen=True)
class Observation:
    """Time of one group in one case.

    kind: of what it may be compared with: backend, collective, size, and ranks. nodes: one, or two of a pair.
    rail: place in the node of a pair of single ranks, -1 of whole nodes. seconds: None where the group was
    lost; detail says how. limit_seconds: the longest that the model expects of this group on this topology,
    or its bound where it gives no more; None where it has no model.
    """

    kind: str
    nodes: tuple[int, ...]
    seconds: float | None
    limit_seconds: float | None = None
    rail: int = -1
    detail: str = ""


@dataclass(frozen=True, order=True)
class Cause:
    """Something that may be slow. nodes: whose; of a leaf those below it. number: of the rail or leaf."""

    kind: str
    nodes: tuple[int, ...]
    number: int = -1

    def touches(self, seen: Observation, leaf_of: Mapping[int, int]) -> bool:
        """Return whether a fault here slows ``seen`` down."""
        nodes = set(seen.nodes)
        match self.kind:
            case "slow_node":
                return bool(nodes & set(self.nodes))
            case "slow_network":
                return len(nodes) > 1 and bool(nodes & set(self.nodes))
            case "slow_rail":
                return seen.rail == self.number and bool(nodes & set(self.nodes))
            case "slow_leaf":
                leaves = {leaf_of.get(node) for node in nodes}
                return len(leaves) > 1 and self.number in leaves
        return nodes == set(self.nodes)

    def named(self, names: Sequence[str]) -> str:
        """Return the cause by the names of its nodes."""
        ends = " and ".join(names[node] for node in self.nodes[:2])
        match self.kind:
            case "slow_network":
                return f"network of {ends}"
            case "slow_rail":
                return f"rail {self.number} of {ends}"
            case "slow_leaf":
                return f"uplinks of leaf {self.number} ({ends} ...)"
            case "slow_link":
                return f"path between {ends}"
        return ends


@dataclass(frozen=True)
class FleetVerdict(HealthVerdict):
    """What is bad, what cannot be told apart, and who was seen to be fast; nodes by number.

    causes: the one smallest set. unknown: possible causes of which nobody can tell which it is, by what they
    would explain. once: paths that were measured once, slow, which may be chance. lost: nodes whose groups
    hung or failed. cleared: nodes of a fast pair, or fast alone where there are no pairs. names: of nodes.
    """

    causes: tuple[Cause, ...] = ()
    unknown: tuple[tuple[Cause, ...], ...] = ()
    once: tuple[Cause, ...] = ()
    lost: tuple[int, ...] = ()
    cleared: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    @property
    def excluded(self) -> tuple[int, ...]:
        """Nodes that jobs should not get: bad ones, lost ones, and those with a bad network or rail."""
        bad = [one.nodes[0] for one in self.causes if one.kind in ("slow_node", "slow_network", "slow_rail")]
        return tuple(sorted({*bad, *self.lost}))

    @property
    def exclude(self) -> str:
        """The option of Slurm's that leaves these out; empty without any."""
        return f"--exclude={','.join(self.names[node] for node in self.excluded)}" if self.excluded else ""

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """Pairs of nodes whose path is bad."""
        return tuple(one.nodes for one in self.causes if one.kind in ("slow_link", "lost_link"))

    @property
    def document(self) -> dict[str, object]:
        """The verdict as JSON has it."""
        return {
            "verdict": self.word,
            "exit_code": self.exit_code,
            "nodes": [self.names[node] for node in self.excluded],
            "links": [[self.names[node] for node in link] for link in self.links],
            "suspects": [self.names[node] for node in self.suspects],
            "exclude": self.exclude.partition("=")[2],
            "causes": [{"kind": one.kind, "name": one.named(self.names)} for one in self.causes],
            "lost": [self.names[node] for node in self.lost],
            "doubt": self.doubt,
            "reasons": [str(one) for one in self.findings],
            "evidence": list(self.evidence),
        }

    def lines(self) -> list[str]:
        """The verdict, the nodes to leave out, what each is blamed for, and the evidence."""
        first, *others = super().lines()
        return [first, *filter(None, [self.exclude]), *others]

    @property
    def possible(self) -> tuple[Cause, ...]:
        """All causes that are certain or possible."""
        return (*self.causes, *self.once, *sum(self.unknown, ()))

    @property
    def suspects(self) -> tuple[int, ...]:
        """Nodes to look at again: blamed, perhaps to blame, or in no fast pair; none that was lost."""
        named = {node for one in self.possible for node in one.nodes}
        return tuple(sorted((named | (set(range(len(self.names))) - self.cleared)) - set(self.lost)))


def verdict_of(run: Run) -> FleetVerdict:
    """The verdict on the nodes of ``run``, by their host names where it has them."""
    observations = observations_of(run)
    hosts = [str(host.get("name")) for host in run.manifest.mappings("hosts")]
    nodes = max((node for one in observations for node in one.nodes), default=-1) + 1
    return fleet_of(observations, hosts or [f"node {number}" for number in range(nodes)])


def node_numbers(point: Point) -> tuple[int, ...]:
    """Return the node of each rank of a point: where it was found, else spread evenly over ``nodes``."""
    if len(point.node_of_rank) == point.ranks:
        return point.node_of_rank
    return tuple(rank * max(1, point.nodes) // point.ranks for rank in range(point.ranks))


def observations_of(run: Run) -> list[Observation]:
    """Read the times of groups that are nodes, or pairs of nodes, of every case of ``run``."""
    found: list[Observation] = []
    for point in run.points:
        if not point.groups or point.concurrent:
            continue
        try:
            members = parse_groups(point.groups, point.ranks)
        except UsageError:
            continue  # an import whose groups ccbench cannot form
        times: Sequence[float | None] = _steady(point)
        if not point.is_timed:
            members = lost_groups(point)
            times = (None,) * len(members)
        if len(times) == len(members):
            pairs = zip(members, times, strict=True)
            found += [seen for one, seconds in pairs if (seen := _observed(point, one, seconds))]
    return found


def _steady(point: Point) -> Sequence[float]:
    """Return a time of each group: the lower quartile of its samples, its median where these were not read.

    Load of others on the processors adds time to some samples, a bad adapter, cable or port to most.
    """
    groups = point.group_samples_seconds or (point.samples_seconds,)  # of one group all are its own
    if all(map(len, groups)) and len(groups) == len(point.members):
        return [float(np.quantile(samples, QUANTILE)) for samples in groups]
    return point.group_median_seconds or (point.median_seconds or 0.0,)


def lost_groups(point: Point) -> Groups:
    """Return the groups of a case that hung or failed, by the ranks that its words name.

    Where no team could be started at all, each of these ranks is one: its partners are not to blame.
    """
    if point.status not in (Status.TIMED_OUT, Status.FAILED):
        return ()
    found = re.findall(r"\brank (\d+(?:, \d+)*)", point.detail)
    named = {int(rank) for ranks in found for rank in ranks.split(", ")}
    if point.stop_reason == NO_TEAM:
        return tuple((rank,) for rank in sorted(named) if rank < point.ranks)
    return tuple(one for one in point.members if named & set(one))


def lost_partners(observations: Sequence[Observation]) -> dict[int, set[tuple[int, ...]]]:
    """Return of each node of a lost group the groups that were lost with it."""
    found: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for one in observations:
        for node in one.nodes if one.seconds is None else ():
            found[node].add(one.nodes)
    return found


def _observed(point: Point, members: Sequence[int], seconds: float | None) -> Observation | None:
    node_of_rank = node_numbers(point)
    nodes = tuple(sorted({node_of_rank[rank] for rank in members}))
    if len(nodes) > 2:
        return None
    several = max(Counter(node_of_rank).values()) > 1
    rail = -1
    if len(nodes) == len(members) == 2 and several:
        rail = members[0] - node_of_rank.index(node_of_rank[members[0]])
    size = format_size(point.size_bytes)
    where = f"{plural(len(members), 'rank')} of {plural(len(nodes), 'node')}"
    kind = f"{point.collective} {size} on {where}, {point.backend}{f', {point.setting}' * (not point.groups)}"
    limit = point.predicted_high_95_seconds or point.bound_seconds
    return Observation(kind, nodes, seconds, limit, rail, point.detail if seconds is None else "")


@dataclass(frozen=True)
class _Judged:
    """Observations of the same nodes as one. ratio: its time over the usual one. times: how many they are."""

    seen: Observation
    ratio: float
    slow: bool
    times: int


def usual_of(seconds: Sequence[float]) -> tuple[float, float]:
    """Return (usual, standard deviation) of the logarithms of the healthy among ``seconds``.

    The shortest interval that holds half of the values (the "shorth" of Andrews et al., Robust Estimates of
    Location, 1972) is among the healthy as long as more than half of all are. Faults only make times longer,
    so the scatter is that of the times below: their median distance is 0.6745 standard deviations.
    """
    ordered = np.sort(np.log(np.asarray(seconds, dtype=float)))
    half = len(ordered) // 2 + 1
    first = int(np.argmin(ordered[half - 1 :] - ordered[: len(ordered) - half + 1]))
    usual = float(np.median(ordered[first : first + half]))
    below = usual - ordered[ordered < usual]
    return usual, float(np.median(below)) / MEDIAN_DISTANCE_SIGMAS if len(below) else 0.0


def _judged(observations: Sequence[Observation], leaf_of: Mapping[int, int]) -> list[_Judged]:
    """Compare each time with its kind, paths inside a leaf and between leaves apart, and join repetitions."""
    kinds: dict[tuple[str, bool], list[Observation]] = defaultdict(list)
    found = []
    for one in observations:
        if one.seconds is not None:
            kinds[one.kind, len({leaf_of.get(node) for node in one.nodes}) > 1].append(one)
    for alike in kinds.values():
        if len(alike) < FEWEST_ALIKE:
            continue
        usual, sigma = usual_of([one.seconds or 0.0 for one in alike])
        least = max(LEAST_SLOW, SLOW_SIGMAS * sigma)
        repeated: dict[tuple[tuple[int, ...], int], list[Observation]] = defaultdict(list)
        for one in alike:
            repeated[one.nodes, one.rail].append(one)
        for same in repeated.values():
            excess = median(math.log(one.seconds or 1.0) for one in same) - usual
            found.append(_Judged(same[-1], math.exp(excess), excess > least, len(same)))
    return found


def fleet_of(
    observations: Sequence[Observation], names: Sequence[str], leaf_of: Mapping[int, int] | None = None
) -> FleetVerdict:
    """The verdict on the nodes ``names``. leaf_of: number of each node's leaf switch, where that is known."""
    leaves = leaf_of or {}
    judged = _judged(observations, leaves)
    lost_by: dict[int, str] = {}
    for one in observations:
        if one.seconds is None:
            lost_by.update((node, one.detail) for node in one.nodes if node not in lost_by)
    # Alone a node says nothing of its network.
    pairs = [one for one in judged if len(one.seen.nodes) > 1] or judged
    cleared = {node for one in pairs if not one.slow for node in one.seen.nodes}
    # Whoever was lost with several explains them. Of another pair that was lost the one that is fast with
    # others is not to blame; where both are fast, their path is.
    partners = lost_partners(observations)
    several = {node for node, groups in partners.items() if len(groups) > 1}
    alone = {node for node, (group, *_) in partners.items() if not several & set(group)}
    lost = tuple(sorted(several | alone - cleared))
    paths = {one.nodes for one in observations if one.seconds is None and not set(one.nodes) & set(lost)}
    causes, unknown = smallest_causes([one for one in judged if not set(one.seen.nodes) & set(lost)], leaves)
    repeated = {one.seen.nodes for one in judged if one.times > 1}
    once = tuple(one for one in causes if one.kind == "slow_link" and one.nodes not in repeated)
    causes = tuple(one for one in causes if one not in once)
    causes += tuple(Cause("lost_link", nodes) for nodes in sorted(paths))
    blank = FleetVerdict(
        (), (), "", causes, unknown, once, lost, frozenset(cleared - set(lost)), tuple(names)
    )
    findings = [
        _finding("lost", names[node], f"its groups did not end: {lost_by[node] or 'no reason given'}")
        for node in lost
    ]
    for cause in causes:
        if cause.kind == "lost_link":
            said = f"it hung, and both are fast with others: {lost_by[cause.nodes[0]]}"
            findings.append(_finding(cause.kind, cause.named(names), said))
            continue
        touched = [one for one in judged if one.slow and cause.touches(one.seen, leaves)]
        ratio = format_ratio(median(one.ratio for one in touched))
        evidence = f"{plural(len(touched), 'group')} with it take {ratio} as long as usual, none is fast"
        findings.append(_finding(cause.kind, cause.named(names), evidence))
    for some in unknown:
        what = " or ".join(cause.named(names) for cause in some)
        findings.append(_finding("unknown", what, "each of them explains what was slow"))
    chance = "slow in the one round that measured it"
    findings += [_finding("unstable", cause.named(names), chance) for cause in once]
    findings += _beyond_the_model(observations)
    doubt = "" if judged else "fewer than three groups of one kind were timed"
    return replace(blank, findings=tuple(findings), evidence=tuple(_evidence(judged, blank)), doubt=doubt)


def _finding(kind: str, what: str, evidence: str) -> Finding:
    subject = f"{kind.replace('_', ' ').capitalize()}: {what}"
    severity = "doubt" if kind == "unstable" else "problem"
    return Finding(severity, kind, (what,), evidence, ADVICE[kind], subject)


def _beyond_the_model(observations: Sequence[Observation]) -> Iterator[Finding]:
    """Find kinds whose usual time is longer than the model expects at most: then all are slow alike."""
    kinds: dict[str, list[Observation]] = defaultdict(list)
    for one in observations:
        if one.seconds is not None and one.limit_seconds:
            kinds[one.kind].append(one)
    for kind, alike in kinds.items():
        ratio = median((one.seconds or 0.0) / (one.limit_seconds or 1.0) for one in alike)
        if ratio > 1 and any(one.limit_seconds for one in alike):
            text = f"the usual time is {format_ratio(ratio)} of the longest that the model expects"
            yield _finding("slow_fleet", kind, text)


def _evidence(judged: Sequence[_Judged], verdict: FleetVerdict) -> Iterator[str]:
    kinds = Counter(one.seen.kind for one in judged)
    slow = Counter(one.seen.kind for one in judged if one.slow)
    for kind, number in kinds.items():
        yield f"{plural(number, 'group')}, {kind}: {slow[kind]} slow"
    yield f"{len(verdict.cleared)} of {plural(len(verdict.names), 'node')} seen to be fast"


# -- the smallest set of causes ------------------------------------------------------------------------------


def smallest_causes(
    judged: Sequence[_Judged], leaf_of: Mapping[int, int]
) -> tuple[tuple[Cause, ...], tuple[tuple[Cause, ...], ...]]:
    """Return (causes that every smallest set has, alternatives where smallest sets differ)."""
    slow = [one.seen for one in judged if one.slow]
    touched: dict[Cause, frozenset[int]] = {}
    for cause in _possible(judged, leaf_of):
        rows = frozenset(place for place, seen in enumerate(slow) if cause.touches(seen, leaf_of))
        # Two causes of one node that touch the same are told apart by nothing: the wider one stands for both.
        if rows and (rows, cause.nodes) not in {(others, one.nodes) for one, others in touched.items()}:
            touched[cause] = rows
    certain: list[Cause] = []
    unknown: list[tuple[Cause, ...]] = []
    for causes in _components(touched):
        every = {row for one in causes for row in touched[one]}
        best = _cover(causes, touched, every) or []
        # What no other set of that size can do without is certain.
        shared = []
        for one in best:
            others = _cover([each for each in causes if each != one], touched, every)
            if others is None or len(others) > len(best):
                shared.append(one)
        certain += shared
        left = every - {row for one in shared for row in touched[one]}
        if left:
            unknown.append(tuple(sorted(one for one in causes if touched[one] & left and one not in shared)))
    return tuple(sorted(certain)), tuple(unknown)


def _possible(judged: Sequence[_Judged], leaf_of: Mapping[int, int]) -> Iterator[Cause]:
    """Yield every cause that touches something slow and nothing fast, the widest of a node first."""
    slow = [one.seen for one in judged if one.slow]
    fast_of: dict[int, list[Observation]] = defaultdict(list)
    for one in judged:
        for node in one.seen.nodes if not one.slow else ():
            fast_of[node].append(one.seen)
    nodes = sorted({node for seen in slow for node in seen.nodes})
    wanted = [Cause(kind, (node,)) for node in nodes for kind in ("slow_node", "slow_network")]
    rails = [seen for seen in slow if seen.rail >= 0]
    wanted += [Cause("slow_rail", (node,), seen.rail) for seen in rails for node in seen.nodes]
    leaves = {leaf_of[node] for node in nodes if node in leaf_of}
    below = {leaf: tuple(node for node in leaf_of if leaf_of[node] == leaf) for leaf in sorted(leaves)}
    wanted += [Cause("slow_leaf", some, leaf) for leaf, some in below.items()]
    wanted += [Cause("slow_link", seen.nodes) for seen in slow if len(seen.nodes) > 1]
    for cause in dict.fromkeys(wanted):
        if not any(cause.touches(seen, leaf_of) for node in cause.nodes for seen in fast_of[node]):
            yield cause


def _components(touched: Mapping[Cause, Collection[int]]) -> Iterator[list[Cause]]:
    """Yield causes that are joined by what they touch; each part is solved on its own."""
    by_row: dict[int, list[Cause]] = defaultdict(list)
    for cause, rows in touched.items():
        for row in rows:
            by_row[row].append(cause)
    left = dict.fromkeys(touched)
    while left:
        part, waiting = list[Cause](), [next(iter(left))]
        while waiting:
            cause = waiting.pop()
            if cause in left:
                del left[cause]
                part.append(cause)
                waiting += [other for row in touched[cause] for other in by_row[row] if other in left]
        yield part


def _cover(
    causes: Sequence[Cause], touched: Mapping[Cause, Collection[int]], rows: Collection[int]
) -> list[Cause] | None:
    """Return a smallest set of ``causes`` that touches all ``rows``; None where there is none."""
    if not set(rows) <= {row for cause in causes for row in touched[cause]}:
        return None
    from scipy.optimize import Bounds, LinearConstraint, milp

    places = sorted(rows)
    matrix: NDArray[np.float64] = np.zeros((len(places), len(causes)))
    for column, cause in enumerate(causes):
        matrix[np.searchsorted(places, sorted(touched[cause])), column] = 1.0
    ones = np.ones(len(causes), np.int64)
    solved = milp(ones, constraints=LinearConstraint(matrix, 1.0), integrality=ones, bounds=Bounds(0, 1))
    assert solved.x is not None, "taking all of them is a solution"
    return [cause for cause, taken in zip(causes, solved.x, strict=True) if taken > 0.5]


# -- a second look -------------------------------------------------------------------------------------------


def second_look(verdict: FleetVerdict, seed: int = 0) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of nodes that tell more: none where nothing is suspected.

    Suspects with partners that were proven fast, and with others in a next round; paths under suspicion once
    more, then a round robin among their nodes and some of the fast. In every round fast nodes that are left
    meet each other, so that switches carry as much as in the rounds that these times are compared with.
    """
    suspects, draw = verdict.suspects, np.random.default_rng(seed)
    fast = sorted(verdict.cleared - set(suspects))
    links = [one for one in verdict.possible if one.kind == "slow_link"]
    if not suspects or not fast:
        return []
    rounds: list[list[tuple[int, ...]]] = []
    # Where there are more suspects than partners, the others come in rounds of their own.
    for _ in range(PARTNERS_AGAIN):
        for first in range(0, len(suspects), len(fast)):
            partners = [fast[place] for place in draw.permutation(len(fast))]
            rounds.append(list(zip(suspects[first : first + len(fast)], partners, strict=False)))
    if links:
        again: list[tuple[int, ...]] = []
        for one in links:
            if not set(one.nodes) & {node for pair in again for node in pair}:
                again.append(one.nodes)
        rounds.append(again)
        around = [*dict.fromkeys(node for one in links for node in one.nodes), *fast][:MOST_NEIGHBOURS]
        for number in range(len(around) - 1 + len(around) % 2):
            pairs = PairingRound("round_robin", number).pairs(len(around))
            rounds.append([(around[one], around[two]) for one, two in pairs])
    filled = []
    for one_round in rounds:
        met = {node for pair in one_round for node in pair}
        free = [fast[place] for place in draw.permutation(len(fast)) if fast[place] not in met]
        every = [*one_round, *zip(free[::2], free[1::2], strict=False)]
        filled.append(sorted((min(pair), max(pair)) for pair in every))
    return filled
