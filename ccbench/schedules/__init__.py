"""The table of algorithms, and the one way from names to a proven schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache

from ccbench.collectives import collective as collective_row
from ccbench.errors import ScheduleError, UsageError
from ccbench.schedules import direct, doubling, ring, tree
from ccbench.schedules.proof import prove as prove_schedule
from ccbench.schedules.schedule import Schedule, relabelled

PIECE_BYTES = 256 * 1024
"""Pipelines are cut into pieces of about this size: what NCCL's Simple protocol moves per slot is of the
same order (512 KiB), and smaller pieces pay a start-up of microseconds for microseconds of transfer."""

MOST_DEFAULT_PIECES = 32
MOST_PIECES = 4096

MOST_RANKS_ALL_PAIRS = 2048
"""A step in which all pairs of ranks talk has ranks * (ranks - 1) flows; 2048 ranks make 84 MB of them."""

PIECES, OF_EACH, GROUP = "pieces", "pieces in each tree", "ranks in a group"
"""Meanings of parameters."""


@dataclass(frozen=True)
class Algorithm:
    """One row of the table.

    build: (ranks, parameter) -> schedule with root 0.
    source: paper or public code that describes it.
    parameter: meaning of the parameter, empty where there is none.
    all_pairs: in one step every rank talks to every other.
    file: the user's file that it was loaded from, empty for the table's own; its build may refuse any number
        of ranks with a ScheduleError.
    ranks: the only number of ranks that there is a schedule for, 0 for any.
    """

    collective: str
    name: str
    build: Callable[[int, int], Schedule]
    source: str = ""
    parameter: str = ""
    all_pairs: bool = False
    file: str = ""
    ranks: int = 0

    def default_parameter(self, ranks: int, size_bytes: int) -> int:
        """Return the parameter of a case that asks for none, 0 where there is none."""
        if self.parameter == GROUP:
            return ring.default_group(ranks)
        return (
            min(max(-(-size_bytes // PIECE_BYTES), 1), MOST_DEFAULT_PIECES)
            if self.parameter
            else 0
        )

    def unsupported(self, ranks: int, parameter: int) -> str | None:
        """Return the reason why there is no such schedule, or None."""
        if self.ranks and ranks != self.ranks:
            return f"{self.file} is for {self.ranks} ranks; take --ranks {self.ranks}"
        if self.file:
            try:
                self.build(ranks, parameter)
            except ScheduleError as error:
                return str(error)
        if self.all_pairs and ranks > MOST_RANKS_ALL_PAIRS:
            most = MOST_RANKS_ALL_PAIRS
            return f"all pairs of {ranks} ranks talk in one step, expected {most} ranks at most"
        if self.parameter == GROUP:
            if parameter < 1 or ranks % parameter:
                return f"groups of {parameter} do not divide {ranks} ranks; take a divisor of {ranks}"
        elif self.parameter and not 1 <= parameter <= MOST_PIECES:
            return f"{parameter} pieces, expected 1 to {MOST_PIECES}"
        return None


_MPICH = "Thakur, Rabenseifner and Gropp, Optimization of collective communication operations in MPICH, 2005"
_RING = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009"
_HALVING = "Rabenseifner, Optimization of collective reduction operations, 2004"
_TWO_TREES = "Sanders, Speck and Traeff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, 2009"
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


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("all_reduce", "ring", ring.ring_all_reduce, _RING),
    Algorithm(
        "all_reduce", "recursive_doubling", doubling.recursive_doubling_all_reduce, _MPICH
    ),
    Algorithm("all_reduce", "halving_doubling", doubling.halving_doubling_all_reduce, _HALVING),
    Algorithm("all_reduce", "binary_tree", tree.binary_tree_all_reduce, _PIPELINES, PIECES),
    Algorithm(
        "all_reduce",
        "double_binary_tree",
        tree.double_binary_tree_all_reduce,
        _TWO_TREES,
        OF_EACH,
    ),
    Algorithm("all_reduce", "one_shot", direct.one_shot_all_reduce, _VLLM, all_pairs=True),
    Algorithm("all_reduce", "two_shot", direct.two_shot_all_reduce, _VLLM, all_pairs=True),
    Algorithm("all_reduce", "hierarchical", ring.hierarchical_all_reduce, _BLUECONNECT, GROUP),
    Algorithm("all_gather", "ring", ring.ring_all_gather, _MPICH),
    Algorithm(
        "all_gather", "recursive_doubling", doubling.recursive_doubling_all_gather, _MPICH
    ),
    Algorithm("all_gather", "bruck", doubling.bruck_all_gather, _BRUCK),
    Algorithm("all_gather", "direct", direct.direct_all_gather, _CHAN, all_pairs=True),
    Algorithm("reduce_scatter", "ring", ring.ring_reduce_scatter, _RING),
    Algorithm(
        "reduce_scatter", "recursive_halving", doubling.recursive_halving_reduce_scatter, _MPICH
    ),
    Algorithm("reduce_scatter", "pairwise", direct.pairwise_reduce_scatter, _MPICH),
    Algorithm("reduce_scatter", "direct", direct.direct_reduce_scatter, _CHAN, all_pairs=True),
    Algorithm("broadcast", "binomial", tree.binomial_broadcast, _MPICH),
    Algorithm("broadcast", "chain", ring.chain_broadcast, _PIPELINES, PIECES),
    Algorithm("broadcast", "scatter_all_gather", tree.scatter_all_gather_broadcast, _INTERCOM),
    Algorithm("broadcast", "direct", direct.direct_broadcast, _INTERCOM, all_pairs=True),
    Algorithm("reduce", "binomial", tree.binomial_reduce, _MPICH),
    Algorithm("reduce", "chain", ring.chain_reduce, _PIPELINES, PIECES),
    Algorithm(
        "reduce", "reduce_scatter_gather", doubling.reduce_scatter_gather_reduce, _HALVING
    ),
    Algorithm("reduce", "direct", direct.direct_reduce, _CHAN, all_pairs=True),
    Algorithm("all_to_all", "pairwise", direct.pairwise_all_to_all, _MPICH),
    Algorithm("all_to_all", "bruck", doubling.bruck_all_to_all, _BRUCK, all_pairs=True),
    Algorithm("all_to_all", "direct", direct.direct_all_to_all, _BRUCK, all_pairs=True),
    Algorithm("all_to_all_v", "pairwise", direct.pairwise_all_to_all_v, _MPICH),
    Algorithm("all_to_all_v", "direct", direct.direct_all_to_all_v, _BRUCK, all_pairs=True),
    Algorithm("gather", "binomial", tree.binomial_gather, _MPICH),
    Algorithm("gather", "linear", direct.linear_gather, _CHAN),
    Algorithm("gather", "direct", direct.direct_gather, _CHAN),
    Algorithm("scatter", "binomial", tree.binomial_scatter, _MPICH),
    Algorithm("scatter", "linear", direct.linear_scatter, _CHAN),
    Algorithm("scatter", "direct", direct.direct_scatter, _CHAN),
    Algorithm("send_recv", "shift", direct.shift_send_recv, "nccl-tests, src/sendrecv.cu"),
    Algorithm("barrier", "dissemination", doubling.dissemination_barrier, _DISSEMINATION),
)

_BY_NAME = {(row.collective, row.name): row for row in ALGORITHMS}
_ADDED: dict[tuple[str, str], Algorithm] = {}


def add_algorithms(rows: Iterable[Algorithm]) -> None:
    """Make ``rows`` available in this process beside the table, in place of those added before.

    Raises ScheduleError, and changes nothing, where two algorithms of a collective would share a name.
    """
    added: dict[tuple[str, str], Algorithm] = {}
    for row in rows:
        key = row.collective, row.name
        if key in _BY_NAME or key in added:
            owner = "ccbench itself" if key in _BY_NAME else added[key].file
            raise ScheduleError(
                f"{row.file}: {row.collective} {row.name} is an algorithm of {owner} already; give it "
                "another name"
            )
        added[key] = row
    _ADDED.clear()
    _ADDED.update(added)
    _made.cache_clear()


def added_algorithms() -> tuple[Algorithm, ...]:
    """Return the rows that ``add_algorithms`` has made available, in their order."""
    return tuple(_ADDED.values())


def algorithms_of(collective: str, added: bool = True) -> tuple[str, ...]:
    """Return names of the algorithms for ``collective``, in the order of the table; UsageError if unknown.

    added: those of the user's files, too, after the table's.
    """
    collective_row(collective)
    rows = (*ALGORITHMS, *_ADDED.values()) if added else ALGORITHMS
    return tuple(row.name for row in rows if row.collective == collective)


def algorithm_row(collective: str, name: str) -> Algorithm:
    """Return the row of the table; UsageError lists the names when there is none."""
    names = algorithms_of(collective)
    if name not in names:
        raise UsageError(
            f"algorithm: {name!r} is not known for {collective}; one of {', '.join(names)}"
        )
    key = collective, name
    return _BY_NAME.get(key) or _ADDED[key]


def parse_algorithm(text: str) -> tuple[str, int | None]:
    """Split ``"chain:8"`` -> ("chain", 8), ``"ring"`` -> ("ring", None); UsageError for anything else."""
    name, colon, number = text.partition(":")
    if not colon and name:
        return name, None
    # isdigit alone would let other scripts' digits through, and int() also takes "+8", " 8" and "1_0".
    if not name or not (number.isascii() and number.isdigit()) or int(number) < 1:
        raise UsageError(
            f"algorithm: {text!r} is not a name or name:number; write 'ring' or 'chain:8'"
        )
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
    """Return the schedule of ``algorithm`` (a name, or ``name:parameter``) on ``ranks`` ranks; cached.

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
    requested = parameter if parameter is not None else named
    if requested and not row.parameter:
        raise ScheduleError(
            f"{where}: parameter {requested}, but {name} has none; write {name!r}"
        )
    resolved = row.default_parameter(ranks, size_bytes) if requested is None else requested
    reason = row.unsupported(ranks, resolved)
    if reason:
        raise ScheduleError(f"{where}: {reason}")
    return _made(collective, name, ranks, root if rooted else 0, resolved, prove)


@lru_cache(maxsize=128)
def _made(
    collective: str, name: str, ranks: int, root: int, parameter: int, prove: bool
) -> Schedule:
    if not prove:
        return relabelled(algorithm_row(collective, name).build(ranks, parameter), root)
    # The same object as unproven: what is known of a schedule is kept by its identity.
    schedule = _made(collective, name, ranks, root, parameter, False)
    prove_schedule(schedule)
    return schedule
