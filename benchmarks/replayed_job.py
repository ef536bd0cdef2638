"""How much of a real job's transfer ``ccbench replay`` explains by what its collectives take alone.

    python benchmarks/replayed_job.py [--runs N] [--ranks N] [--steps N] [--layers N] [--features N]

Each run records a training job of torch and Gloo on this host (tests/traced_job/job.py) and replays it.
Prints the medians of the runs, with their intervals: isolated times of a step over the job's transfer
(communication without waiting), and the share of the transfer that is longer than alone with nothing running
beside it. By hand, never in CI: needs torch, and a machine on which nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

import numpy as np

from ccbench.stats import median_interval
from ccbench.units import format_seconds
from tests.traced_job.job import Job, started

PARTS = ("waiting", "competing", "slower", "wire")


def replayed(job: Job, folder: Path) -> dict[str, Any]:
    """Run the job and return what ``ccbench replay --json`` says of it."""
    files = started(job, folder)
    command = [sys.executable, "-m", "ccbench", "replay", *files.kineto, *files.flight_recorder]
    command += ["--backend", "gloo", "--ranks", str(job.ranks), "--quiet", "--json"]
    done = subprocess.run(
        list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print a line a run, then the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--layers", type=int, default=4, help="1: nothing runs beside a collective"
    )
    parser.add_argument(
        "--features", type=int, default=512, help="2048: messages of 4 to 16 MiB"
    )
    options = parser.parse_args()
    job = Job(
        ranks=options.ranks,
        steps=options.steps,
        layers=options.layers,
        features=options.features,
    )
    ratios, unexplained = [], []
    for _ in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            document = replayed(job, Path(folder))
        parts = {name: document["step"][f"{name}_seconds"] for name in PARTS}
        alone = next(
            row["transfer_seconds"] for row in document["what_if"] if "alone" in row["what"]
        )
        transfer = sum(parts.values()) - parts["waiting"]
        ratios.append(alone / transfer)
        unexplained.append(parts["slower"] / transfer)
        told = ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in parts.items())
        print(f"a step: {told}; all alone {format_seconds(alone)}", flush=True)
    for name, values in (("alone / transfer", ratios), ("slower / transfer", unexplained)):
        found = median_interval(np.array(values))
        print(
            f"{name}: {found.median:.2f} ({found.low:.2f} to {found.high:.2f}, {len(values)} runs)"
        )


if __name__ == "__main__":
    main()
