"""``ccbench history``."""

from __future__ import annotations

from pathlib import Path

import click

from ccbench.cli.output import (
    NO_VERDICT_EXIT_CODE,
    as_json,
    file_for,
    fraction,
    leave,
    print_json,
    say_problems,
    show_lines,
)


@click.command(short_help="Show where a machine became faster or slower, over many runs.")
@click.argument(
    "folders", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="DIR..."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write an HTML page: a file, or a folder that is there (history.html in it).",
)
@click.option(
    "--minimum-step",
    default="3%",
    show_default=True,
    metavar="FRACTION",
    callback=fraction,
    help="Smaller steps are not reported.",
)
@click.option(
    "--only", default="", metavar="TEXT", help="Only series whose name contains TEXT."
)
@click.option(
    "--group-by-hardware",
    is_flag=True,
    help="Hosts with the same processor and GPUs are one machine.",
)
@as_json
def history(
    folders: tuple[Path, ...],
    output: Path | None,
    minimum_step: float,
    only: str,
    group_by_hardware: bool,
    as_json: bool,
) -> int:
    """Show medians of the same case over all runs in and below each DIR, and the steps in them.

    Every step is reported with its size, when it came, and what changed on the machine at that time.
    Different machines are kept apart. Exit code 3: no case has enough runs for a step to be seen.
    """
    from ccbench.analysis.history import (
        history_document,
        history_lines,
        history_of,
        run_folders,
    )

    file = file_for(output, "history.html")
    runs_history = history_of(run_folders(folders), minimum_step, group_by_hardware, only)
    say_problems(runs_history.problems)
    if as_json:
        print_json(history_document(runs_history))
    else:
        show_lines(history_lines(runs_history))
    if file is not None:
        from ccbench.report.page_history import history_page

        leave(
            file,
            history_page(
                runs_history, f"History of {', '.join(str(folder) for folder in folders)}"
            ),
        )
    return 0 if runs_history.long_enough else NO_VERDICT_EXIT_CODE
