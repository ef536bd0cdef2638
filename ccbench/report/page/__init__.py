"""The page of a report: one HTML file that needs no network, drawn from the same figures as the pictures."""

from __future__ import annotations

from ccbench.report.page.content import PageContent, every_figure, page_content
from ccbench.report.page.rendering import render_page

__all__ = ["PageContent", "every_figure", "page_content", "render_page"]
