"""The sources: which entries there are, what a program is made of, and the rules that hold in every file."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.sources import (
    choose,
    kernel_folder,
    unsupported,
)
from ccbench.cases.axes import Case
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


CASE = Case("s", "cuda", "all_reduce", "ring", "float32", "sum", 4096, 1024, 4)


@pytest.mark.parametrize(
    ("ranks", "size", "algorithm"),
    [
        (8, "8 B", "ll"),
        (8, "4 KiB", "ll"),
        (8, "16 KiB", "ll"),
        (8, "32 KiB", "mesh_two_shot"),
        (8, "256 KiB", "mesh_two_shot"),
        (8, "1 MiB", "mesh_two_shot"),
        (8, "1 GiB", "mesh_two_shot"),
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


@pytest.mark.parametrize(
    ("name", "ranks", "size", "algorithm"),
    [
        ("all_reduce", 8, "64 KiB", "tree"),
        ("all_reduce", 8, "1 MiB", "ring"),
        ("all_reduce", 2, "64 KiB", "ring"),
        ("broadcast", 8, "64 KiB", "tree"),
        ("all_to_all", 8, "1 GiB", "mesh"),
    ],
)
def test_default_leaves_meshes_where_not_every_pair_of_gpus_has_links(
    name: str, ranks: int, size: str, algorithm: str
) -> None:
    case = replace(CASE, algorithm="default", ranks=ranks, size_bytes=parse_size(size))
    assert choose(replace(case, collective=name), joined=False).algorithm == algorithm


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
        (
            {"algorithm": "mesh_pull", "in_place": True},
            "mesh_pull has no all_reduce in place: every rank reads all inputs",
        ),
        (
            {"algorithm": "put", "collective": "send_recv", "in_place": True},
            "put has no send_recv in place: a neighbour may write",
        ),
    ],
)
def test_what_no_kernel_can_run_says_why(changes: dict[str, object], words: str) -> None:
    assert unsupported(CASE) is None
    assert words in str(unsupported(replace(CASE, **changes)))  # type: ignore[arg-type]  # of any field
