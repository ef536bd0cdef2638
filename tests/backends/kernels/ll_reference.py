"""What the low latency kernels must leave in every output, in their order of summation."""

from __future__ import annotations

from collections.abc import Sequence

from ccbench.collectives import reference as plain_reference
from tests.backends.kernels.orders import Array, folded
from tests.backends.kernels.worlds import Trial

PACKET_AREAS = 4 * 2
"""Channels that have boxes, and halves of each."""


def packets_bytes(ranks: int, packets: int) -> int:
    """Room for ``packets`` of 8 bytes of every sender in one round."""
    return packets * 8 * PACKET_AREAS * ranks


def ll_reference(trial: Trial, inputs: Sequence[Array]) -> list[Array]:
    """Contributions are combined in the order of ranks."""
    ranks, count = len(inputs), trial.count
    if ranks == 1:
        return [inputs[0]]
    if trial.collective == "all_reduce":
        return [folded(inputs, trial.op, ranks)] * ranks
    if trial.collective == "reduce_scatter":
        blocks = [[one[rank * count : (rank + 1) * count] for one in inputs] for rank in range(ranks)]
        return [folded(block, trial.op, ranks) for block in blocks]
    return plain_reference(inputs, trial.op, trial.collective, trial.root)
