"""ccbench's own kernels on one GPU, all ranks on it, against what its memory allows; by hand, never in CI.

    python benchmarks/gpu.py -o results/gpu-loopback

One run: how fast the GPU copies, then all_reduce by ring, tree, one-shot, two-shot, low-latency packets and
the interpreter of schedules over 2, 4 and 8 ranks, back to back and in CUDA graphs, in rounds over all cases,
then the copy once more. Prints a table and verdicts, and leaves OUTPUT/run (a run folder with its report:
`ccbench report` draws it) and OUTPUT/figures.json. No link is measured: ranks share the GPU.
Exit codes: 0 all targets met, 1 one missed or a wrong result, 2 usage or no driver, 3 something could not be
judged, 130/143 by signal.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

from benchmarks import gpu_figures as figures
from ccbench.analysis.findings import LEFT_OUT
from ccbench.backends import open_backend
from ccbench.cases.measurement import Status
from ccbench.errors import BackendUnavailable, CcbenchError
from ccbench.report.wording import points_of
from ccbench.report.writing import write_report
from ccbench.results import Point, load_run
from ccbench.results.files import write_atomically
from ccbench.runner.planning import RunOptions
from ccbench.runner.progress import progress_for
from ccbench.runner.run import run_suite
from ccbench.stats import median_interval
from ccbench.suite.model import Suite, read_suite
from ccbench.suite.readers import parse_sizes
from ccbench.units import format_size

COPY_PROGRAM = Path(__file__).resolve().with_name("gpu_copy.py")
EMULATED = "cuda-host"
SIZES = "8 B,64 B,512 B,4 KiB,32 KiB,256 KiB,2 MiB,16 MiB,64 MiB,256 MiB"

UP_TO = {"mesh_one_shot": 16 << 20, "mesh_pull": 16 << 20, "ll": 256 << 10}
"""Algorithms for small sizes are measured up to here: above, they move many times the bytes."""

ALGORITHMS = ("ring", "tree", "mesh_two_shot", figures.INTERPRETED, *UP_TO)
SAMPLING = {
    "minimum_samples": 6,
    "maximum_samples": 60,
    "warmup": "6 ms",
    "time_limit": "120 s",
}
COPY_SECONDS = 0.5
COPY_LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Options:
    """The command line. device: as CUDA_VISIBLE_DEVICES counts. rounds: of every case. report: draw it."""

    backend: str
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    rounds: int
    device: str
    output: Path
    report: bool = True

    @property
    def emulated(self) -> bool:
        """Whether a CPU stands in for the GPU: times mean nothing then."""
        return self.backend == EMULATED

    @property
    def modes(self) -> tuple[str, ...]:
        """An emulation has no graphs."""
        return ("streaming",) if self.emulated else ("streaming", figures.GRAPH)


def parse(arguments: Sequence[str]) -> Options:
    """The command line as Options; exits with 2 and a line that says what is wrong."""
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.py", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add(
        "--backend",
        choices=("cuda", EMULATED),
        default="cuda",
        help=f"{EMULATED}: try it without a GPU",
    )
    add(
        "--ranks",
        default="2,4,8",
        help="ranks on the GPU, separated by commas (default: 2,4,8)",
    )
    add("--sizes", default=SIZES, help=f"separated by commas (default: {SIZES})")
    add("--rounds", type=int, default=3, help="rounds of every case (default: 3)")
    add(
        "--device",
        default="",
        help="the GPU (default: the first that CUDA_VISIBLE_DEVICES names, else 0)",
    )
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        help="folder that is not there yet, or empty",
    )
    add(
        "--no-report",
        action="store_true",
        help="leave the drawing to `ccbench report`, elsewhere",
    )
    options = parser.parse_args(arguments)
    try:
        ranks = tuple(sorted({int(word) for word in options.ranks.split(",")}))
        sizes = tuple(
            sorted(
                {
                    size
                    for word in options.sizes.split(",")
                    for size in parse_sizes(word.strip())
                }
            )
        )
    except (ValueError, CcbenchError) as error:
        parser.error(f"--ranks or --sizes: {error}")
    if min(ranks) < 2 or options.rounds < 1:
        parser.error(
            "--ranks and --rounds: write at least 2 ranks and 1 round, such as --ranks 2,4,8 --rounds 3"
        )
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    device, report = options.device or first, not options.no_report
    return Options(
        options.backend, ranks, sizes, options.rounds, device, options.output, report
    )


def suite_of(options: Options) -> Suite:
    """Every algorithm at its sizes, as a suite: the runner measures its cases in turn."""
    sweeps = []
    for algorithm in ALGORITHMS:
        sizes = [
            f"{size} B" for size in options.sizes if size <= UP_TO.get(algorithm, sys.maxsize)
        ]
        sweep = {"collective": "all_reduce", "algorithm": algorithm, "size": sizes}
        sweeps += (
            [{**sweep, "ranks": list(options.ranks), "mode": list(options.modes)}]
            if sizes
            else []
        )
    question = (
        "How near do own kernels come to what one GPU's memory allows, with every rank on it?"
    )
    sampling = {**SAMPLING, "rounds": options.rounds, "budget": f"{40 * options.rounds} ms"}
    document = {
        "question": question,
        "backends": [options.backend],
        "sweep": sweeps,
        "sampling": sampling,
    }
    return read_suite(json.dumps(document), place="benchmarks/gpu.py", name="gpu-loopback")


def copy_seconds(options: Options) -> list[float]:
    """Seconds per copy of the largest size. BackendUnavailable with the copying process's own sentence."""
    size = str(max(options.sizes))
    command = [sys.executable, str(COPY_PROGRAM), options.backend, size, str(COPY_SECONDS)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=COPY_LIMIT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise BackendUnavailable(
            f"a copy on the device hung for {COPY_LIMIT_SECONDS} s; see dmesg"
        ) from None
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise BackendUnavailable(f"the device cannot copy: {said[-1]}")
    return [float(seconds) for seconds in json.loads(done.stdout)]


def ceiling_of(size_bytes: int, rounds: Sequence[Sequence[float]]) -> figures.Ceiling:
    """Of the rounds the one with the shortest median: what is to be a limit must not be beaten by luck."""
    best = min(rounds, key=lambda samples: median_interval(samples).median)
    return figures.Ceiling(size_bytes, median_interval(best), len(best))


def measured(options: Options) -> tuple[list[Point], figures.Ceiling, int]:
    """Copy, run the suite, copy again, draw the run; (its points, the ceiling, by which code it was stopped).

    A run that is stopped keeps what it has, beside the first copies; nothing is drawn of it.
    """
    suite = suite_of(options)
    run_options = RunOptions(output=options.output / "run", backends=(options.backend,))
    before = copy_seconds(options)
    outcome = run_suite(suite, run_options, progress_for(sys.stderr))
    run = load_run(outcome.folder)
    copies = [before]
    if not outcome.interrupted:
        copies.append(copy_seconds(options))
        if options.report:
            write_report([run])
    stopped_by = outcome.exit_code if outcome.interrupted else 0
    return list(points_of(run)), ceiling_of(max(options.sizes), copies), stopped_by


def document_of(
    options: Options, points: Sequence[Point], ceiling: figures.Ceiling
) -> dict[str, Any]:
    """Everything that is printed, and more, for machines."""
    timed = figures.timed_of(points)
    found = [] if options.emulated else figures.verdicts(timed, ceiling, options.ranks)
    return {
        "backend": options.backend,
        "backend_version": sorted(
            {point.backend_version for point in points if point.backend_version}
        ),
        "emulated": options.emulated,
        "loopback": True,
        "copy": {
            "size_bytes": ceiling.size_bytes,
            "seconds": asdict(ceiling.seconds),
            "samples": ceiling.samples,
            "bytes_per_second": ceiling.rate.median,
        },
        "points": figures.points_document(timed, ceiling, options.emulated),
        "verdicts": [asdict(one) for one in found],
        "without_figures": [
            {
                "case": point.label,
                "mode": point.mode,
                "status": point.status.value,
                "detail": point.detail,
            }
            for point in points
            if point.status is not Status.OK
        ],
    }


def show(options: Options, points: Sequence[Point], ceiling: figures.Ceiling) -> int:
    """Print table and verdicts; the exit code that follows."""
    timed = figures.timed_of(points)
    rate, size = ceiling.rate, format_size(ceiling.size_bytes)
    if options.emulated:
        print(f"EMULATION: a CPU ran the kernels; times are {LEFT_OUT}")
    else:
        print(
            "Loopback: all ranks on one GPU; memory and synchronisation are measured, no link."
        )
        low, middle, high = (f"{one / 1e9:.4g}" for one in (rate.low, rate.median, rate.high))
        print(
            f"copy of {size}: {middle} GB/s [{low}, {high}] read and written, {ceiling.samples} samples; "
            "floor: every rank's input read and output written at that rate"
        )
    for line in figures.table_lines(timed, ceiling, options.emulated):
        print(line)
    odd = [point for point in points if point.status is not Status.OK]
    for one in odd:
        print(f"{one.status.value}: {one.label}, {one.mode}: {one.detail}")
    if any(one.status is Status.WRONG for one in odd):
        return 1
    if options.emulated:
        print("No verdicts: the targets are of a GPU.")
        return 0 if timed and not odd else 3
    found = figures.verdicts(timed, ceiling, options.ranks)
    for verdict in found:
        print(figures.verdict_line(verdict))
    return figures.exit_code(found)


def main(arguments: Sequence[str]) -> int:
    """Measure, print, write; the exit code."""
    options = parse(arguments)
    reason = open_backend(options.backend).unavailable()
    if reason:
        print(f"benchmarks/gpu.py: backend {options.backend}: {reason}", file=sys.stderr)
        return BackendUnavailable.exit_code
    os.environ["CUDA_VISIBLE_DEVICES"] = options.device  # one GPU, however many there are
    try:
        points, ceiling, stopped_by = measured(options)
        text = json.dumps(document_of(options, points, ceiling), indent=1)
        write_atomically(options.output / "figures.json", text.encode())
    except CcbenchError as error:
        print(f"benchmarks/gpu.py: {error}", file=sys.stderr)
        return error.exit_code
    code = show(options, points, ceiling)
    if stopped_by:
        print("benchmarks/gpu.py: interrupted; this is what was measured", file=sys.stderr)
    print(f"wrote {options.output}; ccbench report {options.output / 'run'} draws it again")
    return stopped_by or code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
