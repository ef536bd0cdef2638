from __future__ import annotations

from pathlib import Path

import pytest

from ccbench.errors import SuiteError
from ccbench.suite.expansion import expand
from ccbench.suite.model import load_suite, shipped_suites

from .offers import context

# Suites whose text promises a duration or a number of cases: (least, most) of them.
CASES = {
    "quick": (60, 90),
    "allreduce": (70, 80),
    "p2p": (30, 40),
    "health": (75, 110),
    "fleet": (1, 1),
    "collectives": (1850, 2200),
    "algorithms": (200, 300),
    "scaling": (100, 150),
    "dtypes": (90, 100),
    "bits": (36, 36),
    "loopback": (80, 95),
    "own-kernels": (200, 220),
    "peers-cpu": (30, 40),
    "two-hosts": (35, 45),
    "dp-gradients": (9, 12),
    "tp-layer": (10, 14),
    "pp-pipeline": (15, 18),
    "ep-moe": (5, 9),
    "long-sequence": (8, 11),
    "overlap": (18, 20),
    "knobs": (72, 72),
    "box": (8, 8),
}


@pytest.mark.parametrize("name", sorted({*CASES, *shipped_suites()}))
@pytest.mark.parametrize(
    "backends", [("nccl",), ("gloo", "mpi"), ("simulated",), ("cuda", "cuda-host")]
)
@pytest.mark.parametrize("ranks", [2, 7])
def test_a_shipped_suite_leaves_something_to_run_on_every_backend(
    name: str, backends: tuple[str, ...], ranks: int
) -> None:
    cases = expand(load_suite(name), context(backends=backends, ranks=ranks))
    assert {case.backend for case in cases} == set(backends)
    assert {case.ranks for case in cases} == {ranks}


def test_quick_covers_every_collective_within_a_minute_of_budgets() -> None:
    suite = load_suite("quick")
    cases = expand(suite, context())
    assert len({case.collective for case in cases}) == 11
    assert len(cases) * (suite.sampling.warmup_seconds + suite.sampling.budget_seconds) < 30


def test_a_missing_path_to_a_shipped_suite_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        SuiteError, match=r"^suites/quick\.yaml: no such file; .* is called 'quick'$"
    ):
        load_suite("suites/quick.yaml")


@pytest.mark.parametrize("name", ["/dev/zero", "/", "a\0b", "x" * 5000, "a\nb", ""])
def test_odd_paths_are_suite_errors_in_one_line(name: str) -> None:
    with pytest.raises(SuiteError) as problem:
        load_suite(name)
    assert str(problem.value).isprintable()
