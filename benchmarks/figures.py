"""From visits to figures: medians, ratios, the memory-traffic bound, targets. Pure functions of visits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.points import (
    CCBENCH,
    COPY_BYTES,
    GLOO,
    MEMCPY,
    MIB,
    MPIS,
    PEERS,
    TITLES,
    Point,
    Visit,
)
from ccbench.units import format_size

OK = "ok"
COPY_TRAFFIC = 2
"""Bytes moved per byte copied: one read and one written."""

FOREIGN = "foreign CPU %"
QUIET_PERCENT = 5.0
"""Median share of the processors' time over visits that other programs may take."""


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of one figure over rounds."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Target:
    """What ccbench sets out to reach. value: None where nothing could be measured."""

    text: str
    value: float | None
    at_least: float
    unit: str = "x"

    @property
    def verdict(self) -> str:
        """PASS, FAIL or NO VERDICT."""
        if self.value is None:
            return "NO VERDICT"
        return "PASS" if self.value >= self.at_least else "FAIL"


def spread(values: Sequence[float]) -> Spread:
    """Over at least one value."""
    return Spread(min(values), median(values), max(values))


class Figures:
    """Looks visits up. A visit counts by the median of its samples; a visit that is not ok does not count."""

    def __init__(self, visits: Iterable[Visit]) -> None:
        self.visits = tuple(visits)
        self._medians: dict[tuple[str, int, Point], dict[int, float]] = {}
        for visit in self.visits:
            if visit.status == OK and visit.contender != MEMCPY:
                by_round = self._medians.setdefault(
                    (visit.contender, visit.ranks, visit.point), {}
                )
                by_round[visit.round_number] = median(visit.samples_seconds)

    def rank_counts(self) -> list[int]:
        """Team sizes that were measured."""
        return sorted({visit.ranks for visit in self.visits if visit.contender != MEMCPY})

    def points(self) -> list[Point]:
        """Points that were measured, by collective, placement and size."""
        found = {visit.point for visit in self.visits if visit.contender != MEMCPY}
        return sorted(
            found, key=lambda point: (point.collective, not point.in_place, point.size_bytes)
        )

    def contenders(self) -> list[str]:
        """ccbench and the peers that were measured."""
        seen = {visit.contender for visit in self.visits}
        return [name for name in (CCBENCH, *PEERS) if name in seen]

    def seconds(self, contender: str, ranks: int, point: Point) -> Spread | None:
        """Time per call over rounds; None where the contender was not measured."""
        rounds = self._medians.get((contender, ranks, point))
        return spread(list(rounds.values())) if rounds else None

    def fastest(self, contenders: Sequence[str], ranks: int, point: Point) -> str | None:
        """The one with the smallest median over rounds."""
        timed = [(self.seconds(name, ranks, point), name) for name in contenders]
        return min(((time.middle, name) for time, name in timed if time), default=(0.0, None))[
            1
        ]

    def speedup(self, contender: str | None, ranks: int, point: Point) -> float | None:
        """How many times longer ``contender`` takes than ccbench, by medians over rounds."""
        own = self.seconds(CCBENCH, ranks, point)
        other = self.seconds(contender, ranks, point) if contender else None
        return other.middle / own.middle if own and other else None

    def paired_speedup(self, contender: str, ranks: int, point: Point) -> Spread | None:
        """The same ratio taken within each round."""
        own = self._medians.get((CCBENCH, ranks, point), {})
        other = self._medians.get((contender, ranks, point), {})
        ratios = [other[number] / own[number] for number in sorted(own.keys() & other.keys())]
        return spread(ratios) if ratios else None

    def copies(self, memory: str = "") -> list[Visit]:
        """Visits of the copying processes, in all kinds of memory or in one."""
        return [
            visit
            for visit in self.visits
            if visit.contender == MEMCPY and visit.status == OK and memory in ("", visit.memory)
        ]

    def copy_traffic(self, memory: str) -> Spread | None:
        """Bytes per second that all copying processes move together, over rounds (medians of visits)."""
        found = [
            _traffic(visit, median(visit.samples_seconds)) for visit in self.copies(memory)
        ]
        return spread(found) if found else None

    def best_traffic(self) -> dict[int, float]:
        """Round -> bytes per second of that round's fastest single copy, whatever the kind of memory.

        The fastest, because this is to be a limit: one made of medians could be beaten by luck.
        """
        best: dict[int, float] = {}
        for visit in self.copies():
            rate = _traffic(visit, min(visit.samples_seconds))
            best[visit.round_number] = max(rate, best.get(visit.round_number, 0.0))
        return best

    def bound_seconds(self, ranks: int, point: Point) -> dict[int, float]:
        """Round -> no all_reduce of buffers that must come from memory can be faster.

        Each of ``ranks`` inputs is read once and each output written once: ranks * 2 * size bytes, over the
        best rate at which this machine was seen to move bytes in that round.
        """
        return {
            number: ranks * 2 * point.size_bytes / rate
            for number, rate in self.best_traffic().items()
        }

    def share_of_bound(self, ranks: int, point: Point) -> Spread | None:
        """Bound over ccbench's time within each round: 1 is perfect."""
        own, bounds = (
            self._medians.get((CCBENCH, ranks, point), {}),
            self.bound_seconds(ranks, point),
        )
        shares = [bounds[number] / own[number] for number in sorted(own.keys() & bounds.keys())]
        return spread(shares) if shares else None

    def strict_share_of_bound(self, ranks: int, point: Point) -> float | None:
        """The fastest copy of the whole run against ccbench's median over rounds."""
        own, bounds = self.seconds(CCBENCH, ranks, point), self.bound_seconds(ranks, point)
        return min(bounds.values()) / own.middle if own and bounds else None


def _traffic(visit: Visit, seconds: float) -> float:
    return COPY_TRAFFIC * COPY_BYTES * visit.ranks / seconds


def targets(figures: Figures) -> list[Target]:
    """Every target at every measured number of ranks."""
    return [target for ranks in figures.rank_counts() for target in _targets(figures, ranks)]


def _targets(figures: Figures, ranks: int) -> list[Target]:
    found = []

    def against(point: Point, rivals: Sequence[str], name: str, at_least: float) -> None:
        best = figures.fastest(rivals, ranks, point)
        title = f"{name}, {TITLES[best]}" if best and len(rivals) > 1 else name
        text = f"{point.collective} {format_size(point.size_bytes)}, {ranks} ranks, against {title}"
        found.append(Target(text, figures.speedup(best, ranks, point), at_least))

    against(Point("all_reduce", 8), MPIS, "the best MPI", 1 / 5)
    for size in (MIB, 256 * MIB):
        against(Point("all_reduce", size), PEERS, "the best of all", 1.5)
        against(Point("all_reduce", size), (GLOO,), "Gloo", 3.0)
    against(Point("all_gather", 64 * MIB), MPIS, "the best MPI", 1.0)
    against(Point("broadcast", 64 * MIB, in_place=True), MPIS, "the best MPI", 1.0)
    if ranks == 2:
        share = figures.share_of_bound(ranks, Point("all_reduce", COPY_BYTES))
        text = "all_reduce 256 MiB, 2 ranks, share of the memory-traffic bound"
        found.append(Target(text, share.middle if share else None, 0.60, "of it"))
    return found


def exit_code(figures: Figures) -> int:
    """0 all targets met, 1 a target missed or a result wrong, 3 something could not be judged."""
    if any(visit.status == "wrong" for visit in figures.visits):
        return 1
    verdicts = {target.verdict for target in targets(figures)}
    return 1 if "FAIL" in verdicts else 3 if "NO VERDICT" in verdicts else 0


def conditions(figures: Figures) -> dict[str, Spread]:
    """What else went on: shares of the processors' time, and nanoseconds between the two processors."""
    visits = figures.visits
    columns = {
        FOREIGN: [100 * v.other_cpu_share for v in visits if v.other_cpu_share is not None],
        "steal %": [100 * v.steal_share for v in visits if v.steal_share is not None],
        "core to core ns": [
            1e9 * v.core_latency_seconds for v in visits if v.core_latency_seconds
        ],
    }
    return {name: spread(values) for name, values in columns.items() if values}


def is_quiet(figures: Figures) -> bool:
    """False when other programs took so much processor time that the figures should not be shown around."""
    foreign = conditions(figures).get(FOREIGN)
    return foreign is None or foreign.middle <= QUIET_PERCENT
