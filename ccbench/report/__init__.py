"""Reports: figures as data, then files; tables for the screen, Markdown, CSV and nccl-tests' format."""

from __future__ import annotations

from ccbench.report.case_table import screen_table
from ccbench.report.verdict import verdict_lines
from ccbench.report.writing import DEFAULT_FORMATS, FORMATS, ReportIncomplete, write_report

__all__ = ["DEFAULT_FORMATS", "FORMATS", "ReportIncomplete", "screen_table", "verdict_lines", "write_report"]
