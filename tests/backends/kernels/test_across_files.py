"""Kernels change between launches on the same work memory, while ranks are in different ones.

All kernel files are joined into one program, so that one run holds launches of any of them and a rank that
is ahead is in another algorithm than the one that it waits for.
"""

from __future__ import annotations

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import HostCall, HostOptions
from ccbench.backends.kernels.sources import entries, kernel_folder
from ccbench.collectives import collective
from ccbench.schedules import ALGORITHMS
from tests.backends.kernels.cases import (
    KernelCase,
    collective_of,
    launch_of,
    run_case,
    world_for,
)
from tests.backends.kernels.schedule_reference import schedule_of
from tests.backends.kernels.worlds import Prepared, Reference, Trial, check

WORLDS, SANITIZED_WORLDS, PULL_SEEDS = 60, 15, 40
SCHEDULES = [f"{row.collective} {row.name}" for row in ALGORITHMS]
JOINED = "all.cu"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels' folder with one file more, in which all others are."""
    made = tmp_path_factory.mktemp("joined") / "kernels"
    shutil.copytree(kernel_folder(), made)
    files = sorted(made.glob("*.cu"))
    (made / JOINED).write_text("".join(map(in_a_namespace, files)), encoding="utf-8")
    return made


def in_a_namespace(file: Path) -> str:
    """A kernel file whose helpers meet no others of the same name; its entries stay where they were."""
    text = file.read_text(encoding="utf-8")
    includes = "".join(re.findall(r'^#include ".*"\n', text, re.MULTILINE))
    text = re.sub(r'^#include ".*"\n', "", text, flags=re.MULTILINE)
    space = f"in_{file.stem}"
    names = [entry.name for entry in entries().values() if entry.file == file.name]
    begin, end = "namespace ccb {\n", "}  // namespace ccb\n"
    assert text.count(begin) == text.count(end) == 1, (
        f"{file.name}: written in another way than expected"
    )
    using = "".join(f"using {space}::{name}; " for name in names)
    text = text.replace(begin, f"namespace ccb {{ namespace {space} {{\n")
    return includes + text.replace(end, f"}} }}\nnamespace ccb {{ {using}}}\n")


def random_world(seed: int, build: Build) -> int:
    """Some launches of any kernels in a row on one world, all checked; how many files they are of."""
    generator = random.Random(seed)
    pick = generator.choice
    ranks, channels = pick([2, 3, 4, 5, 8, 11]), pick([1, 2, 3, 5])
    base = KernelCase(
        "ring_all_reduce",
        ranks=ranks,
        channels=channels,
        slots=pick([2, 4]),
        slot_bytes=pick([64, 256, 512]),
        packets=pick([2, 16, 64]),
    )
    options = HostOptions(
        lanes=pick([2, 4] if build.sanitize else [1, 2, 5, 8]),
        seed=generator.getrandbits(30),
        devices=pick([ranks, ranks, generator.randint(1, ranks)]),
    )
    world = world_for(base)
    calls: list[HostCall] = []
    launched: list[tuple[Prepared, Reference]] = []
    for _ in range(generator.randint(3, 8)):
        entry = pick(sorted(entries().keys() - {"compare"}))
        case = replace(
            base,
            entry=entry,
            channels=generator.randint(1, channels),
            shuffled=pick([0, 1]) == 1,
        )
        if entry == "barrier":
            nothing = [0] * ranks
            calls.append(
                HostCall("barrier", "uint8", 0, nothing, nothing, channels=case.channels)
            )
            continue
        if entry == "schedule":
            there = [
                schedule
                for schedule in SCHEDULES
                if schedule_of(schedule, ranks, 0, 0) is not None
            ]
            case = replace(case, algorithm=pick(there))
        launched.append(launch_of(case, world, random_trial(generator, case)))
        calls.append(launched[-1][0].call)
    world.run(build, calls, options)
    for prepared, reference in launched:
        if collective(prepared.trial.collective).moves_data:
            check(world, prepared, reference)
    return len({entries()[call.entry].file for call in calls})


def random_worlds(build: Build) -> list[int]:
    """Of every world of the plain build, how many files it is of."""
    return [random_world(seed, build) for seed in range(WORLDS)]


def random_trial(generator: random.Random, case: KernelCase) -> Trial:
    """Any data of a small size for ``case.entry``."""
    pick = generator.choice
    return Trial(
        case.entry,
        collective_of(case, case.entry),
        pick(["float32", "bfloat16", "uint8", "float64"]),
        pick(["sum", "max", "avg"]),
        pick([0, 1, case.ranks - 1, case.ranks, 31, 97, 257]),
        generator.randrange(case.ranks),
        pick([False, True]),
        pick([0, 0, 1, 3]),
        pick([1, 1, 2]),
        generator.getrandbits(20),
    )


@pytest.mark.exhaustive
def test_ranks_that_are_in_different_algorithms_do_not_disturb_each_other(folder: Path) -> None:
    build = Build(JOINED, folder=folder)
    files = random_worlds(build)
    assert sum(number > 1 for number in files) > WORLDS // 2


@pytest.mark.exhaustive
def test_they_do_not_race_either(folder: Path) -> None:
    build = Build(JOINED, folder=folder, sanitize=True)
    files = [random_world(seed, build) for seed in range(1000, 1000 + SANITIZED_WORLDS)]
    assert sum(number > 1 for number in files) > SANITIZED_WORLDS // 2


PULL = KernelCase(
    "mesh_pull_all_reduce", then="ll_broadcast", overwrites=True, channels=1, lanes=2, count=3
)
"""A packet of a root that is through a pull says nothing of who still reads the input that it goes to."""


def run_pulls(folder: Path) -> None:
    for seed in range(PULL_SEEDS):
        run_case(PULL, Build(JOINED, folder=folder), seed)


def test_an_input_may_be_written_once_its_rank_is_through_a_pull(folder: Path) -> None:
    """And not without the barrier behind it."""
    run_pulls(folder)
    joined = folder / JOINED
    text = joined.read_text(encoding="utf-8")
    behind = "fold_all<false>(block, fold);\n    }\n    return rank_barrier(block);"
    joined.write_text(text.replace(behind, behind.replace("rank_barrier(block)", "true")))
    with pytest.raises(AssertionError, match="mesh_pull_all_reduce"):
        run_pulls(folder)
    joined.write_text(text, encoding="utf-8")
