"""Every mistake in mutants.yaml is found, and in the way that the list says."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kernels.mutation import (
    SURVIVED,
    Engine,
    Mutant,
    Outcome,
    in_one_text,
    mutants,
    mutated,
    outcome,
    shipped_sources,
)

MUTANTS, CASES = mutants()
SOURCES = shipped_sources()
ENGINES: tuple[Engine, ...] = ("plain", "sanitizer")
FEWEST = 20
ORIGINALS, DYING = "test_what_is_not_mutated_survives_the_same_runs", "test_each_ends_as_the_list_says"

Expected = dict[Engine, str]
Running = dict[str, dict[Engine, Future[Outcome]]]


def expected(mutant: Mutant) -> Expected:
    return dict.fromkeys(ENGINES, SURVIVED) if mutant.equivalent else dict(mutant.dies)


def run_mutant(mutant: Mutant, engine: Engine, cache: Path) -> Outcome:
    return outcome(mutated(SOURCES, mutant), [CASES[mutant.case]], engine, cache)


def run_originals(file: str, engine: Engine, cache: Path) -> Outcome:
    return outcome(SOURCES, [CASES[name] for name in tried(file, engine)], engine, cache)


def tried(file: str, engine: Engine) -> list[str]:
    """The cases of one kernel file that mutants are tried on with one engine."""
    names = {one.case for one in MUTANTS if engine in expected(one)}
    return sorted(name for name in names if CASES[name].kernel_file == file)


FILES = sorted({case.kernel_file for case in CASES.values()})


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The runs of all tests that were asked for, as many at a time as there are processors."""
    wanted = {item.name for item in request.session.items if item.path == request.path}
    cache: Path = tmp_path_factory.mktemp("mutants")
    workers = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    started: Running = {}
    pool = ThreadPoolExecutor(workers)
    for file in FILES:
        if f"{ORIGINALS}[{file}]" in wanted:
            engines = [engine for engine in ENGINES if tried(file, engine)]
            started[file] = {one: pool.submit(run_originals, file, one, cache) for one in engines}
    for mutant in MUTANTS:
        if f"{DYING}[{mutant.name}]" in wanted:
            engines = list(expected(mutant))
            started[mutant.name] = {one: pool.submit(run_mutant, mutant, one, cache) for one in engines}
    yield started
    pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("file", FILES)
def test_what_is_not_mutated_survives_the_same_runs(file: str, running: Running) -> None:
    for engine, run in running[file].items():
        ended = run.result()
        assert ended.how == SURVIVED, f"{engine}, seed {ended.seed}: {ended.detail}"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_ends_as_the_list_says(mutant: Mutant, running: Running) -> None:
    ended = {engine: run.result() for engine, run in running[mutant.name].items()}
    assert {engine: one.how for engine, one in ended.items()} == expected(mutant), ended


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_is_in_the_source_and_in_what_its_case_runs(mutant: Mutant) -> None:
    case = CASES[mutant.case]
    before = in_one_text(SOURCES, case.kernel_file, [case.entry])
    after = in_one_text(mutated(SOURCES, mutant), case.kernel_file, [case.entry])
    assert before != after


def test_the_list_is_long_enough_and_names_each_mistake_once() -> None:
    dying = [one for one in MUTANTS if not one.equivalent]
    assert len(dying) >= FEWEST
    assert len({one.name for one in MUTANTS}) == len(MUTANTS)
    assert all(set(one.dies.values()) - {SURVIVED} for one in dying)
    assert not any(one.dies for one in MUTANTS if one.equivalent)


def test_every_kernel_file_and_shared_header_with_a_protocol_has_mutants() -> None:
    files = {name for name in SOURCES if name.endswith(".cu")} | {"system.cuh", "primitives.cuh", "fold.cuh"}
    assert {one.file for one in MUTANTS if not one.equivalent} == files


def test_a_text_that_is_no_longer_there_is_refused() -> None:
    with pytest.raises(
        AssertionError, match=r"its text is 0 times in kernels/.*, expected 1; write the text"
    ):
        mutated({**SOURCES, MUTANTS[0].file: ""}, MUTANTS[0])
