"""Who a launcher starts, and where: how many ranks, on which hosts, what these are, how their clocks differ.

Asked once before a run's first case: the launcher starts ``python -m ccbench.census`` in place of ranks. Each
process connects to the runner, as ranks do to their leader, and one of each host describes it. Clocks are
compared by round trips over the same connection: the remote time belongs to the middle of a round trip, give
or take half of it, and the shortest of them tells most (F. Cristian, "Probabilistic clock synchronization",
Distributed Computing 3, 1989).
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait

from ccbench.backends import open_backend
from ccbench.capabilities import backends_of_auto
from ccbench.errors import UsageError
from ccbench.exchange import (
    ADDRESSES_VARIABLE,
    KEY_VARIABLE,
    Goodbye,
    Hello,
    Place,
    Question,
    nodes_of_ranks,
    this_place,
)
from ccbench.hosts import HostFacts, facts_of_this_host
from ccbench.launching import Launch, Launcher
from ccbench.listening import Door
from ccbench.machine.processes import module_command
from ccbench.rank import connect, told_by_launcher

ARRIVAL_SECONDS = 120.0
"""How long a launcher may take until all processes have come."""

SINGLE_SECONDS = 1.0
"""How long to wait for others when the first process says that it is alone."""

ANSWER_SECONDS = 30.0
POLL_SECONDS = 0.05
WORDS_SECONDS = 3.0
KEY_BYTES = 32
ROUND_TRIPS = 20

FACTS = "facts"
"""The question what a host is."""


@dataclass(frozen=True)
class Census:
    """What a launcher starts. hosts: of each rank; facts: of each host, in the order of nodes."""

    hosts: tuple[str, ...]
    facts: tuple[HostFacts, ...]

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.hosts)

    @property
    def nodes(self) -> int:
        """On how many hosts they are."""
        return len(self.facts)

    @property
    def node_of_rank(self) -> tuple[int, ...]:
        """Index into facts, by rank."""
        return nodes_of_ranks(self.hosts)


# -- the runner's side ------------------------------------------------------------------------------------


def take_census(launch: Launch, ranks: int | None = None) -> Census:
    """Start the launcher once and see who comes.

    ranks: how many were asked for, None for as many as it starts. UsageError when none come in time, when
    they are fewer or more, or when every one believes it is alone; the message says what to change.
    """
    key = secrets.token_bytes(KEY_BYTES)
    with Door(key, several_hosts=launch.several_hosts) as door:
        addresses = {ADDRESSES_VARIABLE: " ".join(door.addresses), KEY_VARIABLE: key.hex()}
        variables = {**dict(launch.environment), **addresses}
        launcher = Launcher(launch, ranks or 1, module_command("ccbench.census"), variables)
        arrived: list[tuple[Hello, Connection]] = []
        try:
            _wait_for_all(arrived, door, launcher, ranks)
            in_order = [arrived[number] for number in _order(arrived, ranks)]
            refuse_namesakes([hello.place for hello, _ in in_order])
            found = _asked(in_order)
            for _, connection in arrived:
                with suppress(OSError):
                    connection.send(Goodbye())
            launcher.wait(WORDS_SECONDS)
        finally:
            for _, connection in arrived:
                connection.close()
            launcher.kill()
    _refuse_mixed_versions(found)
    return found


def _wait_for_all(
    arrived: list[tuple[Hello, Connection]], door: Door, launcher: Launcher, ranks: int | None
) -> None:
    """Until as many have come as the first was told of; who is alone is waited for a little longer."""
    deadline = time.monotonic() + ARRIVAL_SECONDS
    silent: list[Connection] = []
    while True:
        ready = wait([door.fileno(), *silent], timeout=POLL_SECONDS)
        silent += door.let_in()
        for connection in [one for one in silent if one in ready]:
            silent.remove(connection)
            with suppress(EOFError, OSError):
                arrived.append((connection.recv(), connection))
        wanted = _expected(arrived, ranks)
        if arrived and len(arrived) >= wanted:
            if wanted > 1 or len(arrived) > 1:
                return
            deadline = min(deadline, time.monotonic() + SINGLE_SECONDS)
        ended = launcher.ended()
        if ended or time.monotonic() > deadline:
            if arrived and len(arrived) >= wanted:
                return
            launcher.wait(WORDS_SECONDS)
            raise UsageError(_did_not_come(len(arrived), wanted, launcher, ended))


def _expected(arrived: Sequence[tuple[Hello, Connection]], ranks: int | None) -> int:
    told = max((hello.ranks for hello, _ in arrived), default=-1)
    if told < 1 and ranks is None and arrived:
        raise UsageError(
            "--launch: this launcher does not tell its processes how many they are; say it with --ranks"
        )
    return told if told > 0 else ranks or 1


def _did_not_come(came: int, wanted: int, launcher: Launcher, ended: str) -> str:
    words = launcher.words()
    said = f"it said: {words}" if words else "it said nothing"
    what = f"{ended} before" if ended else f"was given {ARRIVAL_SECONDS:.0f} s, in which not"
    some = f"{came} of {wanted} processes" if came else "any process"
    return f"--launch: {launcher.name} {what} {some} had come; {said}; try 'hostname' in place of ccbench"


def _order(arrived: Sequence[tuple[Hello, Connection]], ranks: int | None) -> list[int]:
    """Which arrival is which rank."""
    hellos = [hello for hello, _ in arrived]
    told = [hello.rank for hello in hellos]
    if ranks is not None and len(hellos) != ranks:
        raise UsageError(
            f"--ranks {ranks}: the launcher started {len(hellos)}; leave --ranks out, or start as many"
        )
    if len(hellos) > 1 and {hello.ranks for hello in hellos} == {1}:
        raise UsageError(
            f"--launch: {len(hellos)} processes came, and each believes it is alone: they were started by "
            "several launchers; start them with one, such as 'mpirun -n 4'"
        )
    if set(told) == {-1}:
        hosts = list(dict.fromkeys(hello.place.host for hello in hellos))
        return sorted(range(len(hellos)), key=lambda one: hosts.index(hellos[one].place.host))
    if sorted(told) != list(range(len(hellos))):
        raise UsageError(
            f"--launch: the processes were numbered {', '.join(map(str, sorted(told)))}, expected 0 to "
            f"{len(hellos) - 1}; start them with one launcher"
        )
    return sorted(range(len(hellos)), key=told.__getitem__)


def _asked(in_order: Sequence[tuple[Hello, Connection]]) -> Census:
    hosts = tuple(hello.place.host for hello, _ in in_order)
    facts = []
    for host in dict.fromkeys(hosts):
        connection = in_order[hosts.index(host)][1]
        offset, uncertainty = clock_offset(partial(_answer, connection, host, Question()))
        found = _answer(connection, host, FACTS)
        assert isinstance(found, HostFacts)
        facts.append(
            replace(
                found,
                ranks=hosts.count(host),
                clock_offset_seconds=offset,
                clock_uncertainty_seconds=uncertainty,
            )
        )
    return Census(hosts, tuple(facts))


def _answer(connection: Connection, host: str, question: object) -> object:
    try:
        connection.send(question)
        if connection.poll(ANSWER_SECONDS):
            return connection.recv()
    except (EOFError, OSError):
        pass
    raise UsageError(f"--launch: {host} does not answer any more; look whether the process there was killed")


def clock_offset(
    ask: Callable[[], object], clock: Callable[[], float] = time.time, times: int = ROUND_TRIPS
) -> tuple[float, float]:
    """(the other clock minus ours, how much that may be wrong either way), in seconds."""
    best = (0.0, float("inf"))
    for _ in range(times):
        began = clock()
        theirs = ask()
        ended = clock()
        assert isinstance(theirs, float)
        if (ended - began) / 2 < best[1]:
            best = theirs - (began + ended) / 2, (ended - began) / 2
    return best


def refuse_namesakes(places: Sequence[Place]) -> None:
    """Hosts are told apart by name; two of one name would be taken for one, with all ranks inside it."""
    first: dict[str, int] = {}
    for rank, place in enumerate(places):
        before = first.setdefault(place.host, rank)
        if places[before].clock != place.clock:
            raise UsageError(
                f"--launch: ranks {before} and {rank} are on different machines that are both called "
                f"{place.host!r}; give each a name of its own (hostnamectl, or hostname in a container)"
            )


def _refuse_mixed_versions(census: Census) -> None:
    """Ranks of different ccbench versions do not understand each other."""
    first, *others = census.facts
    for other in others:
        if other.ccbench != first.ccbench:
            raise UsageError(
                f"--launch: {first.name} has ccbench {first.ccbench}, {other.name} has {other.ccbench}; "
                "install the same on all hosts"
            )


# -- each process -----------------------------------------------------------------------------------------


def main() -> None:
    """Say who this is, answer what is asked, end when nothing more is."""
    try:
        connection = connect(os.environ)
    except UsageError as error:
        raise SystemExit(str(error)) from None
    connection.send(Hello(this_place(), *told_by_launcher(os.environ)))
    with suppress(EOFError, OSError):
        while True:
            asked = connection.recv()
            if isinstance(asked, Question):
                connection.send(time.time())
            elif asked == FACTS:
                missing = open_backend(backends_of_auto(gpus=True)[0]).unavailable() or ""
                connection.send(replace(facts_of_this_host(), no_gpus=missing))
            else:
                return


if __name__ == "__main__":
    main()
