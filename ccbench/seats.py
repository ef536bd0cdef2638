"""``mpirun -n N ccbench run ...``: N processes that become one run.

Every process takes its seat. The first starts the run's own process, which plans, writes and prints as ever,
and an assembly through which that process reaches all seats. Whenever the runner needs a team, its leader
starts ``ccbench.summon`` where it would start mpirun; the assembly passes that on, and every seat starts the
command it is given, on its host and with its number.

Ranks of MPI are not started but played by the seats themselves: a launcher's MPI comes up only in the
processes that it started, and only once. So a team of theirs that hangs cannot be replaced. Its seats stay,
in whatever call they hang, until the run is over, and then leave with the run's exit code: to end them
sooner would make the launcher end everything, the runner with its unwritten cases among it.
"""

from __future__ import annotations

import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

from ccbench.capabilities import capabilities_of
from ccbench.errors import CcbenchError, UsageError
from ccbench.exchange import Hello, this_place
from ccbench.launched_by import Seat, without_launcher
from ccbench.leftovers import Leftovers
from ccbench.listening import Door, hang_up
from ccbench.machine.processes import (
    FORWARDED,
    forward_signals_to,
    module_command,
    signals_let_in,
    single_threaded,
)
from ccbench.rank import serve, tell_unreadable
from ccbench.rendezvous import FOLDER_VARIABLE, LIMIT_SECONDS, Way, came, connection_to, way_for

ASSEMBLY_VARIABLE = "CCBENCH_ASSEMBLY"
ASSEMBLY_KEY_VARIABLE = "CCBENCH_ASSEMBLY_KEY"
SEATS_VARIABLE = "CCBENCH_SEATS"
SEATS_BY_VARIABLE = "CCBENCH_SEATS_BY"

HAND_ON_VARIABLE = "CCBENCH_HAND_ON"
"""Names of variables that a team is started with, which other hosts do not have."""

KEY_BYTES = 32
POLL_SECONDS = 0.02
PROOF_SECONDS = 12.0
PARTING_SECONDS = 4.0
LONGEST_WORDS = 2000
LOST_EXIT_CODE = 5


@dataclass(frozen=True)
class Seated:
    """All have come."""


@dataclass(frozen=True)
class Refused:
    """This cannot become a run, and why."""

    reason: str


@dataclass(frozen=True)
class Summons:
    """Start this command on every seat. team: its number."""

    command: tuple[str, ...]
    variables: Mapping[str, str]
    team: int = 0

    @property
    def played(self) -> str:
        """The backend whose rank the seat itself shall be, else ''."""
        is_rank = any("'ccbench.rank'" in word for word in self.command)
        return self.command[-1] if is_rank and capabilities_of(self.command[-1]).in_process_ranks else ""


@dataclass(frozen=True)
class Dismissal:
    """Nobody waits for this team any more."""

    team: int


@dataclass(frozen=True)
class Report:
    """What was started for a team has ended."""

    team: int
    exit_code: int
    words: str


@dataclass(frozen=True)
class Over:
    """The run has ended."""

    exit_code: int


def take_seat(seat: Seat, arguments: Sequence[str]) -> int:
    """Be one of the processes of a run; the run's exit code, the same on every seat.

    arguments: of the command line, which the runner gets. UsageError on the first seat, SystemExit on the
    others that hear of it, when they cannot become one run.
    """
    os.environ.update(single_threaded({}))
    leftovers = Leftovers()  # from before the library comes up, which processes may meet over
    if seat.rank == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # before there are threads, which inherit it
    way = way_for(seat, os.environ)
    assembly = Assembly(seat, way, arguments) if seat.rank == 0 else None
    connection = connection_to(assembly.address) if assembly else came(way)
    try:
        connection.send(Hello(this_place(), seat.rank, seat.ranks))
        answer = connection.recv()
    except (EOFError, OSError):
        raise UsageError(
            f"{seat.launcher}: the first process has left before all had come; what it says tells why"
        ) from None
    if isinstance(answer, Refused):
        if seat.rank == 0:
            raise UsageError(answer.reason)
        raise SystemExit(UsageError.exit_code)
    return Occupant(seat, connection, leftovers).stay()


def seated_launch(variables: Mapping[str, str]) -> tuple[tuple[str, ...], int, str] | None:
    """(the command that starts ranks on all seats, how many, whose launcher), for a run that has seats."""
    if ASSEMBLY_VARIABLE not in variables:
        return None
    command = tuple(module_command("ccbench.summon"))
    return command, int(variables[SEATS_VARIABLE]), variables[SEATS_BY_VARIABLE]


# -- every seat -------------------------------------------------------------------------------------------


class Occupant:
    """One seat's process: the main thread plays ranks, another listens to the assembly."""

    def __init__(self, seat: Seat, connection: Connection, leftovers: Leftovers) -> None:
        self._seat = seat
        self._connection = connection
        self._leftovers = leftovers
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Summons | Over] = queue.SimpleQueue()
        self._children: dict[int, subprocess.Popen[str]] = {}
        self._played = False
        self._idle = threading.Event()
        self._idle.set()

    def stay(self) -> int:
        """Until the run is over."""
        threading.Thread(target=self._listen, name="assembly", daemon=True).start()
        while True:
            task = self._tasks.get()
            if isinstance(task, Over):
                finish_mpi()
                self._leftovers.close()
                return task.exit_code
            words, code = "", 0
            variables = {**os.environ, **self._variables(task)}
            try:
                serve(task.played, variables, lambda: None, self._remember_files, stays=True)
            except CcbenchError as error:
                words, code = str(error), error.exit_code
            except ConnectionError as error:  # its leader was killed
                words, code = f"the team's leader is gone ({error.strerror})", LOST_EXIT_CODE
            except SystemExit:  # its library did not start, which the leader knows
                code = 1
            self._idle.set()
            self._say(Report(task.team, code, words))

    def _remember_files(self) -> None:
        """What this process's MPI has put into shared memory goes with the process, whoever is killed.

        A process that the launcher does not know removes it; that one, too, is ended where the whole group or
        job is (a Slurm step).
        """
        self._leftovers.remember([os.getpid()])

    def _variables(self, summons: Summons) -> dict[str, str]:
        numbers = {"CCBENCH_RANK": str(self._seat.rank), "CCBENCH_RANKS": str(self._seat.ranks)}
        return {**summons.variables, **numbers}

    def _say(self, report: Report) -> None:
        with self._lock, suppress(OSError):
            self._connection.send(report)

    def _listen(self) -> None:
        """Do what the assembly says; without one the run is lost."""
        over = Over(LOST_EXIT_CODE)
        try:
            over = self._obey()
        except (EOFError, OSError):
            pass  # the first seat is gone
        except Exception as error:  # a pickle names classes, and making them may raise anything
            tell_unreadable("the first process", error)
            hang_up(self._connection)  # so that the first seat, too, knows that the run is lost
        for team in list(self._children):
            self._end(team)
        if not self._idle.wait(PARTING_SECONDS):
            os._exit(over.exit_code)  # it hangs in its library, which no other thread can end
        self._tasks.put(over)

    def _obey(self) -> Over:
        while True:
            message = self._connection.recv()
            if isinstance(message, Over):
                return message
            if isinstance(message, Summons):
                self._start(message)
            elif isinstance(message, Dismissal):
                self._end(message.team)

    def _start(self, summons: Summons) -> None:
        if not summons.played:
            self._start_child(summons)
        elif self._played:
            self._say(
                Report(summons.team, 1, f"{summons.played} comes up only once under {self._seat.launcher}")
            )
        else:
            self._played = True
            self._idle.clear()
            self._tasks.put(summons)

    def _start_child(self, summons: Summons) -> None:
        environment = single_threaded({**os.environ, **self._variables(summons)})
        try:
            with signals_let_in():
                child = subprocess.Popen(
                    summons.command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
        except OSError as error:
            self._say(Report(summons.team, 1, f"{summons.command[0]} could not be started: {error.strerror}"))
            return
        self._children[summons.team] = child
        threading.Thread(target=self._wait, args=(summons.team, child), daemon=True).start()

    def _wait(self, team: int, child: subprocess.Popen[str]) -> None:
        words, _ = child.communicate()
        self._say(Report(team, child.returncode, words[-LONGEST_WORDS:]))

    def _end(self, team: int) -> None:
        child = self._children.pop(team, None)
        if child is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)


def finish_mpi() -> None:
    """End the MPI of this process where one is up: launchers take it ill when nobody does."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


# -- the first seat ---------------------------------------------------------------------------------------


class Assembly:
    """All seats' connections, and the runner's process, served by a thread of the first seat.

    address: where to come and with which key, one line of text.
    """

    def __init__(self, seat: Seat, way: Way, arguments: Sequence[str]) -> None:
        key = secrets.token_bytes(KEY_BYTES)
        self._seat, self._way = seat, way
        self._arguments = list(arguments)
        self._door = Door(key, several_hosts=not seat.one_host)
        self.address = f"{' '.join(self._door.addresses)}|{key.hex()}"
        self._seats: list[Connection] = []
        self._silent: list[Connection] = []
        self._summoners: dict[int, Connection] = {}
        self._teams = 0
        way.offer(self.address)
        threading.Thread(target=self._work, name="assembly", daemon=True).start()

    def _work(self) -> None:
        refusal = self._gather()
        self._way.close()
        if refusal:
            self._turn_away(refusal)
            return
        self._tell_seats(Seated())
        runner = self._start_runner()
        forward_signals_to(runner)
        self._pass_on(runner)
        code = runner.wait()
        for seat in self._seats:
            with suppress(OSError):
                seat.send(Over(code if code >= 0 else 128 - code))

    def _turn_away(self, refusal: str) -> None:
        """Whoever is here or still under proof hears why; the first seat's own may be the last."""
        deadline = time.monotonic() + PROOF_SECONDS
        told: list[Connection] = []  # kept, because what is closed may take the words along
        coming = [*self._silent, *self._seats]
        while time.monotonic() < deadline:
            for connection in coming:
                with suppress(OSError):
                    connection.send(Refused(refusal))
            told += coming
            time.sleep(POLL_SECONDS)
            coming = self._door.let_in()
        self._door.close()

    def _gather(self) -> str:
        """Wait for all seats; why they are not one run, or ''."""
        deadline = time.monotonic() + LIMIT_SECONDS
        hellos: list[Hello] = []
        silent = self._silent
        while len(hellos) < self._seat.ranks:
            ready = wait([self._door.fileno(), *silent], timeout=POLL_SECONDS)
            silent += self._door.let_in()
            for connection in [one for one in silent if one in ready]:
                silent.remove(connection)
                with suppress(EOFError, OSError):
                    hellos.append(connection.recv())
                    # The first seat's own comes last: once it has heard that all is over, it leaves.
                    place = len(self._seats) if hellos[-1].rank == 0 else 0
                    self._seats.insert(place, connection)
            if self._door.refused:
                return f"{self._seat.launcher}: {self._door.refused[0]}"
            if time.monotonic() > deadline:
                break
        return why_not_one_run(hellos, self._seat)

    def _start_runner(self) -> subprocess.Popen[bytes]:
        variables = {
            **without_launcher(os.environ),
            ASSEMBLY_VARIABLE: self.address.rpartition("|")[0],
            ASSEMBLY_KEY_VARIABLE: self.address.rpartition("|")[2],
            SEATS_VARIABLE: str(self._seat.ranks),
            SEATS_BY_VARIABLE: self._seat.launcher,
        }
        variables.pop(FOLDER_VARIABLE, None)
        command = module_command("ccbench.__main__", *self._arguments)
        with signals_let_in():
            runner = subprocess.Popen(
                command, env=variables, stdin=subprocess.DEVNULL, start_new_session=True
            )
        with suppress(AttributeError, OSError):  # launchers bind the first rank, which the runner is not
            os.sched_setaffinity(runner.pid, range(os.cpu_count() or 1))
        return runner

    def _pass_on(self, runner: subprocess.Popen[bytes]) -> None:
        """Between runner and seats, until the runner has ended; asleep while nobody says anything."""
        pid_file = os.pidfd_open(runner.pid) if hasattr(os, "pidfd_open") else None
        ended = [pid_file] if pid_file is not None else []
        knocked = 0.0
        while runner.poll() is None:
            waking = knocked + PROOF_SECONDS > time.monotonic()
            timeout = POLL_SECONDS if waking else (None if ended else 0.5)
            lines: list[Connection | int] = [
                *ended,
                self._door.fileno(),
                *self._seats,
                *self._summoners.values(),
            ]
            ready = wait(lines, timeout=timeout)
            if self._door.fileno() in ready:
                knocked = time.monotonic()
            for connection in self._door.let_in():
                knocked = 0.0
                self._teams += 1
                self._summoners[self._teams] = connection
            for line in ready:
                if isinstance(line, Connection):
                    self._hear(line, runner)
        if pid_file is not None:
            os.close(pid_file)

    def _hear(self, line: Connection, runner: subprocess.Popen[bytes]) -> None:
        team = next((number for number, one in self._summoners.items() if one is line), 0)
        try:
            message = line.recv()
        except (EOFError, OSError):
            if team:
                del self._summoners[team]
                self._tell_seats(Dismissal(team))
            else:
                self._seats.remove(line)
                runner.terminate()  # its launcher is about to end all others, too
            return
        if isinstance(message, Summons):
            self._tell_seats(Summons(message.command, message.variables, team))
        elif isinstance(message, Report) and message.team in self._summoners:
            with suppress(OSError):
                self._summoners[message.team].send(message)

    def _tell_seats(self, message: object) -> None:
        for seat in self._seats:
            with suppress(OSError):  # who is gone shows when it is listened to
                seat.send(message)


def why_not_one_run(hellos: Sequence[Hello], seat: Seat) -> str:
    """What is wrong with who has come, and what to do about it; '' when all is right."""
    sizes = sorted({hello.ranks for hello in hellos})
    numbers = sorted(hello.rank for hello in hellos)
    if len(sizes) > 1:
        return (
            f"{seat.launcher}: some processes were told that they are {sizes[0]}, others {sizes[-1]}: they "
            "belong to several starts; start all with one command"
        )
    if len(hellos) < seat.ranks:
        return (
            f"{seat.launcher}: {len(hellos)} of {seat.ranks} processes came together in {LIMIT_SECONDS:.0f} "
            f"s; do all hosts start ccbench, and let TCP connections through? ({FOLDER_VARIABLE} names a "
            "folder to meet in)"
        )
    if numbers != list(range(seat.ranks)):
        return (
            f"{seat.launcher}: processes are numbered {', '.join(map(str, numbers))}, expected 0 to "
            f"{seat.ranks - 1}: each believes it is in another start; start all with one command"
        )
    return ""
