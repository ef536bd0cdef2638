"""Pages of runs that look like real ones."""

from __future__ import annotations

from ccbench.report.figures import every_figure
from ccbench.report.page import page_text
from ccbench.report.wording import points_of
from ccbench.results import Run


def page_of(run: Run, baseline: Run | None = None) -> str:
    """The page of one run; whatever cannot be drawn is raised."""
    from ccbench.report.baselines import comparable_points

    own = points_of(run)
    behind = () if baseline is None else comparable_points(own, baseline)
    figures = every_figure([run], [own], behind, None)
    return page_text([run], [own], figures, behind, baseline)
