"""Several lanes give up at once, on different peers: the error word is one lane's, whole, and no race."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, KernelFailed
from tests.backends.kernels.cases import KernelCase, prepared_launch, world_for
from tests.backends.kernels.worlds import check

RANK_0 = "rank 0, channel 0: waited too long for rank 2 "


@pytest.mark.parametrize(
    ("case", "words"),
    [
        *[
            (KernelCase(f"ll_{name}", root=0), "waited too long for a packet of rank 2")
            for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
        ],
        (KernelCase("mesh_one_shot_all_reduce"), RANK_0 + "to send"),
        (KernelCase("put_send_recv"), RANK_0 + "to send"),
        (
            KernelCase("put_send_recv"),
            "rank 1, channel 0: waited too long for rank 2 to open its output",
        ),
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
