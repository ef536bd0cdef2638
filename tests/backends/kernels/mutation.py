"""Kernels with one planted mistake: the list in mutants.yaml, and what becomes of each on the host engine.

A mutant is built from one text into which the headers are copied, with only the entries that its case
runs: so that the engine's objects serve all mutants, and a mutant costs a second. It runs in a process of its
own, because nobody can know what a mistake does.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ccbench.backends.kernels.building import Build
from ccbench.backends.kernels.host_engine import KernelDeadlock, KernelFailed
from ccbench.backends.kernels.sources import kernel_folder
from tests.backends.kernels.cases import KernelCase, run_case
from tests.backends.kernels.checked import KernelCrashed, KernelRace

LIST = Path(__file__).with_name("mutants.yaml")
REPOSITORY = Path(__file__).resolve().parents[3]

Engine = Literal["plain", "sanitizer"]
SEEDS: Mapping[Engine, range] = {"plain": range(20), "sanitizer": range(5)}
"""Plain runs take hundredths of a second, sanitized ones tenths."""

SECONDS = 200
"""A mutant that takes longer, build and all, hangs."""

SURVIVED = "survived"

_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)
_ENTRY = re.compile(r"^CCB_ENTRY\((\w+), \w+\)$", re.MULTILINE)


@dataclass(frozen=True)
class Mutant:
    """``text`` in ``file``, which is there ``times`` times, becomes ``becomes``.

    dies: how it ends, by engine: wrong, deadlock or race. An engine that is not named is not tried.
    equivalent: why nobody can tell it from the original; then it has to survive.
    """

    name: str
    file: str
    text: str
    becomes: str
    case: str
    times: int
    dies: Mapping[Engine, str]
    equivalent: str


@dataclass(frozen=True)
class Outcome:
    """How runs with several seeds ended: at the first that did not survive. detail: its last words."""

    how: str
    seed: int
    detail: str


def mutants() -> tuple[list[Mutant], dict[str, KernelCase]]:
    """The list, and the cases by name."""
    import yaml

    document = yaml.safe_load(LIST.read_text(encoding="utf-8"))
    cases = {name: KernelCase(**fields) for name, fields in document["cases"].items()}
    listed = []
    for entry in document["mutants"]:
        fields_of_mutant = {"times": 1, "dies": {}, "equivalent": "", "becomes": "", **entry}
        listed.append(Mutant(**fields_of_mutant))
    return listed, cases


def mutated(sources: Mapping[str, str], mutant: Mutant) -> dict[str, str]:
    """The sources with the mistake; AssertionError where the text is not there as it was."""
    occurrences = sources[mutant.file].count(mutant.text)
    assert occurrences == mutant.times, (
        f"mutants.yaml: {mutant.name}: its text is {occurrences} times in kernels/{mutant.file}, expected "
        f"{mutant.times}; write the text as it is there now"
    )
    return {**sources, mutant.file: sources[mutant.file].replace(mutant.text, mutant.becomes)}


def shipped_sources() -> dict[str, str]:
    """Every kernel file and header by name."""
    folder = kernel_folder()
    return {
        file.name: file.read_text(encoding="utf-8")
        for file in (*folder.glob("*.cu"), *folder.glob("*.cuh"))
    }


def in_one_text(sources: Mapping[str, str], kernel_file: str, names_kept: Sequence[str]) -> str:
    """A kernel file with its headers copied in and only the entries of ``names_kept``."""
    there: set[str] = set()

    def copied(name: str) -> str:
        if name in there:
            return ""
        there.add(name)
        return _INCLUDE.sub(
            lambda match: copied(match.group(1)), sources[name].replace("#pragma once\n", "")
        )

    text = copied(kernel_file)
    return _ENTRY.sub(
        lambda match: match.group(0) if match.group(1) in names_kept else "", text
    )


def outcome(
    sources: Mapping[str, str], cases: Sequence[KernelCase], engine: Engine, cache: Path
) -> Outcome:
    """What becomes of ``cases``, all of one kernel file, in a process of its own. cache: where builds go."""
    kernel_file = cases[0].kernel_file
    entry_names = {name for case in cases for name in (case.entry, case.then)}
    with tempfile.TemporaryDirectory(prefix="ccbench-mutant-") as temporary:
        folder = Path(temporary) / "kernels"
        shutil.copytree(kernel_folder(), folder)
        (folder / kernel_file).write_text(
            in_one_text(sources, kernel_file, sorted(entry_names)), encoding="utf-8"
        )
        request = {
            "folder": str(folder),
            "engine": engine,
            "cases": [asdict(case) for case in cases],
        }
        environment = {**os.environ, "CCBENCH_CACHE": str(cache)}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "tests.backends.kernels.mutation"],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                check=False,
                cwd=REPOSITORY,
                env=environment,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            return Outcome("hangs", -1, f"no end after {SECONDS} s")
    if done.returncode != 0:
        return Outcome("crashed", -1, f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return Outcome(**json.loads(done.stdout))


ENDINGS: Mapping[type[Exception], str] = {
    AssertionError: "wrong",
    KernelDeadlock: "deadlock",
    KernelRace: "race",
    KernelCrashed: "crashed",
    KernelFailed: "failed",
}


def _ending(run: Callable[[], None]) -> tuple[str, str]:
    try:
        run()
    except tuple(ENDINGS) as error:
        return next(how for kind, how in ENDINGS.items() if isinstance(error, kind)), str(error)
    return SURVIVED, ""


def _answer(request: Mapping[str, Any]) -> Outcome:
    engine: Engine = request["engine"]
    for fields in request["cases"]:
        case = KernelCase(**fields)
        build = Build(case.kernel_file, Path(request["folder"]), sanitize=engine == "sanitizer")
        for seed in SEEDS[engine]:
            how, detail = _ending(lambda: run_case(case, build, seed))  # noqa: B023 - run at once
            if how != SURVIVED:
                return Outcome(how, seed, detail[-2000:])
    return Outcome(SURVIVED, -1, "")


if __name__ == "__main__":
    print(json.dumps(asdict(_answer(json.load(sys.stdin)))))
