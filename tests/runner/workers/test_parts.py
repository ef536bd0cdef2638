"""Parts of samples come from where they are known best."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ccbench.cases import Case, CaseFacts
from ccbench.runner.measure import RankResult
from ccbench.runner.workers.reports import parts_of, wrong_elements_of
from ccbench.verification import Mismatch

CASE = Case("s", "cpu", "all_reduce", "ring", "float32", "sum", 4096, 1024, 4, groups="rank // 2")
STAMPS = np.array([[[0.0, 1.0]], [[0.5, 2.0]], [[0.0, 5.0]], [[1.0, 6.0]]])
RESULT = RankResult(0, STAMPS, (), 0.0, 2, "", None, 0.0)


def test_groups_are_timed_by_the_stamps_of_their_ranks() -> None:
    names, samples = parts_of(CASE, CaseFacts(), RESULT)
    assert names == ("ranks 0-1", "ranks 2-3")
    assert samples == ((1.0,), (3.0,))


def test_what_an_endpoint_says_goes_before_stamps() -> None:
    facts = CaseFacts(parts=("one", "other"), group_samples_seconds=((1.0,), (2.0,)))
    assert parts_of(CASE, facts, RESULT) == (facts.parts, facts.group_samples_seconds)


def test_what_measuring_took_apart_goes_before_both() -> None:
    apart = np.array([[[[0.0, 4.0]], [[0.0, 8.0]]]] * 4)
    apart[2, 1, 0, 1] = 10.0
    facts = CaseFacts(parts=("one",), group_samples_seconds=((1.0,),))
    result = replace(RESULT, parts=("active_group", "both"), part_stamps=apart)
    assert parts_of(CASE, facts, result) == (("active_group", "both"), ((2.0,), (5.0,)))


def test_a_group_alone_has_its_ranks_only() -> None:
    alone = replace(CASE, active_group=1)
    assert parts_of(alone, CaseFacts(), RESULT) == ((), ())
    apart = np.array([[[[0.0, 4.0]]], [[[0.0, 9.0]]], [[[0.0, 6.0]]], [[[1.0, 2.0]]]])
    result = replace(RESULT, parts=("collective alone",), part_stamps=apart)
    assert parts_of(alone, CaseFacts(), result) == (("collective alone",), ((3.0,),))


def test_one_row_of_stamps_tells_nothing_of_groups() -> None:
    assert parts_of(CASE, CaseFacts(), replace(RESULT, stamps=STAMPS[:1])) == ((), ())


def test_wrong_elements_are_added_up_where_there_was_something_to_compare() -> None:
    wrong = replace(RESULT, mismatch=Mismatch(1, 3, 0, "1", "2"))
    assert wrong_elements_of(CASE, [RESULT, wrong, wrong]) == 6
    assert wrong_elements_of(replace(CASE, count=0), [RESULT]) is None
    assert wrong_elements_of(replace(CASE, collective="barrier", op="none", count=0), [RESULT]) == 0
