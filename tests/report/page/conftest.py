"""Pages of runs that look like real ones."""

from __future__ import annotations

from ccbench.report.page import page_content, render_page
from ccbench.report.wording import points_of
from ccbench.results import Run


def page_of(run: Run, baseline: Run | None = None) -> str:
    """The page of one run; whatever cannot be drawn is raised."""
    from ccbench.report.baselines import comparable_points

    own = points_of(run)
    behind = () if baseline is None else comparable_points(own, baseline)
    return render_page(page_content([run], [own], behind, baseline))
