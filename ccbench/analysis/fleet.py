"""From rounds of pairs of nodes to the nodes, links and rails to blame: a verdict on a fleet.

Each node alone and random pairs of nodes, all at once, take a time each. Times that are usual for their kind
are fast; a slow one needs a cause: a node, its network or its inside alone where the other is fast, one rail
of it, or the path between two nodes. What is asked (collective, size, library) is judged by itself. A cause
is possible if nothing of it that it touches was fast, and the verdict is the smallest set of possible causes
that touches everything slow (a minimum set cover, by SciPy's mixed integer solver). Where another set is as
small, they are told as alternatives. Faults only make times longer: nothing here looks for what is too fast,
but where some groups are much faster than the usual ones, the usual ones may be the slow ones.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

import numpy as np

from ccbench.analysis.fleet_causes import FleetCause, JudgedGroup, smallest_causes
from ccbench.analysis.fleet_times import (
    LOST,
    QUANTILE,
    GroupTime,
    lost_groups,
    lost_partners,
    observations_of,
)
from ccbench.analysis.health_verdict import HealthVerdict, finding_of
from ccbench.cases.measurement import Status
from ccbench.findings import Finding
from ccbench.groups import PairingRound
from ccbench.results import Run
from ccbench.results.keys import grouped
from ccbench.units import format_ratio, plural

FLEET = "fleet"
"""Value of a suite's key ``verdict`` when its runs are judged here."""

LEAST_SLOW = math.log(1.08)
"""Natural logarithm of the ratio to the usual time from which a time is slow: half of a fault of 15 %."""

SLOW_SIGMAS = 4.0
"""Least distance in standard deviations of usual times, where these scatter more."""

MOST_SLOW = math.log(1.5)
"""Natural logarithm of the ratio up to which that may go: beyond, half the bandwidth might go unseen, so what
is not found slow is not called healthy."""

USUAL_SIGMAS = 3.0
"""Standard deviations above the usual time up to which a time counts as usual while that is looked for."""

MEDIAN_DISTANCE_SIGMAS = 0.6745
"""Median distance of a normal distribution from its middle, in standard deviations."""

DOUBT_OF_FEW = 2.0
"""Correction for few times: the standard deviation of n times is multiplied by 1 + DOUBT_OF_FEW / n, since it is
often estimated at half of its value."""


FEWEST_ALIKE = 4
"""Fewest groups of one kind of which a usual time can be told. Three nodes have three pairs, four have six."""

FEW_ALIKE = 12
"""With this many groups of one kind or fewer, one much faster than the rest is evidence that the rest are slow."""

PARTNERS_AGAIN = 2
"""Rounds of a second look: partners that each suspect gets."""


MOST_NEIGHBOURS = 8
"""Nodes among which a suspected link is looked for by a round robin."""

ADVICE = {
    "slow_node": "drain the node (--exclude) and run its maker's diagnosis, on its own it is slow already",
    "slow_inside": "drain the node (--exclude) and run its maker's diagnosis; the network hides it",
    "slow_network": "drain the node (--exclude) and look at its adapters: cable, port counters, PCIe width",
    "slow_rail": "look at this adapter of the node, its cable and its port on the switch",
    "slow_rack": "look at what its nodes share: power, cooling, an image, their leaf switch",
    "slow_leaf": "look at the leaf switch of the rack, its ports and its settings",
    "slow_uplinks": "look at the uplinks of the rack's leaf switch: links down, cables, routing",
    "slow_link": "look at what the path of the two alone has: a spine port, routing (ECMP), a cable",
    "unknown": "measure again with other partners; the pairs so far do not tell these apart",
    "lost": "drain the node (--exclude); look at its processes, its adapters and its kernel log",
    "lost_link": "look at what the path of the two alone has: MTU, routing (ECMP), a cable",
    "unstable": "measure this pair again",
    "slow_fleet": "all are slower than this topology gives: look at what they share, such as settings",
}


@dataclass(frozen=True)
class FleetVerdict(HealthVerdict):
    """What is bad, what cannot be told apart, and who was seen to be fast; nodes by number.

    causes: the one smallest set. unknown: possible causes of which nobody can tell which it is, by what they
    would explain. once: causes of what was measured once, slow, which may be chance. lost: nodes whose groups
    hung, failed or gave wrong data. cleared: nodes of a fast pair, or fast alone where there are no pairs.
    names, racks: of nodes, '' where a rack is not known. judged: times of groups beside the usual ones.
    """

    causes: tuple[FleetCause, ...] = ()
    unknown: tuple[tuple[FleetCause, ...], ...] = ()
    once: tuple[FleetCause, ...] = ()
    lost: tuple[int, ...] = ()
    cleared: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()
    racks: tuple[str, ...] = ()
    judged: tuple[JudgedGroup, ...] = ()

    @property
    def excluded(self) -> tuple[int, ...]:
        """Nodes that jobs should not get: bad ones, lost ones, and those with a bad network or rail."""
        bad = [
            node
            for cause in self.causes
            if cause.rack or len(cause.nodes) == 1
            for node in cause.nodes
        ]
        return tuple(sorted({*bad, *self.lost}))

    @property
    def exclude(self) -> str:
        """The option of Slurm's that leaves these out; empty without any."""
        return (
            f"--exclude={','.join(self.names[node] for node in self.excluded)}"
            if self.excluded
            else ""
        )

    @property
    def links(self) -> tuple[tuple[int, ...], ...]:
        """Pairs of nodes whose path is bad."""
        return tuple(
            cause.nodes for cause in self.causes if cause.kind in ("slow_link", "lost_link")
        )

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
            "causes": [
                {"kind": cause.kind, "name": cause.named(self.names)} for cause in self.causes
            ],
            "lost": [self.names[node] for node in self.lost],
            "doubt": self.doubt,
            "reasons": [str(finding) for finding in self.findings],
            "evidence": list(self.evidence),
        }

    def lines(self) -> list[str]:
        """The verdict, the nodes to leave out, what each is blamed for, and the evidence."""
        first, *rest = super().lines()
        return [first, *filter(None, [self.exclude]), *rest]

    @property
    def possible(self) -> tuple[FleetCause, ...]:
        """All causes that are certain or possible."""
        return (*self.causes, *self.once, *sum(self.unknown, ()))

    def of_node(self, node: int) -> list[Finding]:
        """Return what was found about ``node`` or its rack, and no other."""
        named = {
            cause.named(self.names)
            for cause in self.possible
            if cause.nodes == (node,) or (cause.rack and node in cause.nodes)
        }
        named |= {self.names[node]} if node in self.lost else set()
        return [finding for finding in self.findings if named & {*finding.devices}]

    @property
    def suspects(self) -> tuple[int, ...]:
        """Nodes to look at again: blamed, perhaps to blame, or in no fast pair; none that was lost."""
        named = {node for cause in self.possible for node in cause.nodes}
        return tuple(
            sorted((named | (set(range(len(self.names))) - self.cleared)) - set(self.lost))
        )


def verdict_of(run: Run) -> FleetVerdict:
    """The verdict on the nodes of ``run``, by their host names where it has them."""
    observations = observations_of(run)
    rows = run.manifest.mappings("hosts")
    hosts = [str(host.get("name")) for host in rows]
    nodes = (
        max((node for observation in observations for node in observation.nodes), default=-1)
        + 1
    )
    verdict = fleet_of(
        observations,
        hosts or [f"node {number}" for number in range(nodes)],
        [str(host.get("rack") or "") for host in rows],
        "" if run.manifest.at("options", "network") else " (of pairs that needs --network)",
    )
    blank = [point for point in run.points if not point.is_timed and not lost_groups(point)]
    unsaid = [point for point in blank if point.status in (*LOST, Status.OUT_OF_MEMORY)]
    if unsaid and not verdict.doubt:
        reason = f"{unsaid[0].label}: {unsaid[0].status.value}: {unsaid[0].detail}"
        return replace(
            verdict,
            doubt=f"of {plural(len(unsaid), 'case')} the cause could not be attributed: {reason}",
        )
    return verdict


@dataclass(frozen=True)
class _Kind:
    """Groups of one kind. least: logarithm of the ratio from which they are slow. fast: how many are faster
    than the usual ones by as much."""

    name: str
    judged: tuple[JudgedGroup, ...]
    least: float = 0.0
    fast: int = 0

    @property
    def doubt(self) -> str:
        """Why what is not slow need not be healthy, empty if it is."""
        count, name = len(self.judged), self.name
        if count < FEWEST_ALIKE:
            return f"{plural(count, 'group')} of {name}: of fewer than {FEWEST_ALIKE} nobody knows what is usual"
        if self.fast > 1 or (self.fast and count <= FEW_ALIKE):
            return f"{self.fast} of {count} groups of {name} are much faster than usual: the others may be slow"
        if self.least > MOST_SLOW:
            return f"times of {name} vary so much that only {format_ratio(math.exp(self.least))} is surely slow"
        return ""

    @property
    def evidence(self) -> str:
        """Evidence: the groups that were judged."""
        slow = sum(group.slow for group in self.judged)
        least = "" if self.doubt else f" (from {math.exp(self.least):.2f}x on)"
        return f"{plural(len(self.judged), 'group')}, {self.name}: {slow} slow{least}"


def usual_of(seconds: Sequence[float]) -> tuple[float, float]:
    """Return (usual, standard deviation) of the logarithms of the healthy among ``seconds``.

    Faults only make times longer, so the fastest quarter is healthy while half of the nodes are: a quarter of
    their pairs is then of two healthy ones. From there on what is within ``USUAL_SIGMAS`` counts as usual,
    until nothing changes. The scatter is that of the usual times below the middle: their median distance is
    0.6745 standard deviations.
    """
    ordered = np.sort(np.log(np.asarray(seconds, dtype=float)))
    end, before = float(np.quantile(ordered, QUANTILE)) + LEAST_SLOW, -math.inf
    usual, sigma = 0.0, 0.0
    while end != before:
        counted = ordered[ordered <= end]
        usual = float(np.median(counted))
        below = usual - counted[counted < usual]
        sigma = float(np.median(below)) / MEDIAN_DISTANCE_SIGMAS if len(below) else 0.0
        sigma *= 1 + DOUBT_OF_FEW / max(1, len(below))
        # Never back, so that it ends.
        before, end = end, max(end, usual + max(LEAST_SLOW, USUAL_SIGMAS * sigma))
    return usual, sigma


def _kinds(observations: Sequence[GroupTime]) -> list[_Kind]:
    """Compare each time with its kind, and join repetitions."""
    timed = [observation for observation in observations if observation.seconds is not None]
    judged_kinds = []
    for name, members in grouped(timed, lambda group: group.kind).items():
        repeated = grouped(members, lambda group: (group.nodes, group.rail)).values()
        usual, sigma = usual_of([group.seconds or 0.0 for group in members])
        least = max(LEAST_SLOW, SLOW_SIGMAS * sigma)
        few = len(repeated) < FEWEST_ALIKE
        judged, fast = [], 0
        for same in repeated:
            # Of two the faster one counts: what is slow is so each time.
            excess = median_low(math.log(group.seconds or 1.0) for group in same) - usual
            fast += excess < -least
            is_slow = excess > least and not few
            judged.append(JudgedGroup(same[-1], math.exp(excess), is_slow, len(same)))
        judged_kinds.append(_Kind(name, tuple(judged), least, fast))
    return judged_kinds


def fleet_of(
    observations: Sequence[GroupTime],
    names: Sequence[str],
    racks: Sequence[str] = (),
    unpriced: str = "",
) -> FleetVerdict:
    """The verdict on the nodes ``names``.

    racks: of each node, '' where that is not known. unpriced: what the model lacks for an interval of pairs.
    """
    kinds = _kinds(observations)
    judged = [
        group for kind in kinds if len(kind.judged) >= FEWEST_ALIKE for group in kind.judged
    ]
    # Alone a node says nothing of its network.
    pairs = [group for group in judged if len(group.seen.nodes) > 1]
    paired = pairs or any(len(observation.nodes) > 1 for observation in observations)
    cleared = {
        node
        for pair in (pairs if paired else judged)
        if not pair.slow
        for node in pair.seen.nodes
    }
    lost, lost_links, either = _lost(observations)
    causes, unknown = _causes(
        [group for group in judged if not set(group.seen.nodes) & set(lost)], racks
    )
    slow = [group for group in judged if group.slow]
    once = tuple(
        cause
        for cause in causes
        if sum(row.times for row in slow if cause.touches(row.seen)) == 1
    )
    causes = tuple(cause for cause in causes if cause not in once) + lost_links
    reasons = reasons_of(observations)
    findings = list(_blaming(lost, causes, slow, reasons, names))
    either_of = [(some, "each of them explains what was slow") for some in unknown]
    either_of += [
        (some, f"their group was lost: {reasons[some[0].nodes[0]]}") for some in either
    ]
    for some, why in either_of:
        what = " or ".join(cause.named(names) for cause in some)
        findings.append(_finding("unknown", what, why))
    chance = "slow in the one round that measured it"
    findings += [_finding("unstable", cause.named(names), chance) for cause in once]
    findings += _beyond_the_model(observations)
    evidence = [
        *(kind.evidence for kind in kinds),
        f"{len(cleared)} of {plural(len(names), 'node')} seen to be fast",
    ]
    if kinds and not any(observation.limit_seconds for observation in observations):
        evidence.append(
            f"the model gives no interval of these times{unpriced}: all may be slow alike"
        )
    doubts = (kind.doubt for kind in kinds if kind.doubt)
    doubt = next(doubts, "") if kinds else "no group was timed"
    return FleetVerdict(
        tuple(findings),
        tuple(evidence),
        doubt,
        causes,
        (*unknown, *either),
        once,
        lost,
        frozenset(cleared - set(lost)),
        tuple(names),
        tuple(racks),
        tuple(judged),
    )


def reasons_of(observations: Sequence[GroupTime]) -> dict[int, str]:
    """Return of each node why the first of its groups without a time has none."""
    return {
        node: observation.detail
        for observation in reversed(observations)
        if observation.seconds is None
        for node in observation.nodes
    }


def _blaming(
    lost: Sequence[int],
    causes: Sequence[FleetCause],
    slow: Sequence[JudgedGroup],
    reasons: Mapping[int, str],
    names: Sequence[str],
) -> Iterator[Finding]:
    """Findings about nodes and paths that are to blame for what was lost or ``slow``."""
    for node in lost:
        text = f"its groups hung, failed or gave wrong data: {reasons[node] or 'no reason'}"
        yield _finding("lost", names[node], text)
    for cause in causes:
        if cause.kind == "lost_link":
            text = (
                f"its group was lost, and both are well with others: {reasons[cause.nodes[0]]}"
            )
        else:
            touched = [group for group in slow if cause.touches(group.seen)]
            ratio = format_ratio(median(group.ratio for group in touched))
            text = f"{plural(len(touched), 'group')} with it take {ratio} as long as usual, none is fast"
        yield _finding(cause.kind, cause.named(names), text)


def _lost(
    observations: Sequence[GroupTime],
) -> tuple[tuple[int, ...], tuple[FleetCause, ...], tuple[tuple[FleetCause, ...], ...]]:
    """Return (nodes that lost their groups, paths that did, alternatives where it may be either of two).

    Whoever was lost with several partners, or died, explains them. Of another pair the one that ended with
    others is not to blame; where both did, their path is.
    """
    partners = lost_partners(observations)
    surely = {node for observation in observations for node in observation.proven}
    surely |= {
        node for node, groups in partners.items() if len(groups) > 1 or (node,) in groups
    }
    ended = {
        node
        for observation in observations
        if observation.seconds is not None and len(observation.nodes) > 1
        for node in observation.nodes
    }
    lost, paths, either = set(surely), list[FleetCause](), list[tuple[FleetCause, ...]]()
    for nodes in sorted(
        {nodes for groups in partners.values() for nodes in groups if not surely & set(nodes)}
    ):
        left = [node for node in nodes if node not in ended]
        if len(left) == 1:
            lost.add(left[0])
        elif left:
            either.append(tuple(FleetCause("lost", (node,)) for node in left))
        else:
            paths.append(FleetCause("lost_link", nodes))
    return tuple(sorted(lost)), tuple(paths), tuple(either)


def _finding(kind: str, what: str, evidence: str) -> Finding:
    return finding_of(kind, kind.replace("_", " "), what, evidence, ADVICE[kind])


def _beyond_the_model(observations: Sequence[GroupTime]) -> Iterator[Finding]:
    """Find kinds whose usual time is longer than the model expects at most: then all are slow alike."""
    limited = (group for group in observations if group.seconds and group.limit_seconds)
    for kind, groups in grouped(limited, lambda group: group.kind).items():
        ratio = median(
            (group.seconds or 0.0) / (group.limit_seconds or 1.0) for group in groups
        )
        if ratio > 1:
            text = (
                f"the usual time is {format_ratio(ratio)} of the longest that the model expects"
            )
            yield _finding("slow_fleet", kind, text)


# -- the smallest set of causes ------------------------------------------------------------------------------


def _causes(
    judged: Sequence[JudgedGroup], racks: Sequence[str]
) -> tuple[tuple[FleetCause, ...], tuple[tuple[FleetCause, ...], ...]]:
    """Return causes and alternatives of all works, rails and whole nodes apart."""
    rows = grouped(judged, lambda group: (group.seen.work, group.seen.rail >= 0))
    for (work, of_rails), groups in rows.items():
        if of_rails:
            whole = rows.get((work, False), ())
            groups += [group for group in whole if len(group.seen.nodes) == 1]
    covers = [smallest_causes(some, racks) for some in rows.values()]
    certain = {cause for causes, _ in covers for cause in causes}
    # What is slow in one work as a whole need not be named for its parts in others, nor a whole for one rail.
    alone = {group.seen.nodes for group in judged if group.slow}
    rails_of = {cause.nodes for cause in certain if cause.kind == "slow_rail"}
    parts = {
        cause
        for cause in certain
        if cause.nodes in rails_of - alone and cause.kind != "slow_rail"
    }
    of_whole = {cause.nodes for cause in certain - parts if cause.kind == "slow_node"}
    certain -= parts | {
        cause for cause in certain if cause.nodes in of_whole and cause.kind != "slow_node"
    }
    named = {cause.nodes for cause in certain}
    unknown = dict.fromkeys(some for _, alternatives in covers for some in alternatives)
    return tuple(sorted(certain)), tuple(
        some for some in unknown if not named & {cause.nodes for cause in some}
    )


# -- a second look -------------------------------------------------------------------------------------------


def second_look(
    verdict: FleetVerdict, seed: int = 0, block_of: Mapping[int, int] | None = None
) -> list[list[tuple[int, int]]]:
    """Return rounds of pairs of nodes that tell more: none where nothing is suspected.

    Suspects with partners that were proven fast, and with others in a next round; paths under suspicion once
    more, then a round robin among their nodes and some of the fast. In every round fast nodes that are left
    meet each other, so that switches carry as much as in the rounds that these times are compared with.
    block_of: nodes of which pairs were made among themselves alone, by a number; pairs stay inside.
    """
    blocks = block_of or {}
    draw, rounds = np.random.default_rng(seed), defaultdict[int, list[tuple[int, int]]](list)
    suspects = verdict.suspects
    for block in sorted({blocks.get(node, 0) for node in suspects}):
        inside = {node for node in range(len(verdict.names)) if blocks.get(node, 0) == block}
        fast = sorted((verdict.cleared - set(suspects)) & inside)
        links = [
            cause.nodes
            for cause in verdict.possible
            if cause.kind == "slow_link" and {*cause.nodes} <= inside
        ]
        requested = _rounds_of_suspects(
            [node for node in suspects if node in inside], fast, links, draw
        )
        for number, pairs in enumerate(requested):
            met = {node for pair in pairs for node in pair}
            free = [
                fast[place] for place in draw.permutation(len(fast)) if fast[place] not in met
            ]
            every = [*pairs, *zip(free[::2], free[1::2], strict=False)]
            rounds[number] += [(min(pair), max(pair)) for pair in every]
    return [sorted(rounds[number]) for number in sorted(rounds)]


def _rounds_of_suspects(
    suspects: Sequence[int],
    fast: Sequence[int],
    links: Sequence[tuple[int, ...]],
    draw: np.random.Generator,
) -> Iterator[list[tuple[int, ...]]]:
    if not fast:
        return
    # Where there are more suspects than partners, the others come in rounds of their own.
    for _ in range(PARTNERS_AGAIN):
        for first in range(0, len(suspects), len(fast)):
            partners = [fast[place] for place in draw.permutation(len(fast))]
            yield list(zip(suspects[first : first + len(fast)], partners, strict=False))
    if links:
        again: list[tuple[int, ...]] = []
        for nodes in links:
            if not set(nodes) & {node for pair in again for node in pair}:
                again.append(nodes)
        yield again
        around = [*dict.fromkeys(node for nodes in links for node in nodes), *fast][
            :MOST_NEIGHBOURS
        ]
        for number in range(len(around) - 1 + len(around) % 2):
            pairs = PairingRound("round_robin", number).pairs(len(around))
            yield [(around[source], around[second]) for source, second in pairs]
