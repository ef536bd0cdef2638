"""Wrong data end to end: a real team, a spoilt result, and what the user is told."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ccbench.cases import Status
from tests.faults.conftest import Bench


@pytest.mark.parametrize("kind", ["element", "nan", "swap", "stale"])
def test_a_spoilt_result_is_reported_with_rank_and_element(bench: Bench, kind: str, figure: Any) -> None:
    suite = bench.suite({"collective": "all_gather"}, {"collective": "all_reduce"}, visits=2)
    ended = bench.run(suite, fault=f"{kind}:rank=1:collective=all_gather")
    assert ended.code == 1
    row = ended.row("all_gather")
    assert row["status"] == Status.WRONG.value
    assert re.search(r"^rank 1: \d+ wrong, first at element \d+: \S+ instead of \S+$", row["detail"])
    assert row["wrong_elements"] >= 1
    assert row["median_seconds"] != row["median_seconds"], "a wrong result has no speed"
    assert ended.row("all_reduce")["status"] == Status.OK.value
    assert "wrong" in ended.out
    figure(f"{kind}: {row['detail']}")


def test_wrong_elements_of_all_ranks_are_added_up(bench: Bench) -> None:
    """Every rank that has the fault names itself; here only the one that is asked to."""
    ended = bench.run(bench.suite({"collective": "all_reduce"}), fault="element:rank=0")
    row = ended.row("all_reduce")
    assert (ended.code, row["wrong_elements"]) == (1, 1)
    assert row["detail"].startswith("rank 0: 1 wrong, first at element 512: ")
