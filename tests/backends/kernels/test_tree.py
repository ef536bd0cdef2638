"""The tree kernels: lags, launches that follow each other, plans that do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, HostWorld, KernelFailed
from ccbench.backends.kernels.sources import channel_trees, tree_plan
from tests.backends.kernels.references import tree_reference
from tests.backends.kernels.worlds import Trial, check, prepare

TREE = Build("tree.cu")


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
