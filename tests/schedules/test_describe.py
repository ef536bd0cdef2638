"""Goldens: run ``python -m tests.schedules.test_describe`` from the checkout to write them anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.describe import describe

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


if __name__ == "__main__":
    for each in TOLD:
        golden(each).write_text(told(each), encoding="utf-8")
