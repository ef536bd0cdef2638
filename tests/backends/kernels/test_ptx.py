"""The compiled GPU code on the host engine, bit for bit against NumPy: what the host build never executes.

Groups of 32 lanes, the GPU branch of system.cuh, conversions of half and of both float8, vector accesses, min
and max with NaN. A spread: each file with types and ops that turn, for three architectures.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench.backends.kernels.abi import OPS, TYPES
from ccbench.backends.kernels.building import Build, built, nvrtc
from ccbench.backends.kernels.sources import entries, kernel_folder
from tests.backends.kernels import nvrtc as compiler
from tests.backends.kernels.cases import SCHEDULES, KernelCase, case_of, parameters_of, run_case
from tests.backends.kernels.ptx import Translation, UnknownPtx, translated
from tests.backends.kernels.test_kernels import pairwise

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(compiler.library() is None, reason=compiler.ABSENT),
]

ARCHITECTURES = (75, 90, 100)
FILES = sorted(
    {entry.file for entry in entries().values() if entry.name not in ("barrier", "compare")}
)
LANES = 32
"""Of a group, which compiled kernels go by; a block has one or two."""

CASES_OF_AN_ENTRY = 6


def instances() -> list[tuple[str, str, str, int]]:
    """(file, dtype, op, architecture): mesh.cu, where all reduction is in one place, with every type."""
    ops = list(OPS)
    listed = [
        ("mesh.cu", dtype, ops[number % len(ops)], ARCHITECTURES[number % len(ARCHITECTURES)])
        for number, dtype in enumerate(TYPES)
    ]
    chosen = ("float32", "float16", "bfloat16", "float8_e4m3")
    for number, file in enumerate(name for name in FILES if name != "mesh.cu"):
        for turn in range(2):
            dtype = chosen[(number + 2 * turn) % len(chosen)]
            place = number + turn
            listed.append(
                (file, dtype, ops[place % len(ops)], ARCHITECTURES[place % len(ARCHITECTURES)])
            )
    return listed


def cases_of(file: str, dtype: str, op: str) -> list[KernelCase]:
    """A few cases of each entry that computes with this type, by the parameters that a build does not fix."""
    chosen = []
    for entry in (
        entry_of_file for entry_of_file in entries().values() if entry_of_file.file == file
    ):
        parameters = parameters_of(file) | (
            {"algorithm": SCHEDULES} if file == "schedule.cu" else {}
        )
        values = pairwise(parameters, seed=len(entry.name))
        random.Random(entry.name).shuffle(values)
        for number, each in enumerate(values[:CASES_OF_AN_ENTRY]):
            case = case_of(
                entry.name,
                {key: each[key] for key in each if key != "algorithm"},
                each.get("algorithm", ""),
            )
            lanes = LANES * (1 + number % 2)
            chosen.append(
                replace(case, dtype=dtype, op=op, lanes=lanes, root=case.root % case.ranks)
            )
    return chosen


@pytest.mark.parametrize(("file", "dtype", "op", "architecture"), instances())
def test_compiled_kernels_compute_what_numpy_does(
    file: str, dtype: str, op: str, architecture: int, tmp_path: Path
) -> None:
    build = translated(file, dtype, op, architecture, nvrtc(), tmp_path / "kernels")
    for seed, case in enumerate(cases_of(file, dtype, op)):
        run_case(case, build, seed)


MESH = KernelCase("mesh_one_shot_all_reduce", ranks=3, count=1003, lanes=LANES, slot_bytes=512)
HALVES = replace(MESH, entry="mesh_two_shot_all_reduce", dtype="float16")
PACKETS = KernelCase("ll_all_reduce", ranks=3, count=257, lanes=LANES)
PIECES = replace(PACKETS, entry="ll_two_shot_all_reduce")
RING = KernelCase("ring_all_reduce", ranks=6, count=2003, lanes=LANES, slot_bytes=64)

LOAD, STORE = (
    "ld.volatile.global.v2.u64 {%0, %1}, [%2]",
    "st.volatile.global.v2.u64 [%0], {%1, %2}",
)
READ, SEND = (
    "ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2]",
    "st.relaxed.sys.global.v2.u64 [%0], {%1, %2}",
)
POST = "st.relaxed.sys.global.u64 [%0], %1;"
TO_FLOAT = 'asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));'
TO_HALF = 'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));'

MUTANTS = {
    "a vector's halves are swapped when it is loaded": (
        LOAD,
        LOAD.replace("{%0, %1}", "{%1, %0}"),
        MESH,
    ),
    "a vector's halves are swapped when it is stored": (
        STORE,
        STORE.replace("{%1, %2}", "{%2, %1}"),
        MESH,
    ),
    "packets are swapped when they are loaded": (
        READ,
        READ.replace("{%0, %1}", "{%1, %0}"),
        PACKETS,
    ),
    "packets are swapped when they are sent": (
        SEND,
        SEND.replace("{%1, %2}", "{%2, %1}"),
        PACKETS,
    ),
    "the first packet of a pair is sent twice": (
        SEND,
        SEND.replace("{%1, %2}", "{%1, %1}"),
        PIECES,
    ),
    "a pair is sent beside its place": (SEND, SEND.replace("[%0]", "[%0+16]"), PIECES),
    "a flag is posted beside its word": (POST, POST.replace("[%0]", "[%0+8]"), RING),
    "the second flag of two is not posted": (
        "    store_relaxed(second, second_value);\n",
        "",
        RING,
    ),
    "a half is taken for a bfloat16": (
        TO_FLOAT,
        "value = __uint_as_float(bits << 16);",
        HALVES,
    ),
    "a float is cut to a bfloat16": (
        TO_HALF,
        "bits = (u16)(__float_as_uint(value) >> 16);",
        HALVES,
    ),
}
"""Mistakes in the GPU branch of system.cuh, which no host build sees: text, what it becomes, and the case."""


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mistake_that_only_compiled_code_has_is_found(name: str, tmp_path: Path) -> None:
    text, becomes, case = MUTANTS[name]
    sources = tmp_path / "mutated"
    shutil.copytree(kernel_folder(), sources)
    system = sources / "system.cuh"
    gpu, host = system.read_text(encoding="utf-8").split("#else  // the host", 1)
    assert text in gpu, "the text of the mutant is not there any more"
    system.write_text(f"{gpu.replace(text, becomes)}#else  // the host{host}", encoding="utf-8")
    build = translated(
        case.kernel_file, case.dtype, "sum", 90, nvrtc(), tmp_path / "kernels", sources
    )
    assert not ends_well(case, build)


@pytest.mark.parametrize(
    "case", [MESH, HALVES, PACKETS, PIECES, RING], ids=lambda case: case.entry
)
def test_what_finds_mistakes_finds_none_where_none_is(case: KernelCase, tmp_path: Path) -> None:
    build = translated(case.kernel_file, case.dtype, "sum", 90, nvrtc(), tmp_path / "kernels")
    assert ends_well(case, build)


def ends_well(case: KernelCase, build: Build) -> bool:
    """Whether ``case`` gives what it should, in a process of its own: nobody can know what a mistake does."""
    built(build)  # what does not compile is no mistake that is found

    def run() -> None:
        try:
            run_case(case, build, seed=3)
        except BaseException:
            os._exit(1)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(60)
    if process.is_alive():
        process.kill()
    process.join()
    return process.exitcode == 0


@pytest.mark.parametrize(
    "line",
    ["vote.sync.any.pred %p1, %p2, -1;", "cvt.rz.f16.f32 %rs1, %f1;", "mov.u32 %r1, %laneid;"],
)
def test_an_instruction_that_is_not_known_is_an_error(line: str) -> None:
    with pytest.raises(UnknownPtx):
        Translation(f".entry ccb_kernel()\n{{\n{line}\n}}\n").cpp("kernel")
