"""The leader of a team whose ranks a launcher starts, or the leader itself where there is no launcher.

It listens (on loopback, unless ranks may be on other hosts), has the ranks' processes started, and waits
until as many have connected as it asked for. Each must know a random key that only the environment carries.
It ends ranks on its own host by their process descriptors, the launcher with its process group, and ranks
elsewhere because their connection breaks.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from ccbench.backends.base import Launch, Position
from ccbench.backends.cpu.memory import Control, Word
from ccbench.cases import Case, Conditions, Measurement, Sampling
from ccbench.errors import BackendUnavailable
from ccbench.machine.host import usable_cores
from ccbench.machine.load import worst_of_hosts
from ccbench.runner.workers import messages
from ccbench.runner.workers.channel import Listener, Peer
from ccbench.runner.workers.cleanup import FileCleanup
from ccbench.runner.workers.launcher import (
    LAUNCHER_END_SECONDS,
    START_LIMIT_SECONDS,
    Launcher,
    describe_exit,
    gather,
    private_folder,
    rank_order,
    started,
)
from ccbench.runner.workers.leader import POLL_SECONDS, Leader
from ccbench.runner.workers.messages import RankReport

ANSWER_SECONDS = 1.0
"""How long a rank may take to say where it is; one that is stopped never does."""

PARTING_SECONDS = 3.0
"""How long ranks may take to finish their library."""

_SIGNAL = r"exited on signal (\d+)|\(signal (\d+)\)|KILLED BY SIGNAL: (\d+)"
"""How Open MPI's mpirun, MPICH's hydra and Intel's name the signal that ended a rank."""


@dataclass(frozen=True)
class Member:
    """A rank as the leader knows it. handle: its process descriptor, -1 for one on another host."""

    place: messages.Place
    connection: Connection
    handle: int


class LaunchedLeader(Leader):
    """Owns a launcher and the connections of its ranks."""

    def __init__(self, backend: str, ranks: int, launch: Launch) -> None:
        oversubscribed = ranks > usable_cores()
        pinned = launch.pinned and not launch.several_hosts
        super().__init__(Control(ranks, 1), pinned=pinned, oversubscribed=oversubscribed)
        self.backend = backend
        self.launch = launch
        self.launcher: Launcher | None = None
        self.members: list[Member] = []
        self.one_clock = True
        self.version = ""
        self.failed = True
        """Whether ranks may be beyond finishing their library; until all have it, they are."""
        self._processors: dict[int, tuple[int, ...]] = {}
        self._given: dict[int, bytes] = {}
        self._cleanup: FileCleanup | None = None
        """Of ranks of this host alone; where there may be others, each rank has its own."""
        self._open = ExitStack()

    # -- start ---------------------------------------------------------------------------------------------

    def start(self, runner: Connection) -> None:
        """Bring all ranks up; BackendUnavailable says why that failed, EOFError that the runner is gone."""
        deadline = time.monotonic() + START_LIMIT_SECONDS
        enter = self._open.enter_context
        listener = enter(Listener(several_hosts=self.launch.several_hosts and not self.launch.one_host))
        folders = {name: enter(private_folder(parent)) for name, parent in self.launch.private_folders}
        if not self.launch.several_hosts:
            self._cleanup = FileCleanup()
            self._open.callback(self._cleanup.close)
            self._cleanup.add(folders.values())
        self.launcher = started(self.launch, self.ranks, listener.address, folders, self.backend)
        with listener:
            arrived = gather(
                listener,
                self.backend,
                lambda _: self.ranks,
                self.launcher.why_so_few,
                ended=self.launcher.ended,
                runner=runner,
                enrol=self._enrol,
            )
        self._start_ranks(arrived)
        self._until_ready(runner, deadline)

    def _enrol(self, peer: Peer) -> None:
        """Remember a process that must not outlive this team, whatever becomes of it, unless it says so."""
        place, handle, here = peer.hello.place, -1, messages.this_place()
        near = (place.host, place.pid_namespace) == (here.host, here.pid_namespace)
        if near and not peer.hello.stays and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                handle = os.pidfd_open(place.pid)
        self.members.append(Member(place, peer.connection, handle))

    def _start_ranks(self, arrived: Sequence[Peer]) -> None:
        order = rank_order([peer.hello for peer in arrived], self.backend, self.ranks)
        self.members = [self.members[number] for number in order]
        self.hosts = tuple(member.place.host for member in self.members)
        self.one_clock = len({member.place.clock for member in self.members}) == 1
        self.pids = [member.place.pid for member in self.members]
        self.connections = [member.connection for member in self.members]
        many = self.oversubscribed and not self.launch.several_hosts
        for rank, connection in enumerate(self.connections):
            processor = self.binding(rank) if self.cpus else -1
            with suppress(OSError):  # who is gone shows below
                connection.send(
                    messages.Start(
                        self.backend, rank, self.ranks, self.hosts, self.one_clock, many, processor
                    )
                )

    def _until_ready(self, runner: Connection, deadline: float) -> None:
        """Wait until every rank's library works; all-gathers between them go on meanwhile."""
        ready: dict[int, messages.Ready] = {}
        while len(ready) < self.ranks:
            for line in wait([runner, *self.connections], timeout=POLL_SECONDS):
                if line is runner:
                    raise EOFError
                assert isinstance(line, Connection)
                rank = self.connections.index(line)
                try:
                    message = line.recv()
                except (EOFError, OSError):
                    raise BackendUnavailable(
                        f"{self.backend}: {self.name_of(rank)} {self.ended(rank)} while its library started"
                    ) from None
                if isinstance(message, messages.Refusal):
                    raise BackendUnavailable(message.reason)
                if isinstance(message, messages.Ready):
                    ready[rank] = message
                else:
                    self.receive(rank, message)
            if time.monotonic() > deadline:
                late = ", ".join(self.name_of(rank) for rank in range(self.ranks) if rank not in ready)
                raise BackendUnavailable(
                    f"{self.backend}: in {START_LIMIT_SECONDS:.0f} s the library did not start on {late}"
                )
        in_order = [ready[rank] for rank in range(self.ranks)]
        self.version = one_version(self.backend, [one.version for one in in_order], self.hosts)
        self._processors = {rank: one.processors for rank, one in ready.items()}
        if len(set(self.hosts)) > 1:  # the leader's own host says nothing about the others
            self.oversubscribed = crowded(self.hosts, in_order)
        self.failed = False
        self._remember_files()

    def _remember_files(self) -> None:
        """What libraries of this host have put into shared memory goes with the team, whoever is killed."""
        if self._cleanup:
            self._cleanup.add_shared_memory(member.place.pid for member in self.members if member.handle >= 0)

    # -- cases ---------------------------------------------------------------------------------------------

    def run(self, case: Case, sampling: Sampling, runner: Connection) -> tuple[Measurement, bool]:
        """Run one case on all ranks; (what came out, whether the team can go on)."""
        self.failed = True
        measurement, usable = super().run(case, sampling, runner)
        self.failed = not usable
        return measurement, usable

    def receive(self, rank: int, message: object) -> None:
        """Keep where a rank is; hand on what all ranks have given."""
        if isinstance(message, Position):
            words, control = self.control.words, self.control
            words[control.index(rank, Word.ACTIVITY)] = message.activity
            words[control.index(rank, Word.SAMPLE)] = message.sample
            words[control.index(rank, Word.BARRIER)] = message.barriers
        elif isinstance(message, messages.AllGather):
            self._given[rank] = message.payload
            if len(self._given) == self.ranks:
                gathered = messages.Gathered(tuple(self._given[one] for one in range(self.ranks)))
                self._given = {}
                for connection in self.connections:
                    with suppress(OSError):  # who is gone shows when it is listened to
                        connection.send(gathered)
        else:
            super().receive(rank, message)

    def composed(self, case: Case, reports: Mapping[int, RankReport]) -> Measurement:
        """As every leader, with the hosts where they are several, and without what needs a common clock."""
        found = replace(super().composed(case, reports), backend_version=self.version)
        if not self.one_clock:
            found = replace(found, skew_seconds=())
        if len(set(self.hosts)) > 1:
            found = replace(found, hosts=self.hosts, node_of_rank=nodes_of_ranks(self.hosts))
        return found

    def seen_conditions(self, first: messages.RankReport, reports: Mapping[int, RankReport]) -> Conditions:
        """Of each host one rank's report tells what else its processors did; all ranks wait for the worst."""
        ranks = [self.hosts.index(host) for host in dict.fromkeys(self.hosts)]
        return worst_of_hosts([reports[rank].conditions for rank in ranks])

    def bindings(self) -> tuple[int, ...]:
        """Return each rank's processor, where every rank has only one."""
        all_of_them = [self._processors.get(rank, ()) for rank in range(self.ranks)]
        return tuple(one[0] for one in all_of_them) if all(len(one) == 1 for one in all_of_them) else ()

    # -- who died, who hangs -------------------------------------------------------------------------------

    def name_of(self, rank: int) -> str:
        """Return what a rank is called in messages, with its host where there are several."""
        member = self.members[rank]
        where = f" on {member.place.host}" if len(set(self.hosts)) > 1 else ""
        return f"rank {rank} (process {member.place.pid}{where})"

    def ended(self, rank: int) -> str:
        """From what the launcher says: the rank is its child, or the child of one of its daemons."""
        assert self.launcher is not None, "there are no ranks before it"
        self.launcher.wait(LAUNCHER_END_SECONDS)
        own = self.launcher.ended_one(rank)
        if own:
            return own
        found = re.search(_SIGNAL, self.launcher.output(_SIGNAL))
        if found:
            return describe_exit(-int(next(filter(None, found.groups()))))
        launcher = self.launcher.ended()
        if launcher.startswith("was killed"):
            return f"ended, because {self.launcher.name} {launcher},"
        said = self.launcher.output()
        return f"ended ({self.launcher.name} said: {said})" if said else "ended"

    def is_stopped(self, rank: int) -> bool:
        """Of a rank on this host only."""
        return self.members[rank].handle >= 0 and super().is_stopped(rank)

    def hang_diagnosis(self, pending: set[int]) -> str:
        """Ask everybody who is silent where it is; who does not answer either is named first."""
        mute = self._ask(pending)
        elsewhere = [rank for rank in sorted(mute) if self.members[rank].handle < 0]
        if elsewhere:
            ranks = ", ".join(map(self.name_of, elsewhere))
            return f"timed out: no answer from {ranks}: stopped, or its host cannot be reached"
        return super().hang_diagnosis(pending)

    def _ask(self, ranks: set[int]) -> set[int]:
        """Ask ``ranks`` where they are; those that have not answered in time."""
        mute = set(ranks)
        for rank in ranks:
            with suppress(OSError):
                self.connections[rank].send(messages.Question(messages.POSITION))
        deadline = time.monotonic() + ANSWER_SECONDS
        while mute and time.monotonic() < deadline:
            asked = {self.connections[rank]: rank for rank in mute}
            for line in wait(list(asked), timeout=POLL_SECONDS):
                assert isinstance(line, Connection)
                with suppress(EOFError, OSError):
                    message = line.recv()
                    if isinstance(message, Position):
                        self.receive(asked[line], message)
                mute.discard(asked[line])
        return mute

    # -- end -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Let ranks finish their library, then end whatever is left."""
        self._remember_files()
        if self.connections and wait(self.connections, timeout=0):
            self.failed = True  # a rank has died while idle: the others would wait for it
        if self.launcher is not None:
            for connection in self.connections:
                with suppress(OSError):
                    connection.send(messages.Stop())
            if not self.failed:
                self.launcher.wait(PARTING_SECONDS)
        for member in self.members:
            member.connection.close()
            if member.handle >= 0:
                with suppress(OSError):  # it has ended
                    signal.pidfd_send_signal(member.handle, signal.SIGKILL)
                os.close(member.handle)
        if self.launcher is not None:
            self.launcher.kill()
        self._open.close()


def nodes_of_ranks(hosts: Sequence[str]) -> tuple[int, ...]:
    """Return the number of each rank's host, counted in the order in which ranks first name them."""
    order = list(dict.fromkeys(hosts))
    return tuple(order.index(host) for host in hosts)


def crowded(hosts: Sequence[str], ready: Sequence[messages.Ready]) -> bool:
    """Whether any host has more ranks than processors that these may run on, or than its quota.

    A host that does not tell where ranks may run is taken to have room.
    """
    for host in dict.fromkeys(hosts):
        here = [one for where, one in zip(hosts, ready, strict=True) if where == host]
        room = {processor for one in here for processor in one.processors}
        quotas = [max(1, int(one.quota_cores)) for one in here if one.quota_cores is not None]
        if room and len(here) > min([len(room), *quotas]):
            return True
    return False


def one_version(backend: str, versions: Sequence[str], hosts: Sequence[str]) -> str:
    """Return the version that all ranks have; BackendUnavailable where they differ."""
    other = next((rank for rank, version in enumerate(versions) if version != versions[0]), None)
    if other is not None:
        raise BackendUnavailable(
            f"{backend}: rank 0 on {hosts[0]} has {versions[0]}, rank {other} on {hosts[other]} has "
            f"{versions[other]}; install the same on all hosts"
        )
    return versions[0]
