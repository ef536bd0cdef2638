from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ccbench.schedules import schedule_for
from ccbench.schedules.schedule import Advance, Schedule, phase, relabelled


def test_steps_of_local_moves_are_not_counted() -> None:
    local, moved = phase([0, 1], [0, 1], 0, 2), phase(0, 1, 0, 2, repeat=3)
    assert Schedule("all_to_all", "made_up", 2, 2, 4, (local, moved)).steps == 3


@given(
    pieces=st.integers(1, 9),
    regions=st.integers(1, 4),
    offset=st.integers(-40, 40),
    slot=st.integers(0, 35),
)
def test_a_slot_wraps_inside_its_region(
    pieces: int, regions: int, offset: int, slot: int
) -> None:
    schedule = Schedule("all_reduce", "made_up", 1, pieces, regions * pieces, ())
    slot %= regions * pieces
    (moved,) = schedule.wrapped(np.array([slot], np.int32), offset).tolist()
    assert moved // pieces == slot // pieces
    assert (moved - slot - offset) % pieces == 0


def test_expanded_steps_advance_ranks_and_slots_around_their_ends() -> None:
    turning = phase(1, 2, 2, 5, repeat=3, advance=Advance(1, -1, 1, 2))
    steps = list(
        Schedule("all_to_all", "made_up", 3, 3, 6, (phase(0, 0, 0, 3), turning)).expanded()
    )
    assert [step.index for step in steps] == [0, 1, 2, 3]
    assert [int(step.source[0]) for step in steps] == [0, 1, 2, 0]
    assert [int(step.target[0]) for step in steps] == [0, 2, 1, 0]
    assert [int(step.source_slot[0]) for step in steps] == [0, 2, 0, 1]
    assert [int(step.target_slot[0]) for step in steps] == [3, 5, 4, 3]


def test_a_phase_is_equal_to_itself_only_and_can_be_a_key() -> None:
    one, other = phase(0, 1, 0), phase(0, 1, 0)
    assert one != other
    assert {one: 1, other: 2}[one] == 1


def test_another_root_turns_ranks_and_blocks_but_not_pieces() -> None:
    gather = schedule_for("gather", "linear", 4)
    turned = relabelled(gather, 3)
    assert turned.root == 3
    assert (turned.phases[0].source.tolist(), turned.phases[0].target.tolist()) == ([0], [3])
    assert turned.phases[0].source_slot.tolist() == [0]
    broadcast = relabelled(schedule_for("broadcast", "scatter_all_gather", 4), 3)
    assert broadcast.phases[0].source.tolist() == [3]
    assert broadcast.phases[0].source_slot.tolist() == [2]
