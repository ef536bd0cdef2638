"""The ring kernels on the host engine, bit for bit against NumPy in the same order of summation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.kernels.abi import OPS, TYPES
from ccbench.kernels.building import Build
from ccbench.kernels.host_engine import HostOptions, HostWorld
from ccbench.kernels.plans import natural_orders, ring_plan
from tests.kernels.coverage import pairwise
from tests.kernels.ring_reference import ring_reference
from tests.kernels.shared_buffers import reduce_then
from tests.kernels.worlds import Trial, check, prepare

RING = Build("ring.cu")

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "send_recv")

PARAMETERS: dict[str, list[Any]] = {
    "ranks": [1, 2, 3, 4, 5, 6, 7, 8],
    "channels": [1, 2, 3],
    "lanes": [4, 8, 32],
    "count": [0, 1, "ranks - 1", "ranks", 31, 257, 5003],
    "dtype": list(TYPES),
    "op": list(OPS),
    "in_place": [False, True],
    "misalignment": [0, 1, 3],
    "drifting": [False, True],
    "slots": [2, 4],
    "slot_bytes": [64, 256, 1024],
    "iterations": [1, 2],
    "shuffled": [False, True],
}


def orders_of(ranks: int, channels: int, shuffled: bool, seed: int) -> list[list[int]]:
    if not shuffled:
        return natural_orders(ranks, channels)
    generator = random.Random(seed)
    return [generator.sample(range(ranks), ranks) for _ in range(channels)]


def run_three(collective: str, case: dict[str, Any], seed: int, engine: Any = "fibers") -> None:
    """Three launches in a row with other counts, roots and channels, and then the outputs of all."""
    ranks, channels = case["ranks"], case["channels"]
    world = HostWorld(ranks, channels, slots=case["slots"], slot_bytes=case["slot_bytes"])
    count = {"ranks": ranks, "ranks - 1": ranks - 1}.get(case["count"], case["count"])
    given = {name: case[name] for name in ("dtype", "op", "in_place", "misalignment", "iterations")}
    trial = Trial(f"ring_{collective}", collective, count=count, root=ranks // 2, seed=seed, **given)
    trials = [
        trial,
        replace(trial, count=31, root=0, seed=seed + 1),
        replace(trial, root=ranks - 1, seed=seed + 2),
    ]
    prepared, references = [], []
    for number, one in enumerate(trials):
        used = channels if number != 1 else max(1, channels - 1)
        orders = orders_of(ranks, used, case["shuffled"], seed + number)
        prepared.append(prepare(world, one, ring_plan(orders), used))
        references.append(ring_reference(orders, case["slot_bytes"]))
    options = HostOptions(
        engine=engine,
        lanes=case["lanes"],
        seed=seed,
        devices=ranks if case["drifting"] else 1,
        limit_nanoseconds=60_000_000_000 if engine == "threads" else 0,
    )
    world.run(RING, [one.call for one in prepared], options)
    for launched, reference in zip(prepared, references, strict=True):
        check(world, launched, reference)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_pair_of_parameters_gives_what_numpy_gives(collective: str) -> None:
    for seed, case in enumerate(pairwise(PARAMETERS, seed=len(collective))):
        run_three(collective, case, seed)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_op_gives_what_numpy_gives(dtype: str, op: str) -> None:
    case = {name: levels[0] for name, levels in PARAMETERS.items()}
    run_three("all_reduce", {**case, "ranks": 3, "channels": 2, "count": 257, "dtype": dtype, "op": op}, 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_real_threads_give_the_same(collective: str) -> None:
    case = {name: levels[-1] for name, levels in PARAMETERS.items()}
    case |= {
        "ranks": 3,
        "channels": 2,
        "lanes": 4,
        "count": 257,
        "dtype": "float32",
        "op": "sum",
        "in_place": False,
    }
    run_three(collective, case, 5, engine="threads")


@settings(max_examples=40)
@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(1, 6),
    channels=st.integers(1, 3),
    lanes=st.integers(1, 9),
    count=st.integers(0, 700),
    misalignment=st.integers(0, 15),
    slots=st.sampled_from([2, 4, 8]),
    slot_bytes=st.integers(1, 20).map(lambda units: 16 * units),
    drifting=st.booleans(),
    in_place=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16", "uint8"]),
    seed=st.integers(0, 1 << 32),
)
def test_any_case_gives_what_numpy_gives(collective: str, seed: int, **case: Any) -> None:
    run_three(collective, {**case, "op": "sum", "iterations": 1, "shuffled": True}, seed)


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_a_rank_that_is_ahead_does_not_overwrite_what_another_still_reads(collective: str) -> None:
    for seed in range(100):
        reduce_then(collective, RING, HostOptions(lanes=1, seed=seed, devices=4))


def test_the_order_of_launch_decides_nothing() -> None:
    """Ten seeds, one result: the order of summation is the plan's."""
    outputs = set()
    for seed in range(10):
        world = HostWorld(4, 2, slot_bytes=64)
        plan = ring_plan(natural_orders(4, 2))
        one = prepare(world, Trial("ring_all_reduce", "all_reduce", "float16", count=500), plan)
        world.run(RING, [one.call], HostOptions(seed=seed, lanes=4, devices=4))
        outputs.add(world.view(one.call.outputs[2], 1000).tobytes())
    assert len(outputs) == 1
