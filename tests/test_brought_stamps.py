"""Ranks that bring their stamps to each other bring those of samples, not what stood there before."""

from __future__ import annotations

import numpy as np

from ccbench import measure


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
