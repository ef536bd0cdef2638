"""The one list of rules about a run: what a person should look at, each finding by one rule.

A rule is a pure function from the points of one run to findings, and RULES lists them all: first those about
single cases (wrong data, a bound that was beaten, a flag), then those about curves and collectives (dips,
turns, defaults that lose). Emulated times say nothing about any device, so no rule about speed looks at them.

Rules about curves know no model. A difference counts where the intervals lie apart and the medians by
``CLEAR_SHARE``; points without an interval (imported ones) are judged by twice that share, since nothing is
known of their noise. Those between collectives are the self-consistent performance requirements of J. L.
Träff, W. D. Gropp and R. Thakur, "Self-Consistent MPI Performance Guidelines", IEEE TPDS 21 (2010).
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from ccbench.analysis.bits import bits_findings
from ccbench.analysis.health import ADVICE
from ccbench.analysis.machine_verdict import BLAMES, machine_verdict
from ccbench.analysis.speed_verdict import UNJUDGED_FLAGS, SpeedWord, speed_verdicts
from ccbench.cases.axes import OVERLAP
from ccbench.cases.measurement import Status
from ccbench.findings import Finding
from ccbench.flags import About, Flag, advice_on
from ccbench.results import Manifest, Point, Run
from ccbench.results.keys import WORK, grouped
from ccbench.stats import CHANCE, chance_of_most
from ccbench.units import format_ratio, format_seconds, format_size, percent, plain, plural

SEVERITIES = ("problem", "doubt", "note")

UNSTABLE = 0.20
"""An interval wider than this share of its median leaves the first digit open."""

PREDICTION_ERROR_LIMIT = 0.30
"""A time this far from the prediction, as a share of it, is named."""

DOUBTING = UNJUDGED_FLAGS | {
    flag.value for flag in Flag if flag.about in (About.LOAD, About.RUN)
}
"""Flags that put a time in doubt; others are of a device, or of what compares with cases that share them."""

CLEAR_SHARE = 0.05
"""Part by which medians of a curve must differ; clusters' own checks of dips use the same."""

CLEAR_RANK = 1.02
"""The slowest rank's median must exceed the next one's by this factor to decide a case."""

MOST_NAMED = 3
"""Cases that the evidence of one finding names, and findings that a screen shows; the page has all."""

LONGEST_EVIDENCE = 800

SIMULATED = "SIMULATED"
EMULATION = Flag.EMULATION.upper()

LEFT_OUT = "in no ranking, ratio, peak, crossover or prediction: times of an emulation say nothing about any device"
"""Words for the use of emulated times: none, and why."""

Points = Sequence[Point]


def run_findings(run: Run, points: Points) -> tuple[Finding, ...]:
    """Findings about ``run``, problems first; ``points`` are the run's, as a report names them."""
    findings = []
    if not points and not run.problems:
        findings.append(
            _finding(
                "problem",
                "empty",
                "The run holds no case",
                f"no case lies in {plain(run.path.name)}",
                "run the suite; 'ccbench run SUITE --plan' lists what it would measure",
            )
        )
    # Only whom the verdict of health blames: wrong data and unstable times have rules of their own here.
    verdict = machine_verdict(run)
    findings += [
        finding for finding in (verdict.findings if verdict else ()) if finding.kind in BLAMES
    ]
    verdicts = speed_verdicts(run)
    # What a verdict calls slow or fast as a whole is not said of its cases again, nor is it called fast where
    # cases beat their bound, which says more.
    judged = (
        regime
        for verdict in verdicts
        for regime in verdict.regimes
        if regime.word in (SpeedWord.SLOW, SpeedWord.FAST)
    )
    named = frozenset(case_id for regime in judged for case_id in regime.case_ids)
    of_cases = findings_of(points, named)
    beaten = any(finding.kind == "beats_bound" for finding in of_cases)
    own = f"--resume {shlex.quote(str(run.path))}"
    of_cases = tuple(
        replace(finding, advice=finding.advice.replace(_RESUME, own)) for finding in of_cases
    )
    spoken = (
        verdict.finding
        for verdict in verdicts
        if not (beaten and verdict.word is SpeedWord.FAST)
    )
    findings += [*filter(None, spoken), *of_cases, *machine_findings(run.manifest)]
    if run.problems:
        unread = (
            f"{plural(len(run.problems), 'file')} of the run cannot be read or were changed"
        )
        findings.append(
            _finding(
                "problem", "unreadable", unread, "; ".join(run.problems), "see the files named"
            )
        )
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def findings_of(points: Points, named: Collection[str] = ()) -> tuple[Finding, ...]:
    """Findings of RULES in ``points`` of one run, problems first, in each severity the gravest first.

    named: ids of cases whose distance from the prediction is said elsewhere.
    """
    points = [point for point in points if not point.baseline]
    untold = [point for point in points if point.case_id not in named]
    findings = [
        finding
        for rule in RULES
        for finding in rule(untold if rule is far_from_prediction else points)
    ]
    return tuple(sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity)))


def _finding(
    severity: str, kind: str, subject: str, evidence: str, advice: str, cases: int = 0
) -> Finding:
    return Finding(
        severity, kind, (), plain(evidence, LONGEST_EVIDENCE), advice, subject, cases
    )


def machine_findings(manifest: Manifest) -> Iterator[Finding]:
    """Findings of the machine's diagnosis, as the manifest has them."""
    for entry in manifest.mappings("findings"):
        devices = entry.get("devices")
        named = (
            ", ".join(plain(device) for device in devices[:8])
            if isinstance(devices, (list, tuple))
            else ""
        )
        kind = plain(entry.get("kind", "machine"))
        yield _finding(
            "problem" if entry.get("severity") == "problem" else "note",
            kind,
            f"The machine has {kind.replace('_', ' ')}" + (f" ({named})" if named else ""),
            str(entry.get("evidence", "")),
            plain(entry.get("advice", ""), LONGEST_EVIDENCE),
        )


# Rules about single cases.


def provenance(points: Iterable[Point]) -> str:
    """``SIMULATED`` or ``EMULATION`` when every point is, ``PARTLY ...`` when some are, or nothing.

    Points that were not even started do not count where there are others.
    """
    points = list(points)
    begun = [point for point in points if point.status is not Status.UNSUPPORTED]
    kinds = {
        EMULATION if point.emulated else SIMULATED if point.simulated else ""
        for point in begun or points
    }
    named = " AND ".join(sorted(kinds - {""}, reverse=True))
    return f"PARTLY {named}" if "" in kinds and named else named


def no_measurement(points: Points) -> Iterator[Finding]:
    """Times that say nothing about links between devices: computed, emulated, or over a loopback."""
    label = provenance(points)
    if EMULATION in label:
        emulated = sum(point.emulated for point in points)
        yield _finding(
            "doubt",
            "emulation",
            f"{label}, GPU kernels ran on a CPU",
            f"{plural(emulated, 'case')}; the times are {LEFT_OUT}",
            Flag.EMULATION.advice,
            emulated,
        )
    elif label:
        modelled = sum(point.simulated for point in points)
        yield _finding(
            "doubt",
            "simulation",
            f"{label}, times were computed, not measured",
            f"{plural(modelled, 'case')} priced by a model",
            "use them to choose what to measure, not as a measurement",
            modelled,
        )
    looped = sum(Flag.LOOPBACK in point.flags for point in points)
    if looped:
        yield _finding(
            "doubt",
            "loopback",
            "Ranks shared a device or a host's loopback",
            "no link between devices was measured",
            Flag.LOOPBACK.advice,
            looped,
        )


def wrong_results(points: Points) -> Iterator[Finding]:
    """Cases whose result was not what the collective says."""
    wrong = [point for point in points if point.status == Status.WRONG]
    if wrong:
        worst = max(wrong, key=lambda point: point.wrong_elements or 0)
        count = (
            ""
            if worst.wrong_elements is None
            else f": {plural(worst.wrong_elements, 'wrong element')}"
        )
        yield _finding(
            "problem",
            "wrong_results",
            f"WRONG RESULTS in {plural(len(wrong), 'case')}",
            f"worst: {worst.label}{count}. {worst.detail}".strip(),
            "trust no figure of this backend until the cause is known; "
            "repeat with another algorithm, protocol and cable path to find what they share",
            len(wrong),
        )


_ADVICE_OF_STATUS: Mapping[Status, tuple[str, str]] = {
    Status.TIMED_OUT: (
        "timed out or hung",
        "look at the rank named first; a hang in one size points to a transport, in all sizes to a host",
    ),
    Status.FAILED: ("failed", "read the reason; the rest of the run went on without"),
    Status.OUT_OF_MEMORY: ("ran out of memory", "use smaller sizes or fewer ranks a host"),
}


def not_measured(points: Points) -> Iterator[Finding]:
    """Cases that failed, by how, and those that were not run at all."""
    for status, (words, advice) in _ADVICE_OF_STATUS.items():
        failed = [point for point in points if point.status == status]
        if failed:
            reason = f": {failed[0].detail}" if failed[0].detail else ""
            yield _finding(
                "problem",
                status.value,
                f"{plural(len(failed), 'case')} {words}{reason}",
                f"first: {failed[0].label}",
                advice,
                len(failed),
            )
    refused = [
        point for point in points if point.status in (Status.UNSUPPORTED, Status.SKIPPED)
    ]
    if refused:
        # A run that measured nothing is a problem; a few cases that a backend refuses are often meant so.
        nothing = len(refused) == len(points)
        reasons = Counter(point.detail.rstrip(".") or point.status.value for point in refused)
        yield _finding(
            "problem" if nothing else "note",
            "not_run",
            "Nothing could be measured"
            if nothing
            else f"{plural(len(refused), 'case')} did not run",
            "; ".join(
                f"{reason} ({plural(count, 'case')})" for reason, count in reasons.most_common()
            ),
            "'ccbench doctor' tells what is missing"
            if nothing
            else "nothing, where the reason is meant so",
            len(refused),
        )


def _most(texts: Sequence[str]) -> str:
    """Evidence that names the first MOST_NAMED of ``texts``, which are in order."""
    more = len(texts) - MOST_NAMED
    return f"most: {'; '.join(texts[:MOST_NAMED])}" + (f"; and {more} more" if more > 0 else "")


def beats_bound(points: Points) -> Iterator[Finding]:
    """Cases faster than their bound (``Point.beats_bound``); one rank has none, emulation no time."""
    beating = [
        point
        for point in points
        if point.status == Status.OK and point.beats_bound and not point.emulated
    ]
    if not beating:
        return
    texts = []
    for point in sorted(beating, key=lambda point: -(point.bound_share or 1.0)):
        # The median may keep to the bound while too many samples do not.
        faster = (point.bound_share or 0.0) >= 1
        what = (
            "beats" if faster else f"{percent(point.beaten_share or 0.0)} of its samples beat"
        )
        bound = format_seconds(point.bound_seconds or 0.0)
        texts.append(
            f"{point.label}: {format_seconds(_seconds(point))} {what} the bound of {bound}"
        )
    yield _finding(
        "problem",
        "beats_bound",
        f"{plural(len(beating), 'case')} faster than the bound allows",
        _most(texts),
        "the model contradicts itself; report it"
        if all(point.simulated for point in beating)
        else "the machine is not the one it was priced as, a switch reduces in the network, data stayed in a "
        "cache, or the clock is wrong; name the machine with --machine, or fit its file again",
        len(beating),
    )


def far_from_prediction(points: Points) -> Iterator[Finding]:
    """Cases far from a prediction that has no range; one rank does nothing."""
    ratios = [
        (point.median_seconds / point.predicted_seconds, point)
        for point in points
        if point.status == Status.OK
        and point.median_seconds
        and point.predicted_seconds
        and point.predicted_low_80_seconds is None
        and point.group_ranks > 1
        if not (
            point.beats_bound
            or point.simulated
            or point.emulated
            or UNJUDGED_FLAGS & {*point.flags}
        )
    ]

    far = [pair for pair in ratios if pair[0] > 1 + PREDICTION_ERROR_LIMIT]
    if far:
        far.sort(key=lambda pair: -pair[0])
        texts = [
            f"{point.label} took {format_seconds(_seconds(point))}, {format_ratio(ratio)} the prediction"
            + (f" (flagged: {', '.join(point.flags)})" if not point.trusted else "")
            + (f", by the model {point.bottleneck} costs most" if point.bottleneck else "")
            for ratio, point in far
        ]
        middle = format_ratio(median(ratio for ratio, _ in far))
        yield _finding(
            "doubt",
            "slower_than_predicted",
            f"{plural(len(far), 'case')} more than {percent(PREDICTION_ERROR_LIMIT)} slower than predicted",
            f"{_most(texts)}; half of them {middle} the prediction or further off",
            "look for what these cases share: a size, an algorithm, a link ('ccbench topo'), a flag",
            len(far),
        )


def flagged_cases(points: Points) -> Iterator[Finding]:
    """Cases with a flag, the most frequent flag first; loopback and emulation have findings of their own."""
    ok = [point for point in points if point.status == Status.OK]
    # Other load comes of the load that is flagged as well: a second finding about that would say no more.
    said = [
        (flag, point)
        for point in ok
        for flag in point.flags
        if flag not in (Flag.OTHER_LOAD, Flag.STEAL) or Flag.CPU_CONTENTION not in point.flags
    ]
    flagged = grouped(said, lambda pair: pair[0])
    for flag, members in sorted(flagged.items(), key=lambda item: (-len(item[1]), item[0])):
        if flag not in (Flag.LOOPBACK, Flag.EMULATION):
            yield _finding(
                "doubt",
                flag,
                f"{len(members)} of {plural(len(ok), 'case')} flagged {flag.replace('_', ' ')}",
                (f"first: {members[0][1].label}" if len(members) < len(ok) else ""),
                advice_on(flag),
                len(members),
            )


def unstable(points: Points) -> Iterator[Finding]:
    """Cases whose interval is too wide to tell a difference."""
    wide = []
    for point in points:
        low, high = point.low_seconds, point.high_seconds
        if point.median_seconds and low is not None and high is not None and not point.emulated:
            width = (high - low) / point.median_seconds
            wide += [(width, point)] if width > UNSTABLE else []
    if wide:
        width, worst = max(wide, key=lambda item: item[0])
        measured = sum(point.status == Status.OK for point in points)
        yield _finding(
            "doubt",
            "unstable",
            f"{len(wide)} of {plural(measured, 'case')} unstable, their interval wider than {percent(UNSTABLE)}",
            f"worst: {worst.label}, interval {percent(width)} of the median wide after "
            f"{plural(len(worst.samples_seconds), 'sample')}",
            "give the run more time, quiet the machine, lock clocks; small differences mean nothing here",
            len(wide),
        )


def teams_of(points: Points) -> dict[tuple[str, int, int], list[Point]]:
    """(backend, ranks, nodes) -> timed cases that tell of each rank how long it took or waited."""
    candidates = (
        point
        for point in points
        if point.ranks > 1
        and point.ranks in (len(point.rank_median_seconds), len(point.rank_waiting))
        and point.median_seconds
        # Of a pair the other ranks do nothing, so that none of them can be late.
        and not (point.emulated or point.pair)
    )
    teams = grouped(candidates, lambda point: (point.backend, point.ranks, point.nodes))
    return dict(sorted(teams.items()))


def slowest_rank(points: Points) -> tuple[int | None, str]:
    """(rank, words) of the slowest rank of one team; None where no rank stands out from the others.

    One does when ranks that are all alike would hardly give one of them so many cases (binomial tail, times
    the number of ranks), and when no other rank is slowest half as often.
    """
    decided = []
    for point in points:
        rank = point.slowest_rank
        if rank is not None and len(point.rank_waiting) != point.ranks:
            # Ranks of a collective end together: medians decide only where they clearly differ.
            second, most = sorted(point.rank_median_seconds)[-2:]
            rank = rank if most >= CLEAR_RANK * second else None
        decided += [] if rank is None else [rank]
    counts = sorted(Counter(decided).items(), key=lambda item: (-item[1], item[0]))
    rank, times = counts[0] if counts else (None, 0)
    second_times = counts[1][1] if len(counts) > 1 else 0
    by_chance = chance_of_most(times, len(decided), points[0].ranks) if counts else 1.0
    if by_chance > CHANCE or 2 * second_times > times:
        return (
            None,
            f"no rank stands out ({len(decided)} of {plural(len(points), 'case')} decided)",
        )
    return rank, f"rank {rank} slowest in {times} of {plural(len(decided), 'decided case')}"


def stragglers(points: Points) -> Iterator[Finding]:
    """Ranks that are slower than the others of their team."""
    for (backend, ranks, _), members in teams_of(points).items():
        rank, text = slowest_rank(members)
        if rank is not None:
            yield _finding(
                "doubt",
                "straggler",
                f"Rank {rank} is slower than the others",
                f"{text} ({backend}, {ranks} ranks)",
                ADVICE["slow_rank"],
                len(members),
            )


_RESUME = "--resume RUN"
"""Of a run that is not known; rules see points alone."""


def incomplete(points: Points) -> Iterator[Finding]:
    """Cases of a run that ended early."""
    begun = [point for point in points if point.status == Status.OK and not point.complete]
    if begun:
        yield _finding(
            "doubt",
            "incomplete",
            f"{plural(len(begun), 'case')} not measured in as many rounds as planned",
            "the run ended early; drift over the run cannot be told apart from speed",
            f"go on with the same command and {_RESUME}",
            len(begun),
        )


# Rules about curves and between collectives.


def _judged(points: Points) -> list[Point]:
    """Cases with a time that follows rules; behind a computation it is that of both, which follows none.

    A time that a flag puts in doubt is the basis of no advice.
    """
    return [
        point
        for point in points
        if point.median_seconds and point.size_bytes > 0 and point.group_ranks > 1
        if not (
            point.emulated
            or point.baseline
            or point.mode == OVERLAP
            or DOUBTING & {*point.flags}
        )
    ]


def _seconds(point: Point) -> float:
    return point.median_seconds or 0.0


def _clearly_slower(point: Point, faster: Point) -> bool:
    """True if ``point`` takes longer than ``faster``, beyond noise and CLEAR_SHARE."""
    low = point.low_seconds if point.low_seconds is not None else _seconds(point)
    high = faster.high_seconds if faster.high_seconds is not None else _seconds(faster)
    return low > high and _seconds(point) > (1 + CLEAR_SHARE) * _seconds(faster)


_WORK = WORK.beside("run", "simulated", "transport")


def _is_forced(point: Point) -> bool:
    return point.algorithm != "default" or point.protocol != "default" or bool(point.channels)


def default_loses(points: Points) -> Iterator[Finding]:
    """The library's own choice against algorithms that were asked for, of the same work."""
    lost: list[tuple[float, Point, Point]] = []
    for members in grouped(_judged(points), _WORK.beside("registration", "variant")).values():
        best = min(filter(_is_forced, members), key=_seconds, default=None)
        lost += [
            (_seconds(default) / _seconds(best), default, best)
            for default in members
            if best and not _is_forced(default) and _clearly_slower(default, best)
        ]
    work = grouped(lost, lambda case: (case[1].backend, case[1].collective))
    for (backend, collective), cases in sorted(work.items()):
        ratio, default, best = max(cases, key=lambda case: case[0])
        words = " ".join(
            [best.algorithm] + ([best.protocol] if best.protocol != "default" else [])
        )
        yield _finding(
            "doubt",
            "default_loses",
            f"{backend}'s choice for {collective} loses at {plural(len(cases), 'size')}",
            f"most: {default.label} takes {format_seconds(_seconds(default))}, {format_ratio(ratio)} {words}",
            f"force {words} around {format_size(default.size_bytes)}, or tune the choice",
            len(cases),
        )


Rule = Callable[[Points], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    no_measurement,
    wrong_results,
    bits_findings,
    not_measured,
    beats_bound,
    flagged_cases,
    default_loses,
    far_from_prediction,
    unstable,
    stragglers,
    incomplete,
)
"""Of each severity the gravest first."""
