"""Callables on arrays of CuPy's shape, right ones and planted ones, on doubles of GPUs: a thread for each rank."""

from __future__ import annotations

import ctypes
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ccbench.backends import call_cuda
from ccbench.backends.call import FILE_VARIABLE
from ccbench.backends.cuda import runtime as runtime_module
from ccbench.backends.cuda.runtime import Cuda
from ccbench.backends.device_memory import named
from ccbench.cases.measurement import CaseFacts
from ccbench.runner.measure import RankResult
from tests.backends.measuring import case_of, measured
from tests.backends.nccl.test_processes import Meeting

from .emulated import EmulatedRuntime, FakeNvrtc, compiled_to_text
from .streams import Task, World

RANKS, TASK_SECONDS = 2, 2.0**-16
PROGRAM = """
import ctypes, cupy, numpy
TENSORS = "cupy"

def right(tensor, group):
    out = numpy.empty_like(tensor.host)
    peers = [other.host for other in group.inputs]
    cupy.meet(group.rank)
    cupy.enqueue(lambda: numpy.copyto(out, sum(peers[1:], peers[0])))
    cupy.meet(group.rank)
    return cupy.Array(out)

def in_place(tensor, group):
    total = right(tensor, group)
    cupy.enqueue(lambda: numpy.copyto(tensor.host, total.host))

def waiting(tensor, group):
    cupy.synchronize()
    return right(tensor, group)

def straying(tensor, group):
    end = tensor.host.ctypes.data + tensor.host.nbytes
    cupy.enqueue(lambda: ctypes.memset(end, 1, 3))
    return right(tensor, group)

def overwriting(tensor, group):
    result = right(tensor, group)
    cupy.enqueue(lambda: tensor.host.fill(0))
    return result

def tiring(tensor, group):
    result = right(tensor, group)
    def spoil():
        group.runs = getattr(group, "runs", 0) + 1
        result.host[3] += group.runs > 4
    cupy.enqueue(spoil)
    return result
"""


class CallRuntime(EmulatedRuntime):
    """One rank's CUDA, with the calls that memory of a device for processes takes besides."""

    def memset(self, to: int, value: int, size: int) -> None:
        ctypes.memset(to, value, size)

    def memcpy(self, to: int, source: int, size: int, kind: int) -> None:
        ctypes.memmove(to, source, size)

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802 - as CUDA spells it
        return 1 << 30, 1 << 31

    def deviceSynchronize(self) -> None:  # noqa: N802 - as CUDA spells it
        for stream in [*self.world.streams.values()]:
            if stream.captured is None and stream.device == self.device:
                self.streamSynchronize(stream.handle)


class Meet(Task):
    """A barrier on the devices: over when every rank's stream has come to as many."""

    def __init__(self, counts: list[int], rank: int) -> None:
        super().__init__(lambda: None)
        self.counts, self.rank, self.turn = counts, rank, 0

    def attempt(self) -> bool:
        if not self.turn:
            self.counts[self.rank] += 1
            self.turn = self.counts[self.rank]
        return min(self.counts) >= self.turn

    def again(self) -> Meet:
        again = Meet(self.counts, self.rank)
        again.stream = self.stream
        return again


class Array:
    """``cupy.ndarray``, as far as ccbench looks at one."""

    def __init__(self, host: np.ndarray[Any, Any]) -> None:
        self.host, self.dtype = host, host.dtype
        self.data = SimpleNamespace(ptr=host.ctypes.data)

    def view(self, dtype: np.dtype[Any]) -> Array:
        if dtype.name == "bfloat16":
            raise TypeError("bfloat16")
        return Array(self.host.view(dtype))

    def get(self) -> np.ndarray[Any, Any]:
        return self.host


class Cupy(threading.local):
    """``cupy`` of this thread's rank."""

    runtime: CallRuntime
    counts: list[int]
    stream = 0

    def __init__(self) -> None:
        self.Array = Array
        self.cuda = SimpleNamespace(
            ExternalStream=lambda stream, number: SimpleNamespace(
                use=lambda: setattr(self, "stream", stream)
            ),
            UnownedMemory=lambda address, size, owner: address,
            MemoryPointer=lambda memory, offset: memory + offset,
        )

    def ndarray(self, size: int, dtype: str, at: int) -> Array:
        return Array(named(at, size))

    def enqueue(self, run: Any) -> None:
        self.runtime._add(self.stream, Task(run, TASK_SECONDS))

    def meet(self, rank: int) -> None:
        self.runtime._add(self.stream, Meet(self.counts, rank))

    def synchronize(self) -> None:
        self.runtime.streamSynchronize(self.stream)


Answers = list[tuple[RankResult, CaseFacts]]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Rounds of cases of the file's functions, on every rank: what each found."""
    file, cupy = tmp_path / "mine.py", Cupy()
    file.write_text(PROGRAM)
    monkeypatch.setenv(FILE_VARIABLE, str(file))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(runtime_module, "nvrtc", FakeNvrtc)
    monkeypatch.setattr(runtime_module, "compile_program", compiled_to_text)
    monkeypatch.setattr(
        call_cuda, "open_cuda", lambda own_kernels: Cuda(cupy.runtime, cupy.runtime)
    )

    def rounds(*names: str, peers: bool = True, **changes: Any) -> list[Answers]:
        world, counts = World(devices=RANKS, patience_seconds=30.0), [0] * RANKS
        shared = [b""] * RANKS, threading.Barrier(RANKS, timeout=60)

        def rank(number: int) -> Answers:
            cupy.runtime = CallRuntime(devices=RANKS, world=world)
            cupy.counts = counts
            if not peers:
                cupy.runtime.failing["ipcOpenMemHandle"] = [RuntimeError("no peer access")] * 9
            endpoint = call_cuda.CudaCallEndpoint(Meeting(number, ("a",) * RANKS, *shared))
            cases = [
                case_of("call-cuda", "all_reduce", f"{file}:{name}", RANKS, 64, **changes)
                for name in names
            ]
            answers = [measured(endpoint, case) for case in cases]
            endpoint.close()
            assert not cupy.runtime.opened
            return answers

        with ThreadPoolExecutor(RANKS) as pool:
            return list(pool.map(rank, range(RANKS), timeout=120))

    return rounds


@pytest.mark.parametrize("mode", ["streaming", "isolated", "graph", "cold"])
def test_a_right_callable_is_right_and_timed_by_the_device(play: Any, mode: str) -> None:
    for rank, answers in enumerate(play("right", "right", mode=mode)):
        for result, facts in answers:
            assert result.mismatch is None
            # Whole launches of one task each, by the device's clock whatever the host took.
            seconds = np.diff(result.stamps[rank])[:, 0]
            assert np.allclose(seconds / TASK_SECONDS % 1, 0)
            assert (seconds > 0).all()
            assert (
                facts.blocked_launches == 0
            )  # nothing here compiles the kernel that holds devices back


def test_what_is_left_in_the_tensor_in_place_is_the_result(play: Any) -> None:
    for ((result, _),) in play("in_place", mode="graph", in_place=True):
        assert result.mismatch is None


def test_a_result_that_only_replays_spoil_is_wrong(play: Any) -> None:
    for ((result, _),) in play("tiring", mode="graph"):
        assert result.mismatch is not None
        assert (result.mismatch.offset, result.mismatch.wrong_elements) == (3, 1)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("straying", {}, "straying wrote beside a buffer of 256 bytes"),
        ("overwriting", {}, "overwriting changed the input of this rank"),
        (
            "waiting",
            {"mode": "graph"},
            "waiting cannot be captured in a CUDA graph .CudaError: ",
        ),
        ("right", {"peers": False}, "IndexError|list index|tuple index"),
        ("right", {"dtype": "bfloat16"}, "this CuPy has no bfloat16"),
    ],
)
def test_a_callable_that_breaks_its_promise_is_named(
    play: Any, name: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words):
        play(name, **changes)
