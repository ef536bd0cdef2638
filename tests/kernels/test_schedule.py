"""The schedule interpreter on the host engine: every algorithm of ccbench, bit for bit against NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ccbench.algorithms import ALGORITHMS, Schedule, schedule_for
from ccbench.collectives import collective as collective_row
from ccbench.errors import ScheduleError
from ccbench.kernels.abi import OPS, TYPES
from ccbench.kernels.building import Build
from ccbench.kernels.host_engine import HostOptions, HostWorld, KernelDeadlock, KernelFailed
from ccbench.kernels.programs import compiled_program
from tests.kernels.coverage import pairwise
from tests.kernels.schedule_reference import schedule_reference
from tests.kernels.worlds import Trial, check, prepare

SCHEDULE = Build("schedule.cu")
NAMES = [f"{row.collective} {row.name}" for row in ALGORITHMS]
STAGING_BYTES = 1 << 16

PARAMETERS: dict[str, list[Any]] = {
    "algorithm": NAMES,
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
    "slot_bytes": [64, 256, 4096],
    "iterations": [1, 2],
    "parameter": [1, 3],
}
"""Slots of 4096 bytes keep the largest count to few passes."""


def schedule_of(name: str, ranks: int, root: int, parameter: int = 0) -> Schedule | None:
    """None where the algorithm does not exist on so many ranks."""
    of, algorithm = name.split()
    row = next(one for one in ALGORITHMS if (one.collective, one.name) == (of, algorithm))
    pieces = parameter if row.parameter.startswith("pieces") and parameter else None
    try:
        return schedule_for(of, algorithm, ranks, root, pieces)
    except ScheduleError:
        return None


def chunk_bytes(
    schedule: Schedule, channels: int, slot_bytes: int, staging_bytes: int, in_place: bool
) -> int:
    """``chunk_of`` of schedule.cu."""
    program = compiled_program(schedule)
    found = slot_bytes // int(program[4])
    places = int(program[7 if in_place else 5])
    if places:
        found = min(found, staging_bytes // (places * channels))
    return found // 16 * 16


def run_three(name: str, case: dict[str, Any], seed: int, build: Build = SCHEDULE, **options: Any) -> bool:
    """Three launches in a row with other counts, roots, channels; False where there is no such schedule."""
    ranks, channels = case["ranks"], case["channels"]
    staging = case.get("staging_bytes", STAGING_BYTES)
    world = HostWorld(
        ranks, channels, slots=case["slots"], slot_bytes=case["slot_bytes"], staging_bytes=staging
    )
    count = {"ranks": ranks, "ranks - 1": ranks - 1}.get(case["count"], case["count"])
    of = name.split()[0]
    given = {key: case[key] for key in ("dtype", "op", "in_place", "misalignment", "iterations")}
    trial = Trial("schedule", of, count=count, root=ranks // 2, seed=seed, **given)
    trials = [
        trial,
        replace(trial, count=min(count, 31), root=0, seed=seed + 1),
        replace(trial, root=ranks - 1, seed=seed + 2),
    ]
    prepared, references = [], []
    for number, one in enumerate(trials):
        used = channels if number != 1 else max(1, channels - 1)
        made = schedule_of(name, ranks, one.root, case.get("parameter", 0))
        if made is None:
            return False
        ready = prepare(world, one, None, used)
        prepared.append(replace(ready, call=replace(ready.call, program=compiled_program(made))))
        chunk = chunk_bytes(made, used, case["slot_bytes"], staging, one.in_place)
        references.append(schedule_reference(made, used, chunk))
    given_options = HostOptions(
        lanes=case["lanes"], seed=seed, devices=ranks if case["drifting"] else 1, **options
    )
    world.run(build, [one.call for one in prepared], given_options)
    for launched, reference in zip(prepared, references, strict=True):
        if collective_row(of).moves_data:
            check(world, launched, reference)
    return True


PLAIN: dict[str, Any] = {
    "ranks": 4,
    "channels": 1,
    "lanes": 4,
    "count": 257,
    "dtype": "float32",
    "op": "sum",
    "in_place": False,
    "misalignment": 0,
    "drifting": False,
    "slots": 2,
    "slot_bytes": 512,
    "iterations": 1,
}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_runs_on_every_number_of_ranks_that_it_exists_for(name: str, in_place: bool) -> None:
    ran = [
        ranks
        for ranks in (2, 3, 4, 8)
        if run_three(name, {**PLAIN, "ranks": ranks, "in_place": in_place, "drifting": ranks == 4}, ranks)
    ]
    assert ran == [2, 3, 4, 8]


def test_every_pair_of_parameters_gives_what_numpy_gives() -> None:
    ran = 0
    for seed, case in enumerate(pairwise(PARAMETERS, seed=1)):
        ran += run_three(case["algorithm"], case, seed)
    assert ran > 400


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_op_gives_what_numpy_gives(dtype: str, op: str) -> None:
    for name in ("all_reduce one_shot", "all_reduce ring"):
        assert run_three(name, {**PLAIN, "ranks": 3, "channels": 2, "dtype": dtype, "op": op}, 1)


@pytest.mark.parametrize("name", ["all_reduce double_binary_tree", "all_to_all bruck", "all_reduce two_shot"])
def test_real_threads_give_the_same(name: str) -> None:
    assert run_three(name, {**PLAIN, "ranks": 3}, 5, engine="threads", limit_nanoseconds=60_000_000_000)


@settings(max_examples=60)
@given(
    name=st.sampled_from(NAMES),
    ranks=st.integers(1, 9),
    channels=st.integers(1, 3),
    lanes=st.integers(1, 9),
    count=st.integers(0, 700),
    misalignment=st.integers(0, 15),
    slots=st.sampled_from([2, 4, 8]),
    slot_bytes=st.integers(4, 40).map(lambda units: 16 * units),
    drifting=st.booleans(),
    in_place=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16", "uint8"]),
    parameter=st.integers(1, 9),
    seed=st.integers(0, 1 << 32),
)
def test_any_case_gives_what_numpy_gives(name: str, seed: int, **case: Any) -> None:
    run_three(name, {**case, "op": "sum", "iterations": 1}, seed)


@pytest.mark.parametrize("name", NAMES)
def test_too_few_resident_blocks_are_told_and_do_not_hang(name: str) -> None:
    case = {**PLAIN, "ranks": 3, "slot_bytes": 64}
    if name.split()[0] in ("broadcast", "scatter", "reduce", "gather"):
        case["count"] = 2000  # so much that whoever only sends has to wait as well
    with pytest.raises(KernelDeadlock, match="deadlock: rank"):
        run_three(name, case, 1, resident=1)


def test_a_rank_that_does_not_come_is_an_error_that_names_it() -> None:
    world = HostWorld(4, 1, staging_bytes=STAGING_BYTES)
    made = schedule_of("all_reduce two_shot", 4, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "all_reduce", count=100), None, 1)
    call = replace(ready.call, program=compiled_program(made))
    options = HostOptions(lanes=4, devices=4, limit_nanoseconds=1_000_000)
    with pytest.raises(
        KernelFailed, match=r"rank 0, channel 0: waited too long for rank 2 to send \(message 1"
    ):
        world.run(SCHEDULE, [call], options, instead={2: replace(call, iterations=0)})
    world.reset()
    world.run(SCHEDULE, [call], options)
    check(world, ready, schedule_reference(made, 1, chunk_bytes(made, 1, 256, STAGING_BYTES, False)))


@pytest.mark.parametrize(
    ("slot_bytes", "staging_bytes"), [(32, STAGING_BYTES), (64, 16)], ids=["slots", "work places"]
)
def test_too_little_room_is_refused(slot_bytes: int, staging_bytes: int) -> None:
    case = {**PLAIN, "ranks": 8, "slot_bytes": slot_bytes, "staging_bytes": staging_bytes}
    world = HostWorld(8, 1, slots=2, slot_bytes=slot_bytes, staging_bytes=staging_bytes)
    made = schedule_of("all_to_all bruck", 8, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "all_to_all", count=case["count"]), None, 1)
    with pytest.raises(KernelFailed, match="the plan does not fit"):
        world.run(SCHEDULE, [replace(ready.call, program=compiled_program(made))], HostOptions(lanes=4))


def test_a_program_for_other_ranks_is_refused() -> None:
    world = HostWorld(3, 1, staging_bytes=STAGING_BYTES)
    made = schedule_of("all_reduce ring", 4, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "all_reduce"), None, 1)
    with pytest.raises(KernelFailed, match="the plan does not fit"):
        world.run(SCHEDULE, [replace(ready.call, program=compiled_program(made))], HostOptions(lanes=4))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "name",
    [
        "all_reduce ring",
        "all_reduce one_shot",
        "all_reduce double_binary_tree",
        "all_reduce halving_doubling",
        "all_to_all bruck",
        "broadcast scatter_all_gather",
    ],
)
def test_the_interpreter_has_no_race(name: str, seed: int) -> None:
    case = {**PLAIN, "ranks": 3 if seed == 2 else 4, "channels": 2, "count": 61, "slot_bytes": 64}
    case |= {"in_place": seed == 2, "drifting": seed % 2 == 1}
    assert run_three(name, case, seed, Build("schedule.cu", sanitize=True))


def test_the_order_of_launch_decides_nothing() -> None:
    """Ten seeds, one result: the order of summation is the schedule's."""
    outputs: set[bytes] = set()
    made = schedule_of("all_reduce one_shot", 4, 0)
    assert made is not None
    for seed in range(10):
        world = HostWorld(4, 2, slot_bytes=64, staging_bytes=STAGING_BYTES)
        one = prepare(world, Trial("schedule", "all_reduce", "float16", count=500), None)
        call = replace(one.call, program=compiled_program(made))
        world.run(SCHEDULE, [call], HostOptions(seed=seed, lanes=4, devices=4))
        outputs.update(world.view(offset, 1000).tobytes() for offset in call.outputs)
    assert len(outputs) == 1


def test_a_barrier_moves_no_data_but_waits_for_everybody() -> None:
    """The last rank to come launches something that never posts: nobody gets through."""
    world = HostWorld(4, 1, staging_bytes=STAGING_BYTES)
    made = schedule_of("barrier dissemination", 4, 0)
    assert made is not None
    ready = prepare(world, Trial("schedule", "barrier", count=0), None, 1)
    call = replace(ready.call, program=compiled_program(made))
    idle = replace(call, iterations=0)
    for absent in range(4):
        with pytest.raises(KernelDeadlock) as told:
            world.run(SCHEDULE, [call], HostOptions(devices=4, lanes=4), instead={absent: idle})
        waiting = {f"rank {rank}" for rank in range(4) if rank != absent}
        assert all(one in str(told.value) for one in waiting), told.value
        world.reset()
    world.run(SCHEDULE, [call] * 3, HostOptions(devices=4, lanes=4, seed=3))
    assert np.count_nonzero(world.area(0, "errors")) == 0
