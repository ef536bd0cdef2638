"""Run a suite: expand it, keep one team per backend and rank count, write each case before the next."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.backends import open_backend
from ccbench.backends.base import Backend, CannotRun, Environment, Team, TeamRequest
from ccbench.backends.faults import fault_from_environment
from ccbench.backends.launch_price import prediction_of
from ccbench.cases.axes import DEVICE_MEMORY, Case, asked_of, case_of
from ccbench.cases.capabilities import backend_names, capabilities_of
from ccbench.cases.measurement import EXIT_CODES, MORE_ROUNDS, NO_TEAM, Measurement, Status
from ccbench.errors import BackendUnavailable, CannotStart, CcbenchError
from ccbench.exit_codes import FINE, INTERRUPTED, PARTIAL
from ccbench.flags import NO_LINK_FLAGS
from ccbench.machine.detection import detect
from ccbench.machine.host import Terminated, terminated_by_signals
from ccbench.model import Prediction
from ccbench.model.cluster import visible_part
from ccbench.model.context import PredictionContext
from ccbench.results import RunFolder, arrow_schema, load_run
from ccbench.runner.measure import (
    blocks,
    judged,
    merged,
    rounds_of,
    turned,
)
from ccbench.runner.planning import (
    MOST_COSTLY_TEAMS,
    Guide,
    RunOptions,
    devices_missing,
    plan_suite,
    refuse_few_nodes,
    refuse_what_does_not_fit,
    suite_on_nodes,
    unavailable,
)
from ccbench.runner.progress import Progress
from ccbench.runner.starting import (
    context_of,
    keep_note,
    launch_of,
    machine_for,
    modules_imported,
    refuse_small_address_space,
    run_folder,
    with_launched_ranks,
)
from ccbench.runner.workers.team import open_team
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.files import to_plain

if TYPE_CHECKING:
    from ccbench.suite.model import Suite

TeamKey = tuple[str, int, Environment, str, str]
"""Backend, ranks, the environment a team was started with, its process model and its variant."""

TEAM_FAILURES_LIMIT = 3
"""After so many teams of one kind could not even start, its other cases fail at once; after so many were lost
with the same words and no good case between them, its other cases are skipped."""

FURTHER_CASES = "further_cases"
"""Entry of run.json: what was asked of the cases that a guide has added to those of the suite."""

LOST = (Status.TIMED_OUT, Status.FAILED)
"""Statuses of cases in which ranks were lost, so that a guide may have the others do without them."""


@dataclass(frozen=True)
class RunOutcome:
    """End of a run. counts: cases per status, earlier ones of a resumed run included.

    unfinished: cases that were measured, but not as often as planned, or for which no ranks started.
    verdict: the suite's, of what the run is to be judged. notes: what it lacks, such as predictions, and why.
    """

    folder: Path
    exit_code: int
    counts: Mapping[Status, int] = field(default_factory=dict)
    interrupted: bool = False
    unfinished: int = 0
    verdict: str = "speed"
    notes: tuple[str, ...] = ()


def run_suite(suite: Suite, options: RunOptions, progress: Progress) -> RunOutcome:
    """Run ``suite`` to its end, its time limit or a signal; what was measured is in the folder either way.

    Raises CcbenchError before the first case when the suite, the machine or the folder is at fault.
    """
    fault_from_environment()  # what is misspelt there is told before anything starts
    refuse_small_address_space()
    deadline = time.monotonic() + (options.time_limit_seconds or math.inf)
    options = with_launched_ranks(options, progress)
    suite = suite_on_nodes(suite, options)
    refuse_few_nodes(suite, options)
    plan = plan_suite(suite, options)
    refuse_what_does_not_fit(plan.cases, options)
    backends = {
        name: open_backend(name) for name in dict.fromkeys(case.backend for case in plan.cases)
    }
    for name, backend in backends.items():
        reason = unavailable(backend, options)
        if reason:
            raise BackendUnavailable(f"backend {name}: {reason}")
    # From here on a signal unwinds in order, and what was measured is kept.
    arrow_schema()  # loads pyarrow while no signal can interrupt that
    with (
        terminated_by_signals(once=bool(options.launched_by)),
        run_folder(suite, options, backends, plan.notes) as folder,
    ):
        topology = detect()
        visible, unclear = visible_part(topology)
        if unclear:
            keep_note(unclear, folder, progress)
        for problem in folder.problems:
            keep_note(problem, folder, progress)
        context = replace(context_of(plan, options, visible), launched=bool(options.launch))
        folder.describe(
            machine={"name": (context.gpus or topology).name},
            topology=to_plain(visible),
            findings=[asdict(finding) for finding in diagnose(topology)],
            hosts=[asdict(host) for host in options.launched.facts] if options.launched else [],
            planned_cases=len(plan.cases),
        )
        for line in plan.notes:
            progress.note(line)
        done = folder.finished() if options.resume else {}
        run = _Run(suite, plan.cases, options, context, backends, folder, progress, deadline)
        further = [
            case_of({**row, "suite": suite.name})
            for row in folder.manifest.get(FURTHER_CASES, ())
        ]
        every = [*plan.cases, *further]
        outcome = run.all([case for case in every if case.case_id not in done], done)
        notes = tuple(note for note in folder.manifest["notes"] if note not in plan.notes)
    return replace(outcome, verdict=suite.verdict, notes=(*notes, *folder.problems))


def _not_started(case: Case, error: CcbenchError) -> Measurement:
    """Say that no team could be started, which is no failure of the case where the ranks refuse."""
    status = Status.UNSUPPORTED if isinstance(error, CannotRun) else Status.FAILED
    return Measurement(case, status, str(error), stop_reason=NO_TEAM)


@dataclass
class _Run:
    """One run under way: its teams and its counts.

    cases: all that are planned, those that a resumed run finished before among them.
    """

    suite: Suite
    cases: Sequence[Case]
    options: RunOptions
    context: PredictionContext
    backends: Mapping[str, Backend]
    folder: RunFolder
    progress: Progress
    deadline: float

    def __post_init__(self) -> None:
        """Bring up what comes up only once; BackendUnavailable, before any case, says why that failed."""
        cases, options = self.cases, self.options
        self._sampling = self.suite.sampling
        self._teams: dict[TeamKey, Team] = {}
        self._costly: set[TeamKey] = set()
        self._failures: dict[TeamKey, list[CcbenchError]] = defaultdict(list)
        self._losses: dict[TeamKey, list[str]] = defaultdict(list)
        self._results = self.folder.unfinished() if options.resume else {}
        self._lost = ""
        self._several_hosts = options.launched is not None and options.launched.nodes > 1
        launch = launch_of(options)
        self._launch = replace(launch, one_host=not self._several_hosts) if launch else None
        self._guide = options.guides.get(self.suite.verdict)
        self._no_devices = ""
        if any(case.memory == DEVICE_MEMORY for case in cases):
            self._no_devices = devices_missing(options)
        self._left = 0
        self._variants: dict[Case, list[str]] = defaultdict(list)
        for case in cases:
            if case.variant:
                self._variants[case.point].append(case.case_id)
        # A launcher's MPI comes up only once: what keeps it from that is told before any case.
        for case in cases:
            if self._in_process(case) and not self._not_there(case):
                if self._sampling.fresh_ranks:
                    raise self.suite.origin.error(
                        ("sampling", "start_ranks"),
                        f"{self.options.launched_by} has started the ranks of {case.backend}, and they cannot be "
                        "started again; leave it out, or let ccbench run --launch start them",
                    )
                try:
                    self._team(case)
                except BaseException:
                    self._close()
                    raise

    def _in_process(self, case: Case) -> bool:
        """Return True if the ranks are processes that a launcher has started once and for all."""
        return bool(self.options.launched_by) and capabilities_of(case.backend).in_process_ranks

    def all(self, cases: Sequence[Case], done_before: Mapping[str, Status]) -> RunOutcome:
        """Run every case; never loses one that was written."""
        self._left = sum(map(self._rounds_left, cases))
        self.progress.started(self._left)
        exit_code = FINE
        measured = list(cases)
        try:
            try:
                if self._guide is None:
                    self._rounds(cases)
                else:
                    self._guided(self._guide, measured, done_before)
            finally:
                self._close()
                self.progress.finished()
        except CannotStart as error:
            ended = {*done_before.values(), *(each.status for each in self._results.values())}
            if ended <= {Status.UNSUPPORTED, Status.SKIPPED}:
                raise
            self.progress.note(str(error))
        except KeyboardInterrupt:
            exit_code = INTERRUPTED
        except Terminated as stop:
            exit_code = stop.exit_code
        results = [self._results.get(case.case_id) for case in measured]
        counts = Counter(
            [
                *done_before.values(),
                *(result.status if result else Status.SKIPPED for result in results),
            ]
        )
        unfinished = sum(
            result is not None and result.stop_reason in (MORE_ROUNDS, NO_TEAM)
            for result in results
        )
        # The worst status decides; a run without a measured case, with too few rounds of one, or with one for
        # which no ranks ever started, is partial.
        complete = FINE if counts.get(Status.OK) and not unfinished else PARTIAL
        worst = next(
            (code for status, code in EXIT_CODES.items() if counts.get(status)), complete
        )
        return RunOutcome(
            self.folder.path, exit_code or worst, dict(counts), bool(exit_code), unfinished
        )

    def _rounds_left(self, case: Case) -> int:
        """Return the rounds to come: those that are planned, then one more while the case is unclear."""
        if not self._wants_more(case):
            return 0
        planned = 1 if self._refusal(case) else self._sampling.rounds
        return max(1, planned - self._rounds_of(case))

    def _rounds_of(self, case: Case) -> int:
        result = self._results.get(case.case_id)
        return len(rounds_of(result)) if result else 0

    def _guided(self, guide: Guide, cases: list[Case], done: Collection[str]) -> None:
        """Round what the guide says, until it says nothing new or no rank can be had; keeps ``cases`` right.

        done: ids of cases that were finished before.
        """
        planned = {case.case_id for case in self.cases}
        while True:
            left = [case for case in cases if self._wants_more(case)]
            guided = guide(left, load_run(self.folder.path))
            new = [
                case for case in guided if case.case_id not in done and self._wants_more(case)
            ]
            cases[:] = dict.fromkeys(
                [*(case for case in cases if case.case_id in self._results), *new]
            )
            further = [asked_of(case) for case in cases if case.case_id not in planned]
            if further:
                kept = [
                    row
                    for row in self.folder.manifest.get(FURTHER_CASES, ())
                    if row not in further
                ]
                self.folder.describe(
                    planned_cases=len(done) + len(cases), **{FURTHER_CASES: [*kept, *further]}
                )
            self._left = sum(map(self._rounds_left, cases))
            if not new or not self._rounds(new):
                return

    def _rounds(self, cases: Sequence[Case]) -> bool:
        """Round every case of a block once a round, so that drift of the machine hits all of them alike.

        False once the time limit is spent; of guided cases True, too, as soon as one was lost.
        """

        def costly(case: Case) -> TeamKey | None:
            return self._team_key(case) if case.on_gpus else None

        for block, rounds in blocks(cases, costly, MOST_COSTLY_TEAMS, self._sampling):
            while left := [
                case
                for case in block
                if self._rounds_of(case) < rounds and self._wants_more(case)
            ]:
                if self._sampling.fresh_ranks:
                    self._close()
                    for case in {self._team_key(case): case for case in left}.values():
                        with suppress(
                            CannotRun, BackendUnavailable
                        ):  # who measures the case says why
                            if not (
                                self._refusal(case)
                                or self._given_up(case)
                                or self._failures[self._team_key(case)]
                            ):
                                self._team(case)
                made = min(map(self._rounds_of, left))
                in_turn = turned(left) if made % 2 else left
                self.progress.round_started(made + 1, self._sampling.rounds, in_turn)
                for case in in_turn:
                    if self._is_late():
                        self.progress.note("the time limit is spent")
                        return False
                    self._round(case)
                    result = self._results.get(case.case_id)
                    if self._guide and result and result.status in LOST:
                        return True
                self._left = sum(map(self._rounds_left, cases))
        return True

    def _wants_more(self, case: Case) -> bool:
        result = self._results.get(
            case.case_id
        )  # None: the run's time limit cut its first round short
        if result is None:
            return True
        # Variants of a point have as many rounds: what passes later must not be one's alone.
        beside = (
            self._variants[case.point] if case.variant and result.status is Status.OK else ()
        )
        unclear = any(
            measurement.stop_reason == MORE_ROUNDS
            for measurement in (result, *filter(None, map(self._results.get, beside)))
        )
        return unclear and not self._given_up(case)

    def _round(self, case: Case) -> None:
        """Measure a case once more and write what is known of it by now, or that it was given up."""
        rounds = self._rounds_left(case)
        before = self._results.get(case.case_id)
        given_up = self._given_up(case)
        if given_up:
            self._left -= rounds
            if before is None:  # what rounds before have found stays
                self._keep(Measurement(case, Status.SKIPPED, given_up), None)
            return
        self.progress.case_started(case)
        # What a sample has besides its launches must be the same for all variants of a point.
        alike = [
            before,
            *map(self._results.get, self._variants.get(case.point, ()) if case.variant else ()),
        ]
        launches = next(
            (
                measurement.launches_per_sample
                for measurement in alike
                if measurement and measurement.launches_per_sample
            ),
            0,
        )
        now = self._measure(case, launches)
        if (now.status is Status.TIMED_OUT or now.stop_reason == NO_TEAM) and self._is_late():
            return  # it was given too little time to be called hung; a resumed run rounds it again
        # Written after every round, so that a run that is killed loses one round at most.
        measurement = judged(merged(before, now, self._sampling.fresh_ranks), self._sampling)
        prediction = None
        # Where ranks shared a device, or it was emulated, no link was used, and the model prices links. Nor has
        # another library than the usual one a price.
        if measurement.path_counts:
            prediction = prediction_of(measurement)
        elif not (
            NO_LINK_FLAGS & set(measurement.conditions.flags) or case.started_with.library
        ):
            ran = measurement.algorithm_used, measurement.protocol_used
            prediction = self.context.predict(case, *ran)
        measurement = self._keep(measurement, prediction)
        self._left += self._rounds_left(case) - rounds
        self.progress.case_finished(measurement, prediction, self._left)

    def _keep(self, measurement: Measurement, prediction: Prediction | None) -> Measurement:
        """Write a measurement, completed by what a team that died could not say; return it."""
        case = measurement.case
        usual = "" if case.started_with.library else self.backends[case.backend].version()
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        whole = replace(
            measurement,
            backend_version=measurement.backend_version or usual,
            started_at=measurement.started_at or now,
        )
        self.folder.write(whole, prediction, self._sampling.confidence)
        self._results[case.case_id] = whole
        return whole

    def _given_up(self, case: Case) -> str:
        """Return why no more cases like this one are started, '' while they are."""
        losses = self._losses.get(self._team_key(case), []) if self._losses else []
        # A function of the user's may fail at some sizes alone.
        by_name = capabilities_of(case.backend).callables
        if self._lost or by_name or len(losses) < TEAM_FAILURES_LIMIT:
            return self._lost
        return f"not started: {len(losses)} cases in a row lost their {case.backend} team by: {losses[-1]}"

    def _measure(self, case: Case, launches: int) -> Measurement:
        """Measure a case once, by a team that is open or can be started."""
        reason = self._refusal(case)
        if reason:
            return Measurement(case, Status.UNSUPPORTED, reason)
        key = self._team_key(case)
        failures = self._failures[key]
        if len(failures) >= TEAM_FAILURES_LIMIT:  # a start that fails may take minutes
            return _not_started(case, failures[-1])
        try:
            team = self._team(case)
        except (CannotRun, BackendUnavailable) as error:
            if isinstance(error, CannotStart) and not case.variant:
                raise
            failures.append(error)
            return _not_started(case, error)
        # Every round of a case has as many launches a sample as its first, or their samples were no one kind.
        sampling = self._sampling.of_one_round(launches)
        left = self._left_seconds()
        sampling = replace(sampling, time_limit_seconds=min(sampling.time_limit_seconds, left))
        try:
            measurement = team.run(case, sampling)
        except CannotStart as error:
            if not case.variant:  # which may hide devices from its ranks
                raise
            return _not_started(case, error)
        if measurement.status is Status.OK:
            self._losses.pop(key, None)
        if not team.usable():
            self._teams.pop(key).close()
            # Losses in a row that say the same count together, others anew.
            alike = self._losses[key]
            if measurement.detail not in alike:
                alike.clear()
            alike.append(measurement.detail)
            if self._in_process(case):
                self._lost = (
                    f"not started: {case.label} {measurement.status.value}, and ranks that "
                    f"{self.options.launched_by} has started cannot be started again; ccbench run --launch can"
                )
        return measurement

    def _is_late(self) -> bool:
        """Return True once the run's time limit is spent."""
        return time.monotonic() >= self.deadline

    def _left_seconds(self) -> float:
        """Return what is left of the run's time limit, and a little where nothing is."""
        return max(1.0, self.deadline - time.monotonic())

    def _refusal(self, case: Case) -> str | None:
        """Return why the case cannot run, as far as that is known before its team starts."""
        return (
            self._not_there(case)
            or (self._no_devices if case.memory == DEVICE_MEMORY else "")
            or self.backends[case.backend].unsupported(case)
        )

    def _not_there(self, case: Case) -> str:
        """Return why ranks on several hosts cannot be had of a backend."""
        settings = (
            self.backends[case.backend].environment(case) if self._in_process(case) else ()
        )
        if settings:
            needed = " ".join(f"{name}={value}" for name, value in settings)
            return (
                f"it needs {needed}, which the library reads when it starts, and {self.options.launched_by} "
                "has started it for the whole run; write --launch instead"
            )
        if not self._several_hosts or capabilities_of(case.backend).spans_hosts:
            return ""
        spanning = ", ".join(
            name for name in backend_names() if capabilities_of(name).spans_hosts
        )
        return f"{case.backend}: its ranks share one host; between hosts there are {spanning}"

    def _team(self, case: Case) -> Team:
        """Return the team that is open for such cases, or start one."""
        key = self._team_key(case)
        team = self._teams.pop(key, None)
        if team is None or not team.usable():
            if case.on_gpus:
                # The teams that were not used for longest end, so that one more can be opened.
                costly = [open_key for open_key in self._teams if open_key in self._costly]
                for oldest in costly[: max(0, len(costly) - MOST_COSTLY_TEAMS + 1)]:
                    self._teams.pop(oldest).close()
                self._costly.add(key)
            request = TeamRequest(
                case.backend,
                case.ranks,
                self._launch,
                environment=key[2],
                processes=case.processes,
                start_seconds=self._left_seconds(),
                machine=machine_for(case, self.context),
                seed=self.suite.seed,
            )
            with modules_imported(self.options.reading_modules):
                team = open_team(self.backends[case.backend], request, self.options.hub)
        self._teams[key] = team  # last: the one used most recently
        return team

    def _team_key(self, case: Case) -> TeamKey:
        settings = self.backends[case.backend].environment(case)
        return case.backend, case.ranks, settings, case.processes, case.variant

    def _close(self) -> None:
        for team in self._teams.values():
            team.close()
        self._teams.clear()
