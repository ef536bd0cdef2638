"""Communicators of several processes, each played by a thread with an NCCL of its own, on the double.

What they do when all goes well is in test_processes.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from ccbench.backends.nccl.binding import NcclFailed
from ccbench.backends.nccl.collectives import Call
from ccbench.backends.nccl.communicators import Communicator, communicator_of

from .bench import NEW
from .double import Process, World

RANKS = 3


class Rank:
    """What one of the processes has."""

    def __init__(self, world: World, rank: int, ranks: int, cupy: int = 14) -> None:
        self.world, self.rank, self.ranks = world, rank, ranks
        self.process = Process(world, cupy=cupy)
        self.nccl = self.process.nccl
        self.process.runtime.setDevice(rank)
        self.stream = self.process.runtime.streamCreateWithFlags(1)

    def place(self, values: list[int], size: int) -> int:
        address = self.process.runtime.malloc(max(4 * size, 4))
        raw = np.array(values, np.int32)
        self.world.view(address, raw.nbytes, self.rank)[...] = raw.view(np.uint8)
        return address

    def read(self, address: int, count: int) -> list[int]:
        self.process.runtime.streamSynchronize(self.stream)
        assert self.process.exceptions == []
        found: list[int] = self.world.view(address, 4 * count, self.rank).view(np.int32).tolist()
        return found


def together(ranks: list[Rank], do: Callable[[Rank], object]) -> list[object]:
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(do, ranks))


def started(version: int, cupy: int = 14) -> tuple[list[Rank], list[Communicator]]:
    world = World(devices=RANKS, version=version)
    ranks = [Rank(world, rank, RANKS, cupy) for rank in range(RANKS)]
    unique_id = ranks[0].nccl.unique_id()
    assert len(unique_id) == 128

    def start(one: Rank) -> Communicator:
        return communicator_of(one.nccl, RANKS, unique_id, one.rank, one.rank)

    with ThreadPoolExecutor(RANKS) as pool:
        return ranks, list(pool.map(start, ranks))


@pytest.mark.parametrize("cupy", [13, 14])
def test_unique_ids_pass_between_processes_with_either_cupy(cupy: int) -> None:
    _, comms = started(NEW, cupy)
    assert [comm.rank for comm in comms] == [0, 1, 2]


def test_a_rank_that_never_comes_is_a_hang() -> None:
    world = World(devices=2, patience_seconds=0.05)
    ranks = [Rank(world, rank, 2) for rank in range(2)]
    unique_id = ranks[0].nccl.unique_id()
    with pytest.raises(NcclFailed, match="deadlock: ncclCommInitRank"):
        communicator_of(ranks[0].nccl, 2, unique_id, 0, 0)


def test_ranks_that_do_not_fit_are_refused() -> None:
    world = World(devices=2, patience_seconds=0.05)
    one, other = (Rank(world, rank, 2) for rank in range(2))
    unique_id = one.nccl.unique_id()
    with pytest.raises(NcclFailed, match="deadlock"):
        communicator_of(one.nccl, 2, unique_id, 0, 0)
    for ranks, rank, device, words in (
        (2, 0, 1, "rank 0 is there twice"),
        (3, 1, 1, "3 ranks here, 2 elsewhere"),
        (2, 2, 1, "invalid rank 2 of 2"),
        (2, 1, 0, "Duplicate GPU"),
    ):
        with pytest.raises(NcclFailed, match=words):
            communicator_of(other.nccl, ranks, unique_id, rank, device)


def test_different_calls_are_an_error_and_not_a_wrong_result() -> None:
    ranks, comms = started(NEW)

    def run(one: Rank) -> str:
        address = one.place([1, 2], 2)
        call = Call("all_reduce", address, address, 2 - (one.rank == 2), "int32", "sum")
        comms[one.rank].prepared(call, one.stream)()
        try:
            one.read(address, 2)
        except RuntimeError as error:
            return str(error)
        return ""

    assert all("rank 2 calls ('ncclAllReduce', 1" in str(words) for words in together(ranks, run))


def test_who_aborts_frees_the_others() -> None:
    ranks, comms = started(NEW)
    ranks[0].world.patience_seconds = 30.0

    def run(one: Rank) -> int:
        address = one.place([1], 1)
        if one.rank == 2:
            comms[2].abort()
        else:
            call = Call("all_reduce", address, address, 1, "int32", "sum")
            comms[one.rank].prepared(call, one.stream)()
            one.read(address, 1)
        return one.rank

    assert together(ranks, run) == [0, 1, 2]
