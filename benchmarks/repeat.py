"""The same suite twice in a row (A=A): do the intervals overlap, and what does the harness itself cost?

    python benchmarks/repeat.py [SUITE] [--ranks N]

Prints how many points have overlapping intervals of the median, the ratios of the medians, and the share of
the wall time that was spent outside warm-up and measured launches. By hand, never in CI.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

from ccbench.results import load_run
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import progress_for
from ccbench.runner.run import run_suite
from ccbench.suite.model import load_suite

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Timed:
    """A run's cases and how long the whole run took."""

    cases: Rows
    wall_seconds: float

    @property
    def outside_share(self) -> float:
        """Share of the wall time outside launches, interpreter, imports and report not counted."""
        return (
            1 - sum(row["launching_seconds"] or 0.0 for row in self.cases) / self.wall_seconds
        )


def run_once(suite: str, ranks: int | None, folder: Path) -> Timed:
    """Run ``suite`` into ``folder``."""
    began = time.monotonic()
    run_suite(
        load_suite(suite), RunOptions(output=folder, ranks=ranks), progress_for(sys.stderr)
    )
    wall_seconds = time.monotonic() - began
    return Timed(load_run(folder).table.to_pylist(), wall_seconds)


def comparison(first: Rows, second: Rows) -> list[str]:
    """Lines about the points that both runs have."""
    again = {row["case_id"]: row for row in second if row["status"] == "ok"}
    both = [
        (row, again[row["case_id"]])
        for row in first
        if row["status"] == "ok" and row["case_id"] in again
    ]
    if not both:
        return ["no point was measured in both runs"]
    apart = [
        (one, other)
        for one, other in both
        if one["low_seconds"] > other["high_seconds"]
        or other["low_seconds"] > one["high_seconds"]
    ]
    ratios = [other["median_seconds"] / one["median_seconds"] for one, other in both]
    low, middle, high = np.quantile(ratios, [0.05, 0.5, 0.95])
    overlapping = len(both) - len(apart)
    return [
        f"{overlapping} of {len(both)} intervals overlap ({overlapping / len(both):.1%})",
        f"ratio of medians, second to first: {low:.3f} / {middle:.3f} / {high:.3f} (5 % / median / 95 %)",
        *(
            f"  apart: {one['collective']} {one['size_bytes']} B: "
            f"{one['low_seconds']:.3g}..{one['high_seconds']:.3g} s, then "
            f"{other['low_seconds']:.3g}..{other['high_seconds']:.3g} s ({one['case_id']})"
            for one, other in apart
        ),
    ]


def main() -> None:
    """Run twice, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", nargs="?", default="quick")
    parser.add_argument("--ranks", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            run_once(options.suite, options.ranks, Path(folder) / name)
            for name in ("first", "second")
        ]
    for line in comparison(runs[0].cases, runs[1].cases):
        print(line)
    for name, run in zip(("first", "second"), runs, strict=True):
        shares = [
            row["other_cpu_share"] for row in run.cases if row["other_cpu_share"] is not None
        ]
        load = statistics.median(shares or [math.nan])
        print(
            f"{name} run: {run.wall_seconds:.1f} s, {run.outside_share:.0%} outside launches, "
            f"other programs took {load:.0%} of the processors (median)"
        )


if __name__ == "__main__":
    main()
