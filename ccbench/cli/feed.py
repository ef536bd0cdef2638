"""``ccbench feed``."""

from __future__ import annotations

from pathlib import Path

import click

from ccbench.cli.leaving import file_for, leave
from ccbench.cli.output import NO_VERDICT_EXIT_CODE, as_json, say, say_problems

FILE_NAMES = {"prometheus": "ccbench.prom", "json": "ccbench.json"}


@click.command(short_help="A run as Prometheus metrics or one JSON summary.")
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option(
    "--format", "form", type=click.Choice(list(FILE_NAMES)), default="prometheus", show_default=True,
    help="prometheus: text format 0.0.4, for node_exporter's textfile collector.",
)  # fmt: skip
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="A file, or a folder that is there; else stdout."
)
@as_json
def feed(run: Path, form: str, output: Path | None, as_json: bool) -> int:
    """RUN for programs that watch fleets. The file is replaced as a whole, so that nobody reads half of it.

    Exit code 3: the run has no case.
    """
    from ccbench.report.metrics_export import json_summary, prometheus_text
    from ccbench.results import load_run

    form = "json" if as_json else form
    file = file_for(output, FILE_NAMES[form])
    loaded = load_run(run, details=False)
    say_problems(loaded.problems)
    if form == "prometheus" and file is not None and file.suffix != ".prom":
        say(f"note: -o {file}: the textfile collector reads names that end in .prom only")
    leave(file, json_summary(loaded) if form == "json" else prometheus_text(loaded))
    return 0 if len(loaded.points) else NO_VERDICT_EXIT_CODE
