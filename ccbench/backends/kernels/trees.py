"""Plans of tree kernels: who is whose parent on every channel.

Channels take turns with two trees in which different ranks are inner (P. Sanders, J. Speck and J. L. Traeff,
"Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ccbench.errors import UsageError
from ccbench.schedules.binary_tree import complement, tree_edges

NOBODY = -1


@dataclass(frozen=True)
class Tree:
    """One tree over ranks 0 to n - 1. parents: -1 at the root. children: two at most, in their order."""

    parents: tuple[int, ...]
    children: tuple[tuple[int, ...], ...]

    @property
    def root(self) -> int:
        """The rank without a parent."""
        return self.parents.index(NOBODY)

    def depth(self, rank: int) -> int:
        """Steps from ``rank`` up to the root."""
        steps = 0
        while self.parents[rank] != NOBODY:
            rank = self.parents[rank]
            steps += 1
        return steps


def channel_tree(order: Sequence[int], channel: int, root: int | None = None) -> Tree:
    """The tree of one channel over the ranks in ``order``, in which neighbours of the order are near.

    Even channels have the in-order binary tree, odd ones its complement. A ``root`` stands above the tree
    of all others, so that on two channels nobody else is inner twice.
    """
    others = [rank for rank in order if rank != root]
    edges = tree_edges(len(others))
    if channel % 2 == 1 and len(others) > 1:
        edges = complement(edges, len(others), 0)
    parents = {others[child]: others[parent] for child, parent in zip(edges.child, edges.parent, strict=True)}
    if root is not None:
        parents |= {rank: root for rank in others if rank not in parents}
    places = {rank: place for place, rank in enumerate(order)}
    children: list[list[int]] = [[] for _ in order]
    for child, parent in parents.items():
        children[parent].append(child)
    return Tree(
        tuple(parents.get(rank, NOBODY) for rank in range(len(order))),
        tuple(tuple(sorted(those, key=places.__getitem__)) for those in children),
    )


def channel_trees(
    ranks: int, channels: int, root: int | None = None, orders: Sequence[Sequence[int]] = ()
) -> list[Tree]:
    """One tree for each channel; every two channels complement each other over the same order of ranks.

    orders: permutations of all ranks, taken in turn; none: by number. root: of all trees; None where any
    will do. UsageError when an order is not a permutation or the root is no rank.
    """
    for order in orders:
        if sorted(order) != list(range(ranks)):
            raise UsageError(
                f"tree order {list(order)} is not an order of ranks 0 to {ranks - 1}; name every rank once"
            )
    if root is not None and not 0 <= root < ranks:
        raise UsageError(f"root {root} of a tree is not among ranks 0 to {ranks - 1}; name one of them")
    known = orders or [range(ranks)]
    return [channel_tree(known[channel // 2 % len(known)], channel, root) for channel in range(channels)]


def tree_plan(trees: Sequence[Tree]) -> NDArray[np.int32]:
    """The plan of tree kernels, shape (channels, 4 * ranks): parents, first and second children, lags.

    A rank's lag is twice its depth: so many chunks later what it sent up comes back to it.
    """
    rows = []
    for tree in trees:
        ranks = range(len(tree.parents))
        pairs = [(*tree.children[rank], NOBODY, NOBODY)[:2] for rank in ranks]
        lags = [2 * tree.depth(rank) for rank in ranks]
        rows.append([*tree.parents, *(pair[0] for pair in pairs), *(pair[1] for pair in pairs), *lags])
    return np.array(rows, np.int32)
