"""The page of a history: every step and series is in it, and nothing that a run says becomes markup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.analysis.history import CaseHistory, History, Level, Seen, history_of, run_folders
from ccbench.report import page_history as history
from ccbench.report.page import PageContent, plots_of
from ccbench.report.page_history import history_page
from tests.analysis.history.made import write_history

HOSTILE = "</title></text><script>window.marker = 1</script><img src=x onerror=alert(1)>\"'&"


def made(
    medians: list[float], text: str = "run", levels: tuple[Level, ...] | None = None
) -> CaseHistory:
    seen = tuple(
        Seen(
            text,
            f"2026-01-{1 + n % 28:02d}T05:00:00",
            value,
            value * 0.9,
            value * 1.2,
            text,
            (text,),
        )
        for n, value in enumerate(medians)
    )
    return CaseHistory(text, text, seen, levels or (Level(0, len(seen), medians[0]),), {})


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> list[PageContent]:
    """What pages are made of, instead of pages."""
    found: list[PageContent] = []

    def kept(content: PageContent) -> str:
        found.append(content)
        return ""

    monkeypatch.setattr(history, "render_page", kept)
    return found


def test_steps_marks_and_levels_are_in_the_figure(
    tmp_path: Path, contents: list[PageContent]
) -> None:
    write_history(tmp_path, [1.0] * 7 + [1.25] * 4, {7: {"kernel": "6.8"}})
    history_page(history_of(run_folders([tmp_path])))
    (content,) = contents
    (part,) = content.runs
    plots = plots_of(content)
    assert part.sentences == ("2 steps to slower, 0 to faster.",)
    assert all(
        finding.kind in plots and "kernel 6.1 -> 6.8" in finding.advice
        for finding in part.findings
    )
    for drawn in plots.values():
        assert [one["kind"] for one in drawn["series"]] == [
            "measured",
            "reference",
            "reference",
        ]
        ((x, label),) = drawn["marks"]
        assert x == 7.5
        assert label.endswith("slower")
        assert drawn["y"]["range"][0] <= min(drawn["series"][0]["low"])
    assert content.table["rows"] == 11 * len(plots)


def test_no_text_of_a_run_becomes_markup() -> None:
    one = made([1.0, 2.0], HOSTILE, (Level(0, 1, 1.0), Level(1, 2, 2.0)))
    page = history_page(History(2, (replace(one, moved={1: (HOSTILE,)}),), (HOSTILE,)), HOSTILE)
    assert "default-src 'none'" in page.replace("&#39;", "'")
    assert "window.marker = 1</script>" not in page
    assert "<img src=x" not in page


def test_more_series_than_a_page_bears_are_counted_not_drawn(
    contents: list[PageContent],
) -> None:
    history_page(
        History(6, tuple(made([1.0] * 6) for _ in range(history.MOST_PICTURES + 3)), ())
    )
    (content,) = contents
    assert len(plots_of(content)) == history.MOST_PICTURES
    assert "3 more series" in content.sections[0].text


def test_an_empty_history_is_still_a_page() -> None:
    page = history_page(History(0, (), ()))
    assert "CANNOT SAY: 0 runs, 6 needed of the same case" in page
    assert "needs a look" not in page
