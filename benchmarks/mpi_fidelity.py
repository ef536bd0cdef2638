"""``python -m benchmarks.mpi_fidelity``: does the mpi backend measure what a C program measures?

A C program of the same rule (mpi_fidelity.c) and ccbench's mpi backend time the same all-reduce with the
same library, launches, processors, placement of buffers and warm-up by turns. For each size the ratio of
their medians is taken round by round, so that what changes on the machine meets both. From 1 KiB to 4 MiB it
should be 0.97 to 1.10. Exit 0 where that holds, 1 where a ratio's interval lies outside, 3 where intervals
are too wide to say, 2 where it cannot run. The load of the machine before and after is printed, because other
work on these processors makes intervals wide.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ccbench.backends import open_backend
from ccbench.backends.base import Team, TeamRequest
from ccbench.backends.mpi.library import MpiLibrary, installed, local_launch
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling, Status
from ccbench.errors import BackendUnavailable, CcbenchError
from ccbench.machine.host import allowed_cpus, spread_over_cores
from ccbench.runner.workers.team import open_team
from ccbench.stats import median_interval
from ccbench.units import format_seconds, format_size

SOURCE = Path(__file__).with_name("mpi_fidelity.c")

LAUNCHES = {8: 200, 1 << 10: 150, 64 << 10: 20, 4 << 20: 1}
"""Of each size: samples shorter than a time slice, so that the median is of those that nobody disturbed."""

SAMPLES = 200

LOWEST, HIGHEST = 0.97, 1.10
"""Of the ratio from ``JUDGED_BYTES`` on."""

JUDGED_BYTES = 1 << 10

RUN_SECONDS = 120.0


@dataclass(frozen=True)
class Round:
    """Medians of one size in one round, in seconds per launch."""

    size_bytes: int
    of_c: float
    of_ccbench: float


@dataclass(frozen=True)
class Line:
    """One size over all rounds; ratio is ccbench's time over the C program's."""

    size_bytes: int
    of_c: float
    of_ccbench: float
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``holds``, ``fails``, ``cannot tell``, or ``-`` where nothing is asked."""
        if self.size_bytes < JUDGED_BYTES:
            return "-"
        if LOWEST <= self.ratio <= HIGHEST:
            return "holds"
        return "cannot tell" if self.low <= HIGHEST and self.high >= LOWEST else "fails"


def lines_of(rounds: Sequence[Round]) -> list[Line]:
    """Medians over rounds, and the interval of the ratios' median."""
    lines = []
    for size in sorted({one.size_bytes for one in rounds}):
        mine = [one for one in rounds if one.size_bytes == size]
        ratios = [one.of_ccbench / one.of_c for one in mine]
        interval = median_interval(ratios, 0.95)
        lines.append(
            Line(
                size,
                median(one.of_c for one in mine),
                median(one.of_ccbench for one in mine),
                interval.median,
                interval.low,
                interval.high,
            )
        )
    return lines


def exit_code(lines: Sequence[Line]) -> int:
    """As the module says."""
    verdicts = {line.verdict for line in lines}
    return 1 if "fails" in verdicts else 3 if "cannot tell" in verdicts else 0


def shown(lines: Sequence[Line], title: str) -> str:
    """A table in Markdown."""
    rows = [
        f"| {format_size(line.size_bytes)} | {format_seconds(line.of_c)} | {format_seconds(line.of_ccbench)} "
        f"| {line.ratio:.3f} [{line.low:.3f}, {line.high:.3f}] "
        f"| {1e9 * (line.of_ccbench - line.of_c):+.0f} ns | {line.verdict} |"
        for line in lines
    ]
    head = [
        "| all_reduce | C | ccbench | ratio | difference | verdict |",
        "|---|---|---|---|---|---|",
    ]
    return "\n".join([title, "", *head, *rows])


def compiled(folder: Path, library: MpiLibrary) -> Path:
    """The C program, built by the mpicc beside the launcher; BackendUnavailable where that fails."""
    beside = Path(library.launcher).with_name("mpicc")
    mpicc = str(beside) if beside.exists() else shutil.which("mpicc")
    if mpicc is None:
        raise BackendUnavailable(
            "mpi_fidelity: no mpicc; install libopenmpi-dev, or the library's own"
        )
    program = folder / "mpi_fidelity"
    built = subprocess.run(
        [mpicc, "-O2", "-o", program, SOURCE], capture_output=True, text=True
    )
    if built.returncode:
        raise BackendUnavailable(
            f"mpi_fidelity: {mpicc}: {built.stderr.strip().splitlines()[-1]}"
        )
    return program


def seconds_of_c(program: Path, library: MpiLibrary, ranks: int, size_bytes: int) -> float:
    """One run of the C program: its median, in seconds per launch."""
    launch = local_launch(library, ranks)
    cpus = spread_over_cores(allowed_cpus())
    processors = [str(cpus[rank % len(cpus)]) for rank in range(ranks)]
    numbers = [str(number) for number in (size_bytes, LAUNCHES[size_bytes], SAMPLES)]
    done = subprocess.run(
        [*launch.command, str(program), *numbers, *processors],
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        env={**os.environ, **dict(launch.environment)},
    )
    if done.returncode:
        raise BackendUnavailable(
            f"mpi_fidelity: the C program failed: {done.stderr.strip()[-300:]}"
        )
    return median(float(line) for line in done.stdout.split()) / 1e9


def seconds_of_ccbench(team: Team, ranks: int, size_bytes: int) -> float:
    """The same by the mpi backend."""
    case = Case(
        suite="mpi_fidelity",
        backend="mpi",
        collective="all_reduce",
        algorithm="default",
        dtype="float32",
        op="sum",
        size_bytes=size_bytes,
        count=size_bytes // 4,
        ranks=ranks,
    )
    sampling = Sampling(
        rounds=1,
        target_relative_width=0.0,
        minimum_samples=SAMPLES,
        maximum_samples=SAMPLES,
        warmup_seconds=0.01,
        budget_seconds=RUN_SECONDS,
        launches=LAUNCHES[size_bytes],
    )
    measurement = team.run(case, sampling)
    if measurement.status is not Status.OK:
        raise BackendUnavailable(
            f"mpi_fidelity: {measurement.status.value}: {measurement.detail}"
        )
    return median(measurement.samples_seconds)


def measured(library: MpiLibrary, ranks: int, rounds: int) -> list[Round]:
    """All rounds; which of the two goes first changes from round to round."""
    found = []
    with tempfile.TemporaryDirectory(prefix="ccbench-fidelity-") as folder:
        program = compiled(Path(folder), library)
        team = open_team(open_backend("mpi"), TeamRequest("mpi", ranks))
        try:
            for number in range(rounds):
                for size in LAUNCHES:
                    # Named by whether it is the C program's turn, so that both orders occur equally often.
                    times = {
                        is_c: seconds_of_c(program, library, ranks, size)
                        if is_c
                        else seconds_of_ccbench(team, ranks, size)
                        for is_c in ((True, False) if number % 2 else (False, True))
                    }
                    found.append(Round(size, times[True], times[False]))
        finally:
            team.close()
    return found


def main(arguments: Sequence[str]) -> int:
    """Run and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mpi_fidelity", description=__doc__
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args(arguments)
    if options.ranks < 2 or options.rounds < 1:
        parser.error("at least 2 ranks and 1 round are needed")
    library = installed()
    try:
        if isinstance(library, str):
            raise BackendUnavailable(f"mpi_fidelity: {library}")
        before = os.getloadavg()[0]
        lines = lines_of(measured(library, options.ranks, options.rounds))
    except CcbenchError as error:
        print(error, file=sys.stderr)
        return 2
    load = f"load {before:.1f} before, {os.getloadavg()[0]:.1f} after, {len(allowed_cpus())} processors"
    print(
        shown(
            lines,
            f"{library.version}, {options.ranks} ranks, {options.rounds} rounds by turns; {load}",
        )
    )
    return exit_code(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
