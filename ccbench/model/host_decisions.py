"""Which algorithm an MPI library takes by itself, by ranks and size, as its public sources have it.

Open MPI 4.1: the component coll/tuned decides by fixed tables, averages of what its developers measured on
their clusters (ompi/mca/coll/tuned/coll_tuned_decision_fixed.c in github.com/open-mpi/ompi, as it has been
since 2020; read in the fork github.com/kunpengcompute/hmpi, commit 0e41238). It passes neither a segment size
nor a fan-out, so that its chain and its pipeline have one piece and one successor
(ompi/mca/coll/base/coll_base_topo.c takes a fan-out below 1 as 1). Open MPI 5 has other components in front
(coll/han), of which nothing is said here.

MPICH 4 and 5: src/mpi/coll/coll_selection.json in github.com/pmodels/mpich (commit 07f13b4), for
communicators with one rank on each host; with several MPICH goes by way of one rank of each host, of which
nothing is said here. Up to 2048 bytes its choice for all_reduce differs between releases and is left open.

Sizes are what the library looks at: the whole buffer of all_reduce and broadcast, one rank's block of
all_gather (Open MPI), or what is gathered (MPICH). Tables are for operations that commute, as all of
ccbench's do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

OPEN_MPI_41 = {
    "all_reduce": """
        <4: ring <8 recursive_doubling <4096 ring <8192 recursive_doubling <16384 ring <262144 rabenseifner
        <8: ring <16 recursive_doubling <8192 rabenseifner
        <16: recursive_doubling <8192 rabenseifner
        <32: ring <64 recursive_doubling <4096 rabenseifner
        <64: ring <128 rabenseifner
        <128: recursive_doubling <262144 rabenseifner
        <256: nonoverlapping <131072 recursive_doubling <262144 rabenseifner
        <512: nonoverlapping <4096 rabenseifner
        <2048: nonoverlapping <2048 recursive_doubling <16384 rabenseifner
        <4096: nonoverlapping <2048 ring <4096 recursive_doubling <16384 rabenseifner
        any: nonoverlapping <2048 ring <16384 recursive_doubling <32768 ring
    """,
    "all_gather": """
        <3: recursive_doubling
        <32: recursive_doubling
        <64: recursive_doubling <1024 neighbor <65536 ring
        <128: recursive_doubling <512 neighbor <65536 ring
        <256: recursive_doubling <512 neighbor <131072 ring <524288 neighbor <1048576 ring
        <512: recursive_doubling <32 bruck <128 recursive_doubling <1024 neighbor <131072 ring <524288
              neighbor <1048576 ring
        <1024: recursive_doubling <64 bruck <256 recursive_doubling <2048 neighbor
        <2048: recursive_doubling <4 bruck <8 recursive_doubling <16 bruck <32 recursive_doubling <256
               bruck <512 recursive_doubling <4096 neighbor
        <4096: bruck <32 recursive_doubling <128 bruck <512 recursive_doubling <4096 neighbor
        any: recursive_doubling <2 bruck <8 recursive_doubling <16 bruck <512 recursive_doubling <4096
             neighbor
    """,
    "broadcast": """
        <4: chain <32 binary_tree <256 chain <512 knomial <1024 basic_linear <32768 binary_tree <131072
            chain <262144 basic_linear <524288 binomial <1048576 binary_tree
        <8: binary_tree <64 binomial <128 binary_tree <2048 binomial <8192 basic_linear <1048576 chain
        <16: knomial <8 binary_tree <64 knomial <4096 binary_tree <16384 binomial <32768 basic_linear
        <32: knomial <4096 binomial <1048576 scatter_doubling
        <64: binomial <2048 knomial
        <128: knomial
        <256: binomial <2 binary_tree <16384 basic_linear <32768 binary_tree <65536 knomial
        <1024: knomial <16384 split_binary_tree <32768 knomial
        <2048: knomial <524288 scatter_doubling
        <4096: knomial <262144 scatter_doubling
        any: knomial <8192 binary_tree <16384 knomial
    """,
}
"""Of each collective a line for each range of ranks; an algorithm is taken below the size that follows it.

Where algorithms differ in nothing that is priced here they have one name: of two ranks, which exchange once
(two_proc), recursive doubling; of chain and pipeline, chain; of ring and segmented ring, ring.
"""

MPICH = {
    "all_gather": """
        any power: recursive_doubling <524288 ring
        any: bruck <81920 ring
    """,
    "broadcast": """
        <8: binomial_in_turn
        any power: binomial_in_turn <12289 scatter_doubling <524289 scatter_allgather
        any: binomial_in_turn <12289 scatter_allgather
    """,
    "all_reduce": """
        any: unknown <2049 rabenseifner
    """,
}
"""The same of MPICH; ``power``: for numbers of ranks that are a power of two alone."""

_LINE = re.compile(r"\s*(<(?P<below>\d+)|any)(?P<power> power)?: ")


@dataclass(frozen=True)
class Row:
    """below: numbers of ranks; power: of two alone; sizes_bytes: at which the next algorithm begins."""

    below: float
    power: bool
    algorithms: tuple[str, ...]
    sizes_bytes: tuple[int, ...]

    def at(self, size_bytes: float) -> str:
        """The algorithm for a size."""
        return self.algorithms[sum(size_bytes >= limit for limit in self.sizes_bytes)]


@cache
def rows_of(table: str) -> tuple[Row, ...]:
    """The lines of a table, in order: the first that fits counts."""
    parts = [(match, match.end()) for match in _LINE.finditer(table)]
    ends = [match.start() for match, _ in parts[1:]] + [len(table)]
    rows = []
    for (match, begin), end in zip(parts, ends, strict=True):
        words = table[begin:end].split()
        sizes = tuple(int(word[1:]) for word in words if word.startswith("<"))
        names = tuple(word for word in words if not word.startswith("<"))
        rows.append(Row(float(match["below"] or "inf"), bool(match["power"]), names, sizes))
    return tuple(rows)


def own_choice(
    library: str, collective: str, size_bytes: float, count: int, host_of_rank: Sequence[int]
) -> str:
    """The algorithm that ``library`` (its name and version) takes; '' where nothing is known.

    size_bytes: of ccbench's collective, so of an all_gather what is gathered. count: elements of one rank.
    """
    ranks = len(host_of_rank)
    if library.startswith("Open MPI 4.1."):
        per_rank = collective == "all_gather"
        found = _looked_up(OPEN_MPI_41.get(collective), ranks, size_bytes / (ranks if per_rank else 1))
        # A ring needs an element for each rank (ompi/mca/coll/base/coll_base_allreduce.c).
        short = collective == "all_reduce" and count < ranks
        return "recursive_doubling" if short and found == "ring" else found
    one_each = len(set(host_of_rank)) == ranks
    if library.startswith(("MPICH 4.", "MPICH 5.")) and one_each:
        found = _looked_up(MPICH.get(collective), ranks, size_bytes)
        return "" if found == "unknown" else found
    return ""


def _looked_up(table: str | None, ranks: int, size_bytes: float) -> str:
    for row in rows_of(table) if table else ():
        if ranks < row.below and (not row.power or ranks & (ranks - 1) == 0):
            return row.at(size_bytes)
    return ""
