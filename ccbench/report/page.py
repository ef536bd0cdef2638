"""The page of a report: what it says, in the reader's order, as one HTML file without any network or script.

Texts of a run reach the page through Jinja with autoescape alone. A content security policy allows no script, so that
a mistake there would still run nothing, and nothing could be sent anywhere. Figures are SVG elements that come out
of an XML writer; the machine's picture is an image, in which nothing runs either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from statistics import median
from typing import Any

from ccbench.analysis.findings import provenance, run_findings
from ccbench.analysis.machine_verdict import BLAMES
from ccbench.analysis.speed_verdict import expected_from, speed_verdicts
from ccbench.errors import MissingDependency
from ccbench.flags import Flag
from ccbench.report import topology_figure
from ccbench.report.baselines import (
    baseline_lines,
    beside,
    cautions,
    pairs_table,
)
from ccbench.report.bits_table import bits_table
from ccbench.report.case_table import case_table
from ccbench.report.curves import group_key
from ccbench.report.drawing import page_picture, picture_address
from ccbench.report.figure import Figure
from ccbench.report.page_card import MOST_ROWS as MOST_CARD_ROWS
from ccbench.report.page_card import card_rows, headline
from ccbench.report.present import Table, columns
from ccbench.report.sharing import sharing_table
from ccbench.report.wording import (
    closeness,
    health_lines,
    machines_of,
    meaning_of,
    measured_text,
    shared_text,
)
from ccbench.results import Manifest, Point, Run
from ccbench.topology.graph import DeviceKind, Topology
from ccbench.units import plain, plural
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
"""Figures that a section of the page shows."""

VERDICTS = BLAMES | {"slow", "fast"}
"""Kinds of findings that make a verdict: open in the page, under their own name."""

MOST_PAIRS = 500
"""Lines beside a baseline that the page lists; the CSV file has all."""

MOST_CASES = 2000
"""Cases that the page lists; the CSV file has all."""

ENVIRONMENT = ("environment", "versions", "options", "machine", "notes")
"""Entries of a manifest that are shown; the topology has its picture, and the suite its points."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"

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


def page_text(
    runs: Sequence[Run],
    points: Sequence[Sequence[Point]],
    every_figure: Sequence[Figure],
    behind: Sequence[Point] = (),
    baseline: Run | None = None,
) -> str:
    """Return the page about ``runs``, to be stored as UTF-8. Raises MissingDependency without jinja2.

    points: of each run, in its order. behind: those of ``baseline`` that are comparable.
    """
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
    every = [point for own in points for point in own]
    parts = [
        run_part(run, own, behind, baseline) for run, own in zip(runs, points, strict=True)
    ]
    # Names of the page's own, which no string of a run has a part in.
    figures = {f"figure-{place}": figure for place, figure in enumerate(every_figure, start=1)}
    lead = _lead(parts, figures)
    sections = []
    for topic, heading, text in SECTIONS:
        own = [entry for entry in figures.items() if entry[1].topic == topic and entry != lead]
        sections += [(topic, heading, text, own)] if own else []
    shown = [figure for *_, own in sections for figure in own[:MOST_FIGURES]]
    label = provenance(every)
    flags = {flag for point in every for flag in point.flags}
    pairs = beside(every, behind)
    return environment.get_template("page.html.jinja").render(
        policy=POLICY,
        style=Markup(
            files("ccbench.report").joinpath("assets/page.css").read_text(encoding="utf-8")
        ),
        version=__version__,
        title=", ".join(dict.fromkeys(run.suite or plain(run.path.name) for run in runs)),
        label=label,
        meaning=meaning_of(label) if label else "",
        runs=parts,
        verdicts=VERDICTS,
        lead=lead,
        sections=sections,
        most_figures=MOST_FIGURES,
        pictures={
            name: Markup(page_picture(figure, name))
            for name, figure in (*([lead] if lead else []), *shown)
        },
        table=case_table([*every, *behind]),
        most_cases=MOST_CASES,
        pairs=pairs_table(pairs),
        most_pairs=MOST_PAIRS,
        baseline="" if baseline is None else plain(baseline.path.name or baseline.path),
        sharing=sharing_table(every),
        bits=bits_table(every),
        # Of the glossary, besides those of every page.
        terms=[(flag, f"{flag.meaning}. Do: {flag.advice}.") for flag in Flag if flag in flags],
    )


def _lead(
    parts: Sequence[Mapping[str, Any]], figures: Mapping[str, Figure]
) -> tuple[str, Figure] | None:
    """Return the figure that shows the first row of the first card, by time where that is judged by it."""
    rows = [row for part in parts for row in part["card"] if row.largest is not None]
    for topic in ("bandwidth", "time"):
        for name, figure in figures.items() if rows else ():
            is_by_it = topic == "time" or not rows[0].in_seconds
            if is_by_it and figure.key.startswith(f"{topic}-{group_key(rows[0].largest)}"):
                return name, figure
    return None


def run_part(
    run: Run, points: Sequence[Point], behind: Sequence[Point] = (), baseline: Run | None = None
) -> dict[str, Any]:
    """Return the contents of the page about one run, by the names that its template has for them.

    sentences: the verdict, then what else to know of the whole. lines: what a verdict about health stands on.
    picture: the machine's drawing as a data address, and words for those who cannot see it.
    """
    machines = machines_of(points) or run.manifest.machine
    shared = shared_text(points)
    blamed, *lines = health_lines(run) or [""]
    verdicts = speed_verdicts(run)
    rows = card_rows(points, verdicts)
    near = closeness(points)
    # A run without a machine's model is told how to get one, where it has a time to compare.
    if not (near or verdicts) and any(
        point.median_seconds and not point.emulated for point in points
    ):
        near = [
            "There is neither a prediction nor a bound to lay beside it; name the machine with --machine."
        ]
    facts = (
        plain(run.path.name),
        (f"host {run.manifest.host}" if run.manifest.host else ""),
        (f"machine {machines}" if machines else ""),
        plain(run.manifest.created_at)[:16].replace("T", " "),
        plural(len(points), "case"),
    )
    sentences = (
        shared,
        blamed,
        "" if shared else headline(rows, verdicts),
        expected_from(verdicts),
        measured_text(points),
        *near,
    )
    # Of a processor and its NICs alone there is nothing to see.
    machine, picture = topology_of(run.manifest), None
    if (
        machine is not None
        and sum(device.kind is not DeviceKind.NIC for device in machine.devices) > 1
    ):
        counted = f"{plural(len(machine.gpus), 'GPU')}, {plural(len(machine.links), 'link')}"
        each = " each" if any(point.nodes > 1 for point in points) else ""
        address = picture_address(partial(topology_figure.picture, machine))
        picture = address, f"{plain(machines or machine.name)}: {counted}{each}"
    differing = differences(run.manifest, baseline.manifest) if baseline else ()
    return {
        "name": plain(run.path.name),
        "facts": " · ".join(filter(None, facts)),
        "sentences": [*filter(None, sentences)],
        "card": rows[:MOST_CARD_ROWS],
        "more_rows": len(rows[MOST_CARD_ROWS:]),
        "lines": lines,
        "findings": run_findings(run, points),
        "picture": picture,
        "environment": Table(columns("<fact", "<value"), environment_rows(run.manifest)),
        "differences": Table(columns("<fact", "<here", "<there"), differing),
        "beside": _baseline_sentences(points, behind, baseline) if baseline else [],
    }


def _baseline_sentences(
    points: Sequence[Point], behind: Sequence[Point], baseline: Run
) -> list[str]:
    """Say how the run stands to its baseline, and what speaks against the comparison."""
    ratios = [pair.speed_ratio for pair in beside(points, behind)]
    if not ratios:
        return baseline_lines(points, baseline)[:1]
    name = plain(baseline.path.name or baseline.path)
    ends = f" ({min(ratios):.3g} to {max(ratios):.3g})" if len(ratios) > 1 else ""
    summary = (
        f"Compared with {name}: this run has {median(ratios):.3g} times its speed{ends}, "
        f"median of {plural(len(ratios), 'comparable point')}."
    )
    return [summary, *(f"Note: {caution}" for caution in cautions(points, behind, baseline))]


def topology_of(manifest: Manifest) -> Topology | None:
    """The machine that predictions were priced on where the catalog has it, else the one that was detected.

    None where neither is known.
    """
    from ccbench.topology.files import catalog_names, load_catalog

    name = manifest.machine
    return load_catalog(name) if name in catalog_names() else manifest.topology


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
