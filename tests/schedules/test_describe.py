"""Goldens: run ``python -m tests.schedules.test_describe`` from the checkout to write them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import ScheduleError
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.describe import describe, slot_name
from ccbench.schedules.schedule import Schedule, phase

GOLDENS = Path(__file__).parent / "goldens"

TOLD = {
    "all_reduce-ring-4": ("all_reduce", "ring", 4, 0),
    "all_reduce-halving_doubling-6": ("all_reduce", "halving_doubling", 6, 0),
    "all_reduce-double_binary_tree:2-5": ("all_reduce", "double_binary_tree:2", 5, 0),
    "all_reduce-ring-8": ("all_reduce", "ring", 8, 0),
    "all_reduce-one_shot-32": ("all_reduce", "one_shot", 32, 0),
    "all_gather-bruck-5": ("all_gather", "bruck", 5, 0),
    "all_to_all-bruck-3": ("all_to_all", "bruck", 3, 0),
    "broadcast-chain:3-4-root2": ("broadcast", "chain:3", 4, 2),
    "gather-binomial-6-root1": ("gather", "binomial", 6, 1),
    "barrier-dissemination-3": ("barrier", "dissemination", 3, 0),
    "all_reduce-ring-1": ("all_reduce", "ring", 1, 0),
}


def golden(name: str) -> Path:
    return GOLDENS / (name.replace(":", "_") + ".txt")


def told(name: str) -> str:
    collective, algorithm, ranks, root = TOLD[name]
    return describe(schedule_for(collective, algorithm, ranks, root))


@pytest.mark.parametrize("name", TOLD)
def test_the_description_is_the_golden_one(name: str) -> None:
    assert told(name) == golden(name).read_text(encoding="utf-8")


def test_every_golden_is_used() -> None:
    assert {path.name for path in GOLDENS.iterdir()} == {golden(name).name for name in TOLD}


@given(row=st.sampled_from(ALGORITHMS), ranks=st.integers(1, 40), drawn=st.data())
def test_any_schedule_can_be_told_in_plain_ascii_lines(
    row: Algorithm, ranks: int, drawn: st.DataObject
) -> None:
    schedule = schedule_for(
        row.collective, row.name, ranks, drawn.draw(st.integers(0, ranks - 1))
    )
    text = describe(schedule)
    assert text.isascii()
    assert text.startswith(f"{row.collective} {row.name}, {ranks} rank")
    assert f"source: {row.source}\n" in text
    assert text.endswith("\n")
    assert all(line == line.rstrip() for line in text.splitlines())
    shown = text.count("\nstep ")
    total = sum(one.repeat for one in schedule.phases)
    assert shown == (total if total <= 13 else 12)
    assert (f"... {total - 12} more steps ..." in text) == (total > 13)


def test_the_largest_ring_is_told_without_running_it() -> None:
    text = describe(schedule_for("all_reduce", "ring", 131072, prove=False))
    assert "step 8 of 262142: 131072 flows, combined, read by the targets" in text
    assert "... 262130 more steps ..." in text
    assert "  ... 131056 more flows ...\n  rank 131068 -> 131069   slot 131070\n" in text


def test_bits_are_told_of_sums_only_and_errors_where_anything_is_added() -> None:
    def lines(collective: str, algorithm: str, ranks: int) -> list[str]:
        text = describe(schedule_for(collective, algorithm, ranks, prove=False))
        return [line for line in text.splitlines() if line.startswith(("bits: ", "error: "))]

    assert lines("all_gather", "ring", 4) == []
    assert lines("all_reduce", "ring", 1) == [
        "bits: the same at every position and size; all ranks hold the same"
    ]
    assert lines("reduce_scatter", "pairwise", 3) == [
        "bits: depend on the position in the message, and so on its size",
        "error: at most 2 roundings: 2 u / (1 - 2 u) of the sum of magnitudes; "
        "u = 2^-24 for float32 (1.2e-07), 2^-8 for bfloat16 (7.9e-03)",
    ]
    assert lines("all_reduce", "ring", 129) == [
        "bits: not followed beyond 128 ranks or 65536 moves of a slot"
    ]


def test_a_schedule_of_ones_own_is_told_without_a_source() -> None:
    own = Schedule(
        "send_recv", "mine", 2, 1, 3, (phase([0, 1], [1, 0], 0, 1), phase(0, 0, 1, 2))
    )
    text = describe(own)
    assert text.startswith(
        "send_recv mine, 2 ranks\npieces: 1, the whole buffer\nsteps: 1, and 1 of local moves\n"
    )
    assert "  rank 0 -> 0   slot out 0 -> work 0\n" in text


def test_a_schedule_that_cannot_be_followed_says_where() -> None:
    with pytest.raises(ScheduleError, match="step 1: slot 0 of rank 1 is read"):
        describe(Schedule("broadcast", "mine", 2, 1, 1, (phase(1, 0, 0),), root=0))


def test_slots_are_named_by_what_they_are_for() -> None:
    for collective, names in (
        ("all_reduce", "3 work_0 work_1 work2_1"),
        ("all_to_all", "in_3 out_0 out_1 work_1"),
    ):
        schedule = Schedule(collective, "mine", 4, 4, 16, ())
        assert [
            slot_name(schedule, slot).replace(" ", "_") for slot in (3, 4, 5, 9)
        ] == names.split()


if __name__ == "__main__":
    for each in TOLD:
        golden(each).write_text(told(each), encoding="utf-8")


def test_pieces_of_an_all_to_all_v_tell_bytes_only_where_traffic_is_balanced() -> None:
    text = describe(schedule_for("all_to_all_v", "direct", 4))
    assert "sent by each rank: 3 pieces = 0.75 x the size of balanced traffic\n" in text
    assert "balanced" not in describe(schedule_for("all_to_all", "direct", 4))
