from __future__ import annotations

from collections import Counter

import pytest

from ccbench.model.loads import completed_load
from ccbench.schedules import algorithms_of, schedule_for
from ccbench.schedules.schedule import Schedule, Step

Place = tuple[int, int]
"""(rank, slot)"""


class Value:
    """What a slot holds; ``open``: a later reduction reads it."""

    def __init__(self, executor: int, reduced: bool) -> None:
        self.executor, self.reduced, self.open = executor, reduced, False


def completed(schedule: Schedule) -> Counter[int]:
    """Reduced values that no reduction reads, by the rank that made them: every value is followed."""
    values: list[Value] = []
    held: dict[Place, Value] = {}
    for step in schedule.expanded():
        written: dict[Place, Value] = {}
        for executor, source, target in flows(schedule, step):
            written.setdefault(target, Value(executor, step.phase.reduces))
            for read in (held.get(source), held.get(target)) if step.phase.reduces else ():
                if read is not None:
                    read.open = True
        values += written.values()
        held.update(written)
    return Counter(value.executor for value in values if value.reduced and not value.open)


def flows(schedule: Schedule, step: Step) -> list[tuple[int, Place, Place]]:
    """(executor, place read, place written) of each slot that a step moves."""
    phase, pieces, moved = step.phase, schedule.pieces, []
    for flow in range(phase.flows):
        source, target = int(step.source[flow]), int(step.target[flow])
        first, second = int(step.source_slot[flow]), int(step.target_slot[flow])
        for inside in range(int(phase.width[flow])):
            read = first - first % pieces + (first + inside) % pieces
            written = second - second % pieces + (second + inside) % pieces
            executor = source if phase.executed_by_source else target
            moved.append((executor, (source, read), (target, written)))
    return moved


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        (name, algorithm)
        for name in ("all_reduce", "reduce", "reduce_scatter")
        for algorithm in algorithms_of(name)
    ]
    + [("reduce", "chain:3")],
)
@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 8])
def test_the_busiest_rank_completes_what_following_every_value_says(
    name: str, algorithm: str, ranks: int
) -> None:
    schedule = schedule_for(name, algorithm, ranks)
    load = completed_load(schedule, cores=ranks)
    assert load is not None
    expected = completed(schedule)
    assert load.slots.max() == max(expected.values())
    assert load.operations.max() <= load.slots.max()
    assert load.active_cores == len(expected)


def test_what_nobody_reduces_is_never_complete() -> None:
    assert completed_load(schedule_for("all_gather", "ring", 4), 4) is None
