"""A topology as a capacitated graph, and cuts of it by maximum flow.

Capacities are exact: rates become whole numbers of one common unit. The solver knows 32-bit numbers only;
where the scaled numbers do not fit they are rounded for the search, while every cut that comes out is counted
again exactly, so that a bound is right in any case and at worst not the tightest.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import MachineError
from ccbench.topology.graph import DeviceKind, Link, Topology, may_carry

LARGEST_CAPACITY = 2**31 - 1
"""What scipy's maximum_flow can count to."""

Side = NDArray[np.bool_]
"""One truth per vertex: is it on the source's side?"""


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """Vertices are the devices of a topology, edges its links that carry data.

    compute: vertices of the ranks, in rank order.
    capacity: whole numbers of ``unit_bytes_per_second``, one per link.
    """

    names: tuple[str, ...]
    compute: tuple[int, ...]
    links: tuple[Link, ...]
    source: NDArray[np.int64]
    target: NDArray[np.int64]
    capacity: tuple[int, ...]
    unit_bytes_per_second: Fraction

    def reversed(self) -> FlowGraph:
        """Every link turned round: what is true of gathering here is true of scattering there."""
        return FlowGraph(
            self.names,
            self.compute,
            self.links,
            self.target,
            self.source,
            self.capacity,
            self.unit_bytes_per_second,
        )

    @cached_property
    def _sizes(self) -> NDArray[np.object_]:
        return np.array(self.capacity, dtype=object)

    def crossing(self, side: Side) -> NDArray[np.int64]:
        """Indices of the links that lead out of ``side``."""
        return np.flatnonzero(side[self.source] & ~side[self.target])

    def capacity_out(self, side: Side) -> int:
        """Capacity of all links out of ``side``, exact."""
        return int(self._sizes[self.crossing(side)].sum())

    def ranks_in(self, side: Side) -> int:
        """How many ranks ``side`` holds."""
        return int(side[list(self.compute)].sum())

    def side_of(self, vertices: Iterable[int]) -> Side:
        """The side that holds exactly ``vertices``."""
        side = np.zeros(len(self.names), dtype=np.bool_)
        side[list(vertices)] = True
        return side

    @cached_property
    def _network(self) -> _Network:
        return _Network(self)

    def cut_below(
        self, needed: Fraction, supply: Sequence[Fraction | None], sink: int
    ) -> tuple[Side | None, bool]:
        """A cut that keeps ``needed`` units from reaching ``sink``, and whether the search was exact.

        supply: units that each rank can offer; None for as many as wanted. The cut is the source's side of a
        minimum cut, None where ``needed`` can flow.
        """
        return self._network.cut_below(needed, supply, sink)


class _Network:
    """The arrays that scipy wants, laid out once: links, then a source, then a sink."""

    def __init__(self, graph: FlowGraph) -> None:
        from scipy.sparse import csr_array

        self.graph = graph
        vertices, ranks = len(graph.names), len(graph.compute)
        self.start, self.end = vertices, vertices + 1
        # Links between the same two vertices are one edge here.
        keys, self.edge_of_link = np.unique(graph.source * vertices + graph.target, return_inverse=True)
        edges: list[int] = [0] * len(keys)
        for edge, capacity in zip(self.edge_of_link.tolist(), graph.capacity, strict=True):
            edges[edge] += capacity
        self.edges = edges
        compute = np.array(graph.compute, dtype=np.int64)
        rows = np.concatenate([keys // vertices, np.full(ranks, self.start), compute])
        columns = np.concatenate([keys % vertices, compute, np.full(ranks, self.end)])
        order = np.lexsort((columns, rows))
        self.place = np.empty(len(order), dtype=np.int64)
        self.place[order] = np.arange(len(order))
        shape = (vertices + 2, vertices + 2)
        ones = np.ones(len(order), dtype=np.int32)
        self.matrix = csr_array((ones, (rows[order], columns[order])), shape=shape)
        self.matrix.sort_indices()
        self.scaled: tuple[Any, NDArray[np.int32]] | None = None

    def _links_scaled(self, scale: Fraction, most: int) -> NDArray[np.int32]:
        """Link capacities times ``scale``; nothing above ``most`` can matter."""
        if self.scaled is None or self.scaled[0] != (scale, most):
            values = [min(most, round(capacity * scale)) for capacity in self.edges]
            self.scaled = ((scale, most), np.array(values, dtype=np.int32))
        return self.scaled[1]

    def cut_below(
        self, needed: Fraction, supply: Sequence[Fraction | None], sink: int
    ) -> tuple[Side | None, bool]:
        from scipy.sparse.csgraph import breadth_first_order, maximum_flow

        if needed <= 0:
            return None, True
        denominator = math.lcm(needed.denominator, *{part.denominator for part in supply if part is not None})
        exact = needed * denominator <= LARGEST_CAPACITY
        scale = Fraction(denominator) if exact else LARGEST_CAPACITY / needed / 2
        most = round(needed * scale)
        data = np.zeros(len(self.place), dtype=np.int32)
        edges, ranks = len(self.edges), len(supply)
        data[self.place[:edges]] = self._links_scaled(scale, most)
        offers = {part: most if part is None else min(most, round(part * scale)) for part in set(supply)}
        data[self.place[edges : edges + ranks]] = [offers[part] for part in supply]
        data[self.place[edges + ranks + self.graph.compute.index(sink)]] = most
        self.matrix.data = data
        result = maximum_flow(self.matrix, self.start, self.end)
        if result.flow_value >= most:
            return None, exact
        residual: Any = self.matrix - result.flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        reached = breadth_first_order(residual, self.start, return_predecessors=False)
        side = np.zeros(len(self.graph.names) + 2, dtype=np.bool_)
        side[reached] = True
        return side[:-2], exact


def flow_graph(topology: Topology, participants: Sequence[str] | None = None) -> FlowGraph:
    """The graph of ``topology`` whose ranks are ``participants`` (all GPUs when None).

    GPUs that take no part are left out with their links: nothing is relayed through them. Links that are
    down carry nothing; those that nobody could see may, so they count: a limit must hold. Raises
    MachineError for fewer than two ranks, an unknown participant, and a link without a rate, for a bound
    that leaves it out would be wrong.
    """
    ranks = [device.name for device in topology.gpus] if participants is None else list(participants)
    gpus = {device.name for device in topology.gpus}
    for name in ranks:
        if name not in gpus:
            raise MachineError(f"{topology.name}: {name!r} is not a GPU of it; name GPUs such as gpu0")
    if len(set(ranks)) != len(ranks) or len(ranks) < 2:
        raise MachineError(f"{topology.name}: {len(ranks)} participants; give at least two, each once")
    idle = gpus - set(ranks)
    names = tuple(device.name for device in topology.devices if device.name not in idle)
    index = {name: position for position, name in enumerate(names)}
    links = tuple(
        link
        for link in topology.links
        if may_carry(link) and link.source in index and link.target in index and link.source != link.target
    )
    capacity, unit = _whole(topology.name, links)
    return FlowGraph(
        names,
        tuple(index[name] for name in ranks),
        links,
        np.array([index[link.source] for link in links], dtype=np.int64),
        np.array([index[link.target] for link in links], dtype=np.int64),
        capacity,
        unit,
    )


def _whole(name: str, links: Sequence[Link]) -> tuple[tuple[int, ...], Fraction]:
    for link in links:
        if link.bytes_per_second is None:
            raise MachineError(
                f"{name}: the link {link.source} -> {link.target} has no rate; give its bytes_per_second"
            )
    rates = {link.bytes_per_second: Fraction(link.bytes_per_second or 0) for link in links}
    denominator = math.lcm(1, *(rate.denominator for rate in rates.values()))
    divisor = math.gcd(*(int(rate * denominator) for rate in rates.values())) or 1
    unit = Fraction(divisor, denominator)
    whole = {rate: int(exact / unit) for rate, exact in rates.items()}
    return tuple(whole[link.bytes_per_second] for link in links), unit


def groups_by_node(topology: Topology, graph: FlowGraph) -> list[list[int]]:
    """Vertices of each machine: its ranks and all that is in the same box."""
    nodes: dict[int, list[int]] = {}
    index = {name: position for position, name in enumerate(graph.names)}
    for device in topology.devices:
        if device.name in index and device.node >= 0 and device.kind is not DeviceKind.NETWORK_SWITCH:
            nodes.setdefault(device.node, []).append(index[device.name])
    return list(nodes.values())
