"""The answer to what people paste: every rule on the evidence, the gravest finding first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from ccbench.analysis.codes import declared_kinds
from ccbench.analysis.diagnosis import GRAVITY, Diagnosis
from ccbench.analysis.gate import ended
from ccbench.analysis.hang_rules import UNSURE, hang_diagnoses
from ccbench.analysis.machine_rules import machine_rules
from ccbench.analysis.nccl_rules import nccl_diagnoses, summary_of
from ccbench.analysis.speed_verdict import SpeedVerdict, SpeedWord, speed_verdicts, unmeasured
from ccbench.cases.measurement import EXIT_CODES, Status
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import Evidence
from ccbench.readers.statements import Statement
from ccbench.results.imported_job import Measured, run_of
from ccbench.topology.diagnosis import diagnose as findings_of_machine
from ccbench.topology.graph import TopologyClass
from ccbench.units import plural


class Outcome(IntEnum):
    """Answers that evidence allows, and their exit codes."""

    NOTHING_WRONG = 0
    PROBLEM = 1
    CANNOT_SAY = 3


@dataclass(frozen=True)
class Answer:
    """sentence: the first that a person reads. diagnoses: the gravest first. remarks: what else to know.

    untimed: verdicts on files without a row. exit_code: of the outcome, or of rows whose program crashed, hung or
    was cut.
    """

    outcome: Outcome
    sentence: str
    diagnoses: tuple[Diagnosis, ...]
    evidence: Evidence
    measured: Measured
    untimed: tuple[SpeedVerdict, ...] = ()
    verdicts: tuple[SpeedVerdict, ...] = ()
    remarks: tuple[str, ...] = ()
    exit_code: int = 0


Rule = Callable[[Evidence], Iterator[Diagnosis]]


def machine_diagnoses(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield findings about each machine that a file shows."""
    for name, topology in evidence.machines:
        for finding in findings_of_machine(topology):
            subject = finding.subject or finding.evidence
            meaning = finding.evidence if finding.subject else ""
            of = f"{name}: " if len(evidence.machines) > 1 else ""
            yield Diagnosis(
                finding.severity, finding.kind, of + subject, meaning, finding.advice
            )


CRASHED = SpeedWord.PROBLEM.value.lower()
"""Kind of the diagnosis that a program ended before its first row."""

RULES: tuple[Rule, ...] = (hang_diagnoses, machine_rules, nccl_diagnoses, machine_diagnoses)
"""Rules on evidence; each yields what it sees, in any order."""


def answer_of(
    evidence: Evidence,
    system: StatedSystem,
    folder: Path | None = None,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> Answer:
    """Return what ``evidence`` shows. system: what the user states of where tables were measured.

    folder: where tables and traces are kept as a run, in the place of an earlier one of the same files, with
    ``force`` of any. progress: is given a line before every case. Raises RunFolderError where something else is there.
    """
    measured = run_of(evidence.logs, evidence.traces, system, folder, force, progress)
    untimed = unmeasured(measured.files)
    verdicts = (*untimed, *(speed_verdicts(measured.run) if measured.run is not None else ()))
    # What readers could not take as it stands.
    warnings = [
        f"{name}{f':{warning.line}' if warning.line else ''}: {warning.text}"
        for name, topology in evidence.machines
        for warning in topology.warnings
    ]
    warnings += [
        warning.text for warning in (evidence.trace.warnings if evidence.trace else ())
    ]
    remarks = (*evidence.problems, *warnings, *measured.remarks)
    diagnoses = [
        *(diagnosis for verdict in verdicts for diagnosis in _of_verdict(verdict, evidence)),
        *(diagnosis for rule in RULES for diagnosis in rule(evidence)),
    ]
    # What the program died of says more than that it did.
    if any(each.severity == "problem" and each.kind != CRASHED for each in diagnoses):
        diagnoses = [each for each in diagnoses if each.kind != CRASHED]
    # Of equal gravity the rule that was asked first: a measurement before what may explain it, and all before a
    # hang that names nobody.
    diagnoses.sort(
        key=lambda diagnosis: (GRAVITY[diagnosis.severity], diagnosis.kind in UNSURE)
    )
    outcome = _outcome(evidence, diagnoses, verdicts, measured.run is not None)
    codes = [file.exit_code for file in measured.files if file.cases]
    if codes and any(file.refused for file in measured.files):
        codes.append(EXIT_CODES[Status.FAILED])
    return Answer(
        outcome,
        _sentence(outcome, evidence, diagnoses, verdicts, remarks),
        tuple(diagnoses),
        evidence,
        measured,
        untimed,
        verdicts,
        remarks,
        ended(min(filter(None, codes), default=0), outcome),
    )


def _of_verdict(verdict: SpeedVerdict, evidence: Evidence) -> Iterator[Diagnosis]:
    """A verdict that is no praise as a diagnosis; FAST is worth knowing."""
    finding, kind = verdict.finding, verdict.word.value.lower()
    tables = [
        Statement(
            "table", table.line, f"table of {plural(len(table.rows), 'row')}", file=path.name
        )
        for path, log in evidence.logs
        for table in log.tables
    ]
    if verdict.word.exit_code == 1 or verdict.word is SpeedWord.FAST:
        yield Diagnosis(
            "note" if verdict.word is SpeedWord.FAST else "problem",
            kind,
            verdict.sentence,
            finding.evidence if finding else "",
            finding.advice if finding else declared_kinds()[kind]["cure"],
            "ccbench run health" if verdict.wrong else "ccbench run knobs",
            tables,
        )


TELLING = (
    "channel",
    "gdr",
    "port",
    "peer_access",
    "peer_bandwidth",
    "acs",
    "ras_ok",
    "check_ok",
)
"""Kinds of statements that say how data go."""


def _outcome(
    evidence: Evidence,
    diagnoses: list[Diagnosis],
    verdicts: tuple[SpeedVerdict, ...],
    has_cases: bool,
) -> Outcome:
    severities = {diagnosis.severity for diagnosis in diagnoses}
    if "problem" in severities:
        return Outcome.PROBLEM
    # A verdict on one collective speaks for no other, and silence of the rules for no table that has no row.
    tables = [table for _, log in evidence.logs for table in log.tables]
    if (
        evidence.gap
        or (tables and not (verdicts or has_cases))
        or any(verdict.word is SpeedWord.CANNOT_SAY for verdict in verdicts)
    ):
        return Outcome.CANNOT_SAY
    if verdicts:
        return Outcome.NOTHING_WRONG
    if "doubt" in severities:
        return Outcome.CANNOT_SAY
    # Silence of the rules means something where a machine, transports or ports were seen.
    known = any(
        topology.topology_class is not TopologyClass.UNKNOWN or topology.source.endswith("-p2p")
        for _, topology in evidence.machines
    )
    enough = known or bool(evidence.of(*TELLING)) or evidence.trace is not None
    return Outcome.NOTHING_WRONG if enough or has_cases else Outcome.CANNOT_SAY


def _sentence(
    outcome: Outcome,
    evidence: Evidence,
    diagnoses: list[Diagnosis],
    verdicts: tuple[SpeedVerdict, ...],
    remarks: tuple[str, ...],
) -> str:
    """Return the first sentence: the gravest problem, else the verdict on what was measured, else doubts."""
    summary = summary_of(evidence)
    if not (evidence.statements or evidence.machines or evidence.logs or evidence.trace):
        if evidence.problems:
            return f"CANNOT SAY: {evidence.problems[0]}"
        return (
            "CANNOT SAY: no line is of a form that ccbench knows; give the output of nccl-tests, an "
            "NCCL_DEBUG=INFO log, nvidia-smi topo -m, a Flight Recorder dump or the like"
        )
    if outcome is Outcome.PROBLEM:
        problems = [diagnosis for diagnosis in diagnoses if diagnosis.severity == "problem"]
        more = (
            f" (and {plural(len(problems) - 1, 'more problem')})" if len(problems) > 1 else ""
        )
        measured = any(problems[0].subject == verdict.sentence for verdict in verdicts)
        return f"{'' if measured else 'PROBLEM: '}{problems[0].subject}{more}"
    if reason := evidence.gap:
        return f"CANNOT SAY: {reason}"
    doubts = [diagnosis for diagnosis in diagnoses if diagnosis.severity == "doubt"]
    # The gravest first; where nothing can be said of it, what may explain that is worth more.
    if verdicts and (outcome is Outcome.NOTHING_WRONG or not doubts):
        return verdicts[0].sentence
    if doubts:
        depends = (
            "the job hangs or runs"
            if doubts[0].kind in UNSURE
            else "this is wrong, for it depends on the machine"
        )
        return f"CANNOT SAY whether {depends}: {doubts[0].subject}"
    unknown = {TopologyClass.UNKNOWN: "joined in a way that it does not tell"}
    machines = "; ".join(
        f"{name}: {plural(len(topology.gpus), 'GPU')}, "
        f"{unknown.get(topology.topology_class, topology.topology_class.value)}"
        for name, topology in evidence.machines
        if topology.gpus
    )
    if outcome is Outcome.NOTHING_WRONG:
        notes = [diagnosis.subject for diagnosis in diagnoses][:1]
        shown = summary or machines
        if evidence.trace is not None and not shown:
            shown = "no rank waits in the calls that were recorded; 'ccbench replay' says where time goes"
        tools = dict.fromkeys(log.tool for _, log in evidence.logs)
        shown = shown or (
            f"rows of {', '.join(tools)}, of which no healthy system is known" if tools else ""
        )
        parts = ([shown] if shown else []) + [f"worth knowing: {note}" for note in notes]
        return ": ".join(filter(None, ("NOTHING WRONG is visible", "; ".join(parts))))
    if machines:
        return f"CANNOT SAY what joins the GPUs: {machines}; 'nvidia-smi topo -m' and its like say it"
    if evidence.logs and remarks:
        return f"CANNOT SAY: {remarks[0]}"
    seen = ", ".join(
        [*dict.fromkeys(part.form for part in evidence.parts), *filter(None, [summary])]
    )
    return (
        f"CANNOT SAY: what was read ({seen}) has no transport, no graph and no table of a collective; "
        "give the log of a run with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH"
    )
