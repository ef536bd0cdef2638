"""``ccbench replay``."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ccbench.cli.naming import BACKEND
from ccbench.cli.output import as_json, check_writable, print_json, say, screen_width
from ccbench.cli.stating import on_machine
from ccbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccbench.cases.axes import Case
    from ccbench.plan.replay import Alone
    from ccbench.readers.traces.fold import Fold
    from ccbench.results import Point


@click.command(
    short_help="Say what the communication of a recorded job costs, there and elsewhere."
)
@click.argument(
    "traces", nargs=-1, required=True, metavar="TRACE...", type=click.Path(path_type=Path)
)
@click.option(
    "--plan", is_flag=True, help="Show the job's cases and their share; measure nothing."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A suite of the cases (.yaml).",
)
@click.option("--backend", type=BACKEND, help="Measure each case once on this backend.")
@click.option(
    "--ranks", type=click.IntRange(min=2), help="Ranks to measure or predict on, at most."
)
@on_machine("Machine to predict for: a name, a file, or 'detect'")
@click.option(
    "--launch", metavar="COMMAND", help="Command that starts ranks, such as 'mpirun -n 16'."
)
@click.option("--only", metavar="TEXT", help="Only cases whose line has every word of TEXT.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@as_json
def replay(
    traces: tuple[Path, ...], plan: bool, output: Path | None, as_json: bool, **settings: Any
) -> int:
    """Say where the time of a job's collectives went, from its TRACEs, and what they take alone.

    Traces are files or folders of torch.profiler (Kineto), Flight Recorder (pickle or JSON) or NCCL Inspector, of one
    rank or several; docs/model.md says how to record them. With --backend each case is measured here, with
    --machine predicted.
    """
    from ccbench.plan.replay import replay as taken_apart
    from ccbench.plan.replay import suite_of
    from ccbench.readers.traces.fold import fold
    from ccbench.readers.traces.reading import read_traces
    from ccbench.report.replay_text import replay_document, replay_lines
    from ccbench.report.writing import write_file
    from ccbench.runner.workers.rendezvous import launched_process

    # Under mpirun every process would read all traces and start ranks of its own.
    if launched_process(os.environ) is not None:
        raise UsageError(
            "replay starts its ranks itself: run it once, with --launch 'mpirun -n 16' --ranks 16"
        )
    ending = output.suffix.lower() if output else ""
    if output and ending not in (".yaml", ".yml"):
        raise UsageError(f"-o {output}: end it in .yaml for a suite")
    if not plan:
        if settings["launch"] and not settings["backend"]:
            raise UsageError(
                f"--launch {settings['launch']}: say with --backend what its ranks measure with"
            )
        for name in ("nodes", "network"):
            if settings[name] and not settings["machine"] and not settings["backend"]:
                raise UsageError(f"--{name} {settings[name]}: say with --machine what is there")
    # Before hours of measuring, not after them.
    if output:
        check_writable(output, "-o")
    trace = read_traces(traces)
    folded = _only(fold(trace, settings["ranks"] or 0), settings["only"])
    name = ", ".join(dict.fromkeys(path.name for path in traces[:3]))
    code, compared = 0, ""
    joined = f"{settings['nodes']} x " if (settings["nodes"] or 1) > 1 else ""
    place = f"{joined}{settings['machine'] or 'this machine'}"
    alone: dict[Case, Alone] = {}
    if folded.cases and settings["machine"]:
        alone, compared = _predicted(folded, settings), f"predicted for {place}"
    if folded.cases and not plan and settings["backend"]:
        code, measured_by, alone = _measured(folded, name, settings, alone)
        compared = ", ".join(filter(None, (measured_by, compared)))
    result = taken_apart(trace, folded, alone, compared, place)
    if as_json:
        print_json(replay_document(result))
    else:
        click.echo("\n".join(replay_lines(result, screen_width())))
    if output:
        write_file(output, suite_of(result, name, settings["ranks"]).encode())
        say(f"wrote {output}; measure it with: ccbench run {output}")
    return code


def _only(folded: Fold, only: str | None) -> Fold:
    """The cases whose label has every word of ``only``, as in ``ccbench run``. UsageError where none has."""
    from ccbench.suite.expansion import selected

    chosen = (
        set(selected(tuple(job_case.case for job_case in folded.cases), only))
        if folded.cases
        else set()
    )
    return replace(
        folded,
        cases=tuple(job_case for job_case in folded.cases if job_case.case in chosen),
        overlaps=tuple(
            overlap for overlap in folded.overlaps if {overlap.case, overlap.other} & chosen
        ),
    )


def _predicted(folded: Fold, settings: Mapping[str, Any]) -> dict[Case, Alone]:
    """Predictions of each case on --machine, on as many nodes as hold its ranks unless --nodes says.

    A case of more ranks than --nodes have is priced on fewer, and marked. Nothing where the machine is a host
    and --backend says what runs on it: that run predicts its cases itself.
    """
    from ccbench.cases.capabilities import PricedBy, capabilities_of
    from ccbench.cli.pricing import LIBRARY
    from ccbench.model.context import named_context
    from ccbench.plan.replay import Alone
    from ccbench.readers.traces.fold import fitted

    context = named_context(settings["machine"], settings["network"])
    if context.gpus is None or not context.gpus.gpus:
        if settings["backend"]:
            return {}
        raise UsageError(
            f"--machine {settings['machine']}: has no GPUs; to price a host, add --backend simulated"
        )
    each = len(context.gpus.gpus)
    most = settings["ranks"] or (settings["nodes"] * each if settings["nodes"] else None)
    here, refused = fitted(folded.cases, most)
    alone = {case: Alone(remark=f"not priced: {why}") for case, why in refused.items()}
    for whole, (case, remark) in here.items():
        able = capabilities_of(case.backend).priced_by is PricedBy.GPU_LIBRARY
        nodes = max(settings["nodes"] or 1, -(-case.ranks // each))
        if case.ranks % nodes:
            alone[whole] = Alone(
                remark=f"not priced: {case.ranks} ranks do not spread evenly over {nodes} machines"
            )
            continue
        # The model prices GPU libraries; a job of Gloo is priced as if such a library ran it there.
        case = replace(case, backend=case.backend if able else LIBRARY, nodes=nodes)
        if nodes > 1 and not settings["network"]:
            raise UsageError(
                f"--machine {settings['machine']}: {case.ranks} ranks are on {nodes} of it; say what joins "
                "them: --network ib-ndr-400x8, or fewer: --ranks"
            )
        default = context.predict(case)
        if default is None:
            alone[whole] = Alone(remark=f"{case.collective}: the model has no price")
            continue
        alone[whole] = Alone(
            predicted_seconds=default.predicted_seconds,
            bound_seconds=default.bound_seconds,
            remark=remark,
        )
    return alone


def _measured(
    folded: Fold, name: str, settings: Mapping[str, Any], alone: Mapping[Case, Alone]
) -> tuple[int, str, dict[Case, Alone]]:
    """Measure each case once. Return the exit code, words for where, and ``alone`` with what each took."""
    from ccbench.machine.host import Terminated
    from ccbench.plan.replay import Alone
    from ccbench.readers.traces.fold import fitted, suite_text
    from ccbench.results import load_run
    from ccbench.runner.planning import RunOptions, automatic_ranks
    from ccbench.runner.progress import progress_for
    from ccbench.runner.run import run_suite
    from ccbench.suite.model import read_suite

    backend, launch = settings["backend"], settings["launch"] or ""
    if launch and not settings["ranks"]:
        raise UsageError(f"--launch {launch}: say with --ranks how many ranks it starts")
    most = settings["ranks"] or automatic_ranks((backend,))
    here, refused = fitted(folded.cases, most)
    results = {
        **alone,
        **{case: Alone(remark=f"not measured: {why}") for case, why in refused.items()},
    }
    if not here:
        return 0, "", results
    # One run for all, so that its conditions are the same for each case.
    jobs = [
        replace(job_case, case=here[job_case.case][0])
        for job_case in folded.cases
        if job_case.case in here
    ]
    suite = read_suite(suite_text(jobs, name), place="the job's suite", name="replay")
    options = RunOptions(
        backends=(backend,),
        machine=settings["machine"],
        nodes=settings["nodes"],
        network=settings["network"],
        launch=launch,
        oversubscribe=True,  # ranks of a job that was recorded elsewhere
    )
    try:
        outcome = run_suite(suite, options, progress_for(sys.stderr, settings["quiet"]))
    except Terminated as stop:
        return stop.exit_code, "", results
    say(f"run folder: {outcome.folder}")
    points = {_asked_of(point): point for point in load_run(outcome.folder).points}
    for whole, (case, remark) in here.items():
        point = points.get(_asked_of(case))
        there = alone.get(whole, Alone())
        if point is None or point.median_seconds is None:
            remark = f"not measured: {(point.detail or point.status.value) if point else 'no such case'}"
        # The model's figures for --machine, where it was named, stand before those of the run's own machine.
        if point is not None and whole not in alone:
            there = Alone(
                predicted_seconds=point.predicted_seconds, bound_seconds=point.bound_seconds
            )
        if point is not None:
            there = replace(
                there,
                measured_seconds=point.median_seconds,
            )
        remarks = dict.fromkeys(filter(None, (remark, there.remark)))
        results[whole] = replace(there, remark="; ".join(remarks))
    return outcome.exit_code, f"measured on {backend}, {outcome.folder}", results


_OF_A_RUN = ("backend", "processes", "nodes")
"""Axes that a run adds to the cases of a job."""


def _asked_of(point: Case | Point) -> tuple[Any, ...]:
    """Values that a case of the job and the point measured for it have in common."""
    from ccbench.cases.axes import IDENTITY

    return tuple(getattr(point, axis.name) for axis in IDENTITY if axis.name not in _OF_A_RUN)
