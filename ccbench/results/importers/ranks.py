"""Size, time and both rates of a row taken together: contradictions, and how many ranks there were.

They are tied twice (NVIDIA/nccl-tests, doc/PERFORMANCE.md): algbw = size / time, and busbw = algbw x the
collective's factor, a known function of the ranks. Printed figures are rounded, so a row is in order when
some figures within half a unit of the last printed digit fulfil both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ccbench.collectives import COLLECTIVES
from ccbench.machine.flags import Flag
from ccbench.results.importers.log import DeviceLine, ImportedLog, ImportedRow, ImportedTable

MOST_RANKS = 16_384
"""Larger teams are not told apart by printed rates anyway: bus factors differ by less than their rounding."""

_SLACK = 1e-4
"""Relative room beyond the printed rounding: tools may compute rates from times that they rounded."""


@dataclass(frozen=True)
class Given:
    """Machine as the user gives it, for outputs that do not name theirs.

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
    """Ranks and nodes of ``table``: as it says, else as the user gave, else as its rates leave possible."""
    if table.ranks is not None and table.ranks > 0:
        return Team(table.ranks, _nodes(table, table.ranks, devices, given), "stated")
    possible = ranks_that_fit(table.rows, table.collective)
    fits = ""
    if possible is not None:
        few = " or ".join(map(str, possible)) or "no number of ranks"
        some = few if len(possible) <= 3 else f"{possible[0]} to {possible[-1]}"
        fits = f"busbw / algbw as printed fits {some}"
    asked = given.ranks_on(table.nodes)
    if asked is not None and possible is not None and asked not in possible:
        cure = "give the machine and nodes this was measured on"
        return Team(0, 0, f"--machine and --nodes make {asked} ranks, but {fits}; {cure}")
    if asked is not None:
        return Team(asked, _nodes(table, asked, devices, given), "given")
    if possible is not None and len(possible) == 1:
        return Team(possible[0], _nodes(table, possible[0], devices, given), "from busbw / algbw")
    seen = f" ({fits})" if fits else ""
    return Team(0, 0, f"the output does not say how many ranks{seen}; give --machine and --nodes")


def ranks_that_fit(rows: Iterable[ImportedRow], name: str) -> tuple[int, ...] | None:
    """The numbers of ranks, 2 to MOST_RANKS, that all printed rates allow; None where rates say nothing.

    The rounding intervals of all rows together often leave one number of ranks only.
    """
    collective = COLLECTIVES.get(name)
    if collective is None or collective.bus_factor(2) == collective.bus_factor(3):
        return None
    low, high = 0.0, math.inf
    for row in rows:
        _, half_algbw, half_busbw = row.half_units
        doubtful = set(row.flags) - {Flag.INCOMPLETE, Flag.SURPLUS_COLUMNS}
        if not row.algbw or not row.busbw or half_algbw is None or half_busbw is None or doubtful:
            continue
        low = max(low, (row.busbw - half_busbw) / (row.algbw + half_algbw))
        if row.algbw > half_algbw:
            high = min(high, (row.busbw + half_busbw) / (row.algbw - half_algbw))
    if math.isinf(high) and low == 0.0:
        return None
    low, high = low * (1 - 1e-9), high * (1 + 1e-9)
    # Factors are k (n - 1) / n = k - k / n: solved for n, then tried one up and one down.
    ceiling = collective.bus_factor(2) * 2
    fewest = ceiling / max(ceiling - low, 1e-12)
    most = ceiling / (ceiling - high) if high < ceiling else MOST_RANKS
    tried = range(max(2, int(min(fewest, MOST_RANKS)) - 1), int(min(most + 1, MOST_RANKS)) + 1)
    return tuple(ranks for ranks in tried if low <= collective.bus_factor(ranks) <= high)


def _nodes(table: ImportedTable, ranks: int, devices: Sequence[DeviceLine], given: Given) -> int:
    """Nodes as the table says, as its devices' hosts show, as the user gave; 0 where nobody knows."""
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


def checked(log: ImportedLog) -> ImportedLog:
    """``log`` with a flag on every row whose figures contradict each other; figures and order stay.

    What a row does not print, and ties whose factor is not known (collective or ranks not said), are not
    checked. Running it twice changes nothing more.
    """
    tables = []
    for table in log.tables:
        rows = tuple(checked_row(row, table.collective, table.ranks) for row in table.rows)
        tables.append(replace(table, rows=rows))
    return replace(log, tables=tuple(tables))


def with_shared_devices(log: ImportedLog) -> ImportedLog:
    """``log`` with a flag on every row if ranks of one host shared a device, so that no link was measured."""
    places = [
        (one.host, one.device, one.bus_id) for one in log.devices if one.host and one.device is not None
    ]
    # A list may name a rank twice, of two runs in one file; all ranks of a table are told apart.
    tables = []
    for table in log.tables:
        shared = len({*places}) < len(places) == table.ranks
        rows = (replace(row, flags=tuple(dict.fromkeys((*row.flags, Flag.LOOPBACK)))) for row in table.rows)
        tables.append(replace(table, rows=tuple(rows)) if shared else table)
    return replace(log, tables=tuple(tables))


def bus_factor(collective: str, ranks: int | None) -> float | None:
    """busbw / algbw of a collective on these ranks; None where either is not known or nothing moves."""
    row = COLLECTIVES.get(collective)
    if row is None or ranks is None or ranks < 1 or not row.moves_data:
        return None
    return row.bus_factor(ranks)


def checked_row(row: ImportedRow, collective: str, ranks: int | None) -> ImportedRow:
    """``row`` with the flags of ``checked``."""
    own = (Flag.ALGBW_CONTRADICTS_TIME, Flag.BUSBW_CONTRADICTS_ALGBW)
    found = [flag for flag in row.flags if flag not in own]
    factor = bus_factor(collective, ranks)
    moved: float | None = row.size_bytes
    if Flag.ALGBW_PER_RANK in row.flags or Flag.SIZE_PER_RANK in row.flags:
        # NVIDIA/nccl-tests#44: algbw = size / ranks / time, busbw = algbw x (ranks - 1).
        factor = None if ranks is None else float(ranks - 1)
        moved = None if ranks is None else row.size_bytes / ranks
    if Flag.SIZE_NOT_STATED in row.flags:
        moved = None
    # Every figure as the interval that its rounding leaves.
    seconds, algbw, busbw = (
        None if value is None else (max(value - (half or 0.0), 0.0), value + (half or 0.0))
        for value, half in zip((row.seconds, row.algbw, row.busbw), row.half_units, strict=True)
    )
    if moved is not None and seconds and algbw:
        least, most = seconds[0] * algbw[0] * 1e9, seconds[1] * algbw[1] * 1e9
        if not (math.isfinite(most) and least * (1 - _SLACK) <= moved <= most * (1 + _SLACK)):
            found.append(own[0])
    if factor is not None and algbw and busbw:
        least, most = algbw[0] * factor * (1 - _SLACK), algbw[1] * factor * (1 + _SLACK)
        if least > busbw[1] or busbw[0] > most:
            found.append(own[1])
    return row if tuple(found) == row.flags else replace(row, flags=tuple(found))


def with_whole_sizes(table: ImportedTable) -> ImportedTable:
    """``table`` with nccl-tests' sizes in the rows that hold a block's, once its ranks are known.

    Without ranks, and without such rows, it is returned as it is; running it twice changes nothing more.
    """
    ranks, flag = table.ranks, Flag.SIZE_OF_ONE_BLOCK
    if ranks is None or not any(flag in row.flags for row in table.rows):
        return table
    rows = []
    for row in table.rows:
        if flag in row.flags:
            others = tuple(one for one in row.flags if one != flag)
            row = replace(row, size_bytes=row.size_bytes * ranks, flags=others)
        rows.append(row)
    return replace(table, rows=tuple(rows))
