"""``ccbench report``."""

from __future__ import annotations

from pathlib import Path

import click

from ccbench.cli.output import as_json, drawn_as_far_as_possible, print_json, screen_width
from ccbench.cli.run import RESULTS


@click.command(short_help="Draw plots and tables of runs.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="RUN", help="Draw this run behind, in grey."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Folder, or a file when it is one; else RUN/report.",
)
@click.option("--format", "formats", metavar="LIST", help="With commas: png,svg,pdf,md,csv,nccl-tests.")
@as_json
def report(
    runs: tuple[Path, ...], baseline: Path | None, output: Path | None, formats: str | None, as_json: bool
) -> None:
    """Draw plots and tables of each RUN (a run folder), several in one picture.

    Without RUN the newest run in ./results.
    """
    from ccbench.report import DEFAULT_FORMATS, screen_table, verdict_lines, write_report
    from ccbench.runs import load_run, load_runs, newest_run

    loaded = load_runs(runs or (newest_run(RESULTS),))
    chosen = DEFAULT_FORMATS if formats is None else tuple(formats.split(","))
    behind = None if baseline is None else load_run(baseline)
    files = drawn_as_far_as_possible(lambda: write_report(loaded, output, chosen, baseline=behind))
    if as_json:
        verdicts = {str(one.path): verdict_lines(one) for one in loaded}
        print_json({"files": [str(file) for file in files], "verdicts": verdicts})
        return
    for one in loaded:
        click.echo(f"{one.path}")
        click.echo(screen_table(one, screen_width()))
        for line in verdict_lines(one):
            click.echo(line)
    for file in files:
        click.echo(f"wrote {file}")
