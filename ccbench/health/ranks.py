"""Which rank is slow, by collectives of all ranks: the others wait for it, or it is not given its processor.

A rank that works slowly waits least. One whose process is stopped now and then (a quota of processor time, a
neighbour on its processor) is stopped while it waits as well, and then all ranks wait alike: it shows by the
processor time that it got.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ccbench.health.groups import DECIDED, GROSS
from ccbench.machine.flags import LOAD_FLAGS
from ccbench.runs.rows import WAITING_SHARE, is_null

FEWEST_DECIDED = 4
"""Cases in which one rank is clearly the slowest; of these in DECIDED it must be the same one to be named."""

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives in which every rank does as much: in others a root is late for good reason."""

POLLING = ("cpu", "mpi")
"""Backends whose ranks keep their processors busy while they wait, so that each has all it is given."""

USUAL_WAIT = 1.5
"""Launches that ranks wait for a slow one in each launch at most; for a time slice they wait for hundreds."""

STARVED = 0.75
"""Of the processor time of every other rank: a rank that gets less is not given what they are."""

Row = Mapping[Any, Any]


@dataclass(frozen=True)
class _Blamed:
    """A rank that most cases of a team speak against. cases: of how many; against: those that do."""

    team: str
    rank: int
    against: tuple[Row, ...]
    cases: int

    @property
    def share(self) -> str:
        return f"{len(self.against)} of {self.cases} collectives on {self.team}"


def waited_for(timed: Sequence[Row], suspects: Collection[int] = ()) -> dict[int, str]:
    """Ranks that the others wait for, one of a team at most, each with the evidence.

    suspects: ranks that something else speaks against. Against any other, cases in which other programs kept
    processors busy do not count by themselves: a rank that shares its processor all through a run is waited
    for in each of them.
    """
    calm = [row for row in timed if not _loaded(row)]
    named = {*suspects, *(one.rank for one in _blamed(calm, _waits_least))}
    return _joined(
        (one.rank, f"the others wait for it in {one.share}")
        for one in _blamed(timed, _waits_least)
        if one.rank in named
    )


def starved_ranks(timed: Sequence[Row]) -> dict[int, str]:
    """Ranks that get less processor time than all others, less than half of a team, each with the evidence.

    Cases in which other programs kept processors busy are left out: then it is they that a rank shares with.
    """
    polling = [row for row in timed if row["backend"] in POLLING and not _loaded(row)]
    found = []
    for one in _blamed(polling, _gets_least):
        usual = median(_of_next(row, one.rank) for row in one.against)
        found.append((one.rank, f"it gets {usual:.0%} of the next one's processor time in {one.share}"))
    return _joined(found)


def _joined(found: Iterable[tuple[int, str]]) -> dict[int, str]:
    """All that speaks against each rank."""
    texts: dict[int, str] = {}
    for rank, text in found:
        texts[rank] = f"{texts[rank]}; {text}" if rank in texts else text
    return texts


def _blamed(timed: Sequence[Row], of_case: Callable[[Row], tuple[int, ...]]) -> Iterator[_Blamed]:
    """Of each team the ranks that ``of_case`` gives for most of the cases that decide, if many do."""
    teams: dict[tuple[str, int], list[Row]] = defaultdict(list)
    for row in timed:
        of_all = not (row["pair"] or row["groups"] or row["beside"])
        if of_all and row["collective"] in SYMMETRIC and row["ranks"] > 1:
            teams[row["backend"], row["ranks"]].append(row)
    sizes = Counter(backend for backend, _ in teams)
    for (backend, size), cases in teams.items():
        against: dict[int, list[Row]] = defaultdict(list)
        decided = 0
        for row in cases:
            ranks = of_case(row)
            decided += bool(ranks)
            for rank in ranks:
                against[rank].append(row)
        if decided < max(FEWEST_DECIDED, len(cases) / 2):
            continue
        for rank in sorted(against):
            if len(against[rank]) >= DECIDED * decided:
                team = f"{backend} with {size} ranks" if sizes[backend] > 1 else backend
                yield _Blamed(team, rank, tuple(against[rank]), len(cases))


def _waits_least(row: Row) -> tuple[int, ...]:
    """The rank that waits clearly less than every other; the medians of ranks alone decide nothing.

    Where other programs kept processors busy, whichever rank shared its own with them was late, and of two
    ranks one is that by chance. So then the others must wait as for a rank that is GROSS times as slow, and
    not for much longer than launches usually take: that is one time slice in one launch.
    """
    if is_null(row["slowest_rank"]) or is_null(row["rank_waiting_seconds"]):
        return ()
    first, second = sorted(row["rank_waiting_seconds"])[:2]
    share = (second - first) / row["median_seconds"] if row["median_seconds"] else 0.0
    least, most = (1 - 1 / GROSS, USUAL_WAIT) if _loaded(row) else (WAITING_SHARE, math.inf)
    return (int(row["slowest_rank"]),) if least <= share <= most else ()


def _loaded(row: Row) -> bool:
    """Whether other programs kept processors busy."""
    return not {*LOAD_FLAGS}.isdisjoint(row["flags"])


def _gets_least(row: Row) -> tuple[int, ...]:
    """The ranks that get clearly less processor time than all others, of a team less than half.

    Where ranks share processors only one: those on the fullest processor get less than others for good
    reason, but as much as each other.
    """
    if is_null(row["rank_processor_share"]):
        return ()
    shares = list(row["rank_processor_share"])
    order = sorted(range(len(shares)), key=shares.__getitem__)
    bound = [] if is_null(row["binding"]) else list(row["binding"])
    crowded = row["oversubscribed"] or len(set(bound)) < len(bound)
    most = 1 if crowded else max(1, (len(shares) - 1) // 2)
    for count in range(min(most, len(shares) - 1), 0, -1):
        if shares[order[count - 1]] < STARVED * shares[order[count]]:
            return tuple(order[:count])
    return ()


def _of_next(row: Row, rank: int) -> float:
    """A rank's processor time over the least that a rank gets that does not lack it."""
    shares, lacking = row["rank_processor_share"], _gets_least(row)
    return float(shares[rank] / min(share for one, share in enumerate(shares) if one not in lacking))
