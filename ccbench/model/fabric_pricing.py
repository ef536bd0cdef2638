"""Costs of a schedule on a fabric, all sizes of a sweep at once.

T = sum over steps of (sender + latency of the slowest way + the longer of slot bytes x worst link and of the
busiest rank's messages after its first). Combining what was received costs nothing: GPUs do it while they
copy, in what the links' efficiency already holds. Steps follow one another for all ranks together; within a
step all flows run at once and share links fairly. docs/model-links.md has the formulas, their sources, and
what is left out.

The cost of a pipeline for any number of pieces follows from one look at its edges. An edge that is busy from
its start for k steps (k pieces) covers an interval of steps. A link that is shared by edges of different
starts carries their sum where their intervals overlap; the worst link of each step follows from the
intervals, so no step is looked at one by one. With every step at a + b n / k the total is
(d + k - 1)(a + b n / k), least at k = sqrt((d - 1) b n / a), where it is (sqrt((d - 1) a) + sqrt(b n))^2: the
term 2 sqrt((d - 1) a b n) of pipelines (Hockney's a and b; Pjesivac-Grbovic et al., 2007).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import ArrayLike

from ccbench.errors import MachineError
from ccbench.model.bounds import moved_sizes
from ccbench.model.fabric_loads import FabricCosts, FabricStepLoad, LinkTable, pattern_loads
from ccbench.model.traffic_patterns import (
    AlgorithmTraffic,
    PipelineSteps,
    traffic_for,
    traffic_of,
)
from ccbench.schedules.schedule import Schedule
from ccbench.topology.fabrics import Fabric, Floats, Ints
from ccbench.units import plural

MOST_PIECES_UNDER_WAY = 4096


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Costs ``value[i]`` in every step in which what starts at first[i] and at last[i] is both busy.

    place: the link (or rank) that costs it.
    """

    first: Ints
    last: Ints
    value: Floats
    place: Ints

    @cached_property
    def even(self) -> float | None:
        """The one value of all steps, where it is the same whatever is busy; None otherwise."""
        alone = self.first[self.first == self.last]
        unbroken = len(alone) == int(self.last.max()) + 1
        return (
            float(self.value[0]) if unbroken and self.value.min() == self.value.max() else None
        )

    def per_step(self, steps: int, pieces: int) -> Floats:
        """The largest value in each of ``steps`` steps when everything is busy for ``pieces`` steps."""
        if self.even is not None:
            return np.full(steps, self.even)
        # What starts at first and at last overlaps from last on until first's pieces have passed.
        together = self.last - self.first < pieces
        if not together.any():
            return np.zeros(steps)
        begin, end, value = (
            self.last[together],
            self.first[together] + pieces,
            self.value[together],
        )
        levels = int((end - begin).max()).bit_length()
        best = np.zeros((levels, steps))
        # The largest power of two that fits: two such intervals, one from either end, cover the whole.
        level = np.frexp((end - begin).astype(np.float64))[1] - 1
        once = bool(np.all(np.diff(begin) > 0) and np.all(np.diff(end) > 0))
        if once and bool(np.all(level == levels - 1)):
            # Every place occurs once, as in chains: plain indexing, which is many times faster.
            top, second = best[-1], end - (1 << (levels - 1))
            top[begin] = value
            top[second] = np.maximum(top[second], value)
        else:
            np.maximum.at(best, (level, begin), value)
            np.maximum.at(best, (level, end - (1 << level)), value)
        # What holds for an interval holds for both of its halves.
        for level_above in range(levels - 1, 0, -1):
            half = 1 << (level_above - 1)
            np.maximum(best[level_above - 1], best[level_above], out=best[level_above - 1])
            if half < steps:
                np.maximum(
                    best[level_above - 1, half:],
                    best[level_above, :-half],
                    out=best[level_above - 1, half:],
                )
        return np.asarray(best[0])


def overlaps(place: Ints, start: Ints, cost_of_place: Floats, starts: int) -> Overlaps:
    """All overlaps of what happens at the same place, each time at the place's cost; these add up.

    Only the costliest place is kept for each pair of first and last start.
    """
    keys, times = np.unique(place * starts + start, return_counts=True)
    where, begin = keys // starts, keys % starts
    cost = times * cost_of_place[where]
    # Sums over runs of starts at one place, by differences of one running sum.
    before = np.concatenate([[0.0], np.cumsum(cost)])
    rows = []
    for reach in range(min(len(keys), MOST_PIECES_UNDER_WAY)):
        together = np.flatnonzero(where[reach:] == where[: len(where) - reach])
        if not len(together):
            break
        total = before[together + reach + 1] - before[together] if reach else cost
        pair = begin[together] * starts + begin[together + reach]
        order = np.lexsort((total, pair))
        last = np.append(pair[order][1:] != pair[order][:-1], True)
        chosen = order[last]
        rows.append((pair[chosen], total[chosen], where[together][chosen]))
    pairs, totals, places = (np.concatenate(column) for column in zip(*rows, strict=True))
    return Overlaps(pairs // starts, pairs % starts, totals, places)


@dataclass(frozen=True, eq=False)
class PipelineLoad:
    """A pipeline on a fabric; ``starts`` is how many steps the first piece takes to reach every edge.

    latency: of each start's slowest way. links: slots x seconds per byte. hops: of the slowest way.
    messages: how many a rank sends, or takes; each but the first takes ``message_seconds``, as over the
        costliest link.
    """

    starts: int
    latency: Overlaps
    links: Overlaps
    hops: int
    messages: Overlaps
    message_seconds: float
    cache: dict[int, PipelineTotals] = field(default_factory=dict)

    def totals(self, pieces: int) -> PipelineTotals:
        """Sums over all steps when ``pieces`` pieces are under way; found once."""
        if pieces not in self.cache:
            steps = self.starts + pieces - 1
            latency, cost, messages = (
                steps_of.per_step(steps, pieces)
                for steps_of in (self.latency, self.links, self.messages)
            )
            further = (messages - 1) * self.message_seconds
            many = further > 0  # in no step of a chain, however long it is
            totals = PipelineTotals(
                steps, float(latency.sum()), float(cost.sum()), further[many], cost[many]
            )
            self.cache[pieces] = totals
        return self.cache[pieces]

    def bottleneck(self, pieces: int) -> tuple[int, float]:
        """The link that costs most while ``pieces`` pieces are under way, and its seconds per slot byte."""
        together = np.flatnonzero(self.links.last - self.links.first < pieces)
        worst = together[self.links.value[together].argmax()]
        return int(self.links.place[worst]), float(self.links.value[worst])


def beyond_bytes(
    further_seconds: Floats, seconds_per_slot_byte: Floats, slot_bytes: Floats
) -> Floats:
    """Seconds by which a rank's messages after its first outlast their steps' bytes, shape (steps, sizes).

    LogGP's o + (m - 1) max(o, k G) + k G, but for the bytes k of the last of m messages: these go meanwhile.
    """
    moving = seconds_per_slot_byte[:, None] * slot_bytes
    return np.asarray(np.maximum(further_seconds[:, None] - moving, 0.0))


@dataclass(frozen=True)
class PipelineTotals:
    """Sums over the steps of a pipeline: seconds of latency, seconds per slot byte.

    further, cost: of each step in which a rank has more than one message, seconds of those after its first,
        and seconds per slot byte.
    """

    steps: int
    latency_seconds: float
    seconds_per_slot_byte: float
    further: Floats
    cost: Floats


def pipeline_load(table: LinkTable, pipeline: PipelineSteps) -> PipelineLoad | None:
    """The load of ``pipeline``; None where it has no edge."""
    if not len(pipeline.source):
        return None
    starts = int(pipeline.start.max()) + 1
    links, begins, latencies = [], [], []
    hops, each = 0, 0.0
    for part, ids in table.routed(pipeline.source, pipeline.target):
        used = ids >= 0
        hops = max(hops, int(used.sum(axis=1).max()))
        links.append(ids[used])
        begins.append(np.repeat(pipeline.start[part], used.sum(axis=1)))
        latencies.append(table.latency[ids].sum(axis=1))
        each = max(each, float(table.message_seconds[ids].max()))
    slowest = np.zeros(starts)
    np.maximum.at(slowest, pipeline.start, np.concatenate(latencies))
    link = np.concatenate(links)
    every = np.arange(starts)
    # What a rank sends and what it takes are counted apart, as if it were two.
    handling = np.concatenate([pipeline.source, table.ranks + pipeline.target])
    return PipelineLoad(
        starts,
        Overlaps(every, every, slowest, every),
        overlaps(link, np.concatenate(begins), table.seconds_per_byte, starts),
        hops,
        overlaps(handling, np.tile(pipeline.start, 2), np.ones(2 * table.ranks), starts),
        each,
    )


def piece_counts(most: int = MOST_PIECES_UNDER_WAY) -> Ints:
    """Numbers of pieces worth trying: all up to 8, then steps of at most a quarter, so within 1% of the best.

    a + b k + c / k is flat at its minimum: 12% beside it the part that depends on k is 0.7% higher.
    """
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, int(counts[-1] * 1.25))))
    return np.array(counts, dtype=np.int64)


PLAIN = FabricCosts()
"""Costs that the fabric itself states, and nothing more."""


@dataclass(frozen=True, eq=False)
class FabricLoads:
    """A traffic on a fabric with costs, without a size: steps, and pipelines for any number of pieces."""

    traffic: AlgorithmTraffic
    fabric: Fabric
    costs: FabricCosts
    steps: tuple[FabricStepLoad, ...]
    pipelines: tuple[PipelineLoad, ...]

    @cached_property
    def rates(self) -> Floats:
        """Usable bytes per second of each link."""
        return self.costs.rates(self.fabric)


@dataclass(frozen=True, eq=False)
class FabricPrices:
    """Prices at several sizes; arrays have shape (sizes,), in seconds unless said otherwise.

    latency: sender overhead and the way of the first byte, step by step. bandwidth: bytes through each
    step's worst link. messages: what a rank's further messages take longer than those. pieces: how many
    pieces a pipeline was cut into at each size, 0 where there is none.
    """

    size_bytes: Floats
    latency: Floats
    messages: Floats
    bandwidth: Floats
    pieces: Ints
    loads: FabricLoads

    @property
    def seconds(self) -> Floats:
        """Predicted time of one launch."""
        return np.asarray(self.latency + self.messages + self.bandwidth)

    def bottleneck_link(self, index: int) -> tuple[int, float, float]:
        """The link on which most seconds are spent at ``size_bytes[index]``, its load in bytes, the seconds.

        Of links of the same rate one stands for all: the seconds are those of all steps whose worst link has
        that rate, the load is the largest that one of them has in a step. -1 where there is no step.
        """
        pieces, rates = int(self.pieces[index]), self.loads.rates
        slot = float(self.size_bytes[index]) / (self.loads.traffic.pieces * max(1, pieces))
        spent = [
            (step.link, step.load, step.repeat * step.seconds_per_slot_byte)
            for step in self.loads.steps
        ]
        for pipeline in self.loads.pipelines:
            link, cost = pipeline.bottleneck(pieces)
            load = cost * float(rates[link])
            spent.append((link, load, pipeline.totals(pieces).seconds_per_slot_byte))
        of_rate: dict[float, list[tuple[int, float, float]]] = {}
        for use in spent:
            of_rate.setdefault(float(rates[use[0]]), []).append(use)
        if not of_rate:
            return -1, 0.0, 0.0
        # Equal links share the blame: naming one of eight NICs as the bottleneck would hide seven eighths
        # of the time.
        alike = max(of_rate.values(), key=lambda group: sum(seconds for _, _, seconds in group))
        link, load, _ = max(alike, key=lambda use: use[1])
        return link, load * slot, sum(seconds for _, _, seconds in alike) * slot

    def explanation(self, index: int) -> str:
        """One sentence: the split in percent, the worst link by name with its load, steps and hops.

        Parts of less than half a percent are not told.
        """
        total = float(self.seconds[index])
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
            name, rate = self.loads.fabric.link_name(link), self.loads.rates[link]
            carried = f"up to {load / factor:.4g} {unit} through it in a step"
            words = f"bandwidth ({name}, {rate / 1e9:.4g} GB/s, {carried}{most})"
            parts.append((float(self.bandwidth[index]), words))
        plain, pipelines = self.loads.steps, self.loads.pipelines
        if self.messages[index] > 0:
            busiest = [load.messages for load in plain] + [
                load.messages.value.max() for load in pipelines
            ]
            words = f"messages (up to {max(busiest):,.0f} of one rank in a step)"
            parts.append((float(self.messages[index]), words))
        if self.latency[index] > 0:
            hops = max(
                [load.hops for load in plain] + [load.hops for load in pipelines], default=0
            )
            steps = sum(load.repeat for load in plain)
            steps += sum(load.starts + int(self.pieces[index]) - 1 for load in pipelines)
            words = f"latency of {plural(steps, 'step')} over up to {plural(hops, 'link')}"
            parts.append((float(self.latency[index]), words))
        parts.sort(key=lambda part: -part[0])
        significant = [part for part in parts if part[0] >= 0.005 * total]
        return "; ".join(f"{seconds / total:.0%} {words}" for seconds, words in significant)


@dataclass(eq=False)
class _Kept:
    """Loads found for a fabric with costs: of patterns by number of ranks, of traffics, of schedules.

    Nothing here holds the fabric, nor a key: it is kept as long as somebody else holds what it is of.
    """

    patterns: dict[int, dict[Hashable, Any]] = field(default_factory=dict)
    loads: WeakKeyDictionary[
        Schedule | AlgorithmTraffic, tuple[tuple[FabricStepLoad, ...], tuple[PipelineLoad, ...]]
    ] = field(default_factory=WeakKeyDictionary)


_KEPT: WeakKeyDictionary[Fabric, WeakKeyDictionary[FabricCosts, _Kept]] = WeakKeyDictionary()


def fabric_loads(
    what: Schedule | AlgorithmTraffic, fabric: Fabric, costs: FabricCosts = PLAIN
) -> FabricLoads:
    """The loads of a schedule or traffic; found once for the same three values.

    Raises MachineError where the fabric has too few ranks or the costs do not fit it.
    """
    traffic = traffic_of(what) if isinstance(what, Schedule) else what
    if traffic.ranks > fabric.ranks:
        raise MachineError(
            f"{traffic.collective} {traffic.algorithm}: {traffic.ranks} ranks, but {fabric.name} has "
            f"{fabric.ranks}; describe a larger fabric"
        )
    kept = _KEPT.setdefault(fabric, WeakKeyDictionary()).setdefault(costs, _Kept())
    if what not in kept.loads:
        table = LinkTable(
            fabric, costs, traffic.ranks, kept.patterns.setdefault(traffic.ranks, {})
        )
        steps: list[FabricStepLoad] = []
        pipelines: list[PipelineLoad] = []
        for pattern in traffic.patterns:
            if isinstance(pattern, PipelineSteps):
                load = pipeline_load(table, pattern)
                pipelines += [load] if load else []
            else:
                steps += pattern_loads(table, pattern)
        kept.loads[what] = tuple(steps), tuple(pipelines)
    return FabricLoads(traffic, fabric, costs, *kept.loads[what])


def price_loads(loads: FabricLoads, size_bytes: ArrayLike) -> FabricPrices:
    """Prices at every size; pipelines take the number of pieces that is fastest at each.

    Raises MachineError for sizes that cannot be.
    """
    sizes = moved_sizes(loads.traffic.collective, size_bytes)
    slot, sender = sizes / loads.traffic.pieces, loads.costs.sender_seconds
    repeat, latency, further, cost = (
        np.array([getattr(step, name) for step in loads.steps], dtype=np.float64)
        for name in ("repeat", "latency_seconds", "further_seconds", "seconds_per_slot_byte")
    )
    many = further > 0  # in most algorithms a rank sends one message in a step
    waiting = repeat[many] @ beyond_bytes(further[many], cost[many], slot)
    terms = np.stack(
        [np.full_like(slot, repeat @ (latency + sender)), waiting, float(repeat @ cost) * slot]
    )
    chosen = np.zeros(len(sizes), dtype=np.int64)
    if loads.pipelines:
        fixed = loads.traffic.pieces_under_way
        counts = piece_counts() if fixed is None else np.array([fixed])
        options = []
        for pieces in counts.tolist():
            # One pipeline after the other, with so many pieces under way in each.
            totals = [load.totals(pieces) for load in loads.pipelines]
            waits = sum(total.latency_seconds for total in totals)
            waits += sum(total.steps for total in totals) * sender
            per_byte = sum(total.seconds_per_slot_byte for total in totals)
            piece = slot / pieces
            beyond = sum(
                beyond_bytes(total.further, total.cost, piece).sum(axis=0) for total in totals
            )
            options.append(np.stack([np.full_like(slot, waits), beyond, per_byte * piece]))
        # All numbers of pieces at all sizes; each size takes its own best.
        every = np.stack(options)
        best = every.sum(axis=1).argmin(axis=0)
        terms += every[best, :, np.arange(len(sizes))].T
        chosen = counts[best]
    waits, messages, bandwidth = terms
    return FabricPrices(sizes, waits, messages, bandwidth, chosen, loads)


def price_algorithm(
    collective: str,
    algorithm: str,
    fabric: Fabric,
    size_bytes: ArrayLike,
    costs: FabricCosts = PLAIN,
    root: int = 0,
) -> FabricPrices:
    """The price of ``algorithm`` (a name or ``name:parameter``) on all ranks of the fabric.

    size_bytes: in the sense of nccl-tests, one or many. Pipelines without a parameter take the number of
    pieces that is fastest at each size. Works for any number of ranks, those included for which no schedule
    can be listed. Raises UsageError and ScheduleError as ``schedule_for`` does, and MachineError as
    ``fabric_loads`` and ``price_loads`` do.
    """
    traffic = traffic_for(collective, algorithm, fabric.ranks, root)
    return price_loads(fabric_loads(traffic, fabric, costs), size_bytes)
