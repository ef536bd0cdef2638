"""Run a suite: expand it, keep one team per backend and rank count, write each case before the next."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ccbench.backends import open_backend
from ccbench.backends.base import Backend, Team, TeamRequest
from ccbench.backends.crew import LAUNCHED
from ccbench.cases import EMULATION, LOOPBACK, MORE_VISITS, Case, Measurement, Sampling, Status
from ccbench.census import Census
from ccbench.errors import BackendUnavailable, CcbenchError
from ccbench.exchange import ONE_HOST_VARIABLE
from ccbench.faults import fault_from_environment
from ccbench.model.basis import Basis
from ccbench.model.cluster import Cluster
from ccbench.model.host_collectives import HOST_LIBRARIES, is_priced_on_one_host
from ccbench.model.host_network import HostNetwork
from ccbench.model.machine import Machine, load_machine
from ccbench.model.prediction import Prediction
from ccbench.network_probe import probe_network
from ccbench.planning import (
    MOST_COSTLY_TEAMS,
    RunOptions,
    expected_seconds,
    plan_suite,
    starting_seconds,
    unavailable,
)
from ccbench.progress import Progress
from ccbench.runs import RunFolder
from ccbench.seats import HAND_ON_VARIABLE, PLAYED_BACKENDS
from ccbench.starting import SIMULATION_MACHINE, basis_of, run_folder, who_is_launched
from ccbench.topology.detection import detect
from ccbench.topology.diagnosis import diagnose
from ccbench.topology.files import to_plain
from ccbench.visits import EXTRA_VISITS_FACTOR, NO_TEAM, expected_visits, judged, merged, visits_of

if TYPE_CHECKING:
    from ccbench.suite import Suite

TeamKey = tuple[str, int, tuple[tuple[str, str], ...]]
"""Backend, ranks, and the environment a team was started with."""

TEAM_FAILURES_LIMIT = 3
"""After so many teams of one kind could not even start, its other cases fail at once; after so many were lost
with the same words and no good case between them, its other cases are skipped."""

BETWEEN_HOSTS = (*LAUNCHED, "nccl-processes")
"""Backends whose ranks a launcher can start on several hosts."""

NO_LINK_FLAGS = frozenset((EMULATION, LOOPBACK))
"""Measurements with one of these are not predicted: the model prices links."""

_EXIT_CODES = {
    Status.WRONG: 1,
    Status.TIMED_OUT: 4,
    Status.FAILED: 5,
    Status.OUT_OF_MEMORY: 5,
    Status.SKIPPED: 5,
}


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended. counts: cases per status, earlier ones of a resumed run included.

    unfinished: cases that were measured, but not as often as planned.
    """

    folder: Path
    exit_code: int
    counts: Mapping[Status, int] = field(default_factory=dict)
    interrupted: bool = False
    unfinished: int = 0


class Terminated(BaseException):
    """SIGTERM or SIGHUP arrived."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.exit_code = 128 + number


# -- running ----------------------------------------------------------------------------------------------


def run_suite(suite: Suite, options: RunOptions, progress: Progress) -> RunOutcome:
    """Run ``suite`` to its end, its time limit or a signal; what was measured is in the folder either way.

    Raises CcbenchError before the first case when the suite, the machine or the folder is at fault.
    """
    fault_from_environment()  # what is misspelt there is told before anything starts
    limit = options.time_limit_seconds
    deadline = None if limit is None else time.monotonic() + limit
    census, options = who_is_launched(options, progress)
    plan = plan_suite(suite, options)
    backends = _open_backends(plan.cases, options)
    _import_readers()
    with _signals(once=bool(options.launched_by)), run_folder(suite, options, backends, plan.notes) as folder:
        topology = detect()
        basis = basis_of(plan, options, topology, folder, progress)
        findings = diagnose(topology)
        folder.describe(
            machine=asdict(basis.host) if basis.host else {"name": (basis.gpus or topology).name},
            topology=to_plain(topology),
            findings=[asdict(finding) for finding in findings],
            hosts=[asdict(host) for host in census.facts] if census else [],
            planned_cases=len(plan.cases),
        )
        for finding in findings:
            if finding.severity == "problem":
                progress.note(f"{', '.join(finding.devices)}: {finding.evidence}; {finding.advice}")
        for note in plan.notes:
            progress.note(note)
        done = folder.finished() if options.resume else {}
        begun = folder.unfinished() if options.resume else {}
        run = _Run(suite.sampling, suite.seed, options, basis, backends, folder, progress, begun, census)
        run.begin(plan.cases)
        return run.all([case for case in plan.cases if case.case_id not in done], done, deadline)


def _open_backends(cases: Sequence[Case], options: RunOptions) -> dict[str, Backend]:
    backends = {name: open_backend(name) for name in dict.fromkeys(case.backend for case in cases)}
    for name, backend in backends.items():
        reason = unavailable(backend, options)
        if reason:
            raise BackendUnavailable(f"backend {name}: {reason}")
    return backends


def _import_readers() -> None:
    """Load what writing and the closing table need, while nothing can interrupt it.

    A signal that raises inside the import of a C extension leaves it half loaded for good.
    """
    import pandas  # noqa: F401 - loaded for those who come later
    import pyarrow.parquet  # type: ignore[import-untyped]  # noqa: F401 - ships no types; loaded for later


@contextmanager
def _signals(once: bool = False) -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception that unwinds like Ctrl-C.

    once: unwinding is not disturbed by another. A launcher tells a run to end, then ends the process that
    started it, which the run hears as one more signal.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        if once:
            for one in heard:
                signal.signal(one, signal.SIG_IGN)
        raise Terminated(number)

    # nohup has SIGHUP ignored, and means it.
    heard = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, stop) for number in heard}
    except ValueError:  # not the main thread: the embedding program handles its signals itself
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Run:
    """One run under way: its teams and its counts."""

    def __init__(
        self,
        sampling: Sampling,
        seed: int,
        options: RunOptions,
        basis: Basis,
        backends: Mapping[str, Backend],
        folder: RunFolder,
        progress: Progress,
        begun: dict[str, Measurement],
        census: Census | None = None,
    ) -> None:
        self._sampling = sampling
        self._seed = seed
        self._basis = replace(basis, launched=bool(options.launch))
        self._backends = backends
        self._folder = folder
        self._progress = progress
        self._teams: dict[TeamKey, Team] = {}
        self._failures: dict[TeamKey, list[str]] = {}
        self._losses: dict[TeamKey, list[str]] = {}
        self._results: dict[str, Measurement] = begun
        self._launch = options.launch
        self._launched_by = options.launched_by
        self._lost = ""
        self._several_hosts = census is not None and census.nodes > 1
        self._networks: dict[tuple[str, int], HostNetwork] = {}
        self._probed: set[tuple[str, int]] = set()
        self._largest_bytes: dict[tuple[str, int], int] = {}

    def begin(self, cases: Sequence[Case]) -> None:
        """Bring up what comes up only once; BackendUnavailable, before any case, says why that failed."""
        for case in cases:
            kind = case.backend, case.ranks
            self._largest_bytes[kind] = max(case.size_bytes, self._largest_bytes.get(kind, 0))
        for case in cases:
            if self._played(case) and not self._not_there(case):
                try:
                    self._team(self._backends[case.backend], case)
                except BaseException:
                    self._close()
                    raise

    def _played(self, case: Case) -> bool:
        """Whether the ranks are processes that a launcher has started once and for all."""
        return bool(self._launched_by) and case.backend in PLAYED_BACKENDS

    def all(
        self, cases: Sequence[Case], done_before: Mapping[str, Status], deadline: float | None
    ) -> RunOutcome:
        """Run every case; never loses one that was written."""
        able = [case for case in cases if not self._refusal(case)]
        expected = sum(expected_seconds(case, self._sampling, self._visits(case)) for case in able)
        expected += starting_seconds(able, self._sampling)
        if done_before:
            self._progress.note(f"{len(done_before)} cases were finished before; {len(cases)} are left")
        if self._sampling.visits > 1:
            often = self._sampling.visits
            self._progress.note(f"{len(cases)} cases, each visited {often} times; unclear ones again")
        self._progress.started(self._visits_left(cases), expected)
        exit_code = 0
        try:
            try:
                self._rounds(cases, deadline)
            finally:
                self._close()
                self._progress.finished()
        except KeyboardInterrupt:
            exit_code = 130
        except Terminated as stop:
            exit_code = stop.exit_code
        counts = self._counts(cases, done_before)
        results = (self._results.get(case.case_id) for case in cases)
        unfinished = sum(one is not None and one.stop_reason == MORE_VISITS for one in results)
        code = exit_code or _exit_code(counts, unfinished)
        return RunOutcome(self._folder.path, code, counts, bool(exit_code), unfinished)

    def _visits_left(self, cases: Sequence[Case]) -> int:
        left = [case for case in cases if self._wants_more(case)]
        return sum(
            1 if self._refusal(case) else expected_visits(self._sampling, self._visits(case)) for case in left
        )

    def _visits(self, case: Case) -> int:
        result = self._results.get(case.case_id)
        return len(visits_of(result)) if result else 0

    def _rounds(self, cases: Sequence[Case], deadline: float | None) -> None:
        """Visit every case of a block once a round, so that drift of the machine hits all of them alike."""
        number = 0
        announced = self._visits_left(cases)
        for block, visits in self._blocks(cases):
            while left := [case for case in block if self._visits(case) < visits and self._wants_more(case)]:
                for case in left:
                    if deadline is not None and time.monotonic() >= deadline:
                        self._out_of_time(cases)
                        return
                    number += 1
                    self._visit(case, number, deadline)
                missing = self._visits_left(cases)
                self._progress.extended(number + missing - announced)
                announced = number + missing

    def _wants_more(self, case: Case) -> bool:
        result = self._results.get(case.case_id)  # None: the run's time limit cut its first visit short
        return result is None or (result.stop_reason == MORE_VISITS and not self._given_up(case))

    def _out_of_time(self, cases: Sequence[Case]) -> None:
        missing = sum(case.case_id not in self._results for case in cases)
        self._progress.note(
            f"the time limit is spent; {missing} cases were not started, others may lack visits "
            f"(ccbench run ... --resume {self._folder.path} goes on)"
        )

    def _counts(self, cases: Sequence[Case], done_before: Mapping[str, Status]) -> dict[Status, int]:
        results = (self._results.get(case.case_id) for case in cases)
        now = [result.status if result else Status.SKIPPED for result in results]
        return dict(Counter([*done_before.values(), *now]))

    def _visit(self, case: Case, number: int, deadline: float | None) -> None:
        given_up = self._given_up(case)
        if given_up:
            self._skip(case, given_up)
            return
        self._progress.case_started(case, number)
        before = self._results.get(case.case_id)
        now = self._measure(case, deadline, before.launches_per_sample if before else 0)
        if now.status is Status.TIMED_OUT and deadline is not None and time.monotonic() >= deadline:
            return  # it was given too little time to be called hung; a resumed run visits it again
        measurement = judged(merged(before, self._complete(now)), self._sampling)
        prediction = self._predict(measurement)
        self._folder.write(measurement, prediction, self._sampling.confidence)
        self._results[case.case_id] = measurement
        self._progress.case_finished(measurement, prediction)

    def _given_up(self, case: Case) -> str:
        """Why no more cases like this one are started, '' while they are."""
        losses = self._losses.get(self._team_key(case), []) if self._losses else []
        if self._lost or len(losses) < TEAM_FAILURES_LIMIT:
            return self._lost
        return f"not started: {len(losses)} cases in a row lost their {case.backend} team by: {losses[-1]}"

    def _skip(self, case: Case, reason: str) -> None:
        """Record why a case was not measured; what visits before have found stays."""
        if case.case_id in self._results:
            return
        measurement = self._complete(Measurement(case, Status.SKIPPED, reason))
        self._folder.write(measurement, None, self._sampling.confidence)
        self._results[case.case_id] = measurement

    def _complete(self, measurement: Measurement) -> Measurement:
        """Fill in what a team that died could not say."""
        version = measurement.backend_version or self._backends[measurement.case.backend].version()
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        return replace(measurement, backend_version=version, started_at=measurement.started_at or now)

    def _measure(self, case: Case, deadline: float | None, launches: int) -> Measurement:
        backend = self._backends[case.backend]
        reason = self._refusal(case)
        if reason:
            return Measurement(case, Status.UNSUPPORTED, reason)
        key = self._team_key(case)
        failures = self._failures.setdefault(key, [])
        if len(failures) >= TEAM_FAILURES_LIMIT:
            said = f"{failures[-1]} (tried {len(failures)} times)"
            return Measurement(case, Status.FAILED, said, stop_reason=NO_TEAM)
        try:
            team = self._team(backend, case)
        except BackendUnavailable as error:
            failures.append(str(error))
            return Measurement(case, Status.FAILED, str(error), stop_reason=NO_TEAM)
        sampling = self._sampling.of_one_visit(launches)
        if deadline is not None:
            left = max(1.0, deadline - time.monotonic())
            sampling = replace(sampling, time_limit_seconds=min(sampling.time_limit_seconds, left))
        measurement = team.run(case, sampling)
        if measurement.status is Status.OK:
            self._losses.pop(key, None)
        if not team.usable():
            self._teams.pop(key).close()
            self._after_loss(measurement, self._losses.setdefault(key, []))
        return measurement

    def _after_loss(self, measurement: Measurement, alike: list[str]) -> None:
        """Say what follows. alike: what earlier losses in a row said with the same words; gets this one's."""
        what = f"{measurement.status.value}: {measurement.detail}"
        if measurement.detail not in alike:
            alike.clear()
        alike.append(measurement.detail)
        if not self._played(measurement.case):
            skipped = len(alike) >= TEAM_FAILURES_LIMIT
            then = f"{len(alike)} times in a row: others like it are skipped" if skipped else ""
            self._progress.note(f"{what}; {then or 'going on with a fresh team'}")
            return
        self._lost = (
            f"not started: {measurement.case.label} {measurement.status.value}, and ranks that "
            f"{self._launched_by} has started cannot be started again; ccbench run --launch can"
        )
        self._progress.note(f"{what}; {self._lost}")

    def _refusal(self, case: Case) -> str | None:
        """Why the case cannot run, as far as that is known before its team starts."""
        return self._not_there(case) or self._backends[case.backend].unsupported(case)

    def _not_there(self, case: Case) -> str:
        """Why ranks on several hosts cannot be had of a backend."""
        settings = self._backends[case.backend].team_settings(case) if self._played(case) else ()
        if settings:
            needed = " ".join(f"{name}={value}" for name, value in settings)
            return (
                f"it needs {needed}, which the library reads when it starts, and {self._launched_by} "
                "has started it for the whole run; write --launch instead"
            )
        if not self._several_hosts or case.backend in (*BETWEEN_HOSTS, "simulated"):
            return ""
        return f"{case.backend}: its ranks share one host; between hosts there are {', '.join(BETWEEN_HOSTS)}"

    def _look_at_network(self, team: Team, case: Case) -> str:
        """Once for each library: what messages between these ranks take, for the predictions.

        Why there will be none, where that failed, which may have cost the team; else "".
        """
        kind = case.backend, case.ranks
        if case.backend not in HOST_LIBRARIES or kind in self._probed or case.ranks < 2:
            return ""
        if not self._several_hosts and not is_priced_on_one_host(*kind, self._basis.host):
            return ""
        self._probed.add(kind)
        where = "the network between the hosts" if self._several_hosts else "messages between the ranks"
        self._progress.note(f"measuring {where} with {case.backend}")
        try:
            self._networks[kind] = probe_network(team, *kind, self._largest_bytes[kind])
        except BackendUnavailable as error:
            self._progress.note(f"{error}; there are none of {case.backend}")
            return str(error)
        self._basis = replace(self._basis, host_networks=dict(self._networks))
        self._folder.describe(host_networks=[asdict(one) for one in self._networks.values()])
        return ""

    def _team(self, backend: Backend, case: Case) -> Team:
        key = self._team_key(case)
        team = self._teams.pop(key, None)
        if team is None or not team.usable():
            team = self._opened(backend, case, key)
        self._teams[key] = team  # last: the one used most recently
        return team

    def _opened(self, backend: Backend, case: Case, key: TeamKey) -> Team:
        if backend.costly_teams:
            self._make_room()
        request = TeamRequest(
            case.ranks,
            self._machine_for(case),
            self._seed,
            environment=(*key[2], *self._around(key[2])),
            launch=self._launch,
        )
        team = backend.open_team(request)
        lost_by = self._look_at_network(team, case)
        if not lost_by or team.usable():
            return team
        team.close()
        if self._played(case):
            raise BackendUnavailable(
                f"{case.backend}: {lost_by}; ranks that {self._launched_by} has started cannot be started "
                "again; ccbench run --launch can"
            )
        return backend.open_team(request)

    def _around(self, settings: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
        """What leaders of launched teams are told besides."""
        if self._launch and not self._several_hosts:
            yield ONE_HOST_VARIABLE, "1"
        if self._launched_by:
            yield HAND_ON_VARIABLE, " ".join(name for name, _ in settings)

    def _machine_for(self, case: Case) -> Machine | Cluster:
        """What a simulated case takes its times from; others only name it."""
        if case.backend != "simulated":
            return self._basis.machine_of(case) or load_machine(SIMULATION_MACHINE)
        try:
            return self._basis.needed_machine(case)
        except CcbenchError as error:
            raise BackendUnavailable(f"simulated: {error}") from None

    def _team_key(self, case: Case) -> TeamKey:
        return case.backend, case.ranks, self._backends[case.backend].team_settings(case)

    def _make_room(self) -> None:
        """End the costly teams that were not used for longest, so that one more can be opened."""
        costly = [key for key in self._teams if self._backends[key[0]].costly_teams]
        for key in costly[: max(0, len(costly) - MOST_COSTLY_TEAMS + 1)]:
            self._teams.pop(key).close()

    def _blocks(self, cases: Sequence[Case]) -> list[tuple[list[Case], int]]:
        """Cases that are visited in turn, each until it has so many visits.

        One block of all cases. Where not all costly teams can stay open, two for each of them, and the second
        half in the reverse order: what drifts steadily then hits all alike, and open teams come first.
        """
        kinds: dict[TeamKey | None, list[Case]] = {}
        for case in cases:
            costly = self._backends[case.backend].costly_teams
            kinds.setdefault(self._team_key(case) if costly else None, []).append(case)
        most = EXTRA_VISITS_FACTOR * self._sampling.visits
        if len(kinds.keys() - {None}) <= MOST_COSTLY_TEAMS:
            return [(list(cases), most)]
        half, blocks = -(-self._sampling.visits // 2), list(kinds.values())
        return [*((block, half) for block in blocks), *((block, most) for block in reversed(blocks))]

    def _predict(self, measurement: Measurement) -> Prediction | None:
        """The model's word on the schedule that ran; None where none is known."""
        if NO_LINK_FLAGS & set(measurement.conditions.flags):
            return None  # ranks shared a device, or it was emulated: no link was used
        ran = measurement.algorithm_used, measurement.protocol_used
        return self._basis.predict(measurement.case, *ran)

    def _close(self) -> None:
        for team in self._teams.values():
            team.close()
        self._teams.clear()


def _exit_code(counts: Mapping[Status, int], unfinished: int) -> int:
    for status, code in _EXIT_CODES.items():
        if counts.get(status):
            return code
    whole = counts.get(Status.OK) and not unfinished
    return 0 if whole else _EXIT_CODES[Status.SKIPPED]
