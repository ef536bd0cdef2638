"""Every collective, op, type and option moves the right bytes, on the double of NCCL."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.backends.base import CannotRun
from ccbench.backends.nccl.binding import NcclFailed
from ccbench.backends.nccl.calls import DTYPES, NO_COLOUR
from ccbench.backends.nccl.collectives import Amounts, Call, nccl_calls
from ccbench.cases import UNEVEN
from ccbench.collectives import COLLECTIVES, reference
from ccbench.dtypes import numpy_dtype
from ccbench.groups import Pair
from tests.backends.cuda.emulated import CudaError

from .bench import NEW, OLD, Array, Bench, all_reduce
from .double import WorldRuntime


def small(ranks: int, count: int, dtype: str, seed: int = 0) -> list[Array]:
    """Whole numbers whose sums and products every type holds exactly, different on every rank."""
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 3, count).astype(numpy_dtype(dtype)) for _ in range(ranks)]


def run_all(bench: Bench, name: str, dtype: str, op: str, root: int, in_place: bool, count: int) -> None:
    """One collective on all ranks at once; every rank has exactly what the reference says."""
    row, ranks = COLLECTIVES[name], len(bench.comms)
    sizes = [row.input_count(count, ranks, rank, root) for rank in range(ranks)]
    inputs = [small(ranks, size, dtype, 7)[rank] for rank, size in enumerate(sizes)]
    expected = reference(inputs, op, name, root)
    item = numpy_dtype(dtype).itemsize
    whole = max([*sizes, *(len(one) for one in expected)]) * item
    calls = []
    for rank, values in enumerate(inputs):
        # In place, a rank's own block is where it belongs in the whole.
        block = rank * count * item if row.blocked else 0
        source_at = block if in_place and len(expected[rank]) > len(values) else 0
        target_at = block if in_place and len(values) > len(expected[rank]) else 0
        area = bench.place(np.zeros(whole, np.uint8), rank)
        source = area + source_at
        bench.world.view(source, values.nbytes, rank)[...] = values.view(np.uint8)
        target = area + target_at if in_place else bench.place(np.full(whole, 0xA5, np.uint8), rank)
        equal = Amounts((count,) * ranks, (count,) * ranks) if name == UNEVEN else None
        calls.append(Call(name, source, target, count, dtype, op, root, amounts=equal))
    with bench.nccl.group():
        for comm, call, stream in zip(bench.comms, calls, bench.streams, strict=True):
            comm.prepared(call, stream)()
    bench.wait()
    for rank, result in enumerate(expected):
        seen = bench.read(calls[rank].target, dtype, len(result), rank)
        assert np.array_equal(seen.view(np.uint8), result.view(np.uint8)), (name, rank, seen, result)


MOVING = [name for name, row in COLLECTIVES.items() if row.moves_data]


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("name", MOVING)
def test_a_collective_leaves_what_the_reference_says(name: str, version: int) -> None:
    bench = Bench(3, version)
    op = "sum" if COLLECTIVES[name].reduces else "none"
    for root in range(3) if COLLECTIVES[name].rooted else [0]:
        for count in (0, 1, 5):
            run_all(bench, name, "int32", op, root, False, count)
            if name not in ("all_to_all", UNEVEN, "send_recv"):
                run_all(bench, name, "int32", op, root, True, count)
    bench.close()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", MOVING)
def test_every_type_goes_through_every_collective(name: str, dtype: str) -> None:
    for version in (OLD, NEW) if not dtype.startswith("float8") else (NEW,):
        op = "sum" if COLLECTIVES[name].reduces else "none"
        run_all(Bench(2, version), name, dtype, op, 1, False, 4)


@given(
    name=st.sampled_from(MOVING),
    ranks=st.integers(1, 5),
    count=st.integers(0, 9),
    dtype=st.sampled_from(["uint8", "int64", "float16", "float32", "bfloat16"]),
    version=st.sampled_from([OLD, NEW]),
    root=st.integers(0, 4),
)
@settings(max_examples=60, deadline=None)
def test_any_ranks_and_any_count(
    name: str, ranks: int, count: int, dtype: str, version: int, root: int
) -> None:
    op = "sum" if COLLECTIVES[name].reduces else "none"
    run_all(Bench(ranks, version), name, dtype, op, root % ranks, False, count)


@pytest.mark.parametrize("version", [OLD, NEW])
def test_all_to_all_is_native_where_there_is_a_call_and_sends_elsewhere(version: int) -> None:
    bench = Bench(2, version)
    run_all(bench, "all_to_all", "float32", "none", 0, False, 3)
    expected = {OLD: {"ncclSend", "ncclRecv"}, NEW: {"ncclAlltoAll"}}[version]
    assert set(bench.process.log) == expected


def test_premulsum_multiplies_by_each_ranks_own_scalar_first() -> None:
    bench = Bench(3)
    values = [np.arange(4, dtype=np.float32) + rank for rank in range(3)]
    addresses = [bench.place(one, rank) for rank, one in enumerate(values)]
    ops = [comm.premultiplied(2.0 + rank, "float32") for rank, comm in enumerate(bench.comms)]
    with bench.nccl.group():
        for rank, comm in enumerate(bench.comms):
            comm.prepared(
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


def pair_results(bench: Bench, pair: Pair) -> list[list[int]]:
    sources = [bench.place(np.full(3, 10 + rank, np.int32), rank) for rank in range(3)]
    targets = [bench.place(np.full(3, -1, np.int32), rank) for rank in range(3)]
    with bench.nccl.group():
        for rank, comm in enumerate(bench.comms):
            call = Call("send_recv", sources[rank], targets[rank], 3, "int32", pair=pair)
            comm.prepared(call, bench.streams[rank])()
    bench.wait()
    return [bench.read(targets[rank], "int32", 3, rank).tolist() for rank in range(3)]


def test_a_pair_sends_one_way_or_both() -> None:
    bench = Bench(3)
    assert pair_results(bench, Pair(2, 0, False)) == [[12] * 3, [-1] * 3, [-1] * 3]
    assert pair_results(bench, Pair(0, 2, True)) == [[12] * 3, [-1] * 3, [10] * 3]
    with pytest.raises(CannotRun, match="two different ranks of the communicator's 3"):
        pair_results(bench, Pair(1, 3, False))


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
            comm.prepared(Call("barrier", word, word, 1, "int32"), stream)()
    bench.wait()
    assert [bench.read(word, "int32", 1, rank).tolist() for rank, word in enumerate(words)] == [[4]] * 4


def test_several_collectives_in_one_group_run_in_order() -> None:
    bench = Bench(2)
    addresses = [bench.place(np.ones(2, np.int64), rank) for rank in range(2)]
    with bench.nccl.group():
        for _ in range(5):
            all_reduce(bench, addresses)
    bench.wait()
    assert bench.read(addresses[1], "int64", 2, 1).tolist() == [32, 32]


def test_a_prepared_call_is_enqueued_every_time() -> None:
    bench = Bench(2)
    addresses = [bench.place(np.ones(2, np.int64), rank) for rank in range(2)]
    prepared = [
        comm.prepared(Call("all_reduce", address, address, 2, "int64", "sum"), stream)
        for comm, address, stream in zip(bench.comms, addresses, bench.streams, strict=True)
    ]
    for _ in range(3):
        with bench.nccl.group():
            for enqueue in prepared:
                enqueue()
    bench.wait()
    assert bench.read(addresses[0], "int64", 2, 0).tolist() == [8, 8]


def test_a_graph_repeats_what_was_captured() -> None:
    bench = Bench(2)
    runtime = bench.process.runtime
    addresses = [bench.place(np.ones(2, np.int64), rank) for rank in range(2)]
    for stream in bench.streams:
        runtime.streamBeginCapture(stream, 1)
    for _ in range(2):
        with bench.nccl.group():
            all_reduce(bench, addresses)
    captured = [runtime.streamEndCapture(stream) for stream in bench.streams]
    graphs = [runtime.graphInstantiate(graph) for graph in captured]
    bench.wait()
    assert bench.read(addresses[0], "int64", 2, 0).tolist() == [1, 1]
    for _ in range(2):
        for graph, stream in zip(graphs, bench.streams, strict=True):
            runtime.graphLaunch(graph, stream)
    bench.wait()
    assert bench.read(addresses[0], "int64", 2, 0).tolist() == [16, 16]


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


def test_parts_have_the_ranks_of_one_colour_in_the_order_of_their_keys() -> None:
    bench = Bench(4)
    with bench.nccl.group():
        parts = [
            comm.split(rank % 2 if rank != 3 else NO_COLOUR, -rank) for rank, comm in enumerate(bench.comms)
        ]
    assert parts[3] is None
    found = [part for part in parts if part is not None]
    assert [(part.rank, part.ranks) for part in found] == [(1, 2), (0, 1), (0, 2)]
    addresses = [bench.place(np.full(2, 10 + rank, np.int64), rank) for rank in range(3)]
    with bench.nccl.group():
        for part, address, stream in zip(found, addresses, bench.streams[:3], strict=True):
            part.prepared(Call("all_reduce", address, address, 2, "int64", "sum"), stream)()
    bench.wait()
    seen = [bench.read(address, "int64", 2, rank).tolist()[0] for rank, address in enumerate(addresses)]
    assert seen == [22, 11, 22]
    for part in found:
        part.destroy()
    bench.close()


@pytest.mark.parametrize("symmetric", [False, True])
def test_memory_is_registered_and_used(symmetric: bool) -> None:
    bench = Bench(2)
    addresses = []
    for device in range(2):
        bench.process.runtime.setDevice(device)
        addresses.append(bench.nccl.allocate(16))
        bench.world.view(addresses[-1], 16, device)[...] = np.ones(2, np.int64).view(np.uint8)
    with bench.nccl.group():
        held = [
            comm.register(address, 16, symmetric)
            for comm, address in zip(bench.comms, addresses, strict=True)
        ]
    assert all(one.value for one in held)
    assert bench.process.window_flags == ([1, 1] if symmetric else [])
    with bench.nccl.group():
        all_reduce(bench, addresses)
    bench.wait()
    assert bench.read(addresses[1], "int64", 2, 1).tolist() == [2, 2]
    for comm, one in zip(bench.comms, held, strict=True):
        comm.deregister(one, symmetric)
        with pytest.raises(NcclFailed, match="handle is not registered"):
            comm.deregister(one, symmetric)
    for device, address in enumerate(addresses):
        bench.process.runtime.setDevice(device)
        bench.nccl.free(address)
    assert not bench.process.nccl_memory


def register_all(bench: Bench, addresses: Sequence[int], sizes: Sequence[int]) -> None:
    with bench.nccl.group():
        for comm, address, size in zip(bench.comms, addresses, sizes, strict=True):
            comm.register(address, size, symmetric=True)


def test_a_window_needs_memory_of_nccl_and_one_size() -> None:
    bench = Bench(2)
    plain = [bench.place(np.zeros(4, np.int64), rank) for rank in range(2)]
    with pytest.raises(NcclFailed, match="not of ncclMemAlloc"):
        register_all(bench, plain, (32, 32))
    addresses = []
    for device in range(2):
        bench.process.runtime.setDevice(device)
        addresses.append(bench.nccl.allocate(64))
    with pytest.raises(NcclFailed, match="window sizes differ"):
        register_all(bench, addresses, (32, 64))


def test_an_estimate_moves_nothing_and_costs_what_the_run_costs() -> None:
    bench = Bench(2)
    addresses = [bench.place(np.ones(2, np.int64), rank) for rank in range(2)]

    def estimate(of: Bench, *calls: Call) -> float | None:
        together = zip(of.comms, calls, of.streams, strict=True)
        return of.nccl.simulate([comm.prepared(call, stream) for comm, call, stream in together])

    seconds = estimate(bench, *[Call("all_reduce", at, at, 2, "int64", "sum") for at in addresses])
    bench.wait()
    assert bench.read(addresses[0], "int64", 2, 0).tolist() == [1, 1]
    with bench.nccl.group():
        all_reduce(bench, addresses)
    bench.wait()
    assert seconds == pytest.approx(bench.world.seconds, rel=1e-6)
    assert estimate(bench, *[Call("send_recv", at, at, 1, "int64") for at in addresses]) is None
    assert estimate(Bench(1, 21903), Call("barrier", 0, 0, 1, "int32")) is None
