"""Loads that the steps of an algorithm put on a fabric's links, without sizes.

T(step) = latency + the longer of slot bytes x worst link and of the busiest rank's messages after its first.
The latency is that of the slowest way, the worst link the one whose flows, each with a fair share of it, take
longest (Hockney's model with contention; Parallel Computing 20 (1994) 389); messages are those of LogGP
(Alexandrov et al., SPAA 1995). None of these depends on the size, so a sweep over sizes costs nothing more.
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
from ccbench.model.traffic_patterns import AllPairs, RepeatedSteps, Uniform
from ccbench.topology.fabrics import Fabric, Floats, Ints

# Patterns with arrays are equal only to themselves (eq=False), as phases are.


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


def sampled_turns(steps: RepeatedSteps, ranks: int) -> Sample:
    """The turns of ``steps`` to look at.

    Steps with the same flows, or with the same set of flows in another order, are looked at once: that is
    exact. Otherwise every turn is looked at as long as these are few, and a stratified sample beyond.
    """
    flows, turns = len(steps.source), steps.turns
    source_move, target_move = steps.source_move % ranks, steps.target_move % ranks
    repeats = turns == 1 or source_move == target_move == 0
    if not repeats and source_move == target_move and flows > 1:
        # Moved on alike, the second step, and so every one, may have the flows of the first.
        source, target = steps.source.astype(np.int64), steps.target.astype(np.int64)
        before = source * ranks + target
        after = (source + source_move) % ranks * ranks + (target + target_move) % ranks
        first, second = np.lexsort((steps.width, before)), np.lexsort((steps.width, after))
        same_pairs = np.array_equal(before[first], after[second])
        repeats = same_pairs and np.array_equal(steps.width[first], steps.width[second])
    if repeats:
        return [(0, turns)]
    return sample_of(turns, flows)


def sample_of(turns: int, flows: int) -> Sample:
    """Every one of ``turns`` turns of ``flows`` flows each, where these are few; else a stratified sample."""
    if turns <= MOST_EXACT_TURNS and flows * turns <= MOST_EXACT_FLOWS:
        return stratified(turns, turns)
    return stratified(
        turns, max(FEWEST_SAMPLES, min(MOST_SAMPLES, MOST_SAMPLED_FLOWS // max(1, flows)))
    )


def stratified(turns: int, samples: int) -> Sample:
    """About ``samples`` of ``turns`` turns: dense near both ends, where shifts are short, even between.

    Each stratum is represented by a turn near its middle, moved off it by the golden fraction so that no
    power of two of the fabric's sizes is met every time. The second half mirrors the first, because a shift
    and its opposite load opposite links.
    """
    if turns <= samples:
        return [(turn, 1) for turn in range(turns)]
    half, middle = turns // 2, turns % 2
    target = max(2, samples // 2)
    near = [1 << bit for bit in range(min(target // 3, half.bit_length() - 1))]
    even = np.linspace(0, half, target - len(near) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, np.array(near, dtype=np.int64)]))
    sizes = np.diff(edges)
    # Multiples of the golden fraction fall evenly into strata and on no period of the fabric.
    golden = (math.sqrt(5) - 1) / 2
    places = edges[:-1] + (sizes * ((np.arange(len(sizes)) + 1) * golden % 1.0)).astype(
        np.int64
    )
    mirrored = (turns - 1 - places)[::-1]
    chosen = (*places.tolist(), *([half] * middle), *mirrored.tolist())
    return list(
        zip(chosen, (*sizes.tolist(), *([1] * middle), *sizes[::-1].tolist()), strict=True)
    )


def representative_ranks(fabric: Fabric) -> Ints | None:
    """Ranks of the first, a middle and the last of the largest equal groups of ``fabric``; None if too few.

    Where groups are alike, and flows too, what loads the links of one group loads those of all. Links of a
    group must carry only what begins or ends in it: true of trees and of minimal routes in a dragonfly, not
    of tori. Whether it is true here is for the caller to test.
    """
    sizes = [
        level.ranks
        for level in fabric.levels
        if level.consecutive
        and level.groups >= FEWEST_GROUPS
        and level.groups * level.ranks == fabric.ranks
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

    def rates(self, fabric: Fabric) -> Floats:
        """Usable bytes per second of each link. Raises MachineError for efficiencies that cannot be."""
        return np.asarray(
            fabric.link_bytes_per_second * self.of_links("rate_efficiency", fabric)
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
    messages: int = 1
    further_seconds: float = 0.0


@dataclass(eq=False)
class LinkTable:
    """A fabric's links with what they cost; routes flows and adds up what goes through each link.

    cache: what was found before for the same three: loads of flows one slot wide by what they are of, and the
    ranks that stand for all.
    """

    fabric: Fabric
    costs: FabricCosts
    ranks: int
    cache: dict[Hashable, Any] = field(default_factory=dict)
    latency: Floats = field(init=False)
    message_seconds: Floats = field(init=False)
    seconds_per_byte: Floats = field(init=False)

    def __post_init__(self) -> None:
        # The last entry is what the -1 of a route points at.
        self.latency, self.message_seconds = (
            np.append(self.costs.of_links(name, self.fabric), 0.0)
            for name in ("link_latency_seconds", "message_seconds")
        )
        self.seconds_per_byte = 1.0 / self.costs.rates(self.fabric)

    def routed(self, source: Ints, target: Ints) -> Iterator[tuple[slice, Ints]]:
        """Link ids of the flows, -1 for none, part by part. No flow may be local."""
        for start in range(0, len(source), MOST_FLOWS_AT_ONCE):
            part = slice(start, start + MOST_FLOWS_AT_ONCE)
            yield part, self.fabric.router(source[part], target[part])

    def way(self, ids: Ints) -> tuple[float, int]:
        """Latency of the slowest row, and its links; among equally slow ones, the most links."""
        seconds, hops = np.zeros(len(ids)), np.zeros(len(ids), dtype=np.int64)
        for (
            column
        ) in ids.T:  # column by column, for there are few and sums along short rows are slow
            seconds += self.latency[column]
            hops += column >= 0
        slowest = float(seconds.max(initial=0.0))
        return slowest, int(hops[seconds == slowest].max(initial=0))

    def carried(self, ids: Ints, width: Ints | None) -> Floats:
        """Slots through each link when row i carries ``width[i]`` (1 where None)."""
        weights = None if width is None else np.repeat(width, ids.shape[1])
        return np.asarray(np.bincount(ids.ravel() + 1, weights, self.fabric.links + 1)[1:])


def pattern_loads(
    table: LinkTable, pattern: RepeatedSteps | Uniform | AllPairs
) -> list[FabricStepLoad]:
    """The loads of a pattern's steps, equal ones together; nothing where no link is used.

    Different algorithms, and phases of one, often have the same flows, wider or not: these are routed once.
    """
    width, turns = 1, 1
    key: Hashable
    if isinstance(pattern, AllPairs):
        key = ("all pairs", pattern.spared, pattern.at_once)
    elif isinstance(pattern, Uniform):
        key = ("exchange" if pattern.exchange else "shift", pattern.distance)
        width, turns = pattern.width, pattern.turns
    else:
        equal = len(pattern.width) > 0 and int(pattern.width.min()) == int(pattern.width.max())
        width = int(pattern.width[0]) if equal else 1
        # A common width is left out of the key, and put back below.
        content = hashlib.blake2b(digest_size=16)
        for array in (pattern.source, pattern.target, pattern.width)[: 2 if equal else 3]:
            content.update(array.astype(np.int64).tobytes())
        moves = pattern.turns, pattern.source_move, pattern.target_move
        key = (content.digest(), len(pattern.source), *moves)
    if key not in table.cache:
        if isinstance(pattern, AllPairs):
            new_loads = all_pairs_loads(table, pattern) if table.ranks > 1 else []
        elif isinstance(pattern, Uniform):
            every = uniform_load(table, pattern, representatives(table))
            new_loads = [every] if every else []
        else:
            new_loads = steps_loads(
                table, replace(pattern, width=pattern.width // max(1, width))
            )
        table.cache[key] = new_loads
    loads: list[FabricStepLoad] = table.cache[key]
    return [
        replace(
            load,
            repeat=load.repeat * turns,
            seconds_per_slot_byte=load.seconds_per_slot_byte * width,
            load=load.load * width,
        )
        for load in loads
    ]


def flows_load(
    table: LinkTable, source: Ints, target: Ints, width: Ints, repeat: int
) -> FabricStepLoad | None:
    """One step's load; None where all its flows are local."""
    apart = source != target
    if not bool(apart.all()):
        source, target, width = source[apart], target[apart], width[apart]
    if not len(source):
        return None
    equal = int(width.min()) == int(width.max())
    messages = max(int(np.bincount(ends).max()) for ends in (source, target))
    loads, links, ways, each = None, None, [], []
    for part, ids in table.routed(source, target):
        ways.append(table.way(ids))
        if messages > 1:
            each.append(table.message_seconds[ids].max(axis=1))
        # Counting into all links of a large fabric would take longer than sorting these few.
        if equal and ids.size * 4 < table.fabric.links:
            # Few flows: only the links that they use are looked at. They were routed in one go.
            used, counts = np.unique(ids[ids >= 0], return_counts=True)
            loads, links = counts.astype(np.float64), used
            break
        carried = table.carried(ids, None if equal else width[part])
        loads = carried if loads is None else loads + carried
    assert loads is not None  # there is at least one flow
    step = _worst(table, loads, links, int(width[0]) if equal else 1, repeat, max(ways))
    if messages == 1:
        return step
    seconds = np.concatenate(each)
    busiest = max(float(np.bincount(ends, seconds).max()) for ends in (source, target))
    return replace(step, messages=messages, further_seconds=busiest - float(seconds.min()))


def _worst(
    table: LinkTable,
    loads: Floats,
    links: Ints | None,
    scale: int,
    repeat: int,
    way: tuple[float, int],
) -> FabricStepLoad:
    """The step whose ``links`` (all where None) carry ``loads`` x ``scale`` slots."""
    busy = loads * (table.seconds_per_byte if links is None else table.seconds_per_byte[links])
    place = int(busy.argmax())
    link = place if links is None else int(links[place])
    return FabricStepLoad(
        repeat, *way, float(busy[place]) * scale, link, float(loads[place]) * scale
    )


def uniform_load(
    table: LinkTable, pattern: Uniform, few: Ints | None, repeat: int = 1
) -> FabricStepLoad | None:
    """One step of ``pattern``; with ``few``, only of what begins or ends there. None where all is local."""
    source = _sources(table, pattern, few)
    return flows_load(
        table, source, pattern.target_of(source, table.ranks), np.ones_like(source), repeat
    )


def _sources(table: LinkTable, pattern: Uniform, few: Ints | None) -> Ints:
    if few is None:
        return np.arange(table.ranks)
    return np.unique(np.concatenate([few, pattern.source_of(few, table.ranks)]))


def representatives(table: LinkTable) -> Ints | None:
    """Ranks whose links show what all links carry in a uniform step; None where all have to be looked at.

    Symmetry is not assumed: two steps, a short way and one across the fabric, must cost the same with all
    ranks as with these.
    """
    if REPRESENTATIVES not in table.cache:
        few = representative_ranks(table.fabric) if table.ranks == table.fabric.ranks else None
        for distance in (1, table.ranks // 3 + 1) if few is not None else ():
            probe = Uniform(distance, 1)
            whole, part = uniform_load(table, probe, None), uniform_load(table, probe, few)
            if whole is None or part is None:
                alike = whole is part
            else:
                whole_costs, part_costs = (
                    (load.latency_seconds, load.seconds_per_slot_byte) for load in (whole, part)
                )
                alike = (
                    bool(np.allclose(whole_costs, part_costs, rtol=1e-12, atol=0.0))
                    and whole.hops == part.hops
                )
            if not alike:
                few = None
                break
        table.cache[REPRESENTATIVES] = few
    representing: Ints | None = table.cache[REPRESENTATIVES]
    return representing


def steps_loads(table: LinkTable, steps: RepeatedSteps) -> list[FabricStepLoad]:
    """The loads of all turns, equal ones together; a stratified sample where there are too many."""
    ranks = table.ranks
    # Schedules keep 32 bits, in which products of ranks would not fit.
    first, last = steps.source.astype(np.int64), steps.target.astype(np.int64)
    if len(first) != 1 or steps.turns == 1:
        width = steps.width.astype(np.int64)
        turns = (
            flows_load(
                table,
                (first + turn * steps.source_move) % ranks,
                (last + turn * steps.target_move) % ranks,
                width,
                count,
            )
            for turn, count in sampled_turns(steps, ranks)
        )
        return [load for load in turns if load is not None]
    # One flow is alone on its links: all its turns are looked at together, and only ways of different cost
    # are told apart.
    turn = np.arange(steps.turns)
    source = (first[0] + turn * steps.source_move) % ranks
    target = (last[0] + turn * steps.target_move) % ranks
    apart = source != target
    rows, slowness = [], np.append(table.seconds_per_byte, 0.0)
    for _, ids in table.routed(source[apart], target[apart]):
        busy = slowness[ids]
        link = np.take_along_axis(ids, busy.argmax(axis=1)[:, None], axis=1)[:, 0]
        hops = (ids >= 0).sum(axis=1)
        rows.append(np.stack([table.latency[ids].sum(axis=1), hops, busy.max(axis=1), link]))
    if not rows:
        return []
    of_turns, slots = np.concatenate(rows, axis=1), float(steps.width[0])
    _, place, count = np.unique(of_turns[:3], axis=1, return_index=True, return_counts=True)
    return [
        FabricStepLoad(
            int(times), float(latency), int(hops), float(busy) * slots, int(link), slots
        )
        for times, (latency, hops, busy, link) in zip(count, of_turns[:, place].T, strict=True)
    ]


def all_pairs_loads(table: LinkTable, pattern: AllPairs) -> list[FabricStepLoad]:
    """Between all pairs of ranks, shift by shift, summed where they are at once.

    Beyond some 1,000 ranks a stratified sample of the shifts stands for all: exact on the ranks' own links
    and wherever the shifts of a stratum load a link alike, as on fat-trees that D-mod-k routing balances.
    """
    ranks, few = table.ranks, representatives(table)
    sample = sample_of(ranks - 1, ranks if few is None else 2 * len(few))
    if not pattern.at_once:
        loads = (
            uniform_load(table, Uniform(1 + turn, 1), few, count) for turn, count in sample
        )
        return [load for load in loads if load is not None]
    # The last place is what the -1 of a route points at.
    carried = np.zeros(table.fabric.links + 1)
    ways, further = [], 0.0
    # From one rank to all others and back: where ranks are alike, the longest ways are among these, and each
    # rank is as busy with its messages.
    peers, zeros = np.arange(1, ranks), np.zeros(ranks - 1, dtype=np.int64)
    for source, target in ((zeros, peers), (peers, zeros)):
        kept = target != pattern.spared
        probe = flows_load(table, source[kept], target[kept], np.ones_like(source[kept]), 1)
        if probe is not None:
            ways.append((probe.latency_seconds, probe.hops))
            further = max(further, probe.further_seconds)
    for turn, count in sample:
        shift = Uniform(1 + turn, 1)
        source = _sources(table, shift, few)
        target = shift.target_of(source, ranks)
        kept = target != pattern.spared
        for _, ids in table.routed(source[kept], target[kept]):
            ways.append(table.way(ids))
            if few is None:
                carried[:-1] += table.carried(ids, None) * count
            else:
                np.add.at(carried, ids.ravel(), count)
    step = _worst(table, carried[:-1], None, 1, 1, max(ways))
    return [replace(step, messages=ranks - 1, further_seconds=further)]
