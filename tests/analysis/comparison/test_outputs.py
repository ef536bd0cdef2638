"""The same comparison on a screen, as Markdown, JSON and JUnit XML."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from defusedxml import ElementTree  # type: ignore[import-untyped]  # ships no types
from hypothesis import given
from hypothesis import strategies as st

from ccbench.analysis.verdicts import Compared, Comparison, NoVerdict, Settings, Verdict
from ccbench.report.comparison_text import junit, markdown, screen
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


def test_markdown_has_the_verdict_the_changed_points_and_folds_the_rest() -> None:
    lines = markdown(ALL).splitlines()
    assert lines[0].startswith("**❌ ccbench: REGRESSION")
    table = [line for line in lines[: lines.index("<details>")] if line.startswith("| nccl")]
    assert len(table) == 2
    assert "wrong results" in table[0]
    assert "slower" in table[1]
    assert "<summary>3 other points</summary>" in lines
    assert "<summary>1 notes</summary>" in lines


@given(st.text(max_size=40))
def test_any_text_is_well_formed_xml_and_one_line_of_the_screen(text: str) -> None:
    compared = some(
        replace(MISSING, reason=text, point=replace(POINT, algorithm=text)), notes=(text,)
    )
    assert ElementTree.fromstring(junit(compared)).get("errors") == "1"
    for line in screen(compared, 80).splitlines():
        assert line.isprintable()
        assert len(line) <= 80
