"""Backends as the runner sees them: a name, refusals, and teams that run cases."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ccbench.cases.axes import AXES, AXIS, ONE_PROCESS, Case, Variant
from ccbench.cases.capabilities import backends_with, capabilities_of
from ccbench.cases.measurement import Measurement, Sampling
from ccbench.collectives import collective
from ccbench.errors import CcbenchError

if TYPE_CHECKING:  # each rank's process loads this module, and prices nothing
    from ccbench.model.cluster import Cluster
    from ccbench.readers.schedules import ScheduleFile


class CannotRun(CcbenchError):
    """The case cannot run on this team's devices, which only workers could find out; the text says why."""


class OutOfMemory(Exception):
    """The case needs more memory than there is; the text says how much."""


@dataclass(frozen=True)
class TeamLaunch:
    """The start of a team's ranks as processes of their own.

    command: what stands before the ranks' own command, such as ``mpiexec -n 4``; empty: the leader starts
        the ranks itself, on its own host.
    environment: variables for the launcher and the ranks, over those of the runner.
    passed_by: an option before each variable's name that makes the launcher hand it on to other hosts, such
        as ``-x`` of Open MPI; empty where launchers hand on everything.
    private_folders: variables that get a folder of the team's own, each in the folder named beside it ('' for
        the temporary one); all ranks must be on this host. What a killed library leaves there goes with it.
    several_hosts: ranks may be on other hosts, so the leader listens on every interface and pins no rank.
    one_host: the ranks of such a launch were all seen on this host, so it listens on loopback all the same.
    pinned: ranks of this host keep to a processor each, by their number.
    launched_by: the launcher that has started this run's agents, which start the ranks.
    """

    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    passed_by: str = ""
    private_folders: tuple[tuple[str, str], ...] = ()
    several_hosts: bool = False
    one_host: bool = False
    pinned: bool = True
    launched_by: str = ""


@dataclass(frozen=True)
class TeamRequest:
    """The runner's order for a team, to the backend and to the team's leader.

    machine: only the simulated backend takes its times from it; None for processes on one host.
    seed: makes simulated noise and data repeatable. environment: variables that the team is started with.
    launch: the user's own way to start the ranks, such as ``mpirun -n 16 --hostfile hosts``; to the leader how they
    are started, None where it forks them.
    processes: the process model of the ranks that the leader starts. start_seconds: how long the start may
    take, where that is less than usual. schedules: files of the user whose algorithms ranks may run.
    """

    backend: str
    ranks: int
    launch: TeamLaunch | None = None
    environment: tuple[tuple[str, str], ...] = ()
    processes: str = ONE_PROCESS
    start_seconds: float = math.inf
    machine: Cluster | None = None
    seed: int = 0
    schedules: tuple[ScheduleFile, ...] = ()


class Team(Protocol):
    """The workers of one backend and rank count; one case at a time."""

    def run(self, case: Case, sampling: Sampling) -> Measurement:
        """Measure ``case``; every failure is a status of the Measurement, never an exception."""

    def usable(self) -> bool:
        """False after a worker died, hung or was killed: open another team for the next case."""

    def close(self) -> None:
        """End every worker, by force where asking is not enough; safe to call twice."""


Environment = tuple[tuple[str, str], ...]
"""Names of variables and their values."""


class Backend(ABC):
    """One way to run collectives; its row of ``ccbench.cases.axes`` rules out most of what cannot run."""

    name: str

    @abstractmethod
    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return the reason why this backend cannot work here, with its cure; None where it can.

        elsewhere: ranks are started on hosts that were asked for their GPUs already.
        """

    @abstractmethod
    def version(self) -> str:
        """Return the library that runs and its version."""

    def check_variables(self) -> None:
        """Raise UsageError for a variable of the environment that asks its kernels for what cannot be."""
        from ccbench.backends.kernels.layout import tuning

        if capabilities_of(self.name).own_kernels:
            tuning()

    def algorithms(self, collective: str) -> tuple[str, ...]:
        """Return the names that a suite's ``algorithm: all`` stands for; ``default`` is always understood."""
        from ccbench.backends.kernels.sources import kernel_algorithms
        from ccbench.schedules import algorithms_of

        able = capabilities_of(self.name)
        own = kernel_algorithms(collective) if able.own_kernels else ()
        return algorithms_of(collective) if able.own_schedules else own

    def unsupported(self, case: Case) -> str | None:
        """Return the reason why ``case`` cannot run on this backend, or None."""
        concurrent = case.concurrent_case
        return (
            lacked(self.name, case)
            or self.variant_refused(case)
            or self.refused(case)
            or (self.refused(concurrent) if concurrent else None)
        )

    def variant_refused(self, case: Case) -> str | None:
        """Return the reason why ranks cannot be started with the variant of ``case``, or None."""
        variant = case.started_with
        try:
            if variant.library:
                self.library_version(variant.library)
        except CannotRun as error:
            return f"variant {variant.name}: {error}"
        names = Counter(name for name, _ in self.environment(case))
        twice = [name for name, times in names.items() if times > 1]
        if twice and variant.name:
            return f"variant {variant.name}: {twice[0]} is set by the library or the case already; leave it out"
        return None

    def refused(self, case: Case) -> str | None:
        """Return the reason why a case that the capabilities allow cannot run, or None."""
        return None

    def environment(self, case: Case) -> Environment:
        """Return variables that a team is started with to run ``case``: its variant's and its own."""
        return (*self.variant_settings(case.started_with), *self.team_settings(case))

    def variant_settings(self, variant: Variant) -> Environment:
        """Return the variables of a variant, with those by which ranks load its library."""
        library = self.library_settings(variant.library) if variant.library else ()
        return (*library, *variant.environment)

    def library_version(self, library: str) -> str:
        """Return name and version of a library that a variant names; CannotRun where it cannot be loaded."""
        raise CannotRun(f"{self.name} has no library that another can replace; leave it out")

    def library_settings(self, library: str) -> Environment:
        """Return variables with which ranks load ``library``, a path, in place of the usual one."""
        return ()

    def team_settings(self, case: Case) -> Environment:
        """Return variables that ``case`` needs besides those of its variant."""
        return ()

    def launch(self, request: TeamRequest) -> TeamLaunch | None:
        """Return the start of ranks as processes of their own, None where the leader forks them.

        Raises BackendUnavailable where they cannot be started.
        """
        return None

    def open_team(self, request: TeamRequest) -> Team | None:
        """Return a team without workers, None from a backend whose teams have workers."""
        return None


UNDECLARED = ("backend", "algorithm", "size_bytes", "count", "ranks", "nodes", "root")
"""Axes of which capabilities say nothing."""

CONCURRENT_MODES = ("streaming", "isolated", "cold")
"""Modes of two concurrent collectives: others have no time for each, or begin both alike."""


def lacked(backend: str, case: Case) -> str | None:
    """Return what ``case`` asks for beyond the backend's capabilities, and who has it; None for nothing."""
    able, row = capabilities_of(backend), collective(case.collective)
    for axis in AXES:
        value = getattr(case, axis.name)
        # Where the collective has no such property, the axis holds a blank that asks for nothing.
        if (
            axis.name in UNDECLARED
            or value == axis.default
            or (axis.needs and not getattr(row, axis.needs))
        ):
            continue
        for (excluding, chosen), lacking in able.lacks.items():
            key = AXIS[excluding].key
            if axis.name in lacking and getattr(case, excluding) == chosen:
                return f"{backend} has no {axis.key} with {key}: {chosen}; write {key}: {AXIS[excluding].default}"
        if not able.has(axis.name, value):
            has = able.values.get(axis.name, ())
            own = f"; it has {', '.join(has)}" if isinstance(has, tuple) and has else ""
            able_backends = ", ".join(backends_with(axis.name, value))
            there = f"; there is on {able_backends}" if able_backends else ""
            return f"{backend} has no {axis.key} {value}{own}{there}"
    if case.in_place and case.collective in able.not_in_place:
        return f"{backend} has no {case.collective} in place; write placement: out_of_place"
    if able.most_ranks and case.ranks > able.most_ranks:
        return f"{case.ranks} ranks: {backend} has at most {able.most_ranks}"
    # A pair's ranks, or another mode's launches, leave no time that each of two collectives took.
    if case.concurrent and (case.pair or case.mode not in CONCURRENT_MODES):
        what = "a pair" if case.pair else f"another in mode {case.mode}"
        cure = "write mode: streaming and no pairs, or leave concurrent out"
        return f"no collective runs concurrently with {what}; {cure}"
    return lacked(backend, case.concurrent_case) if case.concurrent_case else None


@dataclass(frozen=True)
class Position:
    """Progress of a rank: its activity, its sample, and the number of barriers it has come to."""

    activity: int
    sample: int
    barriers: int


class ControlChannel(Protocol):
    """One rank's connection to all others through its leader. Every method but ``tell`` is collective.

    Libraries come up over it (a unique id, an address), which takes part of a millisecond: it is for setting
    up, and for decisions between samples where the library itself has nothing better, never for what is
    timed. hosts: the host name of each rank. one_clock: all ranks are on one host, whose clock they share.
    oversubscribed: more ranks than processors are on this rank's host.
    """

    rank: int
    ranks: int
    hosts: tuple[str, ...]
    one_clock: bool
    oversubscribed: bool

    def all_gather(self, mine: bytes) -> list[bytes]:
        """Return what every rank gave, in rank order."""

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """Return what ``root`` gave, on every rank; the others give None."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def tell(self, message: Position) -> None:
        """Tell the leader where this rank is; not collective, and returns at once."""


def gathered(exchange: ControlChannel, mine: Any) -> list[Any]:
    """Return what every rank gave, of what JSON can say, in rank order. Collective."""
    return [json.loads(given) for given in exchange.all_gather(json.dumps(mine).encode())]


def local_rank(hosts: Sequence[str], rank: int) -> int:
    """Return how many ranks with lower numbers are on the host of ``rank``."""
    return sum(host == hosts[rank] for host in hosts[:rank])
