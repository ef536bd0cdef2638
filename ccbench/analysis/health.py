"""From a run to a verdict: healthy, not healthy and what is to blame, or no verdict and why.

A pure function of what was measured. Slow things are found among their peers by the median absolute
deviation; a rank that is slow explains all of its pairs and groups, so those are not named besides.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from ccbench.analysis.pair_matrix import (
    MISS,
    PairMatrix,
    PairMiss,
    doubts_of,
    joined_by,
    pair_matrices,
    pair_misses,
)
from ccbench.analysis.slow_ranks import (
    GROSS,
    flagged_devices,
    high_outliers,
    relative_spread,
    slow_groups,
    starved_ranks,
    waited_for,
)
from ccbench.cases import MORE_ROUNDS, Status
from ccbench.collectives import COLLECTIVES
from ccbench.machine.flags import DEVICE_FAULTS
from ccbench.results import Point, Run
from ccbench.runner.rounds import NO_TEAM
from ccbench.topology.graph import Finding
from ccbench.units import format_ratio, format_seconds, format_size, plural

HEALTH = "health"
"""What a suite's key ``verdict`` says when its runs are to be judged."""

UNSTABLE_BETWEEN = 0.10
UNSTABLE_WITHIN = 0.25
"""Scaled deviation over the median, of the medians of rounds and of the samples of one round, above which a
case's timing is unstable: differences of a tenth could then not be seen."""

UNSTABLE_SECONDS = 1e-6
"""What a time may vary by however short it is: a few cache lines' way between two processors, which is longer
or shorter by where these and the buffers happen to be. It is a quarter of the shortest collectives."""

UNSTABLE_CASES = 0.25
"""Share of the cases that may be unstable before the whole run is."""

FEWEST_ROUNDS = 3

DOUBTED_CASES = 0.25
"""Share of the cases whose times may be in doubt before the verdict is."""

MOST_NAMED = 6

MOST_BLAMED = 3
"""Names of one kind in the first sentence."""

_UNTIMED = (Status.FAILED, Status.TIMED_OUT, Status.OUT_OF_MEMORY)


ADVICE = {
    "device": "drain the device and run its maker's diagnosis ('dcgmi diag -r 3')",
    "slow_rank": "look at that rank's device, its links, its processor and what else runs there",
    "slow_pair": "look at the path between the two ('ccbench topo' shows it): cable, port, switch, PCIe slot",
    "slow_group": "look at what its ranks alone share: a host, a switch, a NIC",
}


def _finding(kind: str, what: str, evidence: str) -> Finding:
    """One thing that is wrong; its devices are the rank, pair, group, device or case.

    kind: wrong_data, no_result, device, slow_rank, slow_pair, slow_group, unstable. evidence: one sentence
    without its full stop.
    """
    severity = "doubt" if kind == "unstable" else "problem"
    subject = ": ".join(part for part in (_title(kind).capitalize(), what) if part)
    return Finding(severity, kind, (what,) * bool(what), evidence, ADVICE.get(kind, ""), subject)


def _title(kind: str) -> str:
    return "unstable timing" if kind == "unstable" else kind.replace("_", " ")


@dataclass(frozen=True)
class HealthVerdict:
    """What is wrong, the worst first, and what was looked at.

    doubt: why nothing can be said, empty where something can.
    """

    findings: tuple[Finding, ...]
    evidence: tuple[str, ...]
    doubt: str = ""

    @property
    def word(self) -> str:
        """``NOT HEALTHY``, ``NO VERDICT`` or ``HEALTHY``."""
        if any(one.kind != "unstable" for one in self.findings):
            return "NOT HEALTHY"
        return "NO VERDICT" if self.doubt or self.findings else "HEALTHY"

    @property
    def exit_code(self) -> int:
        """0 healthy, 1 not healthy, 3 no verdict."""
        return {"HEALTHY": 0, "NOT HEALTHY": 1, "NO VERDICT": 3}[self.word]

    def lines(self) -> list[str]:
        """The verdict and what is to blame, a line for each finding, then the evidence."""
        reason = f" ({self.doubt})" if self.doubt else ""
        lines = [f"{self.word}: {_named(self.findings)}{reason}"]
        lines += [f"  {finding}" for finding in self.findings]
        return lines + [f"  looked at: {text}" for text in self.evidence]


def _named(findings: Sequence[Finding]) -> str:
    """Every kind of finding with the ranks, pairs, groups, devices or cases that it names."""
    names: dict[str, list[str]] = defaultdict(list)
    for one in findings:
        names[_title(one.kind)] += one.devices
    texts = [
        ": ".join([title, *[", ".join(named[:MOST_BLAMED])] * bool(named)])
        + " and more" * (len(named) > MOST_BLAMED)  # of very many, findings have the first only
        for title, named in names.items()
    ]
    return "; ".join(texts) or "nothing found wrong"


def wants_health(run: Run) -> bool:
    """Whether the run's suite asks for a verdict of health."""
    return bool(run.manifest.at("suite", "verdict") == HEALTH)


def health_of(run: Run) -> HealthVerdict:
    """The verdict about the machine that ``run`` was measured on."""
    points = run.points
    timed = [point for point in points if point.is_timed]
    matrices = pair_matrices(run)
    slow_ranks, pairs = _slow_pairs(matrices)
    late = _slow_ranks(slow_ranks, waited_for(timed), starved_ranks(timed))
    findings = [
        *_wrong(points), *_without_result(points), *_devices(points), *late, *pairs,
        *_slow_groups(run, timed, late), *_unstable(timed),
    ]  # fmt: skip
    doubt = ""
    if not timed:
        doubt = "no case gave a time"
    elif run.problems:
        doubt = f"{len(run.problems)} files could not be read, first {run.problems[0]}"
    elif any(point.status is Status.SKIPPED for point in points):
        doubt = "the run was stopped early"
    elif unfinished := sum(point.stop_reason in (MORE_ROUNDS, NO_TEAM) for point in points):
        doubt = f"the run was stopped early: {unfinished} of {len(points)} cases lack rounds"
    elif (planned := run.manifest.planned_cases) > len(points):
        doubt = f"the run was stopped early: {planned - len(points)} of {planned} cases were not reached"
    else:
        doubt = _doubt(timed)
    return HealthVerdict(tuple(findings), tuple(_evidence(points, timed, matrices)), doubt)


def _doubt(timed: Sequence[Point]) -> str:
    """Why times say little, where that holds for too many cases; simulated and imported ones always do."""
    if any(point.simulated for point in timed):
        return "times come from a model"
    doubts = Counter(flag for point in timed for flag in doubts_of(point))
    doubted = sum(bool(doubts_of(point)) for point in timed)
    if doubted <= DOUBTED_CASES * len(timed):
        return ""
    flags = ", ".join(flag for flag, _ in doubts.most_common(3))
    share = f"{doubted} of {len(timed)} cases"
    return f"times of {share} are flagged: {flags}; only wrong data and gross faults show"


def _wrong(points: Sequence[Point]) -> list[Finding]:
    wrong = [point for point in points if point.status is Status.WRONG]
    found = []
    for point in wrong[:MOST_NAMED]:
        rank = re.match(r"(rank \d+): ", point.detail)  # as verification says it
        what = f"{rank[1]} in {point.label}" if rank else point.label
        found.append(_finding("wrong_data", what, point.detail.removeprefix(rank[0] if rank else "")))
    if len(wrong) > MOST_NAMED:
        found.append(_finding("wrong_data", "", f"and {len(wrong) - MOST_NAMED} more cases"))
    return found


def _without_result(points: Sequence[Point]) -> list[Finding]:
    """Cases that failed or hung, by reason: the reason names the rank."""
    reasons: dict[tuple[str, str], list[Point]] = defaultdict(list)
    for point in points:
        if point.status in _UNTIMED:
            reasons[point.status.value, point.detail].append(point)
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    return [
        _finding("no_result", f"{members[0].label}{_others(len(members))}", f"{status}, {detail}")
        for (status, detail), members in ordered[:MOST_NAMED]
    ]


def _others(count: int) -> str:
    return f" and {count - 1} more" if count > 1 else ""


def _devices(points: Sequence[Point]) -> list[Finding]:
    """Devices with a fault while a case ran, each with how often."""
    cases = ((point.flags, point.device_readings) for point in points)
    return [
        _finding("device", device, f"{flag.replace('_', ' ')} in {plural(count, 'case')} of {len(points)}")
        for flag, device, count in flagged_devices(cases, DEVICE_FAULTS)
    ]


def _slow_ranks(*found: Mapping[int, str]) -> list[Finding]:
    """One finding for each rank, with all that speaks against it."""
    reasons = {rank: [one[rank] for one in found if rank in one] for one in found for rank in one}
    return [_finding("slow_rank", f"rank {rank}", "; ".join(reasons[rank])) for rank in sorted(reasons)]


def _slow_pairs(matrices: Sequence[PairMatrix]) -> tuple[dict[int, str], list[Finding]]:
    """Ranks all of whose pairs are slow, and the slow pairs without any such rank."""
    ranks: dict[int, str] = {}
    missed: dict[tuple[str, str], list[tuple[PairMatrix, PairMiss]]] = defaultdict(list)
    for matrix in (one for one in matrices if not (one.simulated or one.emulated)):
        cells = list(matrix.pairs())
        sound = [(source, target) for source, target in cells if not matrix.doubts[source][target]]
        doubted = len(cells) - len(sound) > DOUBTED_CASES * len(cells)
        scores = _rank_scores(matrix, cells if doubted else sound)
        for rank in high_outliers(scores, math.log(GROSS) if doubted else math.log1p(MISS)):
            ratio = format_ratio(_times_as_long(matrix, rank))
            text = f"its pairs take {ratio} as long as others ({_what(matrix)})"
            ranks[rank] = "; ".join(part for part in (ranks.get(rank, ""), text) if part)
        logs = [math.log(matrix.ratio(*cell)) for cell in cells]
        odd = {cells[place] for place in high_outliers(logs, math.log1p(MISS))}
        for miss in pair_misses(matrix):
            if (miss.source, miss.target) in odd:
                missed[matrix.backend, miss.name].append((matrix, miss))
    kept = [
        (name, seen)
        for (_, name), seen in missed.items()
        if not {seen[0][1].source, seen[0][1].target} & ranks.keys()
    ]
    kept.sort(key=lambda item: -max(miss.ratio for _, miss in item[1]))
    return ranks, [_finding("slow_pair", name, _pair_text(seen)) for name, seen in kept[:MOST_NAMED]]


def _pair_text(seen: Sequence[tuple[PairMatrix, PairMiss]]) -> str:
    return "; ".join(
        f"{miss.ratio:.2f} times the usual time of {miss.link_class or 'all pairs'} ({_what(matrix)})"
        for matrix, miss in seen
    )


def _what(matrix: PairMatrix) -> str:
    way = "both ways" if matrix.both else "one way"
    return f"{format_size(matrix.size_bytes)} {way}, {matrix.backend}"


def _rank_scores(matrix: PairMatrix, cells: Sequence[tuple[int, int]]) -> list[float]:
    """Of each rank the median, over its pairs in ``cells``, of the log of the time over the usual one."""
    logs: list[list[float]] = [[] for _ in range(matrix.ranks)]
    for source, target in cells:
        for rank in (source, target):
            logs[rank].append(math.log(matrix.ratio(source, target)))
    return [median(values) if values else 0.0 for values in logs]


def _times_as_long(matrix: PairMatrix, rank: int) -> float:
    """Median time of the pairs with ``rank`` over that of the pairs without it."""
    cells = list(matrix.pairs())
    with_it = [matrix.time(*cell) for cell in cells if rank in cell]
    without = [matrix.time(*cell) for cell in cells if rank not in cell]
    return median(with_it) / median(without or with_it)


def _slow_groups(run: Run, timed: Sequence[Point], named: Sequence[Finding]) -> list[Finding]:
    """Groups that took longer than their peers, but for those whose slow rank is named already."""
    slow_ranks = {rank for one in named for rank in one.devices if one.kind == "slow_rank"}
    return [
        _finding("slow_group", one.name, one.evidence)
        for one in slow_groups(timed, partial(joined_by, run))
        if not any(f"rank {rank}" in slow_ranks for rank in one.members)
    ]


def _unstable(timed: Sequence[Point]) -> list[Finding]:
    spreads = [(point, *spread) for point in timed if (spread := _spreads(point))]
    bad = [
        (point, between, within)
        for point, between, within in spreads
        if max(between / UNSTABLE_BETWEEN, within / UNSTABLE_WITHIN) > 1
        and max(between, within) * (point.median_seconds or 0.0) > UNSTABLE_SECONDS
    ]
    if not spreads or len(bad) <= UNSTABLE_CASES * len(spreads):
        return []
    point, between, within = max(bad, key=lambda one: one[1])
    text = (
        f"{len(bad)} of {len(spreads)} cases vary by more than {UNSTABLE_BETWEEN:.0%} between rounds or "
        f"{UNSTABLE_WITHIN:.0%} within one, and by more than {format_seconds(UNSTABLE_SECONDS)}, "
        f"worst {point.label} with {between:.0%} and {within:.0%}"
    )
    return [_finding("unstable", "", text)]


def _spreads(point: Point) -> tuple[float, float] | None:
    """Between the rounds' medians, and (the median of that) within a round; None of too few rounds."""
    rounds = [one_round.tolist() for one_round in point.rounds]
    if len(rounds) < FEWEST_ROUNDS:
        return None
    return relative_spread([median(one) for one in rounds]), median(map(relative_spread, rounds))


def _evidence(points: Sequence[Point], timed: Sequence[Point], matrices: Sequence[PairMatrix]) -> list[str]:
    """What the verdict stands on, in sentences."""
    checked = [point for point in timed if point.wrong_elements is not None]
    lines = []
    if checked:
        names = {point.collective for point in checked}
        moved = {point.size_bytes for point in checked if point.size_bytes}
        lines.append(
            f"{plural(len(checked), 'case')} with correct results: {len(names)} of {len(COLLECTIVES)} "
            f"collectives at {plural(len(moved), 'size')}, on "
            + ", ".join(sorted({point.backend for point in checked}))
        )
    lines += [_pairs_text(matrix) for matrix in matrices]
    spreads = [spread for point in timed if (spread := _spreads(point))]
    if spreads:
        between, within = (median(one[place] for one in spreads) for place in (0, 1))
        lines.append(
            f"timing of {plural(len(spreads), 'case')}: typically varies by {between:.1%} between rounds "
            f"and {within:.1%} within one"
        )
    watched = sum(bool(point.device_readings) for point in points)
    lines.append(
        f"clocks, heat and error counters of devices around {plural(watched, 'case')}"
        if watched
        else "no device was watched (clocks, heat and error counters need GPUs and their management library)"
    )
    others = Counter(flag for point in timed for flag in point.flags if flag not in DEVICE_FAULTS)
    if others:
        lines.append("flags: " + ", ".join(f"{flag} ({count})" for flag, count in others.most_common(4)))
    return lines


def _pairs_text(matrix: PairMatrix) -> str:
    times = [matrix.time(*pair) for pair in matrix.pairs()]
    if matrix.is_latency:
        span = f"{format_seconds(min(times))} to {format_seconds(max(times))}"
    else:
        slowest, fastest = (matrix.size_bytes / one / 1e9 for one in (max(times), min(times)))
        span = f"{slowest:.3g} to {fastest:.3g} GB/s"
    return f"{plural(len(times), 'pair')}, {_what(matrix)}: {span}"
