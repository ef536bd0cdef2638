"""Who communicates with whom: expressions, lists, pairs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import UsageError
from ccbench.groups import (
    PAIRINGS,
    PairingRound,
    every_pair,
    format_ranks,
    parse_groups,
)


@given(st.integers(1, 64), st.sampled_from(["//", "%", "&", "|"]), st.integers(1, 64))
def test_every_rank_is_in_one_group_or_the_groups_are_refused(
    ranks: int, operator: str, number: int
) -> None:
    try:
        groups = parse_groups(f"rank {operator} {number}", ranks)
    except UsageError as error:
        assert "groups of" in str(error)  # noqa: PT017 - refusing unequal groups is one of two right answers
        return
    assert sorted(rank for group in groups for rank in group) == list(range(ranks))
    assert len({len(group) for group in groups}) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rank ^ 2", "who belongs together"),
        ("rank // 0", "divides by nothing"),
        ("rank % 3", "groups of 2 and 3"),
        ("[[0, 9]]", "9 is no rank of 8"),
        ("[[0, 1], [1, 2]]", "twice"),
        ("[[0, 1], [2]]", "groups of 1 and 2"),
        ("[[]]", "list of lists"),
        ("[0, 1]", "list of lists"),
        ("[[true, 1]]", "list of lists"),
        ("[" * 50_000, "list of lists"),
    ],
)
def test_what_makes_no_groups_is_refused_with_the_reason(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_groups(text, 8)


def test_ranks_are_written_as_runs() -> None:
    assert format_ranks((0, 1, 2, 5, 7, 8)) == "0-2, 5, 7-8"


@given(st.integers(1, 24))
def test_every_pair_comes_once(ranks: int) -> None:
    one_way = every_pair(ranks, both=False)
    assert len(set(one_way)) == len(one_way) == ranks * (ranks - 1)
    assert len(every_pair(ranks, both=True)) == ranks * (ranks - 1) // 2


@given(st.sampled_from(PAIRINGS), st.integers(2, 40), st.integers(0, 5))
def test_rounds_of_a_round_robin_have_every_pair_once(kind: str, units: int, seed: int) -> None:
    rounds = units - 1 + units % 2
    pairs = [
        pair
        for number in range(rounds)
        for pair in PairingRound(kind, number, seed).pairs(units)
    ]
    assert sorted(pairs) == [
        (index, two) for index in range(units) for two in range(index + 1, units)
    ]


@given(st.integers(2, 200), st.integers(0, 300), st.integers(0, 9))
def test_nobody_is_in_two_pairs_and_of_an_odd_number_one_sits_out(
    units: int, number: int, seed: int
) -> None:
    met = [
        unit for pair in PairingRound("matching", number, seed).pairs(units) for unit in pair
    ]
    assert len(met) == len(set(met)) == units - units % 2


def test_pairs_need_two_whole_nodes() -> None:
    for text in ("matching 0 per 3 ranks", "matching 0 per 8 ranks", "round_robin 0 within 1"):
        with pytest.raises(UsageError):
            parse_groups(text, 8)
