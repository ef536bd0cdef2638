"""Sets of intervals of time, each an array [n, 2] of starts and ends."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ccbench.readers.traces.events import Intervals


def merged(intervals: Iterable[tuple[float, float]] | Intervals) -> Intervals:
    """Return ``intervals`` sorted by start, those that overlap or touch as one."""
    pairs = intervals if isinstance(intervals, np.ndarray) else list(intervals)
    rows = np.asarray(pairs, float).reshape(-1, 2)
    if not len(rows):
        return rows
    rows = rows[np.argsort(rows[:, 0], kind="stable")]
    ends = np.maximum.accumulate(rows[:, 1])
    first = np.concatenate(([True], rows[1:, 0] > ends[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.column_stack((rows[first, 0], ends[last]))


def without(intervals: Intervals, taken: Intervals) -> Intervals:
    """Return the parts of ``intervals`` that are in none of ``taken``; both are merged."""
    times = np.concatenate((intervals.T.ravel(), taken.T.ravel()))
    steps = np.repeat([1, -1, -2, 2], [len(intervals)] * 2 + [len(taken)] * 2)
    order = np.argsort(times, kind="stable")
    times, inside = times[order], np.cumsum(steps[order]) == 1
    kept = inside[:-1] & (np.diff(times) > 0)
    return np.column_stack((times[:-1][kept], times[1:][kept]))


def common(intervals: Intervals, windows: Intervals) -> Intervals:
    """Return the parts of ``intervals`` that are in one of ``windows``, merged."""
    starts = np.maximum(intervals[:, None, 0], windows[None, :, 0]).ravel()
    ends = np.minimum(intervals[:, None, 1], windows[None, :, 1]).ravel()
    return merged(np.column_stack((starts, ends))[ends > starts])
