"""The schedule and low latency kernels compiled for GPUs: registers, spills, fences."""

from __future__ import annotations

import re

import pytest

from ccbench.kernels.abi import MAX_LANES
from ccbench.kernels.sources import entry_named, program
from tests.kernels import nvrtc

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason=nvrtc.ABSENT)

FENCES = {"schedule": 1, "ll_all_reduce": 0, "ll_all_gather": 0, "ll_reduce_scatter": 0, "ll_broadcast": 0}
"""The interpreter tells all peers in one place; packets need none."""

REGISTERS = 65_536 // MAX_LANES


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", FENCES)
def test_every_kernel_fits_without_spilling(name: str, architecture: int) -> None:
    made = nvrtc.compiled(program(entry_named(name), "float32", "sum"), architecture)
    assert made.spill_bytes == 0
    assert made.registers <= REGISTERS
    assert len(re.findall(r"\bfence\.acq_rel\.sys\b", made.ptx)) == FENCES[name]
    assert not re.findall(r"\b(?:membar|fence\.sc)\b", made.ptx)


@pytest.mark.parametrize(
    ("dtype", "op"),
    [("float16", "avg"), ("bfloat16", "sum"), ("float8_e4m3", "avg"), ("float64", "min"), ("uint8", "avg")],
)
@pytest.mark.parametrize("name", ["schedule", "ll_all_reduce"])
def test_the_widest_kernels_fit_for_types_that_need_most(name: str, dtype: str, op: str) -> None:
    made = nvrtc.compiled(program(entry_named(name), dtype, op), 90)
    assert (made.spill_bytes, made.registers <= REGISTERS) == (0, True)


def test_a_packet_is_one_word_and_never_a_vector_of_two() -> None:
    """Elements of a vector may be seen apart, so data and flag may not be two of them."""
    ptx = nvrtc.compiled(program(entry_named("ll_all_reduce"), "float32", "sum"), 90).ptx
    assert re.findall(r"\bst\.relaxed\.sys\.global\.u64\b", ptx)
    assert not re.findall(r"\b(?:st|ld)\.(?:relaxed|volatile)\S*\.v2\.(?:u32|b32)\b", ptx)
