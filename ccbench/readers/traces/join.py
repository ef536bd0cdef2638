"""Records of one collective in the traces of several ranks, joined by group and place, never by clocks."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest

from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import BARRIER, RECV, SEND, Communication, Trace
from ccbench.readers.traces.groups import rank_list
from ccbench.units import plain, plural, shown

SAME_ON_ALL_RANKS = ("all_reduce", "all_gather", "reduce_scatter", BARRIER)
"""Collectives whose ranks all give and get as many bytes."""

LATE_SHARE, LATE_SECONDS = 0.1, 10e-6
"""A rank came last where the next one waited this much longer: of the transfer, and at least this long."""


@dataclass(frozen=True)
class Instance:
    """One collective, or one message, of a job: what each of its ranks recorded, in rank order.

    Of a trace that has sums instead of single events it stands for ``count`` of them.
    """

    records: tuple[Communication, ...]

    @property
    def count(self) -> int:
        """Number of times that it ran."""
        return self.records[0].count

    @property
    def timed(self) -> tuple[Communication, ...]:
        """The records with a duration; of some ranks another tool may have recorded the call alone."""
        return tuple(record for record in self.records if record.duration_seconds is not None)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Duration of each of ``timed``, with waiting for others."""
        return tuple(record.duration_seconds or 0.0 for record in self.timed)

    @property
    def _starts(self) -> list[float]:
        """Start of each of ``timed``, as far as it is known."""
        starts = [record.start_seconds for record in self.timed]
        return [start for start in starts if start is not None]

    @property
    def _is_symmetric(self) -> bool:
        return self.records[0].collective in SAME_ON_ALL_RANKS

    def waits(self, one_clock: bool) -> tuple[float, ...]:
        """Return how many seconds each rank of ``timed`` waited for those that came later.

        The rank that came last does not wait, so the shortest time is the transfer, whatever the clocks say,
        and what others took longer they waited. Where ranks do unequal work the shortest may be that of the
        rank with least to do: there the last start ends the waiting, if ranks have ``one_clock``.
        () where fewer than two ranks were timed.
        """
        durations = self.seconds
        if len(durations) < 2:
            return ()
        starts = self._starts
        # Never more than its own time: a clock that is a little off must make no negative transfer.
        if one_clock and not self._is_symmetric and len(starts) == len(durations):
            return tuple(
                min(own, max(starts) - start)
                for own, start in zip(durations, starts, strict=True)
            )
        return tuple(own - min(durations) for own in durations)

    def transfer_seconds(self, one_clock: bool) -> float | None:
        """Return the longest of the ranks' times without waiting; None where fewer than two were recorded."""
        waited = self.waits(one_clock)
        return (
            max(own - wait for own, wait in zip(self.seconds, waited, strict=True))
            if waited
            else None
        )

    def last_rank(self, one_clock: bool) -> int | None:
        """Return the rank that came last: all others clearly waited.

        None where none did, or where it may have had less to do than others.
        """
        transfer = self.transfer_seconds(one_clock)
        uneven = any(row.input_splits or row.output_splits for row in self.records)
        if transfer is None or (uneven and not one_clock):
            return None
        ranks = (row.rank for row in self.timed)
        # Who waited least came last, if the next one waited clearly more.
        (_, rank), (second, _) = sorted(zip(self.waits(one_clock), ranks, strict=True))[:2]
        return rank if second > max(LATE_SECONDS, LATE_SHARE * transfer) else None

    def begins_together(self) -> bool | None:
        """Tell whether, by the ranks' clocks, nobody ended before all had begun, which no rank can.

        None where nobody can tell: ranks may end earlier, or have no times.
        """
        starts = self._starts
        if not self._is_symmetric or not len(self.seconds) == len(starts) > 1:
            return None
        ends = (start + seconds for start, seconds in zip(starts, self.seconds, strict=True))
        return max(starts) <= min(ends) + LATE_SECONDS


def have_one_clock(timed: Iterable[Instance]) -> bool:
    """Tell whether ranks have one clock, as on one host; False where it is not known."""
    # One collective that ends somewhere before it began elsewhere is enough to show two clocks.
    answers = {instance.begins_together() for instance in timed} - {None}
    return answers == {True}


def instances(trace: Trace) -> tuple[tuple[Instance, ...], tuple[SourceWarning, ...]]:
    """Return the collectives and messages of ``trace``, each once, and what contradicts itself.

    Ranks of one group call its collectives in one order (MPI 4.1, section 6.14; NCCL and Gloo alike), so the
    n-th of each belong together, or, where the trace numbers them, those of one number. Where ranks say
    different things at one place, they and all after them stay single: nobody can say what was lost.
    Messages are joined by their two ranks and order.
    """
    groups: dict[Hashable, dict[int, list[Communication]]] = defaultdict(
        lambda: defaultdict(list)
    )
    joined: list[Instance] = []
    for communication in trace.communications:
        if communication.rank is None:
            joined.append(Instance((communication,)))
            continue
        # Equal for records of ranks that communicate with each other. The name is in it, for two groups may
        # have the same ranks, and count by themselves.
        key: Hashable = (
            communication.group.name,
            communication.group.ranks or communication.group.size,
        )
        if communication.collective in (SEND, RECV):
            ends = (
                (communication.rank, communication.peer)
                if communication.collective == SEND
                else (communication.peer, communication.rank)
            )
            key = (
                "message",
                ends,
                communication.collective if communication.peer is None else "",
            )
        groups[key][communication.rank].append(communication)
    warnings: list[SourceWarning] = []
    for by_rank in groups.values():
        joined += _joined(by_rank, warnings)
    return tuple(joined), tuple(warnings)


def _joined(
    by_rank: Mapping[int, list[Communication]], warnings: list[SourceWarning]
) -> Iterator[Instance]:
    ranks = sorted(by_rank)
    ordered = [by_rank[rank] for rank in ranks]
    if all(record.sequence is not None for records in ordered for record in records):
        by_number: dict[tuple[int, int], list[Communication]] = defaultdict(list)
        for records in ordered:
            # A number that a rank has twice (coalesced calls share one) is told apart by order.
            repeats: Counter[int] = Counter()
            for record in records:
                assert record.sequence is not None
                by_number[record.sequence, repeats[record.sequence]].append(record)
                repeats[record.sequence] += 1
        places = [by_number[number] for number in sorted(by_number)]
    else:
        places = [[record for record in records if record] for records in zip_longest(*ordered)]
    for place, records in enumerate(places):
        if len({_alike(record) for record in records}) > 1:
            first = records[0]
            differing = next(record for record in records if _alike(record) != _alike(first))
            calls = [
                f"rank {record.rank} has {shown(record.collective or record.name)} {record.dtype} of "
                f"{plural(max(record.input_bytes or 0, record.output_bytes or 0), 'byte')}"
                for record in (first, differing)
            ]
            text = f"{_group(first)}, place {place}: {' where '.join(calls)}; from there on ranks are not joined"
            warnings.append(SourceWarning("contradiction", text, first.line))
            # Joined by force, every later one would be compared with a stranger.
            yield from (Instance((record,)) for rest in places[place:] for record in rest)
            return
        yield Instance(tuple(records))
    lengths = Counter(map(len, ordered))
    if len(lengths) > 1:
        most = max(lengths)
        short = [
            rank for rank, records in zip(ranks, ordered, strict=True) if len(records) < most
        ]
        text = (
            f"{_group(ordered[0][0])}: rank{'s' if len(short) > 1 else ''} {rank_list(short)}: "
            f"{plural(min(lengths), 'communication')}, others {most}; a trace begins later or ends earlier"
        )
        warnings.append(SourceWarning("truncated", text))


def _alike(communication: Communication) -> Hashable:
    """Values that must be equal in all records of one collective."""
    # Each end of a message knows one side of it.
    if communication.collective in (SEND, RECV):
        return max(communication.input_bytes or 0, communication.output_bytes or 0)
    sizes = (
        (communication.input_bytes, communication.output_bytes)
        if communication.collective in SAME_ON_ALL_RANKS
        else None
    )
    return communication.collective or communication.name, communication.dtype, sizes


def _group(communication: Communication) -> str:
    name = communication.group.description or communication.group.name
    return f"process group {plain(name)}" if name else "ranks of a group without a name"
