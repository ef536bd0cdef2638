"""How fast one device copies within its memory, measured by ccbench's own rules, in a process of its own.

    python benchmarks/gpu_copy.py BACKEND SIZE_BYTES BUDGET_SECONDS

Prints JSON: seconds per copy of every sample. BACKEND is ``cuda`` (cudaMemcpyAsync through CuPy, timed by the
device's events) or ``cuda-host`` (NumPy, to try the benchmark without a GPU). benchmarks/gpu.py starts it
before and after its suite; a process of its own, because what plans and writes runs loads no CUDA.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that a checkout runs uninstalled

from ccbench.backends.base import OutOfMemory
from ccbench.backends.cuda.blocking_kernel import blocked, most_blocked, open_blocking_kernel
from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.runtime import ON_DEVICE, TO_HOST, Cuda, open_cuda, starting
from ccbench.backends.endpoint import Result
from ccbench.cases.axes import Case
from ccbench.cases.measurement import Sampling
from ccbench.errors import CcbenchError
from ccbench.runner.measure import durations, measure
from ccbench.verification import Mismatch

MOST_SAMPLES = 200
POISON = 251
"""What a target holds before a copy; sources hold smaller bytes."""


class Copies(Protocol):
    """Two buffers and a way to copy one into the other."""

    def fill(self, value: int) -> None:
        """Every byte of the source becomes ``value``."""

    def poison(self) -> None:
        """Every byte of the target becomes POISON."""

    def copy(self, times: int) -> float:
        """Copy so often, wait, and return the seconds it took by the device's clock."""

    def wrong_bytes(self, value: int) -> int:
        """Bytes of the target that are not ``value``."""


class HostCopies:
    """NumPy's copy, in the place of a device's."""

    def __init__(self, size_bytes: int) -> None:
        self._source = np.zeros(size_bytes, np.uint8)
        self._target = np.zeros(size_bytes, np.uint8)

    def fill(self, value: int) -> None:
        """As Copies."""
        self._source.fill(value)

    def poison(self) -> None:
        """As Copies."""
        self._target.fill(POISON)

    def copy(self, times: int) -> float:
        """As Copies."""
        began = time.perf_counter()
        for _ in range(times):
            np.copyto(self._target, self._source)
        return time.perf_counter() - began

    def wrong_bytes(self, value: int) -> int:
        """As Copies."""
        return int(np.count_nonzero(self._target != value))


class CudaCopies:
    """cudaMemcpyAsync from device memory to device memory, timed as kernels are: behind a blocking kernel."""

    def __init__(self, size_bytes: int, cuda: Cuda) -> None:
        self._cuda, self._bytes = cuda, size_bytes
        cuda.use(0)
        self._group = DeviceContext(cuda, cuda.facts(0), range(1))
        self._stream = self._group.stream
        self._blocking, _ = open_blocking_kernel(cuda, [self._group])
        self._source, self._target = cuda.allocate(size_bytes), cuda.allocate(size_bytes)
        self._host = np.zeros(size_bytes, np.uint8)

    def fill(self, value: int) -> None:
        """As Copies."""
        self._set(self._source, value)

    def poison(self) -> None:
        """As Copies."""
        self._set(self._target, POISON)

    def _set(self, address: int, byte: int) -> None:
        self._cuda.runtime.memsetAsync(address, byte, self._bytes, self._stream)
        self._cuda.runtime.streamSynchronize(self._stream)

    def copy(self, times: int) -> float:
        """As Copies."""
        copy, group = self._cuda.runtime.memcpyAsync, self._group
        with blocked(self._blocking, [group]) as release:
            group.begin()
            for number in range(times):
                if number == most_blocked(1):
                    release()
                copy(self._target, self._source, self._bytes, ON_DEVICE, self._stream)
            group.end()
        group.synchronize()
        if self._blocking:
            self._blocking.raise_if_timed_out()
        return group.elapsed_seconds()

    def wrong_bytes(self, value: int) -> int:
        """As Copies."""
        runtime = self._cuda.runtime
        runtime.memcpyAsync(
            self._host.ctypes.data, self._target, self._bytes, TO_HOST, self._stream
        )
        runtime.streamSynchronize(self._stream)
        return int(np.count_nonzero(self._host != value))


class CopyEndpoint:
    """What ``ccbench.runner.measure`` measures: one rank whose collective is a copy."""

    rank = 0
    ranks = 1

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._seconds = 0.0
        self.stamps = np.zeros((1, MOST_SAMPLES, 2))

    def refill(self, seed: int, launches: int = 1) -> None:
        """New data for each seed."""
        self._copies.fill(seed % POISON)

    def poison(self) -> None:
        """Spoil the target."""
        self._copies.poison()

    def launch(self, times: int) -> None:
        """Copy so often."""
        self._seconds = self._copies.copy(times)

    def launch_and_time_waits(self, times: int) -> float:
        """Nobody is waited for."""
        self.launch(times)
        return 0.0

    def sample_launches(self, expected: int, seconds: float) -> int:
        """As many as the length of a sample asks for."""
        return expected

    def device_seconds(self) -> float:
        """Of the last ``launch``."""
        return self._seconds

    def barrier(self) -> None:
        """Nobody is waited for."""

    def agree(self, value: int) -> int:
        """Nobody disagrees."""
        return value

    def share_stamps(self, count: int) -> None:
        """Do nothing: there is one process."""

    def begin_sample(self, sample: int) -> None:
        """Nobody watches."""

    def results(self) -> Iterable[Result]:
        """Return nothing: a copy rounds nothing."""
        return ()

    def check(self, seed: int, launches: int) -> Mismatch | None:
        """RuntimeError where the copy is not the source: there is no figure then."""
        wrong = self._copies.wrong_bytes(seed % POISON)
        if wrong:
            raise RuntimeError(f"{wrong} bytes of the copy are wrong")
        return None


def copied(copies: Copies, size_bytes: int, budget_seconds: float) -> list[float]:
    """Seconds per copy of every sample."""
    case = Case("gpu", "copy", "send_recv", "copy", "uint8", "none", size_bytes, size_bytes, 1)
    sampling = Sampling(rounds=1, target_relative_width=0.01, budget_seconds=budget_seconds)
    result = measure(CopyEndpoint(copies), case, sampling, seed=1)
    return [float(seconds) for seconds in durations(result.stamps) / result.launches]


def main(arguments: list[str]) -> int:
    """Measure and print; 2 and one sentence where the device does not work."""
    backend, size_bytes, budget_seconds = arguments[0], int(arguments[1]), float(arguments[2])
    try:
        if backend == "cuda-host":
            copies: Copies = HostCopies(size_bytes)
        else:
            with starting():
                copies = CudaCopies(size_bytes, open_cuda())
        print(json.dumps(copied(copies, size_bytes, budget_seconds)))
    except (CcbenchError, OutOfMemory) as error:
        print(f"copy of {size_bytes} B: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
