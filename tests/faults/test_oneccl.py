"""Runs on oneCCL itself: right results, faults, launchers. ``make nccl-tables`` installs its wheel."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from ccbench.backends.nccl.dialects import ONECCL
from ccbench.backends.nccl.library import open_by_loader
from ccbench.backends.nccl.oneccl import BACKEND, SETTINGS
from tests.faults.conftest import Bench
from tests.faults.test_asked_faults import check_fault

MISSING = BACKEND.unavailable()

pytestmark = [
    pytest.mark.oneccl,
    pytest.mark.exhaustive,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]

COLLECTIVES = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
]


def test_the_library_has_every_function_of_the_table_and_words_for_every_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in SETTINGS:
        monkeypatch.setenv(name, value)
    library = open_by_loader(ONECCL)
    assert library.version >= 20_220_000
    for name in ONECCL.functions:
        assert library.has(name), name
    texts = [library.words(code) for code in ONECCL.results]
    assert len(set(texts)) == len(texts)
    assert all("Unknown" not in text for text in texts[:9]), texts


@pytest.mark.parametrize(
    ("ranks", "sizes", "dtypes"),
    [(2, ["0 B", "8008 B"], ["float32", "bfloat16"]), (4, ["1 MiB"], ["float64", "int32"])],
)
def test_every_element_is_right(
    bench: Bench, ranks: int, sizes: list[str], dtypes: list[str]
) -> None:
    sweep = {
        "collective": COLLECTIVES,
        "ranks": ranks,
        "size": sizes,
        "dtype": dtypes,
        "placement": ["in_place", "out_of_place"],
    }
    groups = {
        "collective": "all_reduce",
        "ranks": ranks,
        "groups": "rank // 2",
        "op": ["prod", "max", "min"],
    }
    suite = bench.suite(sweep, groups, backends=["oneccl"], rounds=1, budget="5 ms")
    ended = bench.run(suite, "--oversubscribe")  # its results count here, not its times
    assert ended.code == 0, ended.err
    assert {row["status"] for row in ended.rows} == {"ok"}
    assert {row["collective"] for row in ended.rows} == set(COLLECTIVES)
    assert len(ended.rows) > 20
    assert sum(row["wrong_elements"] or 0 for row in ended.rows) == 0


@pytest.mark.parametrize("fault", ["kill", "stop", "raise", "stale"])
def test_a_rank_that_misbehaves_is_named_and_a_fresh_team_goes_on(
    bench: Bench, fault: str
) -> None:
    check_fault(bench, fault, "oneccl")


def test_ranks_are_started_by_mpiexec_too(bench: Bench) -> None:
    beside = Path(sys.prefix) / "bin" / "mpiexec"  # Intel MPI's runtime comes with the wheel
    launcher = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert launcher, "oneCCL's wheel brings one"
    suite = bench.suite({"collective": "all_reduce"}, backends=["oneccl"])
    ended = bench.run(suite, "--launch", f"{launcher} -n 2")
    assert ended.code == 0, ended.err
    assert [(row["status"], row["ranks"]) for row in ended.rows] == [("ok", 2)]
