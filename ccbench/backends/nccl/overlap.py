"""A computation and a collective at the same time on the same devices, each on streams of its own.

On every device both begin behind one blocking kernel, at one event; how long each took from there its clock
says. Of a launch and its share of the computation the launch is enqueued first, as a training step enqueues a
bucket's collective when its gradients are there and goes on with computing.

``matmul``, products of matrices by cuBLAS, is the work that hides communication in training, and what it
contends with: every multiprocessor is full of blocks, so that NCCL's wait for a place, and the power it takes
lowers the clocks. ``memory``, a kernel by NVRTC, takes the bandwidth that NCCL's copies need.
"""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ccbench.backends.base import CannotRun
from ccbench.backends.cuda.blocking_kernel import MOST_ITEMS_BLOCKED, most_blocked
from ccbench.backends.cuda.context import COMPUTE_STREAM, MAIN_STREAM
from ccbench.backends.cuda.runtime import do_all
from ccbench.backends.kernels.sources import beside
from ccbench.backends.nccl.device import RankContext
from ccbench.backends.nccl.launches import Launches
from ccbench.backends.overlap import MATMUL

MATRIX_EDGE = 2048
"""Of float16: 17.2 GFLOP, some tens of microseconds on a data centre's GPU, in 256 tiles of 128 x 128, more
than there are multiprocessors."""

HALF_BYTES = 2
CUDA_R_16F, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT, CUBLAS_OP_N = 2, 68, -1, 0
"""cudaDataType, cublasComputeType_t, cublasGemmAlgo_t, cublasOperation_t (library_types.h, cublas_api.h)."""

STREAM_BYTES = 64 << 20
"""Of each of two buffers, or the L2 cache's size where that is more: what a repetition reads, and writes."""

LANES = 256
BLOCKS_PER_PROCESSOR = 8
"""2048 lanes, all that a multiprocessor of a data centre's GPU holds (CUDA C++ Programming Guide, "Compute
Capabilities")."""

STREAMS = np.dtype([("source", "u8"), ("target", "u8"), ("count", "u8")])
ELEMENT_BYTES = 16

WHEEL_LIBRARIES = (
    "nvidia/cublas/lib/libcublasLt.so.12",
    "nvidia/cublas/lib/libcublas.so.12",
    "nvidia/cu13/lib/libcublasLt.so.13",
    "nvidia/cu13/lib/libcublas.so.13",
)
"""Places in which nvidia-cublas-cu12 and nvidia-cublas (for CUDA 13) put them; the first of each pair is needed by the
second."""

INSTALL_BLAS = "pip install nvidia-cublas-cu12 (for cupy-cuda13x: nvidia-cublas) brings it"


class Overlap:
    """The computations of all devices that this process drives, and the launches during them."""

    def __init__(self, contexts: Mapping[int, RankContext], launches: Launches) -> None:
        self._contexts = contexts
        self._launches = launches
        self._kind = ""
        self._computations: dict[int, Products | Streaming] = {}

    def prepare(self, kind: str, limit_seconds: float) -> None:
        """Have ``kind`` ready on every device; OutOfMemory, CcbenchError without NVRTC or cuBLAS.

        It runs once, with no device held back: the first time, libraries load what waits for the device.
        """
        if kind == self._kind:
            return
        self.close()
        try:
            for rank, context in self._contexts.items():
                self._computations[rank] = (
                    Products(context, *open_blas()) if kind == MATMUL else Streaming(context)
                )
            self._enqueue(self._computations)
            self._launches.wait(limit_seconds)
        except BaseException:
            self.close()
            raise
        self._kind = kind

    def run(
        self, launches: int, repetitions: int, limit_seconds: float, may_block: bool = True
    ) -> tuple[float, float]:
        """Run both at once; return seconds until the computation, and until the collective, was over here.

        No launches: the computation alone.
        """
        # A device that stands by does not compute either: what it would take is no part of the case.
        working = sorted(
            {binding.rank for bindings in self._launches.streams for binding in bindings}
        )
        queued, of_a_launch = 0, self._launches.items_per_launch
        held = min(launches, most_blocked(of_a_launch))
        with self._launches.timed(limit_seconds, may_block, held) as release:
            for context in self._contexts.values():
                context.follow(COMPUTE_STREAM)
            for number, share in enumerate(shared_out(repetitions, max(launches, 1))):
                if launches:
                    if number == most_blocked(of_a_launch):
                        release()
                    self._launches.enqueue()
                    queued += of_a_launch
                for _ in range(share):
                    if queued >= MOST_ITEMS_BLOCKED:
                        release()
                    self._enqueue(working)
                    queued += 1
            for context in self._contexts.values():
                context.end(COMPUTE_STREAM)
        ends = [
            context.elapsed_seconds(COMPUTE_STREAM, since=MAIN_STREAM)
            for context in self._contexts.values()
        ]
        return max(ends), max(self._launches.part_seconds().values(), default=0.0)

    def _enqueue(self, ranks: Collection[int]) -> None:
        for rank in ranks:
            self._computations[rank].enqueue()

    def close(self) -> None:
        """Give the devices' memory back."""
        made, self._computations = self._computations, {}
        self._kind = ""
        for computation in made.values():
            computation.close()


def shared_out(total: int, parts: int) -> Sequence[int]:
    """Return ``total`` as ``parts`` whole numbers that differ by at most one."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def open_blas() -> tuple[Any, Callable[[int], Any]]:
    """Return CuPy's cuBLAS, and what makes a stream current while it is entered; CannotRun without."""
    try:
        try:
            from cupy.cuda import cublas  # type: ignore[import-not-found,unused-ignore]
        except ImportError:
            load_wheels(sys.path)  # CuPy before 14 looks for libraries of a toolkit only
            from cupy.cuda import cublas
        from cupy.cuda import ExternalStream
    except (ImportError, RuntimeError) as error:
        why = " ".join(str(error).split())
        raise CannotRun(
            f"computing matmul needs cuBLAS, and CuPy finds none ({why}); {INSTALL_BLAS}"
        ) from None
    return cublas, ExternalStream


def load_wheels(
    folders: Iterable[str], load: Callable[..., object] = ctypes.CDLL
) -> list[Path]:
    """Load cuBLAS from NVIDIA's wheels in ``folders``, so that whoever asks for it by name next finds it."""
    loaded = []
    for folder, name in itertools.product(filter(None, folders), WHEEL_LIBRARIES):
        path = Path(folder) / name
        with suppress(OSError):  # of another CUDA than CuPy's: it asks for its own
            if path.is_file():
                load(str(path), mode=ctypes.RTLD_GLOBAL)
                loaded.append(path)
    return loaded


class Products:
    """Products of two square matrices of float16, added up in float32.

    blas: ``cupy.cuda.cublas``, whose calls go to CuPy's current stream. on_stream: makes a stream current.
    """

    def __init__(
        self, context: RankContext, blas: Any, on_stream: Callable[[int], Any]
    ) -> None:
        self._context = context
        self._blas = blas
        self._stream = on_stream(context.on(COMPUTE_STREAM).handle)
        self._factors: NDArray[np.float32] = np.array([1.0, 0.0], np.float32)
        size = MATRIX_EDGE * MATRIX_EDGE * HALF_BYTES
        context.cuda.use(context.facts.number)
        self._handle = 0
        self._addresses: list[int] = []
        try:
            for _ in range(3):
                self._addresses.append(context.cuda.allocate(size))
            values = (
                np.random.default_rng(20_26).random(MATRIX_EDGE, np.float32).astype(np.float16)
            )
            for address in self._addresses:  # numbers that are none would draw another power
                context.write_repeated(address, size, values)
            try:
                self._handle = int(blas.create())
            except RuntimeError as error:
                raise CannotRun(f"cuBLAS does not start: {error}") from None
        except BaseException:
            self.close()
            raise

    def enqueue(self) -> None:
        """Enqueue one product."""
        self._context.use()
        left, right, product = self._addresses
        alpha = self._factors.ctypes.data
        edge, half = MATRIX_EDGE, CUDA_R_16F
        with self._stream:
            self._blas.gemmEx(
                self._handle,
                CUBLAS_OP_N,
                CUBLAS_OP_N,
                edge,
                edge,
                edge,
                alpha,
                left,
                half,
                edge,
                right,
                half,
                edge,
                alpha + self._factors.itemsize,
                product,
                half,
                edge,
                CUBLAS_COMPUTE_32F,
                CUBLAS_GEMM_DEFAULT,
            )

    def close(self) -> None:
        """Give matrices and handle back."""
        handle, self._handle = self._handle, 0
        addresses, self._addresses = self._addresses, []
        self._context.use()
        steps: list[Callable[[], object]] = [
            partial(self._context.cuda.free, address) for address in addresses
        ]
        do_all([*steps, *([partial(self._blas.destroy, handle)] if handle else [])])


class Streaming:
    """A kernel that reads one buffer and writes another, each too large for the cache."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        facts = context.facts
        size = max(STREAM_BYTES, facts.l2_bytes) // ELEMENT_BYTES * ELEMENT_BYTES
        self._grid = BLOCKS_PER_PROCESSOR * facts.processors
        self._kernel = context.kernel(beside("streaming.cu"), LANES)
        context.cuda.use(context.facts.number)
        self._address = context.cuda.allocate(2 * size)
        context.set_bytes(self._address, 0, 2 * size)
        self._arguments: NDArray[Any] = np.zeros(1, STREAMS)
        self._arguments["source"] = self._address
        self._arguments["target"] = self._address + size
        self._arguments["count"] = size // ELEMENT_BYTES

    def enqueue(self) -> None:
        """Enqueue one pass over both buffers."""
        stream = self._context.on(COMPUTE_STREAM).handle
        self._context.launch_extra(self._kernel, self._grid, self._arguments, stream)

    def close(self) -> None:
        """Give the buffers back."""
        address, self._address = self._address, 0
        self._context.use()
        self._context.cuda.free(address)
