"""Gates: exit codes of verdicts, by words or by the intervals of a file.

FAILS is what must not go on, UNDECIDED what nobody can decide from these figures; the gravest of all parts
counts. Of words the threshold is the verdict's own, of a file the 95 % that it holds of each point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccbench.analysis.machine_verdict import machine_verdict
from ccbench.analysis.speed_verdict import (
    WORDS,
    SpeedVerdict,
    SpeedWord,
    is_measurement,
    speed_verdicts,
)
from ccbench.cases.axes import DEFAULT
from ccbench.results import Run
from ccbench.results.keys import grouped
from ccbench.topology.files import catalog_names
from ccbench.units import format_seconds, format_size, plain, plural

if TYPE_CHECKING:
    from ccbench.analysis.gate_file import GateFile

PASSES, FAILS, UNDECIDED = 0, 1, 3
"""Exit codes, as ``ccbench compare`` has them."""

GRAVEST = (FAILS, UNDECIDED, PASSES)


def ended(own_code: int, judged: int) -> int:
    """Exit code of a command: a failure first, then its own, of a crash or a hang, then what is undecided."""
    return FAILS if judged == FAILS else own_code or judged


def verdict_code(runs: Sequence[Run], further: Sequence[SpeedVerdict] = ()) -> int:
    """Exit code of the verdicts on ``runs``, on machines or on speed, and of ``further`` ones."""
    codes = [verdict.word.exit_code for verdict in further]
    for run in runs:
        machine = machine_verdict(run)
        if machine is not None:
            codes.append(machine.exit_code)
        else:
            codes += [verdict.word.exit_code for verdict in speed_verdicts(run)]
    return min(codes, key=GRAVEST.index, default=PASSES)


NOT_SLOW, NORMAL = "not-slow", "normal"
LEVELS: dict[str, tuple[frozenset[SpeedWord], str]] = {
    NOT_SLOW: (frozenset(), "SLOW and WRONG fail, CANNOT SAY is undecided"),
    NORMAL: (
        frozenset({SpeedWord.FAST, SpeedWord.LOW}),
        "SLOW and WRONG fail, CANNOT SAY, LOW and FAST are undecided",
    ),
}
"""Words that are undecided besides CANNOT SAY, and a sentence on all, by the name of the gate."""

LONGEST_REASON = 600

UNJUDGED = (
    "no collective of a GPU library (NCCL, RCCL) was measured, and times of healthy systems are known of nothing "
    "else; keep a good run and compare with it: ccbench compare BASELINE RUN"
)


@dataclass(frozen=True)
class Gate:
    """A threshold by its name, of LEVELS or of a file. limits: of the file."""

    name: str
    limits: GateFile | None = None


@dataclass(frozen=True)
class VerdictPart:
    """The verdict on one regime of one collective; regime "": on all of it."""

    subject: str
    regime: str
    word: SpeedWord
    text: str

    def __str__(self) -> str:
        # CANNOT SAY is what the gate itself says of it.
        word = "" if self.word is SpeedWord.CANNOT_SAY else f"{self.word.value}: "
        return f"{word}{self.subject}: {self.text}"


@dataclass(frozen=True)
class GateOutcome:
    """What a gate decides: an exit code, and the sentence with reason and threshold.

    own_code: what the command ends with but for the gate.
    """

    gate: str
    exit_code: int
    reason: str
    threshold: str
    own_code: int = PASSES

    @property
    def code(self) -> int:
        """Exit code of the command."""
        return ended(self.own_code, self.exit_code)

    @property
    def sentence(self) -> str:
        """``gate: FAIL (exit code 1): SLOW: nccl all_reduce, ...; threshold not-slow: ...``."""
        reason = self.reason.removeprefix(f"{self.outcome}: ")
        text = f"gate: {self.outcome} (exit code {self.code}): {reason}"
        return f"{text}; threshold {self.gate}: {self.threshold}"

    @property
    def outcome(self) -> str:
        """PASS, FAIL, HUNG, PARTIAL or CANNOT SAY; nothing passes that does not end with 0."""
        return {PASSES: "PASS", FAILS: "FAIL", 4: "HUNG", 5: "PARTIAL"}.get(
            self.code, "CANNOT SAY"
        )

    @property
    def document(self) -> dict[str, Any]:
        """The outcome for programs."""
        return {
            "outcome": self.outcome,
            "gate": self.gate,
            "exit_code": self.code,
            "reason": self.reason,
            "threshold": self.threshold,
            "sentence": self.sentence,
        }


def verdict_parts(verdicts: Sequence[SpeedVerdict]) -> Iterator[VerdictPart]:
    """Yield each regime of ``verdicts``, and each collective that has none or ended before its end."""
    for verdict in verdicts:
        for subject in verdict.subjects or (verdict.subject,):
            for regime in verdict.regimes:
                text = "; ".join(filter(None, (regime.text, verdict.left_out)))
                yield VerdictPart(subject, WORDS[regime.regime], regime.word, text)
            for dip in verdict.dips:
                yield VerdictPart(subject, "own other sizes", SpeedWord.SLOW, dip.text)
            if verdict.unfinished or not verdict.regimes:
                # What is slow on one of the machines that it may be of does not pass.
                unsure = SpeedWord.SLOW in dict(verdict.readings).values()
                word = SpeedWord.CANNOT_SAY if verdict.unfinished or unsure else verdict.word
                yield VerdictPart(subject, "", word, verdict.reason or verdict.left_out)


def judged_verdicts(run: Run) -> tuple[SpeedVerdict, ...]:
    """Verdicts on ``run``; of one without a collective that could be judged the reason and the cure."""
    return speed_verdicts(run) or (SpeedVerdict(run.suite or run.path.name, reason=UNJUDGED),)


def gate_outcome(
    gate: Gate,
    runs: Sequence[Run],
    further: Sequence[SpeedVerdict] = (),
    own_code: int = PASSES,
    answer: str = "",
) -> GateOutcome:
    """Outcome of ``gate`` on all ``runs`` together, and on ``further`` verdicts, of files that gave no run.

    answer: sentence of ``own_code``, where that is an outcome of its own.
    """
    verdicts, checks = [*further], list[tuple[int, str]]()
    for run in runs:
        machine = machine_verdict(run)
        if machine is not None:
            checks.append((machine.exit_code, "; ".join(machine.lines()[:1])))
        verdicts += judged_verdicts(run) if machine is None else speed_verdicts(run)
    parts = verdict_parts(verdicts)
    if gate.limits is None:
        undecided, threshold = LEVELS[gate.name]
        checks += [
            (UNDECIDED if part.word in undecided else part.word.exit_code, str(part))
            for part in parts
        ]
    else:
        threshold = gate.limits.threshold
        checks += [(FAILS, str(part)) for part in parts if part.word is SpeedWord.WRONG]
        checks += within(gate.limits, runs)
    graver = own_code if own_code in GRAVEST else UNDECIDED
    if answer and graver not in {code for code, _ in checks}:
        checks.append((graver, answer))
    code, reason = min(checks, key=lambda check: GRAVEST.index(check[0]))
    if code == PASSES and own_code:
        reason = f"what was measured is not whole: {reason}"
    alike = Counter(code for code, _ in checks)[code]
    more = f"; and {alike - 1} more of {plural(len(checks), 'part')}" if alike > 1 else ""
    return GateOutcome(
        gate.name, code, plain(reason, LONGEST_REASON) + more, threshold, own_code
    )


def within(limits: GateFile, runs: Sequence[Run]) -> Iterator[tuple[int, str]]:
    """Yield exit code and reason of every point of ``limits``: slower fails, faster and missing are undecided."""
    own = [
        point
        for run in runs
        for point in run.points
        if is_measurement(point)
        and (point.algorithm, point.protocol, point.channels) == (DEFAULT, DEFAULT, 0)
        and (point.ranks, point.dtype) == (limits.ranks, limits.dtype)
        and point.nodes in (0, limits.nodes)
        and point.backend == limits.library.lower()
    ]
    for run in runs:
        # Names of measured machines are their hosts', which a file from elsewhere cannot have.
        name = run.manifest.at("machine", "name")
        if len({name, limits.machine} & {*catalog_names()}) == 2:
            text = f"{plain(str(run.path))}: is of {name}, the file's limits are of {limits.machine}"
            yield UNDECIDED, f"{text}; write a file for it: ccbench predict --gate-file"
            return
    measured = grouped(own, lambda point: (point.collective, point.size_bytes))
    for limit in limits.gates:
        name = f"{limit.collective}, {plural(limits.ranks, 'rank')}, {format_size(limit.size_bytes)}"
        members = measured.get((limit.collective, limit.size_bytes), ())
        low, high = limit.low_95_seconds, limit.high_95_seconds
        span = f"{format_seconds(low)} to {format_seconds(high)}"
        for point in members:
            seconds = point.median_seconds or 0.0
            code = FAILS if seconds > high else UNDECIDED if seconds < low else PASSES
            text = {FAILS: "slower than", UNDECIDED: "faster than", PASSES: "within"}[code]
            yield code, f"{name}: {format_seconds(seconds)} is {text} {span}"
        if not members:
            yield (
                UNDECIDED,
                f"{name}, {limits.dtype}: has no time that can be judged; measure that size",
            )


def open_gate(name: str) -> Gate:
    """Gate of a name of LEVELS, else of a file. Raises UsageError."""
    from ccbench.analysis.gate_file import read_gates

    return Gate(name) if name in LEVELS else Gate(name, read_gates(Path(name)))
