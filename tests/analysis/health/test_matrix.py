from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ccbench.analysis.pair_matrix import PairMatrix, pair_matrices, pair_misses
from ccbench.cases.measurement import Status
from ccbench.groups import Pair

from .machines import Slower, evenly, flagged, manifest, pairs, run_of


def matrices(
    machine: str = "hgx-h100",
    ranks: int = 8,
    slower: Slower = evenly,
    sizes: tuple[int, ...] = (8, 1 << 26),
) -> dict[tuple[int, bool], PairMatrix]:
    made = pairs(np.random.default_rng(3), ranks, slower, sizes)
    return {
        (matrix.size_bytes, matrix.both): matrix
        for matrix in pair_matrices(run_of(made, manifest(machine)))
    }


def test_every_size_and_way_has_a_matrix_with_sources_as_rows() -> None:
    by_size = matrices(slower=lambda pair: 2.0 if pair == Pair(2, 5, False) else 1.0)
    assert sorted(by_size) == [(8, False), (8, True), (1 << 26, False), (1 << 26, True)]
    one_way = by_size[1 << 26, False]
    assert one_way.time(2, 5) > 1.7 * one_way.time(5, 2)
    assert all(one_way.seconds[rank][rank] is None for rank in range(8))
    assert len(list(one_way.pairs())) == 56
    assert len(list(by_size[8, True].pairs())) == 28


def test_a_pair_both_ways_stands_in_both_cells() -> None:
    both = matrices()[1 << 26, True]
    assert all(
        both.seconds[source][target] == both.seconds[target][source]
        for source, target in both.pairs()
    )


def test_behind_a_switch_all_pairs_are_of_one_class_with_the_rate_of_their_links() -> None:
    matrix = matrices()[1 << 26, False]
    assert dict(matrix.class_sizes) == {"NV18": 56}
    assert {matrix.link_rates[source][target] for source, target in matrix.pairs()} == {450e9}


@pytest.mark.parametrize("size", [8, 1 << 26])
@pytest.mark.parametrize(("factor", "is_found"), [(1.0, False), (1.1, False), (1.4, True)])
def test_a_pair_misses_its_class_from_fifteen_percent_on(
    size: int, factor: float, is_found: bool
) -> None:
    slower = matrices(slower=lambda pair: factor if pair == Pair(2, 5, False) else 1.0)
    assert [miss.name for miss in pair_misses(slower[size, False])] == ["2>5"] * is_found
    assert pair_misses(slower[size, True]) == ()


def test_a_pair_is_only_compared_with_pairs_joined_alike() -> None:
    """On a cube mesh one link has half the rate of two, and that is no finding."""
    rates = {(0, 1): 25e9}

    def slower(pair: Pair) -> float:
        return 2.0 if {pair.source, pair.target} == {0, 1} else 1.0

    matrix = matrices("dgx-1v", slower=slower)[1 << 26, False]
    assert matrix.classes[0][1] == "NV1"
    assert rates[0, 1] == matrix.link_rates[0][1]
    assert {miss.name for miss in pair_misses(matrix)} == {"0>1", "1>0"}


def test_a_class_of_two_is_not_judged() -> None:
    slow = matrices(ranks=2, slower=lambda pair: 5.0 if pair.source == 1 else 1.0)
    assert all(pair_misses(matrix) == () for matrix in slow.values())


def test_doubtful_times_are_not_judged() -> None:
    made = pairs(np.random.default_rng(3), slower=lambda pair: 3.0 if pair.source == 1 else 1.0)
    loud = pair_matrices(run_of([flagged(measurement, "other_load") for measurement in made]))
    assert [pair_misses(matrix) for matrix in loud] == [()] * 4
    hot = pair_matrices(run_of([flagged(measurement, "throttled") for measurement in made]))
    assert all(pair_misses(matrix) for matrix in hot if not matrix.both)


def test_pairs_without_a_result_leave_their_cells_empty() -> None:
    made = pairs(np.random.default_rng(3), ranks=3, sizes=(8,))
    made[0] = replace(made[0], status=Status.TIMED_OUT, samples_seconds=())
    first = next(matrix for matrix in pair_matrices(run_of(made)) if not matrix.both)
    assert first.seconds[0][1] is None
    assert len(list(first.pairs())) == 5
