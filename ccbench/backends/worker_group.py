"""How a team's ranks are spread over processes: a worker group is made by the leader before it forks.

The capabilities of a backend whose cases run in worker processes name where their group is made, for each
process model, to be called with (ranks, sample_capacity). What all processes share is made by that call; each
process then asks for its endpoint. Where a launcher can start the ranks, they name what each rank's process
calls with its control channel for its endpoint: ``launched``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

from ccbench.backends import made_by
from ccbench.backends.base import ControlChannel, OutOfMemory
from ccbench.backends.cpu.memory import Activity, Control
from ccbench.backends.endpoint import Endpoint, EndpointBase
from ccbench.backends.kernels.abi import NONE_DIFFERS
from ccbench.capabilities import backend_names, capabilities_of
from ccbench.cases import ONE_PROCESS, Case, CaseFacts
from ccbench.errors import CcbenchError, UsageError
from ccbench.machine.flags import Flag
from ccbench.verification import Array, Mismatch, Piece, check, expected_pieces, part_of, rounding_of


class TeamEndpoint(Endpoint, Protocol):
    """What the team's leader asks of an endpoint besides measuring.

    ``rank`` and ``ranks`` number the group's processes; one process may drive many ranks of a case.
    prefix: what errors of this process begin with. flags: of every measurement, such as ``loopback``.
    """

    control: Control
    prefix: str
    flags: tuple[str, ...]

    def next_seed(self) -> int:
        """A number that is new in every round and the same in all processes."""

    def prepare(self, case: Case) -> str:
        """Get ready for ``case``; returns the algorithm that runs. Raises OutOfMemory and CcbenchError."""

    def core_latency_seconds(self) -> float | None:
        """How far processors are apart, None where that does not matter."""

    def remark(self) -> str:
        """What else there is to say about the case just measured, or ''."""

    def facts(self) -> CaseFacts:
        """What else there is to record about it."""

    def finish(self) -> None:
        """The case is over: keep only what the next one can use."""


class WorkerGroup(Protocol):
    """The processes of one team.

    pinned: every process gets a processor of its own. whole: one process drives all ranks.
    oversubscribed: more ranks compute at once than there are cores.
    """

    processes: int
    control: Control
    pinned: bool
    whole: bool
    oversubscribed: bool

    def endpoint(self, process: int) -> TeamEndpoint:
        """What process number ``process`` measures with; called in that process."""


@runtime_checkable
class ClosingWorkerGroup(Protocol):
    """A worker group whose processes should give things back in order, before their end takes them.

    Their endpoints are ClosingEndpoints. closing_seconds: what is not closed by then is killed.
    """

    closing_seconds: float


@runtime_checkable
class ClosingEndpoint(Protocol):
    """An endpoint that gives back what it holds."""

    def close(self) -> None:
        """Called once, when the leader has hung up; may wait for the other processes, but not for long."""


def open_worker_group(
    backend: str, ranks: int, sample_capacity: int, processes: str = ONE_PROCESS
) -> WorkerGroup:
    """The worker group of a backend; UsageError for one whose ranks are no processes, or not such ones."""
    home = capabilities_of(backend).workers.get(processes)
    if not home:
        known = ", ".join(name for name in backend_names() if processes in capabilities_of(name).workers)
        raise UsageError(f"backend {backend!r} starts no processes ({processes}); one of {known}")
    made: WorkerGroup = made_by(home)(ranks, sample_capacity)
    return made


def open_launched(backend: str, exchange: ControlChannel) -> TeamEndpoint:
    """What one launched rank measures with. Collective; UsageError for a backend that cannot be launched."""
    home = capabilities_of(backend).launched
    if not home:
        launched = ", ".join(name for name in backend_names() if capabilities_of(name).launched)
        raise UsageError(f"backend {backend!r}: no launcher starts its ranks; one of {launched}")
    made: TeamEndpoint = made_by(home)(exchange)
    return made


class WholeWorkerGroup:
    """One process that drives all ranks."""

    processes = 1
    pinned = False
    whole = True
    oversubscribed = False

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        self.ranks = ranks
        self.control = Control(1, sample_capacity)


class Output(Protocol):
    """One rank's result, where it lies."""

    @property
    def elements(self) -> int:
        """How many it has."""

    def read(self) -> Array:
        """What is in it, on the host."""

    def differing(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """By a kernel: how many elements differ from ``pieces`` in any bit, and the first; NONE_DIFFERS.

        CcbenchError, OutOfMemory or what CuPy raises of the driver where there can be no such kernel.
        """


"""Flag: the kernel that compares came to another result than the host, whose word counts."""


class WholeEndpoint(EndpointBase):
    """What every endpoint that drives all ranks of a case has in common."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._device_compares = True
        self._compared_by_both: set[Case] = set()
        self._visited = False

    def arm(self, case: Case) -> None:
        """``case`` comes next: its faults, and whether its output was compared by host and device before."""
        super().arm(case)
        self._case = case
        self._visited = case in self._compared_by_both

    def barrier(self) -> None:
        """There is nobody to wait for."""

    def agree(self, value: int) -> int:
        """There is nobody to disagree."""
        return value

    def checked(
        self, case: Case, outputs: Iterable[tuple[int, Output]], seed: int, launches: int
    ) -> Mismatch | None:
        """The first wrong rank's mismatch, with the wrong elements of all ranks.

        outputs: (rank, its output); one at a time is asked for, so that they may share memory.
        """
        self.say(Activity.CHECKING)
        found = []
        for rank, output in outputs:
            part = part_of(case, rank)
            if part and part.receives:
                seeded = part.seeded(seed)
                found.append(self.compared(rank, output, part.case, part.group_rank, seeded, launches))
        return of_all_ranks(found)

    def compared(
        self, rank: int, output: Output, case: Case, group_rank: int, seed: int, launches: int
    ) -> Mismatch | None:
        """As ``verification.check`` of rank ``group_rank`` of ``case``, on the device where that will do.

        It does from a case's second round on, where no bit may differ and none does. In the first one the
        host compares too, and it alone once the device has been wrong.
        """
        found = None
        if self._device_compares and not self._any_fault and not rounding_of(case):
            try:
                pieces = [*expected_pieces(case, group_rank, output.elements, seed, launches)]
                found = output.differing(pieces) if pieces else NONE_DIFFERS
            # No compiler for the device, no room on it, or what CuPy raises of the driver, which refuses the
            # kernel; of a device that is broken ``read`` says so next.
            except (CcbenchError, OutOfMemory, RuntimeError):
                self._device_compares = False
        if found == NONE_DIFFERS and self._visited:
            return None
        read = output.read()
        for _, fault in [one for one in self._faults if one[0] == rank]:
            fault.spoil(read)
        wrong = check(case, group_rank, read, seed, launches)
        if found is not None:
            self._compared_by_both.add(self._case)
            if found != ((wrong.wrong_elements, wrong.offset) if wrong else NONE_DIFFERS):
                self._device_compares = False
                self.flags = (*self.flags, Flag.COMPARED_WRONG)
        return wrong and replace(wrong, rank=rank)


def of_all_ranks(found: Sequence[Mismatch | None]) -> Mismatch | None:
    """The first wrong rank's, with the wrong elements of all; None where none is wrong."""
    wrong = [one for one in found if one]
    return replace(wrong[0], wrong_elements=sum(one.wrong_elements for one in wrong)) if wrong else None
