"""How many ranks a table was measured on, where the output does not say so itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.collectives import COLLECTIVES
from ccbench.results.importers.log import DeviceLine, ImportedTable

MOST_RANKS = 16_384
"""Larger teams are not told apart by printed rates anyway: bus factors differ by less than their rounding."""


@dataclass(frozen=True)
class Given:
    """What the user says about the machine, for outputs that do not.

    machine: a name for the run. devices: of one node, None where no machine was named. nodes: None where
    not said. network: as in the catalog of networks, or empty. source: what names the machine for
    predictions (a catalog name or a file), "" for none.
    """

    machine: str = ""
    devices: int | None = None
    nodes: int | None = None
    network: str = ""
    source: str = ""

    def ranks_on(self, nodes: int | None) -> int | None:
        """One rank per device of ``nodes``, else of the nodes given, else of one; None without a machine."""
        return None if self.devices is None else self.devices * (nodes or self.nodes or 1)


@dataclass(frozen=True)
class Team:
    """Ranks and nodes, 0 where nobody knows; where they are from, or why they are not known."""

    ranks: int
    nodes: int
    reason: str


def team_of(table: ImportedTable, devices: Sequence[DeviceLine], given: Given) -> Team:
    """Ranks and nodes of ``table``: as it says, else what the user gave, else what its rates leave possible.

    busbw / algbw is a known function of the ranks, so the rounding intervals of all rows together often
    leave one number of ranks only.
    """
    if table.ranks is not None and table.ranks > 0:
        return Team(table.ranks, _nodes(table, table.ranks, devices, given), "stated")
    possible = ranks_that_fit(table)
    asked = given.ranks_on(table.nodes)
    if asked is not None:
        if possible is not None and asked not in possible:
            reason = (
                f"--machine and --nodes make {asked} ranks, but busbw / algbw as printed fits "
                f"{_some(possible)}; give the machine and nodes this was measured on"
            )
            return Team(0, 0, reason)
        return Team(asked, _nodes(table, asked, devices, given), "given")
    if possible is not None and len(possible) == 1:
        return Team(possible[0], _nodes(table, possible[0], devices, given), "from busbw / algbw")
    seen = "" if possible is None else f" (busbw / algbw as printed fits {_some(possible)})"
    return Team(0, 0, f"the output does not say how many ranks{seen}; give --machine and --nodes")


def ranks_that_fit(table: ImportedTable) -> tuple[int, ...] | None:
    """The numbers of ranks, 2 to MOST_RANKS, that all printed rates allow; None where rates say nothing."""
    collective = COLLECTIVES.get(table.collective)
    if collective is None or collective.bus_factor(2) == collective.bus_factor(3):
        return None
    low, high = 0.0, math.inf
    for row in table.rows:
        _, half_algbw, half_busbw = row.half_units
        if not row.algbw or not row.busbw or half_algbw is None or half_busbw is None or row.flags:
            continue
        low = max(low, (row.busbw - half_busbw) / (row.algbw + half_algbw))
        if row.algbw > half_algbw:
            high = min(high, (row.busbw + half_busbw) / (row.algbw - half_algbw))
    if math.isinf(high) and low == 0.0:
        return None
    slack = 1e-9
    return tuple(
        ranks
        for ranks in range(2, MOST_RANKS + 1)
        if low * (1 - slack) <= collective.bus_factor(ranks) <= high * (1 + slack)
    )


def _nodes(table: ImportedTable, ranks: int, devices: Sequence[DeviceLine], given: Given) -> int:
    if table.nodes is not None and table.nodes > 0:
        return table.nodes
    hosts = {device.host for device in devices if device.host}
    if hosts and len({device.rank for device in devices}) == ranks and all(one.host for one in devices):
        return len(hosts)
    if given.nodes is not None and ranks <= (given.ranks_on(None) or ranks):
        return given.nodes
    if given.devices:
        return -(-ranks // given.devices)
    return 1 if ranks == 1 else 0


def _some(possible: Sequence[int]) -> str:
    if not possible:
        return "no number of ranks"
    if len(possible) <= 3:
        return " or ".join(map(str, possible))
    return f"{possible[0]} to {possible[-1]}"
