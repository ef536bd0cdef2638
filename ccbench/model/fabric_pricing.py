"""Costs of a schedule on a fabric, all sizes of a sweep at once.

T = sum over steps of (sender + latency of the slowest way + the longer of slot bytes x worst link and of the
busiest rank's messages after its first). The worst link is the one whose flows, each with a fair share of it,
take longest (Hockney's model with contention; Parallel Computing 20 (1994) 389); messages are those of LogGP
(Alexandrov et al., SPAA 1995). Combining what was received costs nothing: GPUs do it while they copy, in what
the links' efficiency already holds. Steps follow one another for all ranks together; within a step all flows
run at once. Every step is looked at, flow by flow, and no load depends on the size, so that a sweep over sizes
costs nothing more. links.yaml has the sources, docs/model.md what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from ccbench.errors import MachineError
from ccbench.model.bounds import moved_sizes
from ccbench.schedules import OF_EACH, PIECES, algorithm_row, parse_algorithm, schedule_for
from ccbench.schedules.schedule import Indices, Phase, Schedule
from ccbench.topology.fabrics import Fabric, Floats, Ints
from ccbench.units import plural

# Values that hold arrays are equal only to themselves (eq=False), as phases are.

MOST_RANKS = 2048
"""Up to as many ranks a schedule is priced: all pairs of them are four million flows."""

MOST_FLOWS_AT_ONCE = 262_144
"""Flows routed in one go; more at once are slower, for they no longer fit the caches."""

PIECE_COUNTS = tuple(1 << power for power in range(13))
"""Numbers of pieces that are tried. a + b k + c / k is flat at its minimum: sqrt(2) beside it the part that
depends on k is 6% higher, and that part is at most half of the time."""


@dataclass(frozen=True, eq=False)
class FabricCosts:
    """Costs of a message beyond what the fabric itself states.

    sender_seconds: of a rank's first message in a step, before it is on its way.
    link_latency_seconds: instead of the fabric's.
    rate_efficiency: what is usable of a link's rate, above 0 and at most 1.
    message_seconds: for which a rank is busy with each further message over the link: LogP's o, or its gap g
        where that is longer.

    All but the first are one number, or one per link.
    """

    sender_seconds: float = 0.0
    link_latency_seconds: float | Floats | None = None
    rate_efficiency: float | Floats = 1.0
    message_seconds: float | Floats = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.sender_seconds < math.inf:
            raise MachineError(
                f"sender_seconds: {self.sender_seconds} is not a number of seconds"
            )

    def of_links(self, name: str, fabric: Fabric) -> Floats:
        """The field ``name`` for each link. Raises MachineError where it does not fit the fabric."""
        value = getattr(self, name)
        values = np.asarray(
            fabric.link_latency_seconds if value is None else value, dtype=np.float64
        )
        right, range_text = (values >= 0) & np.isfinite(values), "zero or more"
        if name == "rate_efficiency":
            right, range_text = (values > 0) & (values <= 1), "above 0 and at most 1"
        if values.shape not in {(), (fabric.links,)} or not bool(right.all()):
            raise MachineError(
                f"{name}: not {range_text} for each of {fabric.links} links of {fabric.name}; give one number, "
                "or one per link"
            )
        return np.broadcast_to(values, (fabric.links,))


PLAIN = FabricCosts()
"""Costs that the fabric itself states, and nothing more."""


@dataclass(frozen=True, eq=False)
class RepeatedSteps:
    """``turns`` steps in which ``width[i]`` slots go from ``source[i]`` to ``target[i]``, all i at once.

    source_move, target_move: added to all sources and targets after each step, modulo the ranks.
    """

    source: Ints | Indices
    target: Ints | Indices
    width: Ints | Indices
    turns: int = 1
    source_move: int = 0
    target_move: int = 0

    def moved(self, turn: int, ranks: int) -> tuple[Ints, Ints]:
        """Return sources and targets of a turn; schedules keep 32 bits, in which products would not fit."""
        source, target = (ends.astype(np.int64) for ends in (self.source, self.target))
        return (
            (source + turn * self.source_move) % ranks,
            (target + turn * self.target_move) % ranks,
        )

    def counted_turns(self, ranks: int) -> list[tuple[int, int]]:
        """Return the turns to look at, and for how many each stands: one where all have the same flows."""
        alike = (self.source_move - self.target_move) % ranks == 0
        if self.turns > 1 and alike:
            first, second = (
                np.unique(np.stack([*self.moved(turn, ranks), self.width]), axis=1)
                for turn in (0, 1)
            )
            if np.array_equal(first, second):
                return [(0, self.turns)]
        return [(turn, 1) for turn in range(self.turns)]


@dataclass(frozen=True, eq=False)
class AlgorithmTraffic:
    """An algorithm's steps, one after the other; pieces: slots in the size of the collective."""

    collective: str
    algorithm: str
    ranks: int
    pieces: int
    patterns: tuple[RepeatedSteps, ...]


def steps_of(phase: Phase) -> RepeatedSteps:
    """Return the messages of ``phase``, one by one: what goes between the same two ranks is one."""
    ranks, move = int(phase.target.max(initial=0)) + 1, phase.advance
    pairs, message = np.unique(
        phase.source.astype(np.int64) * ranks + phase.target, return_inverse=True
    )
    width = np.bincount(message, phase.width).astype(np.int64)
    return RepeatedSteps(
        pairs // ranks, pairs % ranks, width, phase.repeat, move.source, move.target
    )


def traffic_of(schedule: Schedule) -> AlgorithmTraffic:
    """Return what ``schedule`` sends."""
    patterns = tuple(map(steps_of, schedule.phases))
    return AlgorithmTraffic(
        schedule.collective, schedule.algorithm, schedule.ranks, schedule.pieces, patterns
    )


@dataclass(frozen=True)
class FabricStepLoad:
    """``repeat`` equal steps.

    latency_seconds, hops: of the slowest way. seconds_per_slot_byte: of the worst link, whose number is
    ``link`` and through which ``load`` slots go. messages: the most that one rank sends, or takes.
    further_seconds: of the busiest rank's messages after its first, which is the cheapest.
    """

    repeat: int
    latency_seconds: float
    hops: int
    seconds_per_slot_byte: float
    link: int
    load: float
    messages: int
    further_seconds: float


class LinkTable:
    """A fabric's links with what they cost; routes flows and adds up what goes through each link."""

    def __init__(self, fabric: Fabric, costs: FabricCosts) -> None:
        self.fabric = fabric
        # The last entry is what the -1 of a route points at.
        self.latency, self.message_seconds = (
            np.append(costs.of_links(name, fabric), 0.0)
            for name in ("link_latency_seconds", "message_seconds")
        )
        self.rates = fabric.link_bytes_per_second * costs.of_links("rate_efficiency", fabric)
        self.seconds_per_byte = 1.0 / self.rates

    def routed(self, source: Ints, target: Ints) -> Iterator[tuple[slice, Ints]]:
        """Link ids of the flows, -1 for none, part by part. No flow may be local."""
        for start in range(0, len(source), MOST_FLOWS_AT_ONCE):
            part = slice(start, start + MOST_FLOWS_AT_ONCE)
            yield part, self.fabric.router(source[part], target[part])

    def carried(self, ids: Ints, width: Ints) -> Floats:
        """Slots through each link when row i carries ``width[i]``."""
        weights = np.repeat(width, ids.shape[1])
        return np.asarray(np.bincount(ids.ravel() + 1, weights, self.fabric.links + 1)[1:])

    def load(self, source: Ints, target: Ints, width: Ints) -> FabricStepLoad | None:
        """One step's load; None where all its flows are local."""
        apart = source != target
        source, target, width = source[apart], target[apart], width[apart]
        if not len(source):
            return None
        slots = np.zeros(self.fabric.links)
        ways, own_seconds = [], []
        for part, ids in self.routed(source, target):
            slots += self.carried(ids, width[part])
            seconds, hops = self.latency[ids].sum(axis=1), (ids >= 0).sum(axis=1)
            slowest = seconds.max()
            ways.append((float(slowest), int(hops[seconds == slowest].max())))
            own_seconds.append(self.message_seconds[ids].max(axis=1))
        busy = slots * self.seconds_per_byte
        link = int(busy.argmax())
        messages = max(int(np.bincount(ends).max()) for ends in (source, target))
        further = 0.0
        if messages > 1:
            each = np.concatenate(own_seconds)
            busiest = max(float(np.bincount(ends, each).max()) for ends in (source, target))
            further = busiest - float(each.min())
        return FabricStepLoad(
            1, *max(ways), float(busy[link]), link, float(slots[link]), messages, further
        )

    def loads(self, steps: RepeatedSteps, ranks: int) -> Iterator[FabricStepLoad]:
        """Yield the loads of all turns, of equal ones together."""
        width = steps.width.astype(np.int64)
        for turn, repeat in steps.counted_turns(ranks):
            load = self.load(*steps.moved(turn, ranks), width)
            if load is not None:
                yield replace(load, repeat=repeat)


@dataclass(frozen=True, eq=False)
class FabricLoads:
    """A traffic on a fabric with costs, without a size."""

    traffic: AlgorithmTraffic
    table: LinkTable
    steps: tuple[FabricStepLoad, ...]
    sender_seconds: float


Steps = tuple[FabricStepLoad, ...]
_KEPT: WeakKeyDictionary[
    Fabric,
    WeakKeyDictionary[
        FabricCosts,
        WeakKeyDictionary[Schedule | AlgorithmTraffic, tuple[AlgorithmTraffic, Steps]],
    ],
] = WeakKeyDictionary()
"""What was found. Nothing in it holds a key: it is kept as long as somebody else holds what it is of."""


def fabric_loads(
    what: Schedule | AlgorithmTraffic, fabric: Fabric, costs: FabricCosts = PLAIN
) -> FabricLoads:
    """The loads of a schedule or traffic; found once for the same three values.

    Raises MachineError where the fabric has too few ranks or the costs do not fit it.
    """
    if what.ranks > fabric.ranks:
        raise MachineError(
            f"{what.collective} {what.algorithm}: {what.ranks} ranks, but {fabric.name} has "
            f"{fabric.ranks}; describe a larger fabric"
        )
    table = LinkTable(fabric, costs)
    kept = _KEPT.setdefault(fabric, WeakKeyDictionary()).setdefault(costs, WeakKeyDictionary())
    if what not in kept:
        traffic = traffic_of(what) if isinstance(what, Schedule) else what
        every = (table.loads(pattern, what.ranks) for pattern in traffic.patterns)
        # A traffic is kept by its own weak key: held here it would never go.
        kept[what] = replace(traffic), tuple(load for loads in every for load in loads)
    traffic, steps = kept[what]
    return FabricLoads(traffic, table, steps, costs.sender_seconds)


@dataclass(frozen=True, eq=False)
class FabricPrices:
    """Prices at several sizes; arrays have shape (sizes,), in seconds unless said otherwise.

    latency: sender overhead and the way of the first byte, step by step. bandwidth: bytes through each
    step's worst link. messages: what a rank's further messages take longer than those. pieces: how many
    pieces a pipeline was cut into at each size, 0 where there is none. loads: at each size.
    """

    size_bytes: Floats
    latency: Floats
    messages: Floats
    bandwidth: Floats
    pieces: Ints
    loads: tuple[FabricLoads, ...]

    @property
    def seconds(self) -> Floats:
        """Predicted time of one launch."""
        return np.asarray(self.latency + self.messages + self.bandwidth)

    def bottleneck_link(self, index: int) -> tuple[int, float, float]:
        """The link on which most seconds are spent at ``size_bytes[index]``, its load in bytes, the seconds.

        Of links of the same rate one stands for all: the seconds are those of all steps whose worst link has
        that rate, the load is the largest that one of them has in a step. -1 where there is no step.
        """
        loads = self.loads[index]
        slot = float(self.size_bytes[index]) / loads.traffic.pieces
        of_rate: dict[float, list[FabricStepLoad]] = {}
        for step in loads.steps:
            of_rate.setdefault(float(loads.table.rates[step.link]), []).append(step)
        if not of_rate:
            return -1, 0.0, 0.0

        def spent(steps: list[FabricStepLoad]) -> float:
            return sum(step.repeat * step.seconds_per_slot_byte for step in steps)

        # Equal links share the blame: naming one of eight NICs as the bottleneck would hide seven eighths
        # of the time.
        alike = max(of_rate.values(), key=spent)
        worst = max(alike, key=lambda step: step.load)
        return worst.link, worst.load * slot, spent(alike) * slot

    def explanation(self, index: int) -> str:
        """One sentence: the split in percent, the worst link by name with its load, steps and hops.

        Parts of less than half a percent are not told.
        """
        total, loads = float(self.seconds[index]), self.loads[index]
        if total <= 0:
            return "nothing to do"
        parts = []
        if self.bandwidth[index] > 0:
            link, load, seconds = self.bottleneck_link(index)
            share = seconds / float(self.bandwidth[index])
            most = "" if share > 0.995 else f"; links of this rate limit {share:.0%} of it"
            # In decimal units, as people divide bytes by GB/s.
            units = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
            factor, unit = next((unit for unit in units if load >= unit[0]), units[-1])
            name, rate = loads.table.fabric.link_name(link), loads.table.rates[link]
            carried = f"up to {load / factor:.4g} {unit} through it in a step"
            words = f"bandwidth ({name}, {rate / 1e9:.4g} GB/s, {carried}{most})"
            parts.append((float(self.bandwidth[index]), words))
        if self.messages[index] > 0:
            busiest = max(step.messages for step in loads.steps)
            words = f"messages (up to {busiest:,.0f} of one rank in a step)"
            parts.append((float(self.messages[index]), words))
        if self.latency[index] > 0:
            hops = max(step.hops for step in loads.steps)
            steps = sum(step.repeat for step in loads.steps)
            words = f"latency of {plural(steps, 'step')} over up to {plural(hops, 'link')}"
            parts.append((float(self.latency[index]), words))
        parts.sort(key=lambda part: -part[0])
        significant = [part for part in parts if part[0] >= 0.005 * total]
        return "; ".join(f"{seconds / total:.0%} {words}" for seconds, words in significant)


def price_loads(loads: FabricLoads, size_bytes: ArrayLike, pieces: int = 0) -> FabricPrices:
    """Prices at every size. pieces: into which a pipeline is cut, for the record.

    Raises MachineError for sizes that cannot be.
    """
    sizes = moved_sizes(loads.traffic.collective, size_bytes)
    slot = sizes / loads.traffic.pieces
    repeat, latency, further, cost = (
        np.array([getattr(step, name) for step in loads.steps], dtype=np.float64)
        for name in ("repeat", "latency_seconds", "further_seconds", "seconds_per_slot_byte")
    )
    # LogGP's o + (m - 1) max(o, k G) + k G, but for the bytes k of the last of m messages: these go meanwhile.
    beyond = np.maximum(further[:, None] - cost[:, None] * slot, 0.0)
    return FabricPrices(
        sizes,
        np.full_like(slot, repeat @ (latency + loads.sender_seconds)),
        repeat @ beyond,
        float(repeat @ cost) * slot,
        np.full(len(sizes), pieces),
        (loads,) * len(sizes),
    )


def price_algorithm(
    collective: str,
    algorithm: str,
    fabric: Fabric,
    size_bytes: ArrayLike,
    costs: FabricCosts = PLAIN,
    root: int = 0,
) -> FabricPrices:
    """The price of ``algorithm`` (a name or ``name:parameter``) on all ranks of the fabric.

    size_bytes: in the sense of nccl-tests, one or many. Pipelines without a parameter take the fastest of
    ``PIECE_COUNTS`` at each size. Raises UsageError and ScheduleError as ``schedule_for`` does, and
    MachineError as ``fabric_loads`` and ``price_loads`` do, and for more than ``MOST_RANKS`` ranks.
    """
    name, parameter = parse_algorithm(algorithm)
    pipelined = algorithm_row(collective, name).parameter in (PIECES, OF_EACH)
    if fabric.ranks > MOST_RANKS:
        raise MachineError(
            f"{collective} {algorithm}: schedules are priced on {MOST_RANKS} ranks at most, these are "
            f"{fabric.ranks}; --model nccl prices more"
        )
    if not pipelined or parameter is not None:
        schedule = schedule_for(collective, algorithm, fabric.ranks, root, prove=False)
        return price_loads(fabric_loads(schedule, fabric, costs), size_bytes, parameter or 0)
    called = collective, name, fabric.ranks, root
    options = [
        price_loads(
            fabric_loads(schedule_for(*called, pieces, prove=False), fabric, costs),
            size_bytes,
            pieces,
        )
        for pieces in PIECE_COUNTS
    ]
    best = np.stack([option.seconds for option in options]).argmin(axis=0).tolist()
    latency, messages, bandwidth, pieces = (
        np.array([getattr(options[choice], field)[place] for place, choice in enumerate(best)])
        for field in ("latency", "messages", "bandwidth", "pieces")
    )
    loads = tuple(options[choice].loads[place] for place, choice in enumerate(best))
    return FabricPrices(options[0].size_bytes, latency, messages, bandwidth, pieces, loads)
