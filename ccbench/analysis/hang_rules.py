"""Rules on what a hang leaves: dumps of calls, the RAS client's text, stacks of processes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from ccbench.analysis.diagnosis import Diagnosis
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.readers.statements.py_spy import WAITING
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.hang import findings_of, hang_of, ranks_of
from ccbench.readers.traces.lag import lag
from ccbench.readers.traces.watchdog import STUCK
from ccbench.results.keys import grouped
from ccbench.units import plural

UNSURE = frozenset({"not_completed", "no_dump"})
"""Kinds of hangs that name nobody."""

_FAILED = re.compile(r"operation timeout|failure detected|operations have failed")


def hang_diagnoses(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield who stopped first, in one sentence, then what follows from it."""
    trace = evidence.trace or Trace()
    hang = hang_of(trace)
    told = list(findings_of(hang)) if hang is not None else []
    failed = any(_FAILED.search(line.quote) for line in evidence.of("watchdog"))
    if hang is not None:
        for number, finding in enumerate(told):
            cause = hang.causes[number] if number < len(hang.causes) else None
            places = cause.places if cause else ()
            quotes = _lines_at(evidence, places)
            if number == 0:
                ranks = {str(rank) for rank in hang.ranks}
                lines = evidence.of("stack")
                # On one node that has all ranks of the job, local ranks are its ranks.
                locals_ = {line.values.get("local_rank") for line in lines}
                one_node = locals_ == {str(rank) for rank in trace.ranks}
                stacks_of = [
                    line
                    for line in lines
                    if (line.values.get("rank") or (one_node and line.values["local_rank"]))
                    in ranks
                ]
                quotes = [*quotes[:1], *stacks_of, *quotes[1:]]
            yield Diagnosis(
                # A call that is open may be on its way; one that timed out is not.
                "problem" if failed and cause else finding.severity,
                finding.kind,
                hang.sentence if number == 0 else finding.subject,
                cause.effect if cause else finding.evidence,
                finding.advice,
                "py-spy dump --pid PID" if cause else "",
                quotes,
            )
    for finding in lag(trace, hang):
        if finding not in told and STUCK not in finding.subject:
            yield Diagnosis(
                finding.severity,
                finding.kind,
                finding.subject,
                finding.evidence,
                finding.advice,
            )
    yield from stuck_watchdogs(evidence)
    yield from ras(evidence)
    if hang is None:
        yield from stacks(evidence)


def _lines_at(evidence: Evidence, places: Iterable[str]) -> list[Statement]:
    """Lines of the watchdog at ``places``; a dump, which has no lines, by its name."""
    lines = {line.place: line for line in evidence.of("watchdog")}
    return [
        lines.get(Path(place).name) or Statement("dump", 0, "", file=place) for place in places
    ]


def stuck_watchdogs(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield the ranks whose watchdog thread the heartbeat monitor of PyTorch found blocked."""
    progress = (evidence.trace or Trace()).progress
    stuck = {row.rank: row for row in progress if row.trouble.startswith(STUCK)}
    if stuck:
        who, rows = ranks_of(sorted(stuck)), list(stuck.values())
        silence = rows[0].trouble.removeprefix(STUCK)
        yield Diagnosis(
            "problem",
            "watchdog_stuck",
            f"a CUDA or NCCL call or the GIL blocks the watchdog thread of {who}: no progress{silence}",
            "a call does not return: the driver, a device or another thread that holds the GIL inside of CUDA",
            f"look at the native stacks of {who}, and at dmesg of their hosts for Xid errors",
            "py-spy dump --native --pid PID",
            _lines_at(evidence, (row.place for row in rows)),
        )


def ras(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield communicators that the RAS client says do not run, and the ranks that are behind."""
    parts = grouped(
        evidence.of("ras_count", "ras_rank", "ras_missing"), lambda line: line.speaker
    )
    problems = evidence.of("ras_problem")
    detailed = {problem.speaker.partition("-")[0] for problem in problems}
    # A group whose communicators are not listed has its row of the summary alone.
    rows = [line for line in evidence.of("ras_group") if line.speaker not in detailed]
    for problem in (*problems, *rows):
        status = problem.values.get("status") or problem.values["errors"]
        states = status.split(",")
        named = parts.get(problem.speaker, []) if problem.kind == "ras_problem" else []
        yield Diagnosis(
            "problem",
            f"ras_{states[0].lower()}",
            _ras_subject(
                problem,
                " and ".join(_STATUS_WORDS.get(state, state.lower()) for state in states),
                named,
            ),
            "ranks that launched fewer operations than others hold them up, or are about to catch up: ask twice"
            if status == "MISMATCH"
            else "no data came from their processes: ended, stopped or cut off from the RAS network",
            "look at the stack and the log of the process that is named; ask ncclras again after some seconds",
            "ncclras -v",
            [problem, *(line for line in named if line.kind != "ras_count"), *named],
            1 + len(named),
        )


def _ras_subject(problem: Statement, status: str, named: list[Statement]) -> str:
    """Who is behind or missing in a communicator. named: counts and ranks below its status."""
    if problem.kind == "ras_group":
        return f"communicators of group {problem.speaker} are {status}"
    communicator = f"communicator {problem.speaker}"
    # Each collective is counted on its own.
    counted = (
        line for line in named if line.kind != "ras_missing" and line.values["operation"]
    )
    for lines in grouped(counted, lambda line: line.values["collective"]).values():
        alike = grouped(lines, lambda line: int(line.values["operation"]))
        first, last = min(alike), max(alike)
        if first < last:
            who, ahead = (
                _ranks(alike[number]) or plural(int(alike[number][0].values["ranks"]), "rank")
                for number in (first, last)
            )
            is_ = "are" if who.startswith("ranks") or who[:1].isdigit() else "is"
            return f"{who} of {communicator} {is_} at operation {first}, {ahead} at {last}"
    missing = [line for line in named if line.kind == "ras_missing"]
    if missing:
        processes = ", ".join(
            f"process {line.values['process']} on {line.values['node']}"
            for line in missing[:4]
            if "process" in line.values
        )
        who = "; ".join(filter(None, (_ranks(missing), processes)))
        return f"{communicator} has no answer of {who}"
    also = f"; ncclras names {_ranks(named)}" if _ranks(named) else ""
    return f"{communicator} is {status}{also}"


_STATUS_WORDS = {
    "MISMATCH": "not in the same state on all ranks",
    "INCOMPLETE": "incomplete: ranks do not answer",
}


def _ranks(lines: list[Statement]) -> str:
    """Ranks that ``lines`` name, the first eight; '' for none."""
    names = [line.values["rank"].strip() for line in lines if "rank" in line.values]
    text = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
    return f"rank{'' if text.isdecimal() else 's'} {text}" if names else ""


def stacks(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield processes whose main thread stands elsewhere than that of most, or that all wait in one call."""
    lines = evidence.of("stack")
    if not lines:
        return
    tops = Counter(_place(line) for line in lines)
    (usual, count), *rest = tops.most_common()
    elsewhere = [line for line in lines if _place(line) != usual]
    waits = WAITING.search(usual + " (")
    if elsewhere and count > len(elsewhere):
        who = ", ".join(map(_process, elsewhere[:8]))
        yield Diagnosis(
            "problem" if waits else "doubt",
            "stack_elsewhere",
            f"{who} {'stands' if len(elsewhere) == 1 else 'stand'} in {_place(elsewhere[0])}, "
            f"{count} others in {usual}",
            "the others wait for them" if waits else "",
            "look at what these processes do: data loading, checkpoints, locks",
            "py-spy dump --pid PID, twice: a stack that moves is no hang",
            elsewhere,
        )
    elif not rest and (waits or len(lines) > 1):
        yield Diagnosis(
            "doubt",
            "stacks_alike",
            f"All {plural(len(lines), 'process')} stand in {usual}"
            if len(lines) > 1
            else f"1 process stands in {usual}; give the stacks of the other ranks",
            "none is behind by its stack: the transfer itself, the links or a rank that is not here",
            "give the stacks of all ranks in one file, or a Flight Recorder dump of each: TORCH_FR_BUFFER_SIZE=2000 "
            "(TORCH_NCCL_TRACE_BUFFER_SIZE before 2.9)",
            "py-spy dump --pid PID",
            lines,
        )


def _process(line: Statement) -> str:
    """Name of the rank whose stack it is; a local rank is there once on every node."""
    for name in ("rank", "local_rank", "process"):
        if value := line.values.get(name):
            return f"{name.replace('_', ' ')} {value}"
    return "a process"


def _place(line: Statement) -> str:
    """Function of the innermost frame that waits for others, else of the innermost."""
    frames = line.values["frames"].split(" < ")
    waiting = next((frame for frame in frames if WAITING.search(frame)), frames[0])
    return waiting.partition(" (")[0]
