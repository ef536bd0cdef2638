"""The sources: which entries there are, what a program is made of, and the rules that hold in every file."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from ccbench.backends.kernels.sources import entries, entry_named, kernel_folder, program
from ccbench.errors import UsageError

KERNELS = kernel_folder()
CODE = sorted(file for ending in ("*.cu", "*.cuh", "host/*.cpp", "host/*.h") for file in KERNELS.glob(ending))

# Comments may speak of it; code may not.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


def code_of(file: Path) -> str:
    return _COMMENT.sub("", file.read_text(encoding="utf-8"))


def test_every_algorithm_has_its_entries() -> None:
    assert {
        "barrier",
        "ring_all_gather",
        "ring_all_reduce",
        "ring_broadcast",
        "ring_reduce",
        "ring_reduce_scatter",
        "ring_send_recv",
    } <= entries().keys()
    assert all(name.split("_")[0] == Path(entry.file).stem for name, entry in entries().items())


@pytest.mark.parametrize("file", [f for f in CODE if f.name != "system.cuh"], ids=lambda file: file.name)
def test_asm_is_in_one_file_only(file: Path) -> None:
    assert not re.search(r"\b(?:asm|__asm__|__asm)\b", code_of(file))


@pytest.mark.parametrize("file", [*KERNELS.glob("*.cu"), *KERNELS.glob("*.cuh")], ids=lambda file: file.name)
def test_kernels_include_nothing_but_each_other(file: Path) -> None:
    included = re.findall(r'#include\s+["<]([^">]+)[">]', code_of(file))
    assert all((KERNELS / name).is_file() for name in included)
    assert not re.search(r"__threadfence|__syncwarp|\batomic[A-Z]|cooperative_groups", code_of(file))


@pytest.mark.parametrize("file", CODE, ids=lambda file: file.name)
def test_lines_are_at_most_120_characters(file: Path) -> None:
    assert [line for line in file.read_text().splitlines() if len(line) > 120] == []


def test_entries_that_only_copy_are_compiled_by_element_size() -> None:
    gather = entry_named("ring_all_gather")
    assert program(gather, "float32", "max") == program(gather, "int32", "avg")
    assert program(gather, "float32", "sum").options != program(gather, "float64", "sum").options


def test_entries_that_reduce_are_compiled_by_type_and_op() -> None:
    reduce = entry_named("ring_all_reduce")
    options = {program(reduce, dtype, op).options for dtype in ("float32", "int32") for op in ("sum", "min")}
    assert len(options) == 4


def test_a_program_knows_when_anything_it_is_made_of_changes(tmp_path: Path) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(KERNELS, copy)
    before = program(entry_named("barrier"), "uint8", "sum", copy).digest
    assert before == program(entry_named("barrier"), "uint8", "sum").digest
    (copy / "types.cuh").write_text((copy / "types.cuh").read_text() + "\n")
    assert before != program(entry_named("barrier"), "uint8", "sum", copy).digest


def test_an_unknown_entry_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="ring_all_reduce"):
        entry_named("ring_all_recude")
