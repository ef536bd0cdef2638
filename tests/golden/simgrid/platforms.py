"""The cases of figures.json, and the ccbench fabric that each describes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ccbench.topology.fabrics import Fabric, Wire, hypercube, single_switch, torus
from ccbench.topology.networks import dragonfly, dragonfly_plus, fat_tree

WRITTEN_OUT: dict[str, Callable[..., Fabric]] = {
    "dragonfly": dragonfly,
    "dragonfly_plus": dragonfly_plus,
    "hypercube": hypercube,
}
"""Fabrics whose routes SimGrid is given."""


@dataclass(frozen=True)
class Figure:
    """One case; ``platform`` says family and shape."""

    platform: dict[str, Any]
    collective: str
    algorithm: str
    size_bytes: int
    bytes_per_second: float = 1e9
    latency_seconds: float = 1e-6
    seconds: float = math.nan

    @property
    def hosts(self) -> int:
        """How many hosts there are, one rank each."""
        return fabric_of(self).ranks


def fabric_of(figure: Figure) -> Fabric:
    """The same network as a ccbench fabric."""
    wire = Wire(figure.bytes_per_second, figure.latency_seconds)
    platform = figure.platform
    if platform["family"] == "star":
        return single_switch(platform["hosts"], wire)
    if platform["family"] == "torus":
        return torus(platform["sizes"], wire)
    if platform.get("latency") == "ends":
        inner = Wire(figure.bytes_per_second, 0.0)
        return WRITTEN_OUT[platform["fabric"]](*platform["arguments"], wire, inner, inner)
    if platform["family"] == "routes":
        return WRITTEN_OUT[platform["fabric"]](*platform["arguments"], wire)
    children, parents = platform["children"], platform["parents"]
    # All links have one rate: what can leave a switch upwards is as many links as it has. Each level of the
    # platforms has the same share of its children's.
    (over,) = {children[level - 1] / parents[level] for level in range(1, len(children))}
    return fat_tree(children, wire, over)


def rank_order(figure: Figure) -> list[int]:
    """The host of each MPI rank.

    SMPI's Rabenseifner exchanges halves with the nearest partner first, ccbench's with the farthest: with the
    bits of the ranks reversed the one does what the other does.
    """
    hosts = figure.hosts
    if (figure.collective, figure.algorithm) != ("all_reduce", "halving_doubling"):
        return list(range(hosts))
    bits = hosts.bit_length() - 1
    return [int(format(rank, f"0{bits}b")[::-1], 2) for rank in range(hosts)]
