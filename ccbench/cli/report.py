"""``ccbench report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.gating import Gated, gated, gates, opened
from ccbench.cli.naming import baselines
from ccbench.cli.output import (
    as_json,
    completing,
    drawn_as_far_as_possible,
    every_case,
    exit_code_of,
    file_for,
    folds_sentences,
    latest_run,
    leave,
    print_json,
    say,
    say_files,
    say_problems,
    screen_width,
    verbosely,
)
from ccbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccbench.results import Run

JUNIT = "junit"
"""The format of one run's verdicts, on stdout unless -o says where."""


@click.command(short_help="Draw plots and tables of runs.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@click.option(
    "--baseline",
    metavar="RUN",
    shell_complete=completing(baselines, "dir"),
    help="Compare with this run, in grey; or published, which takes what is nearest; 'published:' lists all.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder, or one file: report.html; else RUN/report.",
)
@click.option(
    "--format",
    "formats",
    metavar="LIST",
    help="With commas: html,png,svg,pdf,md,csv,nccl-tests; or junit alone, on stdout without -o.  "
    "[default: html,png,md,csv, or as -o ends]",
)
@gates
@every_case
@verbosely
@as_json
def report(
    runs: tuple[Path, ...],
    baseline: str | None,
    output: Path | None,
    formats: str | None,
    gate: str | None,
    every: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Draw plots and tables of each RUN (a run folder, or a name of 'ccbench list runs'), several in one picture.

    Without RUN the latest one. '-o report.html' makes one page that needs no network. Format
    junit has the verdicts on a run. Exit code 1: SLOW or WRONG; 3: CANNOT SAY, or no run has a case that can be
    read.
    """
    from ccbench.analysis.machine_verdict import fleet_document
    from ccbench.analysis.speed_verdict import speed_verdicts
    from ccbench.report.baselines import open_base
    from ccbench.report.bits_table import bits_documents
    from ccbench.report.case_table import case_documents
    from ccbench.report.run_screen import ALL, CARD, run_screen
    from ccbench.report.wording import verdict_lines
    from ccbench.report.writing import write_report
    from ccbench.results import load_runs
    from ccbench.results.loading import PREFIX

    if baseline == PREFIX:
        _list_published(as_json)
        return 0
    threshold = opened(gate)
    chosen = tuple(formats.split(",")) if formats is not None else _formats_of(output)
    loaded = load_runs(runs or (latest_run(),), details=JUNIT not in chosen)
    every_point = [point for run in loaded for point in run.points]
    behind = None if baseline is None else open_base(baseline, every_point)
    outcome = gated(threshold, exit_code_of(loaded), loaded)
    code = outcome.code
    if JUNIT in chosen:
        if len(chosen) > 1 or len(loaded) > 1:
            raise UsageError(
                "report: junit is of one run and no other format beside; ask for it alone"
            )
        if behind is not None:
            raise UsageError("--baseline: junit has no baseline; leave it out")
        _leave_junit(loaded[0], output, outcome)
        return code
    files = drawn_as_far_as_possible(
        lambda: write_report(loaded, output, chosen, baseline=behind)
    )
    if as_json:
        documents: dict[str, Callable[[Run], object]] = {
            "verdicts": verdict_lines,
            "fleet": fleet_document,
            "speed_verdicts": lambda run: [each.document for each in speed_verdicts(run)],
            "baseline": lambda run: _beside(run, behind) if behind else None,
            "bits": lambda run: bits_documents(run.points) or None,
            "points": lambda run: case_documents(run.points),
        }
        by_run = {
            name: {
                str(run.path): value for run in loaded if (value := document(run)) is not None
            }
            for name, document in documents.items()
        }
        print_json({"files": [str(file) for file in files], **by_run, **outcome.keys})
        return code
    layout = ALL if every else CARD
    for run in loaded:
        lines = run_screen(run, screen_width(), layout, folds_sentences(), verbose)
        # Of several runs each says which it is.
        lines[:0] = [str(run.path)] if len(loaded) > 1 else []
        click.echo("\n".join((*lines, *_beside(run, behind))))
    say_files(files)
    for line in outcome.lines:
        click.echo(line)
    return code


def _formats_of(output: Path | None) -> tuple[str, ...]:
    """The format that the file's name says, else the usual ones."""
    from ccbench.report.writing import DEFAULT_FORMATS, ONE_FILE

    ending = (
        output.suffix.lstrip(".").lower() if output is not None and not output.is_dir() else ""
    )
    if ending == "xml":
        return (JUNIT,)
    return (ending,) if ending in ONE_FILE else DEFAULT_FORMATS


def _leave_junit(run: Run, output: Path | None, outcome: Gated) -> None:
    from ccbench.report.junit import verdict_junit

    # The file is replaced as a whole, so that nobody reads half of it; - is stdout.
    file = None if output == Path("-") else file_for(output, "ccbench.xml")
    say_problems(run.problems)
    leave(file, verdict_junit(run))
    for line in outcome.lines:
        # Programs read the verdicts from stdout.
        (say if file is None else click.echo)(line)


def _beside(run: Run, baseline: Run | None) -> list[str]:
    from ccbench.report.baselines import baseline_lines
    from ccbench.report.wording import points_of

    return [] if baseline is None else baseline_lines(points_of(run), baseline)


def _list_published(as_json: bool) -> None:
    """List the names that ``--baseline published:`` takes."""
    from ccbench.results.loading import PREFIX, contents, published_names, server_names
    from ccbench.units import plural

    catalog = [contents(name) for name in (*published_names(), *server_names())]
    if as_json:
        print_json({"published": catalog})
        return
    for entry in catalog:
        teams = ", ".join(f"{ranks} on {nodes or 'unknown'}" for ranks, nodes in entry["teams"])
        click.echo(
            f"{PREFIX}{entry['name']}: {entry['rows']} points of {plural(entry['sources'], 'source')}"
        )
        click.echo(f"    {', '.join(entry['collectives'])}; ranks on nodes: {teams}")
