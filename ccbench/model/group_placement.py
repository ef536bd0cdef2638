"""Places of groups on nodes: how many of their ranks share a node, over how many nodes, and beside which others.

Of groups that are alike only that matters to a price, so 131,072 ranks are no more than a few numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.errors import UsageError
from ccbench.groups import Groups

GpuSet = tuple[int, ...]
"""Numbers of GPUs within their node."""


@dataclass(frozen=True)
class GroupPlacement:
    """Groups that are all alike: each has ``ranks_per_node`` ranks on each of ``nodes`` nodes.

    ranks: of one group. groups_per_node: that stand on one node when all of them run.
    gpu_sets: which GPUs of its node each of those groups has; () for runs of neighbours from GPU 0 on.
    Raises UsageError where the numbers contradict each other.
    """

    ranks: int
    ranks_per_node: int
    nodes: int
    groups_per_node: int = 1
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
            len(sets) != self.groups_per_node
            or any(len(gpus) != self.ranks_per_node for gpus in sets)
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
        return tuple(
            tuple(range(group * size, (group + 1) * size))
            for group in range(self.groups_per_node)
        )


def standing(group: Sequence[int], gpus_per_node: int) -> dict[int, GpuSet]:
    """The GPUs of a group on each of its nodes; rank = node * GPUs of a node + GPU."""
    by_node: dict[int, list[int]] = {}
    for rank in group:
        node, gpu = divmod(rank, gpus_per_node)
        by_node.setdefault(node, []).append(gpu)
    return {node: tuple(sorted(gpus)) for node, gpus in by_node.items()}


def placement_of(groups: Groups, gpus_per_node: int) -> GroupPlacement | None:
    """The placement of ``groups``, None where they are not alike: then they are priced as they are listed."""
    of_groups = [standing(group, gpus_per_node) for group in groups]
    if not of_groups or any(len(set(stands.values())) != 1 for stands in of_groups):
        return None
    if len({(len(stands), len(next(iter(stands.values())))) for stands in of_groups}) != 1:
        return None
    on_node: dict[int, list[GpuSet]] = {}
    for stands in of_groups:
        for node, gpus in stands.items():
            on_node.setdefault(node, []).append(gpus)
    # The first group's set stays first.
    by_node = {tuple(sorted(sets)) for sets in on_node.values()}
    if len(by_node) != 1:
        return None
    own = next(iter(of_groups[0].values()))
    other_sets = [gpu_set for gpu_set in next(iter(by_node)) if gpu_set != own]
    return GroupPlacement(
        len(groups[0]), len(own), len(of_groups[0]), len(other_sets) + 1, (own, *other_sets)
    )
