"""``python -m tests.backends.cuda.ipc_on_cpu``: one process a GPU with CUDA emulated in each.

Device memory is one shared mapping at the same address everywhere; kernels of all processes run at once,
on threads. Prints one line for each case: its status, wrong elements, and detail.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from types import ModuleType

import numpy as np

from ccbench.backends.base import TeamRequest
from ccbench.backends.cuda import ipc
from ccbench.backends.cuda import runtime as modules
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.endpoint import WorkerGroup, open_worker_group
from ccbench.backends.kernels.building import Build, built
from ccbench.cases.axes import PER_GPU, Case
from ccbench.runner.workers.leader import Leader
from tests.backends.measuring import SAMPLING

from . import cases, emulated
from .emulated import EmulatedRuntime, FakeNvrtc, compiled_to_text

RANKS = 3
SHARE_BYTES = 256 << 20


def case_of(
    collective: str, count: int, in_place: bool = False, mode: str = "streaming"
) -> Case:
    algorithm = "barrier" if collective == "barrier" else "ring"
    changes = {"dtype": "int32", "in_place": in_place, "mode": mode, "processes": PER_GPU}
    return cases.case_of(collective, algorithm, RANKS, count, **changes)


def replace(module: ModuleType, name: str, stand_in: object) -> None:
    assert hasattr(module, name)
    setattr(module, name, stand_in)


@contextmanager
def led(cuda_of: Callable[[int], Cuda]) -> Iterator[tuple[Leader, Connection]]:
    """A team, each process with a CUDA of its own, and the runner's end of its leader."""
    group: WorkerGroup = open_worker_group("cuda", RANKS, 64, PER_GPU)
    made = group.endpoint

    def endpoint(process: int) -> object:
        replace(ipc, "open_cuda", lambda: cuda_of(process))
        return made(process)

    group.endpoint = endpoint  # type: ignore[method-assign,assignment]  # a CUDA of its own in each process
    leader = Leader(TeamRequest("cuda", RANKS, processes=PER_GPU), group)
    ours, theirs = socket.socketpair()
    with Connection(ours.detach()) as runner, Connection(theirs.detach()):
        leader.start(runner)
        yield leader, runner
        leader.end()


def main() -> None:
    emulated.LANES = 4
    built(Build("ring.cu"))
    built(Build("barrier.cu"))
    memory = np.frombuffer(mmap.mmap(-1, RANKS * SHARE_BYTES), np.uint8)
    replace(modules, "compile_program", compiled_to_text)
    replace(modules, "nvrtc", FakeNvrtc)

    def cuda_of(process: int) -> Cuda:
        share = memory[process * SHARE_BYTES : (process + 1) * SHARE_BYTES]
        room = SHARE_BYTES // (4 if process == 1 else 1)  # too little on one rank alone
        runtime = EmulatedRuntime(
            devices=2, processors=2, pool=share, threads=True, memory_bytes=room
        )
        return Cuda(runtime, runtime)

    with led(cuda_of) as (leader, runner):
        for collective, count, in_place, mode in (
            ("all_reduce", 1000, False, "streaming"),
            ("all_gather", 50, True, "graph"),
            ("all_reduce", 30_000, True, "isolated"),
            ("barrier", 0, False, "cold"),
            ("all_reduce", 40_000_000, False, "streaming"),
            ("all_reduce", 3, False, "graph"),
        ):
            measurement, _ = leader.run(
                case_of(collective, count, in_place, mode), SAMPLING, runner
            )
            flags = ",".join(measurement.conditions.flags)
            counts = (
                measurement.wrong_elements,
                measurement.blocked_launches,
                measurement.launches_per_sample,
            )
            print(measurement.status.value, *counts, flags, measurement.detail)
    one_rank_without_a_device()


def one_rank_without_a_device() -> None:
    """A team of which one rank has no CUDA: all ranks say so at once."""

    def cuda_of(process: int) -> Cuda:
        if process == 1:
            raise emulated.CudaError(46)
        runtime = EmulatedRuntime(devices=RANKS)
        return Cuda(runtime, runtime)

    with led(cuda_of) as (leader, runner):
        measurement, usable = leader.run(case_of("all_reduce", 10), SAMPLING, runner)
        print(measurement.status.value, usable, measurement.detail)


if __name__ == "__main__":
    main()
