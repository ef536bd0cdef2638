"""Verdict on every collective of a GPU library, by regime of sizes: is this number normal?

Systems that are known to be healthy lie within an interval around the model's predictions
(``ccbench.model.library.intervals``). NORMAL is a time within the 80 % of them, LOW a longer one, SLOW one far
from the prediction that hardly any of them has, FAST one that none has; CANNOT SAY has a reason, and of fewer
than three systems like the one at hand nothing is called LOW or SLOW. WRONG is a collective, on any backend,
of which a case gave wrong elements: its times are judged by nothing else. Each table of an imported text is
judged by itself, and the worst counts. Whatever a verdict leaves out it names, and no praise is said where a
case failed or more than half were left out. Simulated times get no verdict, nor has what no healthy system is
known of (processors, own kernels): the figures stand alone.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property
from typing import Any

from ccbench.analysis.causes import Cause, causes_of
from ccbench.analysis.dips import Dip, dips_of
from ccbench.analysis.kinds import fitting_clusters, priced_on
from ccbench.cases.axes import DEFAULT, WORK
from ccbench.cases.capabilities import Device, PricedBy, capabilities_of
from ccbench.cases.measurement import FAILURES, Status
from ccbench.errors import MachineError
from ccbench.findings import Finding
from ccbench.flags import About, Flag
from ccbench.model.cluster import Cluster
from ccbench.model.library import Generation, LibraryRequest, LibrarySystem, PciePath
from ccbench.model.library.intervals import (
    FEWEST_ALIKE,
    GAPS,
    PATHS,
    REGIMES,
    Residuals,
    Typicality,
    false_alarms,
    is_pcie_alone,
    regime_of,
    typicality,
)
from ccbench.model.library.paths import place_among_boxes
from ccbench.readers.benchmarks.log import LogOutcome
from ccbench.results import Manifest, Point, Run
from ccbench.results.imported_runs import NO_ROW_SHOWS_THEM, Imported
from ccbench.results.keys import Key, grouped
from ccbench.results.observed import request_of, sized
from ccbench.results.systems import recorded_system
from ccbench.units import format_ratio, format_seconds, percent, plural

BROKEN_FROM = {"latency": 5.0, "middle": 5.0, "large": 3.0}
"""Times the prediction, at every size of a regime, above which something is broken, whatever p-value so few
systems can support: of the published healthy logs none comes beyond 3.2, 1.8 and 1.9."""

UNJUDGED_FLAGS = frozenset(flag.value for flag in Flag if flag.about is About.FIGURES) | {
    Flag.LOOPBACK.value
}
"""Flags of cases whose figures are no times between devices, or contradict each other."""

LOST_PACKETS = "a network that drops or reorders packets at some sizes does that (congestion, several paths)"

SWITCHED = "a change of algorithm or protocol in the wrong place does that"

COUNTERS = (
    "look at PFC, ECN and out-of-order counters of NICs and switches, at adaptive routing (on both or on neither), "
    "and at one flow alone: two ranks at the sizes that collapse"
)

ENDINGS = {
    "crashed": "the program crashed",
    "hung": "the program hung",
    "cut": "the output is cut off",
}
"""Outcomes of an imported file that leave something unmeasured, in sentences."""

WORDS = {"latency": "small messages", "middle": "middle sizes", "large": "large messages"}
"""Of REGIMES, in sentences; what they are said in: times of small ones, else bandwidths."""


class SpeedWord(str, Enum):
    """The verdict, the gravest first."""

    WRONG = "WRONG"
    PROBLEM = "PROBLEM"
    SLOW = "SLOW"
    CANNOT_SAY = "CANNOT SAY"
    LOW = "LOW"
    FAST = "FAST"
    NORMAL = "NORMAL"

    @property
    def exit_code(self) -> int:
        """Exit code of every command that ends with the word."""
        return {"WRONG": 1, "PROBLEM": 1, "SLOW": 1, "CANNOT SAY": 3}.get(self.value, 0)


def gravest(words: Iterable[SpeedWord]) -> SpeedWord:
    """The gravest of ``words``; CANNOT SAY of none."""
    return min(words, key=list(SpeedWord).index, default=SpeedWord.CANNOT_SAY)


@dataclass(frozen=True)
class RegimeVerdict:
    """The verdict on sizes of one regime.

    point: the size in the middle by measured over predicted time, which is shown. factor: that ratio; least:
    the least of all sizes. case_ids: of all sizes. typical: how many healthy systems were as slow or fast.
    reason: of having no verdict, or what else to know.
    """

    regime: str
    word: SpeedWord
    point: Point
    factor: float
    least: float
    case_ids: frozenset[str]
    typical: Typicality | None = None
    reason: str = ""

    @property
    def broken(self) -> bool:
        """True if every size takes more than BROKEN_FROM times as long as predicted."""
        return self.least > BROKEN_FROM[self.regime]

    @property
    def usual_seconds(self) -> tuple[float, float] | None:
        """The least and the most that is normal at the size shown; None where that is not known."""
        low, high = self.point.predicted_low_80_seconds, self.point.predicted_high_80_seconds
        return None if low is None or high is None else (low, high)

    @property
    def text(self) -> str:
        """``large messages 478 GB/s at 1 GiB, expected 430 to 490``."""
        text = f"{WORDS[self.regime]} {self.figure(self.point.median_seconds or 0.0)} at {self.point.size}"
        text += f", {self.expected}" if self.expected else ""
        if self.word is SpeedWord.SLOW and self.factor >= 2:
            text += f", {format_ratio(self.factor)} the predicted time"
        return text + (f" ({self.reason})" if self.reason else "")

    @property
    def expected(self) -> str:
        """``expected 430 to 490 GB/s``, of what is normal at the size shown; "" where that is not known."""
        if self.usual_seconds is None:
            return ""
        low, high = self.usual_seconds
        # Where figures are rates, the longer time is the lower one.
        return f"expected {self.span(*((low, high) if self.in_seconds else (high, low)))}"

    @property
    def in_seconds(self) -> bool:
        """True if the figure is a time: of small messages, and where no bus or no link is used."""
        of_bus = self.point.busbw and self.point.busbw_at(1.0)
        return self.regime == "latency" or not of_bus or not self.point.of_links

    def figure(self, seconds: float) -> str:
        """``seconds`` at the size shown, as a time or as the bus bandwidth that follows."""
        rate = None if self.in_seconds else self.point.busbw_at(seconds)
        return (
            format_seconds(float(f"{seconds:.3g}"))
            if rate is None
            else f"{float(f'{rate:.3g}'):g} GB/s"
        )

    def span(self, first: float, last: float) -> str:
        """``430 to 490 GB/s``, of two times in seconds; one figure where the two are alike."""
        ends = list(dict.fromkeys((self.figure(first), self.figure(last))))
        # A unit is said once.
        if len(ends) > 1 and ends[0].split()[1] == ends[1].split()[1]:
            ends[0] = ends[0].split()[0]
        return " to ".join(ends)


@dataclass(frozen=True)
class SpeedVerdict:
    """The verdict on one collective of one library, of the largest sizes first.

    subject: what it is on. reason: of having none at all, in which case there are no regimes.
    causes: of being slow, the likeliest first. dips: sizes that are slow for the run's own
    other sizes.
    wrong: cases gave wrong elements; reason says how many, where. crashed: the program ended before its first row.
    left_out: cases that are not judged and why, and how the output ended; "" where all are judged.
    unfinished: so much is left out, or failed, that the rest speaks for no run. subjects: each, where one
    reason is that of several.
    """

    subject: str
    regimes: tuple[RegimeVerdict, ...] = ()
    reason: str = ""
    causes: tuple[Cause, ...] = ()
    dips: tuple[Dip, ...] = ()
    wrong: bool = False
    crashed: bool = False
    left_out: str = ""
    unfinished: bool = False
    subjects: tuple[str, ...] = ()
    readings: tuple[tuple[str, SpeedWord], ...] = ()

    @cached_property
    def word(self) -> SpeedWord:
        """The gravest of the regimes'; SLOW with a dip; no praise where the run is unfinished."""
        if self.wrong:
            return SpeedWord.WRONG
        if self.crashed:
            return SpeedWord.PROBLEM
        if self.dips:
            return SpeedWord.SLOW
        # Slow for all that fit may still be normal for what the catalog does not have.
        fits = {word for _, word in self.readings} & {SpeedWord.NORMAL, SpeedWord.LOW}
        mildest = next((word for word in reversed(SpeedWord) if word in fits), None)
        word = mildest or gravest(regime.word for regime in self.regimes)
        return SpeedWord.CANNOT_SAY if self.unfinished and not word.exit_code else word

    @property
    def sentence(self) -> str:
        """``NORMAL: nccl all_reduce, 16 ranks: large messages 478 GB/s at 1 GiB, expected 430 to 490``."""
        if not self.regimes:
            texts = (*(dip.text for dip in self.dips), self.reason, self.left_out)
            reasons = dict.fromkeys(filter(None, texts))
            return f"{self.word.value}: {self.subject}: {'; '.join(reasons)}"
        parts = []
        for word in SpeedWord:
            slow = self.dips if word is SpeedWord.SLOW else ()
            said = "; ".join(
                [regime.text for regime in self.regimes if regime.word is word]
                + [dip.text for dip in slow]
            )
            # The line begins with the gravest word, so only the others are said where they begin.
            prefix = f"{word.value.lower()}: " if word is not self.word else ""
            parts += [prefix + said] if said else []
        parts.insert(0 if self.unfinished else len(parts), self.left_out)
        return f"{self.word.value}: {self.subject}: {'; '.join(filter(None, parts))}"

    @property
    def finding(self) -> Finding | None:
        """Causes of times that are slow or fast, and what to do; None where they are neither."""
        if self.dips and all(regime.word is not SpeedWord.SLOW for regime in self.regimes):
            evidence = "; ".join((*(dip.text for dip in self.dips), SWITCHED, LOST_PACKETS))
            cure = f"compare forced algorithms and protocols there; {COUNTERS}"
            return Finding("problem", "slow", (), evidence, cure, f"{self.subject}: slow sizes")
        worst = next((regime for regime in self.regimes if regime.word is self.word), None)
        if worst is None or self.word not in (SpeedWord.SLOW, SpeedWord.FAST):
            return None
        subject = f"{self.subject}: {self.word.value.lower()} {WORDS[worst.regime]}"
        if self.word is SpeedWord.FAST:
            evidence = (
                f"{format_ratio(worst.factor)} the predicted time: no healthy system is as fast"
            )
            cure = "look whether clock and machine are the ones that were named, and whether data were sent"
            return Finding("doubt", "fast", (), evidence, cure, subject)
        # What each cause would give at the size that is shown; where the largest are not slow, nothing.
        signed, unproven = [], []
        for cause in self.causes:
            span = worst.span(cause.slowest_seconds, cause.fastest_seconds)
            text = f"{cause.rule.name} ({cause.rule.code})" + (
                f", which gives {span} here" if worst is self.regimes[0] else ""
            )
            if cause.sign:
                signed.append(f"{text} ({cause.sign} was seen)")
            else:
                unproven.append(text)
        parts = [f"likely: {'; or '.join(signed)}"] if signed else []
        parts += [f"fits, unproven: {'; or '.join(unproven)}"] if unproven else []
        if not self.causes:
            parts.append("no cause that is known gives these times")
        evidence = "; ".join(parts)
        checks = dict.fromkeys(cause.rule.check for cause in self.causes)
        cure = (
            "; ".join(checks)
            or "compare single nodes, pairs of nodes, and versions of the library"
        )
        return Finding("problem", "slow", (), evidence, cure, subject)

    @property
    def document(self) -> dict[str, Any]:
        """The verdict for programs: times in seconds, sizes in bytes; what is not known is null."""
        return {
            "verdict": self.word.value,
            "subject": self.subject,
            "sentence": self.sentence,
            "reason": self.reason or None,
            "readings": {name: word.value for name, word in self.readings} or None,
            "left_out": self.left_out or None,
            "regimes": [
                {
                    "regime": regime.regime,
                    "verdict": regime.word.value,
                    "reason": regime.reason or None,
                    "size_bytes": regime.point.size_bytes,
                    "seconds": regime.point.median_seconds,
                    "expected_seconds": list(regime.usual_seconds or ()) or None,
                    "over_predicted": regime.factor,
                    **{
                        name: getattr(regime.typical, name, None)
                        for name in ("p_slow", "p_fast", "systems")
                    },
                }
                for regime in self.regimes
            ],
            "dips": [vars(dip) for dip in self.dips],
            "causes": [
                {
                    "cause": cause.rule.name,
                    "check": cause.rule.check,
                    "sign": cause.sign or None,
                }
                for cause in self.causes
            ],
        }


def speed_verdicts(run: Run) -> tuple[SpeedVerdict, ...]:
    """A verdict for each collective that a GPU library ran in ``run``, the gravest first.

    Wrong results count whatever was measured. Forced algorithms count where the library's own choice was not
    measured. What cannot be said for one reason is said once.
    """
    groups = grouped(
        run.points,
        lambda point: (
            *(point.source, point.backend, point.collective, point.ranks, point.nodes),
            (point.algorithm, point.protocol, point.channels),
        ),
    )
    free = {
        key[:-1]
        for key, points in groups.items()
        if key[-1] == (DEFAULT, DEFAULT, 0) and any(map(is_measurement, points))
    }
    sources = {key[0] for key in groups}
    verdicts, unsaid = [], defaultdict[str, list[str]](list)
    for (*rest, forced), points in groups.items():
        name = subject_of(points[0], with_source=len(sources) > 1)
        if wrong := [point for point in points if point.status is Status.WRONG]:
            verdicts.append(
                SpeedVerdict(name, reason=wrong_text(run, wrong, len(points)), wrong=True)
            )
            continue
        started_points = list(filter(_is_asked, points))
        started = any(point.status is not Status.UNSUPPORTED for point in started_points)
        if not started or (forced != (DEFAULT, DEFAULT, 0) and tuple(rest) in free):
            continue
        left_out, unfinished = left_out_of(run, started_points)
        judged = list(filter(is_measurement, started_points))
        if capabilities_of(points[0].backend).priced_by is not PricedBy.GPU_LIBRARY:
            continue
        ended = run.manifest.imported(points[0].source).text("outcome")
        reason, verdict = _verdict(run, name, judged) if judged else (left_out, None)
        if not judged and ended in ("crashed", "hung"):
            verdicts.append(SpeedVerdict(name, reason=left_out, crashed=True))
        elif verdict is not None:
            verdicts.append(replace(verdict, left_out=left_out, unfinished=unfinished))
        else:
            unsaid[reason].append(name)
    for reason, (name, *more) in unsaid.items():
        verdicts.append(
            SpeedVerdict(
                name + (f" and {len(more)} more" if more else ""),
                reason=reason,
                subjects=(name, *more),
            )
        )
    return tuple(sorted(verdicts, key=lambda each: list(SpeedWord).index(each.word)))


def unmeasured(files: Sequence[Imported]) -> tuple[SpeedVerdict, ...]:
    """A verdict for each imported file without a case that failed or gave wrong data, those first."""
    verdicts: list[SpeedVerdict] = []
    for file in (file for file in files if not file.cases):
        ended = ENDINGS.get(file.log.outcome.value, "the output ended")
        detail = f" ({file.log.detail})" if file.log.detail else ""
        counted = sum(table.facts.get("out_of_bounds", 0) for table in file.log.tables)
        if counted:
            reason = f"the closing lines count {plural(counted, 'wrong value')}, of rows that are left out"
            verdicts.insert(0, SpeedVerdict(file.log.source, reason=reason, wrong=True))
        elif file.log.outcome in (LogOutcome.CRASHED, LogOutcome.HUNG):
            verdicts.append(
                SpeedVerdict(
                    file.log.source,
                    reason=f"{ended}{detail} before its first row",
                    crashed=True,
                )
            )
    return tuple(verdicts)


def subject_of(point: Point, *, with_source: bool) -> str:
    """``nccl all_reduce, 16 ranks on 2 nodes``, with the file that it is from where there are several."""
    words = [point.backend, point.collective]
    words += [word for word in (point.algorithm, point.protocol) if word != DEFAULT]
    nodes = f" on {plural(point.nodes, 'node')}" if point.nodes > 1 else ""
    source = f" ({point.source})" if with_source and point.imported else ""
    return f"{' '.join(words)}, {plural(point.ranks, 'rank')}{nodes}{source}"


def wrong_text(run: Run, wrong: Sequence[Point], cases: int) -> str:
    """Words for how many of ``cases`` are wrong, where most elements are, and what the output's closing lines count."""
    counted = sum(_facts(_tables_of(run, wrong), "out_of_bounds"))
    closing = f"the closing line counts {plural(counted, 'wrong value')}"
    unjudged = "; no verdict on speed is given where data are wrong"
    if all(point.detail.endswith(NO_ROW_SHOWS_THEM) for point in wrong):
        return f"{closing}, {NO_ROW_SHOWS_THEM}: {len(wrong)} of {plural(cases, 'case')} are in doubt{unjudged}"
    worst = max(wrong, key=lambda point: point.wrong_elements or 0)
    place = "in place" if worst.in_place else "out of place"
    count = f", {plural(worst.wrong_elements, 'wrong element')}" if worst.wrong_elements else ""
    return (
        f"{len(wrong)} of {plural(cases, 'case')} gave wrong results ({'worst' if len(wrong) > 1 else 'at'}: "
        f"{worst.size} {place}{count}){f'; {closing}' if counted else ''}{unjudged}"
    )


def _tables_of(run: Run, points: Sequence[Point]) -> list[Mapping[str, Any]]:
    """Facts of the imported tables that ``points`` of one file are from."""
    own = {point.source_table for point in points}
    tables = run.manifest.imported(points[0].source).mappings("tables")
    return [table for number, table in enumerate(tables, 1) if number in own]


def _facts(tables: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """Whole numbers of that name among the facts of imported tables."""
    return [
        number
        for table in tables
        if isinstance(number := Manifest(table).at("facts", name), int)
    ]


def left_out_of(run: Run, points: Sequence[Point]) -> tuple[str, bool]:
    """Words for points that are not judged and how their output ended; whether these forbid NORMAL."""
    reasons = Counter(filter(None, map(_why_unjudged, points)))
    parts = []
    if any(point.wrong_elements is None and point.status is Status.OK for point in points):
        parts.append("results were not checked")
    if count := reasons.total():
        texts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        parts.append(f"{count} of {plural(len(points), 'case')} not judged: {texts}")
    file = run.manifest.imported(points[0].source)
    tables = _tables_of(run, points)
    # A table that is whole stays so, whatever became of the program afterwards or of other tables.
    whole = bool(tables) and all(table.get("outcome") == "complete" for table in tables)
    ended = file.text("outcome")
    if ended in ENDINGS and not (whole and ended == "cut"):
        detail = file.text("detail")
        parts.append(ENDINGS[ended] + (f" ({detail})" if detail else ""))
    announced, printed = (
        sum(_facts(tables, name)) for name in ("announced_sizes", "printed_sizes")
    )
    short = 2 * printed < announced
    if short:
        parts.append(
            f"{announced - printed} of {plural(announced, 'announced size')} are missing"
        )
    failed = any(point.status in FAILURES for point in points) or (
        not whole and ended in ("crashed", "hung")
    )
    return "; ".join(parts), failed or short or 2 * count > len(points)


def _is_asked(point: Point) -> bool:
    """Return whether a plain collective between devices was to be timed, or may have been."""
    able = capabilities_of(point.backend)
    plain_case = all(getattr(point, axis.name) == axis.default for axis in WORK)
    return (
        (plain_case and not (point.simulated or point.emulated))
        and point.size_bytes > 0
        and point.ranks > 1  # one rank sends nothing
        and able.device in (Device.GPU, Device.UNKNOWN)
        and point.mode == "streaming"
        and point.transport == DEFAULT
    )


def _why_unjudged(point: Point) -> str:
    """Why the time of ``point`` says nothing about links between devices; "" where it may."""
    if point.status is not Status.OK:
        return str(point.status.value).replace("_", " ")
    if doubts := sorted(UNJUDGED_FLAGS & {*point.flags}):
        return f"flagged {' and '.join(doubts)}"
    return "" if point.is_timed else "without a time"


def is_measurement(point: Point) -> bool:
    """Return whether a plain collective of all ranks was timed between devices, or may have been."""
    return _is_asked(point) and not _why_unjudged(point)


def _verdict(
    run: Run, subject: str, points: Sequence[Point]
) -> tuple[str, SpeedVerdict | None]:
    """The verdict on ``points`` of one collective, or the reason of having none."""
    first = points[0]
    request = request_of(run.manifest, first)
    try:
        system = recorded_system(run.manifest, first)
    except MachineError as error:
        # An import says itself why it could not tell the machine.
        notes = run.manifest.at("notes") if first.imported else ()
        reasons = [
            str(note).partition(f"{first.source}: no predictions: ")[2] for note in notes or ()
        ]
        why = next(filter(None, reasons), str(error))
        return why, None if isinstance(request, str) else _on_any(run, subject, points, request)
    if isinstance(request, str):
        return request, None
    if system.generation is Generation.ASCEND:
        return f"no times of {first.backend} on healthy systems are known", None
    judged = [
        point
        for point in points
        if point.predicted_seconds and point.predicted_low_80_seconds is not None
    ]
    if not judged:
        notes = run.manifest.at("unpriced")
        why = (
            str(notes[0])
            if isinstance(notes, list) and notes
            else "no prediction with an interval was made"
        )
        return why, None
    tables = list(grouped(judged, PLACED).values())
    regimes = _worst([table_regimes(system, table) for table in tables])
    return "", SpeedVerdict(
        subject,
        regimes,
        causes=_causes(run, system, request, judged, regimes),
        dips=dips_of(system, request, judged),
    )


PLACED = Key(("source_table", "in_place"))
"""What is judged by itself: in place, or out of place, of one table; what is slow there is slow."""

READINGS = {
    SpeedWord.NORMAL: "normal for",
    SpeedWord.LOW: "low for",
    SpeedWord.FAST: "too fast for",
    SpeedWord.SLOW: "slow for",
    SpeedWord.CANNOT_SAY: "nothing can be said for",
}
"""Words before the machines that a run may be of."""

MOST_MACHINES = 3
"""Machines that one word names."""


def _on_any(
    run: Run, subject: str, points: Sequence[Point], request: LibraryRequest
) -> SpeedVerdict | None:
    """A reading of ``points`` on each machine that they may be of; None where none can be read."""
    tables = list(grouped(points, PLACED).values())
    readings: dict[tuple[str, str], SpeedWord] = {}
    by_word: dict[SpeedWord, tuple[RegimeVerdict, Cluster]] = {}
    for machine, network, cluster in fitting_clusters(run.manifest, points[0]):
        priced = [priced_on(cluster, request, table) for table in tables]
        regimes = _worst([table_regimes(cluster.system, table) for table in priced if table])
        if regimes:
            word = gravest(regime.word for regime in regimes)
            # What cannot have been measured there was measured elsewhere.
            if any(regime.point.beats_bound for regime in regimes):
                word = SpeedWord.FAST
            readings[machine, network] = word
            # The figure that makes the word.
            by_word.setdefault(
                word,
                (next((each for each in regimes if each.word is word), regimes[0]), cluster),
            )
    if not {*readings.values()} - {SpeedWord.CANNOT_SAY}:
        return None
    mildest = next(word for word in READINGS if word in by_word)
    shown, cluster = by_word[mildest]
    every = [
        point for table in tables for point in priced_on(cluster, request, table, len(table))
    ]
    figure = shown.figure(shown.point.median_seconds or 0.0)
    parts = [f"{WORDS[shown.regime]} {figure} at {shown.point.size}"]
    for word, text in READINGS.items():
        fitting = [pair for pair, its_word in readings.items() if its_word is word]
        machines = [
            f"{machine} on {' or '.join(network for _, network in pairs)}".removesuffix(" on ")
            for machine, pairs in grouped(fitting, lambda pair: pair[0]).items()
        ]
        more = (
            f" and {len(machines) - MOST_MACHINES} more"
            if len(machines) > MOST_MACHINES
            else ""
        )
        parts += [f"{text} {', '.join(machines[:MOST_MACHINES])}{more}"] if machines else []
    options = ["--machine"] if len({machine for machine, _ in readings}) > 1 else []
    options += ["--network"] if any(network for _, network in readings) else []
    parts += [f"name it with {' and '.join(options)}"] if options else []
    named = ((" on ".join(filter(None, pair)), word) for pair, word in readings.items())
    dips = dips_of(cluster.system, request, every)
    return SpeedVerdict(subject, reason="; ".join(parts), readings=tuple(named), dips=dips)


def _worst(tables: Sequence[Sequence[RegimeVerdict]]) -> tuple[RegimeVerdict, ...]:
    """The gravest verdict on each regime, the largest sizes first; it says of how many tables it is the worst."""
    regimes = []
    for regime, _ in reversed(REGIMES):
        members = [each for table in tables for each in table if each.regime == regime]
        if members:
            word = gravest(each.word for each in members)
            worst = max(
                (each for each in members if each.word is word), key=lambda each: each.factor
            )
            if len(members) > 1 and any(each.word is not word for each in members):
                table = (
                    f"table {worst.point.source_table}, "
                    if len({m.point.source_table for m in members}) > 1
                    else ""
                )
                where = f"{table}{'in' if worst.point.in_place else 'out of'} place, the worst of {len(members)}"
                worst = replace(worst, reason="; ".join(filter(None, (worst.reason, where))))
            regimes.append(worst)
    return tuple(regimes)


def table_regimes(
    system: LibrarySystem, points: Sequence[Point], learned: Residuals | None = None
) -> tuple[RegimeVerdict, ...]:
    """Verdicts on the regimes of ``points``, of one table with predictions and intervals, the largest sizes first.

    Large messages are judged at their median and at the largest size, which is what people quote. learned: as of
    ``typicality``.
    """

    def placed(some: Sequence[Point]) -> dict[str, Typicality]:
        return typicality(
            system,
            [point.size_bytes for point in some],
            [point.predicted_seconds or 0.0 for point in some],
            [point.median_seconds or 0.0 for point in some],
            learned,
        )

    most = max(point.size_bytes for point in points)
    regimes = grouped(points, lambda point: regime_of(point.size_bytes))
    ends = {"large": [point for point in regimes.get("large", ()) if point.size_bytes == most]}
    typical, of_ends = (
        placed([point for members in chosen.values() for point in members])
        for chosen in (regimes, {**regimes, **ends})
    )
    verdicts = []
    for regime, _ in reversed(REGIMES):
        if members := regimes.get(regime):
            verdict = regime_verdict(regime, members, typical.get(regime))
            verdict = of_path(system, verdict)
            if end := ends.get(regime):
                at_end = of_path(system, regime_verdict(regime, end, of_ends.get(regime)))
                if at_end.word is not verdict.word is not gravest((at_end.word, verdict.word)):
                    verdict = replace(at_end, case_ids=verdict.case_ids)
            verdicts.append(verdict)
    return tuple(verdicts)


def of_path(system: LibrarySystem, verdict: RegimeVerdict) -> RegimeVerdict:
    """``verdict`` on GPUs that nothing but PCIe joins, by the path of their data.

    Through host memory boxes differ so much that a slow one is usual: LOW, with its place among them, from the
    factor on that is SLOW elsewhere. What is sent to all at once crawls where it crosses host bridges directly.
    """
    if not is_pcie_alone(system):
        return verdict
    collective = verdict.point.collective
    late = verdict.word in (SpeedWord.LOW, SpeedWord.SLOW)
    if system.path is PciePath.ACROSS and collective in SENT_TO_ALL and late:
        return replace(verdict, word=SpeedWord.CANNOT_SAY, reason=CRAWLING)
    if system.path in (PciePath.DIRECT, PciePath.ACROSS) or verdict.regime != "large":
        return verdict
    seconds, most = verdict.point.median_seconds, verdict.point.predicted_high_95_seconds
    usual = bool(seconds and most and seconds <= most)
    if verdict.factor >= GAPS["large"] and usual:
        verdict = replace(verdict, word=SpeedWord.LOW)
    if verdict.word not in (SpeedWord.LOW, SpeedWord.SLOW) or not verdict.point.busbw:
        return verdict
    share = 1e9 * verdict.point.busbw / system.intra_bytes_per_second
    through = "through host memory" if system.path is PciePath.HOST else "path not known"
    place = f"{through}, {share:.0%} of the link; {place_among_boxes(PciePath.HOST, share)}"
    if share < SLOW_SHARE:
        place += f"; measure again with {KNOBS_OF_HOST}"
    return replace(verdict, reason="; ".join(filter(None, (verdict.reason, place))))


SLOW_SHARE = 0.15
"""Of the link. Below it, on three boxes, copy engines (NCCL_SHM_USE_CUDA_MEMCPY=1) made 10.6 to 19.4 GB/s of 2.2 to
3.4; on a fourth, where 1.7 became 8.1, training hung then."""

SHM_BY_COPY_ENGINES = "NCCL_SHM_USE_CUDA_MEMCPY=1"
SHM_CAUTION = "on one of four boxes training then hung"
KNOBS_OF_HOST = (
    f"{SHM_BY_COPY_ENGINES} ({SHM_CAUTION}), with NCCL_P2P_LEVEL=SYS, "
    "and on AMD's processors with NPS4 or iommu=pt"
)

SENT_TO_ALL = ("all_to_all", "all_to_all_v", "scatter")
CRAWLING = (
    "directly across host bridges 1 to 2.4 GB/s were seen on two hosts where host memory gives 13 to 18; "
    "measure again with NCCL_P2P_LEVEL=PXB"
)
"""NVIDIA/nccl#1603, and another host with RTX PRO 6000."""


def _factor(point: Point) -> float:
    return (point.median_seconds or 0.0) / (point.predicted_seconds or 1.0)


def regime_verdict(
    regime: str, points: Sequence[Point], typical: Typicality | None
) -> RegimeVerdict:
    """The verdict on ``points``, which are of one regime and have predictions with intervals."""
    ordered = sorted(points, key=_factor)
    shown = ordered[(len(ordered) - 1) // 2]
    ratios, ids = (
        (_factor(shown), _factor(ordered[0])),
        frozenset(point.case_id for point in points),
    )
    verdict = RegimeVerdict(regime, SpeedWord.NORMAL, shown, *ratios, ids, typical)
    if impossible := next((point for point in points if point.beats_bound), None):
        verdict = replace(verdict, word=SpeedWord.CANNOT_SAY, point=impossible)
        bound = verdict.figure(impossible.bound_seconds or 0.0)
        return replace(verdict, reason=f"impossible: the machine's bound is {bound}")
    low, high = verdict.usual_seconds or (0.0, math.inf)
    seconds = shown.median_seconds or 0.0
    if low <= seconds <= high and not verdict.broken:
        return verdict
    if verdict.broken and seconds > high:
        return replace(verdict, word=SpeedWord.SLOW)
    if typical is None:
        reason = "too few healthy systems are known at these sizes"
        return replace(verdict, word=SpeedWord.CANNOT_SAY, reason=reason)
    of = plural(typical.systems, "healthy system")
    if seconds < low:
        reason = f"as fast: {typical.as_fast or 'none'} of {of}"
        word = SpeedWord.FAST if typical.unknown_speed else SpeedWord.NORMAL
        return replace(verdict, word=word, reason=reason)
    if typical.alike < FEWEST_ALIKE:
        name, ratio = typical.nearest
        reason = (
            f"healthy systems like it are known: {typical.alike or 'none'}; "
            f"the nearest, {name}, takes {format_ratio(ratio)} the predicted time"
        )
        return replace(verdict, word=SpeedWord.CANNOT_SAY, reason=reason)
    if verdict.broken or typical.slow:
        return replace(verdict, word=SpeedWord.SLOW)
    reason = f"as slow: {typical.as_slow or 'none'} of {of}"
    return replace(verdict, word=SpeedWord.LOW, reason=reason)


def _causes(
    run: Run,
    system: LibrarySystem,
    request: LibraryRequest,
    points: Sequence[Point],
    regimes: Sequence[RegimeVerdict],
) -> tuple[Cause, ...]:
    """Causes of slow regimes, by the rates at the largest sizes, which are told at the size that is shown."""
    if all(regime.word is not SpeedWord.SLOW for regime in regimes):
        return ()
    largest, *smaller = regimes
    # The last size is the one that a cause's rate is told at.
    members = [
        point
        for point in points
        if point.case_id in largest.case_ids and point is not largest.point
    ]
    members.append(largest.point)
    file = run.manifest.imported(largest.point.source)
    settings = {
        **run.manifest.mapping("environment", "variables"),
        **file.mapping("environment"),
    }
    signs = [f"{name}={value}" for name, value in settings.items()]
    signs += map(str, hints if isinstance(hints := file.at("hints"), list) else ())
    signs += dict.fromkeys(flag for point in points for flag in point.flags)
    return causes_of(
        system,
        sized(
            request,
            (member.size_bytes for member in members),
            members[-1].dtype,
            members[-1].in_place,
        ),
        [member.median_seconds or 0.0 for member in members],
        any(regime_of_size.word is SpeedWord.SLOW for regime_of_size in smaller)
        if smaller
        else None,
        "\n".join(signs),
        only_small=largest.word is not SpeedWord.SLOW,
        smaller=[
            (point.size_bytes, point.median_seconds or 0.0)
            for point in points
            if regime_of(point.size_bytes) == "middle" and point.case_id not in largest.case_ids
        ],
    )


def expected_from(verdicts: Sequence[SpeedVerdict]) -> str:
    """Return what expectations stand on, and how often they are wrong; "" where there are none."""
    regimes = [regime for verdict in verdicts for regime in verdict.regimes]
    typical = [regime.typical for regime in regimes if regime.typical is not None]
    if not typical:
        return ""
    # Fewer systems were measured at small sizes: what is said is of the regime that most are known of.
    best = max(typical, key=lambda at: (at.systems, at.alike))
    called, systems = false_alarms(
        next((path for path in PATHS.values() if path in best.origin), "")
    )
    return (
        f"Expected: the range of 80 % of healthy systems ({best.origin}). Tested by leaving each system "
        f"out: of {systems} healthy ones at most {called} ({percent(called / systems)}) was wrongly called slow."
    )
