"""The same comparison on a screen, as Markdown, JSON and JUnit XML."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from defusedxml import ElementTree  # type: ignore[import-untyped]  # ships no types
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.verdicts import Compared, Comparison, NoVerdict, Settings, Verdict
from ccbench.report.comparison_text import document, junit, markdown, screen
from ccbench.results import Point

POINT = Point("s", "nccl", "all_reduce", "ring", "float32", "sum", 2**20, 2**18, 8)

SLOWER = Comparison(
    POINT, Verdict.SLOWER, 0.05, None, "", 1e-4, 1.2e-4, 1.2, 1.15, 1.25, 0.001, 0.002, 6, 6
)
SAME = replace(
    SLOWER,
    point=replace(POINT, size_bytes=8),
    verdict=Verdict.SAME,
    ratio=1.0,
    low=0.99,
    high=1.01,
)
WIDE = replace(
    SLOWER,
    point=replace(POINT, size_bytes=16),
    verdict=Verdict.NONE,
    cause=NoVerdict.TOO_WIDE,
    reason="between",
)
MISSING = Comparison(
    replace(POINT, size_bytes=32), Verdict.NONE, 0.05, NoVerdict.MISSING_IN_NEW, "no such point"
)
WRONG = Comparison(
    replace(POINT, size_bytes=64),
    Verdict.NONE,
    0.05,
    NoVerdict.WRONG,
    "new gave wrong results",
    wrong=True,
)

ALL = Compared(
    "base",
    "new",
    Settings(),
    (SLOWER, SAME, WIDE, MISSING, WRONG),
    ("driver: 1 in base, 2 in new",),
)


def some(*points: Comparison, **changes: Any) -> Compared:
    return replace(ALL, points=points, **changes)


def test_the_screen_shows_every_kind_of_point_within_80_columns() -> None:
    text = screen(ALL, 80)
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "Wrong results: 1",
        "Slower: 1",
        "Same: 1",
        "+20.0%",
        "[+15.0%, +25.0%]",
        "1 MiB",
        "driver",
    ):
        assert words in text
    assert "No verdict, interval too wide: 1" in text
    assert "No verdict, missing in new: 1" in text
    assert text.splitlines()[-1].startswith(("REGRESSION", "  "))


def test_the_screen_says_once_what_verdicts_rest_on() -> None:
    alike = [replace(point, reason="printed averages") for point in (SLOWER, SAME)]
    assert screen(some(*alike), 80).count("2 x printed averages") == 1


def test_json_has_every_field_of_every_point() -> None:
    parsed = json.loads(json.dumps(document(ALL), allow_nan=False))
    assert parsed["exit_code"] == 1
    assert parsed["counts"] == {"faster": 0, "slower": 1, "same": 1, "no verdict": 3}
    assert parsed["causes"] == {"interval too wide": 1, "missing in new": 1, "wrong results": 1}
    slower = parsed["points"][0]
    assert (slower["collective"], slower["size_bytes"], slower["verdict"]) == (
        "all_reduce",
        2**20,
        "slower",
    )
    assert (slower["ratio"], slower["low"], slower["high"], slower["cause"]) == (
        1.2,
        1.15,
        1.25,
        None,
    )
    assert parsed["points"][3]["ratio"] is None


def test_junit_fails_what_is_slower_or_wrong_and_errs_where_there_is_no_verdict() -> None:
    suite = ElementTree.fromstring(junit(ALL))
    assert suite.attrib == {
        "name": "ccbench compare",
        "tests": "5",
        "failures": "2",
        "errors": "2",
        "skipped": "0",
    }
    kinds = [[child.tag for child in case] for case in suite.iter("testcase")]
    assert kinds == [["failure"], [], ["error"], ["error"], ["failure"]]
    assert "+20.0%" in suite[0][0].get("message")


def test_junit_skips_a_wide_interval_only_where_the_comparison_as_a_whole_is_fine() -> None:
    let_pass = some(SAME, WIDE, settings=Settings(undecided=0.5))
    assert let_pass.exit_code == 0
    suite = ElementTree.fromstring(junit(let_pass))
    assert (suite.get("errors"), suite.get("skipped")) == ("0", "1")


def test_junit_of_nothing_is_an_error() -> None:
    suite = ElementTree.fromstring(junit(some()))
    assert (suite.get("tests"), suite.get("errors")) == ("1", "1")


def test_markdown_has_the_verdict_the_changed_points_and_folds_the_rest() -> None:
    lines = markdown(ALL).splitlines()
    assert lines[0].startswith("**❌ ccbench: REGRESSION")
    table = [line for line in lines[: lines.index("<details>")] if line.startswith("| nccl")]
    assert len(table) == 2
    assert "wrong results" in table[0]
    assert "slower" in table[1]
    assert "<summary>3 other points</summary>" in lines
    assert "<summary>1 notes</summary>" in lines


def test_markdown_stays_below_what_a_comment_holds() -> None:
    many = [
        replace(WIDE, reason="x" * 500, point=replace(POINT, size_bytes=n, groups="y" * 500))
        for n in range(2000)
    ]
    text = markdown(
        some(*[replace(point, verdict=Verdict.SLOWER) for point in many[:999]], *many[999:])
    )
    assert len(text) < 120_000
    assert "and 949 more" in text


@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_hostile_name_executes_nothing_in_markdown(verdict: Verdict) -> None:
    hostile = replace(
        POINT, algorithm="<script>alert(1)</script>|`x`@user#1[a](http://b)\n# heading"
    )
    text = markdown(some(replace(SLOWER, point=hostile, verdict=verdict)))
    assert "<script>" not in text
    assert "@user" not in text
    assert "[a](" not in text
    rows = [line for line in text.splitlines() if "alert" in line]
    assert len(rows) == 1
    assert rows[0].replace("\\|", "").count("|") == 8


@given(st.text(max_size=40))
def test_any_text_is_well_formed_xml_and_one_line_of_the_screen(text: str) -> None:
    compared = some(
        replace(MISSING, reason=text, point=replace(POINT, algorithm=text)), notes=(text,)
    )
    assert ElementTree.fromstring(junit(compared)).get("errors") == "1"
    for line in screen(compared, 80).splitlines():
        assert line.isprintable()
        assert len(line) <= 80
