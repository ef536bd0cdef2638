"""``ccbench plan``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.output import as_json, print_json, say

if TYPE_CHECKING:
    from ccbench.plan.planner import Planned
    from ccbench.plan.step import MeasuredPoints


@click.command(short_help="Price a training step's communication on a machine, by layout.")
@click.argument("plan_file", type=click.Path(path_type=Path), metavar="PLAN.yaml")
@click.option("--machine", help="Instead of the plan's: a name of 'ccbench list machines', a file, a dump.")
@click.option("--nodes", type=click.IntRange(min=1), help="Instead of the plan's.")
@click.option("--network", help="Instead of the plan's: <kind>-<Gb/s>x<NICs>, such as ib-ndr-400x8.")
@click.option("--search", is_flag=True, help="Search all layouts that fit, whatever the plan names.")
@click.option(
    "--top", "most", type=click.IntRange(1, 1000), default=20, show_default=True, help="Layouts to list."
)
@click.option("--scale", is_flag=True, help="The first layout, or the search, on 8 to 131,072 devices.")
@click.option(
    "--measured", multiple=True, type=click.Path(path_type=Path), metavar="RUN",
    help="A run whose measured points replace predictions where they are of the same thing.",
)  # fmt: skip
@as_json
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="DIR",
    help="A folder for figures (SVG, PNG), plan.json and plan.txt.",
)  # fmt: skip
def plan(
    plan_file: Path,
    machine: str | None,
    nodes: int | None,
    network: str | None,
    search: bool,
    most: int,
    scale: bool,
    measured: tuple[Path, ...],
    as_json: bool,
    output: Path | None,
) -> None:
    """What a training step asks of the fabric, and what of it shows.

    PLAN.yaml names a model, a machine and a layout (or layouts, or a search); docs/parallelism.md has its
    keys. A plan that ships goes by its name, such as gpt3. For each communication: who, what, how large, how
    often, how long, what of it hides behind computing, which link limits it, and whether that was measured or
    predicted.
    """
    from ccbench.plan.document import load_plan
    from ccbench.plan.planner import Asked, plan_out

    asked = Asked(machine, nodes, network, search, scale, _measured(measured), most)
    planned = plan_out(load_plan(plan_file), asked)
    if as_json:
        from ccbench.plan.text import plan_document

        print_json(plan_document(planned))
    else:
        from ccbench.plan.text import plan_lines

        for line in plan_lines(planned):
            click.echo(line)
    if output is not None:
        _leave(planned, output)


def _measured(paths: tuple[Path, ...]) -> MeasuredPoints | None:
    if not paths:
        return None
    from ccbench.plan.step import measured_points
    from ccbench.results import load_runs

    return measured_points(load_runs(paths, details=False))


def _leave(planned: Planned, folder: Path) -> None:
    """Figures and texts in a folder."""
    from ccbench.report.plan_figures import write_plan

    for path in write_plan(planned, folder):
        say(f"wrote {path}")
