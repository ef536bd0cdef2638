"""Every mistake in mutants.yaml is found, and in the way that the list says."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import FOLDER_MODE, Build, built, content, kept
from tests.backends.kernels.mutation import (
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

Expected = dict[Engine, str]


def expected(mutant: Mutant) -> Expected:
    return dict.fromkeys(ENGINES, SURVIVED) if mutant.equivalent else dict(mutant.dies)


def run_mutant(mutant: Mutant, engine: Engine, cache: Path) -> Outcome:
    return outcome(mutated(SOURCES, mutant), [CASES[mutant.case]], engine, cache)


def run_originals(file: str, engine: Engine, cache: Path) -> Outcome:
    return outcome(SOURCES, [CASES[name] for name in tried(file, engine)], engine, cache)


def tried(file: str, engine: Engine) -> list[str]:
    """The cases of one kernel file that mutants are tried on with one engine."""
    names = {mutant.case for mutant in MUTANTS if engine in expected(mutant)}
    return sorted(name for name in names if CASES[name].kernel_file == file)


FILES = sorted({case.kernel_file for case in CASES.values()})


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where builds go: the engine's objects serve all mutants, of all processes of a session."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    # Nothing of the engine's is a mutant's: what was built for other tests serves here.
    place = folder / "mutants" / "host"
    place.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    for build in (Build("barrier.cu"), Build("barrier.cu", sanitize=True)):
        for file in building._objects(build, built(build).parent, *building.compiler()):
            kept(place / file.name, partial(copy_to, file))
    return folder / "mutants"


def copy_to(made: Path, target: Path) -> None:
    target.write_bytes(content(made) or b"")


@pytest.mark.exhaustive
@pytest.mark.parametrize("file", FILES)
def test_what_is_not_mutated_survives_the_same_runs(file: str, cache: Path) -> None:
    for engine in (engine for engine in ENGINES if tried(file, engine)):
        ended = run_originals(file, engine, cache)
        assert ended.how == SURVIVED, f"{engine}, seed {ended.seed}: {ended.detail}"


@pytest.mark.thinned(1)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_ends_as_the_list_says(mutant: Mutant, cache: Path) -> None:
    ended = {engine: run_mutant(mutant, engine, cache) for engine in expected(mutant)}
    assert {engine: ending.how for engine, ending in ended.items()} == expected(mutant), ended


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_its_text_is_in_the_source_and_in_what_its_case_runs(mutant: Mutant) -> None:
    case = CASES[mutant.case]
    before = in_one_text(SOURCES, case.kernel_file, [case.entry])
    after = in_one_text(mutated(SOURCES, mutant), case.kernel_file, [case.entry])
    assert before != after


def test_the_list_is_long_enough_and_names_each_mistake_once() -> None:
    dying = [mutant for mutant in MUTANTS if not mutant.equivalent]
    assert len(dying) >= FEWEST
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert all(set(mutant.dies.values()) - {SURVIVED} for mutant in dying)
    assert not any(mutant.dies for mutant in MUTANTS if mutant.equivalent)


def test_every_kernel_file_and_shared_header_with_a_protocol_has_mutants() -> None:
    files = {name for name in SOURCES if name.endswith(".cu")} | {
        "system.cuh",
        "primitives.cuh",
        "fold.cuh",
    }
    assert {mutant.file for mutant in MUTANTS if not mutant.equivalent} == files


def test_a_text_that_is_no_longer_there_is_refused() -> None:
    with pytest.raises(
        AssertionError, match=r"its text is 0 times in kernels/.*, expected 1; write the text"
    ):
        mutated({**SOURCES, MUTANTS[0].file: ""}, MUTANTS[0])
