"""The page of a report: what it says, in the reader's order, as one HTML file without any network or script.

Texts of a run reach the page through Jinja with autoescape alone. A content security policy allows no script, so that
a mistake there would still run nothing, and nothing could be sent anywhere. Figures are SVG elements that come out
of an XML writer; the machine's picture is an image, in which nothing runs either.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from statistics import median

from ccbench.analysis.findings import provenance, run_findings
from ccbench.analysis.machine_verdict import BLAMES
from ccbench.analysis.speed_verdict import expected_from, speed_verdicts
from ccbench.collectives import COLLECTIVES
from ccbench.errors import MissingDependency
from ccbench.findings import Finding
from ccbench.flags import Flag
from ccbench.report import topology_figure
from ccbench.report.baselines import baseline_lines, beside, format_busbw, pairs_table
from ccbench.report.bits_table import bits_table
from ccbench.report.case_table import case_page_table
from ccbench.report.curves import group_key
from ccbench.report.drawing import page_picture, picture_address
from ccbench.report.figure import Figure
from ccbench.report.figures import every_figure
from ccbench.report.page_card import MOST_ROWS as MOST_CARD_ROWS
from ccbench.report.page_card import CardRow, card_rows, headline
from ccbench.report.present import ShownColumn, Table, columns, table_of
from ccbench.report.sharing import sharing_table
from ccbench.report.wording import (
    health_lines,
    machines_of,
    meaning_of,
    sentences,
    shared_text,
    span,
    speed_lines,
)
from ccbench.results import Manifest, Point, Run
from ccbench.topology.graph import DeviceKind, Topology
from ccbench.units import format_seconds, percent, plain, plural
from ccbench.version import __version__

SECTIONS: tuple[tuple[str, str, str], ...] = (
    (
        "bandwidth",
        "Bus bandwidth against size",
        "Dots are medians with their interval; hollow ones were flagged. Dashed: predicted; dotted: the bound; "
        "a dash and a plus stand for them where sizes lie too far apart for a line.",
    ),
    ("time", "Latency", "Time per launch on logarithmic axes: what small sizes cost."),
    (
        "algorithms",
        "Algorithms and backends side by side",
        "How many times longer than the fastest each takes.",
    ),
    (
        "prediction",
        "Measured against predicted",
        "Above the line the machine is slower than the model says.",
    ),
    (
        "ranks",
        "Ranks",
        "Whether one rank is late or all are.",
    ),
    (
        "pairs",
        "Every pair of ranks or nodes",
        "Rates or latencies of all pairs, or times of pairs of nodes over the usual one; frames mark the slow.",
    ),
)
"""Topic of the figures, heading and one sentence; a section without figures is left out."""

MOST_FIGURES = 20
"""Figures that a section of the page shows: of every collective the first, then of each the second, and so on."""

VERDICTS = BLAMES | {"slow", "fast"}
"""Kinds of findings that make a verdict: open in the page, under their own name."""

MOST_PAIRS = 500
"""Lines beside a baseline that the page lists; the CSV file has all."""

MOST_CASES = 2000
"""Cases that the page lists; the CSV file has all."""

ENVIRONMENT = ("environment", "versions", "options", "machine", "notes")
"""Entries of a manifest that are shown; the topology has its picture, and the suite its points."""

LONGEST_VALUE = 300
MOST_ROWS = 400

ALWAYS_DIFFERENT = (
    "environment.host.load_1_minute",
    "environment.memory.available_bytes",
    "environment.memory.swap_used_bytes",
    "environment.limits.memory_free_bytes",
    "created_at",
)
"""Readings that change from minute to minute and tell nothing about a set-up."""


@dataclass(frozen=True)
class Section:
    """Figures, by their names in the page, under one heading; more: how many are left out."""

    topic: str
    heading: str
    text: str
    figures: tuple[tuple[str, Figure], ...]
    more: int = 0


NOTHING = Table((), ())


@dataclass(frozen=True)
class RunPart:
    """Contents of the page about one run. sentences: the verdict, then what else to know of the whole.

    lines: what a verdict about health stands on. card: a row per collective; more_rows: those left out of it.
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
    card: tuple[CardRow, ...] = ()
    more_rows: int = 0


@dataclass(frozen=True)
class PageContent:
    """The whole page; ``label`` says loudly where times are no measurement.

    lead: name and figure that stand beside the verdict, in no section.
    terms: of the glossary, besides those of every page; formulas: its bus factors.
    """

    title: str
    runs: tuple[RunPart, ...]
    sections: tuple[Section, ...]
    table: Table
    table_text: str = "Bandwidths in GB/s (1e9 bytes a second)."
    label: str = ""
    meaning: str = ""
    pairs: Table = NOTHING
    more_pairs: int = 0
    sharing: Table = NOTHING
    bits: Table = NOTHING
    terms: tuple[tuple[str, str], ...] = ()
    formulas: Table = NOTHING
    lead: tuple[str, Figure] | None = None
    baseline: str = ""
    version: str = __version__


def page_content(
    runs: Sequence[Run],
    points: Sequence[Sequence[Point]],
    behind: Sequence[Point] = (),
    baseline: Run | None = None,
    problems: list[str] | None = None,
) -> PageContent:
    """Return the contents of the page about ``runs``.

    points: of each run, in its order. behind: those of ``baseline`` that are comparable. problems: takes a
    line for every part that could not be made; without it the first failure is raised.
    """
    every = [point for own in points for point in own]
    # Names of the page's own, which no string of a run has a part in.
    drawn = every_figure(runs, points, behind, problems)
    figures = {f"figure-{place}": figure for place, figure in enumerate(drawn, start=1)}
    parts = tuple(
        _part(run, own, behind, baseline) for run, own in zip(runs, points, strict=True)
    )
    lead = _lead(parts, figures)
    sections = []
    for topic, heading, text in SECTIONS:
        own = [entry for entry in figures.items() if entry[1].topic == topic and entry != lead]
        shown = _first_of_each(own)
        more = len(own) - len(shown)
        sections += [Section(topic, heading, text, shown, more)] if own else []
    label = provenance(every)
    pairs = beside(every, behind)
    flags = {flag for point in every for flag in point.flags}
    return PageContent(
        title=", ".join(dict.fromkeys(run.suite or plain(run.path.name) for run in runs)),
        label=label,
        meaning=meaning_of(label) if label else "",
        runs=parts,
        lead=lead,
        sections=tuple(sections),
        table=case_page_table([*every, *behind]),
        pairs=pairs_table(pairs[:MOST_PAIRS]),
        more_pairs=max(0, len(pairs) - MOST_PAIRS),
        sharing=sharing_table(every),
        bits=bits_table(every),
        terms=tuple(
            (flag, f"{flag.meaning}. Do: {flag.advice}.") for flag in Flag if flag in flags
        ),
        formulas=formula_table(every),
        baseline="" if baseline is None else plain(baseline.path.name or baseline.path),
    )


def _first_of_each(figures: Sequence[tuple[str, Figure]]) -> tuple[tuple[str, Figure], ...]:
    """Return MOST_FIGURES of ``figures`` in their order, in turn of each collective the next one."""
    turns: dict[str, count[int]] = {}
    rounds = [
        (next(turns.setdefault(figure.title.partition(":")[0], count())), place)
        for place, (_, figure) in enumerate(figures)
    ]
    chosen = sorted(place for _, place in sorted(rounds)[:MOST_FIGURES])
    return tuple(figures[place] for place in chosen)


def _lead(parts: Sequence[RunPart], figures: Mapping[str, Figure]) -> tuple[str, Figure] | None:
    """Return the figure that shows the first row of the first card, by time where that is judged by it."""
    row = next((row for part in parts for row in part.card if row.largest is not None), None)
    if row is None or row.largest is None:
        return None
    for topic in ("time",) if row.in_seconds else ("bandwidth", "time"):
        for name, figure in figures.items():
            if figure.key.startswith(f"{topic}-{group_key(row.largest)}"):
                return name, figure
    return None


def _part(
    run: Run, points: Sequence[Point], behind: Sequence[Point], baseline: Run | None
) -> RunPart:
    findings = run_findings(run, points)
    machines = machines_of(points) or run.manifest.machine
    shared = shared_text(points)
    blamed, *lines = health_lines(run) or [""]
    verdicts = speed_verdicts(run)
    rows = card_rows(points, verdicts)
    # The card says of each collective what the screen has a line for, and the findings follow themselves.
    texts = sentences(points, findings, verdicts)[len(speed_lines(verdicts)) : -1]
    facts = (
        plain(run.path.name),
        (f"host {run.manifest.host}" if run.manifest.host else ""),
        (f"machine {machines}" if machines else ""),
        plain(run.manifest.created_at)[:16].replace("T", " "),
        plural(len(points), "case"),
    )
    # Of a processor and its NICs alone there is nothing to see.
    topology, picture = topology_of(run.manifest), None
    if (
        topology is not None
        and sum(device.kind is not DeviceKind.NIC for device in topology.devices) > 1
    ):
        machine = topology
        counted = f"{plural(len(machine.gpus), 'GPU')}, {plural(len(machine.links), 'link')}"
        address = picture_address(lambda: topology_figure.picture(machine))
        each = " each" if any(point.nodes > 1 for point in points) else ""
        picture = address, f"{plain(machines or machine.name)}: {counted}{each}"
    differing = () if baseline is None else differences(run.manifest, baseline.manifest)
    return RunPart(
        name=plain(run.path.name),
        facts=" · ".join(fact for fact in facts if fact),
        sentences=(
            *filter(None, (shared, blamed, "" if shared else headline(rows, verdicts))),
            *filter(None, (expected_from(verdicts),)),
            *texts,
        ),
        card=rows[:MOST_CARD_ROWS],
        more_rows=max(0, len(rows) - MOST_CARD_ROWS),
        lines=tuple(lines),
        findings=findings,
        rates=rates_table(points),
        picture=picture,
        environment=Table(columns("<fact", "<value"), environment_rows(run.manifest)),
        differences=Table(columns("<fact", "<here", "<there"), differing),
        beside=() if baseline is None else _baseline_sentences(points, behind, baseline),
    )


def _baseline_sentences(
    points: Sequence[Point], behind: Sequence[Point], baseline: Run
) -> tuple[str, ...]:
    """Say how the run stands to its baseline, and what speaks against the comparison."""
    lines = baseline_lines(points, baseline)
    ratios = [pair.speed_ratio for pair in beside(points, behind)]
    if not ratios:
        return tuple(lines[:1])
    notes = [line.replace("  note", "Note", 1) for line in lines if line.startswith("  note: ")]
    name = plain(baseline.path.name or baseline.path)
    span = f" ({min(ratios):.3g} to {max(ratios):.3g})" if len(ratios) > 1 else ""
    summary = (
        f"Compared with {name}: this run has {median(ratios):.3g} times its speed{span}, "
        f"median of {plural(len(ratios), 'comparable point')}."
    )
    return (summary, *notes)


def topology_of(manifest: Manifest) -> Topology | None:
    """The machine that predictions were priced on where the catalog has it, else the one that was detected.

    None where neither is known.
    """
    from ccbench.topology.files import catalog_names, load_catalog

    name = manifest.machine
    return load_catalog(name) if name in catalog_names() else manifest.topology


RATES = (
    ShownColumn("case", right=False, value="label"),
    ShownColumn("time", value="median_seconds", form=format_seconds),
    ShownColumn("busbw", value="busbw", form=format_busbw),
    ShownColumn("of bound", value="bound_share", form=percent, absent=""),
    ShownColumn("normal", value="usual_bound_shares", form=span, absent=""),
)
"""Of the case with the highest bus bandwidth."""


def rates_table(points: Sequence[Point]) -> Table:
    """The case with the highest bus bandwidth of every collective, backend and number of ranks."""
    best: dict[tuple[str, str, int, int], Point] = {}
    for point in points:
        if point.busbw is None or point.group_ranks < 2 or not point.of_links or point.baseline:
            continue
        key = (point.collective, point.backend, point.ranks, point.nodes)
        if key not in best or (best[key].busbw or 0.0) < point.busbw:
            best[key] = point
    return table_of(RATES, [best[key] for key in sorted(best)])


def environment_rows(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    """(name with dots, value) of everything a manifest says about its making; unknown facts are left out."""

    def flat(name: str, value: object) -> Iterator[tuple[str, str]]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from flat(f"{name}.{plain(key, 80)}", inner)
        elif isinstance(value, (list, tuple)):
            if any(isinstance(one, (Mapping, list, tuple)) for one in value):
                for place, inner in enumerate(value):
                    yield from flat(f"{name}[{place}]", inner)
            elif value:
                yield name, plain(", ".join(str(one) for one in value), LONGEST_VALUE)
        elif value not in (None, ""):
            yield name, plain(value, LONGEST_VALUE)

    found = [("created_at", manifest.created_at)] if manifest.created_at else []
    for part in ENVIRONMENT:
        found += flat(part, manifest.at(part))
    return tuple(found[:MOST_ROWS])


def differences(manifest: Manifest, other: Manifest) -> tuple[tuple[str, str, str], ...]:
    """(name, here, there) of every row that is not alike; '' where one side says nothing."""
    here, there = dict(environment_rows(manifest)), dict(environment_rows(other))
    pairs = {name: (here.get(name, ""), there.get(name, "")) for name in (*here, *there)}
    return tuple(
        (name, *pair)
        for name, pair in pairs.items()
        if pair[0] != pair[1] and name not in ALWAYS_DIFFERENT
    )


def formula_table(points: Iterable[Point]) -> Table:
    """busbw over algbw of every collective that moves data, for the run's own numbers of ranks."""
    ranks = sorted({point.group_ranks for point in points if point.group_ranks > 1})[:6] or [8]
    rows = [
        (row.name, ", ".join(f"{row.bus_factor(n):.4g} for {n} ranks" for n in ranks))
        for row in COLLECTIVES.values()
        if row.moves_data
    ]
    return Table(columns("<collective", "<factor"), rows)


def render_page(content: PageContent) -> str:
    """Return the page as text, to be stored as UTF-8. Raises MissingDependency without jinja2."""
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    except ImportError:
        raise MissingDependency("report: the page needs jinja2; pip install jinja2") from None
    environment = Environment(
        loader=PackageLoader("ccbench.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    figures = [content.lead] if content.lead is not None else []
    figures += [entry for section in content.sections for entry in section.figures]
    style = files("ccbench.report").joinpath("assets/page.css").read_text(encoding="utf-8")
    return environment.get_template("page.html.jinja").render(
        page=content,
        policy=policy,
        style=Markup(style),
        pictures={name: Markup(page_picture(figure, name)) for name, figure in figures},
        verdicts=VERDICTS,
        most_cases=MOST_CASES,
    )
