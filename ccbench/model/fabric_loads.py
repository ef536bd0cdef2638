"""What each step of an algorithm asks of the links of a fabric: nothing here knows a size.

T(step) = latency + slot bytes x worst link: the latency is that of the slowest way, the worst link the one
whose flows, each with a fair share of it, take longest (Hockney's model with contention; Parallel Computing
20 (1994) 389). Both are numbers that do not depend on the size, so a sweep over sizes costs nothing more.
Of equal steps and equal ranks one is looked at, of too many a stated sample.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ccbench.errors import MachineError
from ccbench.model.patterns import AllPairs, Steps, Uniform
from ccbench.topology.fabrics import Fabric
from ccbench.topology.routing import Floats, Ints

MOST_EXACT_FLOWS = 1_200_000
"""Flows, counted over all its steps, up to which each step of a pattern is looked at."""

MOST_EXACT_TURNS = 4096
MOST_SAMPLED_FLOWS = 900_000
FEWEST_SAMPLES = 12
MOST_SAMPLES = 192

FEWEST_RANKS = 2048
"""Below this it is quicker to look at all ranks."""

REPRESENTATIVES = "representatives"

FEWEST_GROUPS = 12
"""Fewer equal groups than this save nothing when three of them are looked at."""


Sample = list[tuple[int, int]]
"""Turns, with how many turns each of them stands for."""


def sampled_turns(steps: Steps, ranks: int) -> Sample:
    """The turns of ``steps`` to look at.

    Steps with the same flows, or with the same set of flows in another order, are looked at once: that is
    exact. Otherwise every turn is looked at as long as these are few, and a stratified sample beyond.
    """
    if steps.turns == 1 or _repeats(steps, ranks):
        return [(0, steps.turns)]
    flows = len(steps.source) * steps.turns
    if steps.turns <= MOST_EXACT_TURNS and flows <= MOST_EXACT_FLOWS:
        return [(turn, 1) for turn in range(steps.turns)]
    return stratified(steps.turns, affordable(len(steps.source)))


def affordable(flows: int) -> int:
    """How many steps of ``flows`` flows a sample may have."""
    return max(FEWEST_SAMPLES, min(MOST_SAMPLES, MOST_SAMPLED_FLOWS // max(1, flows)))


def _repeats(steps: Steps, ranks: int) -> bool:
    """Whether the second step, and so every one, has the same set of flows as the first."""
    source_move, target_move = steps.source_move % ranks, steps.target_move % ranks
    if source_move == target_move == 0:
        return True
    if source_move != target_move or len(steps.source) < 2:
        return False
    source, target = steps.source.astype(np.int64), steps.target.astype(np.int64)
    before = source * ranks + target
    after = (source + source_move) % ranks * ranks + (target + target_move) % ranks
    first, second = np.lexsort((steps.width, before)), np.lexsort((steps.width, after))
    same_pairs = np.array_equal(before[first], after[second])
    return same_pairs and np.array_equal(steps.width[first], steps.width[second])


def stratified(turns: int, samples: int) -> Sample:
    """About ``samples`` of ``turns`` turns: dense near both ends, where shifts are short, even between.

    Each stratum is represented by a turn near its middle, moved off it by the golden fraction so that no
    power of two of the fabric's sizes is met every time. The second half mirrors the first, because a shift
    and its opposite load opposite links.
    """
    if turns <= samples:
        return [(turn, 1) for turn in range(turns)]
    half, middle = turns // 2, turns % 2
    wanted = max(2, samples // 2)
    near = [1 << bit for bit in range(min(wanted // 3, half.bit_length() - 1))]
    even = np.linspace(0, half, wanted - len(near) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, np.array(near, dtype=np.int64)]))
    sizes = np.diff(edges)
    # Multiples of the golden fraction fall evenly into strata and on no period of the fabric.
    golden = (math.sqrt(5) - 1) / 2
    places = edges[:-1] + (sizes * ((np.arange(len(sizes)) + 1) * golden % 1.0)).astype(np.int64)
    mirrored = (turns - 1 - places)[::-1]
    chosen = (*places.tolist(), *([half] * middle), *mirrored.tolist())
    return list(zip(chosen, (*sizes.tolist(), *([1] * middle), *sizes[::-1].tolist()), strict=True))


def representative_ranks(fabric: Fabric) -> Ints | None:
    """Ranks of the first, a middle and the last of the largest equal groups of ``fabric``; None if too few.

    Where groups are alike, and flows too, what loads the links of one group loads those of all. Links of a
    group must carry only what begins or ends in it: true of trees and of minimal routes in a dragonfly, not
    of tori. Whether it is true here is for the caller to test.
    """
    sizes = [
        level.ranks
        for level in fabric.levels
        if level.consecutive and level.groups >= FEWEST_GROUPS and level.groups * level.ranks == fabric.ranks
    ]
    if fabric.ranks < FEWEST_RANKS or max(sizes, default=1) == 1:
        return None
    size = max(sizes)
    groups = fabric.ranks // size
    # First and last see the ends of shifts; one in between sees the middle.
    chosen = np.array([0, groups * 5 // 8, groups - 1])
    return np.asarray(chosen[:, None] * size + np.arange(size)).ravel()


MOST_FLOWS_AT_ONCE = 262_144
"""Flows routed in one go; more at once are slower, for they no longer fit the caches."""


@dataclass(frozen=True, eq=False)
class FabricCosts:
    """Costs of a message beyond what the fabric itself states.

    sender_seconds: of every message, before it is on its way.
    link_latency_seconds: one number per link, instead of the fabric's.
    rate_efficiency: what is usable of a link's rate, above 0 and at most 1: one number, or one per link.
    """

    sender_seconds: float = 0.0
    link_latency_seconds: Floats | None = None
    rate_efficiency: float | Floats = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.sender_seconds < math.inf:
            raise MachineError(f"sender_seconds: {self.sender_seconds} is not a number of seconds")

    def latencies(self, fabric: Fabric) -> Floats:
        """Latency of each link in seconds. Raises MachineError where they do not fit the fabric."""
        if self.link_latency_seconds is None:
            return fabric.link_latency_seconds
        given = np.asarray(self.link_latency_seconds, dtype=np.float64)
        if given.shape != (fabric.links,) or not bool(np.all((given >= 0) & np.isfinite(given))):
            raise MachineError(
                f"link_latency_seconds: {given.shape} numbers for {fabric.links} links of {fabric.name}; "
                "give each link one that is not negative"
            )
        return given

    def rates(self, fabric: Fabric) -> Floats:
        """Usable bytes per second of each link. Raises MachineError for efficiencies that cannot be."""
        share = np.asarray(self.rate_efficiency, dtype=np.float64)
        if share.shape not in {(), (fabric.links,)} or not bool(np.all((share > 0) & (share <= 1))):
            raise MachineError(
                f"rate_efficiency: not above 0 and at most 1 for each of {fabric.links} links of "
                f"{fabric.name}; give one number, or one per link"
            )
        return np.asarray(fabric.link_bytes_per_second * share)


@dataclass(frozen=True)
class StepLoad:
    """``repeat`` equal steps.

    latency_seconds, hops: of the slowest way. seconds_per_slot_byte: of the worst link, whose number is
    ``link`` and through which ``load`` slots go.
    """

    repeat: int
    latency_seconds: float
    hops: int
    seconds_per_slot_byte: float
    link: int
    load: float


@dataclass(eq=False)
class LinkTable:
    """A fabric's links with what they cost; routes flows and adds up what goes through each link.

    known: what was found before for the same three: loads of flows one slot wide by what they are of, and the
    ranks that stand for all.
    """

    fabric: Fabric
    costs: FabricCosts
    ranks: int
    known: dict[Hashable, Any] = field(default_factory=dict)
    latency: Floats = field(init=False)
    seconds_per_byte: Floats = field(init=False)

    def __post_init__(self) -> None:
        # The last entry is what the -1 of a route points at.
        self.latency = np.append(self.costs.latencies(self.fabric), 0.0)
        self.seconds_per_byte = 1.0 / self.costs.rates(self.fabric)

    def routed(self, source: Ints, target: Ints) -> Iterator[tuple[slice, Ints]]:
        """Link ids of the flows, -1 for none, part by part. No flow may be local."""
        for start in range(0, len(source), MOST_FLOWS_AT_ONCE):
            part = slice(start, start + MOST_FLOWS_AT_ONCE)
            yield part, self.fabric.router(source[part], target[part])

    def way(self, ids: Ints) -> tuple[float, int]:
        """Latency of the slowest row, and its links; among equally slow ones, the most links."""
        seconds, hops = np.zeros(len(ids)), np.zeros(len(ids), dtype=np.int64)
        for column in ids.T:  # column by column, for there are few and sums along short rows are slow
            seconds += self.latency[column]
            hops += column >= 0
        slowest = float(seconds.max(initial=0.0))
        return slowest, int(hops[seconds == slowest].max(initial=0))

    def carried(self, ids: Ints, width: Ints | None) -> Floats:
        """What goes through each link when row i carries ``width[i]`` (1 where None)."""
        weights = None if width is None else np.repeat(width, ids.shape[1])
        return np.asarray(np.bincount(ids.ravel() + 1, weights, self.fabric.links + 1)[1:])


def pattern_loads(table: LinkTable, pattern: Steps | Uniform | AllPairs) -> list[StepLoad]:
    """The loads of a pattern's steps, equal ones together; nothing where no link is used.

    Different algorithms, and phases of one, often have the same flows, wider or not: these are routed once.
    """
    if isinstance(pattern, AllPairs):
        key: Hashable = ("all pairs", pattern.spared, pattern.at_once)
        width = 1.0
    elif isinstance(pattern, Uniform):
        key = ("exchange" if pattern.exchange else "shift", pattern.distance)
        width = float(pattern.width)
    else:
        equal = len(pattern.width) > 0 and int(pattern.width.min()) == int(pattern.width.max())
        width = float(pattern.width[0]) if equal else 1.0
        key = _digest(pattern, equal)
    if key not in table.known:
        table.known[key] = _found(table, pattern, width)
    loads: list[StepLoad] = table.known[key]
    turns = pattern.turns if isinstance(pattern, Uniform) else 1
    return [
        replace(
            load,
            repeat=load.repeat * turns,
            seconds_per_slot_byte=load.seconds_per_slot_byte * width,
            load=load.load * width,
        )
        for load in loads
    ]


def _digest(steps: Steps, equal: bool) -> Hashable:
    """The same for the same flows, their common width left out."""
    content = hashlib.blake2b(digest_size=16)
    for array in (steps.source, steps.target) if equal else (steps.source, steps.target, steps.width):
        content.update(array.astype(np.int64).tobytes())
    return content.digest(), len(steps.source), steps.turns, steps.source_move, steps.target_move


def _found(table: LinkTable, pattern: Steps | Uniform | AllPairs, width: float) -> list[StepLoad]:
    """Loads for flows narrower by ``width``."""
    if isinstance(pattern, AllPairs):
        return all_pairs_loads(table, pattern) if table.ranks > 1 else []
    if isinstance(pattern, Uniform):
        one = uniform_load(table, pattern, representatives(table))
        return [one] if one else []
    return steps_loads(table, replace(pattern, width=pattern.width // max(1, int(width))))


def flows_load(table: LinkTable, source: Ints, target: Ints, width: Ints, repeat: int) -> StepLoad | None:
    """One step's load; None where all its flows are local."""
    apart = source != target
    if not bool(apart.all()):
        source, target, width = source[apart], target[apart], width[apart]
    if not len(source):
        return None
    equal = int(width.min()) == int(width.max())
    loads, ways = None, []
    for part, ids in table.routed(source, target):
        ways.append(table.way(ids))
        # Counting into all links of a large fabric would take longer than sorting these few.
        if equal and ids.size * 4 < table.fabric.links:
            # Few flows: only the links that they use are looked at. They were routed in one go.
            links, counts = np.unique(ids, return_counts=True)
            used = links >= 0
            some = counts[used].astype(np.float64)
            return _worst(table, some, links[used], int(width[0]), repeat, max(ways))
        carried = table.carried(ids, None if equal else width[part])
        loads = carried if loads is None else loads + carried
    assert loads is not None  # there is at least one flow
    return _worst(table, loads, None, int(width[0]) if equal else 1, repeat, max(ways))


def _worst(
    table: LinkTable,
    loads: Floats,
    links: Ints | None,
    scale: int,
    repeat: int,
    way: tuple[float, int],
) -> StepLoad:
    """The step whose ``links`` (all where None) carry ``loads`` x ``scale`` slots."""
    busy = loads * (table.seconds_per_byte if links is None else table.seconds_per_byte[links])
    place = int(busy.argmax())
    link = place if links is None else int(links[place])
    return StepLoad(repeat, *way, float(busy[place]) * scale, link, float(loads[place]) * scale)


def uniform_load(table: LinkTable, pattern: Uniform, few: Ints | None, repeat: int = 1) -> StepLoad | None:
    """One step of ``pattern``; with ``few``, only of what begins or ends there. None where all is local."""
    source = _sources(table, pattern, few)
    return flows_load(table, source, pattern.target_of(source, table.ranks), np.ones_like(source), repeat)


def _sources(table: LinkTable, pattern: Uniform, few: Ints | None) -> Ints:
    if few is None:
        return np.arange(table.ranks)
    return np.unique(np.concatenate([few, pattern.source_of(few, table.ranks)]))


def representatives(table: LinkTable) -> Ints | None:
    """Ranks whose links show what all links carry in a uniform step; None where all have to be looked at.

    Symmetry is not assumed: two steps, a short way and one across the fabric, must cost the same with all
    ranks as with these.
    """
    if REPRESENTATIVES not in table.known:
        few = representative_ranks(table.fabric) if table.ranks == table.fabric.ranks else None
        probes = [Uniform(1, 1), Uniform(table.ranks // 3 + 1, 1)] if few is not None else []
        if not all(_alike(uniform_load(table, p, None), uniform_load(table, p, few)) for p in probes):
            few = None
        table.known[REPRESENTATIVES] = few
    found: Ints | None = table.known[REPRESENTATIVES]
    return found


def _alike(one: StepLoad | None, other: StepLoad | None) -> bool:
    if one is None or other is None:
        return one is other
    costs = [(load.latency_seconds, load.seconds_per_slot_byte) for load in (one, other)]
    return bool(np.allclose(costs[0], costs[1], rtol=1e-12, atol=0.0)) and one.hops == other.hops


def steps_loads(table: LinkTable, steps: Steps) -> list[StepLoad]:
    """The loads of all turns, equal ones together; a stratified sample where there are too many."""
    if len(steps.source) == 1 and steps.turns > 1:
        return _single_flow_loads(table, steps)
    ranks = table.ranks
    # Schedules keep 32 bits, in which products of ranks would not fit.
    first, last = steps.source.astype(np.int64), steps.target.astype(np.int64)
    width = steps.width.astype(np.int64)
    found = []
    for turn, count in sampled_turns(steps, ranks):
        source = (first + turn * steps.source_move) % ranks
        target = (last + turn * steps.target_move) % ranks
        load = flows_load(table, source, target, width, count)
        if load is not None:
            found.append(load)
    return found


def _single_flow_loads(table: LinkTable, steps: Steps) -> list[StepLoad]:
    """All turns of one flow at once: it is alone on its links, so only ways of equal cost are told apart."""
    ranks, turn = table.ranks, np.arange(steps.turns)
    source = (int(steps.source[0]) + turn * steps.source_move) % ranks
    target = (int(steps.target[0]) + turn * steps.target_move) % ranks
    apart = source != target
    width = float(steps.width[0])
    rows = []
    slowness = np.append(table.seconds_per_byte, 0.0)
    for _, ids in table.routed(source[apart], target[apart]):
        busy = slowness[ids]
        link = np.take_along_axis(ids, busy.argmax(axis=1)[:, None], axis=1)[:, 0]
        hops = (ids >= 0).sum(axis=1)
        rows.append(np.stack([table.latency[ids].sum(axis=1), hops, busy.max(axis=1), link]))
    if not rows:
        return []
    table_of_turns = np.concatenate(rows, axis=1)
    _, first, count = np.unique(table_of_turns[:3], axis=1, return_index=True, return_counts=True)
    return [
        StepLoad(int(times), float(latency), int(hops), float(busy) * width, int(link), width)
        for times, (latency, hops, busy, link) in zip(count, table_of_turns[:, first].T, strict=True)
    ]


def all_pairs_loads(table: LinkTable, pattern: AllPairs) -> list[StepLoad]:
    """Between all pairs of ranks, shift by shift, summed where they are at once.

    Beyond some 1,000 ranks a stratified sample of the shifts stands for all: exact on the ranks' own links
    and wherever the shifts of a stratum load a link alike, as on fat-trees that D-mod-k routing balances.
    """
    ranks, few = table.ranks, representatives(table)
    shifts, flows = ranks - 1, ranks if few is None else 2 * len(few)
    exact = shifts <= MOST_EXACT_TURNS and flows * shifts <= MOST_EXACT_FLOWS
    sample = stratified(shifts, shifts if exact else affordable(flows))
    if not pattern.at_once:
        loads = (uniform_load(table, Uniform(1 + turn, 1), few, count) for turn, count in sample)
        return [load for load in loads if load is not None]
    return [_all_at_once(table, pattern, sample, few)]


def _all_at_once(table: LinkTable, pattern: AllPairs, sample: Sample, few: Ints | None) -> StepLoad:
    """The sum of the sampled shifts."""
    # The last place is what the -1 of a route points at.
    carried = np.zeros(table.fabric.links + 1)
    ways = [table.way(ids) for ids in _ways_of(table, 0, pattern.spared)]
    for turn, count in sample:
        shift = Uniform(1 + turn, 1)
        source = _sources(table, shift, few)
        target = shift.target_of(source, table.ranks)
        kept = target != pattern.spared
        for _, ids in table.routed(source[kept], target[kept]):
            ways.append(table.way(ids))
            if few is None:
                carried[:-1] += table.carried(ids, None) * float(count)
            else:
                np.add.at(carried, ids.ravel(), float(count))
    return _worst(table, carried[:-1], None, 1, 1, max(ways))


def _ways_of(table: LinkTable, rank: int, spared: int) -> Iterator[Ints]:
    """From one rank to all others and back: the longest ways are among them where ranks are alike."""
    others = np.delete(np.arange(table.ranks), rank)
    here = np.full_like(others, rank)
    for source, target in ((here, others), (others, here)):
        kept = target != spared
        for _, ids in table.routed(source[kept], target[kept]):
            yield ids
