"""Collectives on a HostWorld: buffers filled, launched, and compared with what NumPy computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ccbench.backends.kernels.abi import TYPE_BYTES
from ccbench.backends.kernels.host_engine import HostCall, HostWorld
from ccbench.backends.kernels.sources import Plan
from ccbench.collectives import collective
from tests.backends.kernels.orders import Array, numpy_type, same, values

POISON = 0xA5

Reference = Callable[["Trial", Sequence[Array]], list[Array]]
"""(trial, every rank's input) -> every rank's output; empty where a rank has none."""


@dataclass(frozen=True)
class Trial:
    """One collective on random data. misalignment: of every buffer, in elements."""

    entry: str
    collective: str
    dtype: str = "float32"
    op: str = "sum"
    count: int = 257
    root: int = 0
    in_place: bool = False
    misalignment: int = 0
    iterations: int = 1
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Prepared:
    """A trial with its buffers filled."""

    trial: Trial
    call: HostCall
    inputs: list[Array]
    output_elements: list[int]


def prepare(
    world: HostWorld, trial: Trial, plan: Plan | None, channels: int | None = None
) -> Prepared:
    """Buffers of every rank, inputs random, outputs poisoned with a margin on both sides."""
    row = collective(trial.collective)
    item, kind = TYPE_BYTES[trial.dtype], numpy_type(trial.dtype)
    generator = np.random.default_rng(trial.seed)
    inputs, outputs, data, elements = [], [], [], []
    for rank in range(world.ranks):
        input_count = row.input_count(trial.count, world.ranks, rank, trial.root)
        output_count = row.output_count(trial.count, world.ranks, rank, trial.root)
        numbers = values(trial.dtype, input_count, generator)
        source = _buffer(world, max(input_count, output_count), trial.misalignment, item)
        target = (
            source if trial.in_place else _buffer(world, output_count, trial.misalignment, item)
        )
        if (
            trial.in_place
        ):  # as NCCL has it: the smaller buffer is the rank's block of the larger one
            source += rank * trial.count * item if 0 < input_count < output_count else 0
            target += rank * trial.count * item if 0 < output_count < input_count else 0
        world.view(source, input_count * item)[:] = numbers.view(np.uint8)
        inputs.append(source if input_count else 0)
        outputs.append(target if output_count else 0)
        data.append(numbers.astype(kind))
        elements.append(output_count)
    call = HostCall(
        trial.entry,
        trial.dtype,
        trial.count,
        inputs,
        outputs,
        op=trial.op,
        root=trial.root,
        plan=plan,
        channels=channels,
        iterations=1 if trial.in_place else trial.iterations,
    )
    return Prepared(trial, call, data, elements)


def _buffer(world: HostWorld, elements: int, misalignment: int, item: int) -> int:
    offset = world.allocate((elements + 1 + misalignment) * item)
    world.view(offset, (elements + 1 + misalignment) * item)[:] = POISON
    return offset + misalignment * item


def check(world: HostWorld, prepared: Prepared, reference: Reference) -> None:
    """Every output bit for bit, nothing written behind it, and inputs untouched out of place."""
    trial = prepared.trial
    item, kind = TYPE_BYTES[trial.dtype], numpy_type(trial.dtype)
    expected = reference(trial, prepared.inputs)
    for rank, elements in enumerate(prepared.output_elements):
        if elements == 0:
            continue
        actual = world.view(prepared.call.outputs[rank], elements * item).view(kind)
        assert same(actual, expected[rank]), (
            f"rank {rank} of {trial}: {actual} instead of {expected[rank]}"
        )
        if not trial.in_place:
            behind = world.view(prepared.call.outputs[rank] + elements * item, item)
            assert (behind == POISON).all(), (
                f"rank {rank} of {trial}: written behind the output"
            )
            source = world.view(prepared.call.inputs[rank], len(prepared.inputs[rank]) * item)
            assert prepared.call.inputs[rank] == 0 or same(
                source.view(kind), prepared.inputs[rank]
            )
