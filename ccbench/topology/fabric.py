"""A fabric: numbered vertices and links as arrays, and a closed form that routes between ranks.

A hundred thousand ranks are no burden: nothing here holds one Python object per rank or link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, Link, LinkKind, Topology
from ccbench.topology.routing import MOST_VERTICES, Floats, Ints, checked_flows, left_aligned

MOST_LINKS = 20_000_000
"""Links that a fabric may have; as arrays they take about 800 MB."""

LINK_KINDS = tuple(LinkKind)
"""A link's kind is kept as its place in this tuple."""


@dataclass(frozen=True)
class Wire:
    """The numbers of one link in one direction; ``count`` physical links of together this rate."""

    bytes_per_second: float
    latency_seconds: float = 0.0
    kind: LinkKind = LinkKind.INFINIBAND
    count: int = 1
    origin: str = ""

    def __post_init__(self) -> None:
        if not (0 < self.bytes_per_second < float("inf")):
            raise MachineError(f"bytes_per_second: {self.bytes_per_second} is not a positive number")
        if not (0 <= self.latency_seconds < float("inf")) or self.count < 1:
            raise MachineError(
                f"latency_seconds: {self.latency_seconds} with {self.count} links; write zero or more "
                "seconds and at least one link"
            )

    def faster(self, factor: float) -> Wire:
        """The same with ``factor`` times the rate."""
        return Wire(self.bytes_per_second * factor, self.latency_seconds, self.kind, self.count, self.origin)


@dataclass(frozen=True)
class LevelCut:
    """A cut that a fabric has by construction: a set of ``ranks`` ranks and what can enter or leave it.

    groups: how many such sets make up the whole fabric, 0 where they do not.
    consecutive: the sets are runs of consecutive ranks.
    """

    name: str
    ranks: int
    bytes_per_second: float
    groups: int
    consecutive: bool = True


@dataclass(frozen=True, eq=False)
class Fabric:
    """``Routes`` in closed form. Vertices 0 to ranks - 1 are the ranks, the rest are switches.

    router: rows of link ids for sources and targets that differ, -1 anywhere for "no link".
    device: what stands at a vertex. levels: cuts for bounds in closed form.
    """

    name: str
    ranks: int
    vertices: int
    link_source: Ints
    link_target: Ints
    link_bytes_per_second: Floats
    link_latency_seconds: Floats
    link_kind_codes: NDArray[np.int8]
    link_counts: NDArray[np.int32]
    router: Callable[[Ints, Ints], Ints]
    device: Callable[[int], Device]
    levels: tuple[LevelCut, ...] = ()

    @property
    def links(self) -> int:
        """How many links there are, each direction counted."""
        return len(self.link_source)

    def route(self, source: ArrayLike, target: ArrayLike) -> Ints:
        """One row of link ids per flow, in travel order, -1 padded. Raises MachineError for unknown ranks."""
        sources, targets = checked_flows(source, target, self.ranks)
        if not len(sources):
            return np.full((0, 0), -1, dtype=np.int64)
        ids = self.router(sources, targets)
        ids[sources == targets] = -1
        return left_aligned(ids)

    def link_kind(self, link: int) -> LinkKind:
        """What the link is made of."""
        return LINK_KINDS[int(self.link_kind_codes[link])]

    def link_name(self, link: int) -> str:
        """``gpu3 -> switch0``."""
        ends = self.link_source[link], self.link_target[link]
        return " -> ".join(self.device(int(end)).name for end in ends)

    def topology(self) -> Topology:
        """The same as a graph of devices. Raises MachineError above 4,096 vertices."""
        if self.vertices > MOST_VERTICES:
            raise MachineError(
                f"{self.name}: {self.vertices} vertices; at most {MOST_VERTICES} become a graph, "
                "so use the fabric's own routes"
            )
        devices = tuple(self.device(vertex) for vertex in range(self.vertices))
        links = tuple(
            Link(devices[source].name, devices[target].name, LINK_KINDS[kind], rate, latency, count)
            for source, target, kind, rate, latency, count in zip(
                self.link_source.tolist(),
                self.link_target.tolist(),
                self.link_kind_codes.tolist(),
                self.link_bytes_per_second.tolist(),
                self.link_latency_seconds.tolist(),
                self.link_counts.tolist(),
                strict=True,
            )
        )
        return Topology(self.name, devices, links)


@dataclass(frozen=True, eq=False)
class Bundle:
    """Links of one kind: from ``source[i]`` to ``target[i]``, ids in this order."""

    source: Ints
    target: Ints
    wire: Wire


def check_size(name: str, links: int) -> None:
    """MachineError where a fabric would have too many links; before its arrays are made."""
    if links > MOST_LINKS:
        raise MachineError(f"{name}: {links} links; at most {MOST_LINKS}, so describe fewer ranks")


def wired(
    name: str,
    ranks: int,
    vertices: int,
    bundles: Iterable[Bundle],
    router: Callable[[Ints, Ints], Ints],
    device: Callable[[int], Device],
    levels: tuple[LevelCut, ...],
) -> Fabric:
    """A fabric whose link ids count through ``bundles`` one after the other."""
    listed = list(bundles)
    sizes = [len(bundle.source) for bundle in listed]

    def repeated(value: Callable[[Wire], float], dtype: type) -> NDArray[np.generic]:
        return np.repeat(np.array([value(bundle.wire) for bundle in listed], dtype=dtype), sizes)

    return Fabric(
        name,
        ranks,
        vertices,
        np.concatenate([bundle.source for bundle in listed]),
        np.concatenate([bundle.target for bundle in listed]),
        np.asarray(repeated(lambda wire: wire.bytes_per_second, np.float64), dtype=np.float64),
        np.asarray(repeated(lambda wire: wire.latency_seconds, np.float64), dtype=np.float64),
        np.asarray(repeated(lambda wire: LINK_KINDS.index(wire.kind), np.int8), dtype=np.int8),
        np.asarray(repeated(lambda wire: wire.count, np.int32), dtype=np.int32),
        router,
        device,
        levels,
    )
