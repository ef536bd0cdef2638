"""What a pipeline costs for any number of pieces, from one look at its edges.

An edge that is busy from its start for k steps (k pieces) covers an interval of steps. A link that is shared
by edges of different starts carries their sum where their intervals overlap; the worst link of each step
follows from the intervals, so no step is looked at one by one. With every step at a + b n / k the total is
(d + k - 1)(a + b n / k), least at k = sqrt((d - 1) b n / a), where it is (sqrt((d - 1) a) + sqrt(b n))^2: the
term 2 sqrt((d - 1) a b n) of pipelines (Hockney's a and b; Pjesivac-Grbovic et al., 2007).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from ccbench.model.fabric_loads import LinkTable
from ccbench.model.patterns import Pipeline
from ccbench.topology.routing import Floats, Ints

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
        return float(self.value[0]) if unbroken and self.value.min() == self.value.max() else None

    def per_step(self, steps: int, pieces: int) -> Floats:
        """The largest value in each of ``steps`` steps when everything is busy for ``pieces`` steps."""
        if self.even is not None:
            return np.full(steps, self.even)
        together = self.last - self.first < pieces
        begin = self.last[together]
        end = self.first[together] + pieces
        return _covered(begin, end, self.value[together], steps)


def _covered(begin: Ints, end: Ints, value: Floats, steps: int) -> Floats:
    """Largest value of the intervals [begin, end) that cover each step, 0 where none does.

    Every interval is the union of two of equal length, a power of two; those are handed down by halves.
    """
    if not len(begin):
        return np.zeros(steps)
    levels = int((end - begin).max()).bit_length()
    best = np.zeros((levels, steps))
    level = np.frexp((end - begin).astype(np.float64))[1] - 1
    if bool(np.all(level == levels - 1)) and bool(np.all(np.diff(begin) > 0) and np.all(np.diff(end) > 0)):
        # Every place occurs once, as in chains: plain indexing, which is many times faster.
        top, second = best[-1], end - (1 << (levels - 1))
        top[begin] = value
        top[second] = np.maximum(top[second], value)
    else:
        np.maximum.at(best, (level, begin), value)
        np.maximum.at(best, (level, end - (1 << level)), value)
    for one in range(levels - 1, 0, -1):
        half = 1 << (one - 1)
        np.maximum(best[one - 1], best[one], out=best[one - 1])
        if half < steps:
            np.maximum(best[one - 1, half:], best[one, :-half], out=best[one - 1, half:])
    return np.asarray(best[0])


def overlaps(place: Ints, start: Ints, cost_of_place: Floats, starts: int) -> Overlaps:
    """All overlaps of what happens at the same place, each time at the place's cost; these add up.

    Only the costliest place is kept for each pair of first and last start.
    """
    keys, times = np.unique(place * starts + start, return_counts=True)
    where, begin = keys // starts, keys % starts
    cost = times * cost_of_place[where]
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
    """

    starts: int
    latency: Overlaps
    links: Overlaps
    hops: int
    known: dict[int, PipelineTotals] = field(default_factory=dict)

    def totals(self, pieces: int) -> PipelineTotals:
        """Sums over all steps when ``pieces`` pieces are under way; found once."""
        if pieces not in self.known:
            steps = self.starts + pieces - 1
            self.known[pieces] = PipelineTotals(
                steps,
                float(self.latency.per_step(steps, pieces).sum()),
                float(self.links.per_step(steps, pieces).sum()),
            )
        return self.known[pieces]

    def bottleneck(self, pieces: int) -> tuple[int, float]:
        """The link that costs most while ``pieces`` pieces are under way, and its seconds per slot byte."""
        together = np.flatnonzero(self.links.last - self.links.first < pieces)
        worst = together[self.links.value[together].argmax()]
        return int(self.links.place[worst]), float(self.links.value[worst])


@dataclass(frozen=True)
class PipelineTotals:
    """Sums over the steps of a pipeline: seconds of latency, seconds per slot byte."""

    steps: int
    latency_seconds: float
    seconds_per_slot_byte: float


def pipeline_load(table: LinkTable, pipeline: Pipeline) -> PipelineLoad | None:
    """The load of ``pipeline``; None where it has no edge."""
    if not len(pipeline.source):
        return None
    starts = int(pipeline.start.max()) + 1
    links, begins, latencies = [], [], []
    hops = 0
    for part, ids in table.routed(pipeline.source, pipeline.target):
        used = ids >= 0
        hops = max(hops, int(used.sum(axis=1).max()))
        links.append(ids[used])
        begins.append(np.repeat(pipeline.start[part], used.sum(axis=1)))
        latencies.append(table.latency[ids].sum(axis=1))
    slowest = np.zeros(starts)
    np.maximum.at(slowest, pipeline.start, np.concatenate(latencies))
    link = np.concatenate(links)
    every = np.arange(starts)
    return PipelineLoad(
        starts,
        Overlaps(every, every, slowest, every),
        overlaps(link, np.concatenate(begins), table.seconds_per_byte, starts),
        hops,
    )


def piece_counts(most: int = MOST_PIECES_UNDER_WAY) -> Ints:
    """Numbers of pieces worth trying: all up to 8, then steps of at most a quarter, so within 1% of the best.

    a + b k + c / k is flat at its minimum: 12% beside it the part that depends on k is 0.7% higher.
    """
    counts = [1]
    while counts[-1] < most:
        counts.append(min(most, max(counts[-1] + 1, int(counts[-1] * 1.25))))
    return np.array(counts, dtype=np.int64)
