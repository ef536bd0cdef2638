"""``ccbench run``."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ccbench.cases.axes import PROCESSES
from ccbench.cli.gating import Gated, gated, gates, opened
from ccbench.cli.naming import BACKEND, suites
from ccbench.cli.output import (
    as_json,
    completing,
    drawn_as_far_as_possible,
    drop,
    duration,
    every_case,
    exit_code_of,
    folds_sentences,
    print_json,
    say,
    say_files,
    screen_width,
    show_lines,
    typed_options,
)
from ccbench.cli.schedule import schedule_files_option
from ccbench.cli.stating import on_machine
from ccbench.cli.sweep_options import GroupedCommand, collective_of, suite_of, sweep_options
from ccbench.errors import UsageError
from ccbench.flags import Flag
from ccbench.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ccbench.analysis.gate import Gate
    from ccbench.cases.axes import Case
    from ccbench.model import Prediction
    from ccbench.results import Run
    from ccbench.runner.planning import Plan, RunOptions
    from ccbench.runner.run import RunOutcome
    from ccbench.suite.model import Suite

NOT_REPEATED = {
    "suite",
    "output",
    "resume",
    "plan",
    "time_limit_seconds",
    "no_report",
    "quiet",
    "verbose",
    "save",
    "as_json",
}
"""Parameters that the line to go on with leaves out: they do not belong to the run's cases."""


@dataclass(frozen=True)
class Shown:
    """Parts of a run that are shown. suite: as typed. every: each case in a row. draw: files of the report, too.

    outcome: of a gate.
    """

    suite: str
    every: bool
    draw: bool
    as_json: bool
    outcome: Gated


Priced = tuple["Case", "Prediction | None"]

FORMATS = ("html", "md", "csv")
"""Of the report: the page has every figure. Pictures take longer than all the rest; ``report`` draws them."""

READING_MODULES = (
    "pyarrow.compute",
    "jinja2",
    "ccbench.report.writing",
    "ccbench.report.run_screen",
)
"""Table and page take longest to import these."""


@click.command(
    cls=GroupedCommand,
    short_help="Run a suite, or sweep one collective, and keep what it measured.",
)
@click.argument("suite", required=False, shell_complete=completing(suites, "file"))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The run folder itself.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=BACKEND,
    help="Only this backend; may be repeated.",
)
@click.option("--ranks", type=click.IntRange(min=1), help="Ranks instead of the suite's.")
@click.option(
    "--oversubscribe",
    is_flag=True,
    help="Run more ranks than processors, or sizes beyond the memory.",
)
@click.option(
    "--processes",
    type=click.Choice((*PROCESSES, "all")),
    help="Processes that drive GPUs, not the suite's.",
)
@on_machine("Machine to predict for: a name, a file, or 'detect'")
@click.option(
    "--launch", metavar="COMMAND", help="Command that starts ranks, such as 'mpirun -n 16'."
)
@click.option(
    "--racks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Racks of hosts: 'node[01-16] r12' a row, or Slurm's topology.conf.",
)
@click.option("--only", metavar="TEXT", help="Only cases whose line has every word of TEXT.")
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="RUN", help="Continue this run folder."
)
@click.option("--allow-libraries", is_flag=True, hidden=True)
@schedule_files_option
@click.option("--plan", is_flag=True, help="List cases and bytes; run nothing.")
@click.option(
    "--time-limit",
    "time_limit_seconds",
    metavar="DURATION",
    callback=duration,
    help="Stop after this time, such as 10m; keep what is done.",
)
@click.option("--no-report", is_flag=True, help="Write no report.")
@click.option("-q", "--quiet", is_flag=True, help="No progress on stderr.")
@click.option("-v", "--verbose", is_flag=True, help="Progress of every case.")
@sweep_options
@click.option(
    "--save",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the suite that the options stand for, as YAML.",
)
@gates
@every_case
@as_json
def run(
    suite: str | None,
    plan: bool,
    no_report: bool,
    quiet: bool,
    verbose: bool,
    save: Path | None,
    gate: str | None,
    every: bool,
    as_json: bool,
    **settings: Any,
) -> int:
    """Run SUITE and keep what it measured.

    \b
    a collective  all_reduce: swept over sizes with nccl-tests' letters, -b 8 -e 128M -f 2 -g 8
    a suite       allreduce: algorithms, protocols and sizes of 'ccbench list suites', or a YAML file
    quick         does it work, and how fast is it
    health        is this machine well; fleet: which node or link is bad; bits: are sums reproducible

    The same options narrow any suite. Results go to results/0007-SUITE, the next free
    number, each case as soon as it is measured.
    """
    from ccbench.analysis.fleet import FLEET
    from ccbench.analysis.fleet_rounds import further_cases
    from ccbench.machine.host import Terminated
    from ccbench.runner.planning import RunOptions, check_output, plan_suite, suite_on_nodes
    from ccbench.runner.progress import progress_for
    from ccbench.runner.run import run_suite
    from ccbench.runner.workers.hub import join_run
    from ccbench.runner.workers.rendezvous import launched_process

    if suite is None:
        raise click.UsageError(
            "name what to measure: 'ccbench run quick', 'ccbench run all_reduce -b 8 -e 128M', "
            "a file of yours, or one of 'ccbench list suites'"
        )
    threshold = opened(gate)
    process = None if plan else launched_process(os.environ)
    if process is not None:
        # This process's part of a run that a launcher has started once for every rank.
        if not settings["launch"]:
            return join_run(process, sys.argv[1:])
        if process.rank:
            # Rank 0 says it for all.
            return UsageError.exit_code
        raise UsageError(
            f"--launch: {process.launcher} has started this command {process.ranks} times; leave one of "
            "them out"
        )
    loaded, notes = suite_of(suite, settings, save)
    options = RunOptions(
        **_launched(settings.pop("launch"), settings.pop("ranks")),
        **settings,
        only_plan=plan,
        reading_modules=READING_MODULES,
        guides={FLEET: further_cases},
    )
    check_output(options)
    for note in notes:
        say(f"note: {note}")
    if plan:
        planned = plan_suite(suite_on_nodes(loaded, options), options)
        _print_plan(planned, as_json)
        return 0
    try:
        outcome = run_suite(loaded, options, progress_for(sys.stderr, quiet, every=verbose))
    except Terminated as stop:  # before the first case
        say(f"ccbench: {_stopped_by(stop.exit_code)} before the first case")
        return stop.exit_code
    say(f"run folder: {outcome.folder}")
    _say_how_to_go_on(suite, options, outcome)
    code, judged = _ended(loaded, outcome, threshold)
    try:
        _print_results(outcome, code, Shown(suite, every, not no_report, as_json, judged))
    except (KeyboardInterrupt, Exception) as error:
        # After a signal nothing that fails here may change the exit code.
        if not outcome.interrupted:
            raise
        if isinstance(error, OSError):
            # Most likely it was stdout, and its last flush would fail once more.
            drop(sys.stdout)
        reason = str(error) or type(error).__name__
        say(
            f"note: the results were not all shown ({reason}); try: ccbench report {outcome.folder}"
        )
    return code


def _ended(suite: Suite, outcome: RunOutcome, gate: Gate | None) -> tuple[int, Gated]:
    """Exit code of the run and what its gate says, which decides nothing about an interrupted one."""
    from ccbench.results import load_run

    code = _exit_code(outcome)
    # Bits of one request that differ are wrong data to who asks for bits.
    if not code and any(sweep.accuracy for sweep in suite.sweep):
        code = exit_code_of([load_run(outcome.folder)])
    if outcome.interrupted:
        return code, Gated()
    judged = gated(gate, code, (load_run(outcome.folder),))
    return judged.code, judged


def _exit_code(outcome: RunOutcome) -> int:
    """The run's, or the verdict's on the machine where the suite asks for one and that says more."""
    from ccbench.analysis.fleet import FLEET
    from ccbench.analysis.machine_verdict import machine_verdict
    from ccbench.results import load_run

    # Wrong results, a hang and a signal are worse than anything else; but a fleet check goes on after a hang.
    final = (1,) if outcome.verdict == FLEET else (1, 4)
    if outcome.verdict == "speed" or outcome.interrupted or outcome.exit_code in final:
        return outcome.exit_code
    verdict = machine_verdict(load_run(outcome.folder))
    code = verdict.exit_code if verdict else 0
    # Of a fleet only what was found wrong explains a hang.
    if outcome.verdict == FLEET and code != 1 and outcome.exit_code:
        return outcome.exit_code
    return code or outcome.exit_code


def _launched(launch: str | None, ranks: int | None) -> dict[str, Any]:
    """RunOptions' launch, launched_by, hub and ranks: of the options, or of the launcher that started this run."""
    from ccbench.runner.workers.hub import hub_of

    hub = hub_of(os.environ)
    # A variable of a script that is not set.
    if launch is not None and not launch.strip():
        raise UsageError(
            "--launch: is empty; write a command such as 'mpirun -n 16 --hostfile hosts'"
        )
    if hub is None:
        return {"launch": launch or "", "ranks": ranks}
    launcher, agents = hub.launcher, len(hub.agents)
    if ranks not in (None, agents):
        raise UsageError(
            f"--ranks {ranks}: {launcher} started {agents} processes, each of which is a rank; "
            f"leave --ranks out, or start {ranks}"
        )
    return {"launch": launcher, "launched_by": launcher, "hub": hub, "ranks": agents}


def _say_how_to_go_on(suite: str, options: RunOptions, outcome: RunOutcome) -> None:
    """After a signal or the time limit: what stopped the run, and the line that goes on with it."""
    from ccbench.cases.measurement import Status

    if outcome.interrupted:
        why = _stopped_by(outcome.exit_code)
    elif outcome.counts.get(Status.SKIPPED):
        why = "not every case was started"
    elif outcome.unfinished:
        why = "not every case was measured in as many rounds as planned"
    else:
        return
    # It needs the options that the run was started with; a launcher gives the number of ranks itself.
    words = ["ccbench", "run", suite, "--resume", str(outcome.folder)]
    words += typed_options(
        NOT_REPEATED | ({"ranks", "launch"} if options.launched_by else set())
    )
    again = f"{options.launched_by}, as before, " if options.launched_by else ""
    say(f"ccbench: {why}; go on with: {again}{shlex.join(words)}")


def _stopped_by(exit_code: int) -> str:
    number = signal.Signals(exit_code - 128)
    return "interrupted" if number is signal.SIGINT else f"terminated by {number.name}"


def _print_plan(plan: Plan, as_json: bool) -> None:
    from ccbench.backends import open_backend
    from ccbench.runner.planning import rank_bytes
    from ccbench.units import format_size

    # For every planned backend that cannot work here a sentence that says what is missing.
    backends = dict.fromkeys(case.backend for case in plan.cases)
    missing = {name: open_backend(name).unavailable() for name in backends}
    notes = [
        *plan.notes,
        *(
            f"backend {name} cannot run here: {reason}"
            for name, reason in missing.items()
            if reason
        ),
    ]
    if as_json:
        cases = [
            {
                "case_id": case.case_id,
                "label": case.label,
                "rank_bytes": rank_bytes(case),
                "predicted_seconds": price.predicted_seconds if price else None,
            }
            for case, price in _priced(plan)
        ]
        totals = {name: getattr(plan, name) for name in ("total_bytes", "rank_bytes")}
        print_json({"cases": cases, **totals, "notes": notes})
        return
    for line in (*plan_lines(plan), *(f"note: {note}" for note in notes)):
        click.echo(line)
    click.echo(
        f"{plural(len(plan.cases), 'case')}, at most {format_size(plan.rank_bytes)} on one rank and "
        f"{format_size(plan.total_bytes)} on all at once"
    )


MOST_LISTED = 30
"""Cases that are listed one by one; more are summed up."""


def _priced(plan: Plan) -> list[Priced]:
    return [
        (case, plan.context.predict(case) if plan.context else None) for case in plan.by_size
    ]


def plan_lines(plan: Plan) -> list[str]:
    """One line for each case, or each backend, collective, algorithm and number of ranks."""
    from ccbench.runner.planning import rank_bytes
    from ccbench.units import format_seconds, format_size

    priced = _priced(plan)
    if len(priced) <= MOST_LISTED:
        lines = []
        for case, price in priced:
            words = [case.case_id, case.label, f"{format_size(rank_bytes(case))} a rank"]
            words += [f"{format_seconds(price.predicted_seconds)} predicted"] if price else []
            lines.append("  ".join(words))
        return lines
    groups: dict[tuple[str, str, str, int], list[Priced]] = defaultdict(list)
    for case, price in priced:
        groups[case.backend, case.collective, case.algorithm, case.ranks].append((case, price))
    lines = []
    for (backend, collective, algorithm, ranks), members in sorted(groups.items()):
        sizes = sorted(case.size_bytes for case, _ in members)
        line = f"{backend} {collective} {algorithm}, {plural(ranks, 'rank')}: "
        line += f"{plural(len(members), 'case')}, {_span(format_size, sizes)}; "
        line += f"at most {format_size(max(rank_bytes(case) for case, _ in members))} a rank"
        if times := sorted(price.predicted_seconds for _, price in members if price):
            line += f"; {_span(format_seconds, times)} predicted"
        lines.append(line)
    return [*lines, "every case: --json"]


def _span(text_of: Callable[[Any], str], values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(map(text_of, (values[0], values[-1]))))


def _print_results(outcome: RunOutcome, code: int, shown: Shown) -> None:
    from ccbench.analysis.fleet import FLEET
    from ccbench.analysis.machine_verdict import fleet_document
    from ccbench.analysis.speed_verdict import speed_verdicts
    from ccbench.analysis.winner import winner_sentence
    from ccbench.cases.measurement import Status
    from ccbench.report.case_table import case_documents
    from ccbench.report.run_screen import ALL, CARD, NCCL_TESTS, run_screen
    from ccbench.report.wording import verdict_lines
    from ccbench.report.writing import write_report
    from ccbench.results import load_run

    measured = load_run(outcome.folder)
    gone = None
    # Who reads stdout may go away before the table ends: the files are written all the same.
    try:
        if not shown.as_json:
            layout = ALL if shown.every else NCCL_TESTS if collective_of(shown.suite) else CARD
            lines = run_screen(measured, screen_width(), layout, folds_sentences())
            click.echo("\n".join((*lines, *(f"note: {note}" for note in outcome.notes))))
            sys.stdout.flush()  # a person reads it while the page is made
    except OSError as error:
        gone = error
    # Whoever stops a run does not wait for files.
    now = shown.draw and not outcome.interrupted
    files = (
        drawn_as_far_as_possible(
            lambda: write_report([measured], formats=FORMATS), of=outcome.folder
        )
        if now
        else ()
    )
    if shown.draw and not now and set(outcome.counts) - {Status.SKIPPED}:
        say(
            f"no report was written; write it with: {shlex.join(['ccbench', 'report', str(outcome.folder)])}"
        )
    if gone:
        raise gone
    if shown.as_json:
        fleet = fleet_document(measured) if outcome.verdict == FLEET else None
        print_json(
            {
                "folder": str(outcome.folder),
                "exit_code": code,
                "interrupted": outcome.interrupted,
                "counts": {status.value: number for status, number in outcome.counts.items()},
                "verdicts": verdict_lines(measured),
                "notes": outcome.notes,
                **({"fleet": fleet} if fleet else {}),
                **shown.outcome.keys,
                "speed_verdicts": [verdict.document for verdict in speed_verdicts(measured)],
                "points": case_documents(measured.points),
                "files": [str(file) for file in files],
            }
        )
        return
    say_files(files)
    if not outcome.interrupted:
        click.echo(f"next: {_next_step(shown.suite, measured)}")
    # Of a run that compares, the last line is what it was made for.
    show_lines([*filter(None, [winner_sentence(measured)]), *shown.outcome.lines])


def _next_step(suite: str, run: Run) -> str:
    """The command that helps after this run: a quiet machine, enough rounds, or a comparison."""
    from ccbench.analysis.significance import ROUNDS_NEEDED

    words = ["ccbench", "run", suite, *typed_options(NOT_REPEATED)]
    timed = [point for point in run.points if point.median_seconds]
    if not timed:
        return "ccbench doctor"
    doubted = sum(Flag.CPU_CONTENTION in point.flags for point in timed)
    if 2 * doubted > len(timed):
        return f"end other programs, then: {shlex.join(words)}"
    needed = ROUNDS_NEEDED
    if min(len(point.round_samples) for point in timed) < needed:
        words += ["--rounds", str(needed)]
        return f"to see a change later, measure in {needed} rounds or more: {shlex.join(words)}"
    compared = ["ccbench", "compare", str(run.path), "new"]
    # Measured without a width to reach, most points decide large changes alone.
    if run.manifest.at("suite", "sampling", "max_ci_width") == 1.0:
        compared += ["--fail-over", "50%"]
    return f"after a change: {shlex.join(words)} -o new && {shlex.join(compared)}"
