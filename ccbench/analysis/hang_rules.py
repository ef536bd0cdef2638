"""Rules on what a hang leaves: dumps of calls, the RAS client's text, stacks of processes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from ccbench.analysis.diagnosis import MOST_QUOTES, Diagnosis, quoted
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.readers.statements.py_spy import WAITING
from ccbench.readers.traces.hang import findings_of, hang_of
from ccbench.units import plural


def hang_diagnoses(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield who stopped first, in one sentence, then what follows from it."""
    hang = hang_of(evidence.trace) if evidence.trace is not None else None
    if hang is not None:
        for number, finding in enumerate(findings_of(hang)):
            cause = hang.causes[number] if number < len(hang.causes) else None
            places = cause.places if cause else ()
            quotes = [Statement("dump", 0, "", file=place) for place in places[:MOST_QUOTES]]
            if number == 0:
                ranks = {str(rank) for rank in hang.ranks}
                stacks_of = [
                    line for line in evidence.of("stack") if line.values["rank"] in ranks
                ]
                quotes += stacks_of[:MOST_QUOTES]
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
    yield from ras(evidence)
    if hang is None:
        yield from stacks(evidence)


def ras(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield communicators that the RAS client says do not run, and the ranks that are behind."""
    ranks: dict[str, list[Statement]] = defaultdict(list)
    for line in evidence.of("ras_rank"):
        ranks[line.speaker].append(line)
    counts: dict[str, list[Statement]] = defaultdict(list)
    for line in evidence.of("ras_count"):
        counts[line.speaker].append(line)
    for problem in evidence.of("ras_problem"):
        name, status = problem.speaker, problem.values["status"]
        missing = [line for line in evidence.of("ras_missing") if line.speaker == name]
        operations = [int(line.values["operation"]) for line in (*counts[name], *ranks[name])]
        behind = [
            line
            for line in ranks[name]
            if int(line.values["operation"]) == min(operations) < max(operations)
        ]
        if behind:
            named = ", ".join(line.values["rank"] for line in behind[:8])
            subject = (
                f"rank{'s' if len(behind) > 1 else ''} {named} of communicator {name} stopped at operation "
                f"{min(operations)}, others are at {max(operations)}"
            )
        elif missing:
            gone = ", ".join(
                f"process {line.values['process']} on {line.values['node']}"
                for line in missing[:4]
            )
            subject = f"communicator {name}: nothing answers from {gone}"
        else:
            subject = f"communicator {name} is {status.lower()}"
        yield Diagnosis(
            "problem",
            f"ras_{status.lower()}",
            subject,
            "ranks that launched fewer operations than others hold them up, or are about to catch up: ask twice",
            "look at the stack and the log of the process that is named; ask ncclras again after some seconds",
            "ncclras -v",
            quoted([problem, *behind, *missing, *counts[name]]),
            1 + len(behind) + len(missing),
        )


def stacks(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield processes whose main thread stands elsewhere than that of most, or that all wait in one call."""
    lines = evidence.of("stack")
    if len(lines) < 2:
        return
    tops = Counter(_place(line) for line in lines)
    (usual, count), *rest = tops.most_common()
    elsewhere = [line for line in lines if _place(line) != usual]
    waits = WAITING.search(usual + " (")
    if elsewhere and count > len(elsewhere):
        who = ", ".join(
            f"rank {line.values['rank']}"
            if line.values["rank"]
            else f"process {line.values['process']}"
            for line in elsewhere[:8]
        )
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
    elif not rest:
        yield Diagnosis(
            "doubt",
            "stacks_alike",
            f"All {plural(len(lines), 'process')} stand in {usual}",
            "none is behind by its stack: the transfer itself, the links or a rank that is not here",
            "add a Flight Recorder dump: TORCH_FR_BUFFER_SIZE=2000 (TORCH_NCCL_TRACE_BUFFER_SIZE before 2.9)",
            "",
            quoted(lines),
            len(lines),
        )


def _place(line: Statement) -> str:
    """Function of the innermost frame that waits for others, else of the innermost."""
    frames = line.values["frames"].split(" < ")
    waiting = next((frame for frame in frames if WAITING.search(frame)), frames[0])
    return waiting.partition(" (")[0]
