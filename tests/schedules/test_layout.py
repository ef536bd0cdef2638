"""Where blocks of different sizes lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import ScheduleError
from ccbench.schedules import schedule_for
from ccbench.schedules.placement import Amounts, SlotLayout, Space

AMOUNTS = st.integers(1, 6).flatmap(
    lambda ranks: st.tuples(*[st.tuples(*[st.integers(0, 9)] * ranks)] * ranks)
)


def uneven(sent: Amounts, algorithm: str = "direct") -> SlotLayout:
    return SlotLayout(schedule_for("all_to_all_v", algorithm, len(sent)), 3, False, sent)


@given(AMOUNTS)
def test_blocks_follow_each_other_in_rank_order_and_fill_the_buffers(sent: Amounts) -> None:
    layout = uneven(sent)
    ranks = len(sent)
    for rank in range(ranks):
        sizes = {Space.INPUT: sent[rank], Space.OUTPUT: tuple(row[rank] for row in sent)}
        for space, places in (
            (Space.INPUT, layout.input_places(rank)),
            (Space.OUTPUT, layout.output_places(rank)),
        ):
            assert tuple(place.elements for place in places) == sizes[space]
            assert [place.offset for place in places] == [
                sum(sizes[space][:peer]) for peer in range(ranks)
            ]
            assert layout.buffer_elements(rank, space) == sum(sizes[space])


@given(st.integers(1, 6), st.integers(0, 9))
def test_equal_amounts_lie_as_those_of_an_all_to_all_do(ranks: int, count: int) -> None:
    sent = tuple((count,) * ranks for _ in range(ranks))
    plain = SlotLayout(schedule_for("all_to_all", "direct", ranks), count, False)
    for rank in range(ranks):
        assert uneven(sent).input_places(rank) == plain.input_places(rank)
        assert uneven(sent).output_places(rank) == plain.output_places(rank)


def test_blocks_of_different_sizes_cannot_be_in_place_or_of_other_collectives() -> None:
    schedule = schedule_for("all_to_all_v", "direct", 2)
    with pytest.raises(
        ScheduleError, match="blocks of different sizes cannot be in place; take two buffers"
    ):
        SlotLayout(schedule, 3, True, ((1, 2), (3, 4)))
    with pytest.raises(ScheduleError, match="amounts of 1 sources, expected 2 by 2"):
        SlotLayout(schedule, 3, False, ((1, 2),))
    with pytest.raises(
        ScheduleError, match="all_gather direct: its blocks cannot differ in size"
    ):
        SlotLayout(schedule_for("all_gather", "direct", 2), 3, False, ((1, 2), (3, 4)))
