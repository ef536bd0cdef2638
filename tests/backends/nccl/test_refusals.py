"""What is refused before NCCL starts, with the cure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.cuda.runtime import device_uuid
from ccbench.backends.nccl.crew import facts_of
from ccbench.backends.nccl.refusals import RankFacts, facts_from_bytes, refuse
from ccbench.errors import BackendUnavailable


def ranks_of(number: int) -> list[RankFacts]:
    return [RankFacts(rank, number, "node", f"0000:{rank:02x}:00.0", 22809) for rank in range(number)]


def refusal(facts: list[RankFacts]) -> str:
    with pytest.raises(BackendUnavailable) as caught:
        refuse(facts)
    return str(caught.value)


def test_sound_ranks_pass() -> None:
    refuse(ranks_of(8))
    refuse(ranks_of(1))


def test_the_same_gpu_number_on_another_host_is_another_gpu() -> None:
    one, other = ranks_of(2)
    refuse([one, replace(other, host="elsewhere", gpu=one.gpu)])
    refuse([replace(one, apart="a"), replace(other, apart="b", gpu=one.gpu)])


class Driver:
    """libcuda of a process that sees one device: an instance of a GPU that other processes share."""

    def __init__(self, instance: int) -> None:
        self.instance = instance

    def cuDeviceGet(self, handle: Any, device: int) -> int:  # noqa: N802 - as CUDA spells it
        handle._obj.value = device
        return 0

    def cuDeviceGetUuid_v2(self, uuid: Any, handle: Any) -> int:  # noqa: N802 - as CUDA spells it
        uuid.raw = bytes([self.instance]) * 16
        return int(handle.value)


def test_instances_of_one_gpu_are_told_apart_by_their_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda: Any = SimpleNamespace(facts=lambda device: SimpleNamespace(bus_id="0000:3b:00.0"))
    nccl: Any = SimpleNamespace(version=22809)

    def rank(number: int, instance: int) -> RankFacts:
        monkeypatch.setattr("ctypes.CDLL", lambda name: Driver(instance))
        (facts,) = facts_of(cuda, nccl, {number: 0}, 2, {})
        return facts

    refuse([rank(0, 0), rank(1, 1)])
    uuid = "07070707-0707-0707-0707-070707070707"
    assert f"have the same GPU 0000:3b:00.0 {uuid}" in refusal([rank(0, 7), rank(1, 7)])
    monkeypatch.undo()
    assert device_uuid(99) == ""  # no driver, or no such device


def test_a_gpu_for_two_ranks_is_refused_with_what_this_nccl_can_do() -> None:
    one, other = ranks_of(2)
    text = refusal([one, replace(other, gpu=one.gpu)])
    assert "ranks 0 and 1 on node have the same GPU 0000:00:00.0" in text
    assert "nccl-processes with 'transport: network'" in text
    newer = [replace(each, gpu=one.gpu, nccl_version=23007) for each in (one, other)]
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1 lets processes share a GPU" in refusal(newer)
    refuse([replace(each, shares=True) for each in newer])


def test_ranks_that_all_believe_to_be_rank_0_are_told_about_their_launcher() -> None:
    text = refusal([replace(one, rank=0, ranks=1) for one in ranks_of(4)])
    assert "all 4 processes believe to be rank 0 of 1" in text
    assert "--launch" in text


def test_a_world_of_another_size_is_refused() -> None:
    facts = ranks_of(4)
    assert "rank 3 on node expects 8 ranks and there are 4" in refusal(
        [*facts[:3], replace(facts[3], ranks=8)]
    )
    assert "must occur once" in refusal([*facts[:3], replace(facts[3], rank=1)])


def test_mixed_versions_are_refused_and_the_odd_one_named() -> None:
    facts = ranks_of(3)
    text = refusal([facts[0], replace(facts[1], nccl_version=22705), facts[2]])
    assert "rank 1 on node has NCCL 2.27.5, others have 2.28.9" in text


def test_settings_that_differ_are_refused() -> None:
    one, other = ranks_of(2)
    text = refusal([one, replace(other, settings=(("NCCL_ALGO", "Ring"),))])
    assert "NCCL_ALGO is not set for rank 0 on node and Ring for rank 1 on node" in text


@given(st.integers(2, 12), st.data())
def test_whatever_is_wrong_with_one_rank_is_refused(number: int, data: st.DataObject) -> None:
    facts = ranks_of(number)
    hit = data.draw(st.integers(0, number - 1))
    changes: list[dict[str, Any]] = [
        {"ranks": 99},
        {"nccl_version": 1},
        {"rank": (hit + 1) % number},
        {"settings": (("NCCL_PROTO", "LL"),)},
    ]
    change = data.draw(st.sampled_from(changes))
    facts[hit] = replace(facts[hit], **change)
    assert refusal(facts).startswith("nccl: ")


def test_facts_survive_the_exchange() -> None:
    facts = RankFacts(1, 2, "h", "g", 22809, "a", True, (("NCCL_ALGO", "Ring"),))
    assert facts_from_bytes(facts.as_bytes()) == facts
