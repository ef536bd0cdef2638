"""Ranks that bring their stamps to each other bring those of samples, not what stood there before."""

from __future__ import annotations

import numpy as np

from ccbench.cases import Case
from ccbench.runner import measure
from ccbench.runner.measure import Overlapped


class Remembering:
    """An endpoint apart that, as real ones do, brings only what it has not brought yet."""

    rank = 0

    def __init__(self) -> None:
        self.stamps = np.zeros((1, 4, 2))
        self.brought = np.zeros((1, 4, 2))
        self.shared = 0

    def barrier(self) -> None:
        pass

    def share_stamps(self, count: int) -> None:
        self.brought[:, self.shared : count] = self.stamps[:, self.shared : count]
        self.shared = count

    def share_words(self) -> None:
        pass


def test_the_first_samples_stamps_are_brought_after_the_warm_ups() -> None:
    endpoint = Remembering()
    warmup = measure._WarmUp((2e-6,), 2e-6, 0.0)
    assert measure._of_all_ranks(endpoint, warmup) == 2e-6  # type: ignore[arg-type]  # all it asks for is here
    endpoint.stamps[0, :2] = [[10.0, 11.0], [12.0, 13.0]]
    measure._bring_stamps(endpoint, 2)  # type: ignore[arg-type]
    assert endpoint.brought[0, :2].tolist() == [[10.0, 11.0], [12.0, 13.0]]


class Calibrated(Remembering):
    """One that computes, too; its clock counts launches and repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps = np.zeros((1, 10, 2))
        self.brought = np.zeros((1, 10, 2))
        self.seconds = 0.0

    def sample_launches(self, wanted: int, seconds: float) -> int:
        return wanted

    def device_seconds(self) -> float:
        return self.seconds

    def agree(self, value: int) -> int:
        return value

    def compute(self, repetitions: int) -> None:
        self.seconds = 1.0 * repetitions

    def launch(self, times: int) -> None:
        self.seconds = 40.0 * times


def test_stamps_of_a_sample_are_brought_after_those_of_the_calibration() -> None:
    endpoint = Calibrated()
    turns = Overlapped(endpoint, 1, computes=True)  # type: ignore[arg-type]  # as above
    case = Case("s", "fake", "all_reduce", "ring", "float32", "sum", 4096, 1024, 1, mode="overlap")
    measure._calibrate(endpoint, case, turns, 40.0)  # type: ignore[arg-type]
    assert turns._repetitions == 40
    assert endpoint.shared == 0
    endpoint.stamps[:] = 7.0
    measure._bring_stamps(endpoint, Overlapped.stamps)  # type: ignore[arg-type]
    assert np.all(endpoint.brought[:, : Overlapped.stamps] == 7.0)
