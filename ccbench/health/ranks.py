"""Which rank is slow, by collectives of all ranks: the others wait for it, or it is not given its processor.

A rank that works slowly waits least. One whose process is stopped now and then (a quota of processor time) is
stopped while it waits as well, and then all ranks wait alike: it shows by the processor time that it got. One
whose processor other programs had is late by their fault: the system tells how long it stood in the queue.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ccbench.capabilities import capabilities_of
from ccbench.health.groups import DECIDED, SLOW_HALF
from ccbench.machine.flags import LOAD_FLAGS
from ccbench.runs.rows import WAITING_SHARE, is_null, usual_waits
from ccbench.stats import CHANCE, chance_of_most

SYMMETRIC = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives in which every rank does as much: in others a root is late for good reason."""

TELLING_SECONDS = 1e-5
"""Launches that are shorter tell nothing of waiting: a tenth of them is less than what a cache line takes
longer or shorter between two processors, by where these and the buffers happen to be."""

QUEUED = 0.05
"""Of the time: a rank that stood longer in the queue for its processor is late because of what had it."""

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


def waited_for(timed: Sequence[Row]) -> dict[int, str]:
    """Ranks that the others wait for, one of a team at most, each with the evidence."""
    telling = [row for row in timed if row["median_seconds"] >= TELLING_SECONDS]
    return _joined(
        (one.rank, f"the others wait for it in {one.share}") for one in _blamed(telling, _waits_least)
    )


def starved_ranks(timed: Sequence[Row]) -> dict[int, str]:
    """Ranks that get less processor time than all others, less than half of a team, each with the evidence.

    What other programs took is no rank's fault.
    """
    # Ranks that poll keep their processors busy while they wait, so that each has all it is given.
    calm = (row for row in timed if "steal" not in row["flags"])
    polling = [row for row in calm if capabilities_of(row["backend"]).polls]
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
        if decided < len(cases) / 2:
            continue
        for rank in sorted(against):
            times = len(against[rank])
            if times >= DECIDED * decided and chance_of_most(times, decided, size) <= CHANCE:
                team = f"{backend} with {size} ranks" if sizes[backend] > 1 else backend
                yield _Blamed(team, rank, tuple(against[rank]), len(cases))


def _waits_least(row: Row) -> tuple[int, ...]:
    """The rank that waits clearly less than every other; the medians of ranks alone decide nothing.

    Where other programs kept processors busy, whichever rank shared its own with them was late, and of two
    ranks one is that by chance: there the rank must not have stood in the queue for its processor.
    """
    waits = sorted(usual_waits(row["rank_waiting_seconds"]))
    if is_null(row["slowest_rank"]) or not waits:
        return ()
    rank = int(row["slowest_rank"])
    if "steal" in row["flags"] or (_loaded(row) if is_null(row["rank_queued_share"]) else _queued(row, rank)):
        return ()
    # Two values have no spread that would tell noise from a difference.
    least = WAITING_SHARE if len(waits) > 2 else SLOW_HALF
    return (rank,) if waits[1] - waits[0] >= least * row["median_seconds"] else ()


def _queued(row: Row, rank: int) -> bool:
    """Whether a rank stood in the queue for its processor; where ranks share some, more than another did."""
    queued = row["rank_queued_share"]
    usual = min(queued) if row["oversubscribed"] else 0.0
    return bool(queued[rank] - usual > QUEUED)


def _loaded(row: Row) -> bool:
    """Whether other programs kept processors busy."""
    return not {*LOAD_FLAGS}.isdisjoint(row["flags"])


def _gets_least(row: Row) -> tuple[int, ...]:
    """The ranks that get clearly less processor time than all others, of a team less than half.

    Where ranks share processors only one: those on the fullest processor get less than others for good
    reason, but as much as each other.
    """
    shares = _could_run(row)
    order = sorted(range(len(shares)), key=shares.__getitem__)
    bound = [] if is_null(row["binding"]) else list(row["binding"])
    crowded = row["oversubscribed"] or len(set(bound)) < len(bound)
    most = 1 if crowded else max(1, (len(shares) - 1) // 2)
    for count in range(min(most, len(shares) - 1), 0, -1):
        if shares[order[count - 1]] < STARVED * shares[order[count]]:
            return tuple(order[:count])
    return ()


def _could_run(row: Row) -> list[float]:
    """Of each rank, the share of the time in which nothing but other programs kept it from running.

    Empty where that is not told. A rank with a quota of processor time may stand in the queue for it as well,
    so the queue counts beside other load alone.
    """
    shares, queued = row["rank_processor_share"], row["rank_queued_share"]
    if is_null(shares) or (_loaded(row) and is_null(queued)):
        return []
    return (
        [had + waited for had, waited in zip(shares, queued, strict=True)] if _loaded(row) else list(shares)
    )


def _of_next(row: Row, rank: int) -> float:
    """A rank's processor time over the least that a rank gets that does not lack it."""
    shares, lacking = _could_run(row), _gets_least(row)
    return float(shares[rank] / min(share for one, share in enumerate(shares) if one not in lacking))
