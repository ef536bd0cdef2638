"""Everything the page says, in the reader's order, as plain values. Nothing here knows HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ccbench import __version__
from ccbench.analysis.health import pair_matrices
from ccbench.report.baselines import Pair, baseline_lines, beside
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of, made
from ccbench.report.findings import run_findings
from ccbench.report.page.environment import Rows, differences, environment_rows
from ccbench.report.page.glossary import BusFormula, bus_formulas, terms_of
from ccbench.report.page.machine import (
    MachinePicture,
    MeasuredRate,
    machine_picture,
    measured_rates,
    topology_of,
)
from ccbench.report.page.plots import plot
from ccbench.report.page.rows import table_data
from ccbench.report.pair_figures import pair_figures
from ccbench.report.points import meaning_of, provenance
from ccbench.report.run_finding import RunFinding
from ccbench.report.sample_figures import sample_figures
from ccbench.report.sharing import sharing_of
from ccbench.report.sharing_figures import sharing_figures
from ccbench.report.sharing_tables import SharingTable, sharing_tables
from ccbench.report.text import plural
from ccbench.report.verdict import health_lines, sentences
from ccbench.results import Point, Run
from ccbench.topology.graph import DeviceKind, Topology
from ccbench.units import plain

SECTIONS: tuple[tuple[str, str, str], ...] = (
    ("bandwidth", "Bus bandwidth against size",
     "Dots are medians with their interval; hollow ones were flagged. Dashed: predicted; dotted: the bound; "
     "a dash and a plus stand for them where sizes lie too far apart for a line."),
    ("time", "Latency", "Time per launch on logarithmic axes: what small sizes cost."),
    ("algorithms", "Algorithms and backends side by side",
     "How many times longer than the fastest each takes, the speed-up of choosing well; the bar on top says "
     "who leads where, lines mark crossovers."),
    ("prediction", "Measured against predicted", "Above the line the machine is slower than the model says."),
    ("ranks", "Ranks and samples",
     "Whether one rank is late or all are: every rank's spread, then single samples where they spread most."),
    ("sharing", "Sharing, by size",
     "What groups at once, another collective or a computation at the same time do to a collective."),
    ("pairs", "Every pair of ranks", "Rates or latencies of all pairs; frames mark those below their class."),
)  # fmt: skip
"""Topic of the figures, heading and one sentence; a section without figures is left out."""

MOST_PAIRS = 500
"""Lines beside a baseline that the page lists; the CSV file has all."""


@dataclass(frozen=True)
class Section:
    """Figures, by their names in the page, under one heading."""

    topic: str
    heading: str
    text: str
    figures: tuple[tuple[str, Figure], ...]


@dataclass(frozen=True)
class RunPart:
    """What the page says of one run. sentences: the verdict; lines: what one about health stands on."""

    name: str
    facts: str
    sentences: tuple[str, ...]
    lines: tuple[str, ...]
    findings: tuple[RunFinding, ...]
    rates: tuple[MeasuredRate, ...]
    picture: MachinePicture | None
    environment: Rows
    differences: tuple[tuple[str, str, str], ...]
    beside: tuple[str, ...]


@dataclass(frozen=True)
class PageContent:
    """The whole page; ``label`` says loudly where times are no measurement, ``plots`` what is drawn."""

    title: str
    label: str
    meaning: str
    runs: tuple[RunPart, ...]
    sections: tuple[Section, ...]
    plots: Mapping[str, Any]
    table: Mapping[str, Any]
    pairs: tuple[Pair, ...]
    more_pairs: int
    sharing: tuple[SharingTable, ...]
    terms: tuple[tuple[str, str], ...]
    formulas: tuple[BusFormula, ...]
    baseline: str
    version: str


def page_content(
    runs: Sequence[Run],
    points: Sequence[Sequence[Point]],
    behind: Sequence[Point] = (),
    baseline: Run | None = None,
    problems: list[str] | None = None,
) -> PageContent:
    """What to say of ``runs``.

    points: of each run, in its order. behind: those of ``baseline`` that are comparable. problems: takes a
    line for every part that could not be made; without it the first failure is raised.
    """
    every = [point for own in points for point in own]
    figures = list(figures_of([*every, *behind], problems))
    for run, own in zip(runs, points, strict=True):
        figures += made("samples of ranks", lambda own=own: sample_figures(own), problems)  # type: ignore[misc]  # mypy cannot infer a lambda with defaults
        figures += made("pairs", lambda run=run: pair_figures(pair_matrices(run), _where(run)), problems)  # type: ignore[misc]  # as above
    sharing = sharing_of(every)
    figures += made("sharing", lambda: sharing_figures(sharing), problems)
    numbered = _unique(figures)
    label = provenance(every)
    pairs = beside(every, behind)
    return PageContent(
        title=", ".join(dict.fromkeys(run.suite or plain(run.path.name) for run in runs)),
        label=label,
        meaning=meaning_of(label) if label else "",
        runs=tuple(_part(run, own, behind, baseline) for run, own in zip(runs, points, strict=True)),
        sections=_sections(numbered),
        plots={key: plot(figure) for key, figure in numbered.items()},
        table=table_data([*every, *behind]),
        pairs=pairs[:MOST_PAIRS],
        sharing=sharing_tables(sharing),
        more_pairs=max(0, len(pairs) - MOST_PAIRS),
        terms=terms_of(every),
        formulas=bus_formulas(every),
        baseline="" if baseline is None else plain(baseline.path.name or baseline.path),
        version=__version__,
    )


def _where(run: Run) -> str:
    words = (run.manifest.host, run.manifest.machine)
    return " · ".join(word for word in words if word)


def _unique(figures: Sequence[Figure]) -> dict[str, Figure]:
    """Figures by a name of the page's own, which no string of a run has a part in."""
    return {f"figure-{place}": figure for place, figure in enumerate(figures, start=1)}


def _sections(figures: Mapping[str, Figure]) -> tuple[Section, ...]:
    found = []
    for topic, heading, text in SECTIONS:
        own = tuple((name, figure) for name, figure in figures.items() if figure.topic == topic)
        if own:
            found.append(Section(topic, heading, text, own))
    return tuple(found)


def _beside(points: Sequence[Point], behind: Sequence[Point], baseline: Run) -> tuple[str, ...]:
    """How the run stands to its baseline, and what speaks against the comparison."""
    lines = baseline_lines(points, baseline)
    ratios = [pair.speed_ratio for pair in beside(points, behind)]
    if not ratios:
        return tuple(lines[:1])
    name = plain(baseline.path.name or baseline.path)
    text = (
        f"Beside {name}: over {plural(len(ratios), 'like point')} this run has {median(ratios):.3g} times "
        f"its speed in the middle, {min(ratios):.3g} to {max(ratios):.3g} at the ends."
    )
    return (text, *(line.replace("  note", "Note", 1) for line in lines if line.startswith("  note: ")))


def _is_one_processor(topology: Topology) -> bool:
    """Whether there is nothing to see but a processor and its NICs."""
    return len([one for one in topology.devices if one.kind is not DeviceKind.NIC]) < 2


def _part(run: Run, points: Sequence[Point], behind: Sequence[Point], baseline: Run | None) -> RunPart:
    findings = run_findings(run, points)
    blamed, *lines = health_lines(run) or [""]
    topology = topology_of(run.manifest)
    facts = (
        plain(run.path.name),
        f"host {run.manifest.host}" * bool(run.manifest.host),
        f"machine {run.manifest.machine}" * bool(run.manifest.machine),
        run.manifest.created_at,
        plural(len(points), "case"),
    )
    return RunPart(
        name=plain(run.path.name),
        facts=" · ".join(fact for fact in facts if fact),
        sentences=(*[blamed] * bool(blamed), *sentences(points, findings)),
        lines=tuple(lines),
        findings=findings,
        rates=measured_rates(points),
        picture=None if topology is None or _is_one_processor(topology) else machine_picture(topology),
        environment=environment_rows(run.manifest),
        differences=() if baseline is None else differences(run.manifest, baseline.manifest),
        beside=() if baseline is None else _beside(points, behind, baseline),
    )
