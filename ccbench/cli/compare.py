"""``ccbench compare``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ccbench.cases.axes import IDENTITY, Axis
from ccbench.cli.naming import baselines
from ccbench.cli.output import (
    as_json,
    check_writable,
    completing,
    fraction,
    latest_run,
    leave,
    say,
    screen_width,
    show_lines,
)
from ccbench.errors import RunFolderError, UsageError
from ccbench.exit_codes import FINE, NO_VERDICT, PROBLEM
from ccbench.flags import Flag
from ccbench.units import shown, suggestion

if TYPE_CHECKING:
    from ccbench.analysis.verdicts import Compared
    from ccbench.results import Run


def _flags(context: click.Context, parameter: click.Parameter, text: str) -> frozenset[str]:
    """Flags of a list with commas; a word that no row can have would accept nothing."""
    accepted = frozenset(word.strip() for word in text.split(",") if word.strip())
    for word in sorted(accepted - {*Flag}):
        raise UsageError(
            f"{parameter.opts[0]}: {shown(word)} is no flag; {suggestion(word, map(str, Flag))}"
        )
    return accepted


VERSION = "version"
BY_VERSION = "name one run, and write table or json"

FORMATS = {".json": "json", ".md": "md", ".xml": "junit"}
"""Format by the ending of -o, where --format names none."""


@click.command(short_help="Verdict on two runs or more, point by point.")
@click.argument(
    "runs",
    nargs=-1,
    metavar="[BASE] [NEW]...",
    shell_complete=completing(baselines, "dir"),
)
@click.option(
    "--fail-over",
    "--threshold",
    "threshold",
    callback=fraction,
    help="Least change that counts: 5%; against the model and published figures what healthy systems "
    "differ by, else 30%.",
)
@click.option(
    "--max-undecided",
    "undecided",
    default="0%",
    show_default=True,
    callback=fraction,
    help="Share of points whose interval may be too wide.",
)
@click.option(
    "--accept-flags",
    "accepted_flags",
    default="",
    callback=_flags,
    metavar="LIST",
    help="Flags that do not make a point doubtful: steal,...",
)
@click.option("--across-machines", is_flag=True, help="Compare although hardware differs.")
@click.option(
    "--same-bits",
    is_flag=True,
    help="Bits alone decide: 1 where any changed; both runs need 'accuracy: bits' in their suite.",
)
@click.option(
    "--by",
    "axis",
    metavar="AXIS",
    help="Of one RUN: its values of an axis, such as variant; or version: slower releases.",
)
@click.option(
    "--base", default="", metavar="VALUE", help="Of --by: what the others are compared with."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "md", "junit"]),
    default="table",
    show_default=True,
    help="What is written; else as -o ends, in .json, .md or .xml.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write there, and only the verdict here.",
)
@as_json
def compare(
    runs: tuple[str, ...],
    threshold: float | None,
    undecided: float,
    accepted_flags: frozenset[str],
    across_machines: bool,
    same_bits: bool,
    axis: str | None,
    base: str,
    form: str,
    output: Path | None,
    as_json: bool,
) -> int:
    """Compare NEW with BASE (run folders, or names of 'ccbench list runs'): slower, faster, the same, or why
    there is no verdict.

    BASE may be 'published' (what is nearest, or one by name: 'published:hgx-h100'), or 'model' for NEW's own
    predictions; with --by AXIS one run is named, and the base is one of its values of the axis; a run of --vary
    needs no axis. Runs that differ in one axis alone are compared along it. Several NEW
    make a table, each beside BASE. Without any the latest run is NEW, and the one before it of its suite BASE,
    unless it was varied. With 'published' and 'model' NEW's own verdict is the exit code.
    Exit code 1: something is slower, or wrong, or with --same-bits its bits changed; 3: nothing is, but something
    was not decided, or BASE is missing; 0: nothing is slower.
    """
    from ccbench.analysis.comparison import MODEL_THRESHOLD, compare_by, compare_with_model
    from ccbench.analysis.comparison import compare as compare_runs
    from ccbench.analysis.verdicts import DEFAULT_THRESHOLD, MODEL, Settings
    from ccbench.analysis.winner import compared_values, varied
    from ccbench.report.baselines import open_base
    from ccbench.report.comparison_text import document, junit, markdown, screen
    from ccbench.results import open_run
    from ccbench.results.loading import PREFIX

    runs = runs or _latest(axis)
    form = "json" if as_json else form
    if output is not None:
        check_writable(output, "-o")
        if form == "table":
            form = _form_of(output)
    against_model = runs[0] == MODEL
    # Nobody measured these here: what healthy systems differ by is no change.
    published = not axis and runs[0].partition(":")[0] == PREFIX.rstrip(":")
    by_systems = against_model or published
    usual = MODEL_THRESHOLD if by_systems else DEFAULT_THRESHOLD
    default = usual if threshold is None else threshold
    _refuse_unless(0 < default < 1, "--fail-over", "write more than 0% and less than 100%")
    settings = Settings(
        threshold=default,
        undecided=undecided,
        across_machines=across_machines,
        accepted_flags=accepted_flags,
        by_systems=by_systems and threshold is None,
        same_bits=same_bits,
    )
    _refuse_unless(bool(axis) or not base, "--base", "say of what: --by variant")
    new = open_run(runs[-1], details=False)
    if axis == VERSION:
        _refuse_unless(len(runs) == 1 and form in ("table", "json"), "--by version", BY_VERSION)
        return _releases(new, threshold, form, output)
    by, first = (_axis(axis), base) if axis else varied(new) if len(runs) == 1 else (None, "")
    fits = len(runs) == 1 if by else len(runs) == 2 or (len(runs) > 2 and not against_model)
    cure = "name one run" if axis else "name two runs: BASE NEW, or model RUN"
    _refuse_unless(fits, "compare", cure)
    if by:
        compared = (compare_by if axis else compared_values)(new, by, first, settings)
    elif against_model:
        compared = compare_with_model(new, settings)
    else:
        try:
            old = open_base(runs[0], new.points)
        except RunFolderError as error:
            return _without_base(error, new if published else None)
        if len(runs) > 2:
            each = [compare_runs(old, run, settings) for run in runs[1:]]
            return _table_of_runs(each, form, output)
        compared = compare_runs(old, new, settings)
    writers = {"json": document, "md": markdown, "junit": junit}
    text = writers[form](compared) if form in writers else screen(compared, screen_width())
    _leave(text, output, compared.sentence)
    return compared.exit_code


def _latest(axis: str | None) -> tuple[str, ...]:
    """The latest run, after the one before it of the same suite where it has nothing to compare by itself."""
    from ccbench.analysis.winner import varied
    from ccbench.results.loading import load_run, runs_of

    path = latest_run()
    new = load_run(path, details=False)
    if axis or varied(new)[0]:
        return (str(path),)
    for before in reversed(runs_of()[:-1]):
        if load_run(before, details=False).suite == new.suite:
            say(f"base: {before}")
            return str(before), str(path)
    raise UsageError(
        f"compare: no run of {new.suite} before {path}; measure again, or name two runs: BASE NEW"
    )


def _without_base(error: RunFolderError, new: Run | None) -> int:
    """Say why there is nothing to compare with; the verdict of ``new`` stands by itself. Returns the exit code."""
    from ccbench.analysis.gate import verdict_code
    from ccbench.analysis.speed_verdict import speed_verdicts
    from ccbench.report.wording import speed_lines

    say(f"ccbench: no verdict: nothing to compare with: {' '.join(str(error).split())}")
    if new is None:
        return NO_VERDICT
    show_lines(speed_lines(speed_verdicts(new)))
    return verdict_code((new,)) or NO_VERDICT


def _form_of(output: Path) -> str:
    """Format by the ending of a name; a table where there is none or .txt."""
    ending = output.suffix.lower()
    cure = f"{shown(ending)} is not written; end it in .json, .md, .xml or .txt"
    _refuse_unless(ending in (*FORMATS, "", ".txt", ".log"), f"-o {output}", cure)
    return FORMATS.get(ending, "table")


def _axis(word: str) -> Axis:
    named = {name: axis for axis in IDENTITY for name in (axis.key, axis.name)}
    if word not in named:
        raise UsageError(f"--by: {shown(word)} is no axis; {suggestion(word, named)}")
    return named[word]


def _refuse_unless(fine: bool, where: str, cure: str) -> None:
    if not fine:
        raise UsageError(f"{where}: {cure}")


def _table_of_runs(each: Sequence[Compared], form: str, output: Path | None) -> int:
    from ccbench.report.comparison_text import document, runs_screen, sentences

    cure = "write table or json of more than two runs"
    _refuse_unless(form in ("table", "json"), "compare --format", cure)
    exit_code = max(
        (compared.exit_code for compared in each), key=(FINE, NO_VERDICT, PROBLEM).index
    )
    documents = {"exit_code": exit_code, "runs": list(map(document, each))}
    result = runs_screen(each, screen_width()) if form == "table" else documents
    _leave(result, output, "\n".join(sentences(each)))
    return exit_code


def _releases(run: Run, threshold: float | None, form: str, output: Path | None) -> int:
    """Leave a line, or an object, for each release that is slower than the one before. Returns the exit code."""
    from ccbench.analysis.releases import THRESHOLD, slower_releases
    from ccbench.units import percent, plural

    limit = THRESHOLD if threshold is None else threshold
    slower = slower_releases(run, limit)
    count = plural(len(slower), "release") if slower else "no release"
    sentence = f"{count} slower than the one before by more than {percent(limit)} at some size"
    code = PROBLEM if slower else FINE
    lines = [each.text for each in slower] + [sentence]
    document = {"exit_code": code, "slower": [each.document for each in slower]}
    _leave(document if form == "json" else "\n".join(lines) + "\n", output, sentence)
    return code


def _leave(result: object, output: Path | None, sentence: str) -> None:
    """Leave the result on stdout, or in the file and the sentence on stdout."""
    leave(output, result)
    if output is not None:
        click.echo(sentence)
