"""The same point over many runs: where its level changed, and what changed on the machine with it."""

from __future__ import annotations

from ccbench.analysis.history.series import (
    Change,
    History,
    Seen,
    Series,
    history_of,
    run_folders,
)
from ccbench.analysis.history.steps import Level, Step, find_levels, find_steps
from ccbench.analysis.history.text import history_document, history_lines

__all__ = [
    "Change",
    "History",
    "Level",
    "Seen",
    "Series",
    "Step",
    "find_levels",
    "find_steps",
    "history_document",
    "history_lines",
    "history_of",
    "run_folders",
]
