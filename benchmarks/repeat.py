"""The same suite twice in a row (A=A): do the intervals overlap, and what does the harness itself cost?

    python benchmarks/repeat.py [SUITE] [--ranks N]

Prints how many points have overlapping intervals of the median, the ratios of the medians, and the share of
the wall time that was spent outside warm-up and measured launches. By hand, never in CI.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that a checkout runs uninstalled

from ccbench.results import load_run
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import progress_for
from ccbench.runner.run import run_suite
from ccbench.suite.model import load_suite

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Timed:
    """A run's cases and how long the whole run took."""

    cases: pd.DataFrame
    wall_seconds: float

    @property
    def outside_share(self) -> float:
        """Share of the wall time outside launches, interpreter, imports and report not counted."""
        return 1 - float(self.cases["launching_seconds"].sum()) / self.wall_seconds


def run_once(suite: str, ranks: int | None, folder: Path) -> Timed:
    """Run ``suite`` into ``folder``."""
    began = time.monotonic()
    run_suite(load_suite(suite), RunOptions(output=folder, ranks=ranks), progress_for(sys.stderr))
    wall_seconds = time.monotonic() - began
    return Timed(load_run(folder).cases.set_index("case_id"), wall_seconds)


def comparison(first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    """Lines about the points that both runs have."""
    again = second[second["status"] == "ok"].add_suffix("_again")
    both = first[first["status"] == "ok"].join(again, how="inner")
    overlap = (both["low_seconds"] <= both["high_seconds_again"]) & (
        both["low_seconds_again"] <= both["high_seconds"]
    )
    ratios = both["median_seconds_again"] / both["median_seconds"]
    low, middle, high = ratios.quantile([0.05, 0.5, 0.95])
    lines = [
        f"{int(overlap.sum())} of {len(both)} intervals overlap ({overlap.mean():.1%})",
        f"ratio of medians, second to first: {low:.3f} / {middle:.3f} / {high:.3f} (5 % / median / 95 %)",
    ]
    for case_id, row in both[~overlap].iterrows():
        lines.append(
            f"  apart: {row['collective']} {row['size_bytes']} B: "
            f"{row['low_seconds']:.3g}..{row['high_seconds']:.3g} s, then "
            f"{row['low_seconds_again']:.3g}..{row['high_seconds_again']:.3g} s ({case_id})"
        )
    return lines


def main() -> None:
    """Run twice, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("suite", nargs="?", default="quick")
    parser.add_argument("--ranks", type=int)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [run_once(options.suite, options.ranks, Path(folder) / name) for name in ("first", "second")]
    for line in comparison(runs[0].cases, runs[1].cases):
        print(line)
    for name, run in zip(("first", "second"), runs, strict=True):
        load = run.cases["other_cpu_share"].median()
        print(
            f"{name} run: {run.wall_seconds:.1f} s, {run.outside_share:.0%} outside launches, "
            f"other programs took {load:.0%} of the processors (median)"
        )


if __name__ == "__main__":
    main()
