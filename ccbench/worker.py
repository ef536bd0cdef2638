"""``python -m ccbench.worker BACKEND RANKS FD``: a team's leader, which forks the ranks and watches them.

Where one process drives all ranks (``Crew.whole``), that process is watched as a rank is elsewhere.

The leader imports what the ranks need, so that a fork costs two milliseconds instead of an interpreter's
start. It never computes: it passes cases on, waits for all ranks, and when one dies or hangs it says which,
kills the rest and ends. Ranks die with the leader, the leader with the runner, whatever happens.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from ccbench.backends.base import CannotRun, OutOfMemory
from ccbench.backends.cpu.memory import Activity, Word
from ccbench.backends.crew import ClosingCrew, ClosingEndpoint, Crew, TeamEndpoint, open_crew
from ccbench.cases import Case, CaseFacts, Conditions, Measurement, Sampling, Status
from ccbench.errors import CcbenchError
from ccbench.faults import Fault, fault_from_environment
from ccbench.machine.flags import Flag
from ccbench.machine.host import allowed_cpus, spread_over_cores
from ccbench.machine.load import flagged, queued_seconds, read_cpu_times, watched
from ccbench.machine.processes import die_with_parent, ending, state
from ccbench.machine.readings import joined
from ccbench.measure import Apart, RankResult, communicating, durations, measure, taking_part
from ccbench.parts import parts_of, rank_by_rank, wrong_elements_of

SAMPLE_CAPACITY = 4096
POLL_SECONDS = 0.2

STOPPED_SECONDS = 10.0
"""A rank that a signal has stopped for so long is not waited for until the case's limit, be it hours."""

DISMISS_POLL_SECONDS = 0.002
"""How often it is looked whether ranks have closed."""

LOOK_SECONDS = 1.0
"""How often it is looked whether ranks are stopped."""


@dataclass(frozen=True)
class RankReport:
    """What a rank sends to the leader after a case."""

    status: Status
    detail: str = ""
    algorithm_used: str = ""
    result: RankResult | None = None
    processor_share: float = 0.0
    queued_share: float | None = None
    conditions: Conditions = field(default_factory=Conditions)
    flags: tuple[str, ...] = ()
    facts: CaseFacts = field(default_factory=CaseFacts)


# -- ranks ------------------------------------------------------------------------------------------------


class Line(Protocol):
    """A rank's connection to its leader, or what stands for it."""

    def recv(self) -> Any:
        """The next case with its sampling; EOFError when there are no more."""

    def send(self, report: Any) -> None:
        """Hand a report on."""


def rank_main(endpoint: TeamEndpoint, connection: Line) -> None:
    """Measure one case after the other until the leader hangs up."""
    # No collection may fall into a launch; between cases only what came since the fork is looked at.
    gc.disable()
    gc.freeze()
    while True:
        try:
            case, sampling = connection.recv()
        except (EOFError, OSError):
            return
        try:
            report = _rank_case(endpoint, case, sampling)
        except Exception as error:  # whatever it is, it must be named, not lost with the process
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{os.path.basename(place.filename)}:{place.lineno}"
            text = f"{type(error).__name__}: {error} ({where})"
            if isinstance(error, CcbenchError):
                text = str(error)
            report = RankReport(Status.FAILED, f"{endpoint.prefix}{text}")
        connection.send(report)
        gc.collect()


def _rank_case(endpoint: TeamEndpoint, case: Case, sampling: Sampling) -> RankReport:
    try:
        return _measured_case(endpoint, case, sampling)
    except OutOfMemory as error:
        return RankReport(Status.OUT_OF_MEMORY, str(error))
    except CannotRun as error:
        return RankReport(Status.UNSUPPORTED, str(error))


def _measured_case(endpoint: TeamEndpoint, case: Case, sampling: Sampling) -> RankReport:
    """OutOfMemory and CannotRun where the case, or what is computed meanwhile, cannot be had."""
    algorithm = endpoint.prepare(case)
    cpu_began, began, times_began = time.process_time(), time.perf_counter(), read_cpu_times()
    queued_began = queued_seconds()
    latency_before = endpoint.core_latency_seconds()
    result = measure(endpoint, case, sampling, endpoint.next_salt())
    latency_after = endpoint.core_latency_seconds()
    cpu_seconds, seconds = time.process_time() - cpu_began, time.perf_counter() - began
    queued_ended = queued_seconds()
    words = endpoint.control.words
    words[endpoint.control.index(endpoint.rank, Word.CPU_NANOSECONDS)] = int(cpu_seconds * 1e9)
    endpoint.barrier()
    if isinstance(endpoint, Apart):
        endpoint.share_words()
    times_ended = read_cpu_times()
    all_cpu = sum(endpoint.control.read(rank, Word.CPU_NANOSECONDS) for rank in range(endpoint.ranks)) / 1e9
    conditions = Conditions()
    if times_began and times_ended:
        conditions = watched(times_began, times_ended, all_cpu)
    conditions = replace(
        conditions, core_latency_before_seconds=latency_before, core_latency_after_seconds=latency_after
    )
    facts = endpoint.facts()
    endpoint.finish()
    status = Status.WRONG if result.mismatch else Status.OK
    detail = str(result.mismatch) if result.mismatch else endpoint.remark()
    if endpoint.rank:  # the stamps are everybody's, so one rank's copy is enough
        result = replace(result, stamps=result.stamps[:, :0], part_stamps=result.part_stamps[:, :, :0])
    return RankReport(
        status,
        detail,
        algorithm,
        result,
        cpu_seconds / seconds,
        None if queued_began is None or queued_ended is None else (queued_ended - queued_began) / seconds,
        conditions,
        (*endpoint.flags, *facts.flags),
        facts,
    )


def refuse_all(reason: str, connection: Connection) -> None:
    """Answer every case with the reason why none can run, until the leader hangs up."""
    with suppress(EOFError, OSError):
        while True:
            connection.recv()
            connection.send(RankReport(Status.UNSUPPORTED, reason))


# -- leader -----------------------------------------------------------------------------------------------


class Leader:
    """Owns the ranks of one team."""

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.ranks = crew.processes
        self.control = crew.control
        self.cpus = spread_over_cores(allowed_cpus()) if crew.pinned else []
        self.oversubscribed = crew.oversubscribed
        self.pids: list[int] = []
        self.reaped: set[int] = set()
        self.fault: Fault | None = None
        self.connections: list[Connection] = []
        self.hosts: tuple[str, ...] = ()
        """Host of each rank, where a launcher started them."""
        self._look_at = 0.0
        self._stopped: dict[int, float] = {}

    def fork(self, runner: Connection) -> None:
        """Start the ranks, each pinned to a processor of its own as far as there are enough."""
        self.fault = fault_from_environment()
        leader = os.getpid()
        for rank in range(self.ranks):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    die_with_parent(leader)
                    runner.close()
                    for connection in (*self.connections, ours):
                        connection.close()
                    if self.cpus:
                        os.sched_setaffinity(0, {self.binding(rank)})
                    self._serve(rank, theirs)
                    status = 0
                except BaseException:  # os._exit would lose it
                    traceback.print_exc()
                finally:
                    os._exit(status)
            theirs.close()
            self.pids.append(pid)
            self.connections.append(ours)

    def _serve(self, rank: int, connection: Connection) -> None:
        try:
            endpoint = self.crew.endpoint(rank)
        except CcbenchError as error:  # no driver, no peer access: a sentence, not a traceback
            refuse_all(str(error), connection)
            return
        rank_main(endpoint, connection)
        if isinstance(self.crew, ClosingCrew) and isinstance(endpoint, ClosingEndpoint):
            endpoint.close()

    def binding(self, rank: int) -> int:
        """The processor of a rank."""
        return self.cpus[rank % len(self.cpus)]

    def run(self, case: Case, sampling: Sampling, runner: Connection) -> tuple[Measurement, bool]:
        """One case on all ranks; (what came out, whether the team can go on)."""
        started = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        deadline = time.monotonic() + sampling.time_limit_seconds
        reports: dict[int, RankReport] = {}
        for connection in self.connections:
            with suppress(OSError):  # a rank that is gone shows below
                connection.send((case, sampling))
        while len(reports) < self.ranks:
            outcome = self._collect(case, reports, runner, deadline)
            if outcome:
                return replace(outcome, started_at=started), False
        return replace(self._compose(case, reports), started_at=started), True

    def _collect(
        self, case: Case, reports: dict[int, RankReport], runner: Connection, deadline: float
    ) -> Measurement | None:
        """Wait a little for reports; a Measurement when the case has failed."""
        pending = {self.connections[rank]: rank for rank in range(self.ranks) if rank not in reports}
        left = max(0.0, deadline - time.monotonic())
        for ready in wait([runner, *pending], timeout=min(POLL_SECONDS, left)):
            if ready is runner:
                raise EOFError  # the runner says nothing while a case runs: it is gone
            assert isinstance(ready, Connection)
            rank = pending[ready]
            try:
                message = ready.recv()
            except (EOFError, OSError):
                return Measurement(case, Status.FAILED, self._death(rank))
            if not isinstance(message, RankReport):
                self._hear(rank, message)
                continue
            reports[rank] = message
            if message.status is Status.FAILED:
                return Measurement(case, Status.FAILED, message.detail)
        silent = set(pending.values()) - set(reports)
        if silent and (time.monotonic() >= deadline or self._long_stopped(silent)):
            return Measurement(case, Status.TIMED_OUT, self._who_hangs(silent))
        return None

    def _long_stopped(self, pending: set[int]) -> bool:
        """Whether one of ``pending`` has been found stopped again and again."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        since = {rank: self._stopped.get(rank, now) for rank in pending if self._is_stopped(rank)}
        self._stopped = since
        return any(now - began >= STOPPED_SECONDS for began in since.values())

    def _hear(self, rank: int, message: object) -> None:
        """Forked ranks say nothing but reports: everything else is in memory that they share."""
        raise TypeError(f"rank {rank} sent {type(message).__name__} instead of a report")

    def _death(self, rank: int) -> str:
        ended = self._ended(rank)
        during = Activity(self.control.read(rank, Word.ACTIVITY)).name.lower().replace("_", " ")
        return f"{self._named(rank)} {ended} while {during}"

    def _ended(self, rank: int) -> str:
        """How the process of a rank ended."""
        _, status = os.waitpid(self.pids[rank], 0)
        self.reaped.add(self.pids[rank])
        return ending(status)

    def _is_stopped(self, rank: int) -> bool:
        return state(self.pids[rank]) in ("T", "t")

    def _named(self, rank: int) -> str:
        who = "the process of all ranks" if self.crew.whole else f"rank {rank}"
        return f"{who} (process {self.pids[rank]})"

    def _who_hangs(self, pending: set[int]) -> str:
        """Name ranks that are stopped, else the ones furthest behind."""
        stopped = [rank for rank in sorted(pending) if self._is_stopped(rank)]
        if stopped:
            ranks = ", ".join(map(self._named, stopped))
            return f"timed out: {ranks} is stopped by a signal" + (
                "" if self.crew.whole else "; the others wait for it"
            )

        def behind(rank: int) -> tuple[int, int]:
            return self.control.read(rank, Word.BARRIER), self.control.read(rank, Word.PROGRESS)

        if self.crew.whole:
            activity = Activity(self.control.read(0, Word.ACTIVITY)).name.lower().replace("_", " ")
            return f"timed out while {activity}, in sample {self.control.read(0, Word.SAMPLE)}"
        last = min(behind(rank) for rank in pending)
        ranks = ", ".join(str(rank) for rank in sorted(pending) if behind(rank) == last)
        sample = self.control.read(min(pending, key=behind), Word.SAMPLE)
        return f"timed out in sample {sample}: furthest behind: rank {ranks} of {self.ranks}"

    def _compose(self, case: Case, reports: dict[int, RankReport]) -> Measurement:
        # Reports come in any order. Rank 0 alone keeps the stamps, so its figures count where all ranks have
        # some; where one could not run, that one says why.
        worst = max((reports[rank] for rank in sorted(reports)), key=lambda report: _severity(report.status))
        status = worst.status
        # Of a wrong result those who have one speak: how the others took their samples explains nothing.
        details = [reports[rank].detail for rank in sorted(reports) if reports[rank].status is status]
        first = reports[0] if worst.result is not None else worst
        result = first.result
        # What one rank's device suffered, all ranks waited for.
        suffered = [
            flag for _, report in sorted(reports.items()) for flag in (*report.flags, *report.facts.flags)
        ]
        flags = tuple(dict.fromkeys((*first.flags, *suffered)))
        conditions = self._conditions(replace(first, flags=flags, conditions=self._seen(first, reports)))
        if result is None:
            return Measurement(case, status, first.detail, conditions=conditions)
        results = {rank: report.result for rank, report in reports.items() if report.result}
        launches = result.launches
        stamps = taking_part(case, result.stamps)
        parts, part_samples = parts_of(case, first.facts, result)
        found = Measurement(
            case=case,
            status=status,
            detail="; ".join(told for told in details if told),
            algorithm_used=first.algorithm_used,
            launches_per_sample=launches,
            samples_seconds=tuple((durations(stamps, case.by_last_starter) / launches).tolist()),
            warmup_seconds=result.warmup_seconds,
            simulated=Flag.EMULATION in first.flags,
            launching_seconds=result.launching_seconds,
            visit_samples=(stamps.shape[1],),
            wrong_elements=wrong_elements_of(case, results.values()),
            stop_reason=result.stop_reason,
            protocol_used=first.facts.protocol_used,
            channels_used=first.facts.channels_used,
            library_estimate_seconds=first.facts.library_estimate_seconds,
            gated_launches=first.facts.gated_launches,
            part_names=parts,
            part_samples_seconds=part_samples,
            device_readings=joined([reports[rank].facts.devices for rank in sorted(reports)], self.hosts),
            conditions=conditions,
        )
        if self.crew.whole:
            return found  # there is one clock, and no rank's own time
        ranks = communicating(case)
        waiting = tuple((results[rank].waiting_seconds,) for rank in ranks)
        shares = tuple(reports[rank].processor_share for rank in ranks)
        queued = tuple(share for rank in ranks if (share := reports[rank].queued_share) is not None)
        return replace(
            rank_by_rank(found, stamps),
            rank_waiting_seconds=waiting,
            rank_processor_share=shares,
            rank_queued_share=queued if len(queued) == len(shares) else (),
        )

    def _seen(self, first: RankReport, reports: dict[int, RankReport]) -> Conditions:
        """What else the processors did: of one host any rank's report tells it."""
        return first.conditions

    def _bindings(self) -> tuple[int, ...]:
        """Each rank's processor; empty where ranks are not bound."""
        return tuple(self.binding(rank) for rank in range(self.ranks)) if self.cpus else ()

    def _conditions(self, report: RankReport) -> Conditions:
        binding = self._bindings()
        seen = flagged(replace(report.conditions, binding=binding, oversubscribed=self.oversubscribed))
        seen = replace(seen, flags=(*report.flags, *seen.flags))
        # Figures made under a deliberate fault must never pass for real ones.
        return replace(seen, flags=(*seen.flags, Flag.FAULT_INJECTED)) if self.fault else seen

    def dismiss(self) -> None:
        """Hang up on ranks that have nothing to do, and let those close that must; others need no time."""
        if not isinstance(self.crew, ClosingCrew):
            return
        for connection in self.connections:
            connection.close()
        deadline = time.monotonic() + self.crew.closing_seconds
        left = [pid for pid in self.pids if pid not in self.reaped]
        while left and time.monotonic() < deadline:
            self.reaped.update(pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == pid)
            left = [pid for pid in left if pid not in self.reaped]
            time.sleep(DISMISS_POLL_SECONDS if left else 0.0)

    def end(self) -> None:
        """Kill and reap whatever is left."""
        for connection in self.connections:
            connection.close()
        left = [pid for pid in self.pids if pid not in self.reaped]  # others' numbers may be somebody else's
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _severity(status: Status) -> int:
    order = (Status.OK, Status.WRONG, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.FAILED)
    return order.index(status)


def main(arguments: Sequence[str]) -> None:
    """Lead a team until the runner hangs up."""
    backend, ranks, file = arguments
    die_with_parent(int(os.environ["CCBENCH_RUNNER"]))
    runner = Connection(int(file))
    os.set_inheritable(int(file), False)
    leader = Leader(open_crew(backend, int(ranks), SAMPLE_CAPACITY))
    try:
        leader.fork(runner)
        lead(leader, runner)
    finally:
        leader.end()


def lead(leader: Leader, runner: Connection) -> None:
    """Tell the runner that all ranks are there, then run its cases until it hangs up or a rank dies."""
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the runner is done, or gone
        runner.send(tuple(leader.pids))
        usable = True
        while usable:
            if runner not in wait([runner, *leader.connections]):
                return  # a rank died while idle: the runner sees the leader go and starts a fresh team
            try:
                case, sampling = runner.recv()
            except (EOFError, OSError):  # between two cases, all ranks idle: a clean end
                leader.dismiss()
                return
            measurement, usable = leader.run(case, sampling, runner)
            runner.send((measurement, usable))


if __name__ == "__main__":
    main(sys.argv[1:])
