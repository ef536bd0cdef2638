from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ccbench.errors import SuiteError
from ccbench.suite.expansion import ExpansionContext, expand
from ccbench.suite.model import Suite, load_suite, shipped_suites
from ccbench.suite.readers import Range, read_sizes

from .offers import context

CASES = {
    "quick": (60, 90),
    "allreduce": (70, 80),
    "p2p": (30, 40),
    "health": (75, 110),
    "collectives": (1850, 2200),
    "algorithms": (200, 300),
    "scaling": (100, 150),
    "dtypes": (90, 100),
    "loopback": (80, 95),
    "own-kernels": (190, 210),
    "peers-cpu": (30, 40),
    "two-hosts": (35, 45),
    "dp-gradients": (9, 12),
    "tp-layer": (10, 14),
    "pp-pipeline": (15, 18),
    "ep-moe": (5, 9),
    "long-sequence": (8, 11),
    "overlap": (18, 20),
}


def test_eighteen_suites_ship() -> None:
    assert set(shipped_suites()) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_suite_begins_with_the_question_it_answers(name: str) -> None:
    first = shipped_suites()[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# Question: ")
    assert first.endswith("?")
    assert load_suite(name).question.endswith("?")


@pytest.mark.parametrize("name", CASES)
def test_a_shipped_suite_expands_to_about_as_many_cases_as_it_promises(name: str) -> None:
    cases = expand(load_suite(name), context())
    low, high = CASES[name]
    assert low <= len(cases) <= high
    assert len({case.case_id for case in cases}) == len(cases)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("backends", [("nccl",), ("gloo", "mpi"), ("simulated",), ("cuda", "cuda-host")])
@pytest.mark.parametrize("ranks", [2, 7])
def test_a_shipped_suite_leaves_something_to_run_on_every_backend(
    name: str, backends: tuple[str, ...], ranks: int
) -> None:
    cases = expand(load_suite(name), context(backends=backends, ranks=ranks))
    assert {case.backend for case in cases} == set(backends)
    assert {case.ranks for case in cases} == {ranks}


def ranges_of(name: str) -> list[Range]:
    """Every range of sizes that a shipped suite writes."""
    document = yaml.safe_load(shipped_suites()[name].read_text(encoding="utf-8"))
    sweeps = document["sweep"] if isinstance(document["sweep"], list) else [document["sweep"]]
    sizes = [size for sweep in sweeps for size in read_sizes(sweep["size"])]
    return [size for size in sizes if isinstance(size, Range)]


@pytest.mark.parametrize("name", CASES)
def test_every_range_of_a_shipped_suite_reaches_the_end_that_it_names(name: str) -> None:
    assert [one.points()[-1] for one in ranges_of(name)] == [one.last for one in ranges_of(name)]


def test_shipped_suites_have_ranges() -> None:
    assert sum(len(ranges_of(name)) for name in CASES) >= 8


def test_every_collective_of_own_kernels_reaches_the_size_that_the_suite_promises() -> None:
    cases = expand(load_suite("own-kernels"), context(backends=("cuda",), ranks=8))
    names = {case.collective for case in cases} - {"barrier"}
    largest = [max(case.size_bytes for case in cases if case.collective == name) for name in names]
    assert set(largest) == {256 << 20}


def test_quick_covers_every_collective_within_a_minute_of_budgets() -> None:
    suite = load_suite("quick")
    cases = expand(suite, context())
    assert len({case.collective for case in cases}) == 11
    assert len(cases) * (suite.sampling.warmup_seconds + suite.sampling.budget_seconds) < 30


def test_a_shipped_suite_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_suite("quick").name == "quick"


def test_a_file_comes_before_the_shipped_suite_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quick").write_text("sweep: {collective: barrier}\n")
    monkeypatch.chdir(tmp_path)
    assert load_suite("quick").sweep[0].collective == ("barrier",)


def test_a_folder_of_a_shipped_suites_name_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "quick").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_suite("quick").name == "quick"


def test_a_missing_path_to_a_shipped_suite_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SuiteError, match=r"^suites/quick\.yaml: no such file; .* is called 'quick'$"):
        load_suite("suites/quick.yaml")


def test_an_unknown_name_lists_what_ships() -> None:
    with pytest.raises(SuiteError, match=r"did you mean 'quick'\? \(shipped: algorithms, allreduce, .*\)$"):
        load_suite("quik")
    with pytest.raises(SuiteError, match=r"nor a suite that ships; write one of algorithms, [^(]*$"):
        load_suite("nothing")


@pytest.mark.parametrize("name", ["/dev/zero", "/", "a\0b", "x" * 5000, "a\nb", ""])
def test_odd_paths_are_suite_errors_in_one_line(name: str) -> None:
    with pytest.raises(SuiteError) as problem:
        load_suite(name)
    assert str(problem.value).isprintable()


@pytest.mark.parametrize("name", CASES)
def test_a_suite_written_out_and_read_back_is_the_same_suite(name: str) -> None:
    suite = load_suite(name)
    again = Suite.model_validate(suite.as_document())
    assert again == suite
    assert expand(again, context()) == expand(suite, context())


def test_a_backend_without_named_algorithms_runs_its_default() -> None:
    bare = ExpansionContext(None, ("cpu",), None, 2, lambda backend, collective: ())
    assert {case.algorithm for case in expand(load_suite("quick"), bare)} == {"default"}
