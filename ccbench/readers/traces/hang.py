"""One verdict of a job that hangs: which ranks stopped, before or in which call, and who waits behind them.

Ranks and what they wait for are a graph. A rank waits in the first call of a group that it made and did not
complete, for the members that came least far there; in its earliest open call also for members that are busy
in another one; in a message for its peer. Whoever waits for somebody is an effect. The causes are the ranks
at the end of all ways: they wait nowhere, or in a call that nobody is missing from. Where there is no end,
ranks wait for each other in a circle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ccbench.findings import Finding
from ccbench.readers.traces.events import (
    RECV,
    SEND,
    Communication,
    ProcessGroup,
    Trace,
)
from ccbench.readers.traces.groups import rank_list
from ccbench.units import format_size, plain, plural, shown

WHERE_IT_IS = "look at what it does: its stack (py-spy dump), its log, its host"

_SIZED_ALIKE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
"""Collectives whose largest buffer has the same size on every rank."""

BEFORE, IN, NOBODY, CIRCLE, DIFFER, UNSEEN, OPEN = (
    "before",
    "in",
    "nobody",
    "circle",
    "differ",
    "unseen",
    "open",
)
"""Of a cause: its ranks did not make the call, or alone did not complete it; no rank completed it; each waits
for the next; the call is not the same on all ranks; no call of the ranks is here; its ranks, none where no
dump says its rank, did not complete the call, and nothing shows for whom they wait."""

_ADVICE = {
    NOBODY: "every rank is in it: look at the links, the devices and the library's log of these ranks",
    CIRCLE: "let every rank use the groups in one order",
    DIFFER: "ranks took different ways through the program, or have different sizes of data",
    UNSEEN: "give the dumps of all ranks; a rank that left none may have died first",
    OPEN: "give the log or the dump of every rank, dumps named by the rank, such as nccl_trace_rank_3",
}


@dataclass(frozen=True)
class RankWait:
    """Rank that waits in a call of ``group`` for ``ranks``. message: the call is a send or a receive."""

    rank: int
    group: ProcessGroup
    sequence: int
    ranks: tuple[int, ...]
    message: str = ""


@dataclass(frozen=True)
class HangCause:
    """Why a job hangs: ``ranks`` and a call of ``group``. kind: see above. call: its words, '' where no record
    of it is kept. waiting: ranks that wait for these in the group, in a ``later`` call than this where that
    is not ''. completed: ranks that completed it. places: files.
    """

    kind: str
    ranks: tuple[int, ...]
    group: ProcessGroup
    sequence: int
    call: str = ""
    waiting: tuple[int, ...] = ()
    later: str = ""
    completed: tuple[int, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        """Ranks, call and group in words, without an end."""
        words = f", {self.call}" if self.call else ""
        number = f"call {self.sequence}" if self.sequence else "a call"
        call = f"{number} of {named(self.group)}{words}"
        who = ranks_of(self.ranks) if self.ranks else "a rank that is not named"
        return {
            DIFFER: f"call {self.sequence} of {named(self.group)} is not the same on all ranks: {self.call}",
            OPEN: f"{who} made {call}, and did not complete it; nothing shows who is behind",
            NOBODY: f"all ranks made {call}, and none completed it: the transfer itself stopped",
            CIRCLE: f"{who} wait for each other: {self.call}",
            UNSEEN: f"all ranks that left a dump made {call}; no call of {who} is here",
        }.get(self.kind, f"{who} stopped {self.kind} {call}")

    @property
    def effect(self) -> str:
        """Who completed the call and who waits in it, in words; '' for nobody."""
        done = f"{ranks_of(self.completed)} completed it" if self.completed else ""
        wait = "waits" if len(self.waiting) == 1 else "wait"
        whom = "it" if len(self.ranks) == 1 else "them"
        waiting = (
            f"{plural(len(self.waiting), 'rank')} {wait} for {whom}{self.later}"
            if self.waiting
            else ""
        )
        return ", ".join(filter(None, (done, waiting)))

    @property
    def sentence(self) -> str:
        """Headline, and who else is concerned."""
        return ": ".join(filter(None, (self.headline, self.effect)))


@dataclass(frozen=True)
class Hang:
    """Causes of a hang, the first as the likeliest, and all waits, of which those in other groups are effects."""

    causes: tuple[HangCause, ...]
    waits: tuple[RankWait, ...]

    @property
    def ranks(self) -> tuple[int, ...]:
        """Ranks that the causes name."""
        return tuple(sorted({rank for cause in self.causes for rank in cause.ranks}))

    @cached_property
    def behind(self) -> tuple[RankWait, ...]:
        """Waits in groups in which no cause is, and not those that a circle is made of."""
        groups = {cause.group for cause in self.causes}
        circle = {rank for cause in self.causes if cause.kind == CIRCLE for rank in cause.ranks}
        return tuple(
            wait for wait in self.waits if wait.group not in groups and wait.rank not in circle
        )

    @property
    def sentence(self) -> str:
        """Who stopped and where, then how many groups wait behind."""
        groups = list(dict.fromkeys(wait.group for wait in self.behind))
        behind = ""
        if groups:
            names = ", ".join(
                sorted(
                    shown(group.name) if group.name else "without a name" for group in groups
                )
            )
            what = f"group {names}" if len(groups) == 1 else f"groups {names}"
            what = what if len(groups) <= 4 else f"{len(groups)} other groups"
            behind = f"; {what} {'waits' if len(groups) == 1 else 'wait'} behind"
        return "; ".join(cause.sentence for cause in self.causes[:4]) + behind


def hang_of(trace: Trace) -> Hang | None:
    """Return why the job of ``trace`` hangs; None where nobody waits, or the trace has no state of calls."""
    job = _HungJob(trace)
    waits = tuple(job.waits())
    causes = tuple(job.causes(waits)) or tuple(_unfinished(trace))
    return Hang(causes, waits) if causes else None


def _unfinished(trace: Trace) -> Iterator[HangCause]:
    """Give the first call of each rank that is open, where none shows no wait of one rank for another."""
    first: dict[int | None, Communication] = {}
    completed: set[tuple[int | None, ProcessGroup]] = set()
    for call in reversed(trace.communications):
        place = call.rank, call.group
        # Calls of a group run in their order; sends of a batch keep the state in which they were recorded.
        if call.state == "completed" and call.rank is not None:
            completed.add(place)
        elif call.state not in ("", "completed") and place not in completed:
            first[call.rank] = call
    together: dict[tuple[ProcessGroup, int], list[Communication]] = defaultdict(list)
    for call in reversed(first.values()):
        together[call.group, call.sequence or 0].append(call)
    for (group, sequence), calls in together.items():
        ranks = sorted(call.rank for call in calls if call.rank is not None)
        yield HangCause(OPEN, tuple(ranks), group, sequence, shape_of(calls[0]))


def findings_of(hang: Hang) -> Iterator[Finding]:
    """Give the causes, then the groups that wait behind them, those of one purpose together."""
    for cause in hang.causes:
        # Calls on their way are normal in a dump of a job that goes on.
        sure = cause.kind not in (NOBODY, UNSEEN, OPEN)
        yield Finding(
            severity="problem" if sure else "doubt",
            kind={
                UNSEEN: "no_dump",
                NOBODY: "not_completed",
                OPEN: "not_completed",
                DIFFER: "calls_differ",
            }.get(cause.kind, "rank_behind"),
            devices=tuple(f"rank {rank}" for rank in cause.ranks),
            subject=cause.headline[:1].upper() + cause.headline[1:],
            evidence="; ".join(filter(None, (cause.effect, ", ".join(cause.places[:6])))),
            advice=_ADVICE.get(cause.kind, WHERE_IT_IS),
        )
    alike: dict[str, list[RankWait]] = defaultdict(list)
    for wait in hang.behind:
        alike[wait.group.description or wait.group.name].append(wait)
    for waits in alike.values():
        groups = list(dict.fromkeys(wait.group for wait in waits))
        waiting = sorted({wait.rank for wait in waits})
        missing = sorted({rank for wait in waits for rank in wait.ranks})
        what = named(groups[0]) + (f" and {len(groups) - 1} more of it" if groups[1:] else "")
        for_whom = f" for {ranks_of(missing)}" if missing else " behind earlier calls"
        yield Finding(
            severity="note",
            kind="waits_behind",
            devices=tuple(f"rank {rank}" for rank in waiting),
            subject=f"In {what} {ranks_of(waiting)} {'waits' if len(waiting) == 1 else 'wait'}{for_whom}",
            evidence=f"from call {min(wait.sequence for wait in waits)} on",
            advice="",
        )


@dataclass(frozen=True)
class _Reached:
    """Progress of a rank in a group: its last call that is completed, and its last one."""

    completed: int
    enqueued: int

    @property
    def frontier(self) -> tuple[int, bool]:
        """Orders ranks by how far they came: of two with the same calls completed, who made the next."""
        return self.completed, self.enqueued > self.completed


_NOTHING_MADE = _Reached(-1, -1)


class _HungJob:
    """State of each rank in each group, and its earliest open call."""

    def __init__(self, trace: Trace) -> None:
        # Of a rank of which only its trouble is told, it is not known which calls it made.
        in_trouble = {row.rank for row in trace.progress if row.trouble}
        self._dumped = set(trace.ranks) - (
            in_trouble - {row.rank for row in trace.progress if not row.trouble}
        )
        self._places = {row.rank: row.place for row in trace.progress if not row.trouble}
        self.calls: dict[tuple[ProcessGroup, int], list[Communication]] = defaultdict(list)
        self._messages: dict[int, list[Communication]] = defaultdict(list)
        self._current: dict[int, Communication] = {}
        mixed = {call.group for call in trace.communications if call.collective in (SEND, RECV)}
        for call in trace.communications:
            if call.rank is None or call.sequence is None:
                continue
            if is_open := call.state not in ("", "completed"):
                self._current.setdefault(call.rank, call)
            if call.collective not in (SEND, RECV):
                self.calls[call.group, call.sequence].append(call)
            elif is_open:
                self._messages[call.rank].append(call)
        self.reached: dict[ProcessGroup, dict[int, _Reached]] = defaultdict(dict)
        for row in trace.progress:
            counted = row.completed is not None and row.enqueued is not None
            # A status counts messages too; the records of collectives alone tell them apart.
            recorded = row.group not in mixed or any(
                call.rank == row.rank
                for call in self.calls.get((row.group, row.enqueued or 0), ())
            )
            if counted and recorded and not row.trouble:
                self.reached[row.group][row.rank] = _Reached(
                    row.completed or 0, row.enqueued or 0
                )

    def members(self, group: ProcessGroup) -> dict[int, _Reached]:
        """Rank -> how far it is; a rank with a dump that says nothing of the group has made no call."""
        rows = self.reached[group]
        dumped = [rank for rank in group.ranks if rank in self._dumped]
        return dict.fromkeys(dumped, _NOTHING_MADE) | rows

    def waits(self) -> Iterator[RankWait]:
        """Give every rank's waits. A wait for nobody is in a call that all have made."""
        for group in list(self.reached):
            members = self.members(group)
            open_ = {rank: row for rank, row in members.items() if row.frontier[1]}
            if not open_:
                continue
            last = min(row.frontier for row in members.values())
            behind = [rank for rank, row in members.items() if row.frontier == last]
            busy = [rank for rank in behind if last[1] and not self._in(rank, group)]
            for rank, row in open_.items():
                ahead = row.frontier > last
                lacking = behind if ahead else busy if self._in(rank, group) else []
                unseen = sorted(set(group.ranks) - members.keys()) if not lacking else []
                yield RankWait(rank, group, row.completed + 1, tuple(lacking or unseen))
        for rank, messages in self._messages.items():
            by_peer: dict[tuple[int, str], Communication] = {}
            for message in messages:
                if message.peer is not None:
                    by_peer.setdefault((message.peer, message.collective), message)
            for (peer, _), message in by_peer.items():
                way = RECV if message.collective == SEND else SEND
                own = [
                    answer
                    for answer in self._messages.get(peer, ())
                    if answer.peer == rank
                    and answer.collective == way
                    and answer.group == message.group
                ]
                lacks = not own or (
                    self._current.get(rank) is message and self._current.get(peer) not in own
                )
                yield RankWait(
                    rank,
                    message.group,
                    message.sequence or 0,
                    (peer,) if lacks else (),
                    f"{message.collective} {'to' if message.collective == SEND else 'from'} rank {peer}",
                )

    def _in(self, rank: int, group: ProcessGroup) -> bool:
        """Tell whether the earliest open call of ``rank`` is a collective of ``group``; unknown counts as yes."""
        current = self._current.get(rank)
        return current is None or (
            current.group == group and current.collective not in (SEND, RECV)
        )

    def causes(self, waits: Sequence[RankWait]) -> Iterator[HangCause]:
        """Give what everything else waits for, calls that differ before all else."""
        differing = dict(self._differing(waits))
        yield from differing.values()
        targets: dict[int, set[int]] = defaultdict(set)
        for wait in waits:
            targets[wait.rank].update(wait.ranks)
        awaited = {rank for ranks in targets.values() for rank in ranks}
        ends = {rank for rank in awaited if not targets.get(rank)}
        explained = {rank for group in differing for rank in self.members(group)}
        seen_ends = [rank for rank in ends - explained if self._has_state(rank)]
        yield from self._stopped(sorted(seen_ends), waits)
        effects = _reaching(ends | explained, targets)
        while rest := [rank for rank in targets if targets[rank] and rank not in effects]:
            # No way ends from here: the waits are followed until a rank comes again.
            circle = [rest[0]]
            while (following := min(targets[circle[-1]])) not in circle:
                circle.append(following)
            circle = circle[circle.index(following) :]
            after = dict(zip(circle, [*circle[1:], circle[0]], strict=True))
            links = [
                next(w for w in waits if w.rank == rank and after[rank] in w.ranks)
                for rank in circle
            ]
            words = ", ".join(
                f"rank {wait.rank} for rank {after[wait.rank]} in "
                + (wait.message or f"call {wait.sequence} of {named(wait.group)}")
                for wait in links[:6]
            )
            group, sequence = links[0].group, links[0].sequence
            yield self._cause(CIRCLE, tuple(sorted(circle)), group, sequence, words)
            effects |= _reaching(circle, targets)
        yield from self._without_end(ends, explained, waits)

    def _has_state(self, rank: int) -> bool:
        return rank in self._dumped or any(rank in rows for rows in self.reached.values())

    def _differing(self, waits: Sequence[RankWait]) -> Iterator[tuple[ProcessGroup, HangCause]]:
        """Give the groups whose open call is not the same on all ranks."""
        for group, sequence in dict.fromkeys(
            (wait.group, wait.sequence) for wait in waits if not wait.message
        ):
            fewest, words = differing(self.calls.get((group, sequence), ()))
            if fewest:
                yield group, self._cause(DIFFER, fewest, group, sequence, words)

    def _stopped(self, ranks: Sequence[int], waits: Sequence[RankWait]) -> Iterator[HangCause]:
        """Give the causes of ranks at an end: the call where most of them stopped, then that of the rest."""
        stops: dict[tuple[ProcessGroup, int, str, str], set[int]] = defaultdict(set)
        # All that wait in a call wait for the same ranks: each call is looked at once.
        calls = dict.fromkeys(
            (wait.group, wait.sequence, wait.message, wait.ranks) for wait in waits
        )
        for group, made, message, awaited in calls:
            rows = self.reached[group]
            for rank in set(awaited) & set(ranks):
                row = rows.get(rank, _NOTHING_MADE)
                is_in = not message and row.frontier[1]
                at = row.completed + 1 if is_in else made
                stops[group, at, IN if is_in else BEFORE, message].add(rank)
        left = set(ranks)
        while left:
            # A message is between two; of calls with as many of the ranks the first that was made is taken.
            stop = min(
                (stop for stop in stops if stops[stop] & left),
                key=lambda stop: (
                    -len(stops[stop] & left),
                    bool(stop[3]),
                    min(
                        (call.start_seconds or 0.0 for call in self.calls.get(stop[:2], ())),
                        default=float("inf"),
                    ),
                    stop[1],
                ),
            )
            group, sequence, kind, message = stop
            here = tuple(sorted(stops[stop] & left))
            left -= stops[stop]
            yield self._stop(kind, here, group, sequence, message, waits)

    def _stop(
        self,
        kind: str,
        ranks: tuple[int, ...],
        group: ProcessGroup,
        sequence: int,
        message: str,
        waits: Sequence[RankWait],
    ) -> HangCause:
        waiting = {
            wait.rank: wait.sequence
            for wait in waits
            if wait.group == group and {*wait.ranks} & {*ranks}
        }
        rows = self.members(group)
        done = [rank for rank, row in rows.items() if row.completed >= sequence and not message]
        first, later = min(waiting.values()), ""
        # Ranks that did not even make the call in which others wait are behind on the host too.
        if kind == IN and all(rows[rank].enqueued < first for rank in ranks):
            words = self._words(group, first)
            later = f" in call {first}{f', {words}' if words else ''}"
        cause = self._cause(
            kind, ranks, group, sequence, message or self._words(group, sequence)
        )
        return replace(
            cause, waiting=tuple(sorted(waiting)), later=later, completed=tuple(sorted(done))
        )

    def _without_end(
        self, ends: set[int], explained: set[int], waits: Sequence[RankWait]
    ) -> Iterator[HangCause]:
        """Give ranks of which nothing is here, and calls that all have made while no rank of them stopped."""
        unseen: dict[tuple[ProcessGroup, int], set[int]] = defaultdict(set)
        for wait in waits:
            if here := {rank for rank in wait.ranks if not self._has_state(rank)}:
                unseen[wait.group, wait.sequence] |= here
        left = {rank for ranks in unseen.values() for rank in ranks}
        for (group, sequence), ranks in sorted(unseen.items(), key=lambda row: -len(row[1])):
            if ranks & left:
                left -= ranks
                words = self._words(group, sequence)
                yield self._cause(UNSEEN, tuple(sorted(ranks)), group, sequence, words)
        if ends or explained:
            return
        for group in dict.fromkeys(wait.group for wait in waits if not wait.message):
            rows = self.members(group)
            here = {
                rank for rank, row in rows.items() if row.frontier[1] and self._in(rank, group)
            }
            if here == rows.keys() and not any(w.ranks for w in waits if w.rank in here):
                at = min(row.completed for row in rows.values()) + 1
                # Whether these are all ranks shows where the trace lists them.
                kind = NOBODY if group.ranks else OPEN
                yield self._cause(kind, tuple(sorted(here)), group, at, self._words(group, at))

    def _cause(
        self,
        kind: str,
        ranks: tuple[int, ...],
        group: ProcessGroup,
        sequence: int,
        call: str,
    ) -> HangCause:
        places = dict.fromkeys(self._places[rank] for rank in ranks if self._places.get(rank))
        return HangCause(kind, ranks, group, sequence, call, places=tuple(places))

    def _words(self, group: ProcessGroup, sequence: int) -> str:
        made = self.calls.get((group, sequence))
        return shape_of(made[0]) if made else ""


def _reaching(ends: Iterable[int], targets: Mapping[int, set[int]]) -> set[int]:
    """Ranks from which a way leads to one of ``ends``, with these."""
    sources: dict[int, list[int]] = defaultdict(list)
    for rank, ranks in targets.items():
        for target in ranks:
            sources[target].append(rank)
    reached, todo = set(ends), list(ends)
    while todo:
        new = [rank for rank in sources[todo.pop()] if rank not in reached]
        reached.update(new)
        todo += new
    return reached


def differing(calls: Iterable[Communication]) -> tuple[tuple[int, ...], str]:
    """Return the ranks whose call is another than that of most, and words for all; none where all are alike.

    calls: of one group and place in its order. A call without a rank counts as rank -1.
    """
    ranks_of_shape: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        ranks_of_shape[shape_of(call)].append(-1 if call.rank is None else call.rank)
    if len(ranks_of_shape) < 2:
        return (), ""
    words = (f"{shape} on {ranks_of(sorted(on))}" for shape, on in ranks_of_shape.items())
    # The smaller party is named: a slip of one rank is likelier than the same slip of all others.
    fewest = min(ranks_of_shape.values(), key=len)
    return tuple(sorted(fewest)), "; ".join(words)


def shape_of(call: Communication) -> str:
    """Return the collective of ``call`` in words, with its bytes where all ranks have as many."""
    sizes = [size for size in (call.input_bytes, call.output_bytes) if size is not None]
    if call.collective in _SIZED_ALIKE and call.elements is not None:
        return f"{call.collective} of {plural(call.elements, 'element')}"
    if call.collective not in _SIZED_ALIKE or not sizes:
        return call.collective
    return f"{call.collective} of {format_size(max(sizes))}"


def named(group: ProcessGroup) -> str:
    """Return the name and the purpose of ``group`` in words."""
    described = f" ({plain(group.description)})" if group.description else ""
    return f"process group {shown(group.name)}{described}" if group.name else "a process group"


def ranks_of(ranks: Sequence[int]) -> str:
    """Return "rank 3" or "ranks 0-3, 5"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}"
