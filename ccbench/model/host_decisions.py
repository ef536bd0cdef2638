"""Which algorithm an MPI library takes by itself, by ranks and size; ``mpi_choices.yaml`` has its sources.

Open MPI 4.1: the component coll/tuned decides by fixed tables. It passes neither a segment size nor a
fan-out, so that its chain and its pipeline have one piece and one successor (ompi/mca/coll/base/
coll_base_topo.c takes a fan-out below 1 as 1). Open MPI 5 has other components in front (coll/han), of which
nothing is said here.

MPICH 4 and 5: for communicators with one rank on each host; with several MPICH goes by way of one rank of
each host, of which nothing is said here. Up to 2048 bytes its choice for all_reduce differs between releases
and is left open.

Sizes are what the library looks at: the whole buffer of all_reduce and broadcast, one rank's block of
all_gather (Open MPI), or what is gathered (MPICH). Tables are for operations that commute, as all of
ccbench's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ccbench.model.library.constants import read_table

CHOICES = Path(__file__).with_name("mpi_choices.yaml")


def own_choice(
    library: str, collective: str, size_bytes: float, count: int, host_of_rank: Sequence[int]
) -> str:
    """The algorithm that ``library`` (its name and version) takes; '' where nothing is known.

    size_bytes: of ccbench's collective, so of an all_gather what is gathered. count: elements of one rank.
    """
    ranks = len(host_of_rank)
    if library.startswith("Open MPI 4.1."):
        per_rank = collective == "all_gather"
        found = _looked_up("Open MPI 4.1", collective, ranks, size_bytes / (ranks if per_rank else 1))
        # A ring needs an element for each rank (ompi/mca/coll/base/coll_base_allreduce.c).
        short = collective == "all_reduce" and count < ranks
        return "recursive_doubling" if short and found == "ring" else found
    one_each = len(set(host_of_rank)) == ranks
    if library.startswith(("MPICH 4.", "MPICH 5.")) and one_each:
        found = _looked_up("MPICH", collective, ranks, size_bytes)
        return "" if found == "unknown" else found
    return ""


def _looked_up(library: str, collective: str, ranks: int, size_bytes: float) -> str:
    rows: list[dict[str, Any]] = read_table(CHOICES)[library].get(collective, [])
    for row in rows:
        if ranks < row["below"] and (not row.get("power_of_two") or ranks & (ranks - 1) == 0):
            algorithms, limits = row["take"][::2], row["take"][1::2]
            return str(algorithms[sum(size_bytes >= limit for limit in limits)])
    return ""
