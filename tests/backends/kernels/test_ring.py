"""The ring kernels: what they may touch in a launch while others are in the one before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, HostWorld
from ccbench.backends.kernels.sources import natural_orders, ring_plan
from tests.backends.kernels.references import ring_reference
from tests.backends.kernels.worlds import Trial, check, prepare

RANKS, SLOT_BYTES, COUNT = 4, 512, 25
SLOTS = 4  # more than the reduce sends, so that rank 1 need not wait for anybody to take it


def reduce_then(collective: str, build: Build, options: HostOptions) -> None:
    """A reduce to rank 0, which rank 1 is through with first; then ``collective``, whose outputs are the
    reduce's inputs, and which rank 1 begins by writing to rank 2."""
    world = HostWorld(RANKS, 1, slots=SLOTS, slot_bytes=SLOT_BYTES)
    orders = natural_orders(RANKS, 1)
    plan, reference = ring_plan(orders), ring_reference(orders, SLOT_BYTES)
    first = prepare(world, Trial("ring_reduce", "reduce", count=RANKS * COUNT, root=0), plan)
    count = COUNT if collective == "all_gather" else RANKS * COUNT
    trial = Trial(f"ring_{collective}", collective, count=count, root=1, seed=1)
    second = prepare(world, trial, plan)
    second = replace(second, call=replace(second.call, outputs=first.call.inputs))
    world.run(build, [first.call, second.call], options)
    check(world, replace(first, call=replace(first.call, inputs=[0] * RANKS)), reference)
    check(world, second, reference)


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_a_rank_that_is_ahead_does_not_overwrite_what_another_still_reads(collective: str) -> None:
    for seed in range(100):
        reduce_then(collective, Build("ring.cu"), HostOptions(lanes=1, seed=seed, devices=4))


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_a_rank_that_is_ahead_does_not_race_with_what_another_still_reads(collective: str) -> None:
    reduce_then(collective, Build("ring.cu", sanitize=True), HostOptions(lanes=4, seed=1, devices=4))
