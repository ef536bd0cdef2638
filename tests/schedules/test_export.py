"""Plans of MSCCL++ that are written are read back as what they were."""

from __future__ import annotations

import json

import pytest

from ccbench.errors import ScheduleError
from ccbench.readers.schedules.mscclpp import read_mscclpp
from ccbench.schedules import ALGORITHMS, Algorithm, schedule_for
from ccbench.schedules.export import NAMES, execution_plan
from ccbench.schedules.schedule import Schedule, sent_pieces

WRITTEN = [row for row in ALGORITHMS if row.collective in NAMES]


def read_back(schedule: Schedule) -> Schedule:
    (row,) = read_mscclpp("plan.json", json.dumps(execution_plan(schedule)))
    return row.build(schedule.ranks, 0)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
@pytest.mark.parametrize("row", WRITTEN, ids=lambda row: f"{row.collective}-{row.name}")
def test_a_plan_proves_the_same_schedule(row: Algorithm, ranks: int) -> None:
    parameter = row.default_parameter(ranks, 1 << 20)
    schedule = schedule_for(row.collective, row.name, ranks, parameter=parameter or None)
    again = read_back(schedule)
    assert (again.collective, again.algorithm) == (row.collective, f"plan_{row.name}")
    assert (again.ranks, again.pieces, again.root) == (ranks, schedule.pieces, schedule.root)
    assert sent_pieces(again).tolist() == sent_pieces(schedule).tolist()


def test_a_ring_takes_as_many_steps_as_before() -> None:
    schedule = schedule_for("all_reduce", "ring", 8)
    assert read_back(schedule).steps == schedule.steps == 14


@pytest.mark.parametrize(
    ("collective", "name", "root"), [("gather", "direct", 0), ("broadcast", "binomial", 1)]
)
def test_what_plans_cannot_say_is_refused(collective: str, name: str, root: int) -> None:
    with pytest.raises(ScheduleError, match=f"^{collective}.*MSCCL\\+\\+ plans have no such"):
        execution_plan(schedule_for(collective, name, 4, root=root))
