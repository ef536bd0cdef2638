"""How long the page of a large run takes to make, and how much memory: ``python benchmarks/report.py``.

Makes a run of 10,000 points with 100 samples of 8 ranks each in a temporary folder (once; ``--keep`` names a
folder that is used again), then measures ``ccbench report`` in a process of its own.
Exit code 1 where a target is missed: 60 seconds, 2 GiB of memory.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.collectives import COLLECTIVES
from ccbench.model import Prediction
from ccbench.results import RunFolder

MOST_SECONDS = 60.0
MOST_BYTES = 2 * 1024**3
RANKS = 8
SAMPLES = 100

NAMES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
DTYPES = ("float32", "float16", "bfloat16", "float64")
ALGORITHMS = ("ring", "tree", "direct", "halving_doubling", "recursive_doubling")


def synthetic_cases(points: int) -> list[Case]:
    """``points`` different cases: collectives, types, algorithms, protocols and modes over sizes."""
    found = []
    for number in range(points):
        rest, power = divmod(number, 25)
        rest, name = divmod(rest, len(NAMES))
        rest, algorithm = divmod(rest, len(ALGORITHMS))
        rest, dtype = divmod(rest, len(DTYPES))
        row = COLLECTIVES[NAMES[name]]
        size_bytes = 2 ** (10 + power)
        case = Case(
            "synthetic",
            "cpu",
            row.name,
            ALGORITHMS[algorithm],
            DTYPES[dtype],
            "sum" if row.reduces else "none",
            size_bytes,
            row.count_for(size_bytes, RANKS, 4),
            RANKS,
            root=0 if row.rooted else -1,
            channels=rest,
        )
        found.append(case)
    return found


def write_synthetic(folder: Path, points: int) -> None:
    """A run of ``points`` cases, ``SAMPLES`` samples each, alpha-beta times with noise."""
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


def measured_report(folder: Path) -> tuple[float, float, int, int]:
    """Of ``ccbench report`` on ``folder``: seconds, seconds of processors, bytes of memory, of the page."""
    page = folder.parent / f"{folder.name}.html"
    start = time.monotonic()
    with tempfile.TemporaryFile() as output:
        command = [sys.executable, "-m", "ccbench", "report", str(folder), "-o", str(page)]
        subprocess.run(command, check=True, stdout=output)
    seconds = time.monotonic() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss, page.stat().st_size


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, and say whether the targets were met."""
    parser = argparse.ArgumentParser(description="Time and memory of the page of a large run.")
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument(
        "--keep", type=Path, help="folder of the synthetic run, made when it is not there"
    )
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        folder = chosen.keep or Path(scratch) / "run"
        if not folder.exists():
            write_synthetic(folder, chosen.points)
        seconds, cpu_seconds, most_bytes, page_bytes = measured_report(folder)
    print(
        f"{chosen.points} points, {chosen.points * SAMPLES} samples of {RANKS} ranks: {seconds:.1f} s "
        f"({cpu_seconds:.1f} s of processors), "
        f"{most_bytes / 2**20:.0f} MiB of memory, page of {page_bytes / 1e6:.1f} MB"
    )
    return int(seconds > MOST_SECONDS or most_bytes > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
