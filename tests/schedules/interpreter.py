"""A second, slow reading of schedules: multisets, one flow at a time, no code shared with the proof."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ccbench.collectives import collective
from ccbench.schedules import ALGORITHMS
from ccbench.schedules.schedule import Phase, Schedule

Multiset = Counter[Any]
Slots = list[list[Multiset]]

ROWS = [pytest.param(row, id=f"{row.collective}-{row.name}") for row in ALGORITHMS]
FIELDS = ("source", "target", "source_slot", "target_slot", "width")
"""Arrays of a phase."""

CLASH = ("clash", 0)
"""In a slot that two flows wrote at once: nobody can say what is there."""


def run(schedule: Schedule) -> Slots:
    """Multisets of (origin rank, input index) in every slot of every rank, after the last step."""
    row = collective(schedule.collective)
    ranks, pieces = schedule.ranks, schedule.pieces
    state: Slots = [[Counter() for _ in range(schedule.slots)] for _ in range(ranks)]
    for rank in range(ranks):
        for index, slot in enumerate(row.inputs(rank, ranks, pieces, schedule.root)):
            state[rank][slot] = Counter({(rank, index): 1})
    for phase in schedule.phases:
        for turn in range(phase.repeat):
            state = _after_step(schedule, phase, turn, state)
    return state


def _after_step(schedule: Schedule, phase: Phase, turn: int, before: Slots) -> Slots:
    after = [list(slots) for slots in before]
    written = set()
    advance, ranks, pieces = phase.advance, schedule.ranks, schedule.pieces
    for flow in range(phase.flows):
        source = (int(phase.source[flow]) + turn * advance.source) % ranks
        target = (int(phase.target[flow]) + turn * advance.target) % ranks
        for offset in range(int(phase.width[flow])):
            start, into = int(phase.source_slot[flow]), int(phase.target_slot[flow])
            read = (
                start // pieces * pieces
                + (start + turn * advance.source_slot + offset) % pieces
            )
            write = (
                into // pieces * pieces + (into + turn * advance.target_slot + offset) % pieces
            )
            content = before[source][read]
            clash = (target, write) in written and not (phase.reduces and phase.fan_in)
            written.add((target, write))
            if clash:
                after[target][write] = Counter({CLASH: 1})
            elif phase.reduces:
                after[target][write] = after[target][write] + content
            else:
                after[target][write] = content
    return after


def is_right(schedule: Schedule) -> bool:
    """Every output slot holds what its collective says, each contribution exactly once."""
    row = collective(schedule.collective)
    state = run(schedule)
    ranks, root = schedule.ranks, schedule.root
    for rank in range(ranks):
        for index, slot in enumerate(row.outputs(rank, ranks, schedule.pieces, root)):
            expected = Counter(row.origins(rank, index, ranks, root))
            held = state[rank][slot]
            if (held if row.moves_data else Counter(set(held))) != expected:
                return False
    return True
