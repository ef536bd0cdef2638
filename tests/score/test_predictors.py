from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.score.alpha_beta import INSIDE_SECONDS, NETWORK_SECONDS, alpha_beta
from benchmarks.score.nccl_tuning import graph_rates, nccl_estimate
from benchmarks.score.predictors import (
    calibrated,
    first_principles,
    rivals,
)
from ccbench.errors import MachineError
from ccbench.model.library import LibraryRequest, LibrarySystem
from ccbench.model.library.calibration import Observation
from tests.model.library.systems import A100, H100, HDR, clustered
from tests.score.corpora import SIZES, system

REQUEST = LibraryRequest("all_reduce", SIZES)


def test_every_predictor_answers_every_size_with_a_time() -> None:
    for predict in (first_principles, *rivals().values()):
        prediction = predict(system(), REQUEST)
        assert len(prediction) == len(SIZES)
        assert all(seconds > 0 for seconds in prediction)


def distance(predicted: Sequence[float], measured: Sequence[float]) -> float:
    return sum(abs(one / other - 1) for one, other in zip(predicted, measured, strict=True))


def test_what_is_calibrated_moves_towards_what_it_saw() -> None:
    plain = first_principles(system(), REQUEST)
    slow = tuple(1.4 * seconds for seconds in plain)
    calibration = calibrated([Observation(system(), REQUEST, slow)])(system(), REQUEST)
    assert distance(calibration, slow) < distance(plain, slow) * 0.5


def test_a_ring_on_one_node_is_hockneys_formula() -> None:
    seconds = alpha_beta(A100, LibraryRequest("all_reduce", (0, 300_000_000)))
    assert seconds.tolist() == pytest.approx(
        [14 * INSIDE_SECONDS, 14 * INSIDE_SECONDS + 1.75e-3]
    )


def test_over_nodes_the_nics_are_the_slowest() -> None:
    (seconds,) = alpha_beta(
        clustered(A100, 2, HDR), LibraryRequest("all_gather", (200_000_000,))
    )
    assert seconds == pytest.approx(13 * INSIDE_SECONDS + 2 * NETWORK_SECONDS + 15 / 16 * 1e-3)


def test_one_rank_takes_no_time() -> None:
    assert alpha_beta(
        replace(A100, ranks_per_node=1), LibraryRequest("all_reduce", (8,))
    ).tolist() == [0.0]


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
        nccl_estimate(
            H100, LibraryRequest("all_reduce", sizes, algorithm=algorithm, protocol=protocol)
        )
        for algorithm, protocol in [
            ("ring", "ll"),
            ("ring", "ll128"),
            ("ring", "simple"),
            ("nvls", "simple"),
        ]
        + [("tree", protocol) for protocol in ("ll", "ll128", "simple")]
    ]
    best = nccl_estimate(H100, LibraryRequest("all_reduce", sizes))
    np.testing.assert_allclose(best, np.min(every, axis=0))


@pytest.mark.parametrize("collective", ["all_to_all", "send_recv", "gather", "scatter"])
def test_nccl_has_no_model_of_grouped_sends(collective: str) -> None:
    with pytest.raises(MachineError, match="NCCL has no estimate"):
        nccl_estimate(H100, LibraryRequest(collective, (1024,)))
