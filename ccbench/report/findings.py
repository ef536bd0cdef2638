"""What a person should look at in a run, each finding by one rule, and the verdict in a few sentences.

A rule is a pure function of a run's points; RULES lists those about single cases, ``findings_of_shape`` those
about whole curves. Emulated times say nothing, so that no rule about speed looks at them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from ccbench.analysis.health import ADVICE, health_of, wants_health
from ccbench.cases import Status
from ccbench.machine.flags import Flag, advice_on
from ccbench.report.figures_across import bias_text, error_and_bias, slowest_text
from ccbench.report.findings_of_shape import SHAPE_RULES
from ccbench.report.points import (
    EMULATION,
    LEFT_OUT,
    SIMULATED,
    imported_from,
    is_loopback,
    points_of,
    provenance,
)
from ccbench.results import Manifest, Point, Run
from ccbench.topology.graph import Finding
from ccbench.units import format_ratio, format_seconds, format_size, percent, plain, plural

SEVERITIES = ("problem", "doubt", "note")

UNSTABLE = 0.20
"""An interval wider than this share of its median leaves the first digit open."""

FAR = 0.30
"""A time this far from the prediction, as a share of it, is named."""

MOST_NAMED = 3
"""Cases that the evidence of one finding names, and findings that a screen shows; the page has all."""

LONGEST_EVIDENCE = 800

SMALLEST_FOR_BOUND = 64 * 1024
"""Bytes; below, the bound is the time of little more than one flag, and a share of it says nothing."""


def run_findings(run: Run, points: Sequence[Point] | None = None) -> tuple[Finding, ...]:
    """Everything found in ``run``, problems first; ``points`` are the run's, where they are at hand."""
    points = points_of(run) if points is None else points
    # Whom the verdict of health blames; wrong data and unstable times have findings of their own.
    health = health_of(run).findings if wants_health(run) else ()
    blamed = [one for one in health if one.kind in ADVICE]
    found = [*_empty(run, points), *blamed, *findings_of(points), *_machine(run.manifest)]
    if run.problems:
        unread = f"{plural(len(run.problems), 'file')} of the run cannot be read"
        found.append(
            _finding("problem", "unreadable", unread, "; ".join(run.problems), "see the files named")
        )
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def findings_of(points: Sequence[Point]) -> tuple[Finding, ...]:
    """What ``points`` of one run say, problems first, in each severity the gravest first."""
    points = [point for point in points if not point.baseline]
    found = [finding for rule in RULES for finding in rule(points)]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _finding(
    severity: str, kind: str, subject: str, evidence: str, advice: str, cases: int = 0
) -> Finding:  # fmt: skip
    return Finding(severity, kind, (), plain(evidence, LONGEST_EVIDENCE), advice, subject, cases)


def _empty(run: Run, points: Sequence[Point]) -> Iterator[Finding]:
    if not points and not run.problems:
        yield _finding(
            "problem", "empty", "The run holds no case",
            f"no case's file lies in {plain(run.path.name)}/cases",
            "run the suite; 'ccbench run SUITE --plan' lists what it would measure",
        )  # fmt: skip


def _machine(manifest: Manifest) -> Iterator[Finding]:
    """What the diagnosis of the machine found, as the manifest has it."""
    for entry in manifest.mappings("findings"):
        devices = entry.get("devices")
        named = ", ".join(plain(one) for one in devices[:8]) if isinstance(devices, (list, tuple)) else ""
        kind = plain(entry.get("kind", "machine"))
        yield _finding(
            "problem" if entry.get("severity") == "problem" else "note", kind,
            f"Machine: {kind.replace('_', ' ')}" + (f" ({named})" if named else ""),
            str(entry.get("evidence", "")), plain(entry.get("advice", ""), LONGEST_EVIDENCE),
        )  # fmt: skip


def _labelled(points: Sequence[Point]) -> Iterator[Finding]:
    label = provenance(points)
    if EMULATION in label:
        emulated = sum(point.emulated for point in points)
        yield _finding(
            "doubt", "emulation", f"{label}: GPU kernels ran on a CPU",
            f"{plural(emulated, 'case')}; the times are {LEFT_OUT}",
            Flag.EMULATION.advice, emulated,
        )  # fmt: skip
    elif label:
        modelled = sum(point.simulated for point in points)
        yield _finding(
            "doubt", "simulation", f"{label}: times were computed, not measured",
            f"{plural(modelled, 'case')} priced by a model",
            "use them to choose what to measure, not as a measurement", modelled,
        )  # fmt: skip
    if is_loopback(points):
        yield _finding(
            "doubt", "loopback", "Loopback: ranks shared a device or a host's loopback",
            "no link between devices was measured", Flag.LOOPBACK.advice,
            sum(is_loopback([point]) for point in points),
        )  # fmt: skip


def _wrong(points: Sequence[Point]) -> Iterator[Finding]:
    wrong = [point for point in points if point.status == Status.WRONG]
    if wrong:
        worst = max(wrong, key=lambda point: point.wrong_elements or 0)
        count = "" if worst.wrong_elements is None else f": {plural(worst.wrong_elements, 'wrong element')}"
        yield _finding(
            "problem", "wrong_results", f"WRONG RESULTS in {plural(len(wrong), 'case')}",
            f"worst: {worst.label}{count}. {worst.detail}".strip(),
            "trust no figure of this backend until the cause is known; "
            "repeat with another algorithm, protocol and cable path to find what they share", len(wrong),
        )  # fmt: skip


_ADVICE_OF_STATUS: Mapping[Status, tuple[str, str]] = {
    Status.TIMED_OUT: (
        "timed out or hung",
        "look at the rank named first; a hang in one size points to a transport, in all sizes to a host",
    ),
    Status.FAILED: ("failed", "read the reason; the rest of the run went on without"),
    Status.OUT_OF_MEMORY: ("ran out of memory", "use smaller sizes or fewer ranks a host"),
}


def _not_measured(points: Sequence[Point]) -> Iterator[Finding]:
    for status, (words, advice) in _ADVICE_OF_STATUS.items():
        failed = [point for point in points if point.status == status]
        if failed:
            reason = f": {failed[0].detail}" if failed[0].detail else ""
            yield _finding(
                "problem", status.value, f"{plural(len(failed), 'case')} {words}",
                f"first: {failed[0].label}{reason}", advice, len(failed),
            )  # fmt: skip
    refused = [point for point in points if point.status in (Status.UNSUPPORTED, Status.SKIPPED)]
    if refused:
        nothing = len(refused) == len(points)
        reasons = Counter(one.detail.rstrip(".") or one.status.value for one in refused)
        yield _finding(
            "problem" if nothing else "note", "not_run",
            "Nothing could be measured" if nothing else f"{plural(len(refused), 'case')} did not run",
            "; ".join(f"{reason} ({plural(count, 'case')})" for reason, count in reasons.most_common()),
            "'ccbench doctor' tells what is missing" if nothing else "nothing, where the reason is meant so",
            len(refused),
        )  # fmt: skip


def _beating(points: Sequence[Point]) -> Iterator[Finding]:
    """Cases faster than their bound (``Point.beats_bound``); one rank has none, emulation no time."""
    beating = [one for one in points if one.status == Status.OK and one.beats_bound and not one.emulated]
    beating.sort(key=lambda one: -(one.bound_share or 1.0))
    if beating:
        modelled = all(one.simulated for one in beating)
        yield _finding(
            "problem", "beats_bound", f"{plural(len(beating), 'case')} faster than the bound allows",
            _named([_beaten_text(one) for one in beating]),
            "the model contradicts itself; report it" if modelled else
            "the machine is not the one it was priced as, a switch reduces in the network, data stayed in a "
            "cache, or the clock is wrong; name the machine with --machine, or calibrate again", len(beating),
        )  # fmt: skip


def _beaten_text(point: Point) -> str:
    is_faster = (point.bound_share or 0.0) >= 1
    what = "beats" if is_faster else f"{percent(point.beaten_share or 0.0)} of its samples beat"
    bound = format_seconds(point.bound_seconds or 0.0)
    return f"{point.label}: {format_seconds(point.median_seconds or 0.0)} {what} the bound of {bound}"


def _named(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_NAMED
    return f"most: {'; '.join(texts[:MOST_NAMED])}" + (f"; and {more} more" if more > 0 else "")


def _far(points: Sequence[Point]) -> Iterator[Finding]:
    """Cases far from their prediction; simulated points stray from none, and one rank does nothing."""
    ratios = [
        (one.median_seconds / one.predicted_seconds, one)
        for one in points
        if one.status == Status.OK and one.median_seconds and one.predicted_seconds and one.group_ranks > 1
        if not (one.beats_bound or one.simulated or one.emulated)
    ]
    for severity, word, far in (
        ("doubt", "slower", [pair for pair in ratios if pair[0] > 1 + FAR]),
        ("note", "faster", [pair for pair in ratios if pair[0] < 1 - FAR]),
    ):
        if far:
            far.sort(key=lambda pair: -abs(math.log(pair[0])))
            middle = _times_text(median(ratio for ratio, _ in far))
            yield _finding(
                severity, f"{word}_than_predicted",
                f"{plural(len(far), 'case')} more than {percent(FAR)} {word} than predicted",
                f"{_named([_far_text(*pair) for pair in far])}; half of them {middle} or further off",
                "look for what these cases share: a size, an algorithm, a link ('ccbench topo'), a flag",
                len(far),
            )  # fmt: skip


def _times_text(ratio: float) -> str:
    return f"{format_ratio(ratio) if ratio >= 1 else f'{ratio:.0%} of'} the prediction"


def _far_text(ratio: float, point: Point) -> str:
    text = f"{point.label} took {format_seconds(point.median_seconds or 0.0)}, {_times_text(ratio)}"
    text += "" if point.trusted else f" (flagged: {point.flags[0]})"
    return text + (f", by the model {point.bottleneck} costs most" if point.bottleneck else "")


def _flagged(points: Sequence[Point]) -> Iterator[Finding]:
    ok = [point for point in points if point.status == Status.OK]
    flagged: dict[str, list[Point]] = defaultdict(list)
    for point in ok:
        for flag in point.flags:
            flagged[flag].append(point)
    for flag, members in sorted(flagged.items(), key=lambda item: (-len(item[1]), item[0])):
        if flag not in (Flag.LOOPBACK, Flag.EMULATION):  # those have findings of their own
            yield _finding(
                "doubt", flag,
                f"{len(members)} of {plural(len(ok), 'case')} flagged: {flag.replace('_', ' ')}",
                f"first: {members[0].label}", advice_on(flag), len(members),
            )  # fmt: skip


def _unstable(points: Sequence[Point]) -> Iterator[Finding]:
    wide = [(width, point) for point in points if (width := _relative_width(point)) > UNSTABLE]
    if wide:
        width, worst = max(wide, key=lambda item: item[0])
        measured = sum(point.status == Status.OK for point in points)
        yield _finding(
            "doubt", "unstable",
            f"{len(wide)} of {plural(measured, 'case')} unstable: interval wider than {percent(UNSTABLE)}",
            f"worst: {worst.label}, interval {percent(width)} of the median wide after "
            f"{plural(len(worst.samples_seconds), 'sample')}",
            "give the run more time, quiet the machine, lock clocks; small differences mean nothing here",
            len(wide),
        )  # fmt: skip


def _relative_width(point: Point) -> float:
    if point.emulated or not point.median_seconds or point.low_seconds is None or point.high_seconds is None:
        return 0.0
    return (point.high_seconds - point.low_seconds) / point.median_seconds


def _stragglers(points: Sequence[Point]) -> Iterator[Finding]:
    groups: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for point in points:
        timed = point.ranks > 1 and point.ranks in (len(point.rank_median_seconds), len(point.rank_waiting))
        if timed and point.median_seconds and not point.emulated:
            groups[point.backend, point.ranks, point.nodes].append(point)
    for (backend, ranks, _), members in sorted(groups.items()):
        text = slowest_text(members)
        if text.startswith("rank"):
            yield _finding(
                "doubt", "straggler", f"R{text[1:].partition(' slowest')[0]} is slower than the others",
                f"{text} ({backend}, {ranks} ranks)", ADVICE["slow_rank"], len(members),
            )  # fmt: skip


def _incomplete(points: Sequence[Point]) -> Iterator[Finding]:
    begun = [point for point in points if point.status == Status.OK and not point.complete]
    if begun:
        yield _finding(
            "doubt", "incomplete", f"{plural(len(begun), 'case')} not measured in as many rounds as planned",
            "the run ended early; drift over the run cannot be told apart from speed",
            "go on with 'ccbench run SUITE --resume DIR'", len(begun),
        )  # fmt: skip


Rule = Callable[[Sequence[Point]], Iterator[Finding]]

RULES: tuple[Rule, ...] = (
    _labelled, _wrong, _not_measured, _beating, _flagged, *SHAPE_RULES, _far, _unstable, _stragglers,
    _incomplete,
)  # fmt: skip
"""Of each severity the gravest first."""


def verdict_lines(run: Run) -> list[str]:
    """Who is to blame, what was measured, how near to model and bound, the first findings with advice."""
    told = [one for one in run_findings(run) if one.severity != "note" and one.kind not in ADVICE]
    lines = [*summary_lines(run), *map(str, told[:MOST_NAMED])]
    rest = plural(len(told) - MOST_NAMED, "finding")
    return lines + [f"... and {rest} more, in the report's page"] * (len(told) > MOST_NAMED)


def summary_lines(run: Run) -> list[str]:
    """The verdict without the findings."""
    points = points_of(run)
    return [*health_lines(run), measured_text(points), *closeness(points)]


def health_lines(run: Run) -> list[str]:
    """The verdict about the machine's health, of a suite that asks for it; who is to blame stands first."""
    return health_of(run).lines() if wants_health(run) else []


def sentences(points: Sequence[Point], findings: Sequence[Finding]) -> tuple[str, ...]:
    """What was measured, how near to model and bound, how many findings there are and which come first."""
    grave = [one for one in findings if one.severity != "note"]
    problems = sum(one.severity == "problem" for one in grave)
    counts = [plural(problems, "problem")] * bool(problems)
    counts += [plural(len(grave) - problems, "doubt")] * (len(grave) > problems)
    named = "; ".join(one.subject for one in grave[:MOST_NAMED])
    near = closeness(points)
    if not near and any(one.median_seconds and not one.emulated for one in points):
        near = [
            "There is neither a prediction nor a bound to lay beside it; name the machine with --machine."
        ]
    worst = (
        f"{' and '.join(counts)} found, first: {named}." if grave else "Nothing was found that needs a look."
    )
    return (measured_text(points), *near, worst)


def measured_text(points: Sequence[Point]) -> str:
    """How many cases gave a result, of what, and the most that was reached."""
    if not points:
        return "The run holds no case."
    ok = [point for point in points if point.status == Status.OK]
    label = provenance(points)
    collectives = ", ".join(sorted({point.collective for point in points}))
    backends = ", ".join(sorted({point.backend for point in points}))
    verb = {SIMULATED: "computed by a model", EMULATION: "emulated"}.get(label, "measured")
    verb = imported_from(points) or verb
    idle = Counter(one.status.value for one in points if one.status in (Status.UNSUPPORTED, Status.SKIPPED))
    rest = f" ({', '.join(f'{count} {status}' for status, count in sorted(idle.items()))})" if idle else ""
    text = f"{len(ok)} of {plural(len(points), 'case')} {verb}{rest}: {collectives} on {backends}."
    rated = [one for one in ok if one.busbw and one.group_ranks > 1 and not one.emulated]
    fastest = max(rated, key=lambda one: one.busbw or 0.0, default=None)
    if fastest is not None:
        text += f" Peak bus bandwidth {fastest.busbw:.4g} GB/s ({fastest.label})."
    return f"{label}: {text}" if label else text


def closeness(points: Sequence[Point]) -> list[str]:
    """How near cases come to the prediction, and large ones to the bound; a single rank has no bound."""
    lines = []
    priced = [point for point in points if point.prediction_error is not None]
    if priced:
        error, bias = error_and_bias(priced)
        text = f"Median error of the prediction {percent(error)}; {bias_text(bias)}"
        lines.append(f"{text} ({plural(len(priced), 'case')}).")
    shares = [
        one.bound_share
        for one in points
        if one.bound_share is not None and one.size_bytes >= SMALLEST_FOR_BOUND
    ]
    if shares:
        lines.append(
            f"Half of the {plural(len(shares), 'case')} of at least {format_size(SMALLEST_FOR_BOUND)} reach "
            f"{percent(median(shares))} of the bound or more (below that size it is one flag's time)."
        )
    return lines
