"""What the ring kernels must leave in every output, in their order of summation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ccbench.backends.kernels.abi import TYPE_BYTES
from ccbench.collectives import reference as plain_reference
from tests.backends.kernels.orders import Array, channel_parts, folded, ring_pieces
from tests.backends.kernels.worlds import Reference, Trial

Orders = Sequence[Sequence[int]]


def ring_reference(orders: Orders, slot_bytes: int) -> Reference:
    """The reference for these rings, one order of ranks per channel in use."""

    def outputs(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
        if trial.collective == "all_reduce":
            return _all_reduce(trial, inputs, orders, slot_bytes)
        if trial.collective == "reduce_scatter":
            return [_block(trial, inputs, orders, rank) for rank in range(len(inputs))]
        if trial.collective == "reduce":
            return _reduce(trial, inputs, orders)
        return plain_reference(inputs, trial.op, trial.collective, trial.root)

    return outputs


def _turned(order: Sequence[int], last: int) -> list[int]:
    """The ring's ranks so that ``last`` comes last."""
    place = list(order).index(last)
    return [*order[place + 1 :], *order[: place + 1]]


def _all_reduce(trial: Trial, inputs: Sequence[Array], orders: Orders, slot_bytes: int) -> list[Array]:
    result = np.empty_like(inputs[0])
    for begin, end, adding in ring_pieces(trial.count, orders, slot_bytes, TYPE_BYTES[trial.dtype]):
        result[begin:end] = folded([inputs[rank][begin:end] for rank in adding], trial.op, len(inputs))
    return [result] * len(inputs)


def _block(trial: Trial, inputs: Sequence[Array], orders: Orders, owner: int) -> Array:
    start = owner * trial.count
    result = np.empty_like(inputs[0][: trial.count])
    parts = channel_parts(trial.count, len(orders), TYPE_BYTES[trial.dtype])
    for order, (begin, end) in zip(orders, parts, strict=True):
        pieces = [inputs[rank][start + begin : start + end] for rank in _turned(order, owner)]
        result[begin:end] = folded(pieces, trial.op, len(inputs))
    return result


def _reduce(trial: Trial, inputs: Sequence[Array], orders: Orders) -> list[Array]:
    result = np.empty_like(inputs[0])
    parts = channel_parts(trial.count, len(orders), TYPE_BYTES[trial.dtype])
    for order, (begin, end) in zip(orders, parts, strict=True):
        pieces = [inputs[rank][begin:end] for rank in _turned(order, trial.root)]
        result[begin:end] = folded(pieces, trial.op, len(inputs))
    return [result if rank == trial.root else result[:0] for rank in range(len(inputs))]
