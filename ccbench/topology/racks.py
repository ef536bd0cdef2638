"""Racks, or leaf switches, of hosts: from Slurm's topology.conf or a table of hosts and racks."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ccbench.errors import UsageError
from ccbench.units import shown

BESIDE_BRACKETS = re.compile(r",(?![^\[]*\])")
"""A comma between host names, not one between the numbers of ``node[1,3-5]``."""

NUMBERS = re.compile(r"\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]")
TABLE_ROW = re.compile(r"(\S+?)[,;\s]+([^\s,;\[\]]+)")
LEAF = re.compile(r"(?i)(?:Switch|Block)Name=(\S+)\s+(?:.*\s)?Nodes=(\S+).*")
ABOVE = re.compile(r"(?i)SwitchName=\S+\s.*Switches=.*|BlockSizes=.*")
"""Lines of topology.conf: a leaf switch, or a block, with its nodes; and those that name no nodes."""


def racks_of(hosts: Sequence[str], text: str, place: str) -> tuple[str, ...]:
    """Return the rack of each host, '' where ``text`` names none.

    text: rows of a host and its rack, blanks, a comma or a semicolon between, or Slurm's topology.conf. Hosts
    are names with or without their domain, Slurm's ``node[01-16]``, or patterns with ``*`` and ``?``; the
    first row that fits counts. place: the file, for UsageError.
    """
    rows: list[tuple[str, str]] = []
    for line in text.replace("\\\n", " ").splitlines():
        row = line.partition("#")[0].strip()
        if not row or ABOVE.fullmatch(row):
            continue
        if leaf := LEAF.fullmatch(row):
            rack, names = leaf.groups()
        elif "=" not in row and (table := TABLE_ROW.fullmatch(row)):
            names, rack = table.groups()
        else:
            raise UsageError(
                f"{place}: {shown(row)} has no host and rack; write 'node[01-16] r12' or "
                "'SwitchName=r12 Nodes=node[01-16]'"
            )
        rows += ((name, rack) for name in BESIDE_BRACKETS.split(names))
    racks = tuple(
        next((rack for name, rack in rows if _fits(name, host)), "") for host in hosts
    )
    if not any(racks):
        raise UsageError(
            f"{place}: has no rack of this run's hosts ({', '.join(hosts[:4])}); write their names, or "
            "patterns such as node[01-16] or node*"
        )
    return racks


def _fits(pattern: str, host: str) -> bool:
    """Return whether ``pattern`` stands for ``host``, or for its name without the domain."""
    parts = NUMBERS.split(pattern)
    words = [re.escape(part).replace(r"\*", ".*").replace(r"\?", ".") for part in parts]
    expression = r"(\d+)".join(words[::2])

    def counts(ranges: str, number: str) -> bool:
        # ``01-16,20`` has numbers written with as many digits.
        ends = [part.partition("-") for part in ranges.split(",")]
        return any(
            int(first) <= int(number) <= int(last or first)
            and number == f"{int(number):0{len(first)}}"
            for first, _, last in ends
        )

    return any(
        all(map(counts, parts[1::2], found.groups()))
        for name in (host, host.partition(".")[0])
        if (found := re.fullmatch(expression, name))
    )
