"""Simulated fleets with planted faults, judged as a fleet check judges them: how many are found, how many blamed?

Every pair takes one second, longer by the worst fault on it, times noise of 2 % (a normal distribution of the
logarithm). Faults of bandwidth are planted on nodes and on paths between two nodes; three random matchings and each
node alone are judged as ``suites/fleet.yaml`` has them, then the second look's pairs with them. A path with a bad node
at its end is no case of its own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.analysis.fleet import FleetVerdict, fleet_of, second_look
from ccbench.analysis.fleet_times import GroupTime
from ccbench.groups import PairingRound

NOISE = 0.02
MATCHINGS = 3
MOST_LOOKS = 3
"""Second looks at most: another one only at paths that were slow the one time they were measured."""


@dataclass(frozen=True)
class Planted:
    """Faults: factors of time by node and by pair of nodes, and the ``--noise``."""

    nodes: dict[int, float]
    links: dict[tuple[int, int], float]
    noise: float = NOISE

    def seen(self, kind: str, nodes: tuple[int, ...], draw: random.Random) -> GroupTime:
        """Return the time of a node alone, or of a pair."""
        factors = [self.nodes.get(node, 1.0) for node in nodes]
        factors.append(self.links.get((nodes[0], nodes[-1]), 1.0))
        return GroupTime(kind, nodes, max(factors) * draw.lognormvariate(0.0, self.noise))


@dataclass(frozen=True)
class Trial:
    """One fleet. links_met: planted paths that a round used; blamed: healthy nodes that the verdict names."""

    bad: int
    found: int
    blamed: int
    links_met: int
    links_found: int
    false_links: int
    healthy: bool


def plant(
    nodes: int, bad: int, links: int, loss: float, draw: random.Random, noise: float = NOISE
) -> Planted:
    """Draw nodes and paths with ``loss`` of their bandwidth."""
    slow = 1 / (1 - loss)
    paths: dict[tuple[int, int], float] = {}
    for _ in range(links):
        one, two = sorted(draw.sample(range(nodes), 2))
        paths[one, two] = slow
    return Planted(dict.fromkeys(draw.sample(range(nodes), bad), slow), paths, noise)


def judge(
    nodes: int, planted: Planted, draw: random.Random
) -> tuple[FleetVerdict, set[tuple[int, ...]]]:
    """The verdict after a second look, and all pairs that met."""
    names = [f"n{number}" for number in range(nodes)]
    inside = Planted(planted.nodes, {}, planted.noise)
    seen = [inside.seen("alone", (node,), draw) for node in range(nodes)]
    met: set[tuple[int, ...]] = set()

    def measure(pairs: Sequence[tuple[int, int]]) -> None:
        met.update(pairs)
        seen.extend(planted.seen("pairs", pair, draw) for pair in pairs)

    seed = draw.randrange(10**9)
    for number in range(MATCHINGS):
        measure(PairingRound("matching", number, seed).pairs(nodes))
    for look in range(MOST_LOOKS):
        verdict = fleet_of(seen, names)
        if look and not verdict.once:
            break
        once = [cause.nodes for cause in verdict.once if len(cause.nodes) == 1]
        seen.extend(inside.seen("alone", nodes, draw) for nodes in once)
        for pairs in second_look(verdict, seed + look):
            measure(pairs)
    return fleet_of(seen, names), met


def trial(
    nodes: int, bad: int, links: int, loss: float, seed: int, noise: float = NOISE
) -> Trial:
    """Plant, measure, judge and compare."""
    draw = random.Random(f"{nodes} {bad} {links} {loss} {seed}")
    planted = plant(nodes, bad, links, loss, draw, noise)
    verdict, met = judge(nodes, planted, draw)
    excluded = set(verdict.excluded)
    alone = {pair for pair in planted.links if not set(pair) & set(planted.nodes)}
    found = {cause.nodes for cause in verdict.causes if cause.kind == "slow_link"}
    return Trial(
        bad=len(planted.nodes),
        found=len(excluded & set(planted.nodes)),
        blamed=len(excluded - set(planted.nodes)),
        links_met=len(alone & met),
        links_found=len(alone & found),
        false_links=len(found - set(planted.links)),
        healthy=verdict.word == "HEALTHY",
    )
