"""What the ranks of a launched team tell each other before their library works, and how they hear of it.

A launched rank has one connection, to its team's leader (``ccbench.launched``), and everything goes over it:
cases and reports, and what a library needs from all ranks to come up (a unique id, an address). ``Exchange``
is that last part. It goes through the leader, so it takes part of a millisecond: it is for setting up, and
for decisions between samples where the library itself has nothing better, never for what is timed.

The messages are plain frozen values, sent as pickles over a connection on which both sides have proven that
they know the team's key.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

ADDRESSES_VARIABLE = "CCBENCH_LEADER"
"""Where the leader listens, ``address:port`` separated by blanks: one of them is reachable."""

KEY_VARIABLE = "CCBENCH_LEADER_KEY"
"""The team's secret, in hexadecimal; in the environment only, because anybody can read command lines."""

LOCAL_VARIABLE = "CCBENCH_LEADER_IS_HERE"
"""Set where all ranks are on the leader's host, so that whoever started a rank may take it along in death."""

ONE_HOST_VARIABLE = "CCBENCH_ONE_HOST"
"""Set for a leader whose launcher is known to start all ranks on this host: it listens on loopback alone."""

RANK_VARIABLES = (
    ("CCBENCH_RANK", "CCBENCH_RANKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", ""),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("RANK", "WORLD_SIZE"),
)
"""By which launchers tell a process its number and how many there are: ccbench itself, Open MPI's mpirun,
hydra (MPICH, Intel MPI), PMIx (any), srun, torchrun."""


class Exchange(Protocol):
    """One rank's side of an exchange between all ranks of a team. Every method is collective.

    hosts: the host name of each rank. one_clock: all ranks are on one host, whose clock they share.
    oversubscribed: more ranks than processors are on this rank's host.
    """

    rank: int
    ranks: int
    hosts: tuple[str, ...]
    one_clock: bool
    oversubscribed: bool

    def all_gather(self, mine: bytes) -> list[bytes]:
        """What every rank gave, in rank order."""

    def broadcast(self, mine: bytes | None, root: int) -> bytes:
        """What ``root`` gave, on every rank; the others give None."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def tell(self, position: Position) -> None:
        """Tell the leader where this rank is; not collective, and returns at once."""


def local_rank(hosts: Sequence[str], rank: int) -> int:
    """How many ranks with lower numbers are on the host of ``rank``."""
    return sum(host == hosts[rank] for host in hosts[:rank])


def nodes_of_ranks(hosts: Sequence[str]) -> tuple[int, ...]:
    """Number of each rank's host, counted in the order in which ranks first name them."""
    order = list(dict.fromkeys(hosts))
    return tuple(order.index(host) for host in hosts)


@dataclass(frozen=True)
class Place:
    """Where a process is.

    clock, numbering: name what its monotonic clock and its number belong to; a container may have its own.
    """

    host: str
    pid: int
    clock: str
    numbering: str


def this_place(proc: Path = Path("/proc")) -> Place:
    """This process's place."""
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = sys.platform
    host = socket.gethostname()
    clock = f"{host} {boot} {_namespace(proc, 'time')}"
    return Place(host, os.getpid(), clock, f"{host} {boot} {_namespace(proc, 'pid')}")


def _namespace(proc: Path, kind: str) -> str:
    try:
        return os.readlink(proc / "self/ns" / kind)
    except OSError:
        return ""


@dataclass(frozen=True)
class Hello:
    """A process's first words. rank, ranks: what its launcher told it, -1 where it told nothing.

    stays: it goes on without its team, so nobody may end it with that.
    """

    place: Place
    rank: int = -1
    ranks: int = -1
    stays: bool = False


@dataclass(frozen=True)
class Welcome:
    """The leader's answer, once all have come. processor: where this rank shall stay, -1 anywhere."""

    rank: int
    ranks: int
    hosts: tuple[str, ...]
    one_clock: bool
    oversubscribed: bool = False
    processor: int = -1


@dataclass(frozen=True)
class Ready:
    """The rank's library works.

    processors: where the rank may run. quota_cores: how many its control group may use at once, None for all.
    """

    version: str
    processors: tuple[int, ...]
    quota_cores: float | None = None


@dataclass(frozen=True)
class Refusal:
    """This rank cannot take part; the text says why and what to do."""

    reason: str


@dataclass(frozen=True)
class Contribution:
    """What a rank gives to an exchange."""

    payload: bytes


@dataclass(frozen=True)
class Gathered:
    """What all gave."""

    payloads: tuple[bytes, ...]


@dataclass(frozen=True)
class Question:
    """The leader asks where a rank is."""


@dataclass(frozen=True)
class Position:
    """Where a rank is: its activity, its sample, and how many barriers it has come to."""

    activity: int
    sample: int
    barriers: int


@dataclass(frozen=True)
class Goodbye:
    """The team is over: finish the library properly, then end."""
