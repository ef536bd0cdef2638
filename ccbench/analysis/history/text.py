"""A history as lines for a screen and as a JSON document."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from ccbench.analysis.history.series import Change, History, Series
from ccbench.analysis.history.steps import FEWEST_VALUES
from ccbench.units import format_change, format_seconds, plain, plural

DOCUMENT_VERSION = 1
"""Of the JSON document; it changes when a key is dropped or means another thing."""

MOST_LINES = 20
"""Steps that the screen shows; the page and the JSON have all."""


def history_lines(history: History) -> list[str]:
    """The newest steps, each with its size, when, and what changed on the machine with it."""
    lines = []
    for change in history.changes[:MOST_LINES]:
        lines.append(f"{when(change.created_at)}  {change_text(change)}  {change.series}")
        lines.append(
            f"    {change.machine}; run {change.run}, {plural(change.runs_after, 'run')} on the new level"
        )
        lines += [f"    {line}" for line in change.environment] or ["    nothing that was recorded changed"]
    if len(history.changes) > MOST_LINES:
        lines.append(f"and {len(history.changes) - MOST_LINES} older steps")
    lines.append(_summary(history))
    return lines


def _summary(history: History) -> str:
    steps = len(history.changes)
    words = f"{plural(history.runs, 'run')}, {len(history.series)} series, {plural(steps, 'step')}"
    if not history.long_enough:
        words += f"; a step needs at least {FEWEST_VALUES} runs of the same case on the same machine"
    return words


def change_text(change: Change) -> str:
    """``+12.3% slower (1.00 ms -> 1.12 ms)``."""
    word = "slower" if change.change > 0 else "faster"
    times = f"{format_seconds(change.before_seconds)} -> {format_seconds(change.after_seconds)}"
    return f"{format_change(change.change)} {word} ({times})"


def when(created_at: str) -> str:
    """Date and minute of an ISO time; printable whatever it holds."""
    return plain(created_at)[:16].replace("T", " ") or "time not known"


def history_document(history: History) -> dict[str, Any]:
    """``history`` as JSON: times in seconds, changes as fractions of the time before."""
    return {
        "version": DOCUMENT_VERSION,
        "runs": history.runs,
        "steps": [asdict(change) for change in history.changes],
        "series": [_series(one) for one in history.series],
        "problems": list(history.problems),
    }


def _series(one: Series) -> dict[str, Any]:
    return {
        "label": one.label,
        "machine": one.machine,
        "runs": [
            {
                "run": seen.run,
                "created_at": seen.created_at,
                "median_seconds": seen.median_seconds,
                "low_seconds": seen.low_seconds,
                "high_seconds": seen.high_seconds,
                "flags": list(seen.doubts),
                "environment_changes": list(one.moved.get(index, ())),
            }
            for index, seen in enumerate(one.seen)
        ],
        "levels": [
            {"first_run": level.start, "last_run": level.end - 1, "median_seconds": level.median}
            for level in one.levels
        ],
    }
