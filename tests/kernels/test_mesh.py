"""The mesh kernels on the host engine, bit for bit against NumPy in the same order of summation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.kernels.abi import OPS, TYPES
from ccbench.kernels.building import Build
from ccbench.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from tests.kernels.coverage import pairwise
from tests.kernels.mesh_reference import mesh_reference
from tests.kernels.orders import same
from tests.kernels.worlds import Trial, check, prepare

MESH = Build("mesh.cu")

ENTRIES = {
    "mesh_one_shot_all_reduce": "all_reduce",
    "mesh_two_shot_all_reduce": "all_reduce",
    "mesh_all_gather": "all_gather",
    "mesh_reduce_scatter": "reduce_scatter",
    "mesh_broadcast": "broadcast",
    "mesh_reduce": "reduce",
    "mesh_gather": "gather",
    "mesh_scatter": "scatter",
    "mesh_all_to_all": "all_to_all",
}
REDUCING = [name for name, collective in ENTRIES.items() if "reduce" in collective]

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
}


def run_three(
    entry: str, case: dict[str, Any], seed: int, engine: Any = "fibers", build: Build = MESH
) -> None:
    """Three launches in a row with other counts, roots and channels, and then the outputs of all."""
    ranks, channels = case["ranks"], case["channels"]
    world = HostWorld(ranks, channels, slots=case["slots"], slot_bytes=case["slot_bytes"])
    count = {"ranks": ranks, "ranks - 1": ranks - 1}.get(case["count"], case["count"])
    given = {name: case[name] for name in ("dtype", "op", "in_place", "misalignment", "iterations")}
    trial = Trial(entry, ENTRIES[entry], count=count, root=ranks // 2, seed=seed, **given)
    trials = [
        trial,
        replace(trial, count=31, root=0, seed=seed + 1),
        replace(trial, root=ranks - 1, seed=seed + 2),
    ]
    used = [channels, max(1, channels - 1), channels]
    prepared = [prepare(world, one, None, wide) for one, wide in zip(trials, used, strict=True)]
    options = HostOptions(
        engine=engine,
        lanes=case["lanes"],
        seed=seed,
        devices=ranks if case["drifting"] else 1,
        limit_nanoseconds=60_000_000_000 if engine == "threads" else 0,
    )
    world.run(build, [one.call for one in prepared], options)
    for launched, wide in zip(prepared, used, strict=True):
        check(world, launched, mesh_reference(wide))


def small_case(**changes: Any) -> dict[str, Any]:
    case = {"ranks": 3, "channels": 2, "lanes": 4, "count": 157, "dtype": "float32", "op": "sum"}
    case |= {"in_place": False, "misalignment": 0, "drifting": True, "slots": 2, "slot_bytes": 64}
    return {**case, "iterations": 1, **changes}


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_pair_of_parameters_gives_what_numpy_gives(entry: str) -> None:
    for seed, case in enumerate(pairwise(PARAMETERS, seed=len(entry))):
        run_three(entry, case, seed)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_op_gives_what_numpy_gives(dtype: str, op: str) -> None:
    for entry in REDUCING:
        run_three(entry, small_case(dtype=dtype, op=op), 1)


@pytest.mark.parametrize("entry", ENTRIES)
def test_real_threads_give_the_same(entry: str) -> None:
    run_three(entry, small_case(), 5, engine="threads")


@settings(max_examples=40)
@given(
    entry=st.sampled_from(sorted(ENTRIES)),
    ranks=st.integers(1, 10),
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
def test_any_case_gives_what_numpy_gives(entry: str, seed: int, **case: Any) -> None:
    run_three(entry, {**case, "op": "sum", "iterations": 1}, seed)


ONE_SHOT = Trial("mesh_one_shot_all_reduce", "all_reduce")


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("build", [MESH, Build("mesh.cu", sanitize=True)], ids=["plain", "sanitized"])
def test_a_launch_may_use_what_the_last_one_left(entry: str, build: Build) -> None:
    """One-shot ends when its own output is there, and reads its own input at once: before and after any other
    kernel it shows whether that one waits for the peers whose buffers it touches."""
    ranks, reference = 4, mesh_reference(2)
    for seed in range(1 if build.sanitize else 8):
        world = HostWorld(ranks, 2)
        middle = prepare(world, Trial(entry, ENTRIES[entry], count=300, root=1, seed=seed), None)
        wide = max(*map(len, middle.inputs), *middle.output_elements)
        first = prepare(world, replace(ONE_SHOT, count=wide), None)
        sums = reference(first.trial, first.inputs)
        data = [one[: len(old)] for one, old in zip(sums, middle.inputs, strict=True)]
        results = reference(middle.trial, data)
        inputs = [
            mine if old else 0 for mine, old in zip(first.call.outputs, middle.call.inputs, strict=True)
        ]
        outputs = [
            mine if old else 0 for mine, old in zip(first.call.inputs, middle.call.outputs, strict=True)
        ]
        calls = [first.call, replace(middle.call, inputs=inputs, outputs=outputs)]
        last = prepare(world, replace(ONE_SHOT, count=len(results[1])), None)
        goes_on = all(outputs)
        calls += [replace(last.call, inputs=outputs)] if goes_on else []
        world.run(build, calls, HostOptions(seed=seed, lanes=4, devices=ranks))
        for output, result in zip(outputs, results, strict=True):
            assert not output or same(world.view(output, result.nbytes).view(result.dtype), result)
        if goes_on:
            check(world, replace(last, inputs=results, call=calls[2]), reference)


def test_all_to_all_works_where_only_some_ranks_work_in_place() -> None:
    """Rank 1's output is its own input; the others have two buffers each."""
    ranks, count = 4, 50
    world = HostWorld(ranks, 2)
    one = prepare(world, Trial("mesh_all_to_all", "all_to_all", count=count), None)
    outputs = list(one.call.outputs)
    outputs[1] = one.call.inputs[1]
    world.run(MESH, [replace(one.call, outputs=outputs)], HostOptions(seed=3, devices=ranks))
    expected = mesh_reference(2)(one.trial, one.inputs)
    for rank in range(ranks):
        seen = world.view(outputs[rank], ranks * count * 4).view("f4")
        assert seen.tolist() == expected[rank].tolist()


@pytest.mark.parametrize("entry", ENTRIES)
def test_too_few_blocks_at_a_time_are_told_to_be_a_deadlock(entry: str) -> None:
    world = HostWorld(4, 1)
    one = prepare(world, Trial(entry, ENTRIES[entry]), None)
    with pytest.raises(KernelDeadlock, match=r"1 blocks never started, as only 3 may run at once"):
        world.run(MESH, [one.call], HostOptions(resident=3))


@pytest.mark.parametrize(
    ("entry", "awaited"),
    [("mesh_one_shot_all_reduce", "rank 2 to send"), ("mesh_two_shot_all_reduce", "rank 2 at a barrier")],
)
def test_a_rank_that_stays_away_is_named_within_the_limit(entry: str, awaited: str) -> None:
    world = HostWorld(3, 1)
    one = prepare(world, Trial(entry, "all_reduce"), None)
    away = replace(one.call, iterations=0)
    options = HostOptions(devices=3, limit_nanoseconds=1000)
    with pytest.raises(KernelFailed, match=f"rank 0, channel 0: waited too long for {awaited}"):
        world.run(MESH, [one.call], options, instead={2: away})
    world.reset()
    world.run(MESH, [one.call], options)
    check(world, one, mesh_reference(1))


def test_more_ranks_than_a_block_has_places_for_are_refused() -> None:
    world = HostWorld(65, 1, slots=2, slot_bytes=16)
    one = prepare(world, Trial("mesh_all_gather", "all_gather", count=1), None)
    with pytest.raises(KernelFailed, match="the plan does not fit rank 65"):
        world.run(MESH, [one.call], HostOptions(lanes=1))


@pytest.mark.parametrize("entry", ["mesh_one_shot_all_reduce", "mesh_all_gather", "mesh_all_to_all"])
def test_sixty_four_ranks_are_enough_for_anybody(entry: str) -> None:
    run_three(entry, small_case(ranks=64, channels=1, count=9, slot_bytes=16), 2)


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("entry", ENTRIES)
def test_the_thread_sanitizer_finds_no_race(entry: str, seed: int) -> None:
    case = small_case(in_place=seed == 2, drifting=seed % 2 == 1)
    run_three(entry, case, seed, build=Build("mesh.cu", sanitize=True))
