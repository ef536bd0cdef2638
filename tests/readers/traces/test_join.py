"""Collectives of several ranks, joined by their order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ccbench.readers.traces.events import ProcessGroup
from ccbench.readers.traces.join import instances
from tests.readers.traces.jobs import WORLD, call, trace


def test_the_nth_collective_of_every_rank_is_one() -> None:
    records = [call(rank, size_bytes=size) for rank in range(4) for size in (8, 16, 8)]
    joined, warnings = instances(trace(records))
    assert [[record.input_bytes for record in each.records] for each in joined] == [
        [8] * 4,
        [16] * 4,
        [8] * 4,
    ]
    assert [[record.rank for record in each.records] for each in joined] == [[0, 1, 2, 3]] * 3
    assert warnings == ()


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


def test_numbers_of_the_trace_join_where_one_rank_was_recorded_later() -> None:
    records = [call(0, sequence=number, size_bytes=8 * number) for number in (1, 2, 3)]
    records += [call(1, sequence=number, size_bytes=8 * number) for number in (2, 3)]
    joined, warnings = instances(trace(records))
    assert [len(each.records) for each in joined] == [1, 2, 2]
    assert [warning.kind for warning in warnings] == ["truncated"]


def test_calls_of_one_number_are_told_apart_by_order() -> None:
    records = [call(rank, sequence=1, size_bytes=size) for rank in (0, 1) for size in (8, 16)]
    joined, _ = instances(trace(records))
    assert [[record.input_bytes for record in each.records] for each in joined] == [
        [8, 8],
        [16, 16],
    ]


def test_two_groups_of_the_same_ranks_count_by_themselves() -> None:
    second = replace(WORLD, name="1")
    records = [call(0, size_bytes=8), call(0, size_bytes=16, group=second)]
    records += [call(1, size_bytes=16, group=second), call(1, size_bytes=8)]
    joined, warnings = instances(trace(records))
    assert {each.records[0].input_bytes for each in joined} == {8, 16}
    assert all(len(each.records) == 2 for each in joined)
    assert warnings == ()


def test_from_a_contradiction_on_ranks_stay_single_and_it_is_named() -> None:
    records = [call(0, size_bytes=8), call(0, size_bytes=16), call(0, size_bytes=8)]
    records += [call(1, size_bytes=8), call(1, "all_gather", 16), call(1, size_bytes=8)]
    joined, warnings = instances(trace(records))
    assert [len(each.records) for each in joined] == [2, 1, 1, 1, 1]
    (warning,) = warnings
    assert warning.kind == "contradiction"
    assert "default_pg, place 1: rank 0 has 'all_reduce'" in warning.text
    assert "rank 1 has 'all_gather'" in warning.text


def test_uneven_amounts_are_no_contradiction() -> None:
    records = [
        call(rank, "all_to_all", 100 * (rank + 1), output_bytes=1000) for rank in range(4)
    ]
    joined, warnings = instances(trace(records))
    assert len(joined) == 1
    assert warnings == ()


def test_a_message_is_joined_by_its_two_ranks() -> None:
    records = [
        call(0, "send", 8, peer=1),
        call(0, "send", 16, peer=1),
        call(2, "send", 8, peer=1),
    ]
    records += [
        call(1, "recv", 8, peer=2),
        call(1, "recv", 8, peer=0),
        call(1, "recv", 16, peer=0),
    ]
    joined, warnings = instances(trace(records))
    ends = sorted(
        sorted((record.rank, record.collective) for record in each.records) for each in joined
    )
    assert ends == [
        [(0, "send"), (1, "recv")],
        [(0, "send"), (1, "recv")],
        [(1, "recv"), (2, "send")],
    ]
    assert warnings == ()


def test_a_message_without_a_peer_disturbs_no_group() -> None:
    records = [call(0, "send", 8), call(0, size_bytes=16), call(1, size_bytes=16)]
    joined, warnings = instances(trace(records))
    assert sorted(len(each.records) for each in joined) == [1, 2]
    assert warnings == ()


def test_records_of_nobody_stay_single() -> None:
    lone = ProcessGroup("dp", 8)
    joined, _ = instances(trace([call(None, group=lone), call(None, group=lone)]))
    assert [len(each.records) for each in joined] == [1, 1]
