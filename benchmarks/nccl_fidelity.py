"""Is the time that ccbench gives NCCL's? The same calls, by a plain C++ loop and by the nccl backend.

``python -m benchmarks.nccl_fidelity [--gpus N] [--rounds 15]``: both are kept running on the same GPUs and
asked by turns, in the same modes (``plain`` is ``streaming``). Exit code 1 where the ratio of medians is
outside of 1.00 to 1.03 in graph mode, or in plain mode from 1 MiB and 100 us a launch on; shorter plain
launches (on one GPU a copy) wait for the host, which takes longer in Python.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ccbench.backends import open_backend
from ccbench.cases.axes import Case
from ccbench.errors import BackendUnavailable, CcbenchError, MissingDependency
from ccbench.units import format_seconds, format_size

if TYPE_CHECKING:
    from ccbench.backends.nccl.endpoint import NcclRanks

SOURCE = Path(__file__).with_suffix(".cu")
SIZES = (8, 64 << 10, 16 << 20, 1 << 30)
MODES = ("graph", "plain")
HIGHEST_RATIO = 1.03
PLAIN_FROM_BYTES = 1 << 20
PLAIN_FROM_SECONDS = 1e-4
SAMPLE_SECONDS = 0.02
GRAPH_LAUNCHES = 32
MOST_LAUNCHES = 1024


@dataclass(frozen=True)
class Comparison:
    """Medians in seconds per launch."""

    size_bytes: int
    mode: str
    plain_loop_seconds: float
    ccbench_seconds: float

    @property
    def ratio(self) -> float:
        """ccbench's time over the loop's."""
        return self.ccbench_seconds / self.plain_loop_seconds

    @property
    def counts(self) -> bool:
        """Whether the promise covers this point."""
        large = (
            self.size_bytes >= PLAIN_FROM_BYTES
            and self.plain_loop_seconds >= PLAIN_FROM_SECONDS
        )
        return self.mode == "graph" or large

    @property
    def kept(self) -> bool:
        """Whether it is kept; the lower edge is 1.00 as far as two digits tell."""
        return not self.counts or 0.995 <= self.ratio <= HIGHEST_RATIO


def library_folders() -> tuple[list[Path], list[Path]]:
    """(include, library) folders of the NCCL wheel; none where NCCL is the system's."""
    spec = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    roots = (
        [Path(location) for location in spec.submodule_search_locations or ()] if spec else []
    )
    found = [root for root in roots if (root / "include/nccl.h").is_file()]
    return [root / "include" for root in found], [root / "lib" for root in found]


def build_command(compiler: str, program: Path) -> list[str]:
    """How nvcc builds the loop."""
    includes, libraries = library_folders()
    command = [compiler, "-O2", "-std=c++17", "-o", str(program), str(SOURCE)]
    command += [f"-I{folder}" for folder in includes]
    for folder in libraries:
        command += [f"-L{folder}", f"-Xlinker=-rpath={folder}"]
    return [*command, "-ldl", "-l:libnccl.so.2" if libraries else "-lnccl"]


def built(folder: Path) -> Path:
    """The loop, compiled; MissingDependency without nvcc, CcbenchError with its words where it fails."""
    compiler = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")
    if compiler is None:
        raise MissingDependency(
            "nvcc is not on PATH; install the CUDA toolkit to build the C++ loop"
        )
    program = folder / "nccl_fidelity"
    done = subprocess.run(
        build_command(compiler, program), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CcbenchError(
            f"nvcc cannot build {SOURCE.name}: {' '.join(done.stderr.split())[:400]}"
        )
    return program


class PlainLoop:
    """The C++ program, kept running."""

    def __init__(self, program: Path, gpus: int) -> None:
        command = [str(program), str(gpus), str(max(SIZES))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def seconds(self, size_bytes: int, launches: int, mode: str) -> float:
        """Per launch; CcbenchError with the program's words where it ended."""
        process = self._process
        assert process.stdin
        assert process.stdout
        assert process.stderr
        try:
            process.stdin.write(f"{size_bytes} {launches} {mode}\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            raise CcbenchError(f"the C++ loop ended: {process.stderr.read().strip()[:400]}")
        return float(answer)

    def close(self) -> None:
        """End the program."""
        self._process.communicate()


def case_of(size_bytes: int, gpus: int, mode: str) -> Case:
    """What the loop does, as a case."""
    return Case(
        "fidelity",
        "nccl",
        "all_reduce",
        "default",
        "float32",
        "sum",
        size_bytes,
        size_bytes // 4,
        gpus,
        mode="graph" if mode == "graph" else "streaming",
    )


def launches_for(seconds: float) -> int:
    """Whole graphs that together take about SAMPLE_SECONDS."""
    expected = int(SAMPLE_SECONDS / max(seconds, 1e-9))
    return max(GRAPH_LAUNCHES, min(MOST_LAUNCHES, expected // GRAPH_LAUNCHES * GRAPH_LAUNCHES))


def compared(
    endpoint: NcclRanks, loop: PlainLoop, case: Case, mode: str, rounds: int
) -> Comparison:
    """Both by turns, who is first by turns too."""
    endpoint.prepare(case)
    launches = launches_for(loop.seconds(case.size_bytes, GRAPH_LAUNCHES, mode))
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + 1):
        for mine in (number % 2 == 0, number % 2 == 1):
            if mine:
                endpoint.launch(launches)
                ours.append(endpoint.device_seconds() / launches)
            else:
                theirs.append(loop.seconds(case.size_bytes, launches, mode))
    endpoint.finish()
    # The first round warms up.
    return Comparison(
        case.size_bytes, mode, statistics.median(theirs[1:]), statistics.median(ours[1:])
    )


def table(comparisons: Sequence[Comparison]) -> str:
    """One line for each point."""
    lines = ["size       mode   C++ loop     ccbench      ratio"]
    for comparison in comparisons:
        mark = "" if comparison.kept else f"  outside of 1.00 to {HIGHEST_RATIO:.2f}"
        mark = mark if comparison.counts else "  the host's launches count here, no promise"
        lines.append(
            f"{format_size(comparison.size_bytes):10} {comparison.mode:6} "
            f"{format_seconds(comparison.plain_loop_seconds):12} "
            f"{format_seconds(comparison.ccbench_seconds):12} {comparison.ratio:.3f}{mark}"
        )
    return "\n".join(lines)


def measured(gpus: int | None, rounds: int) -> list[Comparison]:
    """Every size in both modes; CcbenchError where something is missing."""
    from ccbench.backends.cuda.runtime import device_count, open_cuda
    from ccbench.backends.nccl.bootstrap import NcclWorkerGroup

    ranks = gpus or device_count(open_cuda())
    with tempfile.TemporaryDirectory(prefix="ccbench-") as folder:
        loop = PlainLoop(built(Path(folder)), ranks)
        endpoint = NcclWorkerGroup(ranks, 16).endpoint(0)
        try:
            points = [(size, mode) for size in SIZES for mode in MODES]
            return [
                compared(endpoint, loop, case_of(s, ranks, mode), mode, rounds)
                for s, mode in points
            ]
        finally:
            endpoint.close()
            loop.close()


def main(arguments: Sequence[str]) -> int:
    """Compare and print; the exit code."""
    parser = argparse.ArgumentParser(prog="benchmarks.nccl_fidelity", description=__doc__)
    parser.add_argument(
        "--gpus", type=int, default=None, help="how many GPUs; all of them by default"
    )
    parser.add_argument("--rounds", type=int, default=15, help="samples of each")
    options = parser.parse_args(arguments)
    reason = open_backend("nccl").unavailable()
    if reason:
        print(f"benchmarks/nccl_fidelity.py: backend nccl: {reason}", file=sys.stderr)
        return BackendUnavailable.exit_code
    try:
        comparisons = measured(options.gpus, options.rounds)
    except CcbenchError as error:
        print(f"benchmarks/nccl_fidelity.py: {error}", file=sys.stderr)
        return error.exit_code
    print(table(comparisons))
    return 0 if all(comparison.kept for comparison in comparisons) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
