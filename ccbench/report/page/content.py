"""Everything the page says, in the reader's order, as plain values. Nothing here knows HTML."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from ccbench import __version__
from ccbench.analysis.findings import provenance, run_findings
from ccbench.analysis.pair_matrix import pair_matrices
from ccbench.collectives import COLLECTIVES
from ccbench.machine.flags import Flag
from ccbench.report.baselines import baseline_lines, beside, pairs_table
from ccbench.report.case_table import page_table
from ccbench.report.drawing import picture_address
from ccbench.report.figure import Figure
from ccbench.report.figures import figures_of, made
from ccbench.report.maps import pair_figures, sample_figures
from ccbench.report.points import meaning_of
from ccbench.report.sharing import sharing_figures, sharing_of, sharing_tables
from ccbench.report.verdict import health_lines, sentences
from ccbench.results import Manifest, Point, Run
from ccbench.tables import Table, columns
from ccbench.topology.graph import DeviceKind, Finding, Topology
from ccbench.units import format_seconds, percent, plain, plural

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

ENVIRONMENT = ("environment", "versions", "options", "machine", "notes")
"""Entries of a manifest that are shown; the topology has its picture, and the suite its points."""

LONGEST_VALUE = 300
MOST_ROWS = 400

ALWAYS_DIFFERENT = (
    "environment.host.load_1_minute", "environment.memory.available_bytes",
    "environment.memory.swap_used_bytes", "environment.limits.memory_free_bytes", "created_at",
)  # fmt: skip
"""Readings that change from minute to minute and tell nothing about a set-up."""


@dataclass(frozen=True)
class Section:
    """Figures, by their names in the page, under one heading."""

    topic: str
    heading: str
    text: str
    figures: tuple[tuple[str, Figure], ...]


NOTHING = Table((), ())


@dataclass(frozen=True)
class RunPart:
    """What the page says of one run. sentences: the verdict; lines: what one about health stands on.

    picture: the machine's drawing as a data address, and words for those who cannot see it.
    """

    name: str
    facts: str
    sentences: tuple[str, ...]
    findings: tuple[Finding, ...]
    lines: tuple[str, ...] = ()
    rates: Table = NOTHING
    picture: tuple[str, str] | None = None
    environment: Table = NOTHING
    differences: Table = NOTHING
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageContent:
    """The whole page; ``label`` says loudly where times are no measurement."""

    title: str
    runs: tuple[RunPart, ...]
    sections: tuple[Section, ...]
    table: Mapping[str, Any]
    table_text: str = "Bandwidths in GB/s (1e9 bytes a second)."
    label: str = ""
    meaning: str = ""
    pairs: Table = NOTHING
    more_pairs: int = 0
    sharing: tuple[Table, ...] = ()
    terms: tuple[tuple[str, str], ...] = ()
    formulas: Table = NOTHING
    baseline: str = ""
    version: str = __version__


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
    figures = every_figure(runs, points, behind, problems)
    # Names of the page's own, which no string of a run has a part in.
    numbered = {f"figure-{place}": figure for place, figure in enumerate(figures, start=1)}
    label = provenance(every)
    pairs = beside(every, behind)
    return PageContent(
        title=", ".join(dict.fromkeys(run.suite or plain(run.path.name) for run in runs)),
        label=label,
        meaning=meaning_of(label) if label else "",
        runs=tuple(_part(run, own, behind, baseline) for run, own in zip(runs, points, strict=True)),
        sections=_sections(numbered),
        table=page_table([*every, *behind]),
        pairs=pairs_table(pairs[:MOST_PAIRS]),
        more_pairs=max(0, len(pairs) - MOST_PAIRS),
        sharing=sharing_tables(sharing_of(every)),
        terms=terms_of(every),
        formulas=formula_table(every),
        baseline="" if baseline is None else plain(baseline.path.name or baseline.path),
    )


def every_figure(
    runs: Sequence[Run],
    points: Sequence[Sequence[Point]],
    behind: Sequence[Point],
    problems: list[str] | None,
) -> list[Figure]:
    """All figures of a report, maps last; one that says so where there is nothing to draw."""
    every = [point for own in points for point in own]
    maps: list[Figure] = []
    for run, own in zip(runs, points, strict=True):
        host, machine = run.manifest.host, run.manifest.machine
        words = (run.path.name * (len(runs) > 1), host and f"host {host}", machine and f"machine {machine}")
        where = " · ".join(word for word in words if word)
        maps += made("samples of ranks", partial(sample_figures, own), problems)
        maps += made("pairs", partial(pair_figures, pair_matrices(run), where), problems)
    maps += made("sharing", partial(sharing_figures, sharing_of(every)), problems)
    figures = figures_of([*every, *behind], problems)
    return [figure for figure in figures if figure.topic != "nothing" or not maps] + maps


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


def _part(run: Run, points: Sequence[Point], behind: Sequence[Point], baseline: Run | None) -> RunPart:
    findings = run_findings(run, points)
    blamed, *lines = health_lines(run) or [""]
    facts = (
        plain(run.path.name),
        f"host {run.manifest.host}" * bool(run.manifest.host),
        f"machine {run.manifest.machine}" * bool(run.manifest.machine),
        run.manifest.created_at,
        plural(len(points), "case"),
    )
    differing = () if baseline is None else differences(run.manifest, baseline.manifest)
    return RunPart(
        name=plain(run.path.name),
        facts=" · ".join(fact for fact in facts if fact),
        sentences=(*[blamed] * bool(blamed), *sentences(points, findings)),
        lines=tuple(lines),
        findings=findings,
        rates=rates_table(points),
        picture=_picture(topology_of(run.manifest)),
        environment=Table(columns("<fact", "<value"), environment_rows(run.manifest)),
        differences=Table(columns("<fact", "<here", "<there"), differing),
        beside=() if baseline is None else _beside(points, behind, baseline),
    )


def topology_of(manifest: Manifest) -> Topology | None:
    """The machine that predictions were priced on where the catalog has it, else the one that was detected.

    None where neither is known.
    """
    from ccbench.topology.catalog import catalog_names, load_catalog

    name = manifest.machine
    return load_catalog(name) if name in catalog_names() else manifest.topology


def _picture(topology: Topology | None) -> tuple[str, str] | None:
    """The drawing of a machine; of a processor and its NICs alone there is nothing to see."""
    if topology is None or sum(one.kind is not DeviceKind.NIC for one in topology.devices) < 2:
        return None
    from ccbench.report.topology_figure import picture

    counted = f"{plural(len(topology.gpus), 'GPU')}, {plural(len(topology.links), 'link')}"
    return picture_address(lambda: picture(topology)), f"{plain(topology.name)}: {counted}"


def rates_table(points: Sequence[Point]) -> Table:
    """The case with the highest bus bandwidth of every collective, backend and number of ranks."""
    best: dict[tuple[str, str, int, int], Point] = {}
    for point in points:
        if point.busbw is None or point.group_ranks < 2 or point.emulated or point.baseline:
            continue
        key = (point.collective, point.backend, point.ranks, point.nodes)
        if key not in best or (best[key].busbw or 0.0) < point.busbw:
            best[key] = point
    rows = [
        (
            one.label, format_seconds(one.median_seconds or 0.0), f"{one.busbw:.4g} GB/s",
            "" if one.bound_share is None else percent(one.bound_share),
        )
        for _, one in sorted(best.items())
    ]  # fmt: skip
    return Table(columns("<case", "time", "busbw", "of bound"), rows)


def environment_rows(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """(name with dots, value) of everything a manifest says about its making; unknown facts are left out."""
    found = [("created_at", manifest.created_at)] * bool(manifest.created_at)
    for part in ENVIRONMENT:
        found += list(_flat(part, manifest.at(part)))
    return tuple(found[:MOST_ROWS])


def differences(manifest: Manifest, other: Manifest) -> tuple[tuple[str, str, str], ...]:
    """(name, here, there) of every row that is not alike; '' where one side says nothing."""
    here, there = dict(environment_rows(manifest)), dict(environment_rows(other))
    pairs = {name: (here.get(name, ""), there.get(name, "")) for name in (*here, *there)}
    return tuple(
        (name, *pair) for name, pair in pairs.items() if pair[0] != pair[1] and name not in ALWAYS_DIFFERENT
    )


def _flat(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flat(f"{name}.{plain(key, 80)}", inner)
    elif isinstance(value, (list, tuple)):
        if any(isinstance(one, (Mapping, list, tuple)) for one in value):
            for place, inner in enumerate(value):
                yield from _flat(f"{name}[{place}]", inner)
        elif value:
            yield name, plain(", ".join(str(one) for one in value), LONGEST_VALUE)
    elif value not in (None, ""):
        yield name, plain(value, LONGEST_VALUE)


FORMS: tuple[tuple[str, Callable[[int], float]], ...] = (
    ("2(n-1)/n", lambda n: 2 * (n - 1) / n),
    ("(n-1)/n", lambda n: (n - 1) / n),
    ("1", lambda n: 1.0),
)
"""How bus factors are written; which one a collective has is found by comparing numbers."""


def formula_table(points: Iterable[Point]) -> Table:
    """busbw over algbw of every collective that moves data, worked out for the run's own numbers of ranks."""
    ranks: dict[str, set[int]] = {}
    for point in points:
        if point.group_ranks > 1:
            ranks.setdefault(point.collective, set()).add(point.group_ranks)
    rows = [
        (
            row.name,
            formula_of(row.bus_factor),
            ", ".join(f"{row.bus_factor(n):.4g} for {n} ranks" for n in sorted(ranks.get(row.name, ()))[:6]),
        )
        for row in COLLECTIVES.values()
        if row.moves_data
    ]
    return Table(columns("<collective", "<factor (n ranks)", "<here"), rows)


def formula_of(factor: Callable[[int], float]) -> str:
    """The formula that has the values of ``factor``; words where none of FORMS has."""
    for text, form in FORMS:
        if all(abs(factor(n) - form(n)) < 1e-12 for n in range(2, 130)):
            return text
    return "see collectives.py"


TERMS: Sequence[tuple[str, str]] = (
    ("size", "nccl-tests' size: the largest buffer of one rank. Sizes are binary: 1 KiB is 1024 bytes."),
    (
        "time",
        "Median of the rounds' medians with a 95 % interval by order statistics. A sample lasts from the "
        "first rank's start to the last rank's end. Imported points have the one time that was printed.",
    ),
    (
        "algbw",
        "Size divided by time: what an application sees. Rates are decimal: 1 GB/s is 1e9 bytes a second.",
    ),
    (
        "busbw",
        "algbw times the factor below: what each rank's link must carry if every rank sends and receives the "
        "least that is possible without help from a switch. It can be compared with the speed of the wire "
        "and between numbers of ranks.",
    ),
    (
        "why busbw may exceed the wire",
        "The formula of all_reduce assumes that each rank sends 2(n-1)/n times its data. Where the switch "
        "adds, less crosses a rank's link: with NVLS (NVLink SHARP) it sends and receives its data once and "
        "one n-th more, (n+1)/n, so busbw may reach 2(n-1)/(n+1) times the link's rate; with SHARP in the "
        "network once, so up to 2(n-1)/n times. busbw is then a convention, not traffic.",
    ),
    (
        "prediction",
        "The price of the algorithm that ran on the machine's graph: latency and bandwidth terms of every "
        "phase, with the shipped or calibrated constants.",
    ),
    (
        "bound",
        "What no schedule can beat on these links: data that must cross a cut over the rate of the cut, and "
        "the latency of the farthest pair. Of bound: the bound's time over the measured one.",
    ),
    (
        "flagged",
        "Something made the figure doubtful while it was measured; hollow in figures, ~ in the table.",
    ),
)


def terms_of(points: Iterable[Point]) -> tuple[tuple[str, str], ...]:
    """(word, meaning) of TERMS and of every flag that ``points`` carry."""
    seen = {flag for point in points for flag in point.flags}
    return (*TERMS, *((flag, f"{flag.meaning}. Do: {flag.advice}.") for flag in Flag if flag in seen))
