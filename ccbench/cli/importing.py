"""``ccbench import``."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ccbench.cli.gating import gated, gates, opened
from ccbench.cli.output import (
    NO_VERDICT_EXIT_CODE,
    PacedLines,
    as_json,
    files_meant,
    place_of,
    print_json,
    say,
    screen_width,
    show_lines,
    with_stdin,
)
from ccbench.cli.run import RESULTS
from ccbench.cli.stating import stated_system, states_where_measured
from ccbench.units import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccbench.readers.benchmarks.log import ImportedLog, StatedSystem
    from ccbench.results.imported_runs import Imported
    from ccbench.results.systems import Pricer

PARTIAL_EXIT_CODE = 5

FEW = 5
"""Verdicts, causes and files that have a line each; more become a table and a sum."""

MOST_NOTES = 12

LONG_BYTES = 8 << 20
"""A larger log takes seconds to be read (a table's row some 0.1 ms), which is said before."""


@click.command("import", short_help="Make a run of what another tool printed.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@states_where_measured
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The run folder itself.")
@click.option("--force", is_flag=True, help="Replace an earlier import in -o, of any files.")
@gates
@as_json
def import_files(
    files: tuple[Path, ...],
    output: Path | None,
    force: bool,
    gate: str | None,
    as_json: bool,
    **stated: Any,
) -> int:
    """Make one run of all FILEs: output of nccl-tests, rccl-tests, OSU, Intel MPI Benchmarks and others.

    FILE may be a folder, a pattern such as 'logs/*.txt', or - for stdin. An import of the same files into
    the same -o replaces the earlier one.

    Traces of a job, and folders of them, as 'ccbench replay' takes them, become one case for each different
    collective, with its times in the job: 'ccbench compare RUN JOB' sets them beside a run.

    The tool is recognised from the file's text. --machine, --nodes, --ranks, --network, --library and
    --dtype state what it does not; a library or type other than the file's is an error. Tables that still
    lack their ranks are left out and listed. Without --machine, predictions are of the catalog's machine if
    the file's devices determine it, and a note says so. Exit code 1: SLOW, WRONG, or a crash before the first
    row; 3: CANNOT SAY; 4: the program hung; 5: it crashed, the output is cut off, or something was left out.
    """
    from ccbench.analysis.speed_verdict import speed_verdicts, unmeasured
    from ccbench.report.present import first
    from ccbench.report.run_screen import verdict_rows
    from ccbench.report.wording import measured_text, more_findings, points_of, speed_lines
    from ccbench.results import load_run
    from ccbench.results.imported_runs import each_once
    from ccbench.results.systems import Pricer

    threshold = opened(gate)
    system, pricer = stated_system(**stated), Pricer()
    with with_stdin(files) as paths:
        once, again = each_once(files_meant(paths))
        imported_files, problems = _imported(once, system)
        nothing = NO_VERDICT_EXIT_CODE if all(path.is_file() for path in once) else 2
    left_out = [*problems, *(line for file in imported_files for line in file.refused)]
    folder = None
    if any(file.cases for file in imported_files):
        folder = _written(imported_files, system, pricer, output, force)
    summaries = [_summary(file) for file in imported_files]
    imported = None if folder is None else load_run(folder, details=False)
    untimed = unmeasured(imported_files)
    verdicts = (*untimed, *(speed_verdicts(imported) if imported else ()))
    ends = filter(None, (file.exit_code for file in imported_files))
    own_code = min(ends, default=PARTIAL_EXIT_CODE if problems else 0)
    if not (folder or verdicts):
        own_code = nothing
    outcome = gated(threshold, own_code, (imported,) if imported else (), untimed)
    if as_json:
        run = None if folder is None else str(folder)
        speeds = [verdict.document for verdict in verdicts]
        document = {"run": run, "files": summaries, "left_out": left_out}
        print_json({**document, "speed_verdicts": speeds, **outcome.keys})
    else:
        # Whether the numbers are normal, and what to do about it, is what most logs are imported for.
        shown = [verdict.finding for verdict in verdicts if verdict.finding is not None]
        more = more_findings(imported, shown) if imported else []
        lines = [*map(str, shown[:FEW]), *more, *_summary_lines(summaries)]
        if len(verdicts) > FEW:
            click.echo("\n".join(verdict_rows(verdicts, screen_width())))
        else:
            # Where no healthy system of the kind is known, what was measured is the answer.
            figures = [] if imported is None else [measured_text(points_of(imported))]
            lines[:0] = speed_lines(verdicts) or figures
        show_lines(lines)
        show_lines([*[f"wrote {folder}"] * (folder is not None), *outcome.lines])
    repeated = (f"{path}: given more than once; read once" for path in again)
    notes = (note for file in imported_files for note in file.notes)
    reasons = tuple(verdict.reason for verdict in verdicts if verdict.reason)
    remarks = (*repeated, *notes, *pricer.remarks, *pricer.problems, *left_out)
    remarks = tuple(dict.fromkeys(line for line in remarks if not line.endswith(reasons)))
    for line in first(remarks, MOST_NOTES, "and {} more notes, in --json"):
        say(f"note: {line}")
    if folder is None:
        say("ccbench: import: nothing could be imported; the notes above say why")
    return outcome.code


def _written(
    files: Sequence[Imported],
    system: StatedSystem,
    pricer: Pricer,
    output: Path | None,
    force: bool,
) -> Path:
    """Write the run of ``files``; returns its folder, ``output`` or the usual one."""
    from ccbench.results import default_folder
    from ccbench.results.imported_runs import replacing_import, write_import

    name, stem = f"{len(files)} files", f"{len(files)}-files"
    if len(files) == 1:
        name = files[0].log.source
        stem = Path(name).stem
    # The host is not the one that measured. The usual folder is made as it is named.
    folder = output or default_folder(RESULTS, stem, "imported", datetime.now(timezone.utc))
    sources = [file.log.source for file in files]
    with replacing_import(folder, sources, force) as new:
        # A case takes some ms, most of them for its file: a table of 200,000 rows takes half an hour.
        progress = PacedLines()
        write_import(new, files, system, name, pricer, progress.show)
        progress.end()
    return folder


def _imported(
    paths: Sequence[Path], system: StatedSystem
) -> tuple[tuple[Imported, ...], list[str]]:
    """Return what each file gives, all traces together, and why others give nothing."""
    from ccbench.errors import CcbenchError
    from ccbench.readers.benchmarks import read_log
    from ccbench.readers.traces.reading import is_trace
    from ccbench.results.imported_job import import_job
    from ccbench.results.imported_runs import import_logs

    traces = [path for path in paths if is_trace(path, logs=False)]
    logs: list[tuple[Path, ImportedLog]] = []
    jobs: list[Imported] = []
    problems: list[str] = []
    for path in paths:
        if path in traces:
            continue
        try:
            if path.is_file() and path.stat().st_size > LONG_BYTES:
                say(f"import: reading {place_of(path)}")
            log, error = read_log(path, place_of(path)), ""
        except CcbenchError as refused:
            log, error = None, " ".join(str(refused).split())
        # A job's log with a table is what a benchmark printed.
        if (log is None or not log.tables) and is_trace(path):
            traces.append(path)
        elif log is not None:
            logs.append((path, log))
        else:
            problems.append(error)
    if traces:
        try:
            jobs.append(import_job(traces, system))
        except CcbenchError as refused:
            problems.append(" ".join(str(refused).split()))
    return (*import_logs(logs, system), *jobs), problems


def _summary_lines(summaries: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each of a few files, one for all of many."""
    if len(summaries) > FEW:
        rows = sum(summary["rows"] for summary in summaries)
        empty = sum(not summary["rows"] for summary in summaries)
        rest = f", {plural(empty, 'file')} without rows" * bool(empty)
        return [f"{len(summaries)} files: {rows} rows{rest}; --json lists each"]
    lines = []
    for summary in summaries:
        words = [
            summary["tool"],
            plural(summary["tables"], "table"),
            plural(summary["rows"], "row"),
        ]
        counts = {"flagged": summary["flagged"], **summary["statuses"], "ok": 0}
        words += [f"{count} {status}" for status, count in counts.items() if count]
        words += [f"{plural(len(summary['left_out']), 'part')} left out"] * bool(
            summary["left_out"]
        )
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
