"""The low latency kernels on the host engine, bit for bit against NumPy in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.collectives import reference as plain_reference
from ccbench.kernels.abi import OPS, TYPES
from ccbench.kernels.building import Build
from ccbench.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from tests.kernels.coverage import pairwise
from tests.kernels.orders import Array, folded
from tests.kernels.worlds import Trial, check, prepare

LL = Build("ll.cu")
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")

PARAMETERS: dict[str, list[Any]] = {
    "ranks": [1, 2, 3, 4, 5, 6, 7, 8],
    "channels": [1, 2, 3, 5],
    "lanes": [4, 8, 32],
    "count": [0, 1, "ranks - 1", "ranks", 31, 257, 5003],
    "dtype": list(TYPES),
    "op": list(OPS),
    "in_place": [False, True],
    "misalignment": [0, 1, 3],
    "drifting": [False, True],
    "packets": [16, 256, 4096],
    "iterations": [1, 2],
}
"""packets: of one sender in one round. Five channels are more than there are boxes for."""

PLAIN: dict[str, Any] = {
    "ranks": 3,
    "channels": 2,
    "lanes": 4,
    "count": 157,
    "dtype": "float32",
    "op": "sum",
    "in_place": False,
    "misalignment": 0,
    "drifting": False,
    "packets": 16,
    "iterations": 1,
}


def packets_bytes(ranks: int, packets: int) -> int:
    """Room for ``packets`` of 8 bytes of every sender, in four channels and two halves."""
    return packets * 8 * 4 * 2 * ranks


def ll_reference(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
    """Contributions are combined in the order of ranks."""
    ranks, count = len(inputs), trial.count
    if ranks == 1:
        return [inputs[0]]
    if trial.collective == "all_reduce":
        return [folded(inputs, trial.op, ranks)] * ranks
    if trial.collective == "reduce_scatter":
        blocks = [[one[rank * count : (rank + 1) * count] for one in inputs] for rank in range(ranks)]
        return [folded(block, trial.op, ranks) for block in blocks]
    return plain_reference(inputs, trial.op, trial.collective, trial.root)


def run_four(collective: str, case: dict[str, Any], seed: int, build: Build = LL, **options: Any) -> None:
    """Four launches in a row, of other counts, roots, channels and another collective in between."""
    ranks, channels = case["ranks"], case["channels"]
    world = HostWorld(ranks, channels, packets_bytes=packets_bytes(ranks, case["packets"]))
    count = {"ranks": ranks, "ranks - 1": ranks - 1}.get(case["count"], case["count"])
    given = {name: case[name] for name in ("dtype", "op", "in_place", "misalignment", "iterations")}
    trial = Trial(f"ll_{collective}", collective, count=count, root=ranks // 2, seed=seed, **given)
    other = COLLECTIVES[(COLLECTIVES.index(collective) + 1 + seed % 3) % 4]
    trials = [
        trial,
        replace(trial, count=31, root=0, seed=seed + 1),
        replace(trial, entry=f"ll_{other}", collective=other, count=min(count, 257), seed=seed + 2),
        replace(trial, root=ranks - 1, seed=seed + 3),
    ]
    prepared = [
        prepare(world, one, None, channels if number != 1 else max(1, channels - 1))
        for number, one in enumerate(trials)
    ]
    chosen = HostOptions(lanes=case["lanes"], seed=seed, devices=ranks if case["drifting"] else 1, **options)
    world.run(build, [one.call for one in prepared], chosen)
    for launched in prepared:
        check(world, launched, ll_reference)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_pair_of_parameters_gives_what_numpy_gives(collective: str) -> None:
    for seed, case in enumerate(pairwise(PARAMETERS, seed=len(collective))):
        if case["packets"] == 16 and case["count"] == 5003:
            case["count"] = 257  # hundreds of rounds show nothing that a dozen do not
        run_four(collective, case, seed)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_op_gives_what_numpy_gives(dtype: str, op: str) -> None:
    run_four("all_reduce", {**PLAIN, "dtype": dtype, "op": op}, 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_real_threads_give_the_same(collective: str) -> None:
    run_four(collective, PLAIN, 5, engine="threads", limit_nanoseconds=60_000_000_000)


@settings(max_examples=40)
@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(1, 9),
    channels=st.integers(1, 5),
    lanes=st.integers(1, 9),
    count=st.integers(0, 500),
    misalignment=st.integers(0, 15),
    packets=st.integers(2, 64),
    drifting=st.booleans(),
    in_place=st.booleans(),
    dtype=st.sampled_from(["float64", "bfloat16", "uint8"]),
    seed=st.integers(0, 1 << 32),
)
def test_any_case_gives_what_numpy_gives(collective: str, seed: int, **case: Any) -> None:
    run_four(collective, {**case, "op": "sum", "iterations": 1}, seed)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_too_few_resident_blocks_are_told_and_do_not_hang(collective: str) -> None:
    with pytest.raises(KernelDeadlock, match="deadlock: rank"):
        run_four(collective, PLAIN, 1, resident=2)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_packet_that_never_comes_is_an_error_that_names_the_rank(collective: str) -> None:
    world = HostWorld(3, 1, packets_bytes=packets_bytes(3, 16))
    one = prepare(world, Trial(f"ll_{collective}", collective, count=20), None)
    idle = replace(one.call, iterations=0)
    options = HostOptions(lanes=4, devices=3, limit_nanoseconds=1_000_000)
    with pytest.raises(KernelFailed, match="waited too long for a packet of rank 2"):
        world.run(LL, [one.call], options, instead={2: idle})
    world.reset()
    world.run(LL, [one.call], options)
    check(world, one, ll_reference)


def test_no_room_for_packets_is_refused() -> None:
    world = HostWorld(3, 1, packets_bytes=packets_bytes(3, 1))
    one = prepare(world, Trial("ll_all_reduce", "all_reduce"), None)
    with pytest.raises(KernelFailed, match="the plan does not fit"):
        world.run(LL, [one.call], HostOptions(lanes=4))


def test_a_broadcasting_root_cannot_run_ahead_of_slow_ranks() -> None:
    """Many launches on drifting ranks: each would overwrite boxes that a slow rank still reads."""
    world = HostWorld(4, 1, packets_bytes=packets_bytes(4, 4))
    calls = [
        prepare(world, Trial("ll_broadcast", "broadcast", count=11, root=1, seed=n), None) for n in range(12)
    ]
    for seed in range(5):
        for one in calls:
            for offset in one.call.outputs:
                world.view(offset, 44)[:] = 0
        world.run(LL, [one.call for one in calls], HostOptions(lanes=4, seed=seed, devices=4))
        for one in calls:
            check(world, one, ll_reference)


def test_the_number_of_rounds_may_pass_32_bits() -> None:
    world = HostWorld(3, 1, packets_bytes=packets_bytes(3, 4))
    for rank in range(3):
        state = world.area(rank, "state").view(np.uint64).reshape(1, 8, 3)
        state[0, 5, 0] = (1 << 32) - 3
    for _ in range(3):
        one = prepare(world, Trial("ll_all_reduce", "all_reduce", count=20), None)
        world.run(LL, [one.call], HostOptions(lanes=4, devices=3))
        check(world, one, ll_reference)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_kernels_have_no_race(collective: str, seed: int) -> None:
    case = {**PLAIN, "in_place": seed == 2, "drifting": seed % 2 == 1}
    run_four(collective, case, seed, Build("ll.cu", sanitize=True))
