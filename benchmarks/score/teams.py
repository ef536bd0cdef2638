"""How many GPUs of how many nodes a table was measured on: what the manifest says, and what the log shows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from benchmarks.score.manifest import ManifestEntry
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import ImportedTable, ranks_that_fit

MOST_SPREAD = 2.0
"""Numbers of nodes that rates leave open may differ by this factor; their geometric middle is taken then.

Latency grows with the logarithm of the nodes, and the bytes that each rank sends hardly grow at all.
"""


@dataclass(frozen=True)
class Team:
    """gpus_per_node and nodes that took part, and where that is from."""

    gpus_per_node: int
    nodes: int
    origin: str


def team_of(entry: ManifestEntry, table: ImportedTable) -> Team | str:
    """The team of ``table``, or the reason why it is not known.

    Where the manifest and the ratio busbw / algbw of the rows exclude each other, the rows count, for a
    collector errs more easily than a printed figure.
    """
    stated = [(gpus, nodes) for gpus in entry.gpus_per_node for nodes in entry.nodes]
    seen = _ranks_seen(table)
    if len(stated) == 1 and (seen is None or math.prod(stated[0]) in seen):
        return Team(*stated[0], "as the manifest says")
    if seen is None and table.ranks is not None:
        seen = (table.ranks,)
    fitting = [
        pair
        for pair in stated
        if (seen is None or math.prod(pair) in seen) and table.nodes in (None, pair[1])
    ]
    if len(fitting) == 1:
        return Team(*fitting[0], "the one that the log's ranks leave of those in the manifest")
    if not entry.gpus_per_node:
        return f"the manifest does not say how many GPUs a node has ({_shown(seen)})"
    if len(entry.gpus_per_node) > 1 or not seen:
        return f"the manifest leaves open how many nodes or GPUs took part ({_shown(seen)})"
    return _by_nodes(entry.gpus_per_node[0], seen)


def _ranks_seen(table: ImportedTable) -> tuple[int, ...] | None:
    """Ranks that the rates allow; None where they say nothing, all that fit where rows are flagged for it."""
    whole = [
        row
        for row in table.rows
        if set(row.flags) <= {Flag.BUSBW_CONTRADICTS_ALGBW, Flag.INCOMPLETE}
    ]
    return ranks_that_fit([replace(row, flags=()) for row in whole], table.collective)


def _by_nodes(gpus_per_node: int, seen: tuple[int, ...]) -> Team | str:
    nodes = [
        ranks // gpus_per_node for ranks in seen if gpus_per_node and ranks % gpus_per_node == 0
    ]
    if not nodes:
        return f"no number of nodes of {gpus_per_node} GPUs fits the log ({_shown(seen)})"
    if len(nodes) == 1:
        return Team(gpus_per_node, nodes[0], "from the log's ranks, or its busbw / algbw")
    if nodes[-1] > nodes[0] * MOST_SPREAD:
        return f"how many nodes took part is not known ({_shown(seen)})"
    middle = math.sqrt(nodes[0] * nodes[-1])
    chosen = min(nodes, key=lambda count: abs(count - middle))
    return Team(
        gpus_per_node, chosen, f"assumed: busbw / algbw leaves {nodes[0]} to {nodes[-1]} nodes"
    )


def _shown(seen: tuple[int, ...] | None) -> str:
    if seen is None:
        return "nor does the log"
    if not seen:
        return "the log's busbw / algbw fits no number of ranks"
    if len(seen) == 1:
        return f"the log shows {seen[0]} ranks"
    return f"the log's busbw / algbw fits {seen[0]} to {seen[-1]} ranks"
