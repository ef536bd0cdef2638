"""Several lanes give up at once, on different peers: the error word is one lane's, whole, and no race."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostCall, HostOptions, KernelFailed
from tests.backends.kernels.cases import KernelCase, prepared_launch, world_for
from tests.backends.kernels.checked import CheckedWorld, KernelRace
from tests.backends.kernels.worlds import check

RANKS = 4
LIMIT_NANOSECONDS = 1000

CASES = {
    "barrier": KernelCase("barrier", ranks=RANKS),
    "mesh, one shot": KernelCase("mesh_one_shot_all_reduce", ranks=RANKS),
    "mesh, two shots": KernelCase("mesh_two_shot_all_reduce", ranks=RANKS),
    "tree": KernelCase("tree_all_reduce", ranks=RANKS, channels=1),
    "low latency": KernelCase("ll_all_reduce", ranks=RANKS),
    "schedule": KernelCase("schedule", "all_reduce one_shot", ranks=RANKS),
}


def call_of(case: KernelCase, world: CheckedWorld, number: int) -> HostCall:
    if case.entry == "barrier":
        return HostCall("barrier", "uint8", 0, [0] * RANKS, [0] * RANKS)
    return prepared_launch(case, world, number, seed=number)[0].call


def give_up(case: KernelCase, away: tuple[int, ...], sanitize: bool, seed: int) -> CheckedWorld:
    """One launch of all ranks, then one in which those ``away`` have nothing to do."""
    world, build = world_for(case), Build(case.kernel_file, sanitize=sanitize)
    options = HostOptions(
        lanes=8, seed=seed, devices=RANKS, limit_nanoseconds=LIMIT_NANOSECONDS
    )
    world.run(build, [call_of(case, world, 0)], options)
    call = call_of(case, world, 1)
    idle = replace(call, iterations=0)
    with pytest.raises(KernelFailed, match="waited too long") as failed:
        world.run(build, [call], options, instead=dict.fromkeys(away, idle))
    assert not isinstance(failed.value, KernelRace), failed.value
    return world


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", CASES)
def test_two_ranks_that_stay_away_are_one_lanes_word_and_no_race(name: str, seed: int) -> None:
    """Two lanes of a rank wait for one of them each."""
    away, waits = (
        ((0, 2), 1) if name == "tree" else ((2, 3), 0)
    )  # children and their parent, or any
    world = give_up(CASES[name], away, sanitize=True, seed=seed)
    first = [error for error in world.errors() if error.rank == waits]
    assert {error.channel for error in first} == set(range(world.channels))
    assert {error.peer for error in first} <= set(away)


RANK_0 = "rank 0, channel 0: waited too long for rank 2 "


@pytest.mark.parametrize(
    ("case", "words"),
    [
        *[
            (KernelCase(f"ll_{name}", root=0), "waited too long for a packet of rank 2")
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
        ],
        (KernelCase("mesh_one_shot_all_reduce"), RANK_0 + "to send"),
        (
            KernelCase("mesh_two_shot_all_reduce"),
            "rank 0, channel 0: waited too long for rank 2 at a barrier",
        ),
        (
            KernelCase("tree_all_reduce"),
            "rank 1, channel 0: waited too long for rank 2 to send",
        ),
        (
            KernelCase("schedule", "all_reduce two_shot", ranks=4),
            RANK_0 + r"to send \(message 1",
        ),
    ],
    ids=lambda prepared: prepared.entry if isinstance(prepared, KernelCase) else "",
)
def test_a_rank_that_stays_away_is_named_and_a_reset_world_works(
    case: KernelCase, words: str
) -> None:
    case = replace(case, channels=1)
    world, build = world_for(case), Build(case.kernel_file)
    prepared, reference = prepared_launch(case, world, 0, seed=0)
    options = HostOptions(lanes=4, devices=case.ranks, limit_nanoseconds=1_000_000)
    with pytest.raises(KernelFailed, match=words):
        world.run(
            build, [prepared.call], options, instead={2: replace(prepared.call, iterations=0)}
        )
    world.reset()
    world.run(build, [prepared.call], options)
    check(world, prepared, reference)


@pytest.mark.thinned(3)
@pytest.mark.parametrize("sanitize", [False, True], ids=["plain", "sanitized"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lanes_that_wait_for_different_peers_keep_peer_and_step_together(
    seed: int, sanitize: bool
) -> None:
    """Every peer has sent another number of messages before: a goal tells whose word it is."""
    case = KernelCase("mesh_one_shot_all_reduce", ranks=RANKS, channels=1)
    world = world_for(case)
    goals = {1: 11, 2: 21, 3: 31}
    for rank in range(
        RANKS
    ):  # as if this many messages had been sent and taken on every connection
        for peer in set(range(RANKS)) - {rank}:
            count = goals[max(rank, peer)] - 1
            state = world.area(rank, "state").view("u8").reshape(8, RANKS)
            flags = world.area(rank, "flags").view("u8").reshape(4, RANKS, 16)
            state[:2, peer] = count
            flags[:2, peer, 0] = count
    call = call_of(case, world, 0)
    idle = replace(call, iterations=0)
    options = HostOptions(
        lanes=8, seed=seed, devices=RANKS, limit_nanoseconds=LIMIT_NANOSECONDS
    )
    with pytest.raises(KernelFailed, match="waited too long"):
        world.run(
            Build(case.kernel_file, sanitize=sanitize),
            [call],
            options,
            instead=dict.fromkeys(goals, idle),
        )
    (error,) = world.errors()
    assert (error.code, error.rank, error.channel) == (1, 0, 0)
    assert (error.goal, error.seen) == (goals[error.peer], goals[error.peer] - 1)
