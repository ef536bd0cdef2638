"""What is said of kernels' orders is what their references add, which are proven bit for bit elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ccbench.backends.kernels.sources import channel_orders, channel_trees, kernel_algorithms
from ccbench.collectives import COLLECTIVES, collective
from ccbench.schedules import schedule_for
from tests.backends.kernels.orders import Array
from tests.backends.kernels.references import ordered_reference, ring_reference, tree_reference
from tests.backends.kernels.schedule_reference import schedule_reference
from tests.backends.kernels.summation import kernel_bits
from tests.backends.kernels.worlds import Reference, Trial
from tests.schedules.test_orders import evaluated

ADDING = [
    (name, algorithm)
    for name, row in COLLECTIVES.items()
    if row.reduces
    for algorithm in kernel_algorithms(name)
]
ROOT, COUNT, SLOT_BYTES = 1, 960, 64


def reference_of(algorithm: str, name: str, ranks: int, channels: int) -> Reference:
    root = ROOT if collective(name).rooted else None
    if algorithm == "ring":
        return ring_reference(channel_orders(ranks, channels), SLOT_BYTES)
    if algorithm == "tree":
        return tree_reference(channel_trees(ranks, channels, root))
    head, _, schedule = algorithm.partition(":")
    if head == "schedule":
        made = schedule_for(name, schedule, ranks, ROOT if root else 0)
        return schedule_reference(made, channels, SLOT_BYTES)
    return ordered_reference


def rows_of(name: str, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
    """Return for every output the inputs that belong to it, shape (ranks, elements)."""
    blocked, stacked = collective(name).blocked, np.stack(inputs)
    return [
        stacked[:, rank * COUNT : (rank + 1) * COUNT] if blocked else stacked[:, : len(output)]
        for rank, output in enumerate(outputs)
    ]


@pytest.mark.thinned(6)
@pytest.mark.parametrize(("name", "algorithm"), ADDING)
@pytest.mark.parametrize("channels", [1, 2])
def test_every_element_is_added_in_an_order_that_is_named_and_every_order_is_used(
    name: str, algorithm: str, channels: int
) -> None:
    for ranks in range(2, 9):
        bits = kernel_bits(algorithm, name, ranks, channels, ROOT)
        row, generator = collective(name), np.random.default_rng(ranks)
        elements = row.input_count(COUNT, ranks, 0, ROOT)
        inputs = [generator.standard_normal(elements).astype(np.float32) for _ in range(ranks)]
        trial = Trial("", name, count=COUNT, root=ROOT)
        outputs = reference_of(algorithm, name, ranks, channels)(trial, inputs)
        used = set()
        for added, output in zip(rows_of(name, inputs, outputs), outputs, strict=True):
            sums = [evaluated(order, dict(enumerate(added))) == output for order in bits.orders]
            assert np.any(sums, axis=0).all(), f"{ranks} ranks"
            # An order is used for sure where no element of another order could look alike.
            alone = np.sum(sums, axis=0) == 1
            used |= {index for index, equal in enumerate(sums) if (equal & alone).any()}
        assert used == set(range(len(bits.orders)))
        assert bits.positions == (len(bits.orders) > 1)
        if name == "all_reduce":
            assert all(np.array_equal(outputs[0], output) for output in outputs) != bits.ranks


def test_meshes_and_packets_depend_on_nothing_and_rings_on_the_position() -> None:
    for name, algorithm in ADDING:
        bits = kernel_bits(algorithm, name, 8, channels=2)
        if algorithm.startswith(("mesh", "ll")):
            assert not bits.positions
            assert bits.depth == 7
        if algorithm == "ring":
            assert bits.positions
