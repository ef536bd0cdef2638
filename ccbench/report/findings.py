"""What a person should look at in a run: each finding with its evidence and what to do about it.

Pure functions of points; what measured curves say about themselves is in ``findings_of_shape``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ccbench.analysis.health import ADVICE, health_of, wants_health
from ccbench.cases import Status
from ccbench.machine.flags import Flag, advice_on
from ccbench.report.figures_across import slowest_text
from ccbench.report.findings_of_shape import shape_findings
from ccbench.report.misses import FAR, misses
from ccbench.report.points import EMULATION, LEFT_OUT, is_loopback, points_of, provenance
from ccbench.report.run_finding import SEVERITIES, RunFinding
from ccbench.report.text import percent, plural
from ccbench.results import Manifest, Point, Run
from ccbench.units import format_ratio, format_seconds, plain

UNSTABLE = 0.20
"""An interval wider than this share of its median leaves the first digit open."""

LONGEST_EVIDENCE = 600

BLAMED = "blamed"
"""Kind of what the verdict of health names."""


def run_findings(run: Run, points: Sequence[Point] | None = None) -> tuple[RunFinding, ...]:
    """Everything found in ``run``, problems first; ``points`` are the run's, where they are at hand."""
    points = points_of(run) if points is None else points
    found = [*_empty(run, points), *_blamed(run), *findings_of(points), *_machine(run.manifest)]
    if run.problems:
        unread = f"{plural(len(run.problems), 'file')} of the run cannot be read"
        seen = _cut("; ".join(run.problems))
        found.append(RunFinding("problem", "unreadable", unread, seen, "see the files named"))
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _blamed(run: Run) -> Iterator[RunFinding]:
    """Whom the verdict of health blames; wrong data and unstable times have findings of their own."""
    for one in health_of(run).findings if wants_health(run) else ():
        if one.kind in ADVICE:
            subject = f"{one.title.capitalize()}: {one.what}"
            yield RunFinding("problem", BLAMED, subject, _cut(one.evidence), ADVICE[one.kind])


def _empty(run: Run, points: Sequence[Point]) -> Iterator[RunFinding]:
    if not points and not run.problems:
        yield RunFinding(
            "problem", "empty", "The run holds no case",
            f"no case's file lies in {plain(run.path.name)}/cases",
            "run the suite; 'ccbench run SUITE --plan' lists what it would measure",
        )  # fmt: skip


def findings_of(points: Sequence[Point]) -> tuple[RunFinding, ...]:
    """What ``points`` of one run say, problems first, in each severity the gravest first."""
    points = [point for point in points if not point.baseline]
    found = [
        *_labelled(points),
        *_wrong(points),
        *_not_measured(points),
        *_beating(points),
        *_flagged(points),
        *shape_findings(points),
        *_far(points),
        *_unstable(points),
        *_stragglers(points),
        *_incomplete(points),
    ]
    return tuple(sorted(found, key=lambda one: SEVERITIES.index(one.severity)))


def _labelled(points: Sequence[Point]) -> Iterator[RunFinding]:
    label = provenance(points)
    if EMULATION in label:
        emulated = sum(point.emulated for point in points)
        yield RunFinding(
            "doubt", "emulation", f"{label}: GPU kernels ran on a CPU",
            f"{plural(emulated, 'case')}; the times are {LEFT_OUT}",
            Flag.EMULATION.advice, emulated,
        )  # fmt: skip
    elif label:
        modelled = sum(point.simulated for point in points)
        yield RunFinding(
            "doubt", "simulation", f"{label}: times were computed, not measured",
            f"{plural(modelled, 'case')} priced by a model",
            "use them to choose what to measure, not as a measurement", modelled,
        )  # fmt: skip
    if is_loopback(points):
        yield RunFinding(
            "doubt", "loopback", "Loopback: ranks shared a device or a host's loopback",
            "no link between devices was measured", Flag.LOOPBACK.advice,
            sum(is_loopback([point]) for point in points),
        )  # fmt: skip


def _wrong(points: Sequence[Point]) -> Iterator[RunFinding]:
    wrong = [point for point in points if point.status == Status.WRONG]
    if wrong:
        worst = max(wrong, key=lambda point: point.wrong_elements or 0)
        count = "" if worst.wrong_elements is None else f": {plural(worst.wrong_elements, 'wrong element')}"
        yield RunFinding(
            "problem", "wrong_results", f"WRONG RESULTS in {plural(len(wrong), 'case')}",
            _cut(f"worst: {worst.label}{count}. {worst.detail}".strip()),
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


def _not_measured(points: Sequence[Point]) -> Iterator[RunFinding]:
    for status, (words, advice) in _ADVICE_OF_STATUS.items():
        failed = [point for point in points if point.status == status]
        if failed:
            reason = f": {failed[0].detail}" if failed[0].detail else ""
            yield RunFinding(
                "problem", status.value, f"{plural(len(failed), 'case')} {words}",
                _cut(f"first: {failed[0].label}{reason}"), advice, len(failed),
            )  # fmt: skip
    refused = [point for point in points if point.status in (Status.UNSUPPORTED, Status.SKIPPED)]
    if refused:
        nothing = len(refused) == len(points)
        reasons = Counter(one.detail.rstrip(".") or one.status.value for one in refused)
        yield RunFinding(
            "problem" if nothing else "note", "not_run",
            "Nothing could be measured" if nothing else f"{plural(len(refused), 'case')} did not run",
            _cut("; ".join(f"{reason} ({plural(count, 'case')})" for reason, count in reasons.most_common())),
            "'ccbench doctor' tells what is missing" if nothing else "nothing, where the reason is meant so",
            len(refused),
        )  # fmt: skip


def _beating(points: Sequence[Point]) -> Iterator[RunFinding]:
    beating = [miss for miss in misses(points) if miss.beats_bound]
    if beating:
        modelled = all(miss.point.simulated for miss in beating)
        yield RunFinding(
            "problem", "beats_bound", f"{plural(len(beating), 'case')} faster than the bound allows",
            f"most: {beating[0]}",
            "the model contradicts itself; report it" if modelled else
            "the machine is not the one it was priced as, a switch reduces in the network, data stayed in a "
            "cache, or the clock is wrong; name the machine with --machine, or calibrate again", len(beating),
        )  # fmt: skip


def _flagged(points: Sequence[Point]) -> Iterator[RunFinding]:
    ok = [point for point in points if point.status == Status.OK]
    flagged: dict[str, list[Point]] = defaultdict(list)
    for point in ok:
        for flag in point.flags:
            flagged[flag].append(point)
    for flag, members in sorted(flagged.items(), key=lambda item: (-len(item[1]), item[0])):
        if flag in (Flag.LOOPBACK, Flag.EMULATION):
            continue  # told by themselves
        yield RunFinding(
            "doubt", flag, f"{len(members)} of {plural(len(ok), 'case')} flagged: {flag.replace('_', ' ')}",
            f"first: {members[0].label}",
            advice_on(flag), len(members),
        )  # fmt: skip


def _far(points: Sequence[Point]) -> Iterator[RunFinding]:
    slower = [miss for miss in misses(points) if not miss.beats_bound and miss.ratio > 1]
    if slower:
        worst = slower[0]
        point = worst.point
        where = f"; by the model {point.bottleneck} costs most" if point.bottleneck else ""
        yield RunFinding(
            "doubt", "slower_than_predicted",
            f"{plural(len(slower), 'case')} more than {percent(FAR)} slower than predicted",
            f"worst: {point.label} took {format_seconds(point.median_seconds or 0.0)}, "
            f"{format_ratio(worst.ratio)} the prediction{where}; half of them "
            f"{format_ratio(median(one.ratio for one in slower))} or more",
            "look for what these cases share: a size, an algorithm, a link ('ccbench topo'), a flag",
            len(slower),
        )  # fmt: skip


def _unstable(points: Sequence[Point]) -> Iterator[RunFinding]:
    wide = [(width, point) for point in points if (width := _relative_width(point)) > UNSTABLE]
    if wide:
        width, worst = max(wide, key=lambda item: item[0])
        measured = sum(point.status == Status.OK for point in points)
        yield RunFinding(
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


def _stragglers(points: Sequence[Point]) -> Iterator[RunFinding]:
    groups: dict[tuple[str, int, int], list[Point]] = defaultdict(list)
    for point in points:
        timed = point.ranks > 1 and point.ranks in (len(point.rank_median_seconds), len(point.rank_waiting))
        if timed and point.median_seconds and not point.emulated:
            groups[point.backend, point.ranks, point.nodes].append(point)
    for (backend, ranks, _), members in sorted(groups.items()):
        text = slowest_text(members)
        if text.startswith("rank"):
            yield RunFinding(
                "doubt", "straggler", f"R{text[1:].partition(' slowest')[0]} is slower than the others",
                f"{text} ({backend}, {ranks} ranks)", ADVICE["slow_rank"], len(members),
            )  # fmt: skip


def _incomplete(points: Sequence[Point]) -> Iterator[RunFinding]:
    begun = [point for point in points if point.status == Status.OK and not point.complete]
    if begun:
        yield RunFinding(
            "doubt", "incomplete", f"{plural(len(begun), 'case')} not visited as often as planned",
            "the run ended early; drift over the run cannot be told apart from speed",
            "go on with 'ccbench run SUITE --resume DIR'", len(begun),
        )  # fmt: skip


def _machine(manifest: Manifest) -> Iterator[RunFinding]:
    """What the diagnosis of the machine found, as the manifest has it."""
    for entry in manifest.mappings("findings"):
        devices = entry.get("devices")
        named = ", ".join(plain(one) for one in devices[:8]) if isinstance(devices, (list, tuple)) else ""
        kind = plain(entry.get("kind", "machine"))
        yield RunFinding(
            "problem" if entry.get("severity") == "problem" else "note", kind,
            f"Machine: {kind.replace('_', ' ')}" + (f" ({named})" if named else ""),
            plain(entry.get("evidence", ""), LONGEST_EVIDENCE),
            plain(entry.get("advice", ""), LONGEST_EVIDENCE),
        )  # fmt: skip


def _cut(text: str) -> str:
    return plain(text, LONGEST_EVIDENCE)
