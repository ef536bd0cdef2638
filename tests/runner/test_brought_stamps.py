"""Ranks that bring their stamps to each other bring those of samples, not what stood there before."""

from __future__ import annotations

import numpy as np

from ccbench.cases.axes import Case
from ccbench.runner import measure
from ccbench.runner.measure import OverlapSampler


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


class Calibrated(Remembering):
    """One that computes, too; its clock counts launches and repetitions."""

    def __init__(self) -> None:
        super().__init__()
        self.stamps = np.zeros((1, 10, 2))
        self.brought = np.zeros((1, 10, 2))
        self.seconds = 0.0

    def sample_launches(self, launches: int, seconds: float) -> int:
        return launches

    def device_seconds(self) -> float:
        return self.seconds

    def agree(self, value: int) -> int:
        return value

    def compute(self, repetitions: int) -> None:
        self.seconds = 1.0 * repetitions

    def launch(self, times: int) -> None:
        self.seconds = 40.0 * times


def test_stamps_of_a_sample_are_brought_after_those_of_matching_the_computation() -> None:
    endpoint = Calibrated()
    sampler = OverlapSampler(endpoint, 1, computes=True)  # type: ignore[arg-type]  # as above
    case = Case(
        "s", "fake", "all_reduce", "ring", "float32", "sum", 4096, 1024, 1, mode="overlap"
    )
    measure.match_computation(endpoint, case, sampler, 40.0)  # type: ignore[arg-type]
    assert sampler.repetitions == 40
    assert endpoint.shared == 0
    endpoint.stamps[:] = 7.0
    endpoint.share_stamps(OverlapSampler.stamps)
    assert np.all(endpoint.brought[:, : OverlapSampler.stamps] == 7.0)
