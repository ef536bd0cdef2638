"""Figures as Markdown, and as the lines that end a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.figures import Figures, Spread, conditions, targets
from benchmarks.points import (
    CCBENCH,
    COPY_BYTES,
    GLOO,
    MPIS,
    PRIVATE,
    SHARED,
    TITLES,
    Point,
)
from ccbench.units import format_rate, format_seconds, format_size

BEGIN = "<!-- figures of benchmarks/cpu.py begin -->"
END = "<!-- figures of benchmarks/cpu.py end -->"
MEMORY_NAMES = {PRIVATE: "private memory, huge pages asked for", SHARED: "shared mappings, small pages"}
NOTHING = "-"


@dataclass(frozen=True)
class Header:
    """Where and when a run was made, and what took part."""

    date: str
    machine: str
    versions: Mapping[str, str]
    bindings: Mapping[str, str]
    rounds: int
    note: str = ""


def markdown(header: Header, figures: Figures) -> str:
    """Everything docs/performance.md shows of one run."""
    lines = [f"**{header.note}**", ""] if header.note else []
    lines += [f"{header.date}, {header.machine}, {header.rounds} rounds.", ""]
    for name, version in header.versions.items():
        bound = header.bindings.get(name, "")
        lines.append(f"* {TITLES[name]}: {version}" + (f"; {bound}" if bound else ""))
    for ranks in figures.rank_counts():
        lines += ["", f"### {ranks} ranks", "", *_table(figures, ranks)]
    lines += ["", "### Memory-traffic bound", "", *_bound(figures)]
    lines += ["", "### Targets", "", *(f"* {line}" for line in verdicts(figures))]
    lines += ["", "### Conditions", "", *_conditions(figures)]
    return "\n".join(lines) + "\n"


def _table(figures: Figures, ranks: int) -> list[str]:
    contenders = figures.contenders()
    titles = [TITLES[name] for name in contenders]
    head = [
        "collective",
        "size",
        *titles,
        "best MPI / ccbench",
        "in each round",
        "Gloo / ccbench",
        "in each round",
    ]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for point in figures.points():
        cells = [_name(point), format_size(point.size_bytes)]
        cells += [_time(figures.seconds(name, ranks, point)) for name in contenders]
        for rivals in (MPIS, (GLOO,)):
            best = figures.fastest(rivals, ranks, point)
            cells.append(_ratio(figures.speedup(best, ranks, point)))
            cells.append(_ratios(figures.paired_speedup(best, ranks, point)) if best else NOTHING)
        rows.append(cells)
    return ["| " + " | ".join(cells) + " |" for cells in rows]


def _name(point: Point) -> str:
    if point.collective == "broadcast":
        return "broadcast, in place" if point.in_place else "broadcast, out of place"
    return point.collective


def _time(time: Spread | None) -> str:
    if time is None:
        return NOTHING
    return f"{format_seconds(time.middle)} ({_bare(time.low)} to {_bare(time.high)})"


def _bare(seconds: float) -> str:
    return format_seconds(seconds)


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"{ratio:.2f}"


def _ratios(ratios: Spread | None) -> str:
    return NOTHING if ratios is None else f"{ratios.low:.2f} / {ratios.middle:.2f} / {ratios.high:.2f}"


def _bound(figures: Figures) -> list[str]:
    best = figures.best_traffic()
    if best is None:
        return ["Not measured."]
    lines = [
        f"* copies of {format_size(COPY_BYTES)} on all processors at once, {MEMORY_NAMES[memory]}: "
        f"{format_rate(traffic.middle)} of traffic, all together ({format_rate(traffic.low)} to "
        f"{format_rate(traffic.high)} over rounds)"
        for memory in (PRIVATE, SHARED)
        if (traffic := figures.copy_traffic(memory))
    ]
    lines.append(f"* fastest single sample: {format_rate(best[0])} ({MEMORY_NAMES[best[1]]})")
    for ranks in figures.rank_counts():
        for point in figures.points():
            bound, share = figures.bound_seconds(ranks, point), figures.share_of_bound(ranks, point)
            if point == Point("all_reduce", COPY_BYTES) and bound and share:
                lines.append(
                    f"* all_reduce {format_size(point.size_bytes)}, {ranks} ranks: no faster than "
                    f"{format_seconds(bound)}; {TITLES[CCBENCH]} reaches {100 * share:.0f} % of that"
                )
    return lines


def verdicts(figures: Figures) -> list[str]:
    """One line per target, the verdict first."""
    lines = []
    for target in targets(figures):
        seen = "not measured" if target.value is None else f"{target.value:.2f} {target.unit}"
        wanted = f"at least {target.at_least:.2f} {target.unit}"
        lines.append(f"{target.verdict}: {target.text}: {seen} (wanted: {wanted})")
    return lines


def _conditions(figures: Figures) -> list[str]:
    lines = [
        f"* {name}, over visits: {seen.low:.1f} / {seen.middle:.1f} / {seen.high:.1f} (min / median / max)"
        for name, seen in conditions(figures).items()
    ]
    bad = [visit for visit in figures.visits if visit.status != "ok"]
    for visit in bad:
        place = f"{_name(visit.point)} {format_size(visit.point.size_bytes)}, {visit.ranks} ranks"
        lines.append(f"* {visit.status}: {TITLES[visit.contender]}, {place}: {visit.detail}")
    return lines or ["Nothing was recorded."]


def inserted(document: str, figures_text: str) -> str:
    """``document`` with the text between its two markers replaced. ValueError where a marker is missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no figures can be put in: expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{figures_text}\n{END}{after}"
