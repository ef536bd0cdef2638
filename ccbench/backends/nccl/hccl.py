"""HCCL on Ascend's devices: memory and a stream by ACL, one process per rank, samples by the host's clock.

ACL is the runtime of CANN (libascendcl.so; acl/acl_rt.h): as CUDA's in what is used here, with the same
numbers for the kinds of a copy. Never run: no such device was available. Its calls are tested on a double.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_int, c_size_t, c_void_p
from typing import Any

from ccbench.backends.base import ControlChannel, OutOfMemory, local_rank
from ccbench.backends.nccl.dialects import HCCL
from ccbench.backends.nccl.library import open_by_loader
from ccbench.backends.nccl.library_rank import HostLibraryBackend, LibraryRank
from ccbench.errors import BackendUnavailable, MissingDependency

ACL_LIBRARY = "libascendcl.so"

FUNCTIONS: dict[str, list[Any]] = {
    "aclInit": [c_void_p],
    "aclrtGetDeviceCount": [POINTER(c_int)],
    "aclrtSetDevice": [c_int],
    "aclrtCreateStream": [POINTER(c_void_p)],
    "aclrtDestroyStream": [c_void_p],
    "aclrtSynchronizeStream": [c_void_p],
    "aclrtSynchronizeDevice": [],
    "aclrtMalloc": [POINTER(c_void_p), c_size_t, c_int],
    "aclrtFree": [c_void_p],
    "aclrtMemset": [c_void_p, c_size_t, c_int, c_size_t],
    "aclrtMemcpy": [c_void_p, c_size_t, c_void_p, c_size_t, c_int],
    "aclrtGetMemInfo": [c_int, POINTER(c_size_t), POINTER(c_size_t)],
}
"""All return aclError, 0 for success."""

HUGE_FIRST = 0
"""ACL_MEM_MALLOC_HUGE_FIRST."""

HBM = 1
"""ACL_HBM_MEM."""

ALLOCATION_FAILED, DEVICE_ALLOCATION_FAILED = 200_000, 207_001
"""ACL_ERROR_BAD_ALLOC and ACL_ERROR_RT_MEMORY_ALLOCATION."""


class Ascend:
    """One process's ACL with a device chosen; what ``DeviceMemory`` asks of ``Cuda`` and its runtime."""

    def __init__(self, native: Any, device_of: Callable[[int], int]) -> None:
        """device_of: number of devices -> the one of this rank."""
        self._native = native
        for name, arguments in FUNCTIONS.items():
            getattr(native, name).argtypes = arguments
        self._call("aclInit", None)
        count = c_int(0)
        self._call("aclrtGetDeviceCount", ctypes.byref(count))
        if not count.value:
            raise BackendUnavailable("hccl: ACL sees no Ascend device; look at npu-smi info")
        self.device = device_of(count.value)
        self._call("aclrtSetDevice", self.device)
        held = c_void_p()
        self._call("aclrtCreateStream", ctypes.byref(held))
        self.stream = held.value or 0
        self.runtime = self

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._native, name)(*arguments)
        if code in (ALLOCATION_FAILED, DEVICE_ALLOCATION_FAILED):
            raise OutOfMemory(f"the device has no room left: {name} gives {code}")
        if code:
            raise RuntimeError(f"{name} gives aclError {code}; the log is in ~/ascend/log")

    def allocate(self, size_bytes: int) -> int:
        """Return the address of new memory of the device; OutOfMemory."""
        held = c_void_p()
        self._call("aclrtMalloc", ctypes.byref(held), max(size_bytes, 1), HUGE_FIRST)
        return held.value or 0

    def free(self, address: int) -> None:
        """Give back what ``allocate`` gave."""
        if address:
            self._call("aclrtFree", address)

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802 - as CuPy's runtime spells it
        """Return free and total bytes of the device."""
        free, total = c_size_t(0), c_size_t(0)
        self._call("aclrtGetMemInfo", HBM, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def memset(self, address: int, value: int, size_bytes: int) -> None:
        """Set bytes."""
        self._call("aclrtMemset", address, size_bytes, value, size_bytes)

    def memcpy(self, target: int, source: int, size_bytes: int, kind: int) -> None:
        """Copy, to the end; kind: as cudaMemcpyKind."""
        self._call("aclrtMemcpy", target, size_bytes, source, size_bytes, kind)

    def deviceSynchronize(self) -> None:  # noqa: N802 - as CuPy's runtime spells it
        """Return when the device has ended everything."""
        self._call("aclrtSynchronizeDevice")

    def settle(self) -> None:
        """Return when everything on the stream has ended."""
        self._call("aclrtSynchronizeStream", self.stream)

    def close(self) -> None:
        """Give the stream back."""
        stream, self.stream = self.stream, 0
        if stream:
            self._call("aclrtDestroyStream", stream)


def open_hccl_rank(exchange: ControlChannel) -> LibraryRank:
    """Return this process's rank, on the device of its number on its host. Collective."""
    try:
        native = ctypes.CDLL(ACL_LIBRARY, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise MissingDependency(
            f"{ACL_LIBRARY} cannot be loaded ({error}); {HCCL.install}"
        ) from None
    device = Ascend(native, lambda count: local_rank(exchange.hosts, exchange.rank) % count)
    return LibraryRank(exchange, open_by_loader(HCCL), device)


BACKEND = HostLibraryBackend(HCCL)
