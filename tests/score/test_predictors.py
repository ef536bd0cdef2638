from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.score.alpha_beta import INSIDE_SECONDS, alpha_beta
from ccbench.model.library import LibraryRequest
from tests.model.library.systems import A100


def test_a_ring_on_one_node_is_hockneys_formula() -> None:
    seconds = alpha_beta(A100, LibraryRequest("all_reduce", (0, 300_000_000)))
    assert seconds.tolist() == pytest.approx(
        [14 * INSIDE_SECONDS, 14 * INSIDE_SECONDS + 1.75e-3]
    )


def test_one_rank_takes_no_time() -> None:
    assert alpha_beta(
        replace(A100, ranks_per_node=1), LibraryRequest("all_reduce", (8,))
    ).tolist() == [0.0]
