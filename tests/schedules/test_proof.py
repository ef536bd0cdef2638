from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ccbench.errors import ScheduleError
from ccbench.schedules.proof import prove
from ccbench.schedules.schedule import Phase, Schedule, phase
from tests.schedules.interpreter import is_right


def made(
    name: str, *phases: Phase, ranks: int = 2, pieces: int = 1, slots: int = 1, root: int = -1
) -> Schedule:
    return Schedule(name, "made_up", ranks, pieces, slots, phases, root)


def exchange(**options: Any) -> Phase:
    return phase([0, 1], [1, 0], 0, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            made("all_reduce", exchange(reduces=True, repeat=2)),
            "all_reduce made_up, 2 ranks: step 2: slot 0 of rank 0 gets the contribution A0 2 times, expected",
        ),
        (
            made("all_reduce", exchange()),
            "after the last step: slot 0 of rank 0 holds A1; missing: A0",
        ),
        (
            made("broadcast", phase(1, 0, 0), root=0),
            "step 1: slot 0 of rank 1 is read, but nothing was written to it; send it there before",
        ),
        (
            made("reduce", phase(1, 0, 0, 1, reduces=True), slots=2, root=0),
            "step 1: slot 1 of rank 0 is combined with piece A, but holds nothing; copy to it first",
        ),
        (
            made("all_reduce", phase(0, 1, 0, 1, reduces=True), pieces=2, slots=2),
            "step 1: slot 1 of rank 1 holds B1 and is combined with piece A, expected piece B",
        ),
        (
            made("broadcast", phase([0, 1], 2, 0), ranks=3, root=0),
            "step 1: slot 0 of rank 1 is read",
        ),
        (
            made("send_recv", phase([0, 0], [1, 1], 0, 1), slots=2),
            "step 1: slot 1 of rank 1 is written by 2 flows at once, expected one",
        ),
        (
            made("all_gather", exchange(reduces=True), pieces=2, slots=2),
            "step 1: slot 0 of rank 1 is read",
        ),
        (
            made(
                "all_gather",
                phase([0, 1], [1, 0], [0, 1]),
                phase(0, 0, 0, 1),
                pieces=2,
                slots=2,
            ),
            "after the last step: slot 1 of rank 0 holds A0, expected A1",
        ),
        (
            made("barrier", phase(0, 1, 0, reduces=True)),
            "after the last step: slot 0 of rank 0 holds A0; missing: A1",
        ),
        (made("send_recv", slots=2), "slot 1 of rank 0 holds nothing, expected piece A"),
        (
            made("all_reduce", phase(0, 0, 0, 1), pieces=2, slots=2),
            "slot 0 of rank 0 holds A0; missing: A1",
        ),
    ],
)
def test_a_wrong_schedule_is_rejected_with_step_rank_slot_and_contributions(
    wrong: Schedule, message: str
) -> None:
    with pytest.raises(ScheduleError) as caught:
        prove(wrong)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not is_right(wrong)


def test_a_collective_without_an_op_may_not_combine() -> None:
    combining = phase([0, 1], [1, 0], 0, 1, reduces=True)
    with pytest.raises(ScheduleError, match="send_recv has nothing to combine; copy instead"):
        prove(made("send_recv", combining, slots=2))


def with_array(field: str, values: list[int], dtype: type = np.int32) -> Schedule:
    """An exchange one of whose arrays is another."""
    changed: dict[str, Any] = {field: np.array(values, dtype)}
    return made("all_reduce", replace(exchange(reduces=True), **changed))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (with_array("source", [0, 2]), "phase 0: flow 1: source is 2, expected 0 to 1"),
        (
            with_array("target_slot", [-1, 0]),
            "phase 0: flow 0: target_slot is -1, expected 0 to 0",
        ),
        (with_array("width", [1, 2]), "phase 0: flow 1: width is 2, expected 1 to 1"),
        (
            with_array("target", [1, 0], np.int64),
            "target is int64 of shape (2,), expected int32 of (2,)",
        ),
        (
            with_array("target", [1]),
            "phase 0: target is int32 of shape (1,), expected int32 of (2,)",
        ),
        (
            made("all_reduce", exchange(reduces=True, repeat=0)),
            "phase 0: 2 flows repeated 0 times, expected once at least",
        ),
        (
            made("all_reduce", pieces=2, slots=3),
            "3 slots, expected 2 or more in whole regions of 2",
        ),
        (made("send_recv"), "1 slots, expected 2 or more in whole regions of 1"),
        (made("all_gather", pieces=1), "1 pieces, expected one block for each rank"),
        (made("broadcast"), "root -1, expected 0 to 1"),
        (made("all_reduce", pieces=0), "0 pieces, expected one rank and one piece at least"),
    ],
)
def test_a_malformed_schedule_is_rejected_before_it_runs(wrong: Schedule, message: str) -> None:
    with pytest.raises(ScheduleError) as caught:
        prove(wrong)
    assert message in str(caught.value)
