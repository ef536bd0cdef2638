"""What the mesh kernels must leave in every output, in their order of summation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ccbench.backends.kernels.abi import TYPE_BYTES
from ccbench.backends.kernels.layout import rounded_up
from ccbench.collectives import reference as plain_reference
from tests.backends.kernels.orders import Array, channel_parts, folded
from tests.backends.kernels.worlds import Reference, Trial


def mesh_reference(channels: int) -> Reference:
    """The reference for so many channels in use."""

    def outputs(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
        ranks = len(inputs)
        if trial.entry == "mesh_one_shot_all_reduce":
            return [folded(inputs, trial.op, ranks)] * ranks
        if trial.collective in ("all_reduce", "reduce"):
            result = _pieces(trial, inputs, channels)
            everybody = trial.collective == "all_reduce"
            return [result if everybody or rank == trial.root else result[:0] for rank in range(ranks)]
        if trial.collective == "reduce_scatter":
            return [_block(trial, inputs, rank) for rank in range(ranks)]
        return plain_reference(inputs, trial.op, trial.collective, trial.root)

    return outputs


def _turned(inputs: Sequence[Array], first: int) -> list[Array]:
    return [*inputs[first:], *inputs[:first]]


def _block(trial: Trial, inputs: Sequence[Array], owner: int) -> Array:
    own = slice(owner * trial.count, (owner + 1) * trial.count)
    return folded([one[own] for one in _turned(inputs, owner)], trial.op, len(inputs))


def _pieces(trial: Trial, inputs: Sequence[Array], channels: int) -> Array:
    """Every channel's part is cut into as many pieces of whole vectors as there are ranks."""
    ranks, item = len(inputs), TYPE_BYTES[trial.dtype]
    result = np.empty_like(inputs[0])
    for begin, end in channel_parts(trial.count, channels, item):
        size = rounded_up(rounded_up(end - begin, ranks) // ranks, 16 // item)
        for rank in range(ranks):
            low, high = min(begin + rank * size, end), min(begin + (rank + 1) * size, end)
            result[low:high] = folded([one[low:high] for one in _turned(inputs, rank)], trial.op, ranks)
    return result
