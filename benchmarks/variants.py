"""Trials of variants: ``python -m benchmarks.variants [--runs 20] [--rounds 24] [--sizes 1MiB:64MiB:64]``.

Each run measures all_reduce of an MPI with variants, in turn: ``base``; ``same``, which is no different;
where there is a size of 8 B ``late``, in which every call takes 2 us longer; where there is one of 1 MiB or
more ``slower``, in which calls of 1 MiB and more take 5 % longer. The last two are the same library under a
preloaded MPI_Allreduce (slow_allreduce.c). Every round has ranks of its own, and their memory is allocated
in huge pages and kept (GLIBC_TUNABLES), as docs/compare.md recommends. ``compare --by variant`` judges each
run, and what it finds is counted: false alarms of what does not differ, slow-downs that it names. The exit
code is 1 where a figure is missed: false alarms at 1 % of points at most, the 2 us named at 8 B in every run,
the 5 % in nine of ten, as far as ``--sizes`` has points of a kind.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ccbench.analysis.comparison import compare_by
from ccbench.analysis.significance import as_pairs, tested
from ccbench.analysis.verdicts import Compared, Settings, Thresholds, Verdict
from ccbench.backends.mpi.library import MpiLibrary, installed, loading
from ccbench.cases.axes import AXIS
from ccbench.flags import Flag
from ccbench.suite.readers import parse_sizes

SOURCE = Path(__file__).with_name("slow_allreduce.c")
LATE_SECONDS, LATE_SHARE = 2e-6, 0.05
SLOW_FROM_BYTES = 1 << 20
SIZES_BYTES = (8, SLOW_FROM_BYTES, 64 * SLOW_FROM_BYTES)
BASE, SAME, LATE, SLOWER = ("base", "same", "late", "slower")

FEWEST_SAMPLES = 8
"""Of a round, of large sizes; of small ones there are many more in its time."""

KEPT_MEMORY = ":".join(
    f"glibc.malloc.{name}"
    for name in ("hugetlb=1", "trim_threshold=4294967296", "mmap_threshold=33554432")
)
"""Otherwise the temporary buffers of a library are new pages in each call or not, by chance of its heap."""

THRESHOLD = 0.02
"""Below the slow-down that is looked for: a change of exactly the threshold is found half of the time."""

FALSE_ALARMS, FOUND_LATE, FOUND_SLOWER = (
    "false alarms",
    "2 us at 8 B named",
    "5 % from 1 MiB on found",
)
WANTED = {FALSE_ALARMS: (0.0, 0.01), FOUND_LATE: (1.0, 1.0), FOUND_SLOWER: (0.9, 1.0)}
"""Least and largest share."""


@dataclass
class Tally:
    """Points of one kind, and those of them that compare called slower (of false alarms: or faster)."""

    points: int = 0
    called: int = 0

    @property
    def share(self) -> float:
        """Called ones among all."""
        return self.called / self.points if self.points else 0.0


def expected(variant: str, size_bytes: int) -> str | None:
    """What a point counts for; None where the truth is no change, but not none."""
    if variant == LATE and size_bytes == SIZES_BYTES[0]:
        return FOUND_LATE
    if variant == SLOWER and size_bytes >= SLOW_FROM_BYTES:
        return FOUND_SLOWER
    # 2 us are 2 % of a megabyte, and a function before the library costs 0.1 us by itself.
    return FALSE_ALARMS if variant == SAME else None


def count(compared: Compared, tallies: Mapping[str, Tally]) -> None:
    """Add the points of one run."""
    for point in compared.points:
        kind = expected(point.point.variant, point.point.size_bytes)
        if kind is not None:
            called = (
                (Verdict.SLOWER, Verdict.FASTER) if kind == FALSE_ALARMS else (Verdict.SLOWER,)
            )
            tallies[kind].points += 1
            tallies[kind].called += point.verdict in called


def missed(tallies: Mapping[str, Tally]) -> list[str]:
    """The figures that are not reached, of those that there are points of."""
    return [
        kind
        for kind, one in tallies.items()
        if not WANTED[kind][0] <= one.share <= WANTED[kind][1]
    ]


def compiled(
    folder: Path, library: MpiLibrary, name: str, seconds: float, share: float
) -> Path:
    """The preloaded library of one variant."""
    target = folder / f"{name}.so"
    defined = {
        "LIBRARY": f'"{library.path}"',
        "LATE_SECONDS": seconds,
        "LATE_SHARE": share,
        "FROM_COUNT": SLOW_FROM_BYTES // 4,
    }
    options = [f"-D{key}={value}" for key, value in defined.items()]
    command = [
        "gcc",
        "-O2",
        "-shared",
        "-fPIC",
        *options,
        "-o",
        str(target),
        str(SOURCE),
        "-ldl",
    ]
    subprocess.run(command, check=True)
    return target


def suite(folder: Path, named: str, rounds: int, sizes: Sequence[int] = SIZES_BYTES) -> str:
    """The suite of all variants; named: the library or its folder, '' for the usual one."""
    library = installed(loading(named) if named else ())
    if isinstance(library, str):
        raise SystemExit(f"benchmarks.variants: {library}")
    of_all = f"library: {named}" if named else ""
    slowed = {}
    if SIZES_BYTES[0] in sizes:
        slowed[LATE] = compiled(folder, library, LATE, LATE_SECONDS, 0)
    if max(sizes) >= SLOW_FROM_BYTES:
        slowed[SLOWER] = compiled(folder, library, SLOWER, 0, LATE_SHARE)
    env = {
        name: f"{', ' * bool(named)}env: {{LD_PRELOAD: {path}}}"
        for name, path in slowed.items()
    }
    variants = "\n".join(
        f"  {name}: {{{of_all}{env.get(name, '')}}}" for name in (BASE, SAME, *slowed)
    )
    return f"""\
suite: variants
backends: [mpi]
variants:
{variants}
sweep: {{collective: all_reduce, ranks: 2, size: [{", ".join(map(str, sizes))}]}}
sampling: {{rounds: {rounds}, start_ranks: each_round, max_ci_width: 100%, minimum_sample: 50 us,
           budget: {30 * rounds} ms, warmup: {5 * rounds} ms,
           minimum_samples: {FEWEST_SAMPLES * rounds}, maximum_samples: {400 * rounds}}}
"""


def made_up(runs: int, rounds: int, noise: float, tallies: Mapping[str, Tally]) -> None:
    """Add points of runs without any measurement: rounds whose times vary by ``noise``, of 12 us and 1 ms."""
    random = np.random.default_rng(1)
    usual = {size: 12e-6 if size < SLOW_FROM_BYTES else 1e-3 for size in SIZES_BYTES}
    points = [(name, size) for name in (SAME, LATE, SLOWER) for size in SIZES_BYTES]
    factors = [
        1 + LATE_SHARE * (name == SLOWER and size >= SLOW_FROM_BYTES) for name, size in points
    ]
    seconds = np.array([usual[size] for _, size in points])
    new_seconds = seconds * factors + LATE_SECONDS * np.array(
        [name == LATE for name, _ in points]
    )
    for _ in range(runs):
        base, new = (
            one[:, None] * np.exp(random.normal(0, noise, (len(points), rounds)))
            for one in (seconds, new_seconds)
        )
        found = tested(*as_pairs(base, new, 0.95)[:2], 0.95, np.full(len(points), True))
        called = found.beyond(np.full(len(points), THRESHOLD))
        for point, is_called, ratio in zip(points, called, found.ratio, strict=True):
            if kind := expected(*point):
                tallies[kind].points += 1
                tallies[kind].called += bool(is_called) and (kind == FALSE_ALARMS or ratio > 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the trials, print what was counted after each, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.variants", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument(
        "--sizes", type=parse_sizes, default=SIZES_BYTES, help="such as 8:1024:128"
    )
    parser.add_argument(
        "--made-up", type=float, metavar="NOISE", help="measure nothing: rounds vary by 0.01"
    )
    parser.add_argument(
        "--library", default="", help="MPI: its file or the folder that it is installed in"
    )
    options = parser.parse_args(arguments)
    # Variants of a point meet the same load, so that load alone makes none of them doubtful.
    accepted = frozenset((Flag.OTHER_LOAD, Flag.CPU_CONTENTION, Flag.STEAL))
    settings = Settings(thresholds=Thresholds(THRESHOLD), accepted_flags=accepted)
    tallies: dict[str, Tally] = defaultdict(Tally)
    if options.made_up is not None:
        made_up(options.runs, options.rounds, options.made_up, tallies)
        for kind, one in sorted(tallies.items()):
            print(f"made up, noise {options.made_up:.1%}: {kind} {one.called} of {one.points}")
        return int(bool(missed(tallies)))
    with tempfile.TemporaryDirectory(prefix="ccbench-variants-") as made:
        folder = Path(made)
        (folder / "variants.yaml").write_text(
            suite(folder, options.library, options.rounds, options.sizes)
        )
        for number in range(options.runs):
            run = folder / f"run{number}"
            command = [
                sys.executable,
                "-m",
                "ccbench",
                "run",
                str(folder / "variants.yaml"),
                "-o",
                str(run),
            ]
            command += ["--allow-libraries", "--no-report", "--quiet"]
            subprocess.run(
                command,
                check=True,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "GLIBC_TUNABLES": KEPT_MEMORY},
            )
            compared = compare_by(run, AXIS["variant"], BASE, settings)
            count(compared, tallies)
            counts = (
                f"{kind} {one.called} of {one.points}" for kind, one in sorted(tallies.items())
            )
            load = os.getloadavg()[0]
            print(f"run {number + 1}, load {load:.1f}: {'; '.join(counts)}", flush=True)
    for kind in missed(tallies):
        print(
            f"not reached: {kind}: {tallies[kind].share:.1%} of {tallies[kind].points} points"
        )
    return int(bool(missed(tallies)))


if __name__ == "__main__":
    raise SystemExit(main())
