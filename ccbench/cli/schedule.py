"""``ccbench schedule``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from ccbench.cli.output import check_writable, completing
from ccbench.errors import UsageError


def collectives(context: click.Context) -> Iterable[str]:
    """Names of collectives."""
    from ccbench.collectives import COLLECTIVES

    return COLLECTIVES


def algorithms(context: click.Context) -> Iterable[str]:
    """Names of the algorithms of the collective before."""
    from ccbench.schedules import ALGORITHMS

    chosen = context.params.get("collective")
    return dict.fromkeys(row.name for row in ALGORITHMS if chosen in (None, row.collective))


@click.command(short_help="Print, prove or draw who sends what to whom.")
@click.argument("collective", shell_complete=completing(collectives))
@click.argument("algorithm", shell_complete=completing(algorithms))
@click.option("--ranks", type=click.IntRange(min=1), required=True, help="Number of ranks.")
@click.option(
    "--root", type=click.IntRange(min=0), help="Root rank of a rooted collective; else 0."
)
@click.option(
    "--prove", "proven", is_flag=True, help="Prove that it does what the collective says."
)
@click.option(
    "--draw",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw it: .svg, .png or .pdf.",
)
def schedule(
    collective: str,
    algorithm: str,
    ranks: int,
    root: int | None,
    proven: bool,
    draw: Path | None,
) -> None:
    """Show the schedule of ALGORITHM for COLLECTIVE ('ccbench list algorithms').

    An algorithm may carry its parameter: chain:8, hierarchical:4.
    """
    from ccbench.collectives import COLLECTIVES
    from ccbench.collectives import collective as collective_row
    from ccbench.report.schedule_figure import check_drawable, draw_schedule
    from ccbench.schedules import schedule_for
    from ccbench.schedules.describe import describe, proven_text
    from ccbench.schedules.proof import prove

    if root is not None and not collective_row(collective).rooted:
        rooted = ", ".join(name for name, row in COLLECTIVES.items() if row.rooted)
        raise UsageError(
            f"--root {root}: {collective} has no root ({rooted} have); leave it out"
        )
    built = schedule_for(collective, algorithm, ranks, root=root or 0, prove=False)
    if draw is not None:
        check_drawable(built, draw)
        check_writable(draw, "--draw")
    click.echo(describe(built))
    if proven:
        prove(built)
        click.echo(f"proven: {proven_text(built)}")
    if draw is not None:
        draw_schedule(built, draw)
        click.echo(f"wrote {draw}")
