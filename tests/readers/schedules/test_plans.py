"""Plans of MSCCL++: proven as they are, and refused at the step that was changed."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from ccbench.errors import ScheduleError
from ccbench.readers.schedules.mscclpp import read_mscclpp
from ccbench.schedules.proof import prove
from ccbench.schedules.schedule import Schedule, sent_pieces
from tests.readers.schedules import plans


def of_json(document: dict[str, Any]) -> Schedule:
    (row,) = read_mscclpp("p.json", plans.text(document))
    return row.build(row.ranks, 0)


@pytest.mark.parametrize(
    ("document", "collective", "sent"),
    [(plans.two_shot(), "all_reduce", [2, 2]), (plans.gathered(), "all_gather", [1, 1])],
)
def test_a_plan_is_proven(document: dict[str, Any], collective: str, sent: list[int]) -> None:
    built = of_json(document)
    prove(built)
    assert (built.collective, built.algorithm) == (collective, "my_plan")
    assert sent_pieces(built).tolist() == sent


def changed(step: int, **change: Any) -> dict[str, Any]:
    document = copy.deepcopy(plans.two_shot())
    operations = document["gpus"][1]["threadblocks"][0]["ops"]
    operations[step] = operations[step] | change
    return document


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (changed(4, name="glres"), "gpu 1, threadblock 0, step 4: 'glres' cannot be a step"),
        (changed(4, name="ppkt"), "packets"),
        (changed(4, dst_buff=[plans.local("i", 0), plans.remote(1)]), "gpu [01], threadblock 0, step 4: "),
        (changed(4, src_buff=[plans.local("i", 5), plans.remote(1)]), "chunks 5 to 5 of i of gpu 1, which has 2"),
        (changed(4, src_buff=[plans.local("i", 0, 2), plans.remote(1)]), "different sizes"),
        (
            changed(5, name="signal", channel_ids=[0], channel_type="memory"),
            "signals gpu 0, which does not wait",
        ),
        (changed(6, name="nop"), "waits forever: gpu 1 signals 1 times on that memory channel, and this is wait 2"),
        (changed(6, channel_ids=[3]), "memory channel 3 of the threadblock, which has 1"),
        (changed(2, name="nop"), "signals gpu 1, which does not wait"),
        ({"name": "x"}, "p.json: gpus is missing at the top; expected a plan in the form"),
        ({"gpus": [{"name": "x"}]}, "id is missing in an entry of gpus; expected a plan"),
        (["gpus"], "the top is no object; expected a plan"),
        ({"gpus": [7]}, "an entry has another form "),
        (plans.two_shot() | {"collective": "sendrecv"}, "collective 'sendrecv'"),
    ],
)  # fmt: skip
def test_a_changed_step_is_refused_with_its_place(
    document: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ScheduleError, match=sentence):
        of_json(document)


def test_a_missing_wait_is_a_race() -> None:
    document = plans.two_shot()
    for gpu in document["gpus"]:
        operations = gpu["threadblocks"][0]["ops"]
        # Both add into one chunk, and nobody waits for the other.
        operations[4]["src_buff"][0]["index"] = operations[4]["dst_buff"][0]["index"] = 0
        operations[4]["src_buff"][1]["index"] = operations[4]["dst_buff"][1]["index"] = 0
    with pytest.raises(ScheduleError, match=r"rres on shared chunk 0 of gpu . races with rres"):
        of_json(document)
