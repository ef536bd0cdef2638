"""The ring and barrier kernels compiled for GPUs: registers, spills, fences."""

from __future__ import annotations

import re

import pytest

from ccbench.kernels.abi import MAX_LANES
from ccbench.kernels.sources import GLOBAL_NAME, entry_named, program
from tests.kernels import nvrtc

pytestmark = pytest.mark.skipif(nvrtc.library() is None, reason=nvrtc.ABSENT)

FENCES = {
    "barrier": 1,
    "ring_all_reduce": 5,
    "ring_all_gather": 4,
    "ring_reduce_scatter": 3,
    "ring_broadcast": 4,
    "ring_reduce": 3,
    "ring_send_recv": 2,
}
"""One for every step in the source that posts: more would cost time, fewer would lose data."""

REGISTERS = 65_536 // MAX_LANES
"""A multiprocessor of compute capability 7.0 to 10.0 has 65,536 (CUDA C++ Programming Guide, table of
technical specifications), so that more than these could not be launched with MAX_LANES."""


@pytest.mark.parametrize("architecture", [80, 90, 100])
@pytest.mark.parametrize("name", FENCES)
def test_every_kernel_fits_without_spilling_and_fences_once_a_step(name: str, architecture: int) -> None:
    made = nvrtc.compiled(program(entry_named(name), "float32", "sum"), architecture)
    assert made.spill_bytes == 0
    assert made.registers <= REGISTERS
    assert made.cubin_bytes > 0
    assert len(re.findall(r"\bfence\.acq_rel\.sys\b", made.ptx)) == FENCES[name]
    assert not re.findall(r"\b(?:membar|fence\.sc)\b", made.ptx)
    assert f".entry {GLOBAL_NAME}(" in made.ptx


@pytest.mark.parametrize(
    ("dtype", "op"),
    [
        ("float16", "avg"),
        ("bfloat16", "sum"),
        ("float8_e4m3", "avg"),
        ("float64", "min"),
        ("int16", "min"),
        ("uint8", "min"),
    ],
)
@pytest.mark.parametrize("architecture", [80, 90])
def test_the_widest_kernel_fits_for_types_that_need_most(dtype: str, op: str, architecture: int) -> None:
    made = nvrtc.compiled(program(entry_named("ring_all_reduce"), dtype, op), architecture)
    assert (made.spill_bytes, made.registers <= REGISTERS) == (0, True)


def test_polls_are_relaxed_and_acquire_once_at_the_end() -> None:
    """An acquiring load drops the L1 cache, so it may not be what spins."""
    ptx = nvrtc.compiled(program(entry_named("barrier"), "uint8", "sum"), 90).ptx
    assert len(re.findall(r"\bld\.acquire\.sys\b", ptx)) == 1
    assert len(re.findall(r"\bld\.relaxed\.sys\b", ptx)) >= 1
