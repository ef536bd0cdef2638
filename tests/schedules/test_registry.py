from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.collectives import collective
from ccbench.errors import ScheduleError, UsageError
from ccbench.schedules import (
    ALGORITHMS,
    MOST_RANKS_ALL_PAIRS,
    Algorithm,
    algorithm_row,
    parse_algorithm,
    schedule_for,
)
from tests.schedules.interpreter import ROWS, is_right

RANKS = [*range(1, 34), 48, 63, 64]


def roots(row: Algorithm, ranks: int) -> set[int]:
    return {0, ranks // 2, ranks - 1} if collective(row.collective).rooted else {0}


@pytest.mark.thinned(6)
@pytest.mark.parametrize("row", ROWS)
def test_the_schedule_is_proven_for_any_number_of_ranks(row: Algorithm) -> None:
    for ranks in RANKS:
        for root in roots(row, ranks):
            built = schedule_for(row.collective, row.name, ranks, root, size_bytes=1 << 21)
            assert (built.collective, built.algorithm, built.ranks) == (
                row.collective,
                row.name,
                ranks,
            )
            assert built.root == (root if collective(row.collective).rooted else -1)
    assert schedule_for(row.collective, row.name, 1).steps == 0


@given(row=st.sampled_from(ALGORITHMS), ranks=st.integers(1, 40), drawn=st.data())
def test_the_schedule_is_proven_for_any_root_and_parameter(
    row: Algorithm, ranks: int, drawn: st.DataObject
) -> None:
    root = drawn.draw(st.integers(0, ranks - 1))
    parameter = drawn.draw(st.integers(1, 50)) if row.parameter else None
    if parameter is not None and row.unsupported(ranks, parameter):
        with pytest.raises(ScheduleError):
            schedule_for(row.collective, row.name, ranks, root, parameter)
    else:
        built = schedule_for(row.collective, row.name, ranks, root, parameter)
        assert parameter is None or built.parameter == parameter


@given(row=st.sampled_from(ALGORITHMS), ranks=st.integers(1, 9), drawn=st.data())
def test_counting_with_multisets_agrees_with_the_proof(
    row: Algorithm, ranks: int, drawn: st.DataObject
) -> None:
    root = drawn.draw(st.integers(0, ranks - 1))
    parameter = drawn.draw(st.integers(1, 9)) if row.parameter else None
    if parameter is None or not row.unsupported(ranks, parameter):
        assert is_right(
            schedule_for(row.collective, row.name, ranks, root, parameter, prove=False)
        )


@pytest.mark.parametrize("row", ROWS)
def test_a_schedule_for_131072_ranks_has_few_flows_or_says_why_not(row: Algorithm) -> None:
    ranks = 131072
    reason = row.unsupported(ranks, row.default_parameter(ranks, 0))
    if reason:
        assert str(MOST_RANKS_ALL_PAIRS) in reason
        with pytest.raises(ScheduleError, match="all pairs of 131072 ranks"):
            schedule_for(row.collective, row.name, ranks, prove=False)
        return
    built = schedule_for(row.collective, row.name, ranks, prove=False)
    most = {"ring": 2, "pairwise": 2, "hierarchical": 4, "linear": 1, "chain": 1}
    assert sum(phase.flows for phase in built.phases) <= most.get(row.name, 4 * 17) * ranks


@given(st.text())
def test_any_text_parses_or_is_a_usage_error(text: str) -> None:
    try:
        name, parameter = parse_algorithm(text)
    except UsageError:
        return
    assert text == (name if parameter is None else text)
    assert text.startswith(name)
    assert parameter is None or parameter >= 1


def test_unknown_names_are_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UsageError, match="'tree' is not known for all_gather; one of ring, recursive_doubling"
    ):
        schedule_for("all_gather", "tree", 4)
    with pytest.raises(UsageError, match="'allgather' is not known; did you mean 'all_gather'"):
        algorithm_row("allgather", "ring")
    for text in (
        "",
        ":",
        "chain:",
        ":4",
        "chain:0",
        "chain:-1",
        "chain:x",
        "chain:1:2",
        "chain: 2",
    ):
        with pytest.raises(UsageError, match="is not a name or name:number"):
            parse_algorithm(text)


@pytest.mark.parametrize(
    ("name", "algorithm", "ranks", "root", "parameter", "message"),
    [
        ("all_reduce", "ring", 0, 0, None, "all_reduce ring: 0 ranks, expected 1 at least"),
        ("all_reduce", "ring:3", 4, 0, None, "parameter 3, but ring has none; write 'ring'"),
        ("all_reduce", "hierarchical:3", 4, 0, None, "groups of 3 do not divide 4 ranks"),
        ("all_reduce", "hierarchical", 4, 0, 0, "groups of 0 do not divide 4 ranks"),
        ("broadcast", "chain:5000", 4, 0, None, "5000 pieces, expected 1 to 4096"),
        ("broadcast", "chain", 4, 4, None, "root 4, expected 0 to 3"),
        ("broadcast", "chain", 4, -1, None, "root -1, expected 0 to 3"),
    ],
)
def test_what_cannot_be_is_a_schedule_error(
    name: str, algorithm: str, ranks: int, root: int, parameter: int | None, message: str
) -> None:
    with pytest.raises(ScheduleError, match=message):
        schedule_for(name, algorithm, ranks, root, parameter)


def test_proving_too_many_ranks_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(ScheduleError, match="or build with prove=False"):
        schedule_for("all_reduce", "ring", 4096)
    with pytest.raises(ScheduleError, match="or build with prove=False"):
        schedule_for("all_reduce", "one_shot", 1500)
