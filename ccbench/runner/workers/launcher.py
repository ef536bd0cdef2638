"""Starters of a team's ranks: by forks, by a command (mpirun, srun), by agents that run already.

``workers/__init__.py`` lists, step by step, how a rank starts on one host, under ``--launch`` and under srun.
Whatever starts ranks, it can be asked whether it has ended and what it said, waited for, and killed.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from ccbench.backends.base import TeamLaunch
from ccbench.backends.endpoint import WorkerGroup
from ccbench.errors import BackendUnavailable, CcbenchError, UsageError
from ccbench.machine.files import Files, without_values
from ccbench.machine.host import die_with_parent, module_command, state
from ccbench.machine.mpi import OPEN_MPI, as_root, launcher_vendor
from ccbench.runner.workers.channel import Listener, Peer
from ccbench.runner.workers.messages import (
    LEADER_VARIABLE,
    LOCAL_VARIABLE,
    RANK_VARIABLE,
    RANKS_VARIABLE,
    RUNNER_VARIABLE,
    Ended,
    Hello,
    Spawn,
    this_place,
)
from ccbench.runner.workers.rank import refuse_all, run_rank
from ccbench.runner.workers.rendezvous import rank_and_size
from ccbench.units import plural

START_LIMIT_SECONDS = 120.0
"""Time that a launcher may take until all ranks have come and their libraries work."""

LAUNCHER_END_SECONDS = 3.0
"""Time that a launcher may take to say why a rank ended."""

STOPPED_SECONDS = 10.0
"""A rank that a signal has stopped for so long is not waited for until the limit, be it hours."""

LOOK_SECONDS = 1.0
"""Time between two looks whether ranks are stopped."""

HALTED, LIVES = "is stopped by a signal", "lives and has not connected"
STATES = {HALTED, LIVES}
"""States of a rank that has not connected and has not ended."""

SINGLE_SECONDS = 1.0
"""Time to wait for others when the first process says that it is alone."""

POLL_SECONDS = 0.02
END_POLL_SECONDS = 0.002
KEPT_LINES = 400
LONGEST_OUTPUT = 300
WRAPPED_FROM = 60
"""Characters from which on a launcher's line may be the part of a sentence that fits into one."""

_SIGNAL = re.compile(r"exited on signal (\d+)|\(signal (\d+)\)|KILLED BY SIGNAL: (\d+)")
"""Words of Open MPI's mpirun, MPICH's hydra and Intel's for the signal that ended a rank."""

_RANK_ENDED = r"(?i)\brank \d+ (with )?pid \d+"
"""Words of the same for the rank, in the line of the signal or above it."""

_TELLING = re.compile(
    r"error|fail|not |cannot|unable|no such|refused|slots|abort|instead of", re.IGNORECASE
)
"""Lines of a launcher that are worth telling, among its frames and greetings."""


def describe_exit(code: int) -> str:
    """Return 'was killed by SIGKILL' for -9, 'exited with 3' for 3; real-time signals have no name."""
    names = {-number.value: number.name for number in signal.Signals}
    return (
        f"was killed by {names.get(code, f'signal {-code}')}"
        if code < 0
        else f"exited with {code}"
    )


class Launcher(ABC):
    """The launcher's process or processes, as far as the leader sees them. lines: its last output."""

    def __init__(self, name: str, launch: TeamLaunch) -> None:
        self.name = name
        self._launch = launch
        self._began = self._look_at = time.monotonic()
        self._stopped: dict[int, float] = {}
        self._gone = False
        self.lines: deque[str] = deque(maxlen=KEPT_LINES)

    @abstractmethod
    def exit_codes(self) -> Sequence[int | None]:
        """Exit codes of all processes, None while one runs: of ranks where there is no command, else of it alone."""

    @abstractmethod
    def kill(self) -> None:
        """End everything by force; safe to call twice."""

    def ended(self) -> str:
        """Return 'was killed by SIGKILL' and the like; '' while it runs: one process that fails ends all."""
        codes = self.exit_codes()
        over = [code for code in codes if code is not None]
        if not over or (len(over) < len(codes) and not any(over)):
            return ""
        return describe_exit(next((code for code in over if code), 0))

    def wait(self, seconds: float, over: Callable[[], object] | None = None) -> None:
        """Wait until it has ended, or else ``over`` says so, but not for longer."""
        deadline = time.monotonic() + seconds
        while not (over or self.ended)() and time.monotonic() < deadline:
            time.sleep(END_POLL_SECONDS)

    def rank_ended(self, rank: int) -> str:
        """Say how a rank's process ended: as its parent knows, else as the launcher tells."""
        # Its connection may break before the kernel hands its exit code on.
        if not self._launch.command:
            self.wait(LAUNCHER_END_SECONDS, lambda: self.exit_codes()[rank] is not None)
            code = self.exit_codes()[rank]
            if code is not None:
                return describe_exit(code)
        self.wait(LAUNCHER_END_SECONDS)
        match = _SIGNAL.search(self.output(_SIGNAL.pattern))
        if match:
            return describe_exit(-int(next(filter(None, match.groups()))))
        if self.ended().startswith("was killed"):
            return f"ended, because {self.name} {self.ended()},"
        output = self.output()
        return f"ended ({self.name} said: {output})" if output else "ended"

    def output(self, pattern: str = "") -> str:
        """Return its last line that matches ``pattern``, or one that tells most of what went wrong."""
        shown = (without_values(line, self._launch.command) for line in self.lines)
        lines = [line for line in shown if re.search(pattern or r"\w", line)]
        if pattern or not lines:
            return lines[-1] if lines else ""
        # Launchers frame what happened in their own words; what our process said itself is nearest to it.
        own = [line for line in lines if line.startswith("ccbench")]
        telling = own[-1:] or [line for line in lines if _TELLING.search(line)]
        # What goes wrong is said first, and then what could be done.
        text, *further = lines[lines.index(telling[0]) if telling else -1 :]
        last = text
        for line in further:
            # Launchers wrap sentences: a long line without an end goes on in the next one.
            if len(last) < WRAPPED_FROM or last[-1] in ".:!;" or not line[:1].islower():
                break
            text, last = f"{text} {line}", line
        return text[:LONGEST_OUTPUT]

    def why_so_few(self, arrived: Sequence[Peer], expected: int) -> str:
        """Say how it ended, or how long it was waited for, before all ranks had come, and what it said.

        arrived: those that had come. Others are named with their state, as far as they are seen from here.
        """
        ended, waited = self.ended(), time.monotonic() - self._began
        missing = self.missing(arrived)  # before whatever ends takes others along
        self.wait(LAUNCHER_END_SECONDS, (lambda: False) if missing and not ended else None)
        words, came = self.output(), len(arrived)
        some = f"only {came} of {expected} processes" if came else "no process"
        what = ended or f"was given {waited:.0f} s"
        who = "; ".join(f"rank {rank} (process {pid}) {state}" for rank, pid, state in missing)
        who = who or not_among(arrived, expected)
        # Who was killed may have come, and took those along that had not. Its process is not told: MPICH 5.0 prints
        # that of rank 0 whichever rank it was.
        if signaled := self.output(_SIGNAL.pattern):
            rank = self.output(_RANK_ENDED)
            who, words = (
                "",
                ", ".join(line.strip("= ") for line in {rank: 0, signaled: 0} if line),
            )
        output = f"it said: {words}" if words else "it said nothing"
        return f"{self.name} {what}: {some} had come; {who + '; ' if who else ''}{output}"

    def missing(self, arrived: Sequence[Peer]) -> list[tuple[int, int, str]]:
        """Return (rank, process, state in words) of the ranks on this host that have not connected."""
        return []

    def lost(self, arrived: Sequence[Peer]) -> bool:
        """Return True once it has ended, or a rank that has not connected has ended or stays stopped."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            states = {rank: state for rank, _, state in self.missing(arrived)}
            self._stopped = {
                rank: self._stopped.get(rank, now)
                for rank, state in states.items()
                if state == HALTED
            }
            self._gone = not STATES.issuperset(states.values())
        return (
            bool(self.ended())
            or self._gone
            or any(now - began >= STOPPED_SECONDS for began in self._stopped.values())
        )


def not_among(arrived: Sequence[Peer], expected: int) -> str:
    """Name the ranks that have not come; '' where nobody has, or some do not know which they are."""
    came = {peer.hello.rank for peer in arrived}
    missing = [str(rank) for rank in range(expected) if rank not in came]
    if not came or min(came) < 0 or not missing:
        return ""
    return (
        f"rank{'s' if len(missing) > 1 else ''} {', '.join(missing[:MOST_NAMED])} did not come"
    )


MOST_NAMED = 8


class CommandLauncher(Launcher):
    """A command such as mpirun, or the ranks' own processes where there is none.

    Every process has a session of its own, so that a signal to one reaches what it has started and nothing
    else, and dies with this one, however that ends.
    """

    def __init__(
        self,
        launch: TeamLaunch,
        ranks: int,
        rank_command: Sequence[str],
        variables: Mapping[str, str],
    ) -> None:
        """Raises BackendUnavailable when the launcher cannot be started."""
        command = launch.command
        name = (
            os.path.basename(without_values(command[0], command))
            if command
            else "a rank's process"
        )
        super().__init__(name, launch)
        self._address = variables.get(LEADER_VARIABLE, "")
        environment = {**os.environ, **dict(launch.environment), **variables}
        if command:
            passed = [*dict(launch.environment), *variables] if launch.passed_by else []
            options = [word for name in passed for word in (launch.passed_by, name)]
            # Before the user's own options, which may end in a program that starts the ranks (numactl).
            starts = [([command[0], *options, *command[1:], *rank_command], environment)]
        else:
            numbers = (
                {RANK_VARIABLE: str(rank), RANKS_VARIABLE: str(ranks)} for rank in range(ranks)
            )
            starts = [([*rank_command], {**environment, **own}) for own in numbers]
        self.processes: list[subprocess.Popen[bytes]] = []
        reading, writing = os.pipe()
        leader = os.getpid()
        with os.fdopen(writing, "wb") as output:
            for words, own_environment in starts:
                try:
                    process = subprocess.Popen(
                        words,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=own_environment,
                        start_new_session=True,
                        preexec_fn=lambda: die_with_parent(leader),
                    )
                except OSError as error:
                    self.kill()
                    os.close(reading)
                    option = "--launch: " if launch.several_hosts else ""
                    raise BackendUnavailable(
                        f"{option}{without_values(words[0], command)} could not be started: {error.strerror}; "
                        "write a launcher that exists, with its path where it is not in PATH"
                    ) from None
                self.processes.append(process)

        def read() -> None:
            with os.fdopen(reading, errors="replace") as lines:
                self.lines.extend(line.strip() for line in lines if line.strip())

        # Only now: who forks must have no threads.
        threading.Thread(target=read, name="launcher", daemon=True).start()

    def exit_codes(self) -> Sequence[int | None]:
        """See Launcher."""
        return [process.poll() for process in self.processes]

    def missing(self, arrived: Sequence[Peer]) -> list[tuple[int, int, str]]:
        """See Launcher."""
        if self._launch.command:
            came = {peer.hello.rank for peer in arrived}
            numbers = {
                rank: pid for rank, pid in self._ranks_started().items() if rank not in came
            }
            codes: dict[int, int | None] = {}
        else:
            # Connected ranks of this host are known by their processes.
            connected = {peer.hello.place.pid for peer in arrived}
            pids = enumerate(process.pid for process in self.processes)
            numbers = {rank: pid for rank, pid in pids if pid not in connected}
            codes = dict(enumerate(self.exit_codes()))
        missing = []
        for rank, pid in sorted(numbers.items()):
            code = codes.get(rank)
            lives = HALTED if state(pid) in ("T", "t") else LIVES
            missing.append((rank, pid, lives if code is None else describe_exit(code)))
        return missing

    def _ranks_started(self) -> dict[int, int]:
        """Return the processes on this host that the command has started for this team's ranks, by rank."""
        pids: dict[int, int] = {}
        for folder in Files().matching("/proc", "[0-9]*"):
            words = (Files().text(f"{folder}/environ") or "").split("\0")
            variables = dict(word.split("=", 1) for word in words if "=" in word)
            rank, _ = rank_and_size(variables)
            if rank >= 0 and variables.get(LEADER_VARIABLE) == self._address:
                pid = int(folder.rpartition("/")[2])
                # What a rank starts itself has its variables, and a later number.
                pids[rank] = min(pid, pids.get(rank, pid))
        return pids

    def kill(self) -> None:
        """See Launcher: every process with its group."""
        for process in self.processes:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class ForkedRanks(Launcher):
    """Ranks that are forked, each pinned to a processor of its own as far as there are enough."""

    def __init__(self, group: WorkerGroup, bound: Sequence[int], runner: Connection) -> None:
        super().__init__("the leader", TeamLaunch())
        self.members: list[Peer] = []
        self._codes: dict[int, int] = {}
        leader, here = os.getpid(), this_place()
        for rank in range(group.control.ranks):
            ours, theirs = Pipe()
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    die_with_parent(leader)
                    # What a rank keeps open of others' pipes would hide that they have ended.
                    for connection in (
                        runner,
                        *(member.connection for member in self.members),
                        ours,
                    ):
                        connection.close()
                    if bound:
                        os.sched_setaffinity(0, {bound[rank]})
                    _serve(group, rank, theirs)
                    status = 0
                except BaseException:  # os._exit would lose it
                    traceback.print_exc()
                finally:
                    os._exit(status)
            theirs.close()
            self.members.append(Peer(Hello(replace(here, pid=pid)), ours))

    def exit_codes(self, options: int = os.WNOHANG) -> Sequence[int | None]:
        """See Launcher. options: of waitpid; 0 waits for all."""
        for rank, member in enumerate(self.members):
            if rank not in self._codes:  # others' numbers may be somebody else's by now
                pid, status = os.waitpid(member.hello.place.pid, options)
                if pid:
                    self._codes[rank] = os.waitstatus_to_exitcode(status)
        return [self._codes.get(rank) for rank in range(len(self.members))]

    def kill(self) -> None:
        """See Launcher."""
        for rank, code in enumerate(self.exit_codes()):
            if code is None:
                os.kill(self.members[rank].hello.place.pid, signal.SIGKILL)
        self.exit_codes(0)


def _serve(group: WorkerGroup, rank: int, connection: Connection) -> None:
    """Be a forked rank until the leader hangs up."""
    try:
        endpoint = group.endpoint(rank)
    except CcbenchError as error:  # no driver, no peer access: a sentence, not a traceback
        refuse_all(error, connection)
        return
    run_rank(endpoint, connection)
    if group.closing_seconds:
        endpoint.close()


class AgentLauncher(Launcher):
    """Agents that a launcher has started already; the hub in the runner has each start a rank, or be one."""

    def __init__(
        self,
        launch: TeamLaunch,
        ranks: int,
        variables: Mapping[str, str],
        hub: Connection,
        in_process: bool,
    ) -> None:
        super().__init__(launch.launched_by, launch)
        self._codes: dict[int, int] = {}
        self._ranks, self._hub = ranks, hub
        # Agents on other hosts have the launcher's environment, not the runner's.
        own = {name: value for name, value in os.environ.items() if name.startswith("CCBENCH_")}
        own.pop(RUNNER_VARIABLE, None)
        hub.send(Spawn({**own, **dict(launch.environment), **variables}, in_process))

    def exit_codes(self) -> Sequence[int | None]:
        """See Launcher: of the ranks' processes on all hosts, as far as the hub has told."""
        with suppress(EOFError, OSError):  # the runner is gone, or nobody waits any more
            while self._hub.poll():
                ended: Ended = self._hub.recv()
                self.lines.extend(filter(None, map(str.strip, ended.output.splitlines())))
                self._codes[ended.rank] = ended.exit_code
        return [self._codes.get(rank) for rank in range(self._ranks)]

    def kill(self) -> None:
        """See Launcher: the hub notices that nobody waits any more."""
        self._hub.close()


def users_launch(text: str) -> TeamLaunch:
    """Return the user's own command; ranks may be on other hosts, so only names of variables are added."""
    try:
        command = tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--launch: {error}; write the command as in a shell") from None
    if not command:
        raise UsageError(
            "--launch: is empty; write a command such as 'mpirun -n 16 --hostfile hosts'"
        )
    mpirun = os.path.basename(command[0]).startswith(("mpirun", "mpiexec"))
    passed_by = "-x" if mpirun and launcher_vendor(command[0]) == OPEN_MPI else ""
    return TeamLaunch(command, as_root(os.geteuid()), passed_by=passed_by, several_hosts=True)


def started(
    launch: TeamLaunch,
    ranks: int,
    address: str,
    folders: Mapping[str, str],
    hub: Connection | None = None,
    in_process: bool = False,
) -> Launcher:
    """Start an agent for every rank, which will connect to ``address``.

    folders: variables and the private folders that they name. hub: where agents run already, the way to
    them. in_process: these are to be the ranks themselves.
    """
    variables = {**folders, LEADER_VARIABLE: address}
    if hub is not None:
        return AgentLauncher(launch, ranks, variables, hub, in_process)
    if not launch.several_hosts:
        variables[LOCAL_VARIABLE] = "1"
    return CommandLauncher(
        launch, ranks, module_command("ccbench.runner.workers", "agent"), variables
    )


# -- who has come -----------------------------------------------------------------------------------------


def gather(
    listener: Listener,
    who: str,
    ranks: int | None,
    why_so_few: Callable[[Sequence[Peer], int], str],
    arrived: list[Peer],
    *,
    limit_seconds: float = math.inf,
    lost: Callable[[Sequence[Peer]], bool] = lambda _: False,
    runner: Connection | None = None,
    enrol: Callable[[Peer], None] = lambda _: None,
) -> list[Peer]:
    """Return all peers in rank order, once they are as many as they were told, else as ``ranks`` says.

    who: what messages begin with. arrived: gets every peer, and may hold some. limit_seconds: to wait,
    where that is less than START_LIMIT_SECONDS. lost: says of those that came whether the others never will.
    enrol: called with each at once. Strangers that were turned away meanwhile are
    counted in the error, else on standard error. Raises UsageError when ranks do not come or cannot be one
    start, EOFError when the runner hangs up.
    """
    deadline, alone = time.monotonic() + min(START_LIMIT_SECONDS, limit_seconds), 0.0
    while True:
        over = (
            lost(arrived) or time.monotonic() > deadline
        )  # before looking: who came by then is seen
        for peer in listener.peers(POLL_SECONDS, runner):
            enrol(peer)
            arrived.append(peer)
        if listener.refused:
            raise UsageError(f"{who}: {listener.refused[0]}")
        expected = min(
            (peer.hello.ranks for peer in arrived if peer.hello.ranks > 0), default=ranks
        )
        if arrived and expected is None:
            raise UsageError(
                f"{who}: this launcher does not tell its processes how many they are; say it with --ranks"
            )
        if expected == 1 != ranks and len(arrived) == 1 and not over:
            # Who believes it is alone may be one of several that do, which is refused below.
            alone = alone or time.monotonic() + SINGLE_SECONDS
            if time.monotonic() < alone:
                continue
        if expected is not None and len(arrived) >= expected:
            order = rank_order([peer.hello for peer in arrived], who, ranks)
            if strangers := listener.strangers():
                print(f"ccbench: note: {who}: {strangers}", file=sys.stderr, flush=True)
            return [arrived[number] for number in order]
        if over:
            sentences = [f"{who}: {why_so_few(arrived, expected or 1)}", listener.strangers()]
            raise UsageError("; ".join(filter(None, sentences)))


def rank_order(hellos: Sequence[Hello], who: str, ranks: int | None = None) -> list[int]:
    """Return which process is which rank: as its launcher told it, else host by host in order of arrival.

    who: what messages begin with. ranks: how many were asked for, None for as many as came. UsageError when
    what the processes were told cannot be.
    """
    sizes = sorted({hello.ranks for hello in hellos if hello.ranks >= 0})
    came = sizes[0] if sizes else len(hellos)
    numbers = [hello.rank for hello in hellos]
    hosts = list(dict.fromkeys(hello.place.host for hello in hellos))
    wrong = ""
    if sizes == [1] and len(hellos) > 1:
        wrong = (
            f"{len(hellos)} processes came, and each believes it is alone: they were started by several "
            "launchers; start them with one, such as 'mpirun -n 4'"
        )
    elif ranks not in (None, came):
        wrong = (
            f"the launcher started {plural(came, 'process')}, but {ranks} ranks are asked for; start "
            f"{ranks} there, or write --ranks {came} here"
        )
    elif len(sizes) > 1 or sorted(numbers) not in ([-1] * len(hellos), [*range(len(hellos))]):
        wrong = (
            f"processes are numbered {', '.join(map(str, sorted(numbers)))} of "
            f"{' and '.join(map(str, sizes or [len(hellos)]))}: they belong to several starts; "
            "start all with one command"
        )
    if wrong:
        raise UsageError(f"{who}: {wrong}")
    return sorted(
        range(len(hellos)),
        key=lambda number: (numbers[number], hosts.index(hellos[number].place.host)),
    )


# -- private folders --------------------------------------------------------------------------------------


def private_folder(parent: str) -> tempfile.TemporaryDirectory[str]:
    """Make a folder that goes with all that is in it; in the temporary one where ``parent`` takes none."""
    if parent:
        with suppress(OSError):  # containers have /dev/shm read-only, full or not at all
            return tempfile.TemporaryDirectory(
                prefix="ccbench-", dir=parent, ignore_cleanup_errors=True
            )
    try:
        return tempfile.TemporaryDirectory(prefix="ccbench-", ignore_cleanup_errors=True)
    except OSError as error:
        raise BackendUnavailable(
            f"no temporary folder can be made ({error.strerror}); make room, or set TMPDIR to a folder that "
            "has some"
        ) from None
