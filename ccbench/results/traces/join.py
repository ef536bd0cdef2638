"""The same collective in the traces of several ranks: by group and place in its order, never by clocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ccbench.results.traces.events import BARRIER, RECV, SEND, Communication, Trace
from ccbench.topology.graph import SourceWarning
from ccbench.units import plain, plural, shown

SAME_ON_ALL_RANKS = ("all_reduce", "all_gather", "reduce_scatter", BARRIER)
"""Collectives whose ranks all give and get as many bytes."""


@dataclass(frozen=True)
class Instance:
    """One collective, or one message, of a job: what each of its ranks recorded, in rank order.

    Of a trace that has sums instead of single events it stands for ``count`` of them.
    """

    records: tuple[Communication, ...]

    @property
    def count(self) -> int:
        """How often it ran."""
        return self.records[0].count


def instances(trace: Trace) -> tuple[tuple[Instance, ...], tuple[SourceWarning, ...]]:
    """Return the collectives and messages of ``trace``, each once, and what contradicts itself.

    Ranks of one group call its collectives in one order (MPI 4.1, section 6.14; NCCL and Gloo alike), so the
    n-th of each belong together, or, where the trace numbers them, those of one number. Where ranks say
    different things at one place, they and all after them stay single: nobody can say what was lost.
    Messages are joined by their two ranks and order.
    """
    groups: dict[Hashable, dict[int, list[Communication]]] = defaultdict(lambda: defaultdict(list))
    found: list[Instance] = []
    for one in trace.communications:
        if one.rank is None:
            found.append(Instance((one,)))
        else:
            groups[_key(one)][one.rank].append(one)
    warnings: list[SourceWarning] = []
    for by_rank in groups.values():
        found += _joined(by_rank, warnings)
    return tuple(found), tuple(warnings)


def _key(one: Communication) -> Hashable:
    """What is equal for records of ranks that communicate with each other."""
    if one.collective in (SEND, RECV):
        ends = (one.rank, one.peer) if one.collective == SEND else (one.peer, one.rank)
        return "message", ends, one.collective if one.peer is None else ""
    # Two groups may have the same ranks, and count by themselves.
    return one.group.name, one.group.ranks or one.group.size


def _joined(by_rank: Mapping[int, list[Communication]], warnings: list[SourceWarning]) -> Iterator[Instance]:
    ranks = sorted(by_rank)
    ordered = [by_rank[rank] for rank in ranks]
    if all(one.sequence is not None for records in ordered for one in records):
        by_number: dict[tuple[int, int], list[Communication]] = defaultdict(list)
        for records in ordered:
            # A number that a rank has twice (coalesced calls share one) is told apart by order.
            seen: Counter[int] = Counter()
            for one in records:
                assert one.sequence is not None
                by_number[one.sequence, seen[one.sequence]].append(one)
                seen[one.sequence] += 1
        places = [by_number[number] for number in sorted(by_number)]
    else:
        places = [[one for one in records if one] for records in zip_longest(*ordered)]
    for place, records in enumerate(places):
        if len({_alike(one) for one in records}) > 1:
            warnings.append(_contradiction(records, place))
            yield from (Instance((one,)) for rest in places[place:] for one in rest)
            return
        yield Instance(tuple(records))
    lengths = Counter(map(len, ordered))
    if len(lengths) > 1:
        most = max(lengths)
        short = [rank for rank, records in zip(ranks, ordered, strict=True) if len(records) < most]
        text = (
            f"{_group(ordered[0][0])}: ranks {', '.join(map(str, short[:6]))} have "
            f"{min(lengths)} communications, others {most}; the trace of some begins later or ends earlier"
        )
        warnings.append(SourceWarning("truncated", text))


def _alike(one: Communication) -> Hashable:
    """What must be equal in all records of one collective."""
    if one.collective in (SEND, RECV):
        return max(one.input_bytes or 0, one.output_bytes or 0)
    sizes = (one.input_bytes, one.output_bytes) if one.collective in SAME_ON_ALL_RANKS else None
    return one.collective or one.name, one.dtype, sizes


def _contradiction(records: Sequence[Communication], place: int) -> SourceWarning:
    first = records[0]
    other = next(one for one in records if _alike(one) != _alike(first))
    told = [
        f"rank {one.rank} has {shown(one.collective or one.name)} {one.dtype} of "
        f"{plural(max(one.input_bytes or 0, one.output_bytes or 0), 'byte')}"
        for one in (first, other)
    ]
    text = f"{_group(first)}, place {place}: {' where '.join(told)}; from there on ranks are not joined"
    return SourceWarning("contradiction", text, first.line)


def _group(one: Communication) -> str:
    name = one.group.description or one.group.name
    return f"process group {plain(name)}" if name else "ranks of a group without a name"
