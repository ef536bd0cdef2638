"""Process groups as traces name them, by listed ranks, a start and a stride, or use; the rank of a trace."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace

from ccbench.findings import SourceWarning
from ccbench.readers.traces.events import ProcessGroup, Trace
from ccbench.readers.traces.words import count, figures, listed, members, rank_of_file, text
from ccbench.units import plain, plural

MOST_RANKS = 1 << 22
"""Ranks that are kept in all groups of one file; groups beyond that keep their size alone."""


class Groups:
    """The groups of one file. listed: name -> those that the file lists with their ranks."""

    def __init__(self) -> None:
        self.listed: dict[str, ProcessGroup] = {}
        self._known: dict[tuple[object, ...], ProcessGroup] = {}
        self._kept = 0

    def of(
        self,
        name: str,
        size: int = 0,
        ranks: object = "",
        start: int = -1,
        stride: int = -1,
        description: str = "",
    ) -> ProcessGroup:
        """Return the group of these words; a listed one of that name and size is it.

        ranks: a list, in a text or not. Where its middle is cut out and its last rank fits, it is continued;
        where there is none, ranks are ``start``, ``start`` + ``stride``, ... What contradicts ``size``, where
        that is not 0, is no list of the group's ranks.
        """
        earlier = self.listed.get(plain(name))
        if earlier is not None and earlier.size == size:
            return earlier
        key = (name, size, str(ranks), start, stride, description)
        if key not in self._known:
            group_ranks: Sequence[int]
            group_ranks, cut = figures(ranks)
            # PyTorch cuts the middle out of long lists: the ends agree with a stride or nothing is known.
            if (
                cut
                and len(group_ranks) > 1
                and group_ranks[-1]
                == group_ranks[0] + (size - 1) * (group_ranks[1] - group_ranks[0])
            ):
                start, stride = group_ranks[0], group_ranks[1] - group_ranks[0]
            if (
                len(group_ranks) != size
                and 0 < size <= MOST_RANKS
                and start >= 0
                and (stride > 0 or size == 1)
            ):
                group_ranks, cut = (
                    range(start, start + size * max(stride, 1), max(stride, 1)),
                    False,
                )
            sound = (
                not cut
                and size in (0, len(group_ranks))
                and len(set(group_ranks)) == len(group_ranks)
            )
            # A file of many large groups must not fill the memory: their sizes are enough to go on.
            if (
                not sound
                or max(group_ranks, default=0) >= MOST_RANKS
                or self._kept + len(group_ranks) > MOST_RANKS
            ):
                group_ranks = ()
            self._kept += len(group_ranks)
            group = ProcessGroup(
                plain(name), size or len(group_ranks), tuple(group_ranks), plain(description)
            )
            self._known[key] = group
        return self._known[key]

    def take(self, listing: object) -> None:
        """Take the process groups that PyTorch lists, in rows or by their name; no ranks mean all ranks."""
        rows = listing.items() if isinstance(listing, dict) else enumerate(listed(listing))
        for name, entry in rows:
            row = members(entry)
            name = plain(row.get("pg_name", row.get("name", name)))
            size = count(row.get("pg_size", row.get("group_size"))) or 0
            described = text(row.get("pg_desc", row.get("desc"))).replace("undefined", "")
            ranks = row.get("ranks")
            self.listed[name] = self.of(
                name, size, ranks, -1 if listed(ranks) or text(ranks) else 0, 1, described
            )

    def only(self, size: int) -> ProcessGroup:
        """The group of a call that names none: where all listed that fit are of the same ranks, those."""
        fit = [
            group
            for group in self.listed.values()
            if (group.size == size if size else group.size > 1)
        ]
        if len({group.ranks or group.name for group in fit}) != 1:
            return ProcessGroup("", size)
        return fit[0] if len(fit) == 1 else replace(fit[0], name="", description="")


def rank_of(
    places: Collection[tuple[int, ProcessGroup]],
    groups: Collection[ProcessGroup],
    file: str,
    warnings: list[SourceWarning],
) -> int | None:
    """Return the rank of a trace that does not name it; what is assumed goes to ``warnings``.

    By its ``places`` in groups, else by being in all ``groups`` of the trace, for PyTorch lists to each rank
    its own; else by the name of the ``file``.
    """
    candidates = Counter(
        group.ranks[place] for place, group in places if place < len(group.ranks)
    )
    if places and not candidates:
        candidates = Counter(place for place, _ in places)
        assumed = (
            "tells its place in groups but not their ranks: its place is taken for its rank"
        )
        warnings.append(SourceWarning("assumed", assumed))
    if len(candidates) > 1:
        several = f"says to be of ranks {rank_list(sorted(candidates))}; the one it says most is taken"
        warnings.append(SourceWarning("contradiction", several))
    if candidates:
        return candidates.most_common(1)[0][0]
    # A rank is in all groups that PyTorch lists to it, and mostly no other rank is.
    everywhere = [set(group.ranks) for group in groups if group.ranks]
    only = set.intersection(*everywhere) if everywhere else set()
    return only.pop() if len(only) == 1 else rank_of_file(file, warnings)


def by_use(trace: Trace) -> Trace:
    """Return ``trace`` with the ranks of groups that no file lists: those that use the group's name.

    Nothing is done where a rank's file is missing, or where a group is used by more or fewer than its size.
    """
    world = trace.world_size or len(trace.ranks)
    # Were a rank's file missing, its groups would look complete without it.
    if world < 2 or trace.ranks != tuple(range(world)):
        return trace
    users: dict[tuple[str, str], set[int]] = defaultdict(set)
    sizes: dict[tuple[str, str], int] = Counter()
    for communication in trace.communications:
        name = communication.group.name, communication.group.description
        if communication.rank is not None and any(name) and not communication.group.ranks:
            users[name].add(communication.rank)
            sizes[name] = max(sizes[name], communication.group.size)
    by_name = {
        name: ProcessGroup(name[0], len(ranks), tuple(sorted(ranks)), name[1])
        for name, ranks in users.items()
        # Without its size, and that of the job, nobody knows whether these are all.
        if len(ranks) == (sizes[name] or (trace.world_size and len(ranks)))
    }
    if not by_name:
        return trace

    def with_ranks(group: ProcessGroup) -> ProcessGroup:
        return group if group.ranks else by_name.get((group.name, group.description), group)

    names = ", ".join(repr(name) for name, _ in sorted(by_name)[:6])
    what = plural(len(by_name), "process group")
    taken = f"the ranks of {what} ({names}) are not listed: those that use it are taken"
    return replace(
        trace,
        groups=tuple(dict.fromkeys(map(with_ranks, trace.groups))),
        communications=tuple(
            replace(communication, group=with_ranks(communication.group))
            for communication in trace.communications
        ),
        progress=tuple(
            replace(progress, group=with_ranks(progress.group)) for progress in trace.progress
        ),
        warnings=(*trace.warnings, SourceWarning("assumed", taken)),
    )


def rank_list(ranks: Sequence[int]) -> str:
    """Ranks as text, runs shortened, at most six of them: ``rank 2``, ``0-3, 5``."""
    starts = [i for i, rank in enumerate(ranks) if not i or rank != ranks[i - 1] + 1]
    ends = [*(i - 1 for i in starts[1:]), len(ranks) - 1]
    runs = [
        str(ranks[a]) if a == b else f"{ranks[a]}-{ranks[b]}"
        for a, b in zip(starts, ends, strict=False)
    ]
    return ", ".join(runs[:6]) + (
        f" and {plural(len(runs) - 6, 'more run')}" if len(runs) > 6 else ""
    )
