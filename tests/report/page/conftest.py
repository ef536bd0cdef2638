"""One browser for all tests of the page, and pages of runs that look like real ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ccbench.report.page import page_content, render_page
from ccbench.report.wording import points_of
from ccbench.results import Run
from tests.report.page.chromium import Browser, chromium, opened


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("no Chromium here (apt install chromium)")
    with opened() as one:
        yield one


@pytest.fixture(autouse=True)
def _no_complaint_is_left_over(request: pytest.FixtureRequest) -> None:
    if "browser" in request.fixturenames:
        one = request.getfixturevalue("browser")
        one.complaints.clear()
        one.requests.clear()


def page_of(run: Run, baseline: Run | None = None) -> str:
    """The page of one run; whatever cannot be drawn is raised."""
    from ccbench.report.baselines import comparable_points

    own = points_of(run)
    behind = () if baseline is None else comparable_points(own, baseline)
    return render_page(page_content([run], [own], behind, baseline))


def write_page(folder: Path, run: Run, baseline: Run | None = None) -> Path:
    file = folder / "page.html"
    file.write_text(page_of(run, baseline), encoding="utf-8")
    return file
