from __future__ import annotations

import numpy as np
import pytest

from benchmarks.score.nccl_tuning import graph_rates, nccl_estimate
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from tests.model.library.systems import A100, H100, HDR, clustered

LARGE = 1 << 40


def bus_gigabytes(system: LibrarySystem, algorithm: str, size: int = LARGE) -> float:
    request = LibraryRequest("all_reduce", (size,), algorithm=algorithm, protocol="simple")
    factor = 2 * (system.ranks - 1) / system.ranks
    return float(size * factor / nccl_estimate(system, request)[0]) / 1e9


@pytest.mark.parametrize(
    ("system", "algorithm", "expected"),
    [
        (H100, "ring", 360.0),  # 12 channels of 30 GB/s
        (H100, "nvls", 476.0),  # 8 x 40 x 0.85 x 7/8 x 2
        (A100, "ring", 240.0),  # 12 channels of 20 GB/s
        (clustered(H100, 2), "nvlstree", 461.6),  # 8 channels of 57.7 GB/s
        (clustered(A100, 2, HDR), "ring", 192.0),  # 8 channels of 24 GB/s
    ],
)
def test_bus_bandwidths_are_those_of_nccls_search_and_tables(
    system: LibrarySystem, algorithm: str, expected: float
) -> None:
    assert bus_gigabytes(system, algorithm) == pytest.approx(expected, rel=2e-3)


def test_channels_are_doubled_where_each_stays_fast_enough() -> None:
    assert graph_rates(A100).channels * graph_rates(A100).inside == pytest.approx(240)
    assert graph_rates(A100).inside == 20


def test_latency_of_a_small_ring_is_base_and_hops() -> None:
    request = LibraryRequest("all_reduce", (8,), algorithm="ring", protocol="ll")
    assert nccl_estimate(A100, request)[0] * 1e6 == pytest.approx(6.6 + 14 * 0.6, rel=1e-3)


def test_the_least_of_all_is_the_estimate() -> None:
    sizes = tuple(1 << power for power in range(3, 34))
    every = [
        nccl_estimate(H100, LibraryRequest("all_reduce", sizes, algorithm=algorithm, protocol=protocol))
        for algorithm, protocol in [("ring", "ll"), ("ring", "ll128"), ("ring", "simple"), ("nvls", "simple")]
        + [("tree", protocol) for protocol in ("ll", "ll128", "simple")]
    ]
    best = nccl_estimate(H100, LibraryRequest("all_reduce", sizes))
    np.testing.assert_allclose(best, np.min(every, axis=0))


@pytest.mark.parametrize("collective", ["all_to_all", "send_recv", "gather", "scatter"])
def test_nccl_has_no_model_of_grouped_sends(collective: str) -> None:
    with pytest.raises(MachineError, match="NCCL has no estimate"):
        nccl_estimate(H100, LibraryRequest(collective, (1024,)))
