"""How long the page of a large run takes to make, and how much memory: ``python benchmarks/report.py [POINTS]``.

Makes a run of 10,000 points with 100 samples of 8 ranks each in a temporary folder, then measures ``ccbench report``
in a process of its own. Wanted are at most 60 seconds and 2 GiB.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import numpy as np

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.model import Prediction
from ccbench.results import RunFolder

RANKS = 8
SAMPLES = 100
MOST_CHANNELS = 64

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
DTYPES = ("float32", "float16", "bfloat16", "float64")
ALGORITHMS = ("ring", "tree", "direct", "halving_doubling", "recursive_doubling")


def synthetic_cases(points: int) -> Iterator[Case]:
    """``points`` different cases: collectives, types, algorithms and numbers of channels over sizes."""
    axes = product(range(MOST_CHANNELS), DTYPES, ALGORITHMS, NAMES, range(10, 35))
    for channels, dtype, algorithm, name, power in islice(axes, points):
        row = COLLECTIVES[name]
        yield Case(
            "synthetic",
            "cpu",
            name,
            algorithm,
            dtype,
            "sum" if row.reduces else "none",
            2**power,
            row.count_for(2**power, RANKS, 4),
            RANKS,
            root=0 if row.rooted else -1,
            channels=channels,
        )


def write_synthetic(folder: Path, points: int) -> None:
    """A run of ``points`` cases, ``SAMPLES`` samples each, times of Hockney's a + b n with noise."""
    random = np.random.default_rng(5)
    manifest = {"suite": {"name": "synthetic"}, "environment": {"host": {"name": "none"}}}
    with RunFolder.create(folder, manifest) as run:
        for case in synthetic_cases(points):
            middle = 4e-6 + case.size_bytes / 5e9
            ranks = middle * (1 + random.gamma(2.0, 0.02, size=(RANKS, SAMPLES)))
            run.write(
                Measurement(
                    case,
                    Status.OK,
                    launches_per_sample=4,
                    samples_seconds=tuple(ranks.max(axis=0).tolist()),
                    rank_samples_seconds=tuple(tuple(row) for row in ranks.tolist()),
                    round_samples=(SAMPLES // 5,) * 5,
                    wrong_elements=0,
                    stop_reason="budget",
                ),
                Prediction(0.7 * middle, 0.95 * middle, 4e-6, 0.95 * middle - 4e-6, "memory"),
            )


def measured_report(folder: Path) -> tuple[float, float, float, int]:
    """Of ``ccbench report`` on ``folder``: seconds, seconds of processors, MiB of memory, bytes of the page."""
    page = folder.parent / f"{folder.name}.html"
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "ccbench", "report", str(folder), "-o", str(page)]
        subprocess.run(command, check=True, stdout=output)
    seconds = time.monotonic() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, page.stat().st_size


def main(points: int) -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        write_synthetic(folder, points)
        seconds, cpu_seconds, mebibytes, page_bytes = measured_report(folder)
    print(
        f"{points} points, {SAMPLES} samples of {RANKS} ranks each: {seconds:.1f} s "
        f"({cpu_seconds:.1f} s of processors), "
        f"{mebibytes:.0f} MiB of memory, page of {page_bytes / 1e6:.1f} MB"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 10_000)
