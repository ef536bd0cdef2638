"""The user's own collectives on tensors of GPUs: backend ``call-cuda``, one process for each rank.

- ``TENSORS = "torch.cuda"``: a CUDA tensor, and the default group of ``torch.distributed`` (Gloo and NCCL).
- ``TENSORS = "cupy"``: a ``cupy.ndarray``, and a ``call.RankGroup`` whose inputs and outputs are every rank's
  arrays, mapped through CUDA IPC; none where a GPU cannot address another's memory.

Rank n has the host's GPU number n; where ranks outnumber GPUs some share one (flag ``loopback``). A callable
runs on the current stream, which is ccbench's: what it enqueues elsewhere it must join again. In modes
``graph`` and ``cold`` launches are captured in a CUDA graph and timed by the device's events behind the
blocking kernel. A callable that is not captured may wait for its device, so nothing holds that back, and times
contain what Python takes for a launch.

Never run on a GPU; CuPy's part is tested on a double of CUDA.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ccbench.backends.base import CannotRun, ControlChannel, gathered, local_rank
from ccbench.backends.call import (
    GUARD,
    GUARD_BYTES,
    CallBackend,
    CallEndpoint,
    beside_a_buffer,
)
from ccbench.backends.cuda.blocking_kernel import (
    blocked,
    capture_graphs,
    graph_sizes,
    launch_sample,
    open_blocking_kernel,
    sample_launches,
    without_blocking_kernel,
)
from ccbench.backends.cuda.context import DeviceContext
from ccbench.backends.cuda.runtime import TO_HOST, device_count, open_cuda, starting
from ccbench.backends.device_memory import ALIGNMENT_BYTES, DeviceMemory
from ccbench.backends.nccl.bootstrap import side_of_host
from ccbench.backends.prerequisites import cupy_missing, driver_missing
from ccbench.cases.axes import ALONE, Case
from ccbench.cases.measurement import CaseFacts
from ccbench.errors import CcbenchError
from ccbench.verification import Array

TORCH_CUDA = "torch.cuda"
CAPTURED = ("graph", "cold")
"""Modes whose launches are replayed from a CUDA graph."""

MOST_BUFFERS = 2
"""Of a rank in a case."""


class GuardedDeviceMemory(DeviceMemory):
    """Memory of a GPU with a guard on both sides of each buffer. taken: the case's buffers."""

    def __init__(self, endpoint: Any, cuda: Any, name: str) -> None:
        super().__init__(endpoint, cuda, name)
        self.taken: list[Array] = []

    def reserve(self, own_bytes: int) -> None:
        """Room for the case's buffers and their guards."""
        super().reserve(own_bytes + MOST_BUFFERS * (2 * GUARD_BYTES + ALIGNMENT_BYTES))

    def new_buffer(
        self, elements: int, dtype: np.dtype[Any], number: int, misalignment_bytes: int
    ) -> Array:
        """Return the next piece of what was reserved, behind a guard and in front of one."""
        self._used_bytes += GUARD_BYTES
        buffer = super().new_buffer(elements, dtype, number, misalignment_bytes)
        self._used_bytes += GUARD_BYTES
        self.taken.append(buffer)
        for at in guards(buffer):
            self._cuda.runtime.memset(at, GUARD, GUARD_BYTES)
        self.settle()
        return buffer

    def check_guards(self, who: str) -> None:
        """Raise CcbenchError where something was written beside a buffer."""
        seen = np.empty(GUARD_BYTES, np.uint8)
        for buffer in self.taken:
            for at in guards(buffer):
                self._move(seen.ctypes.data, at, GUARD_BYTES, TO_HOST)
                if (seen != GUARD).any():
                    raise beside_a_buffer(who, buffer.nbytes)

    def places(self) -> tuple[int, list[tuple[int, int]]]:
        """Return the address of the allocation, and offset and size of each buffer in it."""
        at = self._address
        return at, [(buffer.ctypes.data - at, buffer.nbytes) for buffer in self.taken]

    def release(self) -> None:
        """Give the buffers back."""
        self.taken.clear()
        super().release()


def guards(buffer: Array) -> tuple[int, int]:
    """Return the addresses of the guards of a buffer."""
    return buffer.ctypes.data - GUARD_BYTES, buffer.ctypes.data + buffer.nbytes


class DeviceBytes:
    """Memory of a GPU as other libraries take it: the CUDA Array Interface, version 3."""

    def __init__(self, buffer: Array) -> None:
        self.__cuda_array_interface__ = {
            "shape": (buffer.nbytes,),
            "typestr": "|u1",
            "data": (buffer.ctypes.data, False),
            "version": 3,
        }


class CudaCallEndpoint(CallEndpoint):
    """One rank on a GPU. Also ``ccbench.backends.endpoint.DeviceTimed``."""

    def __init__(self, exchange: ControlChannel) -> None:
        with starting():
            self._cuda = open_cuda(own_kernels=False)
            number = local_rank(exchange.hosts, exchange.rank) % device_count(self._cuda)
            self._cuda.use(number)
            self._gpu = self._cuda.facts(number)
        super().__init__(exchange)
        ranks = range(self.rank, self.rank + 1)
        self._context = DeviceContext(self._cuda, self._gpu, ranks)
        self._blocking, self._not_blocked = open_blocking_kernel(
            self._cuda, [self._context], side_of_host(exchange), self.least
        )
        self._opened: list[int] = []
        self._returned: dict[int, Any] = {}
        self._seconds, self._behind, self._met = 0.0, 0, False

    def guarded_memory(self) -> Any:
        """Return memory of this rank's GPU."""
        return GuardedDeviceMemory(self, self._cuda, self._gpu.bus_id)

    def least(self, value: int) -> int:
        """Return the least value of all ranks. Collective."""
        return int(min(gathered(self.exchange, value)))

    def prepare(self, case: Case) -> str:
        """Take memory and bind the call; what the last case captured or mapped goes. Collective."""
        self._forget_case()
        self.exchange.barrier()  # nobody has memory open that another gives back
        return super().prepare(case)

    def finish(self) -> None:
        """Drop the case's graphs and buffers. Collective."""
        self._forget_case()
        self.exchange.barrier()  # nobody has memory open that another gives back
        super().finish()

    def _forget_case(self) -> None:
        self._context.forget_graphs()
        self._returned.clear()
        while self._opened:
            self._cuda.runtime.ipcCloseMemHandle(self._opened.pop())

    def arguments(self, kind: str) -> tuple[Any, Any]:
        """Return the tensor and the group that a callable is given. Collective; CannotRun."""
        stream, number, source = self._context.stream, self._gpu.number, self.own.source
        if kind == TORCH_CUDA:
            group = self.torch_group("cpu:gloo,cuda:nccl")
            torch = import_module("torch")
            if not torch.cuda.is_available():
                raise CannotRun("this torch has no CUDA; install one that has")
            torch.cuda.set_device(number)
            torch.cuda.set_stream(torch.cuda.ExternalStream(stream, device=number))
            tensor = torch.as_tensor(DeviceBytes(source), device=f"cuda:{number}")
            return tensor.view(getattr(torch, self.case.dtype)), group
        cupy = import_module("cupy")
        cupy.cuda.ExternalStream(stream, number).use()
        try:
            mine = array_at(cupy, source.ctypes.data, source.nbytes).view(source.dtype)
        except TypeError:
            raise CannotRun(f"this CuPy has no {self.case.dtype}") from None
        self._map(cupy)
        return mine, self._group

    def _map(self, cupy: Any) -> None:
        """Give the group every rank's buffers, by handles of CUDA's. Collective."""
        memory: Any = self.memory
        runtime, (at, places) = self._cuda.runtime, memory.places()
        handle = bytes(runtime.ipcGetMemHandle(at)).hex()
        handles: list[str] = gathered(self.exchange, handle)
        bases: dict[str, int] = {handle: at}
        try:
            for theirs in handles:
                if theirs not in bases:
                    bases[theirs] = runtime.ipcOpenMemHandle(bytes.fromhex(theirs))
                    self._opened.append(bases[theirs])
        except RuntimeError:  # CuPy's, of GPUs without peer access
            bases.clear()
        if not self.least(len(bases)):
            self._group.inputs = self._group.outputs = ()
            return

        def view(of: str, offset: int, size_bytes: int) -> Any:
            return array_at(cupy, bases[of] + offset, size_bytes)

        self.meet([(handle, *place) for place in places], view)

    # -- launches --------------------------------------------------------------------------------------------

    def launch(self, times: int) -> None:
        """Run the callable ``times`` times, to the end on this rank's GPU."""
        for _, fault in self._faults:
            fault.before_launches(times)
        mode = self.case.mode
        lane: Any = self.own
        captured, alone = mode in CAPTURED, mode in ALONE
        for size in dict.fromkeys(graph_sizes(1 if alone else times)) if captured else ():
            self.agreed(partial(self._capture, size))
        self._seconds = 0.0
        for launches in (1,) * times if alone else (times,):
            if mode == "cold":
                self._context.fill_cache()
                self._context.synchronize()
            how = "graph" if captured else mode
            launch_sample([self._context], how, launches, 1, self._enqueue, self._timed)
            self._seconds += self._context.elapsed_seconds()
            if captured:
                lane.returned = self._returned[graph_sizes(launches)[-1]]
        self._met = False

    def _enqueue(self) -> None:
        self._call()

    def _capture(self, launches: int) -> None:
        """Have a graph of so many launches, and what the last of them returns. Raises CannotRun."""
        if launches in self._context.graphs:
            return
        lane: Any = self.own
        # What they return is kept apart: allocators then have what a capture must not ask CUDA for.
        kept = [(self._call(), lane.returned) for _ in range(2)]
        self._context.synchronize()
        kept.clear()
        try:
            capture_graphs([self._context], launches, self._enqueue)
        except CcbenchError:
            raise
        except Exception as error:
            raise CannotRun(
                f"{lane.name} cannot be captured in a CUDA graph ({type(error).__name__}: {error}); it must "
                "not wait for the device, nor use another stream that it does not join: or take mode streaming"
            ) from error
        self._returned[launches] = lane.returned

    @contextmanager
    def _timed(self, held: int) -> Iterator[Callable[[], None]]:
        """Run what is enqueued inside between events, to its end; behind the blocking kernel where captured.

        That of several processes only after a barrier: elsewhere ranks must not wait for each other.
        """
        kernel = self._blocking if self.case.mode in CAPTURED else None
        kernel = kernel if kernel and (self._met or not kernel.shared) else None
        self._behind = held if kernel else 0
        with blocked(kernel, [self._context]) as release:
            self._context.begin()
            yield release
            self._context.end()
        self._context.synchronize()
        if kernel:
            kernel.raise_if_timed_out()

    def launch_and_time_waits(self, times: int) -> float:
        """Launch, as ``launch`` does; how long a GPU waited for another is not known."""
        self.launch(times)
        return 0.0

    def sample_launches(self, launches: int, seconds: float) -> int:
        """Return the launches of a sample; see ``DeviceTimed``."""
        return sample_launches(self.case.mode, launches, seconds, 1)

    def device_seconds(self) -> float:
        """Return the seconds of the last ``launch`` by the clock of this rank's GPU."""
        return self._seconds

    def barrier(self) -> None:
        """Return when every rank has called it."""
        super().barrier()
        self._met = True

    def facts(self) -> CaseFacts:
        """Return what became of the GPU, and how many launches were enqueued before it began."""
        return replace(super().facts(), blocked_launches=self._behind)

    def remark(self) -> str:
        """Return whose clock took the samples, and what they contain."""
        why = self._not_blocked if self.case.mode in CAPTURED else "a callable may wait for it"
        return "device time (events)" + (why and f"; {without_blocking_kernel(why)}")

    def close(self) -> None:
        """Give everything back."""
        self._forget_case()
        super().close()
        self._context.close()
        if self._blocking:
            self._blocking.free()


def array_at(cupy: Any, address: int, size_bytes: int) -> Any:
    """Return memory of a GPU as an array of bytes of CuPy's."""
    memory = cupy.cuda.UnownedMemory(address, size_bytes, None)
    return cupy.ndarray(size_bytes, "uint8", cupy.cuda.MemoryPointer(memory, 0))


class CudaCallBackend(CallBackend):
    """Functions of the user's files on tensors of GPUs."""

    name = "call-cuda"

    def unavailable(self, elsewhere: bool = False) -> str | None:
        """Return what is missing: a driver or CuPy."""
        missing = driver_missing()
        return None if elsewhere else missing.partition(";")[0] if missing else cupy_missing()


BACKEND = CudaCallBackend()
