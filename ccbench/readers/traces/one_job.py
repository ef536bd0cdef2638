"""Traces of several files as one of a job, with what is missing or contradicts itself told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import (
    RECV,
    SEND,
    Communication,
    Intervals,
    ProcessGroup,
    Trace,
)
from ccbench.readers.traces.groups import MOST_RANKS, by_use, rank_list
from ccbench.readers.traces.intervals import merged
from ccbench.units import plain, shown

_AHEAD = 8
"""Calls that one tool may have recorded and another not, one after the other."""

_BEGINNINGS = 64
"""Places where the calls of one tool are looked for in those of another."""


def one_job(traces: Sequence[Trace], warnings: Sequence[SourceWarning] = ()) -> Trace:
    """Return ``traces``, one of each file and at least one, as one. warnings: of reading the files."""
    all_warnings = [*warnings, *(warning for trace in traces for warning in trace.warnings)]
    kept = _each_once(traces, all_warnings)
    ranks = sorted({rank for trace in kept for rank in trace.ranks})
    sizes = sorted({trace.world_size for trace in kept if trace.world_size})
    world = max([*sizes, 0])
    if len(sizes) > 1:
        all_warnings.append(
            _contradiction(
                f"jobs of {' and of '.join(map(str, sizes))} ranks; the largest is taken"
            )
        )
    groups = tuple(dict.fromkeys(group for trace in kept for group in trace.groups))
    # Under one name a rank cannot be in two groups of different ranks.
    by_name_and_rank: dict[tuple[str, int], ProcessGroup] = {}
    reported = set()
    for group in groups:
        for rank in group.ranks:
            earlier = by_name_and_rank.setdefault((group.name, rank), group)
            if earlier.ranks != group.ranks and group.name not in reported:
                reported.add(group.name)
                lists = f"{rank_list(earlier.ranks)} and {rank_list(group.ranks)}"
                text = f"process group {shown(group.name)} is of ranks {lists}"
                all_warnings.append(_contradiction(text))
    all_warnings += _not_seen(ranks, world, kept)
    steps = {
        rank: np.unique(rows, axis=0)
        for rank, rows in _by_rank(kept, "steps").items()
        if len(rows)
    }
    timed = {
        communication.rank
        for trace in kept
        for communication in trace.communications
        if communication.duration_seconds is not None
    }
    if steps and not timed <= steps.keys():
        unmarked = rank_list(sorted(rank for rank in timed - steps.keys() if rank is not None))
        reason = f"no steps are marked on ranks {unmarked}; all that was recorded is taken instead of steps"
        all_warnings.append(SourceWarning("not_visible", reason))
        steps = {}
    whole = Trace(
        kinds=tuple(dict.fromkeys(kind for trace in kept for kind in trace.kinds)),
        sources=tuple(dict.fromkeys(source for trace in traces for source in trace.sources)),
        communications=tuple(
            communication for trace in kept for communication in trace.communications
        ),
        ranks=tuple(ranks),
        world_size=world,
        backend=next((trace.backend for trace in kept if trace.backend), ""),
        groups=groups,
        computing={rank: merged(rows) for rank, rows in _by_rank(kept, "computing").items()},
        steps=steps,
        not_taken=dict(sum((Counter(trace.not_taken) for trace in kept), Counter[str]())),
        progress=tuple(progress for trace in kept for progress in trace.progress),
        versions={
            name: value for trace in reversed(kept) for name, value in trace.versions.items()
        },
        facts={name: value for trace in reversed(kept) for name, value in trace.facts.items()},
        warnings=tuple(dict.fromkeys(all_warnings)),
    )
    return by_use(whole)


def _not_seen(
    ranks: Sequence[int], world: int, traces: Sequence[Trace]
) -> Iterator[SourceWarning]:
    """Give a warning for the ranks of the job of which no trace is."""
    missing = sorted(set(range(min(world, MOST_RANKS) or max(ranks, default=0))) - set(ranks))
    if missing and ranks and world:
        reason = f"of {world} ranks there is no trace of {rank_list(missing)}; who waited for them is not seen"
        yield SourceWarning("not_visible", reason)
    # Lines of a watchdog say neither how many ranks there are nor who had nothing to report.
    elif (
        ranks
        and not world
        and any(
            row.completed is not None or row.trouble
            for trace in traces
            for row in trace.progress
        )
    ):
        below = f"{rank_list(missing)} and of those " if missing else ""
        reason = f"nothing is here of ranks {below}above {ranks[-1]}, if there are: they are not seen"
        yield SourceWarning("not_visible", reason)


def _by_rank(traces: Sequence[Trace], what: str) -> dict[int, Intervals]:
    """Rank -> the intervals ``what`` of all traces."""
    by_rank: dict[int, list[Any]] = {}
    for trace in traces:
        for rank, intervals in getattr(trace, what).items():
            by_rank.setdefault(rank, []).append(intervals)
    return {rank: np.concatenate(several) for rank, several in by_rank.items()}


def _each_once(traces: Sequence[Trace], warnings: list[SourceWarning]) -> list[Trace]:
    """Return ``traces`` without copies, with each communication once; those of one rank in the order of time.

    Where several kinds recorded a rank, the communications are those of the kind with most durations, and
    others tell what it does not know of their groups.
    """
    kept: dict[object, Trace] = {}
    for trace in traces:
        same = kept.setdefault(
            (trace.kinds, trace.ranks, trace.communications or trace.sources), trace
        )
        if same is not trace:
            warnings.append(
                _contradiction(
                    f"{_place(trace)} says the same as {_place(same)}; it is left out"
                )
            )
    # By the first start of each, so that the calls of a rank in several files stay in its order.
    ordered = sorted(
        kept.values(),
        key=lambda trace: next(
            (communication.start_seconds or 0.0 for communication in trace.communications[:1]),
            0.0,
        ),
    )
    of_rank: dict[object, Trace] = {}
    durations: Counter[tuple[str, ...]] = Counter()
    for trace in ordered:
        durations[trace.kinds] += sum(
            communication.duration_seconds is not None for communication in trace.communications
        )
        for rank in trace.ranks:
            earlier = of_rank.setdefault((trace.kinds, rank), trace)
            if earlier is not trace:
                reason = f"{_place(earlier)} and {_place(trace)} are both of rank {rank}; both are counted"
                warnings.append(_contradiction(reason))
    # Of a rank the communications of one kind are kept: in two kinds they would be counted twice.
    best = max(durations, key=lambda kinds: durations[kinds])
    result = [trace for trace in ordered if trace.kinds == best]
    for trace in (trace for trace in ordered if trace.kinds != best):
        also = [
            place
            for place, chosen in enumerate(result)
            if not {*chosen.ranks}.isdisjoint(trace.ranks)
        ]
        for place in also:
            result[place] = completed(result[place], trace)
        result.append(replace(trace, communications=()) if also else trace)
    return result


def completed(trace: Trace, source: Trace) -> Trace:
    """Return ``trace`` with the groups that ``source`` has of the same rank's calls.

    Both have them in one order; ``source`` may have begun earlier, and lack sends. Nothing is taken where
    no part of it has nine in ten of the calls without a group.
    """
    own, calls = trace.communications, source.communications
    listed = {group.name: group for group in trace.groups if group.ranks}
    begins = [place for place, there in enumerate(calls) if own and _same(own[0], there)]
    for begin in begins[:_BEGINNINGS]:
        completed_calls: list[Communication] = []
        at, open_, lacking = begin, 0, 0
        for call in own:
            # One tool may have calls that the other lacks, so a few places ahead are looked at.
            ahead = range(at, min(at + _AHEAD, len(calls)))
            place = next((place for place in ahead if _same(call, calls[place])), None)
            there = call if place is None else calls[place]
            at = at if place is None else place + 1
            # Flight Recorder has no sends of Gloo: that one is lacking says nothing against this place.
            counted = not call.group.ranks and call.collective not in (SEND, RECV)
            open_, lacking = open_ + counted, lacking + (counted and place is None)
            if not call.group.ranks:
                call = replace(call, group=listed.get(there.group.name, there.group))
            completed_calls.append(call)
        if lacking * 10 <= open_:
            return replace(trace, communications=tuple(completed_calls))
    return trace


def _same(first: Communication, second: Communication) -> bool:
    """Tell whether two tools may mean one call. Flight Recorder has Gloo's reduce_scatter as all_reduce."""
    names = {first.collective, second.collective}
    # A tool that does not say the bytes contradicts nothing.
    sizes = {first.input_bytes, second.input_bytes} - {None}
    return (len(names) == 1 or names == {"reduce_scatter", "all_reduce"}) and len(sizes) < 2


def _place(trace: Trace) -> str:
    return plain(trace.sources[0], 200)


def _contradiction(reason: str) -> SourceWarning:
    return SourceWarning("contradiction", reason)
