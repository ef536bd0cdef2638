"""The tree kernels on the host engine, bit for bit against NumPy in the same order of summation."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.kernels.abi import OPS, TYPES
from ccbench.kernels.building import Build
from ccbench.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from ccbench.kernels.trees import Tree, channel_trees, tree_plan
from tests.kernels.coverage import pairwise
from tests.kernels.tree_reference import tree_reference
from tests.kernels.worlds import Trial, check, prepare

TREE = Build("tree.cu")

COLLECTIVES = ("all_reduce", "broadcast", "reduce")

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


def trees_for(trial: Trial, ranks: int, channels: int, shuffled: bool) -> list[Tree]:
    generator = random.Random(trial.seed)
    orders = [generator.sample(range(ranks), ranks) for _ in range(channels)] if shuffled else []
    root = None if trial.collective == "all_reduce" else trial.root
    return channel_trees(ranks, channels, root, orders)


def run_three(
    collective: str, case: dict[str, Any], seed: int, engine: Any = "fibers", build: Build = TREE
) -> None:
    """Three launches in a row with other counts, roots, trees and channels, and then the outputs of all."""
    ranks, channels = case["ranks"], case["channels"]
    world = HostWorld(ranks, channels, slots=case["slots"], slot_bytes=case["slot_bytes"])
    count = {"ranks": ranks, "ranks - 1": ranks - 1}.get(case["count"], case["count"])
    given = {name: case[name] for name in ("dtype", "op", "in_place", "misalignment", "iterations")}
    trial = Trial(f"tree_{collective}", collective, count=count, root=ranks // 2, seed=seed, **given)
    trials = [
        trial,
        replace(trial, count=31, root=0, seed=seed + 1),
        replace(trial, root=ranks - 1, seed=seed + 2),
    ]
    used = [channels, max(1, channels - 1), channels]
    prepared, references = [], []
    for one, wide in zip(trials, used, strict=True):
        trees = trees_for(one, ranks, wide, case["shuffled"])
        prepared.append(prepare(world, one, tree_plan(trees), wide))
        references.append(tree_reference(trees))
    options = HostOptions(
        engine=engine,
        lanes=case["lanes"],
        seed=seed,
        devices=ranks if case["drifting"] else 1,
        limit_nanoseconds=60_000_000_000 if engine == "threads" else 0,
    )
    world.run(build, [one.call for one in prepared], options)
    for launched, reference in zip(prepared, references, strict=True):
        check(world, launched, reference)


def small_case(**changes: Any) -> dict[str, Any]:
    case = {"ranks": 4, "channels": 2, "lanes": 4, "count": 157, "dtype": "float32", "op": "sum"}
    case |= {"in_place": False, "misalignment": 0, "drifting": True, "slots": 2, "slot_bytes": 64}
    return {**case, "iterations": 1, "shuffled": False, **changes}


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_pair_of_parameters_gives_what_numpy_gives(collective: str) -> None:
    for seed, case in enumerate(pairwise(PARAMETERS, seed=len(collective))):
        run_three(collective, case, seed)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_op_gives_what_numpy_gives(dtype: str, op: str) -> None:
    for collective in ("all_reduce", "reduce"):
        run_three(collective, small_case(dtype=dtype, op=op), 1)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_real_threads_give_the_same(collective: str) -> None:
    run_three(collective, small_case(), 5, engine="threads")


@settings(max_examples=40)
@given(
    collective=st.sampled_from(COLLECTIVES),
    ranks=st.integers(1, 10),
    channels=st.integers(1, 4),
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


@settings(max_examples=25)
@given(
    lags=st.lists(st.integers(0, 9), min_size=6, max_size=6).map(sorted),
    seed=st.integers(0, 1 << 32),
    slots=st.sampled_from([2, 4]),
)
def test_any_lag_that_never_falls_on_the_way_down_ends_alike(lags: list[int], seed: int, slots: int) -> None:
    """The lag decides who is busy when, and nothing else."""
    (tree,) = channel_trees(6, 1)
    plan = tree_plan([tree])
    below = sorted(range(6), key=tree.depth)
    for rank, lag in zip(below, lags, strict=True):
        plan[0, 18 + rank] = lag
    world = HostWorld(6, 1, slots=slots, slot_bytes=16)
    one = prepare(world, Trial("tree_all_reduce", "all_reduce", count=200, in_place=True), plan)
    world.run(TREE, [one.call], HostOptions(lanes=1, seed=seed, devices=6))
    check(world, one, tree_reference([tree]))


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast"])
@pytest.mark.parametrize("build", [TREE, Build("tree.cu", sanitize=True)], ids=["plain", "sanitized"])
def test_the_next_launch_may_use_what_the_last_one_left(collective: str, build: Build) -> None:
    """The second launch reads outputs that parents have just written, and writes to what was read last."""
    ranks, trees = 5, channel_trees(5, 2, 1)
    for seed in range(1 if build.sanitize else 8):
        world = HostWorld(ranks, 2, slots=2, slot_bytes=64)
        trial = Trial(f"tree_{collective}", collective, count=300, root=1, seed=seed)
        first = prepare(world, trial, tree_plan(trees))
        results = tree_reference(trees)(trial, first.inputs)
        second = prepare(
            world, replace(trial, entry="tree_all_reduce", collective="all_reduce"), tree_plan(trees)
        )
        call = replace(second.call, inputs=first.call.outputs)
        world.run(build, [first.call, call], HostOptions(seed=seed, lanes=4, devices=ranks))
        check(world, replace(second, inputs=results, call=call), tree_reference(trees))


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_too_few_blocks_at_a_time_are_told_to_be_a_deadlock(collective: str) -> None:
    world = HostWorld(4, 1)
    trial = Trial(f"tree_{collective}", collective, root=3, count=5003)  # more than all slots hold
    one = prepare(world, trial, tree_plan(channel_trees(4, 1, 3)))
    with pytest.raises(KernelDeadlock, match="1 blocks never started, as only 3 may run at once"):
        world.run(TREE, [one.call], HostOptions(resident=3))


def test_a_rank_that_stays_away_is_named_within_the_limit() -> None:
    world = HostWorld(3, 1)
    trees = channel_trees(3, 1)
    one = prepare(world, Trial("tree_all_reduce", "all_reduce"), tree_plan(trees))
    options = HostOptions(devices=3, limit_nanoseconds=1000)
    with pytest.raises(KernelFailed, match="rank 1, channel 0: waited too long for rank 2 to send"):
        world.run(TREE, [one.call], options, instead={2: replace(one.call, iterations=0)})
    world.reset()
    world.run(TREE, [one.call], options)
    check(world, one, tree_reference(trees))


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_plan_whose_tree_has_another_root_is_refused_by_all_ranks(collective: str) -> None:
    world = HostWorld(3, 1)
    one = prepare(world, Trial(f"tree_{collective}", collective, root=0), tree_plan(channel_trees(3, 1, 1)))
    with pytest.raises(KernelFailed) as caught:
        world.run(TREE, [one.call])
    assert str(caught.value).count("the plan does not fit rank 0") == 3


def test_a_plan_for_other_ranks_is_refused() -> None:
    world = HostWorld(4, 1)
    one = prepare(world, Trial("tree_all_reduce", "all_reduce"), tree_plan(channel_trees(3, 1)))
    with pytest.raises(KernelFailed, match="the plan does not fit rank 4"):
        world.run(TREE, [one.call])


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_thread_sanitizer_finds_no_race(collective: str, seed: int) -> None:
    case = small_case(in_place=seed == 2, drifting=seed % 2 == 1)
    run_three(collective, case, seed, build=Build("tree.cu", sanitize=True))
