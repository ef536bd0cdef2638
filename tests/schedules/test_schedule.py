from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ccbench.schedules.schedule import Schedule


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
