"""The tree and mesh kernels compiled for GPUs: registers, spills, fences."""

from __future__ import annotations

import re

import pytest

from ccbench.kernels.sources import entries, entry_named, program
from tests.kernels import nvrtc
from tests.kernels.test_nvrtc import REGISTERS

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason=nvrtc.ABSENT)

FENCES = {
    "mesh_all_gather": 2,
    "mesh_all_to_all": 2,
    "mesh_broadcast": 2,
    "mesh_gather": 2,
    "mesh_one_shot_all_reduce": 2,
    "mesh_reduce": 2,
    "mesh_reduce_scatter": 2,
    "mesh_scatter": 2,
    "mesh_two_shot_all_reduce": 2,
    "tree_all_reduce": 4,
    "tree_broadcast": 3,
    "tree_reduce": 2,
}
"""A mesh has two barriers, or one push and one credit. A step of a tree ends with one of two fences: for one
flag, or for both where a link carries both ways; all_reduce has steps up and down, broadcast opens first."""


def test_every_kernel_of_the_two_files_is_looked_at() -> None:
    assert set(FENCES) == {entry.name for entry in entries().values() if entry.file in ("mesh.cu", "tree.cu")}


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", FENCES)
def test_every_kernel_fits_without_spilling_and_fences_as_often_as_it_posts(
    name: str, architecture: int
) -> None:
    made = nvrtc.compiled(program(entry_named(name), "float32", "sum"), architecture)
    assert made.spill_bytes == 0
    assert made.registers <= REGISTERS
    assert len(re.findall(r"\bfence\.acq_rel\.sys\b", made.ptx)) == FENCES[name]
    assert not re.findall(r"\b(?:membar|fence\.sc)\b", made.ptx)


@pytest.mark.parametrize("name", ["tree_all_reduce", "mesh_one_shot_all_reduce"])
@pytest.mark.parametrize(
    ("dtype", "op"),
    [("float16", "avg"), ("bfloat16", "sum"), ("float8_e4m3", "avg"), ("float64", "sum"), ("int8", "avg")],
)
def test_the_widest_kernels_fit_for_types_that_need_most(name: str, dtype: str, op: str) -> None:
    made = nvrtc.compiled(program(entry_named(name), dtype, op), 90)
    assert (made.spill_bytes, made.registers <= REGISTERS) == (0, True)


@pytest.mark.parametrize("dtype", ["uint8", "float64"])
@pytest.mark.parametrize("name", ["tree_broadcast", "mesh_all_to_all"])
def test_the_widest_copies_fit_for_every_size_of_element(name: str, dtype: str) -> None:
    made = nvrtc.compiled(program(entry_named(name), dtype, "sum"), 90)
    assert (made.spill_bytes, made.registers <= REGISTERS) == (0, True)
