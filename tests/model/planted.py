"""Machines whose constants are known because they were planted, and what such a machine would measure."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from ccbench.model.calibrated import (
    Base,
    CalibratedCluster,
    Provenance,
    calibrate_cluster,
    open_base,
)
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.constants import scaled, shipped
from ccbench.model.library.predictor import seconds_of

SIZES = tuple(1 << power for power in range(3, 33))

SCALES = {
    "overhead": 1.1,
    "latency": 1.2,
    "latency of Simple": 0.8,
    "fill": 1.2,
    "rate of LL": 0.9,
    "rate inside": 0.95,
    "rate of switches": 0.95,
    "rate across": 0.9,
}
"""By level of the library's model."""

PROVENANCE = Provenance("tested", "a-run", "NCCL 2.20.5", "2026-01-01T00:00:00+00:00")

Measured = list[tuple[LibraryRequest, Sequence[float]]]


def measured(
    system: LibrarySystem,
    scales: Mapping[str, float],
    collectives: Sequence[str] = ("all_reduce", "all_gather"),
    sizes: Sequence[int] = SIZES,
    noise: float = 0.0,
) -> Measured:
    """Times of the model with these scales, times lognormal noise of that spread."""
    table = scaled(shipped().table, scales)
    random = np.random.default_rng(7)
    found: Measured = []
    for collective in collectives:
        request = LibraryRequest(collective, tuple(sizes))
        seconds = seconds_of(system, request, table) * np.exp(
            random.normal(0, noise, len(sizes))
        )
        found.append((request, tuple(seconds.tolist())))
    return found


@functools.lru_cache(maxsize=8)
def base(machine: str = "dgx-a100", nodes: int = 4, network: str = "ib-hdr-200x8") -> Base:
    return open_base(machine, nodes, network if nodes > 1 else None)


@functools.lru_cache(maxsize=8)
def calibrated(
    machine: str = "dgx-a100",
    nodes: int = 4,
    noise: float = 0.0,
    collectives: tuple[str, ...] = ("all_reduce", "all_gather"),
    sweeps: int = 1,
) -> CalibratedCluster:
    """A calibration of a machine with SCALES, on all SIZES, measured so many times."""
    on = base(machine, nodes)
    times = measured(on.cluster.system, SCALES, collectives, noise=noise)
    return calibrate_cluster(on, times * sweeps, PROVENANCE)
