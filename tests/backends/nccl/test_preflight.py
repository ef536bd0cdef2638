"""What is checked before NCCL starts, with the cure."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ccbench.backends.cuda.runtime import device_uuid
from ccbench.backends.nccl.bootstrap import RankFacts, facts_of, refuse_what_hangs, shared_gpu
from ccbench.errors import BackendUnavailable


def ranks_of(number: int) -> list[RankFacts]:
    return [
        RankFacts(rank, "node", f"0000:{rank:02x}:00.0", 22809, {}) for rank in range(number)
    ]


def refusal(facts: list[RankFacts]) -> str:
    with pytest.raises(BackendUnavailable) as caught:
        refuse_what_hangs(facts)
    return str(caught.value)


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


def test_instances_of_one_gpu_are_told_apart_by_their_uuids(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda: Any = SimpleNamespace(facts=lambda device: SimpleNamespace(bus_id="0000:3b:00.0"))
    nccl: Any = SimpleNamespace(version=22809)

    def rank(number: int, instance: int) -> RankFacts:
        monkeypatch.setattr("ctypes.CDLL", lambda name: Driver(instance))
        (facts,) = facts_of(cuda, nccl, {number: 0})
        return facts

    assert shared_gpu([rank(0, 0), rank(1, 1)]) == ""
    uuid = "07070707-0707-0707-0707-070707070707"
    assert f"have the same GPU 0000:3b:00.0 {uuid}" in shared_gpu([rank(0, 7), rank(1, 7)])
    monkeypatch.undo()
    assert device_uuid(99) == ""  # no driver, or no such device


def test_a_gpu_for_two_ranks_is_told_with_what_this_nccl_can_do() -> None:
    first, second = ranks_of(2)
    text = shared_gpu([first, replace(second, gpu=first.gpu)])
    assert "ranks 0 and 1 on node have the same GPU 0000:00:00.0" in text
    assert "processes: per_gpu with transport: network" in text
    newer = [replace(each, gpu=first.gpu, nccl_version=23007) for each in (first, second)]
    assert "NCCL_MULTI_RANK_GPU_ENABLE=1 lets processes share a GPU" in shared_gpu(newer)


def test_mixed_versions_are_refused_and_the_odd_one_named() -> None:
    facts = ranks_of(3)
    text = refusal([facts[0], replace(facts[1], nccl_version=22705), facts[2]])
    assert "rank 1 on node has NCCL 2.27.5, others have 2.28.9" in text


@pytest.mark.parametrize("hit", [1, 2])
def test_settings_that_differ_are_refused(hit: int) -> None:
    facts = ranks_of(3)
    facts[hit] = replace(facts[hit], settings={"NCCL_ALGO": "Ring"})
    text = refusal(facts)
    assert f"NCCL_ALGO is not set for rank 0 on node and Ring for rank {hit} on node" in text
