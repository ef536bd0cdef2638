"""Which values of a schedule travel as which messages.

A message carries up to MESSAGE_PIECES pieces from one rank to another. Its key is (step, group): a target's
values of one step are dealt into groups so that all that a value is made of arrives under one key, and so
that a block can take a whole group at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ccbench.schedules.placement import Value, Versions

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
class Traffic:
    """All messages of one pass.

    entries: the values that a message carries, in order. place_of: (value, the value computed from it) ->
    where it travels; values read on their own rank are not in it. group_of: value made of messages -> its
    group.
    """

    entries: dict[Message, tuple[int, ...]] = field(default_factory=dict)
    place_of: dict[tuple[int, int], tuple[Message, int]] = field(default_factory=dict)
    group_of: dict[int, int] = field(default_factory=dict)
    ordinal: dict[Message, int] = field(default_factory=dict)
    sent_by: dict[int, list[Message]] = field(default_factory=dict)
    received_by: dict[int, dict[tuple[int, int], list[Message]]] = field(default_factory=dict)
    _connections: dict[tuple[int, int], list[Message]] = field(default_factory=dict)

    def on(self, source: int, target: int) -> Sequence[Message]:
        """Messages of one pass on a connection, in the order in which they are sent."""
        return self._connections.get((source, target), [])

    def connection(self, message: Message) -> Sequence[Message]:
        """All messages between the same two ranks."""
        return self.on(message.source, message.target)

    @property
    def longest(self) -> int:
        """Pieces of the longest message, at least 1."""
        return max((len(numbers) for numbers in self.entries.values()), default=1)

    def add(self, value: Value, operand: int, message: Message) -> None:
        """Let ``message`` carry ``operand`` for ``value``; once if it is asked for twice."""
        numbers = self.entries.get(message, ())
        if operand not in numbers:
            numbers = (*numbers, operand)
            self.entries[message] = numbers
        self.place_of[operand, value.number] = (message, numbers.index(operand))

    def order(self, ranks: int) -> None:
        """Number the messages of every connection; call it once, when all are there."""
        self.sent_by = {rank: [] for rank in range(ranks)}
        self.received_by = {rank: {} for rank in range(ranks)}
        for message in sorted(self.entries):
            before = self._connections.setdefault((message.source, message.target), [])
            self.ordinal[message] = len(before)
            before.append(message)
            self.sent_by[message.source].append(message)
            keyed = self.received_by[message.target]
            keyed.setdefault((message.step, message.group), []).append(message)


class _Groups:
    """Groups of one target in one step."""

    def __init__(self) -> None:
        self._pieces: Counter[tuple[int, int]] = Counter()
        self._values: Counter[int] = Counter()

    def group_for(self, sources: Sequence[int], wide: bool) -> int:
        """The first group with room for a value made of one piece from each of ``sources``."""
        group = 0
        while not self._has_room(group, sources, wide):
            group += 1
        self._values[group] += GROUP_VALUES if wide else 1
        self._pieces.update((source, group) for source in sources)
        return group

    def _has_room(self, group: int, sources: Sequence[int], wide: bool) -> bool:
        if self._values[group] == 0:
            return True
        return not wide and (
            self._values[group] < GROUP_VALUES
            and all(self._pieces[source, group] < MESSAGE_PIECES for source in sources)
        )


def traffic_of(versions: Versions, ranks: int) -> Traffic:
    """The messages of a schedule that was followed into ``versions``."""
    traffic = Traffic()
    groups: dict[tuple[int, int], _Groups] = {}
    for value in versions.values:
        target = value.key[0]
        remote = [n for n in dict.fromkeys(value.operands) if versions.values[n].key[0] != target]
        if not remote:
            continue
        sources = [versions.values[number].key[0] for number in remote]
        here = groups.setdefault((value.step, target), _Groups())
        group = here.group_for(sources, len(value.operands) >= WIDE_OPERANDS)
        traffic.group_of[value.number] = group
        for source, number in zip(sources, remote, strict=True):
            traffic.add(value, number, Message(value.step, group, source, target))
    traffic.order(ranks)
    return traffic
