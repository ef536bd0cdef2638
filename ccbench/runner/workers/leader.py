"""The leader of a team, which starts the ranks and watches them.

It never computes: it passes cases on, waits for all ranks, and when one dies or hangs it says which, kills
the rest and ends. Ranks die with the leader, the leader with the runner, whatever happens. It forks the ranks
(it imports what they need, so that a fork costs two milliseconds instead of an interpreter's start), or
listens, on loopback unless ranks may be on other hosts, has their processes started by a launcher, and waits
until as many have connected as it asked for. Those it ends by their process descriptors on its own host, by
the launcher's process group, and elsewhere because their connection breaks. Where one process drives all
ranks (``WorkerGroup.single_process``), that process is watched as a rank is elsewhere.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import datetime, timezone
from multiprocessing.connection import Connection, wait
from typing import TypeVar

from ccbench.backends.base import CannotRun, Position, TeamLaunch, TeamRequest
from ccbench.backends.control_block import Activity, Control, Word
from ccbench.backends.endpoint import WorkerGroup, open_worker_group
from ccbench.backends.faults import fault_from_environment
from ccbench.cases.axes import Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import Measurement, Sampling, Status
from ccbench.errors import BackendUnavailable, CannotStart, CcbenchError, Hung
from ccbench.flags import Flag
from ccbench.machine.files import Files
from ccbench.machine.host import (
    allowed_cpus,
    die_with_parent,
    no_memory,
    out_of_memory,
    spread_over_cores,
    state,
    usable_cores,
)
from ccbench.machine.readings import ClockWatch, flagged, worst_of_hosts
from ccbench.readers.schedules import use_schedule_files
from ccbench.runner.workers import messages
from ccbench.runner.workers.channel import Listener, Peer, tell_all
from ccbench.runner.workers.cleanup import SHARED_MEMORY, FileCleanup
from ccbench.runner.workers.launcher import (
    LOOK_SECONDS,
    START_LIMIT_SECONDS,
    STOPPED_SECONDS,
    ForkedRanks,
    Launcher,
    gather,
    private_folder,
    started,
)
from ccbench.runner.workers.messages import (
    RUNNER_VARIABLE,
    RankReport,
    this_place,
)
from ccbench.runner.workers.reports import crowded, measurement_of, one_version
from ccbench.units import format_size

SAMPLE_CAPACITY = 4096
POLL_SECONDS = 0.2

ANSWER_SECONDS = 1.0
"""Time that a rank may take to say where it is; one that is stopped never does."""

LITTLE_ROOM_BYTES = 64 << 20
"""Free shared memory from which on SIGBUS has another cause, where what is wanted is not known."""

PARTING_SECONDS = 3.0
"""Time that launched ranks may take to finish their library."""


class _Lost(Exception):
    """The team is lost, and a case with it: its status, and the text who died, failed or hangs."""

    def __init__(self, status: Status, detail: str) -> None:
        super().__init__(detail)
        self.status = status


Answer = TypeVar("Answer", messages.Ready, RankReport)


class Leader:
    """Starts the ranks of one team, watches them, and ends them.

    bound: each rank's processor, where every rank has only one. hosts: of each rank, where a launcher started
    them.
    """

    def __init__(
        self,
        request: TeamRequest,
        group: WorkerGroup | None = None,
        hub: Connection | None = None,
    ) -> None:
        """group: where ranks are forked; default: the backend's. hub: leads to agents that run already."""
        self.backend, self.ranks, self.launch = request.backend, request.ranks, request.launch
        # Ranks that are forked from here have them too.
        use_schedule_files(request.schedules)
        self._parting_seconds = PARTING_SECONDS
        self._start_seconds = min(START_LIMIT_SECONDS, request.start_seconds)
        if self.launch is None:
            made = group or open_worker_group(
                self.backend, self.ranks, SAMPLE_CAPACITY, request.processes
            )
            self.group, self.control, self.single_process = (
                made,
                made.control,
                made.single_process,
            )
            self.ranks = self.control.ranks
            pinned, self.oversubscribed = made.pinned, made.oversubscribed
            self._parting_seconds = made.closing_seconds
        else:
            self.control, self.single_process = Control(self.ranks, 1), False
            pinned = self.launch.pinned and not self.launch.several_hosts
            # Ranks whose GPUs do the work leave processors to others while they wait.
            self.oversubscribed = (
                not capabilities_of(self.backend).on_gpus and self.ranks > usable_cores()
            )
        cpus = spread_over_cores(allowed_cpus()) if pinned else []
        self.bound = tuple(cpus[rank % len(cpus)] for rank in range(self.ranks)) if cpus else ()
        self.members: list[Peer] = []
        self.hosts: tuple[str, ...] = ()
        self.fault = fault_from_environment()
        self._hub, self._here = hub, this_place()
        # Process descriptors, by number, of ranks on this host that must not outlive the team.
        self._held: dict[int, int] = {}
        self._launcher: Launcher | None = None
        self._one_clock = True
        self._version = ""
        # True while ranks may be beyond finishing in order; until all are ready, they are.
        self._failed = True
        self._given: dict[int, bytes] = {}
        # Of ranks of this host alone; where there may be others, each rank has its own.
        self._cleanup: FileCleanup | None = None
        self._open = ExitStack()
        self._look_at = 0.0
        self._stopped: dict[int, float] = {}
        self._clock = ClockWatch()

    @property
    def connections(self) -> list[Connection]:
        """Return the connection of each rank."""
        return [member.connection for member in self.members]

    # -- start ---------------------------------------------------------------------------------------------

    def start(self, runner: Connection) -> None:
        """Bring all ranks up.

        CannotRun says what a rank refuses, BackendUnavailable why the start failed, EOFError that the runner
        is gone.
        """
        if self.launch is None:
            forked = ForkedRanks(self.group, self.bound, runner)
            self._launcher, self.members = forked, forked.members
        else:
            deadline = time.monotonic() + self._start_seconds
            self._launch(self.launch, runner)
            try:
                ready = self._answers(messages.Ready, deadline, runner)
            except _Lost as lost:
                failed = Hung if lost.status is Status.TIMED_OUT else BackendUnavailable
                raise failed(f"{self.backend}: {lost}") from None
            in_order = [ready[rank] for rank in range(self.ranks)]
            self._version = one_version(
                self.backend, [answer.version for answer in in_order], self.hosts
            )
            if all(len(answer.processors) == 1 for answer in in_order):
                self.bound = tuple(answer.processors[0] for answer in in_order)
            if len(set(self.hosts)) > 1:  # the leader's own host says nothing about the others
                self.oversubscribed = crowded(self.hosts, in_order)
            self._remember_files()
        self._failed = False

    def _launch(self, launch: TeamLaunch, runner: Connection) -> None:
        """Have a launcher start the ranks, wait until all have connected, and number them."""
        enter = self._open.enter_context
        listener = enter(Listener(several_hosts=launch.several_hosts and not launch.one_host))
        folders = {
            name: enter(private_folder(os.environ.get(name) or parent))
            for name, parent in launch.private_folders
        }
        if not launch.several_hosts:
            self._cleanup = FileCleanup()
            self._open.callback(self._cleanup.close)
            self._cleanup.add(folders.values())
        in_process = capabilities_of(self.backend).in_process_ranks
        starter = started(launch, self.ranks, listener.address, folders, self._hub, in_process)
        self._launcher = starter
        with listener:
            self.members = gather(
                listener,
                self.backend,
                self.ranks,
                starter.why_so_few,
                self.members,
                limit_seconds=self._start_seconds,
                lost=starter.lost,
                runner=runner,
                enrol=self._hold,
            )
        places = [member.hello.place for member in self.members]
        self.hosts = tuple(place.host for place in places)
        self._one_clock = len({place.clock for place in places}) == 1
        many = self.oversubscribed and not launch.several_hosts
        for rank, connection in enumerate(self.connections):
            processor = self.bound[rank] if self.bound else -1
            start = messages.Start(
                self.backend, rank, self.ranks, self.hosts, self._one_clock, many, processor
            )
            tell_all([connection], start)

    def _hold(self, peer: Peer) -> None:
        """See that a rank's process does not outlive this team, whatever becomes of it, unless it says so.

        A descriptor means this process for good; its number might be another's by then.
        """
        if self._near(peer) and not peer.hello.stays and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                self._held[peer.hello.place.pid] = os.pidfd_open(peer.hello.place.pid)

    def _near(self, member: Peer) -> bool:
        """Return True if the rank's process can be seen from here."""
        return self._here.sees(member.hello.place)

    def _remember_files(self) -> None:
        """Have what libraries of this host put into shared memory go with the team, whoever is killed."""
        if self._cleanup:
            self._cleanup.add_shared_memory(self._held)

    # -- a case --------------------------------------------------------------------------------------------

    def lead(self, runner: Connection) -> None:
        """Tell the runner that all ranks are there, then run its cases until it hangs up or a rank dies."""
        with suppress(
            EOFError, BrokenPipeError, ConnectionResetError
        ):  # the runner is done, or gone
            runner.send(tuple(member.hello.place.pid for member in self.members))
            usable = True
            while usable:
                if runner not in wait([runner, *self.connections]):
                    return  # a rank died while idle: the runner sees the leader go and starts a fresh team
                case, sampling = runner.recv()
                measurement, usable = self.run(case, sampling, runner)
                runner.send((measurement, usable))

    def run(
        self, case: Case, sampling: Sampling, runner: Connection
    ) -> tuple[Measurement, bool]:
        """Run one case on all ranks; (what came out, whether the team can go on)."""
        started_at = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        deadline = time.monotonic() + sampling.time_limit_seconds
        self._failed = True
        tell_all(self.connections, (case, sampling))
        try:
            reports = self._answers(RankReport, deadline, runner)
        except _Lost as lost:
            return self._placed(
                Measurement(case, lost.status, str(lost), started_at=started_at)
            ), False
        self._failed = False
        return replace(self.composed(case, reports), started_at=started_at), True

    # -- the watchdog --------------------------------------------------------------------------------------

    def _answers(
        self, kind: type[Answer], deadline: float, runner: Connection
    ) -> dict[int, Answer]:
        """Return one answer of every rank.

        Raises _Lost when one dies, fails or hangs, CannotRun when one refuses, EOFError when the runner is
        gone.
        """
        everybody = set(range(self.ranks))
        answers: dict[int, Answer] = {}
        while late := everybody - set(answers):
            left = max(0.0, deadline - time.monotonic())
            # While libraries start, who is ready may die, and has all-gathers to say.
            heard = self._heard(
                late if kind is RankReport else everybody, min(POLL_SECONDS, left), runner
            )
            for rank in heard:
                try:
                    message = self.members[rank].connection.recv()
                except (EOFError, OSError):
                    during = (
                        self._activity(rank) if kind is RankReport else "its library started"
                    )
                    self._remember_files()  # while others still share them
                    assert self._launcher is not None, "there are no ranks before it"
                    ended = self._launcher.rank_ended(rank)
                    reason = f"{self.name_of(rank)} {ended} while {during}{self._no_room(rank, ended)}"
                    raise _Lost(Status.FAILED, reason) from None
                if isinstance(message, CcbenchError):
                    raise message  # as a rank that was forked refuses every case
                if isinstance(message, RankReport) and message.others_wait:
                    raise _Lost(message.status, message.detail)
                if isinstance(message, kind):
                    answers[rank] = message
                else:
                    self._receive(rank, message)
            if kind is messages.Ready and not heard:
                self._remember_files()  # a library that is killed while it starts leaves files, too
            late -= set(answers)
            if late and (time.monotonic() >= deadline or self._long_stopped(late)):
                raise _Lost(Status.TIMED_OUT, self._hang_diagnosis(late, kind is RankReport))
        return answers

    def _heard(
        self, ranks: set[int], seconds: float, runner: Connection | None = None
    ) -> list[int]:
        """Return those of ``ranks`` that have said something; EOFError when the runner is gone."""
        lines = {self.members[rank].connection: rank for rank in ranks}
        ready = wait([*lines, runner] if runner else list(lines), seconds)
        if runner in ready:
            raise EOFError  # it says nothing meanwhile
        return [lines[line] for line in ready if isinstance(line, Connection)]

    def _receive(self, rank: int, message: object) -> None:
        """Keep where a launched rank is; hand on what all have given. Forked ranks share memory for both."""
        if isinstance(message, Position):
            position = (message.activity, message.sample, message.barriers)
            for word, value in zip(
                (Word.ACTIVITY, Word.SAMPLE, Word.BARRIER), position, strict=True
            ):
                self.control.words[self.control.index(rank, word)] = value
        elif isinstance(message, messages.AllGather):
            (self._given[rank],) = message.payloads
            if len(self._given) == self.ranks:
                everything = tuple(self._given[rank] for rank in range(self.ranks))
                self._given = {}
                tell_all(self.connections, messages.AllGather(everything))
        else:
            raise TypeError(f"rank {rank} sent {type(message).__name__} instead of a report")

    def composed(self, case: Case, reports: Mapping[int, RankReport]) -> Measurement:
        """Make one measurement of the reports of all ranks, which may have come in any order."""
        # Of each host one rank's report tells what else its processors did; all ranks wait for the worst.
        ranks = [self.hosts.index(host) for host in dict.fromkeys(self.hosts)] or [0]
        worst = flagged(
            replace(
                worst_of_hosts([reports[rank].conditions for rank in ranks]),
                binding=self.bound,
                oversubscribed=self.oversubscribed,
            )
        )
        # What one rank's device suffered, all ranks waited for.
        flags = [flag for _, report in sorted(reports.items()) for flag in report.flags]
        # Figures made under a deliberate fault must never pass for real ones.
        injected = (Flag.FAULT_INJECTED,) if self.fault else ()
        conditions = replace(
            worst, flags=(*dict.fromkeys(flags), *worst.flags, *self._clock.flags(), *injected)
        )
        measurement = measurement_of(case, reports, self.hosts, self.single_process)
        measurement = replace(
            measurement,
            conditions=conditions,
            backend_version=self._version or measurement.backend_version,
        )
        if not self._one_clock:
            measurement = replace(measurement, skew_seconds=())
        return self._placed(measurement)

    def _placed(self, measurement: Measurement) -> Measurement:
        """Add where each rank ran, where that was on several hosts."""
        names = list(dict.fromkeys(self.hosts))
        if len(names) < 2:
            return measurement
        return replace(
            measurement, hosts=self.hosts, node_of_rank=tuple(map(names.index, self.hosts))
        )

    # -- who died, who hangs -------------------------------------------------------------------------------

    def name_of(self, rank: int) -> str:
        """Return the name of a rank in messages, with its host where there are several."""
        place = self.members[rank].hello.place
        who = "the process of all ranks" if self.single_process else f"rank {rank}"
        where = f" on {place.host}" if len(set(self.hosts)) > 1 else ""
        return f"{who} (process {place.pid}{where})"

    def _no_room(self, rank: int, ended: str) -> str:
        """Return what shared memory lacks where that has ended a rank, with the cure; '' otherwise.

        Memory that a file has and a full file system has not is SIGBUS for who writes to it (tmpfs(5)).
        """
        lacking = 0
        if self._cleanup:
            self._cleanup.add_abandoned()
            lacking = self._cleanup.lacking_bytes()
        near = "SIGBUS" in ended and self._near(self.members[rank])
        space = Files().space_bytes(SHARED_MEMORY) if near else None
        if space is None or space[1] >= max(lacking, LITTLE_ROOM_BYTES):
            return ""
        mebibytes = -(-lacking // (1 << 20))
        lack = f"; its library's files there want {mebibytes} MiB more" if lacking else ""
        return (
            f": {SHARED_MEMORY} has {format_size(space[1])} of {format_size(space[0])} free{lack}; "
            "docker run --shm-size=8g, or remount it larger"
        )

    def _is_stopped(self, rank: int) -> bool:
        """Return True if a signal has stopped the rank's process, as far as that can be seen from here."""
        member = self.members[rank]
        return self._near(member) and state(member.hello.place.pid) in ("T", "t")

    def _long_stopped(self, pending: set[int]) -> bool:
        """Return True if one of ``pending`` has been found stopped again and again."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        self._stopped = {
            rank: self._stopped.get(rank, now) for rank in pending if self._is_stopped(rank)
        }
        return any(now - began >= STOPPED_SECONDS for began in self._stopped.values())

    def _stuck(self, pending: set[int]) -> str:
        """Name ranks that are stopped, or that do not even say where they are; '' where there are none."""
        mute = set(pending) if self.launch else set()
        tell_all(
            [self.members[rank].connection for rank in mute],
            messages.Question(messages.POSITION),
        )
        # A rank that hangs in its library answers all the same: a thread of its own does.
        deadline = time.monotonic() + ANSWER_SECONDS
        while mute and time.monotonic() < deadline:
            for rank in self._heard(mute, POLL_SECONDS):
                with suppress(EOFError, OSError):
                    message = self.members[rank].connection.recv()
                    if isinstance(message, Position):
                        self._receive(rank, message)
                mute.discard(rank)
        elsewhere = [rank for rank in sorted(mute) if not self._near(self.members[rank])]
        if elsewhere:
            ranks = ", ".join(map(self.name_of, elsewhere))
            return f"no answer from {ranks}: stopped, or its host cannot be reached"
        stopped = [rank for rank in sorted(pending) if self._is_stopped(rank)]
        waiting = "" if self.single_process else "; the others wait for it"
        return (
            f"{', '.join(map(self.name_of, stopped))} is stopped by a signal{waiting}"
            if stopped
            else ""
        )

    def _hang_diagnosis(self, pending: set[int], measuring: bool) -> str:
        """Name ranks that are stuck, else those furthest behind, or all whose library did not start."""
        stuck = self._stuck(pending)
        if not measuring:
            names = ", ".join(map(self.name_of, sorted(pending)))
            why = stuck or f"in {self._start_seconds:.0f} s it did not on {names}"
            return f"the library did not start: {why}"
        if stuck:
            return f"timed out: {stuck}"
        if self.single_process:
            return f"timed out while {self._activity(0)}, {self._when(0)}"
        # Progress within a sample tells apart ranks that have come to the same barrier.
        read = self.control.read
        behind = {
            rank: (read(rank, Word.BARRIER), read(rank, Word.PROGRESS))
            for rank in sorted(pending)
        }
        last = [rank for rank in behind if behind[rank] == min(behind.values())]
        ranks = ", ".join(map(str, last))
        return f"timed out {self._when(last[0])}: furthest behind: rank {ranks} of {self.ranks}"

    def _when(self, rank: int) -> str:
        sample = self.control.read(rank, Word.SAMPLE)
        return f"in sample {sample}" if sample >= 0 else "before its samples"

    def _activity(self, rank: int) -> str:
        return Activity(self.control.read(rank, Word.ACTIVITY)).name.lower().replace("_", " ")

    # -- end -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Let ranks finish in order where they can, then end whatever is left."""
        self._remember_files()
        if self.members and wait(self.connections, timeout=0):
            self._failed = True  # a rank has died while idle: the others would wait for it
        tell_all(self.connections, messages.Stop())
        if self._launcher is not None and not self._failed:
            self._launcher.wait(self._parting_seconds)
        for connection in self.connections:
            connection.close()
        for handle in self._held.values():
            with suppress(OSError):  # it has ended
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        if self._launcher is not None:
            self._launcher.kill()
        self._open.close()


def run_leader(file: int, *hub_files: int) -> None:
    """Lead a team until the runner, at the other end of the socket ``file``, hangs up.

    hub_files: where agents run already, the socket that leads to their hub.
    """
    runner, *hub = (Connection(descriptor) for descriptor in (file, *hub_files))
    die_with_parent(int(os.environ[RUNNER_VARIABLE]))
    leader = None
    try:
        leader = Leader(runner.recv(), hub=hub[0] if hub else None)
        leader.start(runner)
        leader.lead(runner)
    except CcbenchError as error:
        refusal = error
        if not isinstance(error, (CannotRun, CannotStart)):
            refusal = BackendUnavailable(str(error))
            refusal.exit_code = error.exit_code
        tell_all([runner], refusal)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the runner is gone
    except (MemoryError, OSError) as error:
        if not out_of_memory(error):
            raise
        backend = leader.backend if leader else "the team"
        tell_all(
            [runner],
            BackendUnavailable(f"{backend}: its ranks cannot be started: {no_memory(error)}"),
        )
    finally:
        if leader is not None:
            leader.end()
