"""Process groups as traces name them, by listed ranks, a start and a stride, or use; the rank of a trace."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from ccbench.results.traces.events import ProcessGroup, Trace
from ccbench.results.traces.words import rank_of_file
from ccbench.topology.graph import SourceWarning
from ccbench.units import plain, plural

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


def rank_of(
    places: Collection[tuple[int, ProcessGroup]],
    listed: Collection[ProcessGroup],
    file: str,
    warnings: list[SourceWarning],
) -> int | None:
    """Return the rank of a trace that does not name it; what is assumed goes to ``warnings``.

    By its ``places`` in groups, else by being in all of the ``listed`` groups, for PyTorch lists to each rank
    its own; else by the name of the ``file``.
    """
    seen = Counter(group.ranks[place] for place, group in places if place < len(group.ranks))
    if places and not seen:
        seen = Counter(place for place, _ in places)
        text = "tells its place in groups but not their ranks: its place is taken for its rank"
        warnings.append(SourceWarning("assumed", text))
    if len(seen) > 1:
        text = f"says to be of ranks {rank_list(sorted(seen))}; the one it says most is taken"
        warnings.append(SourceWarning("contradiction", text))
    if seen:
        return seen.most_common(1)[0][0]
    everywhere = [set(group.ranks) for group in listed if group.ranks]
    only = set.intersection(*everywhere) if everywhere else set()
    return only.pop() if len(only) == 1 else rank_of_file(file, warnings)


def by_use(trace: Trace) -> Trace:
    """Return ``trace`` with the ranks of groups that no file lists: those that use the group's name.

    Nothing is done where a rank's file is missing, or where a group is used by more or fewer than its size.
    """
    world = trace.world_size or len(trace.ranks)
    if world < 2 or trace.ranks != tuple(range(world)):
        return trace
    users: dict[tuple[str, str], set[int]] = defaultdict(set)
    sizes: dict[tuple[str, str], int] = Counter()
    for one in trace.communications:
        name = one.group.name, one.group.description
        if one.rank is not None and any(name) and not one.group.ranks:
            users[name].add(one.rank)
            sizes[name] = max(sizes[name], one.group.size)
    found = {
        name: ProcessGroup(name[0], len(ranks), tuple(sorted(ranks)), name[1])
        for name, ranks in users.items()
        if len(ranks) == (sizes[name] or max(len(ranks), 2))
    }
    if not found:
        return trace

    def listed(group: ProcessGroup) -> ProcessGroup:
        return group if group.ranks else found.get((group.name, group.description), group)

    names = ", ".join(repr(name) for name, _ in sorted(found)[:6])
    what = plural(len(found), "process group")
    text = f"the ranks of {what} ({names}) are not listed: those that use it are taken"
    return replace(
        trace,
        groups=tuple(dict.fromkeys(map(listed, trace.groups))),
        communications=tuple(replace(one, group=listed(one.group)) for one in trace.communications),
        progress=tuple(replace(one, group=listed(one.group)) for one in trace.progress),
        warnings=(*trace.warnings, SourceWarning("assumed", text)),
    )


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks as text, runs shortened, at most six of them: ``rank 2``, ``0-3, 5``."""
    starts = [i for i, rank in enumerate(ranks) if not i or rank != ranks[i - 1] + 1]
    ends = [*(i - 1 for i in starts[1:]), len(ranks) - 1]
    runs = [str(ranks[a]) if a == b else f"{ranks[a]}-{ranks[b]}" for a, b in zip(starts, ends, strict=False)]
    return ", ".join(runs[:6]) + (f" and {plural(len(runs) - 6, 'more run')}" if len(runs) > 6 else "")
