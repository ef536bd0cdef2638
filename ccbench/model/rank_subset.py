"""Ranks that take part in a launch: groups that run the same schedule at once, a pair, uneven blocks.

A schedule is of one group, whose members it calls 0, 1, 2, ...; ``placed`` makes it one of all ranks, in
which every group takes each step together with the others. That groups march in step is an assumption: the
time of links and memory that they share is the same in whatever order they take it, the waiting is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.cases.axes import NO_ROOT, UNEVEN, Case
from ccbench.collectives import shares
from ccbench.groups import Groups
from ccbench.schedules import parse_algorithm, schedule_for
from ccbench.schedules.direct import one_way_send_recv
from ccbench.schedules.schedule import Advance, Phase, Schedule

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class RankSubset:
    """members: ranks of each group, groups of one size; () for as many ranks as the schedule has, in order.

    traffic: of an all_to_all_v, as ``ccbench.collectives`` has it. one_way: of a pair of which the second
    only receives.
    """

    members: Groups = ()
    traffic: str = ""
    one_way: bool = False

    def groups_of(self, ranks: int) -> Groups:
        """The members, all ``ranks`` of a schedule where none are named."""
        return self.members or (tuple(range(ranks)),)

    def places(self, ranks: int) -> NDArray[np.int64]:
        """Shape (groups, ranks of a group): the rank behind each group rank."""
        return np.array(self.groups_of(ranks), dtype=np.int64)

    def weights(self, ranks: int) -> Floats | None:
        """Size of the block from each group rank to each, [source, target], in mean blocks; None for even."""
        return shares(self.traffic, ranks) * ranks if self.traffic else None


ALL_RANKS = RankSubset()
"""All ranks together."""


def subset_of(case: Case) -> RankSubset:
    """The ranks that take part in ``case``, its concurrent collective left out."""
    pair = case.one_pair
    plain = case.everybody and not case.groups
    traffic = case.traffic if case.collective == UNEVEN else ""
    return RankSubset(
        () if plain else case.members, traffic, pair is not None and not pair.both
    )


def schedule_of(case: Case, algorithm: str, prove: bool = True) -> Schedule:
    """The schedule that each group of ``case`` runs; ``algorithm`` is a name or ``name:parameter``.

    Raises UsageError and ScheduleError as ``schedule_for`` does.
    """
    pair = case.one_pair
    if pair is not None and not pair.both:
        return one_way_send_recv()
    name, parameter = parse_algorithm(algorithm)
    root = 0 if case.root == NO_ROOT else case.root
    return schedule_for(
        case.collective,
        name,
        case.group_ranks,
        root=root,
        parameter=parameter,
        size_bytes=case.size_bytes,
        prove=prove,
    )


@lru_cache(maxsize=64)
def placed(schedule: Schedule, groups: Groups, ranks: int) -> Schedule:
    """``schedule`` run by every one of ``groups`` at once: a schedule of ``ranks`` ranks.

    Ranks of no group do nothing. Only flows mean what they mean in a schedule of so many ranks: inputs and
    outputs are still those of a group. The same object for the same schedule and groups.
    """
    places, count = np.array(groups, dtype=np.int32), len(groups)
    phases = []
    for phase in schedule.phases:
        # Moving on by one within a group is no move by one among all ranks: such phases are written out.
        moving = phase.repeat > 1 and (phase.advance.source or phase.advance.target)
        phases += [
            replace(
                turn,
                source=places[:, turn.source].ravel(),
                target=places[:, turn.target].ravel(),
                source_slot=np.tile(turn.source_slot, count),
                target_slot=np.tile(turn.target_slot, count),
                width=np.tile(turn.width, count),
            )
            for turn in (turns_of(phase, schedule) if moving else (phase,))
        ]
    return replace(schedule, ranks=ranks, phases=tuple(phases))


def turns_of(phase: Phase, schedule: Schedule) -> tuple[Phase, ...]:
    """Every repetition of ``phase`` as a phase of its own."""
    steps = [schedule.turn(phase, turn, turn) for turn in range(phase.repeat)]
    return tuple(
        replace(
            phase,
            source=step.source,
            target=step.target,
            source_slot=step.source_slot,
            target_slot=step.target_slot,
            repeat=1,
            advance=Advance(),
        )
        for step in steps
    )


def flow_weights(phase: Phase, schedule: Schedule, weights: Floats) -> Floats:
    """Amount that each flow of a phase moves, in the unit of ``weights``; of several blocks their sum.

    Block s of region 0 goes to group rank s, block s of region 1 is from it.
    """
    ranks = schedule.ranks
    slots = phase.source_slot.astype(np.int64)
    moved = np.zeros(phase.flows)
    for step in range(int(phase.width.max(initial=0))):
        # Region 0 of the slots is the input, region 1 the output; both have a block for each rank.
        peer = (slots + step) % ranks
        outgoing = slots < ranks
        amounts = np.where(outgoing, weights[phase.source, peer], weights[peer, phase.source])
        moved += np.where(step < phase.width, amounts, 0.0)
    return moved
