"""The plainest prediction, for comparison: Hockney's a + b n with two datasheet numbers and nothing else."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.shapes import busy_nics, links_share, shapes

Floats = NDArray[np.float64]

INSIDE_SECONDS = 1e-6
NETWORK_SECONDS = 5e-6
"""Latencies of one message that a textbook would take: NVLink or PCIe, network."""


def alpha_beta(system: LibrarySystem, request: LibraryRequest) -> Floats:
    """Seconds at each size: steps x latency + bytes / nominal rate of the first algorithm (ring, pairwise).

    Hockney, Parallel Computing 20 (1994) 389. Zero for one rank.
    """
    sizes = np.asarray(request.size_bytes, dtype=np.float64)
    found = shapes(request.collective, system)
    if not found:
        return np.zeros_like(sizes)
    shape = found[0]
    latency = shape.inside_hops * INSIDE_SECONDS + shape.network_hops * NETWORK_SECONDS
    inside = system.intra_bytes_per_second * links_share(shape, system) or float("inf")
    network = float("inf")
    if system.network is not None:
        network = system.network.bytes_per_second * busy_nics(shape, system)
    return np.asarray(
        latency + sizes * max(shape.port_bytes / inside, shape.node_bytes / network)
    )
