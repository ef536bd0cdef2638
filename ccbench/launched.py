"""``python -m ccbench.launched BACKEND RANKS FD``: the leader of a team whose ranks a launcher starts.

The leader listens (on loopback, unless ranks may be on other hosts), starts the launcher, and waits until as
many ranks have connected as it asked for. Each must know a random key that only the environment carries.
From then on it leads as ``ccbench.worker`` leads forked ranks: it passes cases on, waits for all reports,
names who dies or hangs, and ends everything: ranks on its own host by their process descriptors, the launcher
with its process group, and ranks elsewhere because their connection breaks.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from ccbench.backends.cpu.memory import Control, Word
from ccbench.cases import Case, Conditions, Measurement, Sampling
from ccbench.errors import BackendUnavailable
from ccbench.exchange import (
    ADDRESSES_VARIABLE,
    KEY_VARIABLE,
    LOCAL_VARIABLE,
    ONE_HOST_VARIABLE,
    Contribution,
    Gathered,
    Goodbye,
    Hello,
    Place,
    Position,
    Question,
    Ready,
    Refusal,
    Welcome,
    nodes_of_ranks,
    this_place,
)
from ccbench.faults import fault_from_environment
from ccbench.launching import START_LIMIT_SECONDS, Launch, Launcher, private_folder
from ccbench.leftovers import Leftovers
from ccbench.listening import Door
from ccbench.machine.host import usable_cores
from ccbench.machine.load import worst_of_hosts
from ccbench.machine.processes import die_with_parent, module_command
from ccbench.worker import POLL_SECONDS, Leader, RankReport, lead

ANSWER_SECONDS = 1.0
"""How long a rank may take to say where it is; one that is stopped never does."""

PARTING_SECONDS = 3.0
"""How long ranks may take to finish their library."""

ARRIVAL_POLL_SECONDS = 0.02
WORDS_SECONDS = 3.0
"""How long a launcher may take to say why a rank ended."""

KEY_BYTES = 32

_SIGNAL = r"exited on signal (\d+)|\(signal (\d+)\)|KILLED BY SIGNAL: (\d+)"
"""How Open MPI's mpirun, MPICH's hydra and Intel's name the signal that ended a rank."""


@dataclass(frozen=True)
class LaunchedCrew:
    """Implements ``ccbench.backends.crew.Crew`` as far as a leader asks: no process is forked from it."""

    processes: int
    control: Control
    pinned: bool
    oversubscribed: bool
    whole: bool = False


@dataclass(frozen=True)
class Member:
    """A rank as the leader knows it. handle: its process descriptor, -1 for one on another host."""

    place: Place
    connection: Connection
    handle: int


class LaunchedLeader(Leader):
    """Owns a launcher and the connections of its ranks."""

    def __init__(self, backend: str, ranks: int, launch: Launch) -> None:
        oversubscribed = ranks > usable_cores()
        pinned = launch.pinned and not launch.several_hosts
        super().__init__(LaunchedCrew(ranks, Control(ranks, 1), pinned, oversubscribed))  # type: ignore[arg-type]
        self.backend = backend
        self.launch = launch
        self.members: list[Member] = []
        self.hosts: tuple[str, ...] = ()
        self.one_clock = True
        self.version = ""
        self.failed = True
        """Whether ranks may be beyond finishing their library; until all have it, they are."""
        self._processors: dict[int, tuple[int, ...]] = {}
        self._given: dict[int, bytes] = {}
        self._here = this_place()
        self.leftovers: Leftovers | None = None
        """Of ranks of this host alone; where there may be others, each rank has its own."""
        self._open = ExitStack()
        self.fault = fault_from_environment()

    # -- start ---------------------------------------------------------------------------------------------

    def start(self, runner: Connection) -> None:
        """Bring all ranks up; BackendUnavailable says why that failed, EOFError that the runner is gone."""
        deadline = time.monotonic() + START_LIMIT_SECONDS
        key = secrets.token_bytes(KEY_BYTES)
        enter = self._open.enter_context
        several_hosts = self.launch.several_hosts and ONE_HOST_VARIABLE not in os.environ
        door = enter(Door(key, several_hosts=several_hosts))
        folders = {name: enter(private_folder(parent)) for name, parent in self.launch.private_folders}
        variables = {**folders, ADDRESSES_VARIABLE: " ".join(door.addresses), KEY_VARIABLE: key.hex()}
        if not self.launch.several_hosts:
            variables[LOCAL_VARIABLE] = "1"
            self.leftovers = Leftovers()
            self._open.callback(self.leftovers.close)
            self.leftovers.add(folders.values())
        command = module_command("ccbench.rank", self.backend)
        self.launcher = Launcher(self.launch, self.ranks, command, variables)
        with door:
            arrived = self._arrivals(door, runner, deadline)
        self._welcome(arrived)
        self._until_ready(runner, deadline)

    def _arrivals(self, door: Door, runner: Connection, deadline: float) -> list[tuple[Hello, Connection]]:
        """All ranks' first words with their connections, in the order in which they came."""
        silent: list[Connection] = []
        arrived: list[tuple[Hello, Connection]] = []
        while len(arrived) < self.ranks:
            ready = wait([runner, door.fileno(), *silent], timeout=ARRIVAL_POLL_SECONDS)
            if runner in ready:
                raise EOFError
            silent += door.let_in()
            for connection in [one for one in silent if one in ready]:
                silent.remove(connection)
                with suppress(EOFError, OSError):
                    hello = connection.recv()
                    self._enrol(hello, connection)
                    arrived.append((hello, connection))
            if door.refused:
                raise BackendUnavailable(f"{self.backend}: {door.refused[0]}")
            ended = self.launcher.ended()
            if ended or time.monotonic() > deadline:
                self.launcher.wait(WORDS_SECONDS)
                raise BackendUnavailable(self._did_not_come(len(arrived), ended))
        return arrived

    def _did_not_come(self, came: int, ended: str) -> str:
        what = (
            f"{self.launcher.name} {ended} before" if ended else f"in {START_LIMIT_SECONDS:.0f} s not all of"
        )
        words = self.launcher.words()
        said = f"it said: {words}" if words else "it said nothing"
        return f"{self.backend}: {what} {self.ranks} ranks had come ({came} did); {said}"

    def _enrol(self, hello: Hello, connection: Connection) -> None:
        """Remember a process that must not outlive this team, whatever becomes of it, unless it says so."""
        place, handle = hello.place, -1
        near = (place.host, place.numbering) == (self._here.host, self._here.numbering)
        if near and not hello.stays and hasattr(os, "pidfd_open"):
            with suppress(OSError):
                handle = os.pidfd_open(place.pid)
        self.members.append(Member(place, connection, handle))

    def _welcome(self, arrived: Sequence[tuple[Hello, Connection]]) -> None:
        order = numbered([hello for hello, _ in arrived], self.ranks, self.backend)
        self.members = [self.members[number] for number in order]
        self.hosts = tuple(member.place.host for member in self.members)
        self.one_clock = len({member.place.clock for member in self.members}) == 1
        self.pids = [member.place.pid for member in self.members]
        self.connections = [member.connection for member in self.members]
        for rank, connection in enumerate(self.connections):
            crowded = self.oversubscribed and not self.launch.several_hosts
            processor = self.binding(rank) if self.cpus else -1
            with suppress(OSError):  # who is gone shows below
                connection.send(Welcome(rank, self.ranks, self.hosts, self.one_clock, crowded, processor))

    def _until_ready(self, runner: Connection, deadline: float) -> None:
        """Wait until every rank's library works; exchanges between them go on meanwhile."""
        ready: dict[int, Ready] = {}
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
                        f"{self.backend}: {self._named(rank)} {self._ended(rank)} while its library started"
                    ) from None
                if isinstance(message, Refusal):
                    raise BackendUnavailable(message.reason)
                if isinstance(message, Ready):
                    ready[rank] = message
                else:
                    self._hear(rank, message)
            if time.monotonic() > deadline:
                late = ", ".join(self._named(rank) for rank in range(self.ranks) if rank not in ready)
                raise BackendUnavailable(
                    f"{self.backend}: in {START_LIMIT_SECONDS:.0f} s the library did not start on {late}"
                )
        self.version = one_version(
            self.backend, [ready[rank].version for rank in range(self.ranks)], self.hosts
        )
        self._processors = {rank: ready[rank].processors for rank in ready}
        if len(set(self.hosts)) > 1:  # the leader's own host says nothing about the others
            self.oversubscribed = crowded(self.hosts, [ready[rank] for rank in range(self.ranks)])
        self.failed = False
        self._remember_files()

    def _remember_files(self) -> None:
        """What libraries of this host have put into shared memory goes with the team, whoever is killed."""
        if self.leftovers:
            self.leftovers.remember(member.place.pid for member in self.members if member.handle >= 0)

    # -- cases ---------------------------------------------------------------------------------------------

    def run(self, case: Case, sampling: Sampling, runner: Connection) -> tuple[Measurement, bool]:
        """One case on all ranks; (what came out, whether the team can go on)."""
        self.failed = True
        measurement, usable = super().run(case, sampling, runner)
        self.failed = not usable
        return measurement, usable

    def _hear(self, rank: int, message: object) -> None:
        """Keep where a rank is; hand on what all ranks have given."""
        if isinstance(message, Position):
            words, control = self.control.words, self.control
            words[control.index(rank, Word.ACTIVITY)] = message.activity
            words[control.index(rank, Word.SAMPLE)] = message.sample
            words[control.index(rank, Word.BARRIER)] = message.barriers
        elif isinstance(message, Contribution):
            self._given[rank] = message.payload
            if len(self._given) == self.ranks:
                gathered = Gathered(tuple(self._given[one] for one in range(self.ranks)))
                self._given = {}
                for connection in self.connections:
                    with suppress(OSError):  # who is gone shows when it is listened to
                        connection.send(gathered)
        else:
            super()._hear(rank, message)

    def _compose(self, case: Case, reports: dict[int, RankReport]) -> Measurement:
        found = replace(super()._compose(case, reports), backend_version=self.version)
        if not self.one_clock:
            found = replace(found, skew_seconds=())
        if len(set(self.hosts)) > 1:
            found = replace(found, hosts=self.hosts, node_of_rank=nodes_of_ranks(self.hosts))
        return found

    def _seen(self, first: RankReport, reports: dict[int, RankReport]) -> Conditions:
        """Of each host one rank's report tells what else its processors did; all ranks wait for the worst."""
        ranks = [self.hosts.index(host) for host in dict.fromkeys(self.hosts)]
        return worst_of_hosts([reports[rank].conditions for rank in ranks])

    def _bindings(self) -> tuple[int, ...]:
        """Each rank's processor, where every rank has only one."""
        all_of_them = [self._processors.get(rank, ()) for rank in range(self.ranks)]
        return tuple(one[0] for one in all_of_them) if all(len(one) == 1 for one in all_of_them) else ()

    # -- who died, who hangs -------------------------------------------------------------------------------

    def _named(self, rank: int) -> str:
        member = self.members[rank]
        where = f" on {member.place.host}" if len(set(self.hosts)) > 1 else ""
        return f"rank {rank} (process {member.place.pid}{where})"

    def _ended(self, rank: int) -> str:
        """From what the launcher says: the rank is its child, or the child of one of its daemons."""
        self.launcher.wait(WORDS_SECONDS)
        if not self.launch.command:
            return self.launcher.ended_one(rank)
        words = self.launcher.words(_SIGNAL)
        found = re.search(_SIGNAL, words)
        if found:
            return f"was killed by {signal_name(int(next(filter(None, found.groups()))))}"
        launcher = self.launcher.ended()
        if launcher.startswith("was killed"):
            return f"ended, because {self.launcher.name} {launcher},"
        said = self.launcher.words()
        return f"ended ({self.launcher.name} said: {said})" if said else "ended"

    def _is_stopped(self, rank: int) -> bool:
        return self.members[rank].handle >= 0 and super()._is_stopped(rank)

    def _who_hangs(self, pending: set[int]) -> str:
        """Ask everybody who is silent where it is; who does not answer either is told first."""
        mute = self._ask(pending)
        elsewhere = [rank for rank in sorted(mute) if self.members[rank].handle < 0]
        if elsewhere:
            ranks = ", ".join(map(self._named, elsewhere))
            return f"timed out: no answer from {ranks}: stopped, or its host cannot be reached"
        return super()._who_hangs(pending)

    def _ask(self, ranks: set[int]) -> set[int]:
        """Ask ``ranks`` where they are; those that have not answered in time."""
        mute = set(ranks)
        for rank in ranks:
            with suppress(OSError):
                self.connections[rank].send(Question())
        deadline = time.monotonic() + ANSWER_SECONDS
        while mute and time.monotonic() < deadline:
            asked = {self.connections[rank]: rank for rank in mute}
            for line in wait(list(asked), timeout=POLL_SECONDS):
                assert isinstance(line, Connection)
                with suppress(EOFError, OSError):
                    message = line.recv()
                    if isinstance(message, Position):
                        self._hear(asked[line], message)
                mute.discard(asked[line])
        return mute

    # -- end -----------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Let ranks finish their library, then end whatever is left."""
        launcher = getattr(self, "launcher", None)
        self._remember_files()
        if self.connections and wait(self.connections, timeout=0):
            self.failed = True  # a rank has died while idle: the others would wait for it
        if launcher is not None:
            for connection in self.connections:
                with suppress(OSError):
                    connection.send(Goodbye())
            if not self.failed:
                launcher.wait(PARTING_SECONDS)
        for member in self.members:
            member.connection.close()
            if member.handle >= 0:
                with suppress(OSError):  # it has ended
                    signal.pidfd_send_signal(member.handle, signal.SIGKILL)
                os.close(member.handle)
        if launcher is not None:
            launcher.kill()
        self._open.close()


def numbered(hellos: Sequence[Hello], ranks: int, backend: str) -> list[int]:
    """Which process is which rank: as the launcher told them, else host by host in order of arrival.

    BackendUnavailable when what they were told cannot be.
    """
    sizes = {hello.ranks for hello in hellos if hello.ranks >= 0}
    if sizes - {ranks}:
        raise BackendUnavailable(
            f"{backend}: the launcher started {', '.join(map(str, sorted(sizes)))} ranks, but {ranks} are "
            f"asked for; write -n {ranks} there, or --ranks {max(sizes)} here"
        )
    told = [hello.rank for hello in hellos]
    if set(told) == {-1}:
        hosts = list(dict.fromkeys(hello.place.host for hello in hellos))
        return sorted(range(len(hellos)), key=lambda one: hosts.index(hellos[one].place.host))
    if sorted(told) != list(range(ranks)):
        raise BackendUnavailable(
            f"{backend}: the launcher numbered its processes {', '.join(map(str, sorted(told)))}, expected "
            f"0 to {ranks - 1}: each believes that it belongs to another team; start them with one launcher"
        )
    return sorted(range(len(hellos)), key=told.__getitem__)


def crowded(hosts: Sequence[str], ready: Sequence[Ready]) -> bool:
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
    """The version that all ranks have; BackendUnavailable where they differ."""
    other = next((rank for rank, version in enumerate(versions) if version != versions[0]), None)
    if other is not None:
        raise BackendUnavailable(
            f"{backend}: rank 0 on {hosts[0]} has {versions[0]}, rank {other} on {hosts[other]} has "
            f"{versions[other]}; install the same on all hosts"
        )
    return versions[0]


def signal_name(number: int) -> str:
    """SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def main(arguments: Sequence[str]) -> None:
    """Lead a team until the runner hangs up."""
    backend, ranks, file = arguments
    die_with_parent(int(os.environ["CCBENCH_RUNNER"]))
    runner = Connection(int(file))
    os.set_inheritable(int(file), False)
    try:
        launch = runner.recv()
    except (EOFError, OSError):
        return
    leader = LaunchedLeader(backend, int(ranks), launch)
    try:
        leader.start(runner)
        lead(leader, runner)
    except BackendUnavailable as error:
        with suppress(OSError):
            runner.send(str(error))
    except EOFError:
        pass  # the runner is gone
    finally:
        leader.end()


if __name__ == "__main__":
    main(sys.argv[1:])
