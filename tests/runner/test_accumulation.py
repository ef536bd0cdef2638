"""Sums made in a certain order and type are named so, and nothing is named that cannot be told."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from ccbench.cases.axes import Case, InexactData
from ccbench.dtypes import EXPONENTS, numpy_dtype
from ccbench.inexact import INEXACT_PERIOD, Array, bits_of, inexact_period
from ccbench.runner.accumulation import (
    FEWEST_ELEMENTS,
    MOST_RANKS,
    UNKNOWN,
    accumulation_of,
    narrower_type,
    order_text,
)
from ccbench.schedules import schedule_for
from ccbench.schedules.orders import Order, Sum, bit_dependence
from tests.backends.measuring import case_of
from tests.schedules.test_orders import evaluated

ELEMENTS = 256


def reducing(dtype: str = "float32", ranks: int = 4, op: str = "sum") -> Case:
    return case_of(
        "cpu", "all_reduce", "default", ranks, dtype=dtype, op=op, inexact=InexactData()
    )


def parts_of(case: Case, name: str, places: Array) -> dict[int, Array]:
    """What the ranks put in at ``places`` of the period, in type ``name``."""
    assert case.inexact is not None
    return {
        rank: inexact_period(case.inexact, case.dtype, case.op == "prod", case.ranks, rank)[
            places
        ].astype(numpy_dtype(name))
        for rank in range(case.ranks)
    }


def named(case: Case, orders: Sequence[Order], name: str = "", elements: int = ELEMENTS) -> str:
    """Return the name of sums in type ``name``, of equal stretches of elements each in its order."""
    places = np.arange(INEXACT_PERIOD - elements, INEXACT_PERIOD)
    stretches = np.array_split(places, len(orders))
    sums = np.concatenate(
        [
            evaluated(order, parts_of(case, name or case.dtype, stretch))
            for order, stretch in zip(orders, stretches, strict=True)
        ]
    )
    return accumulation_of(case, places, bits_of(sums.astype(numpy_dtype(case.dtype))))


def chain(ranks: Sequence[int]) -> Order:
    order: Order = ranks[0]
    for rank in ranks[1:]:
        order = (order, rank)
    return order


def halves(ranks: Sequence[int]) -> Order:
    middle = len(ranks) // 2
    return (halves(ranks[:middle]), halves(ranks[middle:])) if middle else ranks[0]


def summed(order: Order) -> Sum:
    return Sum.of(order) if isinstance(order, int) else summed(order[0]) + summed(order[1])


every_type = pytest.mark.parametrize("dtype", EXPONENTS)


@pytest.mark.thinned(4)
@every_type
@pytest.mark.parametrize("ranks", range(3, 9))
def test_chains_in_the_type_of_the_data_are_named_with_their_ranks(
    dtype: str, ranks: int
) -> None:
    case = reducing(dtype, ranks)
    in_turn = [*range(ranks)]
    start = ranks // 2
    for turn in (in_turn, in_turn[start:] + in_turn[:start], in_turn[::-1]):
        # Of the first two either comes first.
        texts = {"+".join(map(str, order)) for order in (turn, [turn[1], turn[0], *turn[2:]])}
        kind, _, order = named(case, [chain(turn)]).partition(", chain ")
        assert kind == dtype
        assert order in texts


@pytest.mark.thinned(4)
@every_type
@pytest.mark.parametrize("ranks", [4, 8])
def test_trees_over_neighbours_and_over_halves_are_named(dtype: str, ranks: int) -> None:
    case = reducing(dtype, ranks)
    neighbours, distant = ("(0+1)+(2+3)", "(0+2)+(1+3)")
    if ranks == 8:
        neighbours = "((0+1)+(2+3))+((4+5)+(6+7))"
        distant = "((0+4)+(2+6))+((1+5)+(3+7))"
    assert named(case, [halves([*range(ranks)])]) == f"{dtype}, tree {neighbours}"
    by_bit = sorted(range(ranks), key=lambda rank: f"{rank:03b}"[::-1])
    assert named(case, [halves(by_bit)]) == f"{dtype}, tree {distant}"


@pytest.mark.parametrize("name", ["ring", "double_binary_tree", "halving_doubling", "two_shot"])
def test_orders_of_own_schedules_are_candidates(name: str) -> None:
    orders = bit_dependence(schedule_for("all_reduce", name, 6)).orders
    text = named(reducing(ranks=6), orders)
    assert text.startswith("float32, ")
    assert UNKNOWN not in text


def test_orders_of_many_ranks_are_named_by_kind_and_height() -> None:
    assert order_text(summed(chain(range(9)))) == "chain of height 8"
    assert order_text(summed(halves(range(16)))) == "tree of height 4"
    assert named(reducing(ranks=16), [chain(range(16))]) == "float32, chain of height 15"


def test_too_few_elements_and_what_is_not_followed_say_nothing() -> None:
    order = [chain(range(4))]
    assert named(reducing(), order, elements=FEWEST_ELEMENTS - 1) == ""
    assert named(reducing(), order, elements=FEWEST_ELEMENTS) != ""
    assert named(reducing(op="avg"), order) == ""
    assert named(reducing(op="premulsum"), order) == ""


def test_more_ranks_than_can_be_tried_in_time_are_unknown() -> None:
    case = reducing(ranks=MOST_RANKS + 1)
    assert accumulation_of(case, np.arange(ELEMENTS), np.zeros(ELEMENTS, np.uint32)) == UNKNOWN


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([1.0, 1.5, 0.0], "float8_e5m2"),
        ([1.0, 1.125], "float8_e4m3"),
        ([1.0 + 2**-7, 300.0], "bfloat16"),
        ([1.0 + 2**-9], "float16"),
        ([1.0 + 2**-11], ""),
        ([2.0**100, 2.0**-20], "bfloat16"),
    ],
)
def test_the_narrowest_type_is_that_which_holds_every_value(
    values: list[float], name: str
) -> None:
    assert narrower_type(np.array(values, np.float32), "float32") == name
