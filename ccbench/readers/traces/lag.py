"""Findings about jobs that hang or run: ranks in trouble, the hang, ranks that are behind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ccbench.findings import Finding
from ccbench.readers.traces.events import (
    GroupProgress,
    ProcessGroup,
    Trace,
)
from ccbench.readers.traces.hang import (
    WHERE_IT_IS,
    Hang,
    findings_of,
    named,
    ranks_of,
)
from ccbench.units import plain

_SEVERITIES = ("problem", "doubt", "note")


def lag(trace: Trace, hang: Hang | None) -> tuple[Finding, ...]:
    """Return what keeps the job of ``trace`` from going on, problems first; ``hang`` is the job's.

    Nothing where the trace has no progress.
    """
    rows: dict[tuple[ProcessGroup, str], list[GroupProgress]] = defaultdict(list)
    findings = list(findings_of(hang)) if hang else []
    silent = set()
    for progress in trace.progress:
        if progress.trouble:
            silent.add((progress.group, progress.rank))
            findings.append(
                Finding(
                    severity="problem",
                    kind="rank_in_trouble",
                    devices=(f"rank {progress.rank}",),
                    subject=f"Rank {progress.rank} of {named(progress.group)} is {plain(progress.trouble)}",
                    evidence=plain(progress.place),
                    advice=WHERE_IT_IS,
                )
            )
        elif progress.completed is None:
            rows[progress.group, progress.collective].append(progress)
    for (group, collective), ranks in rows.items():
        findings += _behind(
            group, collective, [row for row in ranks if (group, row.rank) not in silent]
        )
    return tuple(sorted(findings, key=lambda finding: _SEVERITIES.index(finding.severity)))


def _behind(
    group: ProcessGroup, collective: str, rows: Sequence[GroupProgress]
) -> Iterator[Finding]:
    """Give the ranks that are behind in one group of a job that is asked while it runs."""
    came = {row.rank: row.enqueued for row in rows if row.enqueued is not None}
    front = max(came.values(), default=0)
    alike: dict[int, list[int]] = defaultdict(list)
    for rank, number in sorted(came.items()):
        if number < front:
            alike[number].append(rank)
    if alike:
        late = sorted(rank for ranks in alike.values() for rank in ranks)
        behind = ", ".join(
            f"{ranks_of(ranks)} made {number}" for number, ranks in sorted(alike.items())
        )
        what = f" {collective}" if collective else ""
        yield Finding(
            severity="doubt",
            kind="rank_behind",
            devices=tuple(f"rank {rank}" for rank in late),
            subject=f"{ranks_of(late).capitalize()} {'is' if len(late) == 1 else 'are'} behind in {named(group)}",
            evidence=f"others made {front}{what} calls, {behind}",
            # A library's counts are read one rank after the other (docs.nvidia.com/deeplearning/nccl, RAS).
            advice="ask again: whoever does not move is stuck",
        )
