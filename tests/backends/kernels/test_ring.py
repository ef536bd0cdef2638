"""The ring kernels: what they may touch in a launch while others are in the one before."""

from __future__ import annotations

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostOptions
from tests.backends.kernels.shared_buffers import reduce_then


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_a_rank_that_is_ahead_does_not_overwrite_what_another_still_reads(collective: str) -> None:
    for seed in range(100):
        reduce_then(collective, Build("ring.cu"), HostOptions(lanes=1, seed=seed, devices=4))


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_a_rank_that_is_ahead_does_not_race_with_what_another_still_reads(collective: str) -> None:
    reduce_then(collective, Build("ring.cu", sanitize=True), HostOptions(lanes=4, seed=1, devices=4))
