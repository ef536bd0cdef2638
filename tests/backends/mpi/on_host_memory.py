"""``memory: device`` upon a CUDA whose device memory is memory of the host, so that any MPI can move it.

As a program it is what a launcher starts in place of an agent: the stand-in and a library
that says it is CUDA-aware are put where the endpoint looks for them, then the rank serves as ever.

The stand-in is strict. What is enqueued (setting memory, copies to the device) happens only when somebody
waits for the device. And nobody may touch device memory but its own copies, and MPI while it is called: it
has no access rights otherwise, so whatever looks inside dies.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from ccbench.backends.cuda.runtime import Cuda
from ccbench.verification import Array

NO_ACCESS, ACCESS = 0, 3
"""PROT_NONE; PROT_READ | PROT_WRITE."""

_mprotect = ctypes.CDLL(None, use_errno=True).mprotect
_mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class OutOfDeviceMemory(RuntimeError):
    """As CuPy's errors are."""

    status = 2


@dataclass
class HostMemoryRuntime:
    """Stands in for ``cupy.cuda.runtime``."""

    devices: int = 2
    memory_bytes: int = 256 << 20
    device: int = 0
    held: dict[int, mmap.mmap] = field(default_factory=dict)
    pending: list[Callable[[], object]] = field(default_factory=list)

    def getDeviceCount(self) -> int:  # noqa: N802 - as CUDA spells it
        return self.devices

    def setDevice(self, device: int) -> None:  # noqa: N802 - as CUDA spells it
        assert 0 <= device < self.devices
        self.device = device

    def deviceGetAttribute(self, attribute: int, device: int) -> int:  # noqa: N802 - as CUDA spells it
        return 1

    def deviceGetPCIBusId(self, device: int) -> str:  # noqa: N802 - as CUDA spells it
        return f"0000:{device:02x}:00.0"

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802 - as CUDA spells it
        return self.memory_bytes - sum(map(len, self.held.values())), self.memory_bytes

    def malloc(self, size: int) -> int:
        if size > self.memGetInfo()[0]:
            raise OutOfDeviceMemory
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.held[address] = memory
        self.protect(NO_ACCESS)
        return address

    def free(self, address: int) -> None:
        if address:
            self.deviceSynchronize()
            self.protect(ACCESS)
            del self.held[address]
            self.protect(NO_ACCESS)

    def memset(self, address: int, value: int, size: int) -> None:
        assert self.owns(address, size)
        self.pending.append(lambda: ctypes.memset(address, value, size))

    def memcpy(self, target: int, source: int, size: int, kind: int) -> None:
        """To the device: the source may be used again, but nothing need have arrived."""
        for address in {1: (target,), 2: (source,), 3: (target, source)}[kind]:
            assert self.owns(address, size)
        if kind == 1:
            data = ctypes.string_at(source, size)
            self.pending.append(lambda: ctypes.memmove(target, data, size))
        else:
            self.pending.append(lambda: ctypes.memmove(target, source, size))
        if kind == 2:
            self.deviceSynchronize()

    def deviceSynchronize(self) -> None:  # noqa: N802 - as CUDA spells it
        with self.open():
            for action in self.pending:
                action()
        self.pending.clear()

    def owns(self, address: int, size: int) -> bool:
        return any(
            at <= address and address + size <= at + len(held) for at, held in self.held.items()
        )

    @contextmanager
    def open(self) -> Iterator[None]:
        """While device memory may be touched."""
        self.protect(ACCESS)
        try:
            yield
        finally:
            self.protect(NO_ACCESS)

    def protect(self, rights: int) -> None:
        for address, memory in self.held.items():
            assert _mprotect(address, len(memory), rights) == 0


def main(*options: str) -> None:
    """Serve as one rank; options: ``devices=1``, ``memory_bytes=...`` of the stand-in."""
    from ccbench.backends import device_memory
    from ccbench.backends.mpi import device, endpoint
    from ccbench.backends.mpi.endpoint import MpiEndpoint
    from ccbench.runner.workers.agent import serve_one_team

    settings: dict[str, Any] = {
        name: int(value) for name, value in (option.split("=") for option in options)
    }
    runtime = HostMemoryRuntime(**settings)
    vars(device)["open_cuda"] = lambda: Cuda(runtime, None)
    vars(endpoint)["why_not_cuda_aware"] = lambda mpi, variables: None
    copy = device_memory.DeviceMemory.copy

    def opening(method: Callable[[MpiEndpoint, int], Any]) -> Callable[[MpiEndpoint, int], Any]:
        def launched(self: MpiEndpoint, times: int) -> Any:
            with runtime.open():
                return method(self, times)

        return launched

    def copied(self: device_memory.DeviceMemory, target: Array, source: Array) -> None:
        copy(self, target, source)
        runtime.protect(ACCESS)  # the launch goes on

    for name in ("launch", "launch_and_time_waits"):
        setattr(MpiEndpoint, name, opening(getattr(MpiEndpoint, name)))
    device_memory.DeviceMemory.copy = copied  # type: ignore[method-assign]
    serve_one_team()


if __name__ == "__main__":
    main(*(word for word in sys.argv[1:] if "=" in word and word.split("=")[1].isdigit()))
