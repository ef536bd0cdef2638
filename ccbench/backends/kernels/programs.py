"""Any schedule as a program for ``kernels/schedule.cu``: a rank's blocks wait, move and post, unit by unit.

A rank sends what others need of its slots as messages, so nobody touches another rank's buffers, and what
may overwrite what is settled inside one rank by the same placement that the CPU backend uses. Contributions
are combined in the order of the ranks that bring them.

A message carries up to MESSAGE_PIECES pieces from one rank to another. Its key is (step, group): a target's
values of one step are dealt into groups so that all that a value is made of arrives under one key, and so
that a block can take a whole group at once.

Units and freedom from deadlock. A connection carries at most one message per key. Every rank runs its units
in the order of their keys, sends before receives of the same key. Take the unit with the smallest key that
any rank stands at: what it waits for has a smaller key still, so it has been done. What a rank receives and
hands on is sent in the unit that receives it, before its own key's turn; that is allowed while the message
two places before it on its connection has a key smaller than the unit's, as two messages at least are in
flight (Arguments.slots). Passes over further chunks follow each other in the same order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules.placement import (
    Placement,
    SlotLayout,
    SlotPlace,
    Space,
    Value,
    Versions,
    versions_of,
)
from ccbench.schedules.schedule import Schedule

FORMAT = 1
HEADER_WORDS = 8
ROW_WORDS = 8
UNIT_WORDS = 256
"""Most words of a unit: a block keeps it in shared memory."""

MOST_RANKS = 64
MOST_PLACES = 64
"""Sources of one unit, and its targets."""

NARROW = 2
"""Sources and targets of a move in a unit that has several; a move alone may have MOST_PLACES."""

MESSAGE_PIECES = 4
"""Pieces that share one synchronisation; more would leave each with a small share of a slot."""

GROUP_VALUES = 24
"""Values received in one unit, few enough that their places fit."""

WIDE_OPERANDS = 3
"""A value made of as many as this is received alone."""


@dataclass(frozen=True, order=True)
class Message:
    """From ``source`` to ``target``; the only one between them with this step and group."""

    step: int
    group: int
    source: int
    target: int


@dataclass
class PassTraffic:
    """All messages of one pass.

    entries: the values that a message carries, in order. place_of: (value, the value computed from it) ->
    where it travels; values read on their own rank are not in it. group_of: value made of messages -> its
    group. ordinal: how many messages went before this one on its connection. connections: (source, target)
    -> messages in the order in which they are sent.
    """

    entries: dict[Message, tuple[int, ...]] = field(default_factory=dict)
    place_of: dict[tuple[int, int], tuple[Message, int]] = field(default_factory=dict)
    group_of: dict[int, int] = field(default_factory=dict)
    ordinal: dict[Message, int] = field(default_factory=dict)
    connections: dict[tuple[int, int], list[Message]] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        """Pieces of the longest message, at least 1."""
        return max((len(numbers) for numbers in self.entries.values()), default=1)


def traffic_of(versions: Versions) -> PassTraffic:
    """The messages of a schedule that was followed into ``versions``."""
    traffic = PassTraffic()
    # By (step, target, group): values received there, and pieces that each source sends.
    taken: Counter[tuple[int, int, int]] = Counter()
    pieces: Counter[tuple[tuple[int, int, int], int]] = Counter()
    for value in versions.values:
        target = value.key[0]
        remote = [
            n for n in dict.fromkeys(value.operands) if versions.values[n].key[0] != target
        ]
        if not remote:
            continue
        sources = [versions.values[number].key[0] for number in remote]
        # The first group with room for a value made of one piece from each source; a wide one is alone.
        wide = len(value.operands) >= WIDE_OPERANDS
        at = (value.step, target, 0)
        while taken[at] and (
            wide
            or taken[at] >= GROUP_VALUES
            or any(pieces[at, source] >= MESSAGE_PIECES for source in sources)
        ):
            at = (value.step, target, at[2] + 1)
        taken[at] += GROUP_VALUES if wide else 1
        pieces.update((at, source) for source in sources)
        traffic.group_of[value.number] = at[2]
        for source, number in zip(sources, remote, strict=True):
            message = Message(value.step, at[2], source, target)
            numbers = traffic.entries.get(message, ())
            if number not in numbers:  # what several values are made of travels once
                numbers = traffic.entries[message] = (*numbers, number)
            traffic.place_of[number, value.number] = (message, numbers.index(number))
    for message in sorted(traffic.entries):
        before = traffic.connections.setdefault((message.source, message.target), [])
        traffic.ordinal[message] = len(before)
        before.append(message)
    return traffic


class Pointee(IntEnum):
    """Memory that a reference points into; the first three as Space."""

    INPUT = 0
    OUTPUT = 1
    WORK = 2
    MESSAGE = 3


@dataclass(frozen=True)
class Reference:
    """A place of one piece. index: piece of a buffer, number of a work place, or piece inside ``message``."""

    kind: Pointee
    index: int
    message: Message | None = None


@dataclass(frozen=True)
class Move:
    """targets = the sources combined, in this order; ``piece`` says how long they are."""

    piece: int
    sources: tuple[Reference, ...]
    targets: tuple[Reference, ...]
    finishes: bool = False


@dataclass(frozen=True)
class Unit:
    """Wait for the messages and for room to send, move, tell all peers: one synchronisation."""

    receives: tuple[Message, ...]
    sends: tuple[Message, ...]
    moves: tuple[Move, ...]

    @property
    def sources(self) -> list[Reference]:
        """References of all moves, in order."""
        return [source for move in self.moves for source in move.sources]

    @property
    def targets(self) -> list[Reference]:
        """References of all moves, in order."""
        return [target for move in self.moves for target in move.targets]

    @property
    def words(self) -> int:
        """Length when encoded."""
        places = len(self.sources) + len(self.targets)
        return 3 + len(self.receives) + len(self.sends) + len(self.moves) + places

    @property
    def fits(self) -> bool:
        """Return whether a block can hold it."""
        wide = any(max(len(move.sources), len(move.targets)) > NARROW for move in self.moves)
        return (
            self.words <= UNIT_WORDS
            and max(len(self.sources), len(self.targets)) <= MOST_PLACES
            and (len(self.moves) == 1 or not wide)
        )


@dataclass(frozen=True)
class RankProgram:
    """One rank's units for one pass over a chunk of every piece."""

    units: tuple[Unit, ...]
    work_places: int


Key = tuple[int, int]
"""(step, group)."""


class _RankCompiler:
    """Turns the values of one rank into units."""

    def __init__(
        self, rank: int, versions: Versions, traffic: PassTraffic, layout: SlotLayout
    ) -> None:
        self._rank = rank
        self._values = versions.values
        self._traffic = traffic
        self._pieces = layout.schedule.pieces
        row = collective(layout.schedule.collective)
        self._moves_data, self._reduces = row.moves_data, row.reduces
        self._work: dict[int, int] = {}
        self._next_ordinal: dict[int, int] = {}
        self._fused: set[Message] = set()
        self._units: list[Unit] = []

    def compiled(self) -> RankProgram:
        """All units in the order of their keys."""
        local: dict[int, list[Value]] = {}
        received: dict[Key, list[Value]] = {}
        for value in self._values:
            if value.operands and value.key[0] == self._rank:
                group = self._traffic.group_of.get(value.number)
                if group is None:
                    local.setdefault(value.step, []).append(value)
                else:
                    received.setdefault((value.step, group), []).append(value)
        sent: dict[Key, list[Message]] = {}
        arriving: dict[Key, list[Message]] = {}
        own = [
            message
            for ends, some in self._traffic.connections.items()
            if self._rank in ends
            for message in some
        ]
        for message in sorted(own):
            if message.source == self._rank:
                sent.setdefault((message.step, message.group), []).append(message)
            else:
                arriving.setdefault((message.step, message.group), []).append(message)
        for key in sorted({*received, *sent, *((step, 0) for step in local)}):
            self._send([message for message in sent.get(key, ()) if message not in self._fused])
            if key[1] == 0:
                moves = [self._move(value, ()) for value in local.get(key[0], ())]
                self._emit_packed(Unit((), (), (move,)) for move in moves if self._moves_data)
            if key in received:
                self._receive(key, arriving.get(key, []), received[key])
        return RankProgram(tuple(self._units), len(self._work))

    def _place(self, value: Value) -> Reference:
        place = value.place
        assert place is not None, "placement ran before"
        if place.space is Space.WORK:
            return Reference(Pointee.WORK, self._work.setdefault(place.offset, len(self._work)))
        return Reference(Pointee(int(place.space)), place.offset)

    def _move(self, value: Value, messages: Sequence[Message]) -> Move:
        """The move that makes ``value``, sending it at once with ``messages``."""
        place_of, entries = self._traffic.place_of, self._traffic.entries
        sources = []
        for operand in sorted(value.operands, key=lambda number: self._values[number].key[0]):
            place = place_of.get((operand, value.number))
            in_message = place and Reference(Pointee.MESSAGE, place[1], place[0])
            sources.append(in_message or self._place(self._values[operand]))
        targets = [
            Reference(Pointee.MESSAGE, entries[message].index(value.number), message)
            for message in messages
            if value.number in entries[message]
        ]
        # It is stored where anybody needs it later than in the unit that makes it.
        carried = [place_of.get((value.number, read.reader)) for read in value.reads]
        if value.is_output or any(
            place is None or place[0] not in messages for place in carried
        ):
            targets.insert(0, self._place(value))
        # An average is divided once, where the last contribution is in.
        complete = not any(self._values[read.reader].reduces for read in value.reads)
        finishes = self._reduces and value.reduces and complete
        return Move(value.key[1] % self._pieces, tuple(sources), tuple(targets), finishes)

    def _send(self, messages: Sequence[Message]) -> None:
        entries = self._traffic.entries
        if (
            len({entries[message] for message in messages}) == 1
            and len(entries[messages[0]]) == 1
        ):
            # One piece for several peers is read once and written to all of them.
            (number,) = entries[messages[0]]
            for begin in range(0, len(messages), MOST_PLACES):
                some = tuple(messages[begin : begin + MOST_PLACES])
                targets = tuple(Reference(Pointee.MESSAGE, 0, message) for message in some)
                self._emit(Unit((), some, self._copies(number, targets)))
            return
        parts = []
        for message in messages:
            moves: list[Move] = []
            for index, number in enumerate(entries[message]):
                moves += self._copies(number, (Reference(Pointee.MESSAGE, index, message),))
            parts.append(Unit((), (message,), tuple(moves)))
        self._emit_packed(parts)

    def _copies(self, number: int, targets: tuple[Reference, ...]) -> tuple[Move, ...]:
        if not self._moves_data:
            return ()
        value = self._values[number]
        return (Move(value.key[1] % self._pieces, (self._place(value),), targets),)

    def _emit_packed(self, parts: Iterable[Unit]) -> None:
        """Emit as many neighbours in one unit as fit: each unit is one synchronisation."""
        unit = Unit((), (), ())
        for part in parts:
            larger = Unit((), (*unit.sends, *part.sends), (*unit.moves, *part.moves))
            # What does not fit any more begins the next unit.
            if not larger.fits:
                self._emit(unit)
                larger = part
            unit = larger
        self._emit(unit)

    def _receive(self, key: Key, receives: Sequence[Message], values: Sequence[Value]) -> None:
        place_of = self._traffic.place_of
        numbers = {value.number for value in values}
        unit = self._receiving(receives, (), values)
        assert unit.fits, "groups are made so that they fit"
        # Messages that carry any of the values on, in the order of their keys, are sent in this unit where
        # they carry nothing else, may go already, and fit.
        reads = [(value.number, read.reader) for value in values for read in value.reads]
        for message in sorted({place_of[read][0] for read in reads if read in place_of}):
            if not numbers.issuperset(self._traffic.entries[message]):
                continue
            # It may go when the message before it on its connection has gone, and the one before that was of
            # an earlier unit: see the module's comment.
            ordinal = self._traffic.ordinal[message]
            connection = self._traffic.connections[message.source, message.target]
            earlier = (
                ordinal < 2
                or (connection[ordinal - 2].step, connection[ordinal - 2].group) < key
            )
            if ordinal != self._next_ordinal.get(message.target, 0) or not earlier:
                continue
            larger = self._receiving(receives, (*unit.sends, message), values)
            if larger.fits:
                unit = larger
                self._fused.add(message)
                self._next_ordinal[message.target] = self._traffic.ordinal[message] + 1
        self._units.append(unit)

    def _receiving(
        self, receives: Sequence[Message], sends: tuple[Message, ...], values: Sequence[Value]
    ) -> Unit:
        moves = [self._move(value, sends) for value in values] if self._moves_data else []
        return Unit(tuple(receives), sends, tuple(move for move in moves if move.targets))

    def _emit(self, unit: Unit) -> None:
        for message in unit.sends:
            self._next_ordinal[message.target] = self._traffic.ordinal[message] + 1
        if unit.sends or unit.moves:
            self._units.append(unit)


def rank_programs(schedule: Schedule, in_place: bool) -> tuple[list[RankProgram], PassTraffic]:
    """Every rank's program for a proven schedule, and the messages they exchange.

    The messages are the same in place and out of place, so ranks may differ in which of the two they run.
    ScheduleError for more than MOST_RANKS ranks.
    """
    if schedule.ranks > MOST_RANKS:
        raise ScheduleError(
            f"{schedule.collective} {schedule.algorithm} on {schedule.ranks} ranks: kernels run {MOST_RANKS} "
            "at most; take fewer ranks"
        )
    row = collective(schedule.collective)
    layout = SlotLayout(schedule, 1 if row.blocked else schedule.pieces, in_place)
    versions = versions_of(layout)
    placement = Placement(layout, versions)
    placement.assign()
    traffic = traffic_of(versions)
    ranks = range(schedule.ranks)
    return [
        _RankCompiler(rank, versions, traffic, layout).compiled() for rank in ranks
    ], traffic


def first_piece(layout: SlotLayout, rank: int, space: Space) -> int:
    """The piece that the rank's buffer begins with when it lies in place, -1 where there is no buffer."""
    places: list[SlotPlace] = (
        layout.input_places(rank) if space is Space.INPUT else layout.output_places(rank)
    )
    return places[0].offset if places else -1


def _encoded(units: Sequence[Unit], traffic: PassTraffic) -> list[int]:
    """All units of a rank in 32-bit words, as ``compiled_program`` has them."""
    words: list[int] = []
    for number, unit in enumerate(units):
        # A block fetches the next unit while it works on this one; after the last the first comes again.
        next_words, last = units[(number + 1) % len(units)].words, number + 1 == len(units)
        at = {message: index for index, message in enumerate([*unit.receives, *unit.sends])}
        begin = len(words)
        words += [
            unit.words | next_words << 16,
            len(unit.receives) | len(unit.sends) << 8 | len(unit.moves) << 16 | int(last) << 24,
            len(unit.sources) | len(unit.targets) << 8,
        ]
        words += [receive.source | traffic.ordinal[receive] << 8 for receive in unit.receives]
        words += [send.target | traffic.ordinal[send] << 8 for send in unit.sends]
        for move in unit.moves:
            counts = len(move.sources) << 16 | len(move.targets) << 23
            words.append(move.piece | counts | int(move.finishes) << 30)
        for reference in [*unit.sources, *unit.targets]:
            within = at[reference.message] << 16 if reference.message is not None else 0
            words.append(reference.kind << 28 | within | reference.index)
        assert len(words) - begin == unit.words
    return words


@lru_cache(maxsize=32)
def compiled_program(schedule: Schedule) -> NDArray[np.int32]:
    """The program of a proven schedule, for any count, dtype and number of channels.

    32-bit words, which kernels/schedule.cu reads:

    * a header of HEADER_WORDS: format, ranks, pieces, 1 if blocked + 2 if data moves, pieces of the longest
      message, work places out of place, words of a rank's row, work places in place (where there is a root
      both are the larger one, as ranks without a buffer cannot tell);
    * a row for each rank: first piece of its input and of its output (-1: none); where its units begin and
      how long the first one is, out of place, then in place; 0, 0; for every peer the messages sent to it in
      one pass; for every peer those taken from it;
    * units, one after another: own words + 65536 * words of the next; receives + 256 * sends + 65536 * moves
      (+ 2^24 in the pass's last unit); sources + 256 * targets; per message peer + 256 * how many went before
      it on its connection; per move piece + 65536 * sources + 2^23 * targets (+ 2^30 where an average is
      divided); references of all sources, then of all targets: 2^28 * kind + index, for messages + 65536 *
      its place among the unit's.
    """
    ranks = schedule.ranks
    row = collective(schedule.collective)
    row_words = ROW_WORDS + 2 * ranks
    programs, traffic = rank_programs(schedule, in_place=False)
    in_place, _ = rank_programs(schedule, in_place=True)
    body: list[int] = []
    rows = np.zeros((ranks, row_words), np.int64)
    layout = SlotLayout(schedule, 1 if row.blocked else schedule.pieces, True)
    begin = HEADER_WORDS + ranks * row_words
    for rank in range(ranks):
        # Both layouts are in one program, since ranks may differ in whether they work in place.
        rows[rank, 0] = first_piece(layout, rank, Space.INPUT)
        rows[rank, 1] = first_piece(layout, rank, Space.OUTPUT)
        for column, program in ((2, programs[rank]), (4, in_place[rank])):
            rows[rank, column] = begin + len(body)
            rows[rank, column + 1] = program.units[0].words if program.units else 0
            body += _encoded(program.units, traffic)
        for peer in range(ranks):
            rows[rank, ROW_WORDS + peer] = len(traffic.connections.get((rank, peer), ()))
            rows[rank, ROW_WORDS + ranks + peer] = len(
                traffic.connections.get((peer, rank), ())
            )
    work_places, work_in_place = (
        max(program.work_places for program in some) for some in (programs, in_place)
    )
    if row.rooted:
        work_places = work_in_place = max(work_places, work_in_place)
    shape = int(row.blocked) | int(row.moves_data) << 1
    header = [
        FORMAT,
        ranks,
        schedule.pieces,
        shape,
        traffic.longest,
        work_places,
        row_words,
        work_in_place,
    ]
    words = np.concatenate(
        [np.asarray(header, np.int64), rows.ravel(), np.asarray(body, np.int64)]
    )
    return words.astype(np.int32)
