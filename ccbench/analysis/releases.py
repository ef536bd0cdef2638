"""Which releases of a library or a server are slower than the one before, in one run that holds several.

Releases follow each other by their numbers. What is compared was asked alike on devices of one name: launches in a
graph stand beside launches in a graph alone. Printed averages have no spread, so the ratio against the threshold
decides, and two machines of one name may differ by more than two releases do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise
from statistics import median
from typing import Any

from ccbench.cases.measurement import Status
from ccbench.errors import UsageError
from ccbench.flags import Flag
from ccbench.results import Point, Run
from ccbench.results.keys import CURVE, grouped
from ccbench.units import format_change, format_size

THRESHOLD = 0.10
"""Default change of time above which a release is slower, a fraction."""

_BEFORE_A_RELEASE = ("a", "alpha", "b", "beta", "rc", "dev")


@dataclass(frozen=True)
class SlowerRelease:
    """One kernel on one machine. changes: by size, of the time from the release ``before`` to ``after``, minus one.

    sizes: all that both were measured at, ascending; those of ``changes`` are slower.
    """

    machine: str
    kernel: str
    before: str
    after: str
    changes: dict[int, float]
    sizes: tuple[int, ...]

    @property
    def worst(self) -> int:
        """The size whose time grew most."""
        return max(self.changes, key=self.changes.__getitem__)

    @property
    def text(self) -> str:
        """``NVIDIA H200: vllm all_reduce, 8 ranks: vLLM 0.18.0 after vLLM 0.14.1: +38.9% at 64 MiB``."""
        bands = groupby(self.sizes, self.changes.__contains__)
        ends = ([*map(format_size, band)] for slower, band in bands if slower)
        sizes = ", ".join(" to ".join(dict.fromkeys((band[0], band[-1]))) for band in ends)
        return (
            f"{self.machine}: {self.kernel}: {self.after} after {self.before}: "
            f"{format_change(self.changes[self.worst])} at {format_size(self.worst)}"
            + (f"; slower at {sizes}" if len(self.changes) > 1 else "")
        )

    @property
    def document(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {**vars(self), "changes": {str(size): by for size, by in self.changes.items()}}


def release_order(words: str) -> list[tuple[int, int, str]]:
    """Key by which releases sort: 1.3.0rc20 comes after 1.3.0rc5 and before 1.3.0."""
    parts = re.findall(r"\d+|[a-z]+", words.lower().partition("+")[0])
    numbers = (
        (1, int(part), "")
        if part.isdigit()
        else (-1 if part in _BEFORE_A_RELEASE else 1, 0, part)
        for part in parts
    )
    return [*numbers, (0, 0, "")]


def slower_releases(run: Run, threshold: float = THRESHOLD) -> list[SlowerRelease]:
    """Return what took longer by more than ``threshold`` than in the release before, the slowest first.

    Raises UsageError where nothing was measured with two releases.
    """
    timed = [
        point
        for point in run.points
        if point.status is Status.OK
        and point.median_seconds
        and point.backend_version
        # A flag that nobody knows marks figures of a machine that was ill.
        and {*point.flags} <= {*Flag}
    ]
    curves = grouped(timed, lambda point: (point.device_model or point.machine, CURVE(point)))
    steps = [
        step
        for (machine, _), points in curves.items()
        for step in release_steps(machine, points)
    ]
    if not steps:
        raise UsageError(
            f"--by version: {run.path} has no case of two versions; import tables of several together: "
            "ccbench check FILE... -o RUN"
        )
    slower = []
    for machine, kernel, before, after, changes in steps:
        if above := {size: by for size, by in changes.items() if by > threshold}:
            slower.append(SlowerRelease(machine, kernel, before, after, above, tuple(changes)))
    return sorted(slower, key=lambda each: -each.changes[each.worst])


def release_steps(
    machine: str, points: list[Point]
) -> Iterator[tuple[str, str, str, str, dict[int, float]]]:
    """Machine, kernel, a release, the next one, and by size how much longer the latter took; of one curve."""
    releases = grouped(points, lambda point: point.backend_version)
    for before, after in pairwise(sorted(releases, key=release_order)):
        old, new = (
            {
                size: median(point.median_seconds or 0.0 for point in members)
                for size, members in grouped(
                    releases[name], lambda each: each.size_bytes
                ).items()
            }
            for name in (before, after)
        )
        if both := sorted(old.keys() & new.keys()):
            changes = {size: new[size] / old[size] - 1 for size in both}
            yield machine, points[0].name, before, after, changes
