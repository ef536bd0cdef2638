"""The page of a comparison: the verdict first, what changed linked to its figure, every point in the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccbench.analysis.comparison import compare
from ccbench.analysis.verdicts import Compared, Settings, Verdict
from ccbench.report.page_comparison import comparison_page
from ccbench.results import open_run
from tests.cli.test_compare import write


def compared_runs(base: Path, new: Path) -> Compared:
    old, newer = (open_run(str(run), details=False) for run in (base, new))
    return compare(old, newer, Settings())


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    base = write(tmp_path / "base", [1e-5] * 4)
    new = write(tmp_path / "new", [2e-5, 0.5e-5, 1e-5, 1e-5])
    return compared_runs(base, new)


def test_the_verdict_stands_first_and_what_is_slower_before_what_is_faster(
    compared: Compared,
) -> None:
    page = comparison_page(compared)
    (first,) = re.findall(r'<p class="headline">([^<]*)</p>', page)
    assert first == compared.sentence
    assert first.startswith("REGRESSION: 1 faster, 1 slower")
    titles = re.findall(r'<span class="severity">(\w+)</span> ([^<]*)</summary>', page)
    (slower,), (faster,) = compared.of(Verdict.SLOWER), compared.of(Verdict.FASTER)
    assert [severity for severity, _ in titles][:2] == ["problem", "note"]
    assert titles[0][1].endswith(slower.point.label)
    assert titles[1][1].endswith(faster.point.label)
    assert '<a href="#figure-1">Its figure</a>' in page


def test_every_point_is_in_the_table_and_the_ratios_in_a_figure(compared: Compared) -> None:
    page = comparison_page(compared)
    cases = page[page.index('<section id="cases">') :]
    assert cases.count("<tr>") == 1 + len(compared.points)
    assert page.count('class="figure"') == 1


def test_runs_that_share_nothing_make_a_page_without_figures(tmp_path: Path) -> None:
    empty, run = write(tmp_path / "empty", []), write(tmp_path / "run", [1e-5])
    page = comparison_page(compared_runs(empty, run))
    assert 'class="figure"' not in page
    assert "NO VERDICT" in page
    assert "no verdict on 1 point: missing in base" in page
