"""One process's side of a backend, and the processes of a team.

``Endpoint`` is what measuring asks of a process, ``TeamEndpoint`` what its leader asks besides; both say what
endpoints share. A process drives one rank of a case (``PerProcessEndpoint`` where ranks share no memory), or
all of them (``SingleProcessEndpoint``).

A worker group is made by the leader before it forks. The capabilities of a backend whose cases run in worker
processes name where their group is made, for each process model, to be called with (ranks, sample_capacity).
All processes share what is made by that call; each process then asks for its endpoint. Where a launcher can
start the ranks, the capabilities name what each rank's process calls with its control channel for its
endpoint: ``launched``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccbench.backends import load_entry_point
from ccbench.backends.base import ControlChannel, OutOfMemory, Position
from ccbench.backends.control_block import Activity, Control, Word
from ccbench.backends.faults import Fault, fault_from_environment
from ccbench.backends.kernels.abi import NONE_DIFFERS
from ccbench.cases.axes import ONE_PROCESS, Case
from ccbench.cases.capabilities import capabilities_of
from ccbench.cases.measurement import CaseFacts
from ccbench.errors import CcbenchError
from ccbench.flags import Flag
from ccbench.verification import (
    Array,
    Mismatch,
    Piece,
    check,
    expected_pieces,
    part_of,
    rounding_of,
)

FIRST_OF_WARM_UP = -1
"""Number of the first launches of a case, for ``begin_sample``."""


class Result(NamedTuple):
    """What a launch left on a rank, in memory of the host that the next result may take."""

    rank: int
    values: Array


class Endpoint(Protocol):
    """One process's side of a backend, as ``measure`` sees it."""

    rank: int
    ranks: int
    stamps: NDArray[np.float64]
    """(ranks, capacity, 2): start and end of each sample on a clock that all ranks share."""

    def refill(self, seed: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``seed``, for at most so many launches."""

    def poison(self) -> None:
        """Make this rank's output wrong everywhere (before refill: in place they share memory)."""

    def launch(self, times: int) -> None:
        """Run the collective ``times`` times, back to back."""

    def launch_and_time_waits(self, times: int) -> float:
        """Launch; return the seconds of it that this rank waited for its peers."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def agree(self, value: int) -> int:
        """Return rank 0's value, on every rank."""

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's output with what is right after so many launches since ``refill``."""

    def results(self) -> Iterable[Result]:
        """Yield what the last launch of the case's own collective left on each rank that this process drives."""

    def begin_sample(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up, FIRST_OF_WARM_UP first)."""

    def share_stamps(self, count: int) -> None:
        """Bring the first ``count`` stamps of all ranks here. Collective; nothing where stamps are shared."""


@runtime_checkable
class DeviceTimed(Protocol):
    """An endpoint whose device has a clock of its own: samples are what that clock saw.

    Where ranks have processes of their own their devices start together, whenever these enter the launch.
    """

    def sample_launches(self, launches: int, seconds: float) -> int:
        """Return the launches of ``seconds`` each in a sample, ``launches`` being enough for its length."""

    def device_seconds(self) -> float:
        """Return the time that the launches of the last ``launch`` took on the slowest device."""


@runtime_checkable
class Overlapping(Protocol):
    """An endpoint that can compute while it communicates (``Case.overlap_with`` says what)."""

    def prepare_computing(self, kind: str) -> None:
        """Get ready for ``matmul`` or ``memory``. Called once per round, before any computation."""

    def compute(self, repetitions: int) -> None:
        """Run the computation alone, to its end.

        Where the endpoint is DeviceTimed, ``device_seconds`` is asked afterwards, as after ``launch``.
        """

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Run both at once, to the end of both.

        Returns the seconds from the call until the computation was over, and until the collective was; where
        the endpoint is DeviceTimed, on the device's clock.
        """


class TeamEndpoint(Endpoint):
    """One process's side of a backend, as its team's leader sees it; with what all endpoints do alike.

    ``rank`` and ``ranks`` number the processes of a team; one may drive many ranks of a case. prefix: what
    errors of this process begin with. flags: of every measurement, such as ``loopback``. version: of the
    library that runs, as only a rank can tell.
    """

    rank = 0
    ranks = 1
    prefix = ""
    flags: tuple[str, ...] = ()
    version = ""

    def __init__(self, control: Control) -> None:
        self.control = control
        self.stamps: NDArray[np.float64] = control.stamps
        self._any_fault = fault_from_environment()
        self._faults: list[tuple[int, Fault]] = []
        self._seeds = 0

    @abstractmethod
    def prepare(self, case: Case) -> str:
        """Get ready for ``case``; returns the algorithm that runs. Raises OutOfMemory and CcbenchError."""

    def finish(self) -> None:
        """End the case: keep only what the next one can use."""

    def close(self) -> None:
        """Give everything back: called once, by a leader that ends the team in order.

        It may wait for the other processes, but not for long.
        """

    def share_stamps(self, count: int) -> None:
        """Do nothing: processes of one host share their stamps."""

    def share_words(self) -> None:
        """Bring the control words of the ranks of this host here. Collective; nothing where shared."""

    def results(self) -> Iterable[Result]:
        """Return nothing: no backend computes without results, but those whose times are computed."""
        return ()

    def next_seed(self) -> int:
        """Return a number that is new in every round and equal in all processes."""
        self._seeds += 1
        return self._seeds

    def own_ranks(self, case: Case) -> Iterable[int]:
        """Return the ranks of the case that this process drives."""
        return range(case.ranks)

    def arm(self, case: Case) -> None:
        """Remember which of this process's ranks must misbehave in ``case``, which comes next, and how."""
        fault = self._any_fault
        self._faults = [
            (rank, fault)
            for rank in self.own_ranks(case)
            if fault and fault.matches(case, rank)
        ]

    def begin_sample(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        self.say(Activity.WARMING_UP if sample < 0 else Activity.SAMPLING)
        self.control.words[self.control.index(self.rank, Word.SAMPLE)] = sample
        # Faults are those of samples, so that warming up is over when a rank is killed.
        for _, fault in self._faults if sample >= 0 else ():
            fault.before_sample()

    def say(self, activity: Activity) -> None:
        """Tell the watchdog what is going on."""
        self.control.words[self.control.index(self.rank, Word.ACTIVITY)] = activity

    def core_latency_seconds(self) -> float | None:
        """Return half a round trip between two ranks; None where they share no memory to time it on."""
        return None

    def costs(self) -> tuple[float, ...]:
        """Return what the parts of a launch cost now, () where no price is made of them. Collective."""
        return ()

    def path(self, windows: Sequence[Sequence[float]]) -> tuple[float, ...]:
        """Return how often a launch pays each cost, by what they are in each window of ``costs``."""
        return ()

    def remark(self) -> str:
        """Return what else there is to say about the case just measured, or ''."""
        return ""

    def facts(self) -> CaseFacts:
        """Return what else there is to record about the case just measured."""
        return CaseFacts()


class PerProcessEndpoint(TeamEndpoint):
    """One rank of a team whose ranks share no memory, perhaps not even a host."""

    exchange: ControlChannel
    _shared_stamps = 0

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return every rank's array, by rank: shape (ranks, elements). Collective."""
        gathered = self.exchange.all_gather(mine.tobytes())
        return np.stack([np.frombuffer(payload, np.float64) for payload in gathered])

    def agree(self, value: int) -> int:
        """Return rank 0's value, on every rank."""
        return int(self.exchange.broadcast(str(value).encode() if self.rank == 0 else None, 0))

    def share_stamps(self, count: int) -> None:
        """Bring the first ``count`` stamps of all ranks here. Collective."""
        if count == self._shared_stamps:
            return
        mine = self.stamps[self.rank, self._shared_stamps : count]
        if not self.exchange.one_clock:
            # Without a common clock every start becomes 0: a sample is the longest of its ranks' times.
            mine = np.stack([np.zeros(len(mine)), mine[:, 1] - mine[:, 0]], axis=1)
        gathered = self.gather_numbers(np.ascontiguousarray(mine).reshape(-1))
        self.stamps[:, self._shared_stamps : count] = gathered.reshape(self.ranks, -1, 2)
        self._shared_stamps = count

    def share_words(self) -> None:
        """Bring the processor time of the ranks of this host here; only that counts here."""
        mine = np.array([self.control.read(self.rank, Word.CPU_NANOSECONDS)], np.float64)
        gathered = self.gather_numbers(mine)[:, 0]
        here = self.exchange.hosts[self.rank]
        for rank, host in enumerate(self.exchange.hosts):
            index = self.control.index(rank, Word.CPU_NANOSECONDS)
            self.control.words[index] = int(gathered[rank]) if host == here else 0

    def begin_sample(self, sample: int) -> None:
        """Tell the leader which sample is next (negative: warming up)."""
        if sample == 0:
            self._shared_stamps = (
                0  # what was shared of the warm-up stood where samples come now
            )
        super().begin_sample(sample)

    def say(self, activity: Activity) -> None:
        """Tell the leader what this rank does; only a change is sent, and none falls into a launch."""
        if self.control.read(self.rank, Word.ACTIVITY) != activity:
            super().say(activity)
            self.exchange.tell(self.position())

    def position(self) -> Position:
        """Return where this rank is; asked from another thread while the rank works."""
        activity, sample, barriers = (
            self.control.read(self.rank, word)
            for word in (Word.ACTIVITY, Word.SAMPLE, Word.BARRIER)
        )
        return Position(activity, sample, barriers)


class Output(Protocol):
    """One rank's result, where it lies."""

    @property
    def elements(self) -> int:
        """Number of its elements."""

    def read(self) -> Array:
        """Return its contents, on the host."""

    def differing(self, pieces: Sequence[Piece]) -> tuple[int, int]:
        """Count by a kernel how many elements differ from ``pieces`` in any bit, and the first; NONE_DIFFERS.

        CcbenchError, OutOfMemory or what CuPy raises of the driver where there can be no such kernel.
        """


class SingleProcessEndpoint(TeamEndpoint):
    """The endpoint of a process that drives all ranks of a case; the device may compare its own outputs."""

    def __init__(self, control: Control) -> None:
        super().__init__(control)
        self._device_compares = True
        self._compared_by_both: set[Case] = set()
        self._compared_before = False

    def arm(self, case: Case) -> None:
        """Take note of ``case``, which comes next: its faults, and whether the device compared it before."""
        super().arm(case)
        self._case = case
        self._compared_before = case in self._compared_by_both

    def barrier(self) -> None:
        """Return at once: there is nobody to wait for."""

    def agree(self, value: int) -> int:
        """Return ``value`` unchanged; a single process needs no agreement."""
        return value

    def launch_and_time_waits(self, times: int) -> float:
        """Launch, as ``launch`` does; waiting for other ranks is inside the launch and unknown."""
        self.launch(times)
        return 0.0

    def checked(
        self, case: Case, outputs: Iterable[tuple[int, Output]], seed: int, launches: int
    ) -> Mismatch | None:
        """Return the first wrong rank's mismatch, with the wrong elements of all ranks.

        outputs: (rank, its output); one at a time is asked for, so that they may share memory.
        """
        self.say(Activity.CHECKING)
        mismatches = []
        for rank, output in outputs:
            part = part_of(case, rank)
            if part and part.receives:
                seeded = part.seeded(seed)
                mismatches.append(
                    self.compared(rank, output, part.case, part.group_rank, seeded, launches)
                )
        return merged_mismatch(mismatches)

    def compared(
        self, rank: int, output: Output, case: Case, group_rank: int, seed: int, launches: int
    ) -> Mismatch | None:
        """Check as ``verification.check`` does, of rank ``group_rank`` of ``case``, on the device where that will do.

        It does from a case's second round on, where no bit may differ and none does. In the first one the
        host compares too, and it alone once the device has been wrong.
        """
        difference = None
        if self._device_compares and not self._any_fault and not rounding_of(case):
            try:
                pieces = [*expected_pieces(case, group_rank, output.elements, seed, launches)]
                difference = output.differing(pieces) if pieces else NONE_DIFFERS
            # No compiler for the device, no room on it, or what CuPy raises of the driver, which refuses the
            # kernel; of a device that is broken ``read`` says so next.
            except (CcbenchError, OutOfMemory, RuntimeError):
                self._device_compares = False
        if difference == NONE_DIFFERS and self._compared_before:
            return None
        read = output.read()
        for _, fault in [fault for fault in self._faults if fault[0] == rank]:
            fault.spoil(read)
        wrong = check(case, group_rank, read, seed, launches)
        if difference is not None:
            self._compared_by_both.add(self._case)
            if difference != ((wrong.wrong_elements, wrong.offset) if wrong else NONE_DIFFERS):
                self._device_compares = False
                self.flags = (*self.flags, Flag.COMPARED_WRONG)
        return wrong and replace(wrong, rank=rank)


def merged_mismatch(mismatches: Iterable[Mismatch | None]) -> Mismatch | None:
    """Return the first mismatch, with the wrong elements of all; None where nothing is wrong."""
    wrong = [mismatch for mismatch in mismatches if mismatch]
    return (
        replace(wrong[0], wrong_elements=sum(mismatch.wrong_elements for mismatch in wrong))
        if wrong
        else None
    )


class WorkerGroup(ABC):
    """The processes of one team, and what they share.

    pinned: every process gets a processor of its own. single_process: one process drives all ranks.
    oversubscribed: more ranks compute at once than there are cores.
    closing_seconds: how long endpoints may take to give things back in order, before their processes are
    killed; 0 where nothing is lost by that.
    """

    pinned = False
    single_process = False
    oversubscribed = False
    closing_seconds = 0.0

    def __init__(self, processes: int, sample_capacity: int) -> None:
        self.processes = processes
        self.control = Control(processes, sample_capacity)

    @abstractmethod
    def endpoint(self, process: int) -> TeamEndpoint:
        """Return what process number ``process`` measures with; called in that process."""


class SingleProcessGroup(WorkerGroup):
    """One process that drives all ranks."""

    single_process = True

    def __init__(self, ranks: int, sample_capacity: int) -> None:
        super().__init__(1, sample_capacity)
        self.ranks = ranks


def open_worker_group(
    backend: str, ranks: int, sample_capacity: int, processes: str = ONE_PROCESS
) -> WorkerGroup:
    """Return the worker group of a backend whose ranks the leader forks."""
    entry_point = capabilities_of(backend).workers[processes]
    made: WorkerGroup = load_entry_point(entry_point)(ranks, sample_capacity)
    return made


def open_launched(backend: str, exchange: ControlChannel) -> TeamEndpoint:
    """Return the endpoint of one rank that a launcher has started. Collective."""
    made: TeamEndpoint = load_entry_point(capabilities_of(backend).launched)(exchange)
    return made
