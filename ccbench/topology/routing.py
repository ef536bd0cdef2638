"""Links that a message takes: routes by search for any topology, and what all routers share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ccbench.errors import MachineError
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology, carries

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_VERTICES = 4096
"""Above this, a table of all routes no longer fits comfortably; fabrics have closed forms instead."""

MOST_ENTRIES = 200_000_000
"""Link ids that one answer of ``route`` may hold (1.6 GB)."""


def checked_flows(source: ArrayLike, target: ArrayLike, ranks: int) -> tuple[Ints, Ints]:
    """Both as equally long arrays of ranks. Raises MachineError."""
    sources, targets = np.asarray(source, dtype=np.int64), np.asarray(target, dtype=np.int64)
    sources, targets = (array.ravel() for array in np.broadcast_arrays(sources, targets))
    for array in (sources, targets):
        if len(array) and (int(array.min()) < 0 or int(array.max()) >= ranks):
            raise MachineError(
                f"route: rank {int(array.min())} or {int(array.max())} is not in 0 to {ranks - 1}"
            )
    return sources, targets


def left_aligned(ids: Ints) -> Ints:
    """Each row's links moved to its front, their order kept, columns that no row needs cut off."""
    if not ids.size:
        return ids
    order = np.argsort(ids < 0, axis=1, kind="stable")
    aligned: Ints = np.take_along_axis(ids, order, axis=1)
    return aligned[:, : int((ids >= 0).sum(axis=1).max(initial=0))]


@dataclass(frozen=True, eq=False)
class PathTable:
    """Cheapest paths from some vertices to all: for each the link by which a vertex is reached.

    row: which row of ``arriving_link`` belongs to a start vertex; -1 for vertices that are no start.
    """

    row: Ints
    arriving_link: Ints
    link_source: Ints

    def paths(self, source: Ints, target: Ints) -> Ints:
        """Rows of link ids, -1 padded. Raises MachineError where there is no path."""
        rows, here = self.row[source], target.copy()
        backwards: list[Ints] = []
        while bool((here != source).any()):
            moving = here != source
            link = np.where(moving, self.arriving_link[rows, here], -1)
            if bool((moving & (link < 0)).any()):
                lost = int(np.flatnonzero(moving & (link < 0))[0])
                raise MachineError(
                    f"route: no link leads from vertex {int(source[lost])} to {int(target[lost])}; "
                    "give the links that join them"
                )
            backwards.append(link)
            here = np.where(moving, self.link_source[link], here)
        if not backwards:
            return np.full((len(source), 0), -1, dtype=np.int64)
        return left_aligned(np.stack(backwards[::-1], axis=1))


def cheapest_paths(
    link_source: Ints, link_target: Ints, cost: Floats, vertices: int, starts: Sequence[int]
) -> PathTable:
    """Paths of least total cost (Dijkstra). Of links between the same two vertices the cheapest counts."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import dijkstra

    order = np.lexsort((cost, link_source * vertices + link_target))
    keys = (link_source * vertices + link_target)[order]
    first = np.ones(len(keys), dtype=np.bool_)
    first[1:] = keys[1:] != keys[:-1]
    chosen = order[first]
    ends = (link_source[chosen], link_target[chosen])
    costs = csr_array((cost[chosen], ends), shape=(vertices, vertices))
    _, before = dijkstra(costs, indices=list(starts), return_predecessors=True)
    # Keys are sorted, so the link between a vertex and the one before it is found by bisection.
    wanted = before.astype(np.int64) * vertices + np.arange(vertices)
    at = np.minimum(np.searchsorted(keys[first], wanted), len(chosen) - 1)
    arriving = np.where(before >= 0, chosen[at], -1) if len(chosen) else np.full(wanted.shape, -1)
    row = np.full(vertices, -1, dtype=np.int64)
    row[list(starts)] = np.arange(len(starts))
    return PathTable(row, arriving, link_source)


def striped(topology: Topology) -> Topology:
    """NVSwitches that join the same GPUs become one, links of a kind between the same ends too.

    For hardware spreads each message over all of them.
    """
    gpus = {device.name for device in topology.gpus}
    joined: dict[str, set[str]] = {device.name: set() for device in topology.of_kind(DeviceKind.NVSWITCH)}
    for link in topology.links:
        if link.target in joined and link.source in gpus:
            joined[link.target].add(link.source)
    node = {device.name: device.node for device in topology.devices}
    first: dict[tuple[int, frozenset[str]], str] = {}
    stands_for = {
        name: first.setdefault((node[name], frozenset(members)), name) for name, members in joined.items()
    }
    links: dict[tuple[str, str, LinkKind, LinkState], Link] = {}
    for link in topology.links:
        source, target = (stands_for.get(end, end) for end in (link.source, link.target))
        if source != target:
            key = (source, target, link.kind, link.state)
            moved = replace(link, source=source, target=target)
            same = links.get(key)
            if same is not None:
                rates = (same.bytes_per_second, moved.bytes_per_second)
                latencies = (same.latency_seconds, moved.latency_seconds)
                moved = replace(
                    same,
                    bytes_per_second=None if rates[0] is None or rates[1] is None else rates[0] + rates[1],
                    latency_seconds=max((one for one in latencies if one is not None), default=None),
                    count=same.count + moved.count,
                )
            links[key] = moved
    kept: tuple[Device, ...] = tuple(
        device for device in topology.devices if stands_for.get(device.name, device.name) == device.name
    )
    return replace(topology, devices=kept, links=tuple(links.values()))


@dataclass(frozen=True, eq=False)
class SearchedRoutes:
    """Routes on a topology, found once and kept; see ``routes_by_search``.

    topology: the one searched, its NVSwitches striped; ``links`` are those that carry data, in id order.
    """

    topology: Topology
    links: tuple[Link, ...]
    ranks: int
    link_bytes_per_second: Floats
    link_latency_seconds: Floats
    table: PathTable
    vertex_of_rank: Ints

    def route(self, source: ArrayLike, target: ArrayLike) -> Ints:
        """One row of link ids per flow. Raises MachineError for unknown ranks and where no path is."""
        sources, targets = checked_flows(source, target, self.ranks)
        return self.table.paths(self.vertex_of_rank[sources], self.vertex_of_rank[targets])

    def link_name(self, link: int) -> str:
        """``gpu0 -> nvswitch0``."""
        return f"{self.links[link].source} -> {self.links[link].target}"


def routes_by_search(
    topology: Topology, by_latency: bool = False, ends: Sequence[str] | None = None
) -> SearchedRoutes:
    """Shortest routes between all GPUs (or ``ends``) of ``topology``.

    Fewest hops, and among equals the fastest links; ``by_latency`` takes the least sum of latencies
    instead. Only links that carry data are used; of these, one without a rate is refused.
    Raises MachineError.
    """
    merged = striped(topology)
    if len(merged.devices) > MOST_VERTICES:
        raise MachineError(
            f"{topology.name}: {len(merged.devices)} devices; at most {MOST_VERTICES} are searched, "
            "so describe it as a fabric"
        )
    index = {device.name: position for position, device in enumerate(merged.devices)}
    links = tuple(link for link in merged.links if carries(link))
    for link in links:
        if not link.bytes_per_second:
            raise MachineError(
                f"{topology.name}: the link {link.source} -> {link.target} has no rate; "
                "give its bytes_per_second"
            )
    rate = np.array([link.bytes_per_second for link in links], dtype=np.float64)
    latency = np.array([link.latency_seconds or 0.0 for link in links], dtype=np.float64)
    slowness = rate.min(initial=np.inf) / rate
    # Slowness is at most 1 per hop, so that it decides only between routes of equal hops or latency.
    cost = latency + 1e-15 * (1 + slowness) if by_latency else 1.0 + 1e-5 * slowness
    source = np.array([index[link.source] for link in links], dtype=np.int64)
    target = np.array([index[link.target] for link in links], dtype=np.int64)
    names = [device.name for device in merged.gpus] if ends is None else list(ends)
    starts = [index[name] for name in names]
    table = cheapest_paths(source, target, cost, len(merged.devices), starts)
    return SearchedRoutes(merged, links, len(starts), rate, latency, table, np.array(starts, dtype=np.int64))
