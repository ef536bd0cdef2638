"""Who talks to whom, as arrays that kernels read: a kernel's header comment says what its plan holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import UsageError

Plan = NDArray[np.int32]
"""Shape (channels, plan_words)."""


def ring_plan(orders: Sequence[Sequence[int]]) -> Plan:
    """The plan of ring kernels: for each channel the order of ranks, then the place of each rank.

    orders: one permutation of all ranks per channel. UsageError when one is not a permutation.
    """
    ranks = len(orders[0]) if orders else 0
    for channel, order in enumerate(orders):
        if sorted(order) != list(range(ranks)):
            raise UsageError(
                f"ring order of channel {channel}: {list(order)} is not an order of ranks 0 to {ranks - 1}; "
                "name every rank once"
            )
    order_of = np.asarray(orders, np.int32).reshape(len(orders), ranks)
    return np.concatenate([order_of, np.argsort(order_of, axis=1).astype(np.int32)], axis=1)


def natural_orders(ranks: int, channels: int) -> list[list[int]]:
    """Rings where nothing is known of the topology: 0, 1, 2 ... on even channels, backwards on odd ones."""
    forward = list(range(ranks))
    return [forward if channel % 2 == 0 else forward[::-1] for channel in range(channels)]
