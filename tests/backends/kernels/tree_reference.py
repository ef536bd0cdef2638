"""What the tree kernels must leave in every output, in their order of summation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ccbench.backends.kernels.abi import TYPE_BYTES
from ccbench.backends.kernels.plans import Tree
from ccbench.collectives import reference as plain_reference
from tests.backends.kernels.orders import Array, channel_parts, combined, finished
from tests.backends.kernels.worlds import Reference, Trial


def tree_reference(trees: Sequence[Tree]) -> Reference:
    """The reference for these trees, one per channel in use."""

    def outputs(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
        if trial.collective == "broadcast":
            return plain_reference(inputs, trial.op, trial.collective, trial.root)
        result = np.empty_like(inputs[0])
        parts = channel_parts(trial.count, len(trees), TYPE_BYTES[trial.dtype])
        for tree, (begin, end) in zip(trees, parts, strict=True):
            total = _climbed(tree, tree.root, [one[begin:end] for one in inputs], trial.op)
            result[begin:end] = finished(total, trial.op, len(inputs))
        everybody = trial.collective == "all_reduce"
        return [result if everybody or rank == trial.root else result[:0] for rank in range(len(inputs))]

    return outputs


def _climbed(tree: Tree, rank: int, inputs: Sequence[Array], op: str) -> Array:
    """(first child + own) + second child."""
    below = [_climbed(tree, child, inputs, op) for child in tree.children[rank]]
    total = combined(below[0], inputs[rank], op) if below else inputs[rank]
    return combined(total, below[1], op) if len(below) > 1 else total
