"""Rules on what a hang leaves: dumps of calls, the RAS client's text, stacks of processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from ccbench.analysis.diagnosis import MOST_QUOTES, Diagnosis, quoted
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.readers.statements.py_spy import WAITING
from ccbench.readers.traces.events import Trace
from ccbench.readers.traces.hang import findings_of, hang_of, ranks_of
from ccbench.readers.traces.lag import lag
from ccbench.readers.traces.watchdog import STUCK
from ccbench.units import plural


def hang_diagnoses(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield who stopped first, in one sentence, then what follows from it."""
    trace = evidence.trace or Trace()
    hang = hang_of(trace)
    told = list(findings_of(hang)) if hang is not None else []
    if hang is not None:
        for number, finding in enumerate(told):
            cause = hang.causes[number] if number < len(hang.causes) else None
            places = cause.places if cause else ()
            quotes = _lines_at(evidence, places[:MOST_QUOTES])
            if number == 0:
                ranks = {str(rank) for rank in hang.ranks}
                lines = evidence.of("stack")
                # On one node that has all ranks of the job, local ranks are its ranks.
                locals_ = {line.values.get("local_rank") for line in lines}
                one_node = locals_ == {str(rank) for rank in trace.ranks}
                quotes += [
                    line
                    for line in lines
                    if (line.values.get("rank") or (one_node and line.values["local_rank"]))
                    in ranks
                ][:MOST_QUOTES]
            yield Diagnosis(
                finding.severity,
                finding.kind,
                hang.sentence if number == 0 else finding.subject,
                cause.effect if cause else finding.evidence,
                finding.advice,
                "py-spy dump --pid PID" if cause else "",
                tuple(quotes),
                len(quotes),
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
        ranks, rows = sorted(stuck), list(stuck.values())
        silence = rows[0].trouble.removeprefix(STUCK)
        yield Diagnosis(
            "problem",
            "watchdog_stuck",
            f"a CUDA or NCCL call or the GIL blocks the watchdog thread of {ranks_of(ranks)}"
            + (f": no progress{silence}" if silence else ""),
            "a call does not return: the driver, a device or another thread that holds the GIL inside of CUDA",
            f"look at the native stacks of {ranks_of(ranks)}, and at dmesg of their hosts for Xid errors",
            "py-spy dump --native --pid PID",
            tuple(_lines_at(evidence, (row.place for row in rows[:MOST_QUOTES]))),
            len(rows),
        )


def ras(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield communicators that the RAS client says do not run, and the ranks that are behind."""
    parts: dict[str, list[Statement]] = defaultdict(list)
    for line in evidence.of("ras_count", "ras_rank", "ras_missing"):
        parts[line.speaker].append(line)
    problems = evidence.of("ras_problem")
    detailed = {problem.speaker.partition("-")[0] for problem in problems}
    # A group whose communicators are not listed has its row of the summary alone.
    rows = [line for line in evidence.of("ras_group") if line.speaker not in detailed]
    for problem in (*problems, *rows):
        status = problem.values.get("status") or problem.values["errors"]
        named = parts[problem.speaker] if problem.kind == "ras_problem" else []
        subject = _ras_subject(problem, status, named)
        yield Diagnosis(
            "problem",
            f"ras_{status.lower()}",
            subject,
            "ranks that launched fewer operations than others hold them up, or are about to catch up: ask twice"
            if status == "MISMATCH"
            else "no data came from their processes: ended, stopped or cut off from the RAS network",
            "look at the stack and the log of the process that is named; ask ncclras again after some seconds",
            "ncclras -v",
            quoted([problem, *(line for line in named if line.kind != "ras_count"), *named]),
            1 + len(named),
        )


def _ras_subject(problem: Statement, status: str, named: list[Statement]) -> str:
    """Who is behind or missing in a communicator. named: counts and ranks below its status."""
    if problem.kind == "ras_group":
        return f"communicators of group {problem.speaker} are {_STATUS_WORDS.get(status, status.lower())}"
    communicator = f"communicator {problem.speaker}"
    missing = [line for line in named if line.kind == "ras_missing"]
    # Each collective is counted on its own.
    by_collective: dict[str, list[Statement]] = defaultdict(list)
    for line in named:
        if line.kind != "ras_missing" and line.values["operation"]:
            by_collective[line.values["collective"]].append(line)
    for lines in by_collective.values():
        operation = {line: int(line.values["operation"]) for line in lines}
        first, last = min(operation.values()), max(operation.values())
        ranks = [line for line in lines if line.kind == "ras_rank"]
        behind = [line for line in ranks if operation[line] == first]
        if first == last:
            continue
        if behind:
            return (
                f"{_ranks(behind)} of {communicator} stopped at operation {first}, "
                f"others are at {last}"
            )
        count = next(line.values["ranks"] for line in lines if operation[line] == first)
        who = plural(int(count), "rank")
        ahead = [line for line in ranks if operation[line] == last]
        others = (
            f"; all but {_ranks(ahead)}, which launched {last}"
            if ahead
            else f", others are at {last}"
        )
        return f"{who} of {communicator} stopped at operation {first}{others}"
    processes = "; ".join(
        f"process {line.values['process']} on {line.values['node']}"
        for line in missing[:4]
        if "process" in line.values
    )
    if any("rank" in line.values for line in missing):
        does = "do" if len(missing) > 1 or not missing[0].values["rank"].isdecimal() else "does"
        return f"{_ranks(missing)} of {communicator} {does} not answer" + (
            f" ({processes})" if processes else ""
        )
    if missing:
        return f"{communicator}: nothing answers from {processes}"
    listed = [line for line in named if line.kind == "ras_rank"]
    also = f"; ncclras names {_ranks(listed)}" if listed else ""
    return f"{communicator} is {_STATUS_WORDS.get(status, status.lower())}{also}"


_STATUS_WORDS = {
    "MISMATCH": "not in the same state on all ranks",
    "INCOMPLETE": "incomplete: ranks do not answer",
}


def _ranks(lines: list[Statement]) -> str:
    """Ranks that ``lines`` name, the first eight."""
    names = ", ".join(line.values["rank"].strip() for line in lines[:8])
    more = f" and {len(lines) - 8} more" if len(lines) > 8 else ""
    return f"rank{'' if names.isdecimal() else 's'} {names}{more}"


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
            quoted(elsewhere),
            len(elsewhere),
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
            quoted(lines),
            len(lines),
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
