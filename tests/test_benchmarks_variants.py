"""The trials of variants: what a point counts for, and the library that is slowed down."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from benchmarks.variants import (
    BASE,
    FALSE_ALARMS,
    FOUND_LATE,
    FOUND_SLOWER,
    LATE,
    SAME,
    SIZES_BYTES,
    SLOW_FROM_BYTES,
    SLOWER,
    Tally,
    compiled,
    count,
    expected,
    main,
    missed,
    suite,
)
from ccbench.analysis.comparison import compare_by
from ccbench.analysis.verdicts import Settings, Thresholds
from ccbench.backends.mpi import BACKEND
from ccbench.backends.mpi.library import MpiLibrary
from ccbench.cases.axes import AXIS
from ccbench.suite.model import read_suite
from tests.analysis.comparison.synthetic import case, measured, run_of

NO_MPI = BACKEND.unavailable()

# A library that returns the number of its calls.
FAKE = "int PMPI_Allreduce(void *a, void *b, int n, void *t, void *o, void *c) { static int k; return ++k; }"

CALLS = """
import ctypes, sys, time
ctypes.CDLL(sys.argv[1])
slow = ctypes.CDLL(None).MPI_Allreduce
took = []
for count in (1, 1 << 18):
    began = time.perf_counter()
    code = slow(None, None, count, None, None, None)
    took.append(time.perf_counter() - began)
print(code, *took)
"""


def test_the_preloaded_function_calls_the_library_and_takes_longer(tmp_path: Path) -> None:
    (tmp_path / "fake.c").write_text(FAKE)
    library = tmp_path / "libmpi.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "fake.c"], check=True)
    late = compiled(
        tmp_path, MpiLibrary("Open MPI 5", "4.1", str(library), "mpiexec"), LATE, 0.01, 0
    )
    said = subprocess.run(
        [sys.executable, "-c", CALLS, library],
        env={"LD_PRELOAD": str(late)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert said[0] == "2"
    assert all(float(seconds) >= 0.01 for seconds in said[1:])


def test_what_a_point_counts_for() -> None:
    kinds = {
        (name, size): expected(name, size)
        for name in (SAME, LATE, SLOWER)
        for size in SIZES_BYTES
    }
    assert {kinds[SAME, size] for size in SIZES_BYTES} == {FALSE_ALARMS}
    assert kinds[LATE, 8] == FOUND_LATE
    assert kinds[LATE, SLOW_FROM_BYTES] is kinds[SLOWER, 8] is None
    assert kinds[SLOWER, SLOW_FROM_BYTES] == FOUND_SLOWER


def test_what_is_named_and_what_is_no_change_are_counted_apart() -> None:
    """Times as they are where nobody else uses the machine."""
    points = []
    for name in (BASE, SAME, LATE, SLOWER):
        for size in SIZES_BYTES:
            seconds = 1e-6 + size / 1e10 + 2e-6 * (name == LATE)
            seconds *= 1 + 0.05 * (name == SLOWER and size >= SLOW_FROM_BYTES)
            rounds = [[seconds * (1 + 0.002 * (step % 5))] for step in range(12)]
            measurement = case(0, variant=name, size_bytes=size, count=size // 4)
            points.append(measured(measurement, rounds))
    tallies: dict[str, Tally] = defaultdict(Tally)
    count(
        compare_by(
            run_of(points), AXIS["variant"], BASE, Settings(thresholds=Thresholds(0.02))
        ),
        tallies,
    )
    assert (tallies[FALSE_ALARMS].called, tallies[FALSE_ALARMS].points) == (0, 3)
    assert (tallies[FOUND_LATE].called, tallies[FOUND_SLOWER].called) == (1, 2)
    assert missed(tallies) == []
    tallies[FOUND_LATE].points += 1
    assert missed(tallies) == [FOUND_LATE]


def test_a_little_noise_hides_nothing_and_much_noise_is_no_alarm(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--made-up", "0.005", "--rounds", "12", "--runs", "20"]) == 0
    assert "false alarms 0 of 60" in capsys.readouterr().out
    assert main(["--made-up", "0.5", "--rounds", "12", "--runs", "20"]) == 1
    assert "2 us at 8 B named 0 of 20" in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.skipif(NO_MPI is not None, reason=f"no MPI here: {NO_MPI}")
def test_the_suite_has_each_variant_with_the_library_that_is_named(tmp_path: Path) -> None:
    found = read_suite(suite(tmp_path, "", 4))
    assert [variant.name for variant in found.variants] == [BASE, SAME, LATE, SLOWER]
    assert [bool(variant.environment) for variant in found.variants] == [
        False,
        False,
        True,
        True,
    ]
    assert all(
        Path(dict(variant.environment)["LD_PRELOAD"]).exists() for variant in found.variants[2:]
    )
    small, large = (read_suite(suite(tmp_path, "", 4, [size])) for size in (8, SLOW_FROM_BYTES))
    assert [[variant.name for variant in each.variants] for each in (small, large)] == [
        [BASE, SAME, LATE],
        [BASE, SAME, SLOWER],
    ]
