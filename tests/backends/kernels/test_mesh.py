"""The mesh kernels: launches that follow each other, in place in part, many ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions, HostWorld, KernelFailed
from tests.backends.kernels.cases import KernelCase
from tests.backends.kernels.in_a_row import run_in_a_row
from tests.backends.kernels.orders import same
from tests.backends.kernels.references import mesh_reference
from tests.backends.kernels.worlds import Trial, check, prepare

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


def test_more_ranks_than_a_block_has_places_for_are_refused() -> None:
    world = HostWorld(65, 1, slots=2, slot_bytes=16)
    one = prepare(world, Trial("mesh_all_gather", "all_gather", count=1), None)
    with pytest.raises(KernelFailed, match="the plan does not fit rank 65"):
        world.run(MESH, [one.call], HostOptions(lanes=1))


@pytest.mark.parametrize("entry", ["mesh_one_shot_all_reduce", "mesh_all_gather", "mesh_all_to_all"])
def test_sixty_four_ranks_are_enough_for_anybody(entry: str) -> None:
    assert run_in_a_row(KernelCase(entry, ranks=64, channels=1, count=9, slot_bytes=16), 2)
