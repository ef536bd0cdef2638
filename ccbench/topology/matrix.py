"""The words people know from ``nvidia-smi topo -m``, worked out from a graph that came without them.

NV# a bundle of # NVLinks, NVL one of an unknown number, C2C, XGMI, HCCS; PIX one PCIe switch, PXB several,
PHB through the host bridge of a processor, NODE through several host bridges of one processor, SYS between
processors, PXN over NVLink or the like to another GPU and its NIC, NET to another machine over a network.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, permutations

from ccbench.topology.classes import connected_groups, peers_of
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology

_DIRECT: Mapping[LinkKind, str] = {
    LinkKind.XGMI: "XGMI",
    LinkKind.HCCS: "HCCS",
    LinkKind.C2C: "C2C",
}
NO_PATH = "-"
"""Not there: in a graph that is all there is, nothing joins the two."""

NOT_VISIBLE = "?"
"""Not visible: there may be a path, but the source does not show it."""

DOWN = "down"
"""There, but only with links that are down."""

BY_A_PEER = "PXN"
"""GPU to NIC over NVLink or the like, through the GPU that the NIC hangs on; NCCL's name for it."""

UNCOUNTED = "NVL"
"""NVLinks whose number the source does not say; NCCL's name for such a path."""

_DAMAGE = frozenset({"truncated", "damaged_line", "not_visible", "missing_peer"})


def path_labels(
    topology: Topology, devices: Sequence[Device] | None = None
) -> dict[tuple[str, str], str]:
    """(name, name) -> label for every pair of ``devices``: the GPUs, then the NICs, unless others are given.

    What the topology's own matrix says stands; only the rest is worked out, and nothing where the source
    prints words for every pair (fact ``paths``). Paths between devices of one machine stay in it. Without a
    path: ``-``, ``?`` or ``down``, as named above.
    """
    chosen = (
        topology.gpus + topology.of_kind(DeviceKind.NIC) if devices is None else tuple(devices)
    )
    labels: dict[tuple[str, str], str] = {}
    paths = _Paths(topology)
    only_printed = topology.facts.get("paths") == "as printed" and bool(topology.matrix)
    for source in chosen:
        row_labels: dict[str, str] | None = None
        for target in chosen:
            pair = (source.name, target.name)
            printed = topology.matrix.get(pair) or topology.matrix.get(
                (target.name, source.name)
            )
            if source.name == target.name:
                labels[pair] = "X"
            elif printed:
                labels[pair] = printed
            elif only_printed and source.node == target.node:
                labels[pair] = NOT_VISIBLE
            else:
                # The search is made once a device, and not at all where the source prints every pair.
                row_labels = (
                    paths.labels_from(source.name) if row_labels is None else row_labels
                )
                label = paths.direct(*pair)
                if not label and not paths.is_any(LinkState.NOT_VISIBLE, *pair):
                    label = row_labels.get(target.name) or paths.by_a_peer(*pair)
                labels[pair] = label or paths.absent(*pair)
    return labels


def is_counted(link: Link) -> bool:
    """Return True if ``link.count`` is what the source says, and not 1 for lack of a number."""
    return link.attributes.get("count_known") is not False


class _Paths:
    """Paths of one graph, without NVLinks and the like: those are only looked at between neighbours."""

    def __init__(self, topology: Topology) -> None:
        self._devices = topology.by_name
        self._edges: dict[str, list[str]] = {name: [] for name in self._devices}
        self._nvlinks: Counter[tuple[str, str]] = Counter()
        self._named: dict[tuple[str, str], str] = {}
        self._instead: dict[str, str] = {}
        self._pairs: dict[LinkState, set[tuple[str, str]]] = {
            state: set() for state in LinkState
        }
        for link in topology.links:
            pair = (link.source, link.target)
            self._pairs[link.state].add(pair)
            if link.state is not LinkState.UP:
                continue
            if link.kind in _DIRECT:
                self._named[pair] = _DIRECT[link.kind]
            elif link.kind is not LinkKind.NVLINK:
                self._edges[link.source].append(link.target)
            else:
                self._nvlinks[pair] += link.count
                if link.attributes.get("list_cut") is True:
                    self._instead[link.source] = NOT_VISIBLE
                elif not is_counted(link):
                    self._instead.setdefault(link.source, UNCOUNTED)
        # Switches that are joined among themselves are one plane, as the two boards of a DGX-2 are.
        switches = [switch.name for switch in topology.of_kind(DeviceKind.NVSWITCH)]
        planes = enumerate(connected_groups(peers_of(switches, self._nvlinks)))
        plane = {switch: number for number, group in planes for switch in group}
        self._to_planes: dict[str, Counter[int]] = {name: Counter() for name in self._devices}
        for (source, target), count in self._nvlinks.items():
            if target in plane:
                self._to_planes[source][plane[target]] += count
        outside = [name for name in self._devices if not self._is_a(DeviceKind.GPU, name)]
        ways = [(name, end) for name, ends in self._edges.items() for end in ends]
        self._networks = list(map(frozenset, connected_groups(peers_of(outside, ways))))
        # Every machine has a host that joins its devices; only a plain graph, told by nobody, may have none.
        hosts = (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)
        self._has_host = (
            bool(topology.source)
            or any(device.kind in hosts for device in topology.devices)
            or topology.facts.get("omits", "nothing") != "nothing"
        )
        self._is_damaged = any(warning.kind in _DAMAGE for warning in topology.warnings)
        self._ends = {state: set(chain(*pairs)) for state, pairs in self._pairs.items()}
        # GPUs with NVLinks whose far ends the source does not say, or wrongly: each other, for all one knows.
        # Links to a GPU that the source names and leaves out do not count: their far end is known.
        adrift = [
            gpu.name for gpu in topology.gpus if gpu.attributes.get("nvlinks_up_unknown_end")
        ]
        if any(warning.kind == "self_link" for warning in topology.warnings):
            placed: Counter[str] = Counter()
            for state in LinkState:
                placed += topology.link_counts(LinkKind.NVLINK, state)
            stated = topology.stated_nvlinks or {}
            adrift += [gpu for gpu, count in stated.items() if (count or 0) > placed[gpu]]
        self._pairs[LinkState.NOT_VISIBLE] |= set(permutations(adrift, 2))

    def _is_a(self, kind: DeviceKind, name: str) -> bool:
        return self._devices[name].kind is kind

    def direct(self, source: str, target: str) -> str:
        """NV# and the like for two devices that are joined by such links, else nothing."""
        count, ends = self._nvlinks[source, target], [source]
        mine, yours = self._to_planes[source], self._to_planes[target]
        if not count and mine.keys() & yours.keys():
            count, ends = min(mine.total(), yours.total()), [source, target]
        if not count:
            return self._named.get((source, target), "")
        instead = {self._instead[end] for end in ends if end in self._instead}
        return min(instead, default=f"NV{count}")  # "?" comes before "NVL"

    def is_any(self, state: LinkState, source: str, target: str) -> bool:
        """Return True if a link between the two is of this state, one way or the other."""
        return not self._pairs[state].isdisjoint([(source, target), (target, source)])

    def by_a_peer(self, source: str, target: str) -> str:
        """PXN for a GPU and the NIC on a GPU that it is directly linked to, in one machine; else nothing."""
        ends = {self._devices[name].kind: name for name in (source, target)}
        if set(ends) != {DeviceKind.GPU, DeviceKind.NIC} or not self._is_inside(source, target):
            return ""
        peers = (
            end for end in self._edges[ends[DeviceKind.NIC]] if self._is_a(DeviceKind.GPU, end)
        )
        return (
            BY_A_PEER if any(self.direct(ends[DeviceKind.GPU], peer) for peer in peers) else ""
        )

    def absent(self, first: str, second: str) -> str:
        """Return the label of two devices without a path, which a source may have failed to show."""
        if self.is_any(LinkState.NOT_VISIBLE, first, second):
            return NOT_VISIBLE
        if self.is_any(LinkState.DOWN, first, second):
            return DOWN
        if self._is_damaged:
            return NOT_VISIBLE
        unlinked = {first, second} - self._ends[LinkState.UP]
        if unlinked & self._ends[LinkState.NOT_VISIBLE]:
            return NOT_VISIBLE
        if unlinked:  # such as a GPU whose links to the NVSwitches are all down
            return (
                DOWN
                if unlinked <= {source for source, _ in self._pairs[LinkState.DOWN]}
                else NOT_VISIBLE
            )
        return NOT_VISIBLE if self._has_host and self._is_inside(first, second) else NO_PATH

    def _is_inside(self, first: str, second: str) -> bool:
        return self._devices[first].node == self._devices[second].node

    def labels_from(self, start: str) -> dict[str, str]:
        """The label of the best path from ``start`` to every GPU and NIC it leads to."""
        ends = (DeviceKind.GPU, DeviceKind.NIC)
        # The fewest processors count, then the fewest switches; nothing passes through a GPU or a NIC.
        best: dict[str, tuple[int, int]] = {start: (0, 0)}
        waiting = [((0, 0), start)]
        while waiting:
            cost, name = heapq.heappop(waiting)
            if cost > best[name] or (name != start and self._devices[name].kind in ends):
                continue
            for target in self._edges[name]:
                kind = self._devices[target].kind
                further = (
                    cost[0] + (kind is DeviceKind.CPU),
                    cost[1] + (kind is DeviceKind.PCIE_SWITCH),
                )
                is_near = kind is not DeviceKind.NETWORK_SWITCH
                if is_near and (target not in best or further < best[target]):
                    best[target] = further
                    heapq.heappush(waiting, (further, target))
        near = {start, *self._edges[start]}
        reached = frozenset().union(*(group for group in self._networks if group & near))
        labels = {}
        for name, device in self._devices.items():
            if device.kind not in ends:
                continue
            if not self._is_inside(start, name):
                if not reached.isdisjoint([name, *self._edges[name]]):
                    labels[name] = "NET"
            elif name in best:
                processors, switches = best[name]
                bridges = {
                    self._devices[end].attributes.get("host_bridge") for end in (start, name)
                }
                if processors > 1:
                    labels[name] = "SYS"
                elif processors:
                    labels[name] = "NODE" if len(bridges) == 2 and all(bridges) else "PHB"
                else:
                    labels[name] = "PXB" if switches > 1 else "PIX"
        return labels
