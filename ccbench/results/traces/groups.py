"""Process groups as traces name them: ranks listed, or a start and a stride; each group is one value."""

from __future__ import annotations

import json
from collections.abc import Sequence

from ccbench.results.traces.events import ProcessGroup
from ccbench.units import plain

MOST_RANKS = 1 << 22
"""Ranks that are kept in all groups of one file; groups beyond that keep their size alone."""


class Groups:
    """The groups of one file."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, str, int, int, str], ProcessGroup] = {}
        self._kept = 0

    def of(
        self,
        name: str,
        size: int = 0,
        listed: str = "",
        start: int = -1,
        stride: int = -1,
        description: str = "",
    ) -> ProcessGroup:
        """Return the group of these words.

        listed: "[0, 1, 2]", "" or cut off ("[0, 1, ...]") where ranks are ``start``, ``start`` + ``stride``,
        ... instead. What contradicts ``size``, where that is not 0, is no list of the group's ranks.
        """
        key = (name, size, listed, start, stride, description)
        if key not in self._known:
            ranks: Sequence[int] = _ranks(listed)
            if len(ranks) != size and 0 < size <= MOST_RANKS and start >= 0 and (stride > 0 or size == 1):
                ranks = range(start, start + size * max(stride, 1), max(stride, 1))
            if self._kept + len(ranks) > MOST_RANKS or size not in (0, len(ranks)):
                ranks = ()
            self._kept += len(ranks)
            group = ProcessGroup(plain(name), size or len(ranks), tuple(ranks), plain(description))
            self._known[key] = group
        return self._known[key]


def _ranks(listed: str) -> list[int]:
    """The ranks in a text, [] where it is no whole list of different ranks."""
    try:
        ranks = json.loads(listed) if listed.startswith("[") else []
    except (ValueError, RecursionError):
        return []
    sound = all(type(one) is int and 0 <= one < MOST_RANKS for one in ranks)
    return ranks if sound and len(set(ranks)) == len(ranks) else []
