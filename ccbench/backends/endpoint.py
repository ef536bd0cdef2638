"""What measuring asks of one rank's side of a backend, and what a backend may offer besides."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ccbench.verification import Mismatch


class Endpoint(Protocol):
    """One rank's side of a backend, as ``measure`` sees it."""

    rank: int
    ranks: int
    stamps: NDArray[np.float64]
    """(ranks, capacity, 2): start and end of each sample on a clock that all ranks share."""

    def refill(self, salt: int, launches: int = 1) -> None:
        """Fill this rank's input with the data of ``salt``, for at most so many launches."""

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

    def check(self, salt: int, launches: int) -> Mismatch | None:
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
