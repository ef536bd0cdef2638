"""Where groups of ranks stand: how many of one group share a node, over how many nodes, beside which others.

Of groups that are alike only that matters to a price, so 131,072 ranks are no more than a few numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.errors import UsageError
from ccbench.groups import DENSE_AXES, Groups, Layout

GpuSet = tuple[int, ...]
"""Numbers of GPUs within their node."""


@dataclass(frozen=True)
class GroupPlacement:
    """Groups that are all alike: each has ``ranks_per_node`` ranks on each of ``nodes`` nodes.

    ranks: of one group. groups_per_node: that stand on one node together when all of them run.
    node_stride: nodes from one node of a group to its next one; 0 where there is one. It is told, not priced:
        the network is taken not to block.
    gpu_sets: which GPUs of its node each of those groups has; () for runs of neighbours from GPU 0 on.
    Raises UsageError where the numbers contradict each other.
    """

    ranks: int
    ranks_per_node: int
    nodes: int
    groups_per_node: int = 1
    node_stride: int = 1
    gpu_sets: tuple[GpuSet, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.ranks, self.ranks_per_node, self.nodes, self.groups_per_node)
        if min(numbers) < 1 or self.ranks != self.ranks_per_node * self.nodes:
            raise UsageError(
                f"placement: {self.ranks} ranks as {self.ranks_per_node} on each of {self.nodes} nodes, "
                f"{self.groups_per_node} groups a node; give numbers from 1 on, the first the product of the "
                "next two"
            )
        sets = self.gpu_sets
        if sets and (
            len(sets) != self.groups_per_node or any(len(one) != self.ranks_per_node for one in sets)
        ):
            raise UsageError(
                f"placement: GPU sets {sets} for {self.groups_per_node} groups of {self.ranks_per_node} "
                "ranks a node; give one of that size for each"
            )

    @property
    def sets(self) -> tuple[GpuSet, ...]:
        """The GPUs of every group of one node."""
        if self.gpu_sets:
            return self.gpu_sets
        size = self.ranks_per_node
        return tuple(tuple(range(one * size, (one + 1) * size)) for one in range(self.groups_per_node))


def standing(group: Sequence[int], gpus_per_node: int) -> dict[int, GpuSet]:
    """The GPUs of a group on each of its nodes; rank = node * GPUs of a node + GPU."""
    found: dict[int, list[int]] = {}
    for rank in group:
        node, gpu = divmod(rank, gpus_per_node)
        found.setdefault(node, []).append(gpu)
    return {node: tuple(sorted(gpus)) for node, gpus in found.items()}


def placement_of(groups: Groups, gpus_per_node: int) -> GroupPlacement | None:
    """How ``groups`` stand, None where they are not alike: then they are to be priced as they are listed."""
    of_groups = [standing(group, gpus_per_node) for group in groups]
    if not of_groups or any(len(set(stands.values())) != 1 for stands in of_groups):
        return None
    if len({(len(stands), len(next(iter(stands.values())))) for stands in of_groups}) != 1:
        return None
    on_node: dict[int, list[GpuSet]] = {}
    for stands in of_groups:
        for node, gpus in stands.items():
            on_node.setdefault(node, []).append(gpus)
    # The first group's set stays first: it is the one that runs where a group is to run alone.
    together = {tuple(sorted(sets)) for sets in on_node.values()}
    if len(together) != 1:
        return None
    nodes = sorted(of_groups[0])
    own = next(iter(of_groups[0].values()))
    others = [one for one in next(iter(together)) if one != own]
    return GroupPlacement(
        len(groups[0]), len(own), len(nodes), len(others) + 1, _stride(nodes), (own, *others)
    )


def _stride(nodes: Sequence[int]) -> int:
    return nodes[1] - nodes[0] if len(nodes) > 1 else 0


def axis_placement(layout: Layout, axis: str, gpus_per_node: int) -> GroupPlacement:
    """How the groups of ``axis`` (or axes joined by ``-``) stand, no ranks listed.

    UsageError where a node's GPUs cut an axis at a place that is not one of its steps (6 of 8 GPUs, say), for
    then groups of one axis do not stand alike: list them with ``layout.groups`` instead.
    """
    layout.size(axis)
    joined = axis.split("-")
    gpus = min(gpus_per_node, layout.ranks)
    # One step of an axis moves so many GPUs within a node, or so many nodes.
    inside: list[tuple[int, int, bool]] = []
    across: list[tuple[int, int, bool]] = []
    stride = 1
    for name, size in _sizes(layout, axis):
        within = min(size, max(1, gpus // stride))
        filled = stride * within
        if stride < gpus and (gpus % filled or size % within or (within < size and filled != gpus)):
            raise _cut(layout, name, gpus_per_node)
        if stride >= gpus and stride % gpus:
            raise _cut(layout, name, gpus_per_node)
        inside.append((within, stride, name in joined))
        across.append((size // within, max(1, stride * within // gpus), name in joined))
        stride *= size
    ours = _offsets([(size, step) for size, step, own in inside if own])
    starts = _offsets([(size, step) for size, step, own in inside if not own])
    nodes = math.prod(size for size, _, own in across if own)
    steps = [step for size, step, own in across if own and size > 1]
    sets = tuple(tuple(start + offset for offset in ours) for start in starts)
    return GroupPlacement(len(ours) * nodes, len(ours), nodes, len(starts), min(steps, default=0), sets)


def _sizes(layout: Layout, axis: str) -> list[tuple[str, int]]:
    """Axes of the kind (dense or experts) that ``axis`` is of, the fastest varying first."""
    dense = set(axis.split("-")) <= set(DENSE_AXES)
    names = {"tp": "tp", "cp": "cp", "dp": "dp", "pp": "pp"}
    if not dense:
        names = {"tp": "etp", "ep": "ep", "dp": "edp", "pp": "pp"}
    order = [names[name] for name in layout.order.split("-") if name in names]
    return [(name, layout.size(name)) for name in order]


def _offsets(axes: Sequence[tuple[int, int]]) -> list[int]:
    found = [0]
    for size, step in axes:
        found = [offset + number * step for number in range(size) for offset in found]
    return sorted(found)


def _cut(layout: Layout, name: str, gpus_per_node: int) -> UsageError:
    return UsageError(
        f"layout: {layout} on nodes of {gpus_per_node} GPUs cuts {name} unevenly; choose sizes whose "
        f"products divide {gpus_per_node} or are multiples of it"
    )
