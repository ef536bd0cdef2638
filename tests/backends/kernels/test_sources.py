"""The sources: which entries there are, what a program is made of, and the rules that hold in every file."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.sources import (
    choose,
    entries,
    kernel_algorithms,
    kernel_folder,
    program,
    unsupported,
)
from ccbench.cases.axes import Case
from ccbench.collectives import COLLECTIVES
from ccbench.schedules import algorithms_of
from ccbench.units import parse_size

KERNELS = kernel_folder()
CODE = sorted(
    file
    for ending in ("*.cu", "*.cuh", "host/*.cpp", "host/*.h")
    for file in KERNELS.glob(ending)
)

# Comments may speak of it; code may not.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def code_of(file: Path) -> str:
    return _COMMENT.sub("", file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "file", [f for f in CODE if f.name != "system.cuh"], ids=lambda file: file.name
)
def test_asm_is_in_one_file_only(file: Path) -> None:
    assert not re.search(r"\b(?:asm|__asm__|__asm)\b", code_of(file))


@pytest.mark.parametrize(
    "file", [*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")], ids=lambda file: file.name
)
def test_kernels_include_nothing_but_each_other(file: Path) -> None:
    included = re.findall(r'#include\s+["<]([^">]+)[">]', code_of(file))
    assert all((KERNELS / name).is_file() for name in included)
    assert not re.search(
        r"__threadfence|__syncwarp|\batomic[A-Z]|cooperative_groups", code_of(file)
    )


@pytest.mark.parametrize("file", CODE, ids=lambda file: file.name)
def test_lines_are_at_most_120_characters(file: Path) -> None:
    assert [line for line in file.read_text().splitlines() if len(line) > 120] == []


@pytest.mark.parametrize(
    ("entry", "programs"), [("ring_all_gather", 2), ("ring_all_reduce", 6)]
)
def test_entries_that_reduce_are_compiled_by_type_and_op_and_others_by_element_size(
    entry: str, programs: int
) -> None:
    types, ops = ("float32", "int32", "float64"), ("sum", "min")
    assert (
        len({program(entries()[entry], dtype, op).options for dtype in types for op in ops})
        == programs
    )


def test_a_program_knows_when_anything_it_is_made_of_changes(tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(KERNELS, copy)
    before = program(entries()["barrier"], "uint8", "sum", copy).digest
    assert before == program(entries()["barrier"], "uint8", "sum").digest
    (copy / "types.cuh").write_text((copy / "types.cuh").read_text() + "\n")
    assert before != program(entries()["barrier"], "uint8", "sum", copy).digest


CASE = Case("s", "cuda", "all_reduce", "ring", "float32", "sum", 4096, 1024, 4)


def test_every_entry_is_reachable_by_some_case() -> None:
    reached = set()
    for collective in COLLECTIVES:
        for algorithm in kernel_algorithms(collective):
            name = algorithm.split(":")[1] if algorithm.startswith("schedule:") else ""
            case = replace(CASE, collective=collective, algorithm=algorithm, root=0)
            choice = choose(case)
            assert (choice.algorithm, choice.schedule) == (algorithm, name)
            reached.add(choice.entry.name)
    assert reached == entries().keys() - {"compare"}  # which runs no collective


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_interpreter_offers_every_schedule(collective: str) -> None:
    offered = {name for name in kernel_algorithms(collective) if name.startswith("schedule:")}
    assert offered == {f"schedule:{name}" for name in algorithms_of(collective)}


@pytest.mark.parametrize("size_bytes", [0, 8, 32 << 10, 1 << 20, 4 << 20, 1 << 30])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_default_is_a_kernel_that_there_is_wherever_there_is_one(
    collective: str, size_bytes: int
) -> None:
    case = replace(
        CASE, collective=collective, algorithm="default", size_bytes=size_bytes, root=0
    )
    assert choose(case).algorithm in kernel_algorithms(collective)


@pytest.mark.parametrize(
    ("ranks", "size", "algorithm"),
    [
        (8, "8 B", "ll"),
        (8, "4 KiB", "ll"),
        (8, "16 KiB", "ll"),
        (8, "32 KiB", "mesh_two_shot"),
        (8, "256 KiB", "mesh_two_shot"),
        (8, "1 MiB", "mesh_two_shot"),
        (8, "1 GiB", "ring"),
        (2, "32 KiB", "ll"),
        (2, "128 KiB", "mesh_two_shot"),
        (1, "1 MiB", "mesh_two_shot"),
    ],
)
def test_default_is_what_is_expected_to_be_fastest_for_so_many_ranks(
    ranks: int, size: str, algorithm: str
) -> None:
    case = replace(CASE, algorithm="default", ranks=ranks, size_bytes=parse_size(size))
    assert choose(case).algorithm == algorithm


def test_a_parameter_reaches_the_schedule() -> None:
    case = replace(CASE, collective="broadcast", algorithm="schedule:chain:8", root=0)
    assert choose(case).schedule == "chain:8"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": "nothing"}, "no kernel runs all_reduce as 'nothing'; there are "),
        (
            {"algorithm": "schedule:nothing"},
            "no schedule 'nothing' of all_reduce; there are schedule:ring, ",
        ),
        ({"algorithm": "schedule:ring:4"}, "ring has no parameter; write 'schedule:ring'"),
        ({"algorithm": "schedule:hierarchical:3"}, "do not divide 4 ranks"),
        ({"algorithm": "schedule:chain:x"}, "is not a name or name:number"),
        ({"collective": "nothing"}, "is not known"),
        ({"nodes": 2}, "on one node"),
    ],
)
def test_what_no_kernel_can_run_says_why(changes: dict[str, object], words: str) -> None:
    assert unsupported(CASE) is None
    assert words in str(unsupported(replace(CASE, **changes)))  # type: ignore[arg-type]  # of any field
