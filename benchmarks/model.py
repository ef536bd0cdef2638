"""How long the model of collective libraries takes; by hand, never in CI.

    python benchmarks/model.py

Prices every collective, algorithm and protocol at 30 sizes on 8 to 131,072 GPUs (nodes of 8 H100, eight
400 Gb/s NICs each), and one sweep at 131,072 ranks by itself. Exit codes: 0 both within their targets, 1 not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

from ccbench.collectives import COLLECTIVES
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.clusters import library_system
from ccbench.model.library.costs import protocols
from ccbench.model.library.predictor import predict_library
from ccbench.model.library.shapes import shapes
from ccbench.topology.files import load_catalog
from ccbench.topology.node_nics import parse_network

SIZES = tuple(8 << power for power in range(30))
MOST_GPUS = 131_072
SWEEP_SECONDS = 0.5
PLANNING_SECONDS = 10.0


def systems() -> Iterator[LibrarySystem]:
    """One node, then powers of two of nodes."""
    machine, network = load_catalog("hgx-h100"), parse_network("ib-ndr-400x8")
    nodes = 1
    while nodes * len(machine.gpus) <= MOST_GPUS:
        yield library_system(machine, nodes, network if nodes > 1 else None)
        nodes *= 2


def requests(system: LibrarySystem) -> Iterator[LibraryRequest]:
    """The library's choice for every collective, and every algorithm with every protocol."""
    for name, row in COLLECTIVES.items():
        if not row.moves_data:
            continue
        yield LibraryRequest(name, SIZES)
        for shape in shapes(name, system):
            for protocol in protocols(shape, system):
                yield LibraryRequest(name, SIZES, algorithm=shape.algorithm, protocol=protocol)


def main() -> int:
    """Print both times; 1 where one misses its target."""
    begin = time.perf_counter()
    points = sum(
        len(predict_library(system, request))
        for system in systems()
        for request in requests(system)
    )
    planning = time.perf_counter() - begin
    largest = list(systems())[-1]
    begin = time.perf_counter()
    for request in requests(largest):
        predict_library(largest, request)
    sweep = time.perf_counter() - begin
    print(f"planning sweep: {points} points in {planning:.2f} s, target {PLANNING_SECONDS:g} s")
    print(f"everything on {largest.ranks} ranks: {sweep:.3f} s, target {SWEEP_SECONDS:g} s")
    return int(planning > PLANNING_SECONDS or sweep > SWEEP_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
