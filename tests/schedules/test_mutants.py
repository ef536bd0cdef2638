"""Schedules broken on purpose: the proof rejects every one whose result changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import ScheduleError
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.proof import prove
from ccbench.schedules.schedule import Advance, Phase, Schedule
from tests.schedules.interpreter import FIELDS, ROWS, is_right


def rejected(schedule: Schedule) -> bool:
    try:
        prove(schedule)
    except ScheduleError:
        return True
    return False


def unrolled(schedule: Schedule) -> Schedule:
    """The same schedule with one phase for every step, so that a mutation touches a single step."""
    phases = tuple(
        replace(
            step.phase,
            **{field: getattr(step, field).astype(np.int32) for field in FIELDS[:4]},
            repeat=1,
            advance=Advance(),
        )
        for step in schedule.expanded()
    )
    return replace(schedule, phases=phases)


def taking(phase: Phase, flows: list[int]) -> Phase:
    return replace(phase, **{field: getattr(phase, field)[flows] for field in FIELDS})


def with_phase(schedule: Schedule, index: int, *phases: Phase) -> Schedule:
    kept = schedule.phases
    return replace(
        schedule, phases=(*kept[:index], *(p for p in phases if p.flows), *kept[index + 1 :])
    )


def with_value(phase: Phase, field: str, flow: int, value: int) -> Phase:
    changed = getattr(phase, field).copy()
    changed[flow] = value
    return replace(phase, **{field: changed})


def mutants(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    """Drop, repeat, flip and swap everything there is, once each."""
    for index, phase in enumerate(schedule.phases):
        everything = list(range(phase.flows))
        for flow in everything:
            rest = everything[:flow] + everything[flow + 1 :]
            yield (
                f"step {index} without flow {flow}",
                with_phase(schedule, index, taking(phase, rest)),
            )
            again = taking(phase, [*everything, flow])
            yield f"step {index} with flow {flow} twice", with_phase(schedule, index, again)
        flipped = replace(phase, reduces=not phase.reduces)
        yield f"step {index} flipped", with_phase(schedule, index, flipped)
        yield f"step {index} twice", with_phase(schedule, index, phase, phase)
        if index:
            before = schedule.phases[index - 1]
            swapped = (
                *schedule.phases[: index - 1],
                phase,
                before,
                *schedule.phases[index + 1 :],
            )
            yield f"steps {index - 1} and {index} swapped", replace(schedule, phases=swapped)


@pytest.mark.thinned(20)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("ranks", [4, 5])
def test_every_mutant_with_another_result_is_rejected(row: Algorithm, ranks: int) -> None:
    parameter = 2 if row.parameter == "pieces" else None
    schedule = unrolled(
        schedule_for(row.collective, row.name, ranks, root=1, parameter=parameter)
    )
    assert not rejected(schedule)
    found = [(name, mutant, is_right(mutant)) for name, mutant in mutants(schedule)]
    wrong = [(name, mutant) for name, mutant, right in found if not right]
    assert [name for name, mutant in wrong if not rejected(mutant)] == []
    assert len(wrong) >= max(1, len(found) // 8)


@given(row=st.sampled_from(ALGORITHMS), ranks=st.integers(2, 7), drawn=st.data())
def test_a_changed_index_is_rejected_or_changes_nothing(
    row: Algorithm, ranks: int, drawn: st.DataObject
) -> None:
    schedule = unrolled(schedule_for(row.collective, row.name, ranks))
    index = drawn.draw(st.integers(0, len(schedule.phases) - 1))
    phase = schedule.phases[index]
    field = drawn.draw(st.sampled_from(FIELDS))
    limit = {"source": ranks, "target": ranks, "width": schedule.pieces}.get(
        field, schedule.slots
    )
    value = drawn.draw(st.integers(0, limit - 1)) + (field == "width")
    flow = drawn.draw(st.integers(0, phase.flows - 1))
    mutant = with_phase(schedule, index, with_value(phase, field, flow, value))
    assert is_right(mutant) or rejected(mutant)


@given(row=st.sampled_from(ALGORITHMS), ranks=st.integers(2, 7), drawn=st.data())
def test_a_changed_repetition_or_advance_is_rejected_or_changes_nothing(
    row: Algorithm, ranks: int, drawn: st.DataObject
) -> None:
    schedule = schedule_for(row.collective, row.name, ranks)
    index = drawn.draw(st.integers(0, len(schedule.phases) - 1))
    phase = schedule.phases[index]
    steps = st.integers(-2, 2)
    changed = replace(
        phase,
        repeat=max(1, phase.repeat + drawn.draw(steps)),
        advance=Advance(*(drawn.draw(steps) for _ in range(4))),
    )
    mutant = with_phase(schedule, index, changed)
    assert is_right(mutant) or rejected(mutant)
