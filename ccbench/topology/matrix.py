"""The words people know from ``nvidia-smi topo -m``, worked out from a graph that came without them.

NV# a bundle of # NVLinks, NVL one of an unknown number, C2C, XGMI, HCCS; PIX one PCIe switch, PXB several,
PHB through the host bridge of a processor, NODE through several host bridges of one processor, SYS between
processors, PXN over NVLink or the like to another GPU and its NIC, NET to another machine over a network.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from ccbench.topology.classes import connected_groups
from ccbench.topology.graph import Device, DeviceKind, Link, LinkKind, LinkState, Topology

_DIRECT: Mapping[LinkKind, str] = {
    LinkKind.XGMI: "XGMI",
    LinkKind.HCCS: "HCCS",
    LinkKind.C2C: "C2C",
}
# A path is chosen by what it passes, worst first: network, other processors, processors, switches.
_Cost = tuple[int, int, int, int]
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
                if not label and not paths.is_unseen(*pair):
                    label = row_labels.get(target.name) or paths.by_a_peer(*pair)
                labels[pair] = label or paths.absent(*pair)
    return labels


def is_counted(link: Link) -> bool:
    """Return True if ``link.count`` is what the source says, and not 1 for lack of a number."""
    return link.attributes.get("count_known") is not False


def _adrift(topology: Topology) -> set[str]:
    """GPUs with NVLinks whose far ends the source does not say, or wrongly: each other, for all one knows.

    Links to a GPU that the source names and leaves out do not count: their far end is known.
    """
    adrift = {gpu.name for gpu in topology.gpus if gpu.attributes.get("nvlinks_up_unknown_end")}
    stated = topology.facts.get("nvlinks_per_gpu")
    wrong = any(warning.kind == "self_link" for warning in topology.warnings)
    if wrong and isinstance(stated, list) and len(stated) == len(topology.gpus):
        placed: Counter[str] = Counter()
        for link in topology.links:
            placed[link.source] += link.count if link.kind is LinkKind.NVLINK else 0
        numbers = zip(topology.gpus, stated, strict=True)
        adrift |= {
            gpu.name
            for gpu, count in numbers
            if isinstance(count, int) and count > placed[gpu.name]
        }
    return adrift


class _Paths:
    """Paths of one graph, without NVLinks and the like: those are only looked at between neighbours."""

    def __init__(self, topology: Topology) -> None:
        self._devices = {device.name: device for device in topology.devices}
        self._edges: dict[str, list[str]] = {}
        self._nvlinks: Counter[tuple[str, str]] = Counter()
        self._to_switches: dict[str, Counter[str]] = {}
        self._named: dict[tuple[str, str], str] = {}
        self._uncounted: set[str] = set()
        self._cut: set[str] = set()
        self._is_damaged = any(warning.kind in _DAMAGE for warning in topology.warnings)
        # Every machine has a host that joins its devices; only a plain graph, told by nobody, may have none.
        self._has_host = bool(topology.source) or any(
            device.kind in (DeviceKind.CPU, DeviceKind.PCIE_SWITCH)
            for device in topology.devices
        )
        self._has_host |= topology.facts.get("omits", "nothing") != "nothing"
        self._linked: set[str] = set()
        self._down: set[tuple[str, str]] = set()
        self._unseen: set[tuple[str, str]] = set()
        self._adrift = _adrift(topology)
        joined: dict[str, set[str]] = {
            device.name: set() for device in topology.of_kind(DeviceKind.NVSWITCH)
        }
        for link in topology.links:
            if link.state is LinkState.DOWN:
                self._down.add((link.source, link.target))
            elif link.state is LinkState.NOT_VISIBLE:
                self._unseen.add((link.source, link.target))
            else:
                self._linked |= {link.source, link.target}
                if link.source in self._devices and link.target in self._devices:
                    source, target = self._devices[link.source], self._devices[link.target]
                    if link.kind is LinkKind.NVLINK:
                        if link.attributes.get("list_cut") is True:
                            self._cut.add(link.source)
                        if not is_counted(link):
                            self._uncounted.add(link.source)
                        if (
                            source.kind is DeviceKind.NVSWITCH
                            and target.kind is DeviceKind.NVSWITCH
                        ):
                            joined[link.source].add(link.target)
                        elif target.kind is DeviceKind.NVSWITCH:
                            self._to_switches.setdefault(link.source, Counter())[
                                link.target
                            ] += link.count
                        else:
                            self._nvlinks[(link.source, link.target)] += link.count
                    elif link.kind in _DIRECT:
                        self._named[(link.source, link.target)] = _DIRECT[link.kind]
                    else:
                        self._edges.setdefault(link.source, []).append(link.target)
        # Switches that are joined among themselves are one plane, as the two boards of a DGX-2 are.
        planes = enumerate(connected_groups(joined))
        self._plane = {switch: number for number, group in planes for switch in group}

    def direct(self, source: str, target: str) -> str:
        """NV# and the like for two devices that are joined by such links, else nothing."""
        count, ends = self._nvlinks[(source, target)], {source}
        if not count:
            mine, yours = self._to_switches.get(source), self._to_switches.get(target)
            if (
                mine
                and yours
                and {self._plane[switch] for switch in mine}
                & {self._plane[your] for your in yours}
            ):
                count, ends = min(sum(mine.values()), sum(yours.values())), {source, target}
        if count and ends & self._cut:
            return NOT_VISIBLE
        if count and ends & self._uncounted:
            return UNCOUNTED
        return f"NV{count}" if count else self._named.get((source, target), "")

    def is_unseen(self, source: str, target: str) -> bool:
        """Return True if there is, or may be, a link of which nobody could see if it is up."""
        seen_whole = not {source, target} <= self._adrift
        return (
            not seen_whole
            or (source, target) in self._unseen
            or (target, source) in self._unseen
        )

    def by_a_peer(self, source: str, target: str) -> str:
        """PXN for a GPU and the NIC on a GPU that it is directly linked to, in one machine; else nothing."""
        ends = {self._devices[name].kind: name for name in (source, target)}
        if set(ends) != {DeviceKind.GPU, DeviceKind.NIC} or not self._is_inside(source, target):
            return ""
        gpu, nic = ends[DeviceKind.GPU], ends[DeviceKind.NIC]
        peers = (
            name
            for name in self._edges.get(nic, ())
            if self._devices[name].kind is DeviceKind.GPU
        )
        return BY_A_PEER if any(self.direct(gpu, peer) for peer in peers) else ""

    def absent(self, first: str, second: str) -> str:
        """Return the label of two devices without a path, which a source may have failed to show."""
        if self.is_unseen(first, second):
            return NOT_VISIBLE
        if (first, second) in self._down or (second, first) in self._down:
            return DOWN
        if self._is_damaged:
            return NOT_VISIBLE
        unlinked = {first, second} - self._linked
        if unlinked & {end for pair in self._unseen for end in pair}:
            return NOT_VISIBLE
        if unlinked:  # such as a GPU whose links to the NVSwitches are all down
            return DOWN if unlinked <= {source for source, _ in self._down} else NOT_VISIBLE
        return NOT_VISIBLE if self._has_host and self._is_inside(first, second) else NO_PATH

    def _is_inside(self, first: str, second: str) -> bool:
        return self._devices[first].node == self._devices[second].node

    def labels_from(self, start: str) -> dict[str, str]:
        """The label of the best path from ``start`` to every GPU and NIC it leads to."""
        best: dict[str, _Cost] = {start: (0, 0, 0, 0)}
        through: dict[str, tuple[str, ...]] = {start: (start,)}
        waiting: list[tuple[_Cost, str]] = [((0, 0, 0, 0), start)]
        labels = {}
        while waiting:
            cost, name = heapq.heappop(waiting)
            if cost > best[name]:
                continue
            device = self._devices[name]
            if name != start and device.kind in (DeviceKind.GPU, DeviceKind.NIC):
                devices = [self._devices[passed] for passed in through[name]]
                kinds = Counter(passed.kind for passed in devices[1:-1])
                if devices[0].node != devices[-1].node:
                    labels[name] = "NET"
                elif kinds[DeviceKind.CPU] > 1 and not kinds[DeviceKind.NETWORK_SWITCH]:
                    labels[name] = "SYS"
                elif kinds[DeviceKind.CPU] == 1 and not kinds[DeviceKind.NETWORK_SWITCH]:
                    bridges = {
                        str(devices[end].attributes.get("host_bridge") or "") for end in (0, -1)
                    }
                    labels[name] = "NODE" if len(bridges) == 2 and "" not in bridges else "PHB"
                elif not kinds[
                    DeviceKind.NETWORK_SWITCH
                ]:  # else the path leaves the machine it ends in
                    labels[name] = "PXB" if kinds[DeviceKind.PCIE_SWITCH] > 1 else "PIX"
            if name != start and device.kind is DeviceKind.GPU:
                continue  # nothing passes through a GPU
            for target in self._edges.get(name, ()):
                kind = self._devices[target].kind
                if device.kind is DeviceKind.NIC and name != start:
                    # A path that has come to a NIC does not leave it again on the side it came from.
                    outside = {DeviceKind.NETWORK_SWITCH, DeviceKind.NIC}
                    if (
                        self._devices[through[name][-2]].kind not in outside
                        and kind not in outside
                    ):
                        continue
                network, processors, switches, hops = cost
                further = (
                    network + (kind is DeviceKind.NETWORK_SWITCH),
                    processors + (kind is DeviceKind.CPU),
                    switches + (kind is DeviceKind.PCIE_SWITCH),
                    hops + 1,
                )
                if target not in best or further < best[target]:
                    best[target], through[target] = further, (*through[name], target)
                    heapq.heappush(waiting, (further, target))
        return labels
