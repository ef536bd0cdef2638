"""``ccbench tune``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cli.output import (
    as_json,
    file_for,
    fraction,
    latest_run,
    leave,
    say,
    say_problems,
    show_lines,
)
from ccbench.exit_codes import NO_VERDICT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccbench.analysis.tuning import Timing
    from ccbench.results import Run

FILE_NAMES = {
    "table": "advice.txt",
    "json": "advice.json",
    "nccl-env": "nccl.env",
    "nccl-csv": "nccl_tuner.conf",
}
"""Formats, and the names of their files where -o is a folder; the last is the one the plug-in looks for."""


TOKENS = (1, 64, 512)
_COUNTS = re.compile(r"[1-9][0-9]{0,8}([:,][1-9][0-9]{0,8})*", re.ASCII)


def _tokens(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> tuple[int, ...]:
    """Callback of numbers of tokens, ``1:4096:8`` or ``1,64,512``; none where nothing is typed."""
    from ccbench.suite.readers import parse_sizes

    try:
        if text is None or _COUNTS.fullmatch(text):
            parts = text.split(",") if text else ()
            return tuple(count for part in parts for count in parse_sizes(part))
    except ValueError:
        pass  # such as a range that ends before it begins
    raise click.BadParameter(
        "write whole numbers from 1 to 999999999, such as 1,64,512 or 1:4096:8"
    )


@click.command(short_help="Advise which algorithm to run where, from measured points.")
@click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A file, or a folder that is there; else stdout.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(list(FILE_NAMES)),
    default="table",
    show_default=True,
    help="nccl-env: NCCL_ALGO and NCCL_PROTO; nccl-csv: for NCCL's example tuner plug-in.",
)
@click.option(
    "--minimum-gain",
    default="3%",
    show_default=True,
    metavar="FRACTION",
    callback=fraction,
    help="Gains below are not advised.",
)
@click.option(
    "--assume-algorithm",
    "forced",
    multiple=True,
    metavar="SOURCE=ALGORITHM[/PROTOCOL]",
    help="What was forced where an imported log does not say; SOURCE is a part of its name.",
)
@click.option(
    "--reproducible",
    is_flag=True,
    help="Only choices whose bits depend on nothing, the fastest of those that give equal bits.",
)
@click.option(
    "--hidden",
    type=click.IntRange(min=1),
    help="A model's hidden size: what the all_reduces of a layer take, by --tokens.",
)
@click.option(
    "--tokens",
    metavar="NUMBERS",
    callback=_tokens,
    help="Tokens of a batch: FROM:TO:FACTOR, or with commas between; without it 1,64,512.",
)
@as_json
def tune(
    runs: tuple[Path, ...],
    output: Path | None,
    form: str,
    minimum_gain: float,
    forced: tuple[str, ...],
    reproducible: bool,
    hidden: int | None,
    tokens: tuple[int, ...],
    as_json: bool,
) -> int:
    """Show which choice is the fastest at each size, and its gain over the default in bands of sizes.

    All RUNs (run folders, imported ones, 'published:NAME'; else the latest run) are taken together; different
    machines are kept apart. Gains that noise explains are not advised, and sizes that were not measured get no
    advice. Exit code 3: no two choices were measured at one size, and neither --hidden nor what is published
    has an answer.
    """
    from ccbench.analysis.serving import answers_of, best_published
    from ccbench.analysis.tuning import Rules, advise
    from ccbench.cli.answering import answer_document, answer_lines, telling
    from ccbench.errors import UsageError
    from ccbench.report.tuning_formats import advice_document, advice_lines, nccl_csv
    from ccbench.report.tuning_formats import nccl_environment as environment
    from ccbench.results import open_run

    if as_json and form not in ("table", "json"):
        raise UsageError(f"--json and --format {form} cannot both be had; leave one out")
    if tokens and not hidden:
        raise UsageError("--tokens: needs the model's hidden size, such as --hidden 8192")
    tokens = tokens or TOKENS
    rules = Rules(minimum_gain=minimum_gain, reproducible=reproducible)
    file = file_for(output, FILE_NAMES["json" if as_json else form])
    loaded = [open_run(run, details=False) for run in runs or (latest_run(),)]
    timings = _timings(loaded, forced, reproducible)
    # What is published is not beside itself.
    devices = {name for run in loaded if not run.is_published for name in run.devices}
    advice = advise(timings, rules)
    answers = answers_of(timings, best_published(devices))
    lines = [*answer_lines(telling(answers, hidden), hidden, tokens)]
    answered = bool(lines)
    compared = any(advised.compared for advised in advice)
    # Of what is published, releases are pooled there, and none of them is a default.
    if not lines or (compared and not all(run.is_published for run in loaded)):
        lines += ["", *advice_lines(advice, rules)][not lines :]
    if as_json or form == "json":
        leave(
            file,
            advice_document(advice, rules)
            | {"answers": answer_document(answers, hidden, tokens)},
        )
    elif form == "table" and file is None:
        show_lines(lines)
    else:
        text = {
            "table": lambda: "\n".join(lines) + "\n",
            "nccl-env": lambda: environment(timings, rules),
            "nccl-csv": lambda: nccl_csv(timings, rules),
        }[form]()
        leave(file, text)
    return 0 if compared or answered else NO_VERDICT


def _timings(
    loaded: Sequence[Run], forced: tuple[str, ...], reproducible: bool
) -> list[Timing]:
    """Times to advise by; notes say what is left out. forced, reproducible: as of ``tune``."""
    from ccbench.analysis.bits import reproducible_cases
    from ccbench.analysis.serving import sound
    from ccbench.analysis.tuning import forced_from, timings_of
    from ccbench.units import plural

    say_problems([problem for run in loaded for problem in run.problems])
    kept = reproducible_cases(loaded) if reproducible else None
    every = timings_of(loaded, forced_from(forced) if forced else None, kept)
    timings = sound(every)
    if ill := len(every) - len(timings):
        say(f"note: {plural(ill, 'point')} left out: the machine was ill")
    return timings
