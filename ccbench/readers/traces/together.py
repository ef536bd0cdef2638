"""Collectives that a job has at the same time, as cases with a concurrent collective."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ccbench.cases.axes import Case
from ccbench.collectives import COLLECTIVES
from ccbench.readers.traces.events import Communication
from ccbench.readers.traces.join import Instance

MOSTLY = 0.5
"""Share of the shorter collective's time that two have in common to be at the same time."""

ALIKE = 2
"""Ratio of sizes up to which a concurrent collective, which is about as large, stands for the job's."""


@dataclass(frozen=True)
class OverlappingCases:
    """Instances of ``case`` during which one of ``other`` runs on another stream of the same rank."""

    case: Case
    other: Case
    instances: tuple[Instance, ...]

    @property
    def concurrent(self) -> Case | None:
        """``case`` with the other beside it; None where a suite cannot ask for both."""
        case, second = self.case, self.other
        rows = [COLLECTIVES[either.collective] for either in (case, second)]
        sizes = sorted((case.size_bytes, second.size_bytes))
        same = (case.collective, case.groups) == (second.collective, second.groups)
        if (
            same
            or any(either.pair or either.traffic for either in (case, second))
            or case.ranks != second.ranks
        ):
            return None
        # A suite runs both with the same number of bytes, so that sizes far apart would be another case.
        if not all(row.moves_data for row in rows) or sizes[1] > ALIKE * sizes[0]:
            return None
        where = "" if case.groups == second.groups else f" on {second.groups or 'all'}"
        return replace(case, concurrent=f"{second.collective}{where}")


def overlaps_of(cases: dict[Case, list[Instance]]) -> tuple[OverlappingCases, ...]:
    """Return which of ``cases`` a job has at the same time, the larger first, those of most often first."""
    by_rank: dict[int | None, list[tuple[Communication, Case, Instance]]] = defaultdict(list)
    for case, instances in cases.items():
        for instance in instances:
            for record in instance.records:
                if record.start_seconds is not None and record.duration_seconds:
                    by_rank[record.rank].append((record, case, instance))
    meetings: dict[tuple[Case, Case], dict[int, Instance]] = defaultdict(dict)
    for rows in by_rank.values():
        for pair in _pairs(rows):
            # The larger one is the case, the other runs beside it; names decide where both are as large.
            (_, case, instance), (_, second, _) = sorted(
                pair, key=lambda row: (-row[1].size_bytes, row[1].label)
            )
            meetings[case, second][id(instance)] = instance
    overlaps = (
        OverlappingCases(case, second, tuple(by_identity.values()))
        for (case, second), by_identity in meetings.items()
    )
    return tuple(sorted(overlaps, key=lambda overlap: -len(overlap.instances)))


Row = tuple[Communication, Case, Instance]


def _pairs(rows: Sequence[Row]) -> Iterator[tuple[Row, Row]]:
    """Give the communications of one rank that are on two streams at once for most of the shorter's time."""
    running: list[Row] = []
    for row in sorted(rows, key=lambda row: row[0].start_seconds or 0.0):
        record = row[0]
        # Sorted by start: what is over by now can meet none of those that follow.
        running = [
            earlier for earlier in running if _end(earlier[0]) > (record.start_seconds or 0.0)
        ]
        for earlier in running:
            common = min(_end(earlier[0]), _end(record)) - (record.start_seconds or 0.0)
            shorter = min(earlier[0].duration_seconds or 0.0, record.duration_seconds or 0.0)
            if earlier[0].stream != record.stream and common > MOSTLY * shorter:
                yield earlier, row
        running.append(row)


def _end(record: Communication) -> float:
    return (record.start_seconds or 0.0) + (record.duration_seconds or 0.0)
