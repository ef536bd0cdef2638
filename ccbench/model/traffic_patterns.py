"""Senders and receivers of an algorithm, without sizes.

They are mostly read off a schedule, whose phases are recognised where every rank sends as much as far. Where a
schedule would not fit into memory (all pairs of 100,000 ranks) or repeats the same flows hundreds of times
(pipelines), the pattern is made directly; tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ccbench.collectives import collective as collective_row
from ccbench.errors import ScheduleError
from ccbench.schedules import algorithm_row, parse_algorithm, schedule_for
from ccbench.schedules.schedule import Indices, Phase, Schedule, distances_up_to, everyone
from ccbench.schedules.tree import Edges, complement, tree_edges
from ccbench.topology.fabrics import Ints

MOST_SCHEDULED = 256
"""Up to as many ranks a schedule is listed and read; above, patterns are made directly where possible."""


@dataclass(frozen=True, eq=False)
class RepeatedSteps:
    """``turns`` steps in which ``width[i]`` slots go from ``source[i]`` to ``target[i]``, all i at once.

    source_move, target_move: added to all sources and targets after each step, modulo the ranks.
    """

    source: Ints | Indices
    target: Ints | Indices
    width: Ints | Indices
    turns: int = 1
    source_move: int = 0
    target_move: int = 0


@dataclass(frozen=True)
class Uniform:
    """``turns`` equal steps in which every rank r sends ``width`` slots to the rank at ``distance``.

    exchange: that is r xor distance, for powers of two of ranks; else r + distance modulo the ranks.
    """

    distance: int
    width: int
    turns: int = 1
    exchange: bool = False

    def target_of(self, source: Ints, ranks: int) -> Ints:
        """The rank that each of ``source`` sends to."""
        return source ^ self.distance if self.exchange else (source + self.distance) % ranks

    def source_of(self, target: Ints, ranks: int) -> Ints:
        """The rank that each of ``target`` receives from."""
        return target ^ self.distance if self.exchange else (target - self.distance) % ranks


@dataclass(frozen=True)
class AllPairs:
    """Every rank sends one slot to every other one, to ``spared`` (where it is >= 0) none.

    at_once: in one step; else in ranks - 1 steps, to the rank d further on in step d.
    """

    spared: int = -1
    at_once: bool = True


@dataclass(frozen=True, eq=False)
class PipelineSteps:
    """k pieces travel one behind the other: edge i is busy in the steps start[i] to start[i] + k - 1."""

    source: Ints
    target: Ints
    start: Ints


Pattern = RepeatedSteps | Uniform | AllPairs | PipelineSteps


@dataclass(frozen=True, eq=False)
class AlgorithmTraffic:
    """An algorithm's patterns, one after the other.

    pieces: slots in the size of the collective; for pipelines, of each piece that is under way.
    pieces_under_way: k of its pipelines where it is fixed; None where it is free or there are none.
    """

    collective: str
    algorithm: str
    ranks: int
    pieces: int
    patterns: tuple[Pattern, ...]
    pieces_under_way: int | None = None


def traffic_of(schedule: Schedule) -> AlgorithmTraffic:
    """Return what ``schedule`` sends; local moves are left out."""
    patterns = tuple(_pattern(phase, schedule.ranks) for phase in schedule.phases)
    return AlgorithmTraffic(
        schedule.collective, schedule.algorithm, schedule.ranks, schedule.pieces, patterns
    )


def steps_of(phase: Phase) -> RepeatedSteps:
    """Return the messages of ``phase``, one by one: what goes between the same two ranks is one."""
    source, target, width = phase.source, phase.target, phase.width
    # Most phases have one flow of each rank, which is seen many times sooner than by sorting pairs.
    if len(source) and int(np.bincount(source).max()) > 1:
        ranks = int(target.max()) + 1
        pairs, message = np.unique(
            source.astype(np.int64) * ranks + target, return_inverse=True
        )
        source, target, width = (
            pairs // ranks,
            pairs % ranks,
            np.bincount(message, width).astype(np.int64),
        )
    return RepeatedSteps(
        source, target, width, phase.repeat, phase.advance.source, phase.advance.target
    )


def _pattern(phase: Phase, ranks: int) -> Pattern:
    """Return ``phase`` by its distance where every rank sends as much as far, else flow by flow.

    By distance a step on 131,072 ranks needs no list of flows, and costs a look at some ranks only.
    """
    steps = steps_of(phase)
    everybody = len(steps.source) == ranks and np.array_equal(
        np.sort(steps.source), everyone(ranks)
    )
    if not everybody or steps.width.min() != steps.width.max():
        return steps
    # Only the difference matters: where both ends move on alike, the set of flows stays.
    width, moves = int(steps.width[0]), (steps.target_move - steps.source_move) % ranks
    distances = (steps.target - steps.source) % ranks
    distance = int(distances[0])
    if bool((distances == distance).all()):
        if not moves or phase.repeat == 1:
            return Uniform(distance, width, phase.repeat)
        # One further in every step: after ranks - 1 of them everybody has sent to everybody else.
        whole = (distance, moves, width) == (1, 1, 1) and phase.repeat == ranks - 1
        return AllPairs(at_once=False) if whole else steps
    crossed = steps.source ^ steps.target
    if phase.repeat == 1 and bool((crossed == crossed[0]).all()):
        return Uniform(int(crossed[0]), width, exchange=True)
    return steps


@lru_cache(maxsize=64)
def traffic_for(collective: str, algorithm: str, ranks: int, root: int = 0) -> AlgorithmTraffic:
    """Return what ``algorithm`` (a name, or ``name:parameter``) sends; the same object for the same.

    Without a parameter the pieces of a pipeline are left free.
    Raises UsageError and ScheduleError as ``schedule_for`` does.
    """
    name, parameter = parse_algorithm(algorithm)
    row = algorithm_row(collective, name)
    place = root if collective_row(collective).rooted else 0
    pipelined = (collective, name) in PIPELINES
    if not pipelined and (
        (collective, name) not in DIRECTLY or ranks <= MOST_SCHEDULED or parameter
    ):
        return traffic_of(schedule_for(collective, algorithm, ranks, root, prove=False))
    reason = None
    if ranks < 1:
        reason = f"{ranks} ranks, expected 1 at least"
    elif not 0 <= place < ranks:
        reason = f"root {place}, expected 0 to {ranks - 1}"
    elif pipelined:
        reason = row.unsupported(
            ranks, row.default_parameter(ranks, 0) if parameter is None else parameter
        )
    if reason:
        raise ScheduleError(f"{collective} {algorithm}: {reason}")
    if not pipelined:
        return AlgorithmTraffic(
            collective, name, ranks, *DIRECTLY[collective, name](ranks, place)
        )
    return AlgorithmTraffic(
        collective, name, ranks, *PIPELINES[collective, name](ranks, place), parameter
    )


def _chain(ranks: int, root: int, *, to_root: bool) -> tuple[int, tuple[PipelineSteps, ...]]:
    edge = np.arange(ranks - 1)
    # Away from the root the first edge is the root's; towards it, the farthest rank begins.
    ends = (ranks - 1 - edge, ranks - 2 - edge) if to_root else (edge, edge + 1)
    source, target = ((end + root) % ranks for end in ends)
    return 1, (PipelineSteps(source, target, edge),)


def _up_and_down(*trees: Edges) -> tuple[int, tuple[PipelineSteps, ...]]:
    child, parent, below = (
        np.concatenate([getattr(tree, name) for tree in trees]).astype(np.int64)
        for name in ("child", "parent", "depth")
    )
    up = PipelineSteps(child, parent, below.max(initial=0) - below)
    return len(trees), (up, PipelineSteps(parent, child, below - 1))


PIPELINES: dict[
    tuple[str, str], Callable[[int, int], tuple[int, tuple[PipelineSteps, ...]]]
] = {
    ("broadcast", "chain"): lambda ranks, root: _chain(ranks, root, to_root=False),
    ("reduce", "chain"): lambda ranks, root: _chain(ranks, root, to_root=True),
    ("all_reduce", "binary_tree"): lambda ranks, root: _up_and_down(tree_edges(ranks)),
    ("all_reduce", "double_binary_tree"): lambda ranks, root: _up_and_down(
        tree_edges(ranks), complement(tree_edges(ranks), ranks, 0)
    ),
}
"""(ranks, root) -> parts of the buffer that travel separately, and the pipelines."""


def _between(ranks: int, root: int, *, to_root: bool) -> RepeatedSteps:
    peers = np.delete(np.arange(ranks), root)
    roots = np.full_like(peers, root)
    ends = (peers, roots) if to_root else (roots, peers)
    return RepeatedSteps(*ends, np.ones_like(peers))


def _to_all(ranks: int, root: int) -> tuple[int, tuple[Pattern, ...]]:
    return ranks, (AllPairs(),)


def _bruck_all_to_all(ranks: int, root: int) -> tuple[int, tuple[Pattern, ...]]:
    # A block goes as many ranks on as its place in the order says, by the bits of that distance.
    way = np.arange(ranks)
    return ranks, tuple(
        Uniform(distance, int(np.count_nonzero(way & distance)))
        for distance in distances_up_to(ranks)
    )


DIRECTLY: dict[tuple[str, str], Callable[[int, int], tuple[int, tuple[Pattern, ...]]]] = {
    ("all_to_all", "bruck"): _bruck_all_to_all,
    ("all_reduce", "one_shot"): lambda ranks, root: (1, (AllPairs(),)),
    ("all_reduce", "two_shot"): lambda ranks, root: (ranks, (AllPairs(), AllPairs())),
    ("all_gather", "direct"): _to_all,
    ("reduce_scatter", "direct"): _to_all,
    ("all_to_all", "direct"): _to_all,
    ("all_to_all_v", "direct"): _to_all,
    ("broadcast", "direct"): lambda ranks, root: (
        ranks,
        (_between(ranks, root, to_root=False), AllPairs(spared=root)),
    ),
    ("reduce", "direct"): lambda ranks, root: (
        ranks,
        (AllPairs(), _between(ranks, root, to_root=True)),
    ),
}
"""(ranks, root) -> pieces and patterns of algorithms whose schedules hold ranks squared flows."""
