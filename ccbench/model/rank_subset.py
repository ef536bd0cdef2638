"""Ranks that take part in a launch: groups that run the same schedule at once, a pair, uneven blocks.

A schedule is of one group, whose members it calls 0, 1, 2, ...; ``subset_flows`` are those of all ranks, of
which every group takes each step together with the others. That groups march in step is an assumption: the
time of links and memory that they share is the same in whatever order they take it, the waiting is not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ccbench.cases.axes import NO_ROOT, UNEVEN, Case
from ccbench.collectives import sent_elements, shares
from ccbench.groups import Groups
from ccbench.model.fabric_pricing import AlgorithmTraffic, RepeatedSteps, steps_of
from ccbench.schedules import parse_algorithm, schedule_for
from ccbench.schedules.direct import one_way_send_recv
from ccbench.schedules.schedule import STILL, Phase, Schedule
from ccbench.topology.fabrics import Floats

QUANTA = 4096
"""Parts of a mean block in which uneven ones are counted."""


@dataclass(frozen=True)
class RankSubset:
    """members: ranks of each group, groups of one size. traffic: as of an all_to_all_v, "" for even blocks."""

    members: Groups
    traffic: str = ""

    def weights(self, ranks: int) -> Floats | None:
        """Size of the block from each group rank to each, [source, target], in mean blocks; None for even."""
        return shares(self.traffic, ranks) * ranks if self.traffic else None


def subset_of(case: Case) -> RankSubset:
    """The ranks that take part in ``case``, its concurrent collective left out."""
    return RankSubset(case.members, case.traffic if case.collective == UNEVEN else "")


def takes_all_alike(case: Case) -> bool:
    """True if all ranks are one group with blocks of one size: what models of a whole machine are of."""
    return case.everybody and not case.groups and not subset_of(case).traffic


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
def subset_flows(schedule: Schedule, subset: RankSubset, ranks: int) -> AlgorithmTraffic:
    """The flows of all groups, among ``ranks`` ranks; the same object for the same three.

    With uneven traffic they are as wide as it says, in parts of which the largest input has ``pieces``.
    """
    places, count = np.array(subset.members, dtype=np.int64), len(subset.members)
    blocks, pieces = np.zeros(0), schedule.pieces
    if subset.traffic:
        blocks = sent_elements(subset.traffic, QUANTA, schedule.ranks).astype(np.float64)
        pieces = int(blocks.sum(axis=1).max())
    patterns = []
    for phase in schedule.phases:
        # Moving on by one within a group is no move by one among all ranks: such phases are written out.
        moving = phase.repeat > 1 and (phase.advance.source or phase.advance.target)
        for turn in _turns_of(phase, schedule) if moving or subset.traffic else (phase,):
            if subset.traffic:
                # In whole parts, so that flows that carry nothing drop out and equal widths are recognised.
                width = np.rint(flow_weights(turn, schedule, blocks)).astype(np.int32)
                turn = replace(turn, width=width)
            steps = steps_of(turn)
            carrying = steps.width > 0
            source, target = (
                places[:, ends[carrying]].ravel() for ends in (steps.source, steps.target)
            )
            width = np.tile(steps.width[carrying], count)
            patterns.append(RepeatedSteps(source, target, width, turn.repeat))
    return AlgorithmTraffic(
        schedule.collective, schedule.algorithm, ranks, pieces, tuple(patterns)
    )


def _turns_of(phase: Phase, schedule: Schedule) -> tuple[Phase, ...]:
    """Every repetition of ``phase`` as a phase of its own."""
    steps = [schedule.turn(phase, turn, turn) for turn in range(phase.repeat)]
    ends = "source", "target", "source_slot", "target_slot"
    return tuple(
        replace(phase, repeat=1, advance=STILL, **{end: getattr(step, end) for end in ends})
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
