"""A recorded job as a run: every case with its times in the job, to be set beside runs that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from ccbench.cases.measurement import Conditions, Measurement, Status
from ccbench.errors import UsageError
from ccbench.flags import Flag
from ccbench.readers.benchmarks.log import ImportedLog, StatedSystem
from ccbench.readers.traces.fold import JOB, JobCase, fold
from ccbench.readers.traces.join import have_one_clock
from ccbench.readers.traces.reading import read_traces
from ccbench.results.imported_runs import (
    Imported,
    ImportedCase,
    import_logs,
    replacing_import,
    write_import,
)
from ccbench.results.loading import Run, load_run
from ccbench.results.schema import Origin
from ccbench.results.systems import Pricer
from ccbench.units import plain, plural

MOST_SAMPLES = 10_000
"""Of one case; a job of days has millions, and an interval needs no more."""


def import_job(paths: Sequence[Path], system: StatedSystem) -> Imported:
    """Return the job that all traces at ``paths`` are of as one file of an import.

    A sample is one collective of the job: the transfer where several ranks were recorded, else the time of
    the rank that was, with its waiting. Raises UsageError where a
    trace cannot be read or has no times.
    """
    trace = read_traces(paths)
    folded = fold(trace)
    name = plain(
        ", ".join(path.name for path in paths[:3]) + (", ..." if len(paths) > 3 else ""), 200
    )
    clock = have_one_clock(instance for job in folded.cases for instance in job.instances)
    imported = [
        _case(job_case, name, number, system, clock)
        for number, job_case in enumerate(folded.cases, start=1)
    ]
    cases = tuple(case for case in imported if case is not None)
    if not cases:
        what = (
            "the trace has no times"
            if trace.communications
            else "no communication is recorded here"
        )
        raise UsageError(f"{name}: {what}; 'ccbench replay' says what is in it")
    refused = [f"{name}: {plural(imported.count(None), 'case')} left out: without times"] * (
        None in imported
    )
    refused += [
        f"{name}: {count} x left out: {plain(reason)}"
        for reason, count in folded.not_folded.items()
    ]
    texts = dict.fromkeys(warning.text for warning in (*trace.warnings, *folded.warnings))
    log = ImportedLog(
        JOB, source=name, library=trace.backend, versions=trace.versions, facts=trace.facts
    )
    return Imported(
        log, cases, tuple(refused), tuple(f"{name}: {text}" for text in texts), system
    )


def _case(
    job_case: JobCase, source: str, number: int, system: StatedSystem, one_clock: bool
) -> ImportedCase | None:
    """Return a case with its times; None where it has none. Traces do not say where a rank ran."""
    nodes = -(-job_case.case.ranks // system.devices) if system.devices else 0
    samples: list[float] = []
    for each in job_case.instances:
        seconds = (
            each.transfer_seconds(one_clock) if len(each.seconds) > 1 else sum(each.seconds)
        )
        samples += [seconds or 0.0] * each.count
    samples = [sample for sample in samples if sample > 0][:MOST_SAMPLES]
    if not samples:
        return None
    measurement = Measurement(
        case=replace(job_case.case, nodes=system.nodes or nodes),
        status=Status.OK,
        samples_seconds=tuple(samples),
        stop_reason="imported",
        conditions=Conditions(flags=(Flag.IN_A_JOB,)),
    )
    extra = {"count": job_case.count, "remarks": list(job_case.remarks)}
    line = job_case.instances[0].records[0].line
    return ImportedCase(
        measurement, Origin(source, number, line, JOB, time_statistic="median", extra=extra)
    )


@dataclass(frozen=True)
class Measured:
    """What tables and traces give: as files, and as a run where they have a row. remarks: what else to know."""

    files: tuple[Imported, ...] = ()
    run: Run | None = None
    remarks: tuple[str, ...] = ()


def run_of(
    logs: Sequence[tuple[Path, ImportedLog]],
    traces: Sequence[Path],
    system: StatedSystem,
    folder: Path | None,
    force: bool,
    progress: Callable[[str], None] | None,
) -> Measured:
    """Return what ``logs`` measured; with a ``folder`` also what ``traces`` did, and all is kept there.

    The place of an earlier run of the same files is taken, with ``force`` of any. progress: is given a line before
    every case. Raises RunFolderError where something else is there.
    """
    files, pricer, problems = import_logs(logs, system), Pricer(), list[str]()
    if folder is not None and traces:
        try:
            files = (*files, import_job(traces, system))
        except UsageError as error:
            problems.append(str(error))
    run = None
    if any(file.cases for file in files):
        sources = [file.log.source for file in files]
        name = sources[0] if len(sources) == 1 else f"{len(sources)} files"
        with (
            TemporaryDirectory(prefix="ccbench-check-") as temporary,
            replacing_import(folder or Path(temporary, "run"), sources, force) as new,
        ):
            write_import(new, files, system, name, pricer, progress)
            run = load_run(new, details=False)
    notes = (note for file in files for note in (*file.notes, *file.refused))
    remarks = dict.fromkeys((*notes, *pricer.remarks, *pricer.problems, *problems))
    return Measured(files, run, tuple(remarks))
