"""Collectives of several ranks, joined by their order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces.join import instances
from tests.readers.traces.jobs import call, trace


@given(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4))
def test_clocks_have_no_part_in_it(shifts: list[float]) -> None:
    records = [
        call(
            rank,
            size_bytes=8 * (place + 1),
            start_seconds=place + shifts[rank],
            duration_seconds=0.5,
        )
        for rank in range(4)
        for place in range(3)
    ]
    joined, _ = instances(trace(records))
    assert [{record.input_bytes for record in each.records} for each in joined] == [
        {8},
        {16},
        {24},
    ]
