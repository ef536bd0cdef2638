"""Orders in which the kernels add up, and so what the bits of their sums depend on besides the data.

Sums of 8 and 16 bits are wide inside a kernel. Rings and schedules round them after every addition, trees once
at each rank, meshes and packets once at all: of those the depths given here are upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

from ccbench.backends.kernels.sources import (
    INTERPRETED,
    Tree,
    channel_orders,
    channel_trees,
)
from ccbench.collectives import collective
from ccbench.schedules import schedule_for
from ccbench.schedules.orders import BitDependence, Sum, bit_dependence, chain


def kernel_bits(
    algorithm: str,
    collective_name: str,
    ranks: int,
    channels: int = 1,
    root: int = 0,
) -> BitDependence:
    """Return what the bits of the kernel's sums depend on.

    algorithm: as a suite has it, ``schedule:chain:8`` included; not ``default``, which goes by the size.
    channels: of a large message; small ones need not use all.
    """
    row = collective(collective_name)
    head, _, name = algorithm.partition(":")
    # Messages carry elements of the type, so the interpreter rounds wherever the schedule adds.
    if head == INTERPRETED:
        return bit_dependence(schedule_for(collective_name, name, ranks, root))
    last = root if row.rooted else None
    if algorithm == "ring":
        sums = list(_ring_sums(channel_orders(ranks, channels), last))
    elif algorithm == "tree":
        trees = channel_trees(ranks, channels, last)
        sums = [_climbed(tree, tree.parents.index(-1)) for tree in trees]
    else:
        sums = [chain(range(ranks))]
    distinct = set(sums)
    # Whoever adds hands on what it got, or all add in the same order.
    return BitDependence(
        positions=len(distinct) > 1,
        ranks=False,
        sums=tuple(distinct),
    )


def _ring_sums(orders: Sequence[Sequence[int]], last: int | None) -> Iterator[Sum]:
    """Yield the chains along each ring that end at ``last``, or at every rank in turn."""
    for order in orders:
        for place, rank in enumerate(order, 1):
            if last in (None, rank):
                yield chain([*order[place:], *order[:place]])


def _climbed(tree: Tree, rank: int) -> Sum:
    """Return (first child + own) + second child, at ``rank``."""
    below = [_climbed(tree, child) for child in tree.children[rank]]
    return reduce(Sum.__add__, [*below[:1], Sum.of(rank), *below[1:]])
