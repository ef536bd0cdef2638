"""``ccbench check``."""

from __future__ import annotations

import shlex
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ccbench.cli.gating import gated, gates, opened
from ccbench.cli.output import (
    PacedLines,
    as_json,
    files_meant,
    folds_sentences,
    place_of,
    print_json,
    say,
    screen_width,
    show_lines,
    typed_options,
    verbosely,
    with_stdin,
)
from ccbench.cli.stating import stated_system, states_where_measured
from ccbench.exit_codes import PARTIAL
from ccbench.units import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccbench.analysis.diagnose import Answer
    from ccbench.results.imported_runs import Imported


MOST_NOTES = 12

NOT_REPEATED = ("files", "output", "force", "gate", "verbose", "as_json")

FEW = 5
"""Files that have a line each."""

LONG_BYTES = 8 << 20
"""A larger text takes seconds to be read (a table's row some 0.1 ms), which is said before."""


def _explain(context: click.Context, _: click.Parameter, code: str | None) -> None:
    """Callback of --explain, which needs no file."""
    from ccbench.analysis.codes import explained

    if code is not None and not context.resilient_parsing:
        show_lines(explained(code))
        context.exit()


@click.command(short_help="Say what a log, a table, a hang or a machine's listing shows.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@states_where_measured
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Keep measured rows there, as a run.",
)
@click.option("--force", is_flag=True, help="Replace an earlier run of tables in -o.")
@gates
@verbosely
@click.option(
    "--explain",
    metavar="CODE",
    is_eager=True,
    expose_value=False,
    callback=_explain,
    help="Say what the rule of a finding's code, as C012, looks at, and end.",
)
@as_json
def check(
    files: tuple[Path, ...],
    output: Path | None,
    force: bool,
    gate: str | None,
    verbose: bool,
    as_json: bool,
    **stated: Any,
) -> int:
    """Say what FILEs show: the answer first, then each finding with its code and cure, then what was not read.

    FILEs are what is at hand, of one incident: output of nccl-tests, OSU and others, an NCCL_DEBUG=INFO log,
    nvidia-smi topo -m, dumps of a hang, a paste of several of them; folders, patterns such as 'logs/*.txt', or
    - for stdin. With -o tables and traces become a run for 'ccbench report' and 'ccbench compare'.

    --machine, --nodes, --ranks, --network, --library and --dtype state what the text does not; without --machine
    the catalog's machine is taken where the text's devices determine it. Exit code 0: NORMAL, LOW, FAST or
    nothing wrong; 1: SLOW, WRONG or a problem; 3: it cannot be said; 4: the program hung; 5: it crashed, rows are
    cut off, or a part was left out.
    """
    from ccbench.analysis.diagnose import answer_of
    from ccbench.errors import UsageError
    from ccbench.readers.evidence import read_evidence
    from ccbench.report.diagnosis_text import diagnosis_document, diagnosis_lines
    from ccbench.results.imported_runs import each_once

    threshold, system = opened(gate), stated_system(**stated)
    with with_stdin(files) as paths:
        once, again = each_once(files_meant(paths))
        read, unread = _readable(once)
        # A case takes some ms, most of them for its file: a table of 200,000 rows takes half an hour.
        progress = PacedLines()
        answer = answer_of(read_evidence(read), system, output, force, progress.show)
        progress.end()
    measured = answer.measured
    runs = () if measured.run is None else (measured.run,)
    # What could not be read is left out of what was.
    code = answer.exit_code
    if unread:
        code = code or PARTIAL if answer.evidence.parts else UsageError.exit_code
    outcome = gated(threshold, code, runs, answer.untimed, answer.sentence)
    kept = output if runs else None
    notes = _notes(
        answer, [*unread, *(f"{path}: given more than once; read once" for path in again)]
    )
    if as_json:
        document = {
            **diagnosis_document(answer),
            "run": None if kept is None else str(kept),
            "files": [_summary(file) for file in measured.files],
            "left_out": [*unread, *chain(*(file.refused for file in measured.files))],
        }
        print_json({**document, **outcome.keys})
        for line in notes:
            say(line)
    else:
        width = screen_width() if folds_sentences() else 1 << 20
        click.echo("\n".join(diagnosis_lines(answer, width, verbose)))
        show_lines(_summary_lines([*map(_summary, measured.files)]))
        show_lines(notes)
        show_lines([f"wrote {kept}"] if kept else _next(answer, paths))
        show_lines(outcome.lines)
    return outcome.code


def _next(answer: Answer, paths: Sequence[Path]) -> list[str]:
    """What to type next: of one kind of text one line."""
    places = [place_of(path) for path in paths[:3]]
    names = shlex.join("-" if place == "stdin" else place for place in places)
    names += " ..." if len(paths) > 3 else ""
    words = [names, *map(shlex.quote, typed_options(NOT_REPEATED))]
    if answer.measured.run is not None:
        return [
            f"next: keep the rows: ccbench check {' '.join(words)} -o RUN && ccbench report RUN"
        ]
    if answer.evidence.trace is not None:
        return [f"next: every group and call: ccbench replay {names}"]
    return []


def _readable(paths: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return (files that can be read, why the others cannot). Raises UsageError where none can."""
    from ccbench.documents import open_file
    from ccbench.errors import UsageError

    read, unread = list[Path](), list[str]()
    for path in paths:
        try:
            if not path.is_dir():
                with open_file(path):
                    pass
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            unread.append(
                f"{place_of(path)}: cannot be read ({reason}); name what a tool printed"
            )
            continue
        size = path.stat().st_size
        if not size:
            say(f"note: {place_of(path)}: is empty; give what a tool printed")
        if size > LONG_BYTES:
            say(f"check: reading {place_of(path)}")
        read.append(path)
    if not read:
        raise UsageError(
            "; ".join(unread) or "nothing there is what a tool printed; name a log"
        )
    return read, unread


def _notes(answer: Answer, unread: Sequence[str]) -> list[str]:
    """Return what else to know, but for reasons that the answer has."""
    from ccbench.report.present import first

    reasons = tuple(verdict.reason for verdict in answer.verdicts if verdict.reason)
    remarks = dict.fromkeys(
        remark
        for remark in (*unread, *answer.remarks)
        if not remark.endswith(reasons) and remark not in answer.sentence
    )
    shown = first(tuple(remarks), MOST_NOTES, "and {} more notes, in --json")
    return [f"note: {line}" for line in shown]


def _summary_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each of a few files, one for all of many."""
    if len(summaries) > FEW:
        rows = sum(summary["rows"] for summary in summaries)
        empty = sum(not summary["rows"] for summary in summaries)
        rest = f", {plural(empty, 'file')} without rows" if empty else ""
        return [f"{len(summaries)} files: {plural(rows, 'row')}{rest}; --json lists each"]
    lines = []
    for summary in summaries:
        words = [
            summary["tool"],
            plural(summary["tables"], "table"),
            plural(summary["rows"], "row"),
        ]
        counts = {"flagged": summary["flagged"], **summary["statuses"], "ok": 0}
        words += [f"{count} {status}" for status, count in counts.items() if count]
        left_out = len(summary["left_out"])
        words += [f"{plural(left_out, 'part')} left out"] if left_out else []
        lines.append(f"{summary['file']}: {', '.join(words)}, {summary['outcome']}")
    return lines


def _summary(file: Imported) -> dict[str, Any]:
    statuses = Counter(case.measurement.status.value for case in file.cases)
    return {
        "file": file.log.source,
        "tool": file.log.tool,
        "tables": len(file.log.tables),
        "rows": len(file.cases),
        "flagged": sum(bool(case.measurement.conditions.flags) for case in file.cases),
        "statuses": dict(statuses),
        "outcome": file.log.outcome.value,
        "machine": file.system.machine,
        "network": file.system.network,
        "notes": list(file.notes),
        "left_out": list(file.refused),
    }
