"""Jobs that hang: the ranks that are behind in a process group, and calls that differ between ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from ccbench.findings import Finding
from ccbench.readers.traces.events import (
    RECV,
    SEND,
    Communication,
    GroupProgress,
    ProcessGroup,
    Trace,
)
from ccbench.readers.traces.groups import rank_list
from ccbench.units import format_size, plain, shown

WHERE_IT_IS = "look at what it does: its stack (py-spy dump), its log, its host"

_SIZED_ALIKE = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"}
"""Collectives whose largest buffer has the same size on every rank."""

Calls = dict[tuple[ProcessGroup, int], list[Communication]]
"""(group, sequence number) -> the call of each rank; sends and receives are not among them."""


def lag(trace: Trace) -> tuple[Finding, ...]:
    """Return what keeps the job of ``trace`` from going on; nothing where the trace has no progress."""
    rows: dict[tuple[ProcessGroup, str], list[GroupProgress]] = defaultdict(list)
    for progress in trace.progress:
        rows[progress.group, progress.collective].append(progress)
    calls: Calls = defaultdict(list)
    groups = {progress.group for progress in trace.progress}
    for call in trace.communications:
        if (
            call.sequence is not None
            and call.group in groups
            and call.collective not in (SEND, RECV)
        ):
            calls[call.group, call.sequence].append(call)
    findings = [
        Finding(
            severity="problem",
            kind="rank_in_trouble",
            devices=(f"rank {progress.rank}",),
            subject=f"Rank {progress.rank} of {_named(progress.group)} is {plain(progress.trouble)}",
            evidence=plain(progress.place),
            advice=WHERE_IT_IS,
        )
        for progress in trace.progress
        if progress.trouble
    ]
    findings += _differing(calls)
    for (group, collective), ranks in rows.items():
        silent = {
            progress.rank
            for progress in trace.progress
            if progress.trouble and progress.group == group
        }
        here = [rank for rank in ranks if rank.rank not in silent]
        findings += _behind(group, collective, here, set(trace.ranks) - silent, calls)
    return tuple(findings)


def _behind(
    group: ProcessGroup,
    collective: str,
    rows: Sequence[GroupProgress],
    dumped: Collection[int],
    calls: Calls,
) -> Iterator[Finding]:
    """Give what is wrong in one group: ranks behind, a call not completed, ranks of which nothing is here."""
    came = {row.rank: row.enqueued for row in rows if row.enqueued is not None}
    # A rank with a dump that has no call of this group has made none; without a dump nothing is known of it.
    came |= {rank: 0 for rank in group.ranks if rank not in came and rank in dumped and came}
    front = max(came.values(), default=0)
    late = sorted(rank for rank, number in came.items() if number < front)
    what = f" {collective}" if collective else ""
    name = _named(group)
    running = all(row.completed is None for row in rows)
    if late:
        alike: dict[int, list[int]] = defaultdict(list)
        for rank in late:
            alike[came[rank]].append(rank)
        behind = ", ".join(
            f"{_ranks(ranks)} made {number}" for number, ranks in sorted(alike.items())
        )
        yield Finding(
            severity="doubt" if running else "problem",
            kind="rank_behind",
            devices=tuple(f"rank {rank}" for rank in late),
            subject=f"{_ranks(late).capitalize()} {'is' if len(late) == 1 else 'are'} behind in {name}",
            evidence=f"others made {front}{what} calls, {behind}{_call(calls, group, front)}",
            # A library's counts are read one rank after the other (docs.nvidia.com/deeplearning/nccl, RAS).
            advice="ask again: whoever does not move is stuck" if running else WHERE_IT_IS,
        )
    elif open_ := sorted(
        row.rank for row in rows if row.completed is not None and row.completed < front
    ):
        yield Finding(
            severity="doubt",
            kind="not_completed",
            devices=tuple(f"rank {rank}" for rank in open_),
            subject=f"All ranks of {name} made call {front}, and {_ranks(open_)} did not complete it",
            evidence=_call(calls, group, front).lstrip("; "),
            advice="where that lasts, the links or a device fail: see the library's log",
        )
    absent = sorted(set(group.ranks) - came.keys()) if came and not running else []
    if absent:
        yield Finding(
            severity="doubt",
            kind="no_dump",
            devices=tuple(f"rank {rank}" for rank in absent),
            subject=f"Nothing is here of {_ranks(absent)} of {name}",
            evidence=f"{len(came)} of {group.size} ranks left a dump",
            advice="give all dumps; a rank that left none may have died first",
        )


def _differing(calls: Calls) -> Iterator[Finding]:
    """The first call of each group that is not the same on all ranks."""
    reported = set()
    for (group, sequence), ranks in sorted(calls.items(), key=lambda row: row[0][1]):
        alike: dict[str, list[int]] = defaultdict(list)
        for call in ranks:
            alike[_shape(call)].append(call.rank if call.rank is not None else -1)
        if len(alike) > 1 and group not in reported:
            reported.add(group)
            shapes = "; ".join(
                f"{shape} on {_ranks(sorted(same))}" for shape, same in alike.items()
            )
            # The smaller party is named: a slip of one rank is likelier than the same slip of all others.
            fewest = min(alike.values(), key=len)
            yield Finding(
                severity="problem",
                kind="calls_differ",
                devices=tuple(f"rank {rank}" for rank in sorted(fewest)),
                subject=f"Call {sequence} of {_named(group)} is not the same on all ranks",
                evidence=shapes,
                advice="ranks took different ways through the program, or have different sizes of data",
            )


def _shape(call: Communication) -> str:
    sizes = [size for size in (call.input_bytes, call.output_bytes) if size is not None]
    if call.collective not in _SIZED_ALIKE or not sizes:
        return call.collective
    return f"{call.collective} of {format_size(max(sizes))}"


def _call(calls: Calls, group: ProcessGroup, sequence: int) -> str:
    made = calls.get((group, sequence))
    return f"; call {sequence} is {_shape(made[0])}" if made else ""


def _named(group: ProcessGroup) -> str:
    described = f" ({plain(group.description)})" if group.description else ""
    return f"process group {shown(group.name)}{described}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {rank_list(ranks)}"
