"""From a run to a verdict: healthy, not healthy and what is to blame, or no verdict and why.

A pure function of what was measured. Slow things are found among their peers by the median absolute
deviation; a rank that is slow explains all of its pairs and groups, so those are not named besides.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from ccbench.analysis.health_verdict import HealthVerdict, finding_of, title
from ccbench.analysis.pair_matrix import (
    MISS,
    PairMatrix,
    doubts_of,
    joined_by,
    pair_matrices,
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
from ccbench.cases.measurement import FAILURES, MORE_ROUNDS, NO_TEAM, Status
from ccbench.collectives import COLLECTIVES
from ccbench.findings import Finding
from ccbench.flags import DEVICE_FAULTS
from ccbench.results import Point, Run
from ccbench.results.keys import grouped
from ccbench.units import format_ratio, format_seconds, plural

if TYPE_CHECKING:
    import pandas as pd

HEALTH = "health"
"""Value of a suite's key ``verdict`` when its runs are to be judged."""

UNSTABLE_BETWEEN = 0.10
UNSTABLE_WITHIN = 0.25
"""Scaled deviation over the median, of the medians of rounds and of the samples of one round, above which a
case's timing is unstable: differences of a tenth could then not be seen."""

UNSTABLE_SECONDS = 1e-6
"""Seconds that a time may vary by however short it is: a few cache lines' way between two processors, which
is longer or shorter by where these and the buffers happen to be. It is a quarter of the shortest
collectives."""

UNSTABLE_CASES = 0.25
"""Share of the cases that may be unstable before the whole run is."""

FEWEST_ROUNDS = 3

DOUBTED_CASES = 0.25
"""Share of the cases whose times may be in doubt before the verdict is."""

MOST_NAMED = 6


ADVICE = {
    "device": "drain the device and run its maker's diagnosis ('dcgmi diag -r 3')",
    "slow_rank": "look at that rank's device, its links, its processor and what else runs there",
    "slow_pair": "look at the path between the two ('ccbench topo' shows it): cable, port, switch, PCIe slot",
    "slow_group": "look at what its ranks alone share: a host, a switch, a NIC",
}

Spread = tuple[Point, float, float]
"""A case, its spread between the rounds' medians, and (the median of that) within a round."""


def _finding(kind: str, what: str, evidence: str) -> Finding:
    return finding_of(kind, title(kind), what, evidence, ADVICE.get(kind, ""))


def health_of(run: Run) -> HealthVerdict:
    """The verdict about the machine that ``run`` was measured on."""
    points = run.points
    timed = [point for point in points if point.is_timed]
    matrices = pair_matrices(run)
    findings = _of_cases(points)
    # One finding for each rank, with all that speaks against it.
    slow_by_pairs, pairs = _slow_pairs(matrices)
    said = [*slow_by_pairs, *waited_for(timed), *starved_ranks(timed)]
    slow = grouped(sorted(said, key=lambda row: row[0]), lambda row: row[0])
    for rank, reasons in slow.items():
        text = "; ".join(reason for _, reason in reasons)
        findings.append(_finding("slow_rank", f"rank {rank}", text))
    findings += pairs
    # A rank that is slow explains its groups.
    for group in slow_groups(timed, partial(joined_by, run)):
        if not slow.keys() & {*group.members}:
            findings.append(_finding("slow_group", group.name, group.evidence))
    spreads = []
    for point in timed:
        rounds = [one_round.tolist() for one_round in point.rounds]
        if len(rounds) >= FEWEST_ROUNDS:
            between = relative_spread([median(samples) for samples in rounds])
            spreads.append((point, between, median(map(relative_spread, rounds))))
    bad = [
        (between, within, point.label)
        for point, between, within in spreads
        if max(between / UNSTABLE_BETWEEN, within / UNSTABLE_WITHIN) > 1
        and max(between, within) * (point.median_seconds or 0.0) > UNSTABLE_SECONDS
    ]
    if spreads and len(bad) > UNSTABLE_CASES * len(spreads):
        between, within, label = max(bad, key=lambda spread: spread[0])
        text = (
            f"{len(bad)} of {len(spreads)} cases vary by more than {UNSTABLE_BETWEEN:.0%} between rounds or "
            f"{UNSTABLE_WITHIN:.0%} within one, and by more than {format_seconds(UNSTABLE_SECONDS)}, "
            f"worst {label} with {between:.0%} and {within:.0%}"
        )
        findings.append(_finding("unstable", "", text))
    evidence = _evidence(points, timed, matrices, spreads)
    return HealthVerdict(tuple(findings), tuple(evidence), _doubt(run, timed))


def _doubt(run: Run, timed: Sequence[Point]) -> str:
    """A reason why nothing can be said of the machine; empty without one."""
    points = run.points
    if not timed:
        return "no case gave a time"
    if run.problems:
        return f"{len(run.problems)} files could not be read, first {run.problems[0]}"
    if any(point.status is Status.SKIPPED for point in points):
        return "the run was stopped early"
    if unfinished := sum(point.stop_reason in (MORE_ROUNDS, NO_TEAM) for point in points):
        return f"the run was stopped early: {unfinished} of {len(points)} cases lack rounds"
    if (planned := run.manifest.planned_cases) > len(points):
        return f"the run was stopped early: {planned - len(points)} of {planned} cases were not reached"
    # Simulated times say nothing of the machine, flagged ones little.
    if any(point.simulated for point in timed):
        return "times come from a model"
    doubted = sum(bool(doubts_of(point)) for point in timed)
    if doubted <= DOUBTED_CASES * len(timed):
        return ""
    doubts = Counter(flag for point in timed for flag in doubts_of(point))
    flags = ", ".join(flag for flag, _ in doubts.most_common(3))
    share = f"{doubted} of {len(timed)} cases"
    return f"times of {share} are flagged: {flags}; only wrong data and gross faults show"


def _of_cases(points: Sequence[Point]) -> list[Finding]:
    """Wrong data, cases without a result, and devices with a fault while a case ran."""
    findings = []
    wrong = [point for point in points if point.status is Status.WRONG]
    for point in wrong[:MOST_NAMED]:
        rank = re.match(r"(rank \d+): ", point.detail)  # as verification says it
        what = f"{rank[1]} in {point.label}" if rank else point.label
        findings.append(
            _finding("wrong_data", what, point.detail.removeprefix(rank[0] if rank else ""))
        )
    if len(wrong) > MOST_NAMED:
        findings.append(
            _finding("wrong_data", "", f"and {plural(len(wrong) - MOST_NAMED, 'more case')}")
        )
    # Cases that failed or hung, by reason: the reason names the rank.
    failed = (point for point in points if point.status in FAILURES)
    reasons = grouped(failed, lambda point: (point.status.value, point.detail))
    ordered = sorted(reasons.items(), key=lambda item: -len(item[1]))
    for (status, detail), members in ordered[:MOST_NAMED]:
        more = f" and {len(members) - 1} more" if len(members) > 1 else ""
        findings.append(
            _finding("no_result", f"{members[0].label}{more}", f"{status}, {detail}")
        )
    cases = ((point.flags, point.device_readings) for point in points)
    for flag, device, count in flagged_devices(cases, DEVICE_FAULTS):
        text = f"{flag.replace('_', ' ')} in {plural(count, 'case')} of {len(points)}"
        findings.append(_finding("device", device, text))
    return findings


def _slow_pairs(matrices: Sequence[PairMatrix]) -> tuple[list[tuple[int, str]], list[Finding]]:
    """Ranks all of whose pairs are slow, with evidence, and the slow pairs without any such rank."""
    ranks: list[tuple[int, str]] = []
    missed: list[tuple[str, dict[Any, Any], str]] = []
    for matrix in (matrix for matrix in matrices if matrix.is_measured):
        cells, count = matrix.cells, matrix.first.ranks
        sound = cells[cells.doubts == ""]
        doubted = len(cells) - len(sound) > DOUBTED_CASES * len(cells)
        # Of each rank the median, over its pairs, of the log of the time over the usual one.
        judged = cells if doubted else sound
        logs = [_of_rank(judged, rank).ratio.map(math.log) for rank in range(count)]
        scores = [float(of_rank.median()) if len(of_rank) else 0.0 for of_rank in logs]
        for rank in high_outliers(scores, math.log(GROSS) if doubted else math.log1p(MISS)):
            with_it = _of_rank(cells, rank)
            without = cells.drop(with_it.index)
            others = without if len(without) else with_it
            ratio = format_ratio(with_it.seconds.median() / others.seconds.median())
            text = f"its pairs take {ratio} as long as others ({_what(matrix)})"
            ranks.append((rank, text))
        # A pair must be slow both for its class of links and among all pairs.
        odd = high_outliers([*cells.ratio.map(math.log)], math.log1p(MISS))
        misses = matrix.misses
        for miss in misses[misses.index.isin(cells.index[[*odd]])].to_dict("records"):
            usual = f"the usual time of {miss['link_class'] or 'all pairs'}"
            text = f"{miss['ratio']:.2f} times {usual} ({_what(matrix)})"
            missed.append((matrix.first.backend, miss, text))
    slow = {rank for rank, _ in ranks}
    kept = [row for row in missed if not {row[1]["source"], row[1]["target"]} & slow]
    pairs = [*grouped(kept, lambda row: (row[0], row[1]["name"])).values()]
    pairs.sort(key=lambda rows: -max(miss["ratio"] for _, miss, _ in rows))
    return ranks, [
        _finding("slow_pair", rows[0][1]["name"], "; ".join(text for _, _, text in rows))
        for rows in pairs[:MOST_NAMED]
    ]


def _of_rank(cells: pd.DataFrame, rank: int) -> pd.DataFrame:
    """Return the cells of the pairs of ``rank``."""
    own: pd.DataFrame = cells.query("source == @rank or target == @rank")
    return own


def _what(matrix: PairMatrix) -> str:
    way = "both ways" if matrix.both else "one way"
    return f"{matrix.first.size} {way}, {matrix.first.backend}"


def _evidence(
    points: Sequence[Point],
    timed: Sequence[Point],
    matrices: Sequence[PairMatrix],
    spreads: Sequence[Spread],
) -> list[str]:
    """The evidence that the verdict stands on, in sentences."""
    lines = []
    checked = [point for point in timed if point.wrong_elements is not None]
    if checked:
        names = {point.collective for point in checked}
        moved = {point.size_bytes for point in checked if point.size_bytes}
        lines.append(
            f"{plural(len(checked), 'case')} with correct results: {len(names)} of {len(COLLECTIVES)} "
            f"collectives at {plural(len(moved), 'size')}, on "
            + ", ".join(sorted({point.backend for point in checked}))
        )
    for matrix in matrices:
        times = matrix.cells.seconds
        least, most = times.min(), times.max()
        span = f"{format_seconds(least)} to {format_seconds(most)}"
        # A rate says more than a time where it is not all latency.
        if not matrix.is_latency:
            gigabytes = matrix.first.size_bytes / 1e9
            span = f"{gigabytes / most:.3g} to {gigabytes / least:.3g} GB/s"
        lines.append(f"{plural(len(times), 'pair')}, {_what(matrix)}: {span}")
    if spreads:
        between, within = (
            median(column) for column in zip(*(each[1:] for each in spreads), strict=True)
        )
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
    flags = Counter(
        flag for point in timed for flag in point.flags if flag not in DEVICE_FAULTS
    )
    if flags:
        lines.append(
            "flags: " + ", ".join(f"{flag} ({count})" for flag, count in flags.most_common(4))
        )
    return lines
