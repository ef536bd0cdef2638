"""Compiled programs give the right result in every order that their waits allow."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.backends.cpu.program import compile_case
from ccbench.collectives import collective, reference
from ccbench.schedules import ALGORITHMS, algorithm_row, schedule_for
from ccbench.schedules.placement import SlotLayout
from tests.backends.cpu.interpreter import compiled, run_and_collect

PAIRS = sorted((row.collective, row.name) for row in ALGORITHMS)


def check(
    name: str, algorithm: str, ranks: int, root: int, count: int, in_place: bool, seed: int
) -> None:
    row = collective(name)
    if algorithm_row(name, algorithm).unsupported(ranks, 0):
        return
    root = root % ranks if row.rooted else 0
    schedule = schedule_for(name, algorithm, ranks, root=root, size_bytes=1 << 20)
    case = compiled(schedule, count, in_place)
    generator = np.random.default_rng(seed)
    inputs = [
        generator.integers(1, 1000, row.input_count(count, ranks, rank, root))
        for rank in range(ranks)
    ]
    launches = 1 if in_place else 2
    outputs = run_and_collect(case, inputs, launches, seed)
    if not row.moves_data:
        return
    for rank, (actual, right) in enumerate(
        zip(outputs, reference(inputs, "sum", name, root), strict=True)
    ):
        np.testing.assert_array_equal(
            actual, right, err_msg=f"{name} {algorithm} rank {rank} of {ranks}"
        )


@pytest.mark.thinned(8)
@pytest.mark.parametrize(("name", "algorithm"), PAIRS)
@pytest.mark.parametrize("in_place", [False, True])
def test_results_are_right_in_random_orders(name: str, algorithm: str, in_place: bool) -> None:
    for ranks in (1, 2, 3, 4, 5, 8):
        for seed in range(4):
            check(name, algorithm, ranks, seed, 24 + seed * 7, in_place, seed)


@given(
    pair=st.sampled_from(PAIRS),
    ranks=st.integers(1, 12),
    root=st.integers(0, 11),
    count=st.integers(0, 60),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_results_are_right_for_any_ranks_counts_and_roots(
    pair: tuple[str, str], ranks: int, root: int, count: int, in_place: bool, seed: int
) -> None:
    check(*pair, ranks, root, count, in_place, seed)


@given(
    sent=st.integers(1, 6).flatmap(
        lambda ranks: st.tuples(*[st.tuples(*[st.integers(0, 9)] * ranks)] * ranks)
    ),
    algorithm=st.sampled_from(["direct", "pairwise"]),
    seed=st.integers(0, 2**32),
)
def test_blocks_of_different_sizes_arrive_in_any_order(
    sent: tuple[tuple[int, ...], ...], algorithm: str, seed: int
) -> None:
    case = compile_case(
        SlotLayout(schedule_for("all_to_all_v", algorithm, len(sent)), 1, False, sent)
    )
    generator = np.random.default_rng(seed)
    inputs = [generator.integers(1, 1 << 40, sum(row)) for row in sent]
    outputs = run_and_collect(case, inputs, 2, seed)
    for actual, right in zip(
        outputs, reference(inputs, "none", "all_to_all_v", 0, np.array(sent)), strict=True
    ):
        np.testing.assert_array_equal(actual, right)
