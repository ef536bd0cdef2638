"""How long a comparison of two large runs takes, and how much memory.

    python benchmarks/compare.py [--points 10000] [--samples 100]

Makes two runs of so many points in a temporary folder (minutes: a file a case) and compares them twice, each
time in a process of its own: the first reads a file a case and leaves one file of all beside them, the second
reads that. By hand, never in CI.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

import numpy as np

from ccbench.cases.axes import Case
from ccbench.cases.measurement import Measurement, Status
from ccbench.results.files import CASES_NAME, MANIFEST_NAME, as_parquet
from ccbench.results.schema import SCHEMA_VERSION, row_of

VISITS = 6
RANKS = 2


def write(path: Path, points: int, samples: int, seed: int) -> None:
    """A run folder of made-up cases, without the syncing of a real one."""
    random = np.random.default_rng(seed)
    (path / CASES_NAME).mkdir(parents=True)
    (path / MANIFEST_NAME).write_text(f'{{"schema_version": {SCHEMA_VERSION}}}')
    template = Case("large", "cpu", "all_reduce", "ring", "float32", "sum", 4, 1, RANKS)
    lengths = [len(part) for part in np.array_split(np.arange(samples), VISITS)]
    for place in range(points):
        case = replace(template, size_bytes=4 * (place + 1), count=place + 1)
        seconds = 1e-5 * np.exp(random.normal(0, 0.01) + random.gamma(2, 0.02, samples))
        measurement = Measurement(
            case,
            Status.OK,
            backend_version="numpy",
            samples_seconds=tuple(seconds.tolist()),
            rank_samples_seconds=(tuple(seconds.tolist()),) * RANKS,
            round_samples=tuple(lengths),
            wrong_elements=0,
            stop_reason="budget spent",
        )
        row = row_of(measurement, None, 0.95)
        (path / CASES_NAME / f"{case.case_id}.parquet").write_bytes(as_parquet(row))


def main() -> None:
    """Make two runs, compare them, print seconds and megabytes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=10_000)
    parser.add_argument("--samples", type=int, default=100)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder, name) for name in ("base", "new")]
        for seed, path in enumerate(runs):
            write(path, options.points, options.samples, seed)
        command = [sys.executable, "-m", "ccbench", "compare", *map(str, runs)]
        print(f"{options.points} points, {options.points * options.samples} samples a run")
        for reading in ("first", "second"):
            began = time.perf_counter()
            ended = subprocess.run(
                command, capture_output=True, text=True, cwd=Path(__file__).parents[1]
            )
            seconds = time.perf_counter() - began
            used = resource.getrusage(resource.RUSAGE_CHILDREN)
            print(
                f"{reading} reading: {seconds:.1f} s, at most {used.ru_maxrss / 1024:.0f} MiB until now"
            )
    print(ended.stdout.splitlines()[-1] if ended.stdout else ended.stderr)


if __name__ == "__main__":
    main()
