"""Price of a schedule on a host: its steps, one after another.

Per step T = latency + work, Hockney's a + b n (Parallel Computing 20 (1994) 389) read on shared memory:
latency is the flag that the step waits for, work is what the busiest core copies, adds and sets up while
the others share the memory with it. What memory must move at its best bounds every schedule.
docs/model-memory.md has the formulas, their sources and what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ccbench.cases.axes import Case
from ccbench.collectives import Collective, collective
from ccbench.dtypes import item_bytes as bytes_of_item
from ccbench.model import Prediction
from ccbench.model.loads import StepLoad, completed_load, step_loads
from ccbench.model.machine import (
    AVERAGE,
    Floats,
    Machine,
    SharedMemory,
    arithmetic_key,
    calls_of,
)
from ccbench.model.rank_subset import ALL_RANKS, RankSubset, subset_of
from ccbench.schedules.schedule import Schedule
from ccbench.units import format_seconds


def compulsory(
    row: Collective, ranks: int, root: int, subset: RankSubset = ALL_RANKS
) -> tuple[float, float]:
    """Elements that any schedule must read and write, summed over ranks, per element of ``count``.

    Read are input elements that another rank's output depends on, written are output elements that depend on
    another rank's input, each once. Derived from the row's inputs, outputs and origins; zero for one rank and
    for barrier.

    Of all groups of ``subset`` together, each of ``ranks`` ranks.

    Elements that stay on their rank are free, for in place they need not be touched. There is no term
    for additions: fused, they need no traffic beyond reading each operand once.
    """
    if ranks < 2 or not row.moves_data:
        return 0.0, 0.0
    groups, weights = len(subset.groups_of(ranks)), subset.weights(ranks)
    if subset.one_way:
        return 1.0, 1.0
    if weights is not None:
        sent = groups * float(weights.sum() - np.trace(weights))
        return sent, sent
    unit = 1.0 if row.blocked else 1.0 / ranks

    def origins(rank: int) -> set[tuple[int, int]]:
        """Input slots behind the output of ``rank``, of each the first where several are combined."""
        outputs = len(row.outputs(rank, ranks, ranks, root))
        return {row.origins(rank, index, ranks, root)[0] for index in range(outputs)}

    def moved(rank: int) -> tuple[int, int]:
        """Slots that ``rank`` has others read and gets from others."""
        inputs, outputs = (
            len(row.inputs(rank, ranks, ranks, root)),
            len(row.outputs(rank, ranks, ranks, root)),
        )
        if row.reduces:
            return inputs, outputs
        kept = {origin for origin in origins(rank) if origin[0] == rank}
        # A slot that goes to several ranks goes to all of them, so one other rank is asked.
        return inputs - len(kept - origins((rank + 1) % ranks)), outputs - len(kept)

    # Every rank but the root is like the others.
    (read, written), (of_root_read, of_root_written) = moved((root + 1) % ranks), moved(root)
    read, written = of_root_read + (ranks - 1) * read, of_root_written + (ranks - 1) * written
    return groups * float(read) * unit, groups * float(written) * unit


def working_set_bytes(
    row: Collective,
    ranks: int,
    root: int,
    size_of_count: Floats,
    cores: int,
    in_place: bool,
    subset: RankSubset = ALL_RANKS,
) -> Floats:
    """Bytes of all input and output buffers per core at work; work space of a schedule is not counted.

    ranks: of one group of ``subset``, all of whose buffers count.
    size_of_count: bytes of ``count`` elements. This is what passes through a core's caches between two
    uses of the same byte when launches follow each other.
    """

    def buffers(rank: int) -> int:
        used = (
            len(row.inputs(rank, ranks, ranks, root)),
            len(row.outputs(rank, ranks, ranks, root)),
        )
        return max(used) if in_place else sum(used)

    root = max(root, 0)
    groups, weights = len(subset.groups_of(ranks)), subset.weights(ranks)
    # Every rank but the root is like the others.
    used = buffers(root) + (ranks - 1) * buffers((root + 1) % ranks)
    slots = used * (1.0 if row.blocked else 1.0 / ranks)
    if weights is not None:
        slots = 2.0 * float(weights.sum())  # all that is sent and all that is received
    return np.asarray(groups * slots * size_of_count / min(groups * ranks, cores))


def bound_seconds(
    row: Collective,
    ranks: int,
    counts: ArrayLike,
    item_bytes: int,
    machine: Machine,
    root: int = 0,
    in_place: bool = False,
    subset: RankSubset = ALL_RANKS,
) -> Floats:
    """Seconds, shape of ``counts``: the larger of one flag's latency and the compulsory traffic's time.

    No rank can finish before it has heard, directly or not, of another, which takes one flag; and the
    memory system cannot move the compulsory bytes faster than the best traffic ever seen on as many
    cores at that working set.
    """
    fabric = machine.fabric
    size_of_count = np.asarray(counts, dtype=np.float64) * item_bytes
    if ranks < 2:
        return np.zeros_like(size_of_count)
    read, written = compulsory(row, ranks, max(root, 0), subset)
    # The same working set as the price, so that caches favour neither.
    cached = working_set_bytes(row, ranks, root, size_of_count, fabric.cores, in_place, subset)
    working = min(ranks * len(subset.groups_of(ranks)), fabric.cores)
    traffic = fabric.peak_traffic.at(cached, working, fabric.cores)
    memory_seconds = (read + written) * size_of_count / traffic
    return np.asarray(np.maximum(memory_seconds, fabric.best_flag_latency_seconds))


TERMS = FLAGS, OPERATIONS, COPYING, REDUCING, COMPUTING = range(5)
"""Rows of a price."""

TERM_NAMES = ("flags", "operations", "copying", "reducing", "computing")
"""Those terms as fields of Prices."""


@dataclass(frozen=True)
class SchedulePrices:
    """Prices of one schedule at several counts; every array has shape (counts,), in seconds.

    flags: waiting for other ranks. operations: fixed costs of array operations.
    copying, reducing, computing: time that grows with bytes; a reduction counts as reducing where memory
        limits it, as computing where the arithmetic of its type does. bound: see ``bound_seconds``.
    synchronisations: how often a rank waits, entry and exit included.
    arithmetic: what is computed, in words.
    """

    flags: Floats
    operations: Floats
    copying: Floats
    reducing: Floats
    computing: Floats
    bound: Floats
    synchronisations: int
    arithmetic: str

    @property
    def latency(self) -> Floats:
        """The part that does not depend on bytes."""
        return np.asarray(self.flags + self.operations)

    @property
    def bandwidth(self) -> Floats:
        """The part that does."""
        return np.asarray(self.copying + self.reducing + self.computing)

    @property
    def seconds(self) -> Floats:
        """Predicted time of one launch."""
        return np.asarray(self.latency + self.bandwidth)

    def prediction(self, index: int) -> Prediction:
        """The prediction at ``counts[index]``."""
        terms = {
            f"{self.synchronisations} waits for flags": self.flags,
            "fixed cost of array operations": self.operations,
            "copying through memory": self.copying,
            "adding through memory": self.reducing,
            f"arithmetic of {self.arithmetic}": self.computing,
        }
        total, bottleneck = float(self.seconds[index]), "nothing to do"
        if total > 0:
            name, seconds = max(terms.items(), key=lambda term: float(term[1][index]))
            cost = float(seconds[index])
            bottleneck = f"{name}: {cost / total:.0%} ({format_seconds(cost)})"
        parts = float(self.latency[index]), float(self.bandwidth[index])
        return Prediction(float(self.bound[index]), total, *parts, bottleneck)


def price_sizes(
    schedule: Schedule,
    counts: Sequence[int],
    item_bytes: int,
    machine: Machine,
    in_place: bool = False,
    loads: Sequence[StepLoad] | None = None,
    dtype: str = "float32",
    op: str = "sum",
    subset: RankSubset = ALL_RANKS,
) -> SchedulePrices:
    """Price one launch at every count at once.

    counts: elements as in Case.count; item_bytes: bytes of one element. A buffer that is cut into pieces
    is priced as if every piece were its exact share, fractions of an element included.
    loads: what ``step_loads`` gave for this schedule, cores, place and subset, to find them only once.
    dtype, op: what is computed, as in Case; of no account where nothing is reduced or the machine has no
        rate for them.
    subset: the groups that run the schedule at the same time; other ranks stand by and cost nothing.
    """
    fabric = machine.fabric
    row = collective(schedule.collective)
    size_of_count = np.asarray(counts, dtype=np.float64) * (item_bytes if row.moves_data else 0)
    slot_bytes = size_of_count if row.blocked else size_of_count / schedule.pieces
    cached = working_set_bytes(
        row, schedule.ranks, schedule.root, size_of_count, fabric.cores, in_place, subset
    )
    ranks = schedule.ranks * len(subset.groups_of(schedule.ranks))
    terms = np.zeros((len(TERMS), len(size_of_count)))
    steps = step_loads(schedule, fabric.cores, in_place, subset) if loads is None else loads
    # Where the machine does not say how fast it computes, memory alone limits.
    key = arithmetic_key(dtype, "sum" if op == "avg" else op)
    compute_rate = fabric.operation_bytes_per_second.get(key, math.inf)
    for load in steps:
        terms += load.repeat * _step_terms(
            load, slot_bytes, cached, ranks, fabric, compute_rate
        )
    if not steps:
        # Nothing to do is still a call.
        terms[OPERATIONS] += fabric.operation_seconds
    if op == "avg" and row.reduces:
        terms += _average_terms(schedule, slot_bytes, cached, fabric, dtype, subset)
    terms[FLAGS] += 2 * _wait_seconds(schedule.ranks - 1, ranks, fabric)  # on entry and on exit
    bound = bound_seconds(
        row, schedule.ranks, counts, item_bytes, machine, schedule.root, in_place, subset
    )
    waits = sum(load.repeat for load in steps if load.waits) + (2 if schedule.ranks > 1 else 0)
    by_term = dict(zip(TERM_NAMES, terms, strict=True))
    return SchedulePrices(
        **by_term, bound=bound, synchronisations=waits, arithmetic=f"{dtype} {op}"
    )


def _step_terms(
    load: StepLoad,
    slot_bytes: Floats,
    cached: Floats,
    ranks: int,
    fabric: SharedMemory,
    compute_rate: float,
) -> Floats:
    """One step's terms, shape (terms, counts): those of the core that takes longest at each count."""
    # Curves are totals over the cores that work: each gets an equal share of the memory.
    share = max(load.active_cores, 1)
    copy_rate = fabric.copy.at(cached, share, fabric.cores) / share
    reduce_rate = fabric.reduce.at(cached, share, fabric.cores) / share
    computing = reduce_rate > compute_rate
    reductions = load.reduced[:, None] * (slot_bytes / np.minimum(reduce_rate, compute_rate))
    per_core = np.zeros((len(TERMS), len(load.operations), len(slot_bytes)))
    per_core[OPERATIONS] = load.operations[:, None] * fabric.operation_seconds
    per_core[COPYING] = load.copied[:, None] * (slot_bytes / copy_rate)
    per_core[REDUCING] = np.where(computing, 0.0, reductions)
    per_core[COMPUTING] = np.where(computing, reductions, 0.0)
    # A step ends with its slowest core, which may be another one at another size.
    busiest = per_core.sum(axis=0).argmax(axis=0)
    terms = per_core[:, busiest, np.arange(len(slot_bytes))]
    if load.waits:
        terms[FLAGS] = _wait_seconds(max(load.flags, 1), ranks, fabric)
    return np.asarray(terms)


def _average_terms(
    schedule: Schedule,
    slot_bytes: Floats,
    cached: Floats,
    fabric: SharedMemory,
    dtype: str,
    subset: RankSubset,
) -> Floats:
    """One pass in place over what is complete, shape (terms, counts), by whoever reduced it last.

    The pass follows the addition block by block, in the cache, so that memory does not limit it. Where its
    rate is not known it costs as much as copying.
    """
    terms = np.zeros((len(TERMS), len(slot_bytes)))
    load = completed_load(schedule, fabric.cores, subset)
    if load is None:
        return terms
    share = load.active_cores
    rate = fabric.operation_bytes_per_second.get(arithmetic_key(dtype, AVERAGE))
    calls = calls_of(arithmetic_key(dtype, AVERAGE))
    terms[OPERATIONS] = load.operations.max() * calls * fabric.operation_seconds
    if rate is None:
        terms[COPYING] = (
            load.slots.max() * slot_bytes * share / fabric.copy.at(cached, share, fabric.cores)
        )
    else:
        terms[COMPUTING] = load.slots.max() * slot_bytes / rate
    return terms


def _wait_seconds(flags: int, ranks: int, fabric: SharedMemory) -> float:
    """Waiting for ``flags`` other ranks.

    Where ranks share cores, a core must be handed round once before all of its ranks have been heard.
    """
    if flags < 1:
        return 0.0
    seconds = fabric.flag_latency_seconds + (flags - 1) * fabric.flag_check_seconds
    if ranks > fabric.cores:
        seconds += -(-ranks // fabric.cores) * fabric.yield_seconds
    return seconds


def predict(case: Case, machine: Machine, schedule: Schedule) -> Prediction:
    """The prediction for one launch of ``case`` when each of its groups runs ``schedule``."""
    return case_prices(case, machine, schedule).prediction(0)


def case_prices(
    case: Case, machine: Machine, schedule: Schedule, loads: Sequence[StepLoad] | None = None
) -> SchedulePrices:
    """The price of one launch of ``case`` without its concurrent collective; loads as in ``price_sizes``."""
    item, counts = bytes_of_item(case.dtype), [case.count]
    return price_sizes(
        schedule,
        counts,
        item,
        machine,
        case.in_place,
        loads,
        case.dtype,
        case.op,
        subset_of(case),
    )
