"""Figures as Markdown, and as the lines that end a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.figures import Figures, Spread, conditions, is_quiet, spread, targets
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
from ccbench.units import format_size

BEGIN = "<!-- figures of benchmarks/cpu.py begin -->"
END = "<!-- figures of benchmarks/cpu.py end -->"
MEMORY_NAMES = {
    PRIVATE: "private memory, huge pages asked for",
    SHARED: "shared mappings, small pages",
}
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
    """All figures of one run."""
    lines = [f"**{header.note}**", ""] if header.note else []
    lines += [f"{header.date}, {header.machine}, {header.rounds} rounds.", ""]
    for name, version in header.versions.items():
        bound = header.bindings.get(name, "")
        lines.append(f"* {TITLES[name]}: {version}" + (f"; {bound}" if bound else ""))
    for ranks in figures.rank_counts():
        lines += ["", f"### {ranks} ranks", "", *_table(figures, ranks)]
    lines += ["", "### Memory-traffic bound", "", *_bound(figures)]
    lines += ["", "### Targets", "", *_targets(figures)]
    lines += ["", "### Conditions", "", *_conditions(figures)]
    return "\n".join(lines) + "\n"


def _table(figures: Figures, ranks: int) -> list[str]:
    contenders = figures.contenders()
    titles = [TITLES[name] for name in contenders]
    head = ["collective", "size", *titles]
    head += ["best MPI / ccbench", "round by round", "Gloo / ccbench", "round by round"]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for point in figures.points():
        cells = [_name(point), format_size(point.size_bytes)]
        cells += [_time(figures.seconds(name, ranks, point)) for name in contenders]
        for rivals in (MPIS, (GLOO,)):
            best = figures.fastest(rivals, ranks, point)
            cells.append(_ratio(figures.speedup(best, ranks, point)))
            cells.append(
                _ratios(figures.paired_speedup(best, ranks, point)) if best else NOTHING
            )
        rows.append(cells)
    return ["| " + " | ".join(cells) + " |" for cells in rows]


def _name(point: Point) -> str:
    if point.collective == "broadcast":
        return "broadcast, in place" if point.in_place else "broadcast, out of place"
    return point.collective


def _time(time: Spread | None) -> str:
    """The middle with its unit, then the extremes in the same unit."""
    if time is None:
        return NOTHING
    factor, unit = (1e3, "ms") if time.middle >= 1e-3 else (1e6, "us")
    low, middle, high = (
        _three_digits(factor * value) for value in (time.low, time.middle, time.high)
    )
    return f"**{middle} {unit}** ({low} to {high})"


def _three_digits(value: float) -> str:
    decimals = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{decimals}f}"


def _ratio(ratio: float | None) -> str:
    return NOTHING if ratio is None else f"**{_three_digits(ratio)}**"


def _ratios(ratios: Spread | None) -> str:
    if ratios is None:
        return NOTHING
    return " / ".join(
        _three_digits(value) for value in (ratios.low, ratios.middle, ratios.high)
    )


def _bound(figures: Figures) -> list[str]:
    lines = [
        f"* copies of {format_size(COPY_BYTES)} on all processors at once, {MEMORY_NAMES[memory]}: "
        f"{_rates(traffic)} of traffic, all together"
        for memory in (PRIVATE, SHARED)
        if (traffic := figures.copy_traffic(memory))
    ]
    if not lines:
        return ["Not measured."]
    best = spread(list(figures.best_traffic().values()))
    lines.append(f"* fastest single copy of each round: {_rates(best)}")
    point = Point("all_reduce", COPY_BYTES)
    for ranks in figures.rank_counts():
        share, strict = (
            figures.share_of_bound(ranks, point),
            figures.strict_share_of_bound(ranks, point),
        )
        if share and strict:
            bound = spread(list(figures.bound_seconds(ranks, point).values()))
            lines.append(
                f"* {point.collective} {format_size(point.size_bytes)}, {ranks} ranks: bound {_time(bound)}; "
                f"{TITLES[CCBENCH]} reaches {100 * share.low:.0f} / **{100 * share.middle:.0f}** / "
                f"{100 * share.high:.0f} % of it round by round, and {100 * strict:.0f} % of what "
                "the fastest copy of the whole run would allow"
            )
    return lines


def _rates(rates: Spread) -> str:
    low, middle, high = (
        _three_digits(rate / 1e9) for rate in (rates.low, rates.middle, rates.high)
    )
    return f"**{middle} GB/s** ({low} to {high})"


def verdicts(figures: Figures) -> list[str]:
    """One line per target, the verdict first."""
    lines = []
    for target in targets(figures):
        seen = "not measured" if target.value is None else f"{target.value:.2f} {target.unit}"
        expected = f"at least {target.at_least:.2f} {target.unit}"
        lines.append(f"{target.verdict}: {target.text}: {seen} (wanted: {expected})")
    return lines


def _targets(figures: Figures) -> list[str]:
    """How many were met, and those that were not."""
    lines = verdicts(figures)
    missed = [f"* {line}" for line in lines if not line.startswith("PASS")]
    return [f"{len(lines) - len(missed)} of {len(lines)} met.", *[""] * bool(missed), *missed]


def _conditions(figures: Figures) -> list[str]:
    lines = [
        f"* {name}, over visits: {seen.low:.1f} / {seen.middle:.1f} / {seen.high:.1f} (min / median / max)"
        for name, seen in conditions(figures).items()
    ]
    if not is_quiet(figures):
        lines.append(
            "* **The machine was not quiet: measure again before believing these figures.**"
        )
    bad = [visit for visit in figures.visits if visit.status != "ok"]
    for visit in bad:
        place = (
            f"{_name(visit.point)} {format_size(visit.point.size_bytes)}, {visit.ranks} ranks"
        )
        lines.append(f"* {visit.status}: {TITLES[visit.contender]}, {place}: {visit.detail}")
    return lines or ["Nothing was recorded."]


def inserted(document: str, figures_text: str) -> str:
    """``document`` with the text between its two markers replaced. ValueError where a marker is missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no figures can be put in: expected the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{figures_text}\n{END}{after}"
