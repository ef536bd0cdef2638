"""Compile what own kernels need here into the caches, on all cores: GPUs are too dear to wait for compilers.

    python -m tests.gpu.warm [--capability 90] [--most N]

The instances that suites/loopback.yaml, benchmarks/gpu.py and tests/gpu ask for, those of most use first; and
the host engine that tests/gpu compares with, where there is a C++ compiler. The capability is that of the
first GPU unless it is given: then neither a GPU nor a driver is needed.
Exit codes: 0 all compiled, 1 one did not, 2 usage, or no NVRTC or no GPU.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from ccbench.backends.cuda.runtime import open_cuda
from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import Nvrtc, architecture_for, compile_program, nvrtc
from ccbench.backends.kernels.sources import CompilerInput, beside, choose, entries, program
from ccbench.dtypes import ITEM_BYTES
from ccbench.errors import CcbenchError, MissingDependency

from .cases import OPS, case_of, reducing_share

RANKS = 4


def programs() -> list[CompilerInput]:
    """Each once, in the order in which they are asked for."""
    programs = [
        beside("blocking.cu"),
        *(program(entry, "float32", "sum") for entry in entries().values()),
    ]
    for dtype in ("bfloat16", "int32"):
        programs += [
            program(entry, dtype, "sum")
            for entry in entries().values()
            if entry.name.endswith("all_reduce")
        ]
    for dtype in ITEM_BYTES:
        for op in OPS:
            cases = (
                case_of(*point, RANKS, 1003, dtype, op) for point in reducing_share(dtype, op)
            )
            programs += [program(choose(case).entry, dtype, op) for case in cases]
    return list({one.digest: one for one in programs}.values())


def compiler_for(capability: int) -> Nvrtc:
    """The one that backends take where several are installed: for another's cubins nobody would ask."""
    try:
        from cupy.cuda import runtime  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return nvrtc(capability)
    return nvrtc(
        capability, runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000
    )


def compiled(one: CompilerInput, capability: int) -> None:
    """Into the cache."""
    compiler = compiler_for(capability)
    compile_program(
        one, architecture_for(capability, compiler.architectures), compiler=compiler
    )


def work(capability: int, most: int | None) -> Iterator[Callable[[], object]]:
    """What is to be done, each by a process of its own."""
    for one in programs()[:most]:
        yield partial(compiled, one, capability)
    try:
        building.compiler()
    except MissingDependency as error:
        print(f"no host engine: {error}")
        return
    for file in dict.fromkeys(entry.file for entry in entries().values()):
        yield partial(building.built, building.Build(file))


def failure_of(step: Callable[[], object]) -> str:
    """Do it; the error's sentence, empty where there is none."""
    try:
        step()
    except CcbenchError as error:
        return str(error)
    return ""


def main(arguments: Sequence[str]) -> int:
    """Compile; the exit code."""
    parser = argparse.ArgumentParser(prog="tests.gpu.warm", description=__doc__)
    parser.add_argument(
        "--capability", type=int, default=None, help="90 for compute capability 9.0"
    )
    parser.add_argument("--most", type=int, default=None, help="no more programs than these")
    options = parser.parse_args(arguments)
    try:
        capability = options.capability or open_cuda().facts(0).capability
        compiler = compiler_for(capability)
        architecture = architecture_for(capability, compiler.architectures)
    except CcbenchError as error:
        print(f"tests/gpu/warm.py: {error}", file=sys.stderr)
        return error.exit_code
    began, cores = time.monotonic(), len(os.sched_getaffinity(0))
    steps = [*work(capability, options.most)]
    with ProcessPoolExecutor(cores, multiprocessing.get_context("spawn")) as pool:
        failures = [text for text in pool.map(failure_of, steps) if text]
    for text in failures:
        print(f"FAILED {text}")
    done = f"{len(steps) - len(failures)} of {len(steps)} for sm_{architecture}"
    print(
        f"{done} by NVRTC {compiler.full_version}, {cores} cores, {time.monotonic() - began:.0f} s"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
