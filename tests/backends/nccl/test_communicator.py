"""Calls upon communicators of one process, on the double of NCCL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from ccbench.backends.base import CannotRun
from ccbench.backends.nccl.collectives import Call, nccl_calls, prepared
from ccbench.backends.nccl.library import NcclFailed
from ccbench.groups import Pair
from tests.backends.cuda.emulated import CudaError

from .bench import OLD, Bench, all_reduce
from .double import WorldRuntime


def test_premulsum_multiplies_by_each_ranks_own_scalar_first() -> None:
    bench = Bench(3)
    values = [np.arange(4, dtype=np.float32) + rank for rank in range(3)]
    addresses = [bench.place(one, rank) for rank, one in enumerate(values)]
    ops = [comm.premultiplied(2.0 + rank, "float32") for rank, comm in enumerate(bench.comms)]
    with bench.nccl.group():
        for rank, comm in enumerate(bench.comms):
            prepared(
                comm,
                Call("all_reduce", addresses[rank], addresses[rank], 4, "float32", ops[rank]),
                bench.streams[rank],
            )()
    bench.wait()
    expected = sum((2 + rank) * one for rank, one in enumerate(values))
    for rank in range(3):
        assert bench.read(addresses[rank], "float32", 4, rank).tolist() == np.asarray(expected).tolist()
    for comm, op in zip(bench.comms, ops, strict=True):
        comm.release(op)
        with pytest.raises(NcclFailed, match="ncclRedOpDestroy: ncclInvalidArgument"):
            comm.release(op)


def test_a_pair_is_of_two_ranks_of_the_communicator() -> None:
    bench = Bench(3)
    with pytest.raises(CannotRun, match="two different ranks of the communicator's 3"):
        prepared(bench.comms[0], Call("send_recv", 0, 0, 3, "int32", pair=Pair(1, 3, False)), 0)


@pytest.mark.parametrize("root", [0, 1, 2])
def test_in_place_the_roots_own_block_is_not_sent(root: int) -> None:
    nccl = Bench(3, OLD).nccl
    gather = Call("gather", 64 + 8 * root, 64, 2, "int32", root=root)
    assert [(step[1][1], step[1][3]) for step in nccl_calls(nccl, root, 3, gather, 0)] == [
        (2, peer) for peer in range(3) if peer != root
    ]
    scatter = Call("scatter", 64, 64 + 8 * root, 2, "int32", root=root)
    assert {step[0] for step in nccl_calls(nccl, root, 3, scatter, 0)} == {"ncclSend"}
    apart = Call("scatter", 64, 1000, 2, "int32", root=root)
    assert len(nccl_calls(nccl, root, 3, apart, 0)) == 4


def test_a_barrier_counts_the_ranks() -> None:
    bench = Bench(4)
    words = [bench.place(np.ones(1, np.int32), rank) for rank in range(4)]
    with bench.nccl.group():
        for comm, word, stream in zip(bench.comms, words, bench.streams, strict=True):
            prepared(comm, Call("barrier", word, word, 1, "int32"), stream)()
    bench.wait()
    assert [bench.read(word, "int32", 1, rank).tolist() for rank, word in enumerate(words)] == [[4]] * 4


UNSAFE_CALLS: dict[str, Callable[[WorldRuntime, int], object]] = {
    "free": lambda runtime, stream: runtime.free(0),
    "malloc": lambda runtime, stream: runtime.malloc(1),
    "instantiate": lambda runtime, stream: runtime.graphInstantiate(0),
    "upload": lambda runtime, stream: runtime.graphUpload(0, stream),
    "synchronize": lambda runtime, stream: runtime.streamSynchronize(stream),
    "query": lambda runtime, stream: runtime.streamQuery(stream),
}


@pytest.mark.parametrize("call", UNSAFE_CALLS)
def test_the_double_spoils_every_capture_of_a_thread_that_does_what_may_wait(call: str) -> None:
    bench = Bench(2)
    runtime = bench.process.runtime
    for stream in bench.streams:
        runtime.streamBeginCapture(stream, 1)
    with pytest.raises(CudaError, match="900"):
        UNSAFE_CALLS[call](runtime, bench.streams[0])
    for stream in bench.streams:
        with pytest.raises(CudaError, match="901"):
            runtime.streamEndCapture(stream)
    bench.wait()


def test_an_estimate_moves_nothing_and_costs_what_the_run_costs() -> None:
    bench = Bench(2)
    addresses = [bench.place(np.ones(2, np.int64), rank) for rank in range(2)]

    def estimate(of: Bench, *calls: Call) -> float | None:
        together = zip(of.comms, calls, of.streams, strict=True)
        return of.nccl.simulate([prepared(comm, call, stream) for comm, call, stream in together])

    seconds = estimate(bench, *[Call("all_reduce", at, at, 2, "int64", "sum") for at in addresses])
    bench.wait()
    assert bench.read(addresses[0], "int64", 2, 0).tolist() == [1, 1]
    with bench.nccl.group():
        all_reduce(bench, addresses)
    bench.wait()
    assert seconds == pytest.approx(bench.world.seconds, rel=1e-6)
    assert estimate(bench, *[Call("send_recv", at, at, 1, "int64") for at in addresses]) is None
    assert estimate(Bench(1, 21903), Call("barrier", 0, 0, 1, "int32")) is None
