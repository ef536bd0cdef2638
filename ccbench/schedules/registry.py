"""The table of algorithms, and the one way from names to a proven schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from ccbench.collectives import collective as collective_row
from ccbench.errors import ScheduleError, UsageError
from ccbench.schedules import direct, doubling, hierarchical, ring, tree
from ccbench.schedules.proof import prove as prove_schedule
from ccbench.schedules.schedule import Schedule, relabelled

PIECE_BYTES = 256 * 1024
"""Pipelines are cut into pieces of about this size: what NCCL's Simple protocol moves per slot is of the
same order (512 KiB), and smaller pieces pay a start-up of microseconds for microseconds of transfer."""

MOST_DEFAULT_PIECES = 32
MOST_PIECES = 4096

MOST_RANKS_ALL_PAIRS = 2048
"""A step in which all pairs of ranks talk has ranks * (ranks - 1) flows; 2048 ranks make 84 MB of them."""


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    build: (ranks, parameter) -> schedule with root 0.
    source: paper or public code that describes it.
    parameter: meaning of the parameter, empty where there is none.
    default_parameter: (ranks, size_bytes) -> parameter, 0 where there is none.
    unsupported: (ranks, parameter) -> why this cannot be, or None.
    """

    collective: str
    name: str
    build: Callable[[int, int], Schedule]
    source: str
    parameter: str = ""
    default_parameter: Callable[[int, int], int] = lambda ranks, size_bytes: 0
    unsupported: Callable[[int, int], str | None] = lambda ranks, parameter: None


def default_pieces(ranks: int, size_bytes: int) -> int:
    """Pieces of about PIECE_BYTES, at least 1 and at most MOST_DEFAULT_PIECES."""
    return min(max(-(-size_bytes // PIECE_BYTES), 1), MOST_DEFAULT_PIECES)


def _default_group(ranks: int, size_bytes: int) -> int:
    return hierarchical.default_group(ranks)


def _bad_pieces(ranks: int, parameter: int) -> str | None:
    if 1 <= parameter <= MOST_PIECES:
        return None
    return f"{parameter} pieces, expected 1 to {MOST_PIECES}"


def _bad_group(ranks: int, parameter: int) -> str | None:
    if parameter >= 1 and ranks % parameter == 0:
        return None
    return f"groups of {parameter} do not divide {ranks} ranks; take a divisor of {ranks}"


def _too_many_pairs(ranks: int, parameter: int) -> str | None:
    if ranks <= MOST_RANKS_ALL_PAIRS:
        return None
    return f"all pairs of {ranks} ranks talk in one step, expected {MOST_RANKS_ALL_PAIRS} ranks at most"


_MPICH = "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005"
_RING = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009"
_HALVING = "Rabenseifner, Optimization of collective reduction operations, 2004"
_TWO_TREES = (
    "Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009"
)
_PIPELINES = "Pjesivac-Grbovic et al., Performance analysis of MPI collective operations, 2007"
_VLLM = "vLLM, csrc/custom_all_reduce.cuh, 2024"
_BLUECONNECT = (
    "Cho et al., BlueConnect: decomposing all-reduce for deep learning on heterogeneous network hierarchy, "
    "2019"
)
_BRUCK = (
    "Bruck et al., Efficient algorithms for all-to-all communications in multiport message-passing "
    "systems, 1997"
)
_CHAN = "Chan et al., Collective communication: theory, practice, and experience, 2007"
_INTERCOM = "Barnett et al., Interprocessor collective communication library (InterCom), 1994"
_DISSEMINATION = "Hensgen, Finkel and Manber, Two algorithms for barrier synchronization, 1988"


def _plain(collective: str, name: str, build: Callable[[int, int], Schedule], source: str) -> Algorithm:
    return Algorithm(collective, name, build, source)


def _piped(collective: str, name: str, build: Callable[[int, int], Schedule], source: str) -> Algorithm:
    meaning = "pieces in each tree" if name == "double_binary_tree" else "pieces"
    return Algorithm(collective, name, build, source, meaning, default_pieces, _bad_pieces)


def _pairs(collective: str, name: str, build: Callable[[int, int], Schedule], source: str) -> Algorithm:
    return Algorithm(collective, name, build, source, unsupported=_too_many_pairs)


ALGORITHMS: tuple[Algorithm, ...] = (
    _plain("all_reduce", "ring", ring.ring_all_reduce, _RING),
    _plain("all_reduce", "recursive_doubling", doubling.recursive_doubling_all_reduce, _MPICH),
    _plain("all_reduce", "halving_doubling", doubling.halving_doubling_all_reduce, _HALVING),
    _piped("all_reduce", "binary_tree", tree.binary_tree_all_reduce, _PIPELINES),
    _piped("all_reduce", "double_binary_tree", tree.double_binary_tree_all_reduce, _TWO_TREES),
    _pairs("all_reduce", "one_shot", direct.one_shot_all_reduce, _VLLM),
    _pairs("all_reduce", "two_shot", direct.two_shot_all_reduce, _VLLM),
    Algorithm(
        "all_reduce",
        "hierarchical",
        hierarchical.hierarchical_all_reduce,
        _BLUECONNECT,
        "ranks in a group",
        _default_group,
        _bad_group,
    ),
    _plain("all_gather", "ring", ring.ring_all_gather, _MPICH),
    _plain("all_gather", "recursive_doubling", doubling.recursive_doubling_all_gather, _MPICH),
    _plain("all_gather", "bruck", doubling.bruck_all_gather, _BRUCK),
    _pairs("all_gather", "direct", direct.direct_all_gather, _CHAN),
    _plain("reduce_scatter", "ring", ring.ring_reduce_scatter, _RING),
    _plain("reduce_scatter", "recursive_halving", doubling.recursive_halving_reduce_scatter, _MPICH),
    _plain("reduce_scatter", "pairwise", direct.pairwise_reduce_scatter, _MPICH),
    _pairs("reduce_scatter", "direct", direct.direct_reduce_scatter, _CHAN),
    _plain("broadcast", "binomial", tree.binomial_broadcast, _MPICH),
    _piped("broadcast", "chain", ring.chain_broadcast, _PIPELINES),
    _plain("broadcast", "scatter_all_gather", hierarchical.scatter_all_gather_broadcast, _INTERCOM),
    _pairs("broadcast", "direct", direct.direct_broadcast, _INTERCOM),
    _plain("reduce", "binomial", tree.binomial_reduce, _MPICH),
    _piped("reduce", "chain", ring.chain_reduce, _PIPELINES),
    _plain("reduce", "reduce_scatter_gather", hierarchical.reduce_scatter_gather_reduce, _HALVING),
    _pairs("reduce", "direct", direct.direct_reduce, _CHAN),
    _plain("all_to_all", "pairwise", direct.pairwise_all_to_all, _MPICH),
    _pairs("all_to_all", "bruck", doubling.bruck_all_to_all, _BRUCK),
    _pairs("all_to_all", "direct", direct.direct_all_to_all, _BRUCK),
    _plain("all_to_all_v", "pairwise", direct.pairwise_all_to_all_v, _MPICH),
    _pairs("all_to_all_v", "direct", direct.direct_all_to_all_v, _BRUCK),
    _plain("gather", "binomial", tree.binomial_gather, _MPICH),
    _plain("gather", "linear", direct.linear_gather, _CHAN),
    _plain("gather", "direct", direct.direct_gather, _CHAN),
    _plain("scatter", "binomial", tree.binomial_scatter, _MPICH),
    _plain("scatter", "linear", direct.linear_scatter, _CHAN),
    _plain("scatter", "direct", direct.direct_scatter, _CHAN),
    _plain("send_recv", "shift", direct.shift_send_recv, "nccl-tests, src/sendrecv.cu"),
    _plain("barrier", "dissemination", doubling.dissemination_barrier, _DISSEMINATION),
)

_BY_NAME = {(row.collective, row.name): row for row in ALGORITHMS}


def algorithms_of(collective: str) -> tuple[str, ...]:
    """Names of the algorithms for ``collective``, in the order of the table; UsageError if unknown."""
    collective_row(collective)
    return tuple(row.name for row in ALGORITHMS if row.collective == collective)


def algorithm_row(collective: str, name: str) -> Algorithm:
    """The row of the table; UsageError lists the names when there is none."""
    known = algorithms_of(collective)
    if name not in known:
        raise UsageError(f"algorithm: {name!r} is not known for {collective}; one of {', '.join(known)}")
    return _BY_NAME[collective, name]


def parse_algorithm(text: str) -> tuple[str, int | None]:
    """``"chain:8"`` -> ("chain", 8), ``"ring"`` -> ("ring", None); UsageError for anything else."""
    name, colon, number = text.partition(":")
    if not colon and name:
        return name, None
    # isdigit alone would let other scripts' digits through, and int() also takes "+8", " 8" and "1_0".
    if not name or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise UsageError(f"algorithm: {text!r} is not a name or name:number; write 'ring' or 'chain:8'")
    return name, int(number)


def schedule_for(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int = 0,
    parameter: int | None = None,
    size_bytes: int = 0,
    prove: bool = True,
) -> Schedule:
    """The schedule of ``algorithm`` (a name, or ``name:parameter``) on ``ranks`` ranks; cached.

    root: ignored where the collective has none.
    parameter: overrides the one in the name; None takes the default for ``ranks`` and ``size_bytes``.
    prove: prove it first (see ``proof.prove``); False for more than some hundred ranks.
    Raises UsageError for unknown names, ScheduleError for ranks, roots or parameters that cannot be.
    """
    name, named = parse_algorithm(algorithm)
    row = algorithm_row(collective, name)
    where = f"{collective} {algorithm}"
    if ranks < 1:
        raise ScheduleError(f"{where}: {ranks} ranks, expected 1 at least")
    rooted = collective_row(collective).rooted
    if rooted and not 0 <= root < ranks:
        raise ScheduleError(f"{where}: root {root}, expected 0 to {ranks - 1}")
    asked = parameter if parameter is not None else named
    if asked and not row.parameter:
        raise ScheduleError(f"{where}: parameter {asked}, but {name} has none; write {name!r}")
    resolved = row.default_parameter(ranks, size_bytes) if asked is None else asked
    reason = row.unsupported(ranks, resolved)
    if reason:
        raise ScheduleError(f"{where}: {reason}")
    make = _proven if prove else _built
    return make(collective, name, ranks, root if rooted else 0, resolved)


@lru_cache(maxsize=64)
def _built(collective: str, name: str, ranks: int, root: int, parameter: int) -> Schedule:
    return relabelled(_BY_NAME[collective, name].build(ranks, parameter), root)


@lru_cache(maxsize=64)
def _proven(collective: str, name: str, ranks: int, root: int, parameter: int) -> Schedule:
    schedule = _built(collective, name, ranks, root, parameter)
    prove_schedule(schedule)
    return schedule
