"""From two runs, a run and the model, or a run and published figures to verdicts that can be trusted."""

from __future__ import annotations

from ccbench.analysis.comparison.judging import compare, compare_with_model
from ccbench.analysis.comparison.points import Cause, Compared, Comparison, Settings, Verdict
from ccbench.analysis.comparison.self_check import SelfCheck, check_self
from ccbench.analysis.comparison.text import (
    document,
    junit,
    markdown,
    screen,
    self_check_document,
    self_check_screen,
)
from ccbench.analysis.comparison.thresholds import Rule, Thresholds, load_thresholds

__all__ = [
    "Cause",
    "Compared",
    "Comparison",
    "Rule",
    "SelfCheck",
    "Settings",
    "Thresholds",
    "Verdict",
    "check_self",
    "compare",
    "compare_with_model",
    "document",
    "junit",
    "load_thresholds",
    "markdown",
    "screen",
    "self_check_document",
    "self_check_screen",
]
