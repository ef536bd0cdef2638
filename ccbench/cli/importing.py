"""``ccbench import``."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ccbench.cli.output import as_json, print_json, say
from ccbench.cli.run import RESULTS
from ccbench.cli.stating import stated_system, states_where_measured
from ccbench.units import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccbench.readers.benchmarks.log import ImportedLog, StatedSystem
    from ccbench.results.imported_runs import Imported

PARTIAL_EXIT_CODE = 5


@click.command("import", short_help="Make a run of what another tool printed.")
@click.argument(
    "files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE..."
)
@states_where_measured
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The run folder itself.")
@as_json
def import_files(
    files: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
    **stated: Any,
) -> int:
    """Make one run of all FILEs: output of nccl-tests, rccl-tests, OSU, Intel MPI Benchmarks and others.

    Traces of a job, and folders of them, as 'ccbench replay' takes them, become one case for each different
    collective, with its times in the job: 'ccbench compare RUN JOB' sets them beside a run.

    The tool is recognised from the file's text. --machine, --nodes, --ranks, --network, --library and
    --dtype state what it does not; a library or type other than the file's is an error. Tables that still
    lack their ranks are left out and listed. Without --machine, predictions are of the catalog's machine if
    the file's devices determine it, and a note says so. Exit code 1: a case gave wrong results; 4: the
    program hung; 5: it crashed, the output is cut off, or something was left out.
    """
    from ccbench.analysis.speed_verdict import speed_verdicts, unmeasured
    from ccbench.report.wording import more_findings, speed_lines
    from ccbench.results import default_folder, load_run
    from ccbench.results.imported_runs import each_once, write_import
    from ccbench.results.systems import Pricer

    system, pricer = stated_system(**stated), Pricer()
    once, again = each_once(files)
    imported_files, problems = _imported(once, system)
    left_out = [*problems, *(line for file in imported_files for line in file.refused)]
    folder = None
    if any(file.cases for file in imported_files):
        name, stem = f"{len(imported_files)} files", f"{len(imported_files)}-files"
        if len(imported_files) == 1:
            name = imported_files[0].log.source
            stem = Path(name).stem
        # The host is not the one that measured. The usual folder is made as it is named.
        kept = output or default_folder(RESULTS, stem, "imported", datetime.now(timezone.utc))
        folder = write_import(kept, imported_files, system, name, pricer)
    summaries = [_summary(file) for file in imported_files]
    imported = None if folder is None else load_run(folder, details=False)
    verdicts = (*unmeasured(imported_files), *(speed_verdicts(imported) if imported else ()))
    if as_json:
        run = None if folder is None else str(folder)
        speeds = [verdict.document for verdict in verdicts]
        print_json(
            {"run": run, "files": summaries, "left_out": left_out, "speed_verdicts": speeds}
        )
    else:
        # Whether the numbers are normal, and what to do about it, is what most logs are imported for.
        shown = [verdict.finding for verdict in verdicts if verdict.finding is not None]
        more = more_findings(imported, shown) if imported else []
        for line in (*speed_lines(verdicts), *shown, *more):
            click.echo(line)
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
            click.echo(f"{summary['file']}: {', '.join(words)}, {summary['outcome']}")
        if folder is not None:
            click.echo(f"wrote {folder}")
    repeated = (f"{path}: given more than once; read once" for path in again)
    notes = (note for file in imported_files for note in file.notes)
    reasons = tuple(verdict.reason for verdict in verdicts if verdict.reason)
    for line in (*repeated, *notes, *pricer.remarks, *pricer.problems, *left_out):
        if not line.endswith(reasons):
            say(f"note: {line}")
    if folder is None:
        say("ccbench: error: import: nothing could be imported; the notes above say why")
        if not verdicts:
            return 2
    return min(
        filter(None, (file.exit_code for file in imported_files)),
        default=PARTIAL_EXIT_CODE if problems else 0,
    )


def _imported(
    paths: Sequence[Path], system: StatedSystem
) -> tuple[tuple[Imported, ...], list[str]]:
    """Return what each file gives, all traces together, and why others give nothing."""
    from ccbench.errors import CcbenchError
    from ccbench.readers.benchmarks import read_log
    from ccbench.readers.traces.reading import is_trace
    from ccbench.results.imported_job import import_job
    from ccbench.results.imported_runs import import_logs

    traces = [path for path in paths if is_trace(path)]
    logs: list[tuple[Path, ImportedLog]] = []
    jobs: list[Imported] = []
    problems: list[str] = []
    for path in paths:
        try:
            if path not in traces:
                logs.append((path, read_log(path)))
            elif path == traces[0]:
                jobs.append(import_job(traces, system))
        except CcbenchError as error:  # noqa: PERF203  # each file may fail by itself
            problems.append(" ".join(str(error).split()))
    return (*import_logs(logs, system), *jobs), problems


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
