"""What the kernels of each file must leave in every output, in their order of summation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ccbench.backends.kernels.abi import TYPE_BYTES
from ccbench.backends.kernels.sources import Tree
from ccbench.collectives import reference as plain_reference
from tests.backends.kernels.orders import Array, accumulated, channel_parts, folded, ring_pieces
from tests.backends.kernels.worlds import Reference, Trial

Orders = Sequence[Sequence[int]]


def ring_reference(orders: Orders, slot_bytes: int) -> Reference:
    """The reference for these rings, one order of ranks per channel in use."""

    def outputs(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
        if trial.collective == "all_reduce":
            return _ring_all_reduce(trial, inputs, orders, slot_bytes)
        ranks = range(len(inputs))
        if trial.collective == "reduce_scatter":
            return [
                _ring_block(trial, inputs, orders, rank, rank * trial.count) for rank in ranks
            ]
        if trial.collective == "reduce":
            result = _ring_block(trial, inputs, orders, trial.root, 0)
            return [result if rank == trial.root else result[:0] for rank in ranks]
        return plain_reference(inputs, trial.op, trial.collective, trial.root)

    return outputs


def _ring_turned(order: Sequence[int], last: int) -> list[int]:
    """The ring's ranks so that ``last`` comes last."""
    place = list(order).index(last)
    return [*order[place + 1 :], *order[: place + 1]]


def _ring_all_reduce(
    trial: Trial, inputs: Sequence[Array], orders: Orders, slot_bytes: int
) -> list[Array]:
    result = np.empty_like(inputs[0])
    for begin, end, adding in ring_pieces(
        trial.count, orders, slot_bytes, TYPE_BYTES[trial.dtype]
    ):
        result[begin:end] = folded(
            [inputs[rank][begin:end] for rank in adding], trial.op, len(inputs)
        )
    return [result] * len(inputs)


def _ring_block(
    trial: Trial, inputs: Sequence[Array], orders: Orders, owner: int, start: int
) -> Array:
    """The elements from ``start`` on, which ``owner`` adds last."""
    result = np.empty_like(inputs[0][: trial.count])
    parts = channel_parts(trial.count, len(orders), TYPE_BYTES[trial.dtype])
    for order, (begin, end) in zip(orders, parts, strict=True):
        pieces = [
            inputs[rank][start + begin : start + end] for rank in _ring_turned(order, owner)
        ]
        result[begin:end] = folded(pieces, trial.op, len(inputs))
    return result


PACKET_AREAS = 16 * 2
"""Channels that have boxes, and halves of each."""


def packets_bytes(ranks: int, packets: int) -> int:
    """Room for ``packets`` of 8 bytes of every sender in one round."""
    return packets * 8 * PACKET_AREAS * ranks


def ordered_reference(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
    """Contributions are added up in the order of ranks and rounded once, whoever does it."""
    ranks, count = len(inputs), trial.count
    if trial.collective in ("all_reduce", "reduce"):
        result = accumulated(inputs, trial.op, ranks)
        everybody = trial.collective == "all_reduce"
        return [
            result if everybody or rank == trial.root else result[:0] for rank in range(ranks)
        ]
    if trial.collective == "reduce_scatter":
        blocks = [
            [values[rank * count : (rank + 1) * count] for values in inputs]
            for rank in range(ranks)
        ]
        return [accumulated(block, trial.op, ranks) for block in blocks]
    return plain_reference(inputs, trial.op, trial.collective, trial.root)


def tree_reference(trees: Sequence[Tree]) -> Reference:
    """The reference for these trees, one per channel in use."""

    def outputs(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
        if trial.collective == "broadcast":
            return plain_reference(inputs, trial.op, trial.collective, trial.root)
        result = np.empty_like(inputs[0])
        parts = channel_parts(trial.count, len(trees), TYPE_BYTES[trial.dtype])
        for tree, (begin, end) in zip(trees, parts, strict=True):
            root = tree.parents.index(-1)
            result[begin:end] = _tree_climbed(
                tree, root, [values[begin:end] for values in inputs], trial.op
            )
        everybody = trial.collective == "all_reduce"
        return [
            result if everybody or rank == trial.root else result[:0]
            for rank in range(len(inputs))
        ]

    return outputs


def _tree_climbed(tree: Tree, rank: int, inputs: Sequence[Array], op: str) -> Array:
    """(first child + own) + second child, rounded once at each rank; finished at the root."""
    below = [_tree_climbed(tree, child, inputs, op) for child in tree.children[rank]]
    parts = [*below[:1], inputs[rank], *below[1:]]
    return accumulated(parts, op, len(inputs) if tree.parents[rank] == -1 else 0)
