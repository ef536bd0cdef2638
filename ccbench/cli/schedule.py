"""``ccbench schedule``, and the option of other commands that takes files of algorithms."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.naming import MACHINE, algorithms, collectives
from ccbench.cli.output import check_writable, completing
from ccbench.errors import UsageError
from ccbench.units import plural

if TYPE_CHECKING:
    from ccbench.schedules import Algorithm


def _use(
    context: click.Context, parameter: click.Parameter, paths: Sequence[Path]
) -> tuple[Algorithm, ...]:
    """Make the files' algorithms available until the command ends, and return them."""
    if not paths:
        return ()
    from ccbench.readers.schedules import open_schedule_files, use_schedule_files

    # Commands that follow in the same process start from the table alone.
    context.call_on_close(lambda: use_schedule_files(()))
    context.meta[f"ccbench.{parameter.name}"] = paths  # for the line to go on with
    return use_schedule_files(open_schedule_files(paths))


schedule_files_option = click.option(
    "--schedule",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=_use,
    expose_value=False,
    help="Measure FILE's algorithms, too: Python that is run, or an MSCCL++ plan; repeatable.",
)


@click.command(short_help="Print, prove, price or draw who sends what to whom.")
@click.argument("collective", required=False, shell_complete=completing(collectives))
@click.argument("algorithm", required=False, shell_complete=completing(algorithms))
@click.option(
    "--file",
    "rows",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    callback=_use,
    help="Take algorithms of FILE: Python that is run, or an MSCCL++ plan; repeatable.",
)
@click.option(
    "--ranks", type=click.IntRange(min=1), help="Number of ranks; a plan has its own."
)
@click.option(
    "--root", type=click.IntRange(min=0), help="Root rank of a rooted collective; else 0."
)
@click.option(
    "--prove", "proven", is_flag=True, help="Prove that it does what the collective says."
)
@click.option(
    "--machine",
    type=MACHINE,
    metavar="NAMExNODES/NETWORK",
    help="Price it there beside ring, the best of ccbench's own and NCCL, from 1 KiB to 1 GiB.",
)
@click.option(
    "--draw",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw it: .svg, .png or .pdf.",
)
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write it as an execution plan of MSCCL++: .json.",
)
def schedule(
    collective: str | None,
    algorithm: str | None,
    rows: tuple[Algorithm, ...],
    ranks: int | None,
    root: int | None,
    proven: bool,
    machine: str | None,
    draw: Path | None,
    export: Path | None,
) -> None:
    """Show the schedule of ALGORITHM for COLLECTIVE ('ccbench list algorithms').

    An algorithm may carry its parameter: chain:8, hierarchical:4. Of a --file with one algorithm both may be
    left out; what a file builds is always proven.
    """
    from ccbench.cli.pricing import show_beside
    from ccbench.collectives import COLLECTIVES
    from ccbench.collectives import collective as collective_row
    from ccbench.report.schedule_figure import check_drawable, draw_schedule
    from ccbench.schedules import schedule_for
    from ccbench.schedules.describe import describe, proven_text
    from ccbench.schedules.export import execution_plan
    from ccbench.schedules.proof import prove

    collective, algorithm, ranks = _chosen(collective, algorithm, ranks, rows)
    if root is not None and not collective_row(collective).rooted:
        rooted = ", ".join(name for name, row in COLLECTIVES.items() if row.rooted)
        raise UsageError(
            f"--root {root}: {collective} has no root ({rooted} have); leave it out"
        )
    built = schedule_for(collective, algorithm, ranks, root=root or 0, prove=False)
    if draw is not None:
        check_drawable(built, draw)
        check_writable(draw, "--draw")
    if export is not None:
        if export.suffix != ".json":
            raise UsageError(f"--export {export}: plans are JSON; write {export.stem}.json")
        check_writable(export, "--export")
        plan = execution_plan(built)
    if rows:
        # What is wrong with a new schedule says more than a description of it.
        prove(built)
    shown = proven or draw is not None or machine is not None or export is None
    if shown:
        click.echo(describe(built))
    if shown and (proven or rows):
        prove(built)
        click.echo(f"proven: {proven_text(built)}")
    if machine is not None:
        show_beside(machine, collective, algorithm, ranks)
    if draw is not None:
        draw_schedule(built, draw)
        click.echo(f"wrote {draw}")
    if export is not None:
        export.write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
        click.echo(f"wrote {export}: {collective} {algorithm}, {plural(ranks, 'rank')}")


def _chosen(
    collective: str | None,
    algorithm: str | None,
    ranks: int | None,
    rows: Sequence[Algorithm],
) -> tuple[str, str, int]:
    """Return collective, algorithm and ranks, those of the files' rows where the command leaves them out."""
    fitting = [row for row in rows if collective in (None, row.collective)]
    if algorithm is None:
        if len(fitting) != 1:
            there = ", ".join(f"{row.collective} {row.name}" for row in fitting or rows)
            raise UsageError(
                f"COLLECTIVE ALGORITHM: missing; the files have {there}"
                if rows
                else "COLLECTIVE ALGORITHM: missing; write all_reduce ring, another of "
                "'ccbench list algorithms', or --file FILE"
            )
        collective, algorithm = fitting[0].collective, fitting[0].name
    assert collective is not None, "an argument follows the one before it"
    own = [row.ranks for row in fitting if row.name == algorithm and row.ranks]
    if ranks is None and not own:
        raise UsageError("--ranks: missing; write --ranks 8")
    return collective, algorithm, ranks or own[0]
