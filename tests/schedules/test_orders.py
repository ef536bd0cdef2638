"""Orders of summation hold every rank once, and are those that programs of the CPU backend execute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ccbench.collectives import collective
from ccbench.errors import ScheduleError
from ccbench.schedules import (
    ALGORITHMS,
    Algorithm,
    add_algorithms,
    algorithm_row,
    schedule_for,
)
from ccbench.schedules.orders import (
    MOST_RANKS,
    Order,
    Sum,
    bit_dependence,
    chain,
    error_bound,
    followed,
    orders,
    unit_roundoff,
)
from ccbench.schedules.placement import Space
from ccbench.schedules.schedule import Schedule, phase, schedule
from tests.backends.cpu.interpreter import (
    buffers_of,
    compiled,
    fill,
    output_of,
    run_in_random_order,
)

REDUCING = [row for row in ALGORITHMS if collective(row.collective).reduces]
IDS = [f"{row.collective}-{row.name}" for row in REDUCING]

every_algorithm = pytest.mark.parametrize("row", REDUCING, ids=IDS)


def all_of(row: Algorithm) -> Iterator[Schedule]:
    """Of 2 to 8 ranks, with roots first, in the middle and last."""
    for ranks in range(2, 9):
        roots = sorted({0, ranks // 2, ranks - 1}) if collective(row.collective).rooted else [0]
        for root in roots:
            yield schedule_for(row.collective, row.name, ranks, root, size_bytes=1 << 20)


def height(order: Order) -> int:
    return 0 if isinstance(order, int) else 1 + max(map(height, order))


def evaluated(order: Order, parts: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
    """Add ``parts``, one per rank, in this order, each sum rounded to their type."""
    if isinstance(order, int):
        return parts[order]
    first, second = (evaluated(part, parts) for part in order)
    total: NDArray[Any] = first + second
    return total


ELSEWHERE = {("all_reduce", "double_binary_tree"), ("reduce", "direct")}
"""Algorithms that in place make some of their sums in other memory, and add there in the order of ranks."""


@pytest.mark.thinned(11)
@every_algorithm
@pytest.mark.parametrize("in_place", [False, True])
def test_programs_of_the_cpu_backend_add_in_this_order_bit_for_bit(
    row: Algorithm, in_place: bool
) -> None:
    of = collective(row.collective)
    for each in all_of(row):
        if in_place and (row.collective, row.name) in ELSEWHERE:
            continue
        count = 5 if of.blocked else 5 * each.pieces
        generator = np.random.default_rng(each.ranks)
        inputs = {
            rank: generator.standard_normal(
                of.input_count(count, each.ranks, rank, each.root)
            ).astype(np.float32)
            for rank in range(each.ranks)
        }
        case = compiled(each, count, in_place)
        buffers = buffers_of(case, np.float32)
        for rank, values in inputs.items():
            fill(case, rank, buffers, values)
        run_in_random_order(case, buffers, launches=1, seed=each.ranks)
        held = orders(each, own_first=in_place)
        for rank in range(each.ranks):
            pieces = [
                evaluated(
                    held[rank, slot],
                    {r: inputs[r].reshape(-1, 5)[slot % each.pieces] for r in inputs},
                )
                for slot in case.layout.places(rank, Space.OUTPUT)
            ]
            expected = np.concatenate([np.empty(0, np.float32), *pieces])
            actual = output_of(case, rank, buffers).astype(np.float32)
            np.testing.assert_array_equal(actual, expected, err_msg=f"rank {rank} of {each}")


@every_algorithm
def test_bits_of_two_ranks_depend_on_nothing(row: Algorithm) -> None:
    bits = bit_dependence(schedule_for(row.collective, row.name, 2))
    assert (bits.positions, bits.ranks, bits.depth, bits.orders) == (False, False, 1, ((0, 1),))


@every_algorithm
def test_no_algorithm_leaves_ranks_with_different_bits(row: Algorithm) -> None:
    assert not any(bit_dependence(each).ranks for each in all_of(row))


def test_ranks_that_add_in_different_orders_are_told_from_those_that_do_not() -> None:
    # Everybody fetches its left neighbour's, then its right one's, and adds them to its own in this order.
    everyone = range(3)
    phases = [
        phase([2, 0, 1], everyone, 0, 1),
        phase([1, 2, 0], everyone, 0, 2),
        phase(everyone, everyone, 1, 0, reduces=True),
        phase(everyone, everyone, 2, 0, reduces=True),
    ]
    mine = schedule("all_reduce", "mine", 3, 1, phases, work_regions=2)
    bits = bit_dependence(mine)
    assert bits.ranks
    assert not bits.positions
    assert orders(mine)[0, 0] == ((0, 2), 1)


def test_an_algorithm_that_adds_otherwise_in_large_messages_depends_on_the_size() -> None:
    def build(ranks: int, pieces: int) -> Schedule:
        name = "chain" if pieces == 1 else "binomial"
        made = algorithm_row("reduce", name).build(ranks, 1)
        return replace(made, algorithm="switching", parameter=pieces)

    add_algorithms(
        [Algorithm("reduce", "switching", build, parameter="pieces", file="mine.py")]
    )
    try:
        bits = bit_dependence(schedule_for("reduce", "switching", 8))
    finally:
        add_algorithms([])
    assert bits.positions
    assert (bits.depth, len(bits.orders)) == (7, 2)


def test_schedules_that_are_too_wrong_to_be_followed_are_refused() -> None:
    twice = phase(0, 1, 0, reduces=True, repeat=2)
    with pytest.raises(ScheduleError, match="rank 0 is added twice, expected once"):
        orders(schedule("reduce", "mine", 2, 1, [twice]))
    unwritten = phase(0, 1, 1, 0, reduces=True)
    with pytest.raises(
        ScheduleError, match="slot 1 of rank 0 is read, but nothing was written"
    ):
        orders(schedule("reduce", "mine", 2, 1, [unwritten], work_regions=1))


def test_schedules_are_followed_up_to_a_number_of_ranks_and_moves() -> None:
    assert followed(schedule_for("all_reduce", "ring", MOST_RANKS, prove=False))
    assert not followed(schedule_for("reduce", "binomial", MOST_RANKS + 1, prove=False))
    assert not followed(schedule_for("reduce", "chain:4096", 100, prove=False))


@given(ranks=st.permutations(range(6)))
def test_sums_of_two_are_alike_whichever_comes_first(ranks: list[int]) -> None:
    first, second, third, *_ = map(Sum.of, ranks)
    assert first + second == second + first
    assert (first + second) + third != first + (second + third)
    assert chain(ranks[:3]) == (first + second) + third


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=40),
    random=st.randoms(use_true_random=False),
)
def test_no_sum_is_further_off_than_its_bound(values: list[float], random: Any) -> None:
    sums = [Sum.of(rank) for rank in range(len(values))]
    while len(sums) > 1:
        random.shuffle(sums)
        sums.append(sums.pop() + sums.pop())
    parts = dict(enumerate(np.array(values, np.float32)))
    computed = evaluated(sums[0].order, parts)
    exact, magnitudes = (np.sum(np.array(of, np.float64)) for of in (values, np.abs(values)))
    bound = error_bound(sums[0].height, "float32") * magnitudes
    assert abs(float(computed) - exact) <= bound + 1e-12 * magnitudes


def test_bounds_are_of_the_types_roundoff() -> None:
    assert unit_roundoff("float32") == np.finfo(np.float32).eps / 2
    assert unit_roundoff("float16") == np.finfo(np.float16).eps / 2
    assert error_bound(0, "float32") == 0
    assert error_bound(1, "bfloat16") == 1 / 255
    assert error_bound(256, "bfloat16") == np.inf
