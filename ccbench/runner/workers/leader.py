"""The leader of a team, which starts the ranks and watches them.

It never computes: it passes cases on, waits for all ranks, and when one dies or hangs it says which, kills
the rest and ends. Ranks die with the leader, the leader with the runner, whatever happens. This module has
what all leaders do, and the leader that forks its ranks: it imports what they need, so that a fork costs two
milliseconds instead of an interpreter's start. Where one process drives all ranks (``Crew.whole``), that
process is watched as a rank is elsewhere.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.cpu.memory import Activity, Control, Word
from ccbench.backends.crew import ClosingCrew, ClosingEndpoint, Crew
from ccbench.backends.faults import fault_from_environment
from ccbench.cases import Case, CaseFacts, Conditions, Measurement, Sampling, Status
from ccbench.collectives import collective
from ccbench.errors import CcbenchError
from ccbench.groups import format_ranks
from ccbench.machine.flags import Flag
from ccbench.machine.host import allowed_cpus, spread_over_cores
from ccbench.machine.load import flagged
from ccbench.machine.processes import die_with_parent, ending, state
from ccbench.machine.readings import joined
from ccbench.runner.measure import RankResult, by_last_starter, durations, taking_part
from ccbench.runner.workers.agent import refuse_all, run_rank
from ccbench.runner.workers.messages import RankReport

POLL_SECONDS = 0.2

STOPPED_SECONDS = 10.0
"""A rank that a signal has stopped for so long is not waited for until the case's limit, be it hours."""

DISMISS_POLL_SECONDS = 0.002
"""How often it is looked whether ranks have closed."""

LOOK_SECONDS = 1.0
"""How often it is looked whether ranks are stopped."""

_SEVERITY = (Status.OK, Status.WRONG, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.FAILED)


class Leader(ABC):
    """Watches the ranks of one team, which a subclass starts, names and ends.

    hosts: of each rank, where a launcher started them.
    """

    def __init__(self, control: Control, *, pinned: bool, oversubscribed: bool, whole: bool = False) -> None:
        self.control = control
        self.ranks = control.ranks
        self.cpus = spread_over_cores(allowed_cpus()) if pinned else []
        self.oversubscribed = oversubscribed
        self.whole = whole
        self.pids: list[int] = []
        self.connections: list[Connection] = []
        self.hosts: tuple[str, ...] = ()
        self.fault = fault_from_environment()
        self._look_at = 0.0
        self._stopped: dict[int, float] = {}

    @abstractmethod
    def start(self, runner: Connection) -> None:
        """Bring all ranks up; CcbenchError says why that failed, EOFError that the runner is gone."""

    @abstractmethod
    def ended(self, rank: int) -> str:
        """Say how the process of a rank ended."""

    @abstractmethod
    def end(self) -> None:
        """End whatever is left, by force where asking is not enough."""

    def dismiss(self) -> None:  # noqa: B027  (only forked ranks of some backends have something to close)
        """Let ranks that have nothing to do close in order."""

    def receive(self, rank: int, message: object) -> None:
        """Take a message that is no report. Forked ranks have none: the rest is in memory that they share."""
        raise TypeError(f"rank {rank} sent {type(message).__name__} instead of a report")

    def binding(self, rank: int) -> int:
        """Return the processor of a rank."""
        return self.cpus[rank % len(self.cpus)]

    # -- a case --------------------------------------------------------------------------------------------

    def lead(self, runner: Connection) -> None:
        """Tell the runner that all ranks are there, then run its cases until it hangs up or a rank dies."""
        with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the runner is done, or gone
            runner.send(tuple(self.pids))
            usable = True
            while usable:
                if runner not in wait([runner, *self.connections]):
                    return  # a rank died while idle: the runner sees the leader go and starts a fresh team
                try:
                    case, sampling = runner.recv()
                except (EOFError, OSError):  # between two cases, all ranks idle: a clean end
                    self.dismiss()
                    return
                measurement, usable = self.run(case, sampling, runner)
                runner.send((measurement, usable))

    def run(self, case: Case, sampling: Sampling, runner: Connection) -> tuple[Measurement, bool]:
        """Run one case on all ranks; (what came out, whether the team can go on)."""
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
        return replace(self.composed(case, reports), started_at=started), True

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
                during = self._activity(rank)
                return Measurement(
                    case, Status.FAILED, f"{self.name_of(rank)} {self.ended(rank)} while {during}"
                )
            if not isinstance(message, RankReport):
                self.receive(rank, message)
                continue
            reports[rank] = message
            if message.status is Status.FAILED:
                return Measurement(case, Status.FAILED, message.detail)
        silent = set(pending.values()) - set(reports)
        if silent and (time.monotonic() >= deadline or self._long_stopped(silent)):
            return Measurement(case, Status.TIMED_OUT, self.hang_diagnosis(silent))
        return None

    # -- who died, who hangs -------------------------------------------------------------------------------

    def name_of(self, rank: int) -> str:
        """Return what a rank is called in messages."""
        who = "the process of all ranks" if self.whole else f"rank {rank}"
        return f"{who} (process {self.pids[rank]})"

    def is_stopped(self, rank: int) -> bool:
        """True where a signal has stopped the rank's process, as far as that can be seen from here."""
        return state(self.pids[rank]) in ("T", "t")

    def _long_stopped(self, pending: set[int]) -> bool:
        """Whether one of ``pending`` has been found stopped again and again."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        self._stopped = {rank: self._stopped.get(rank, now) for rank in pending if self.is_stopped(rank)}
        return any(now - began >= STOPPED_SECONDS for began in self._stopped.values())

    def hang_diagnosis(self, pending: set[int]) -> str:
        """Name ranks that are stopped, else the ones furthest behind."""
        stopped = [rank for rank in sorted(pending) if self.is_stopped(rank)]
        if stopped:
            ranks = ", ".join(map(self.name_of, stopped))
            others = "" if self.whole else "; the others wait for it"
            return f"timed out: {ranks} is stopped by a signal{others}"
        if self.whole:
            return f"timed out while {self._activity(0)}, in sample {self.control.read(0, Word.SAMPLE)}"

        def behind(rank: int) -> tuple[int, int]:
            return self.control.read(rank, Word.BARRIER), self.control.read(rank, Word.PROGRESS)

        last = min(map(behind, pending))
        ranks = ", ".join(str(rank) for rank in sorted(pending) if behind(rank) == last)
        sample = self.control.read(min(pending, key=behind), Word.SAMPLE)
        return f"timed out in sample {sample}: furthest behind: rank {ranks} of {self.ranks}"

    def _activity(self, rank: int) -> str:
        return Activity(self.control.read(rank, Word.ACTIVITY)).name.lower().replace("_", " ")

    # -- what came out -------------------------------------------------------------------------------------

    def composed(self, case: Case, reports: Mapping[int, RankReport]) -> Measurement:
        """Make one measurement of the reports of all ranks, which may have come in any order."""
        # Rank 0 alone keeps the stamps, so its figures count where all ranks have some; where one could not
        # run, that one says why.
        worst = max((reports[rank] for rank in sorted(reports)), key=lambda one: _SEVERITY.index(one.status))
        status = worst.status
        # Of a wrong result those who have one speak: how the others took their samples explains nothing.
        details = [reports[rank].detail for rank in sorted(reports) if reports[rank].status is status]
        first = reports[0] if worst.result is not None else worst
        result = first.result
        conditions = self._conditions(first, reports)
        if result is None:
            return Measurement(case, status, first.detail, conditions=conditions)
        results = {rank: report.result for rank, report in reports.items() if report.result}
        launches = result.launches
        stamps = taking_part(case, result.stamps)
        parts, part_samples = parts_of(case, first.facts, result)
        found = Measurement(
            case=case,
            status=status,
            detail="; ".join(detail for detail in details if detail),
            algorithm_used=first.algorithm_used,
            launches_per_sample=launches,
            samples_seconds=tuple((durations(stamps, by_last_starter(case)) / launches).tolist()),
            warmup_seconds=result.warmup_seconds,
            simulated=Flag.EMULATION in first.flags,
            launching_seconds=result.launching_seconds,
            round_samples=(stamps.shape[1],),
            wrong_elements=wrong_elements_of(case, results.values()),
            stop_reason=result.stop_reason,
            protocol_used=first.facts.protocol_used,
            channels_used=first.facts.channels_used,
            library_estimate_seconds=first.facts.library_estimate_seconds,
            gated_launches=first.facts.gated_launches,
            group_names=parts,
            group_samples_seconds=part_samples,
            device_readings=joined([reports[rank].facts.devices for rank in sorted(reports)], self.hosts),
            conditions=conditions,
        )
        if self.whole:
            return found  # there is one clock, and no rank's own time
        ranks = case.communicating_ranks
        waiting = tuple((results[rank].waiting_seconds,) for rank in ranks)
        shares = tuple(reports[rank].processor_share for rank in ranks)
        queued = tuple(share for rank in ranks if (share := reports[rank].queued_share) is not None)
        return replace(
            rank_by_rank(found, stamps),
            rank_waiting_seconds=waiting,
            rank_cpu_share=shares,
            rank_queued_share=queued if len(queued) == len(shares) else (),
        )

    def seen_conditions(self, first: RankReport, reports: Mapping[int, RankReport]) -> Conditions:
        """Return what else the processors did: of one host any rank's report tells it."""
        return first.conditions

    def bindings(self) -> tuple[int, ...]:
        """Return each rank's processor; nothing where ranks are not bound."""
        return tuple(map(self.binding, range(self.ranks))) if self.cpus else ()

    def _conditions(self, first: RankReport, reports: Mapping[int, RankReport]) -> Conditions:
        # What one rank's device suffered, all ranks waited for.
        all_flags = [flag for _, one in sorted(reports.items()) for flag in (*one.flags, *one.facts.flags)]
        seen = replace(
            self.seen_conditions(first, reports), binding=self.bindings(), oversubscribed=self.oversubscribed
        )
        # Figures made under a deliberate fault must never pass for real ones.
        injected = (Flag.FAULT_INJECTED,) if self.fault else ()
        seen = flagged(seen)
        return replace(seen, flags=(*dict.fromkeys((*first.flags, *all_flags)), *seen.flags, *injected))


Samples = tuple[tuple[float, ...], ...]
"""Seconds per launch, [part][sample]."""


def parts_of(case: Case, facts: CaseFacts, result: RankResult) -> tuple[tuple[str, ...], Samples]:
    """What samples are made of, or what ran at the same time, each with its samples in seconds per launch.

    As measuring took it apart, else as the endpoint says, else groups by ranks' stamps.
    """

    def samples(stamps: NDArray[np.float64]) -> tuple[float, ...]:
        return tuple((durations(stamps) / result.launches).tolist())

    if result.parts:
        every = (taking_part(case, result.part_stamps[:, part]) for part in range(len(result.parts)))
        return result.parts, tuple(map(samples, every))
    untold = case.concurrent or not case.groups or not case.everybody
    if facts.parts or untold or len(result.stamps) != case.ranks:
        return facts.parts, facts.group_samples_seconds
    names = tuple(f"ranks {format_ranks(members)}" for members in case.members)
    return names, tuple(samples(result.stamps[members, :]) for members in case.members)


def rank_by_rank(measurement: Measurement, stamps: NDArray[np.float64]) -> Measurement:
    """The measurement with what each rank saw of its samples. stamps: (ranks, samples, 2), in seconds."""
    began = stamps[:, :, 0]  # all 0 where ranks have no clock in common, or devices that start together
    seconds = (stamps[:, :, 1] - stamps[:, :, 0]) / measurement.launches_per_sample
    return replace(
        measurement,
        skew_seconds=tuple(np.ptp(began, axis=0).tolist()) if began.any() else (),
        rank_samples_seconds=tuple(map(tuple, seconds.tolist())),
    )


def wrong_elements_of(case: Case, results: Iterable[RankResult]) -> int | None:
    """Of all ranks together; None where nothing was there to be compared."""
    if case.count == 0 and collective(case.collective).moves_data:
        return None
    return sum(one.mismatch.wrong_elements for one in results if one.mismatch)


class ForkedLeader(Leader):
    """Forks the ranks, each pinned to a processor of its own as far as there are enough."""

    def __init__(self, crew: Crew) -> None:
        super().__init__(
            crew.control, pinned=crew.pinned, oversubscribed=crew.oversubscribed, whole=crew.whole
        )
        self.crew = crew
        self.reaped: set[int] = set()

    def start(self, runner: Connection) -> None:
        """Fork."""
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
        run_rank(endpoint, connection)
        if isinstance(self.crew, ClosingCrew) and isinstance(endpoint, ClosingEndpoint):
            endpoint.close()

    def ended(self, rank: int) -> str:
        """From the kernel: ranks are this process's children."""
        _, status = os.waitpid(self.pids[rank], 0)
        self.reaped.add(self.pids[rank])
        return ending(status)

    def dismiss(self) -> None:
        """Hang up, and let those close that must; others need no time."""
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
