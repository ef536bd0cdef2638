from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.bits import (
    BEYOND,
    bit_rows,
    bits_findings,
    bits_sentence,
    changed_share,
    differing_share,
    not_compared,
    reproducible_cases,
    share_text,
)
from ccbench.cases.measurement import Status
from ccbench.errors import UsageError
from ccbench.results import Point, Run

BITS = tuple(range(100))
OTHER_BITS = (*BITS[:70], *range(1000, 1030))
"""Thirty of a hundred differ."""


def point(bits: tuple[int, ...] = BITS, **changes: Any) -> Point:
    size_bytes = changes.pop("size_bytes", 4 * len(bits))
    made = Point(
        "bits", "mpi", "all_reduce", "default", "float32", "sum", size_bytes, size_bytes // 4, 4
    )
    described = {
        "case_id": repr(sorted(changes.items())) + str(size_bytes),
        "median_seconds": 1e-3,
        "inexact_data": "normal",
        "result_bits": bits,
        "result_digests": (str(bits),),
        "differing_over_launches": 0.0,
        "differing_over_ranks": 0.0,
        "correctly_rounded_share": 0.7,
        "accumulation": "float32, chain 0+1+2+3",
    }
    return replace(made, **{**described, **changes})


def sizes(*bits: tuple[int, ...], **changes: Any) -> list[Point]:
    """Points of ever larger sizes with these bits."""
    return [point(own, size_bytes=400 << place, **changes) for place, own in enumerate(bits)]


def runs(*points: Point) -> list[Run]:
    return [cast(Run, SimpleNamespace(points=points))]


@given(st.lists(st.integers(0, 9), max_size=8), st.lists(st.integers(0, 9), max_size=8))
def test_a_share_is_of_the_elements_that_both_have_and_is_the_same_both_ways(
    bits: list[int], more_bits: list[int]
) -> None:
    pairs = list(zip(bits, more_bits, strict=False))
    expected = sum(a != b for a, b in pairs) / len(pairs) if pairs else None
    assert differing_share(bits, more_bits) == expected == differing_share(more_bits, bits)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ("differing_over_launches", "from launch to launch"),
        ("differing_over_starts", "from one start of the ranks to the next"),
        ("differing_over_ranks", "between ranks"),
    ],
)
def test_the_same_request_with_other_bits_is_a_problem_that_the_first_sentence_says(
    column: str, words: str
) -> None:
    points = sizes(BITS, BITS, **{column: 0.01, "first_difference": "rank 3, launch 2 of 4"})
    assert bits_sentence(bit_rows(points)).startswith(
        f"BITS DIFFER {words} in 1 of 1 configuration"
    )
    (finding,) = bits_findings(points)
    assert (finding.severity, finding.kind, finding.cases) == ("problem", "bits_differ", 2)
    assert "rank 3, launch 2 of 4" in finding.evidence


@pytest.mark.parametrize(
    ("accumulation", "dtype", "narrow"),
    [
        ("bfloat16, chain 0+1+2+3", "float32", True),
        ("float32 or wider", "bfloat16", False),
        ("float32, tree (0+1)+(2+3)", "float32", False),
        ("float32, order unknown", "float64", True),
        ("unknown", "float32", False),
        ("", "float32", False),
        ("float32, chain 0+1+2; rank 1: bfloat16, chain 0+1+2", "float32", True),
    ],
)
def test_sums_in_a_narrower_type_than_the_data_are_doubted(
    accumulation: str, dtype: str, narrow: bool
) -> None:
    kinds = [
        each.kind for each in bits_findings([point(accumulation=accumulation, dtype=dtype)])
    ]
    assert kinds == ["narrow_sums"] * narrow


def test_two_ranks_show_nothing_and_the_sentence_says_so() -> None:
    sentence = bits_sentence(bit_rows(sizes(BITS, BITS, ranks=2)))
    assert sentence.endswith(
        "two ranks have one order of additions: ask with more, such as --ranks 4"
    )
    in_pairs = bits_sentence(bit_rows(sizes(BITS, BITS, ranks=4, groups="rank // 2")))
    assert in_pairs.endswith("ask with larger groups")
    changing = bits_sentence(
        bit_rows([point(ranks=2), point(OTHER_BITS, ranks=2, variant="new")])
    )
    assert changing.startswith("To keep bits, pin the variant")


def test_what_depends_on_the_position_is_not_called_the_same_at_all_sizes() -> None:
    """The first elements may lie in one block at every size."""
    sentence = bits_sentence(bit_rows(sizes(BITS, BITS, differing_over_positions=0.2)))
    assert sentence.startswith("To keep bits, pin the size of messages")
    assert "at all sizes" not in sentence


def test_a_change_between_runs_counts_elements_and_hidden_ones_by_their_digest() -> None:
    assert changed_share(point(), point()) == 0.0
    assert changed_share(point(), point(OTHER_BITS)) == pytest.approx(0.3)
    assert changed_share(point(), point(result_digests=("elsewhere",))) == BEYOND
    assert share_text(BEYOND) == "differ"
    larger = point(result_digests=("of more elements",), size_bytes=800)
    assert changed_share(point(), larger) == 0.0


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inexact_data": "normal, seed 2"}, r"other inexact data \(normal / normal, seed 2\)"),
        ({"ranks": 3}, "other numbers are added"),
        ({"dtype": "int32"}, "other numbers are added"),
        ({"op": "prod"}, "other numbers are added"),
        ({"result_bits": ()}, "new has none"),
        ({"backend": "gloo"}, ""),
        ({"variant": "newer"}, ""),
    ],
)
def test_bits_of_other_numbers_are_not_compared_and_the_reason_is_told(
    changes: dict[str, Any], reason: str
) -> None:
    new = replace(point(), **changes)
    assert (changed_share(point(), new) is None) == bool(reason)
    assert re.fullmatch(reason, not_compared(point(), new))


def test_at_a_single_size_nobody_knows_whether_bits_stay_at_others() -> None:
    (row,) = bit_rows([point()])
    assert not row.reproducible
    assert "not tried: other sizes" in bits_sentence([row])


def test_of_choices_that_give_equal_bits_at_all_sizes_the_fastest_are_kept() -> None:
    dependent = sizes(BITS, OTHER_BITS, algorithm="ring", median_seconds=1e-6)
    slow = sizes(OTHER_BITS, OTHER_BITS, algorithm="tree", median_seconds=9e-3)
    fast = [
        *sizes(BITS, BITS, algorithm="one_shot", median_seconds=2e-3),
        *sizes(BITS, BITS, algorithm="two_shot", median_seconds=5e-3),
    ]
    racing = sizes(
        BITS, BITS, algorithm="racing", median_seconds=1e-6, differing_over_launches=0.1
    )
    kept = reproducible_cases(runs(*dependent, *slow, *fast, *racing))
    assert kept == {each.case_id for each in fast}


def test_without_bits_nobody_can_say_what_is_reproducible() -> None:
    with pytest.raises(
        UsageError,
        match="no case has bits; measure floating point sums",
    ):
        reproducible_cases(runs(replace(point(), result_bits=())))


def test_a_failed_case_has_no_time_and_is_no_error() -> None:
    failed = sizes(BITS, BITS, status=Status.FAILED, median_seconds=None)
    assert reproducible_cases(runs(*failed)) == {each.case_id for each in failed}
