"""What single kernels promise besides values: launches in a row, slow ranks, what does not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import (
    HostCall,
    HostOptions,
    KernelDeadlock,
    KernelFailed,
)
from ccbench.backends.kernels.programs import compiled_program
from ccbench.backends.kernels.sources import channel_trees, tree_plan
from tests.backends.kernels.cases import (
    ENTRIES,
    KernelCase,
    collective_of,
    prepared_launch,
    run_case,
    world_for,
)
from tests.backends.kernels.checked import CheckedWorld
from tests.backends.kernels.orders import same
from tests.backends.kernels.references import ordered_reference, packets_bytes, tree_reference
from tests.backends.kernels.schedule_reference import schedule_of
from tests.backends.kernels.worlds import Trial, check, prepare

BARRIER, LL, MESH = Build("barrier.cu"), Build("ll.cu"), Build("mesh.cu")
ONE_SHOT = Trial("mesh_one_shot_all_reduce", "all_reduce")

# Rank 1 is through with a reduce to rank 0 first, as there are more slots than it sends; then it begins the
# other launch, whose outputs are the reduce's inputs, by writing to rank 2.
AHEAD = KernelCase(
    "ring_reduce",
    ranks=4,
    channels=1,
    count=100,
    root=0,
    then_root=1,
    slots=4,
    slot_bytes=512,
    overwrites=True,
)
# The second launch reads outputs that parents have just written, and writes to what was read last.
TREES = KernelCase("", then="tree_all_reduce", ranks=5, slot_bytes=64, count=300, chained=True)
FOLLOWING = {
    "an all-gather behind a reduce": (
        replace(AHEAD, then="ring_all_gather", then_count=25),
        1,
        100,
    ),
    "a broadcast behind a reduce": (replace(AHEAD, then="ring_broadcast"), 1, 100),
    "a tree's broadcast behind a reduce": (
        replace(AHEAD, entry="tree_reduce", then="tree_broadcast", then_root=3, count=25),
        1,
        20,
    ),
    "a tree behind a broadcast": (replace(TREES, entry="tree_broadcast"), 4, 8),
    "a put behind a put": (KernelCase("put_send_recv", overwrites=True), 4, 10),
    "a tree behind a tree": (replace(TREES, entry="tree_all_reduce"), 4, 8),
}


@pytest.mark.parametrize("name", FOLLOWING)
def test_a_rank_that_is_ahead_does_not_overwrite_what_another_still_reads(name: str) -> None:
    case, lanes, seeds = FOLLOWING[name]
    for seed in range(seeds):
        run_case(replace(case, lanes=lanes), Build(case.kernel_file), seed)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", FOLLOWING)
def test_a_rank_that_is_ahead_does_not_race_with_what_another_still_reads(name: str) -> None:
    case, _, _ = FOLLOWING[name]
    run_case(case, Build(case.kernel_file, sanitize=True), 1)


@pytest.mark.thinned(5)
@pytest.mark.parametrize("entry", [name for name in ENTRIES if name.startswith("mesh_")])
@pytest.mark.parametrize(
    "build", [MESH, replace(MESH, sanitize=True)], ids=["plain", "sanitized"]
)
def test_a_mesh_may_use_what_the_last_launch_left(entry: str, build: Build) -> None:
    """One-shot ends when its own output is there, and reads its own input at once: before and after any other
    kernel it shows whether that one waits for the peers whose buffers it touches."""
    ranks, reference = 4, ordered_reference
    for seed in range(1 if build.sanitize else 8):
        world = CheckedWorld(ranks, 2)
        trial = Trial(
            entry, collective_of(KernelCase(entry), entry), count=300, root=1, seed=seed
        )
        middle = prepare(world, trial, None)
        wide = max(*map(len, middle.inputs), *middle.output_elements)
        first = prepare(world, replace(ONE_SHOT, count=wide), None)
        sums = reference(first.trial, first.inputs)
        data = [values[: len(old)] for values, old in zip(sums, middle.inputs, strict=True)]
        results = reference(middle.trial, data)
        pairs = zip(first.call.outputs, middle.call.inputs, strict=True)
        inputs = [mine if old else 0 for mine, old in pairs]
        pairs = zip(first.call.inputs, middle.call.outputs, strict=True)
        outputs = [mine if old else 0 for mine, old in pairs]
        calls = [first.call, replace(middle.call, inputs=inputs, outputs=outputs)]
        last = prepare(world, replace(ONE_SHOT, count=len(results[1])), None)
        goes_on = all(outputs)
        calls += [replace(last.call, inputs=outputs)] if goes_on else []
        world.run(build, calls, HostOptions(seed=seed, lanes=4, devices=ranks))
        for output, result in zip(outputs, results, strict=True):
            assert not output or same(
                world.view(output, result.nbytes).view(result.dtype), result
            )
        if goes_on:
            check(world, replace(last, inputs=results, call=calls[2]), reference)


def test_all_to_all_works_where_only_some_ranks_work_in_place() -> None:
    """Rank 1's output is its own input; the others have two buffers each."""
    ranks, count = 4, 50
    world = CheckedWorld(ranks, 2)
    prepared = prepare(world, Trial("mesh_all_to_all", "all_to_all", count=count), None)
    outputs = list(prepared.call.outputs)
    outputs[1] = prepared.call.inputs[1]
    world.run(
        MESH, [replace(prepared.call, outputs=outputs)], HostOptions(seed=3, devices=ranks)
    )
    expected = ordered_reference(prepared.trial, prepared.inputs)
    for rank in range(ranks):
        actual = world.view(outputs[rank], ranks * count * 4).view("f4")
        assert actual.tolist() == expected[rank].tolist()


def test_the_number_of_rounds_may_pass_32_bits() -> None:
    world = CheckedWorld(3, 1, packets_bytes=packets_bytes(3, 4))
    for rank in range(3):
        state = world.area(rank, "state").view(np.uint64).reshape(1, 8, 3)
        state[0, 5, 0] = (1 << 32) - 3
    for _ in range(3):
        prepared = prepare(world, Trial("ll_all_reduce", "all_reduce", count=20), None)
        world.run(LL, [prepared.call], HostOptions(lanes=4, devices=3))
        check(world, prepared, ordered_reference)


@settings(max_examples=25)
@given(
    lags=st.lists(st.integers(0, 9), min_size=6, max_size=6).map(sorted),
    seed=st.integers(0, 1 << 32),
    slots=st.sampled_from([2, 4]),
)
def test_any_lag_that_never_falls_on_the_way_down_ends_alike(
    lags: list[int], seed: int, slots: int
) -> None:
    """The lag decides who is busy when, and nothing else."""
    (tree,) = channel_trees(6, 1)
    plan = tree_plan([tree])
    below = sorted(range(6), key=tree.depth)
    for rank, lag in zip(below, lags, strict=True):
        plan[0, 18 + rank] = lag
    world = CheckedWorld(6, 1, slots=slots, slot_bytes=16)
    prepared = prepare(
        world, Trial("tree_all_reduce", "all_reduce", count=200, in_place=True), plan
    )
    world.run(Build("tree.cu"), [prepared.call], HostOptions(lanes=1, seed=seed, devices=6))
    check(world, prepared, tree_reference([tree]))


def interpreted(name: str, ranks: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    made = schedule_of(name, ranks, 0)
    assert made is not None
    return compiled_program(made)


BRUCK = KernelCase("schedule", "all_to_all bruck", ranks=8, count=257)


@pytest.mark.parametrize(
    ("case", "changes", "words"),
    [
        (KernelCase("ll_all_reduce", packets=1), {}, ""),
        (replace(BRUCK, slot_bytes=32), {}, ""),
        (replace(BRUCK, staging_bytes=16), {}, ""),
        (
            KernelCase("mesh_all_gather", ranks=65, count=1, slot_bytes=16, lanes=1),
            {},
            " rank 65",
        ),
        (
            KernelCase("schedule", "all_reduce ring"),
            {"program": interpreted("all_reduce ring", 4)},
            "",
        ),
        (
            KernelCase("tree_all_reduce", ranks=4),
            {"plan": tree_plan(channel_trees(3, 1))},
            " rank 4",
        ),
        (
            KernelCase("tree_broadcast", root=0),
            {"plan": tree_plan(channel_trees(3, 1, 1))},
            " rank 0",
        ),
        (
            KernelCase("tree_reduce", root=0),
            {"plan": tree_plan(channel_trees(3, 1, 1))},
            " rank 0",
        ),
    ],
    ids=[
        "packets",
        "slots",
        "work places",
        "ranks",
        "program of more",
        "tree of fewer",
        "root",
        "target",
    ],
)
def test_what_does_not_fit_is_refused_by_all_ranks(
    case: KernelCase, changes: Any, words: str
) -> None:
    case = replace(case, channels=1)
    world = world_for(case)
    prepared, _ = prepared_launch(case, world, 0, seed=0)
    with pytest.raises(KernelFailed) as failed:
        world.run(
            Build(case.kernel_file),
            [replace(prepared.call, **changes)],
            HostOptions(lanes=case.lanes),
        )
    assert str(failed.value).count(f"the plan does not fit{words}") == case.ranks


def barrier(ranks: int, iterations: int = 1) -> HostCall:
    nothing = [0] * ranks
    return HostCall("barrier", "uint8", 0, nothing, nothing, iterations=iterations)


def test_a_barrier_does_not_end_before_everyone_has_come() -> None:
    world = CheckedWorld(3, 1)
    with pytest.raises(KernelDeadlock, match="rank 0 block 0 waits at a barrier for rank 2"):
        world.run(BARRIER, [barrier(3)], HostOptions(resident=2))
