"""What measuring asks of one rank's side of a backend, and what a backend may offer besides."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import ControlChannel, Position
from ccbench.backends.cpu.memory import Activity, Control, Word
from ccbench.backends.faults import Fault, fault_from_environment
from ccbench.cases import Case, CaseFacts
from ccbench.verification import Mismatch


class Endpoint(Protocol):
    """One rank's side of a backend, as ``measure`` sees it."""

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
        """As ``launch``; the seconds of it that this rank waited for others."""

    def barrier(self) -> None:
        """Return when every rank has called it."""

    def agree(self, value: int) -> int:
        """Rank 0's value, on every rank."""

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """Compare this rank's output with what is right after so many launches since ``refill``."""

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up, FIRST_OF_WARM_UP first)."""


FIRST_OF_WARM_UP = -1


@runtime_checkable
class DeviceTimed(Protocol):
    """An endpoint whose device has a clock of its own: samples are what that clock saw.

    Where ranks have processes of their own their devices start together, whenever these enter the launch.
    """

    def sample_launches(self, wanted: int, seconds: float) -> int:
        """How many launches of so many seconds a sample has, ``wanted`` being enough for its length."""

    def device_seconds(self) -> float:
        """How long the launches of the last ``launch`` took on the slowest device."""


@runtime_checkable
class Apart(Protocol):
    """An endpoint whose ranks share no memory: what the others have written must be brought here."""

    def share_stamps(self, count: int) -> None:
        """Bring the first ``count`` stamps of all ranks here. Collective.

        Where ranks have no common clock, every start becomes 0, so that a sample is the longest of its
        ranks' times.
        """

    def share_words(self) -> None:
        """Bring the control words of the ranks of this host here. Collective."""


@runtime_checkable
class Overlapping(Protocol):
    """An endpoint that can compute while it communicates (``Case.computing`` says what)."""

    def prepare_computing(self, kind: str) -> None:
        """Get ready for ``matmul`` or ``memory``. Called once per round, before any computation."""

    def compute(self, repetitions: int) -> None:
        """The computation alone, to its end.

        Where the endpoint is DeviceTimed, ``device_seconds`` is asked afterwards, as after ``launch``.
        """

    def launch_while_computing(self, launches: int, repetitions: int) -> tuple[float, float]:
        """Both at once, to the end of both.

        Returns the seconds from the call until the computation was over, and until the collective was; where
        the endpoint is DeviceTimed, on the device's clock.
        """


class EndpointBase:
    """What all endpoints do alike: data seeds, words for the watchdog, faults that were asked for.

    ``rank`` and ``ranks`` number the processes of a team; one may drive many ranks of a case. prefix: what
    errors of this process begin with. flags: of every measurement, such as ``loopback``.
    """

    rank = 0
    ranks = 1
    prefix = ""
    flags: tuple[str, ...] = ()

    def __init__(self, control: Control) -> None:
        self.control = control
        self.stamps: NDArray[np.float64] = control.stamps
        self._any_fault = fault_from_environment()
        self._faults: list[tuple[int, Fault]] = []
        self._seeds = 0

    def next_seed(self) -> int:
        """A number that is new in every round and the same in all processes."""
        self._seeds += 1
        return self._seeds

    def own_ranks(self, case: Case) -> Iterable[int]:
        """The ranks of the case that this process drives."""
        return range(case.ranks)

    def arm(self, case: Case) -> None:
        """``case`` comes next: remember which of this process's ranks must misbehave in it, and how."""
        fault = self._any_fault
        self._faults = [(rank, fault) for rank in self.own_ranks(case) if fault and fault.matches(case, rank)]

    def watch(self, sample: int) -> None:
        """Tell the watchdog which sample is next (negative: warming up)."""
        self.say(Activity.WARMING_UP if sample < 0 else Activity.SAMPLING)
        self.control.words[self.control.index(self.rank, Word.SAMPLE)] = sample
        for _, fault in self._faults if sample >= 0 else ():
            fault.before_sample()

    def say(self, activity: Activity) -> None:
        """Tell the watchdog what is going on."""
        self.control.words[self.control.index(self.rank, Word.ACTIVITY)] = activity

    def core_latency_seconds(self) -> float | None:
        """None: only ranks that share memory have something to time a round trip on."""
        return None

    def remark(self) -> str:
        """Nothing, unless an endpoint knows more."""
        return ""

    def facts(self) -> CaseFacts:
        """Nothing, unless an endpoint knows more."""
        return CaseFacts()


class PerProcessEndpoint(EndpointBase):
    """Implements ``Apart``: one rank of a team whose ranks share no memory, perhaps not even a host."""

    exchange: ControlChannel
    _shared_stamps = 0

    def gather_numbers(self, mine: NDArray[np.float64]) -> NDArray[np.float64]:
        """Every rank's array, by rank: shape (ranks, elements). Collective."""
        told = self.exchange.all_gather(mine.tobytes())
        return np.stack([np.frombuffer(one, np.float64) for one in told])

    def share_stamps(self, count: int) -> None:
        """See Apart."""
        if count == self._shared_stamps:
            return
        mine = self.stamps[self.rank, self._shared_stamps : count]
        if not self.exchange.one_clock:
            mine = np.stack([np.zeros(len(mine)), mine[:, 1] - mine[:, 0]], axis=1)
        told = self.gather_numbers(np.ascontiguousarray(mine).reshape(-1))
        self.stamps[:, self._shared_stamps : count] = told.reshape(self.ranks, -1, 2)
        self._shared_stamps = count

    def share_words(self) -> None:
        """See Apart: of processor time only what ranks of this host have used counts here."""
        mine = np.array([self.control.read(self.rank, Word.CPU_NANOSECONDS)], np.float64)
        told = self.gather_numbers(mine)[:, 0]
        here = self.exchange.hosts[self.rank]
        for rank, host in enumerate(self.exchange.hosts):
            index = self.control.index(rank, Word.CPU_NANOSECONDS)
            self.control.words[index] = int(told[rank]) if host == here else 0

    def watch(self, sample: int) -> None:
        """Tell the leader which sample is next (negative: warming up)."""
        if sample == 0:
            self._shared_stamps = 0  # what was shared of the warm-up stood where samples come now
        super().watch(sample)

    def say(self, activity: Activity) -> None:
        """Tell the leader what this rank does; only a change is sent, and none falls into a launch."""
        if self.control.read(self.rank, Word.ACTIVITY) != activity:
            super().say(activity)
            self.exchange.tell(self.position())

    def position(self) -> Position:
        """Where this rank is; asked from another thread while the rank works."""
        activity, sample, barriers = (
            self.control.read(self.rank, word) for word in (Word.ACTIVITY, Word.SAMPLE, Word.BARRIER)
        )
        return Position(activity, sample, barriers)
