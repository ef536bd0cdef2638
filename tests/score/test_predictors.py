from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.score.alpha_beta import INSIDE_SECONDS, NETWORK_SECONDS, alpha_beta
from benchmarks.score.predictors import (
    first_principles,
    rivals,
)
from ccbench.model.library import LibraryRequest
from tests.model.library.systems import A100, HDR, clustered
from tests.score.corpora import SIZES, system

REQUEST = LibraryRequest("all_reduce", SIZES)


def test_every_predictor_answers_every_size_with_a_time() -> None:
    for predict in (first_principles, *rivals().values()):
        prediction = predict(system(), REQUEST)
        assert len(prediction) == len(SIZES)
        assert all(seconds > 0 for seconds in prediction)


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
