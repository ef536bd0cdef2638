"""The CUDA calls that the cuda backends make, all through CuPy's thin wrappers, with errors as sentences.

CuPy is imported here and nowhere else, in worker processes only. Addresses, streams, events, modules and
graphs are plain ints, so a test can put another runtime underneath.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from ccbench.backends.base import OutOfMemory
from ccbench.backends.kernels.building import Nvrtc, architecture_for, compile_program, nvrtc
from ccbench.backends.kernels.sources import GLOBAL_NAME, CompilerInput
from ccbench.errors import BackendUnavailable, CannotStart, CcbenchError, MissingDependency
from ccbench.machine.accelerators import CUDA_12_INSTEAD, cuda_install
from ccbench.topology.classes import RESTART_FABRIC_MANAGER

TO_DEVICE, TO_HOST, ON_DEVICE = 1, 2, 3
"""cudaMemcpyKind."""

NON_BLOCKING = 1
"""cudaStreamNonBlocking: does not wait for the legacy default stream."""

CAPTURE_THREAD = 1
"""cudaStreamCaptureModeThreadLocal: what other threads do is their business."""

PROCESSORS, L2_CACHE_BYTES, CAPABILITY_MAJOR, CAPABILITY_MINOR = 16, 38, 75, 76
MAPS_HOST_MEMORY, UNIFIED_ADDRESSING = 19, 41
"""cudaDeviceAttr; CuPy has no names for all of them."""

PINNED_PORTABLE_MAPPED = 0x01 | 0x02
"""cudaHostAllocPortable | cudaHostAllocMapped, and cudaHostRegister's of the same names: pinned for every
context, and in every device's addresses."""

CUDA_OUT_OF_MEMORY, PEER_ALREADY_ENABLED, TOO_MANY_PEERS = 2, 704, 711
INSUFFICIENT_DRIVER, SYSTEM_NOT_READY = 35, 802
"""cudaError_t."""

ALLOCATION_BYTES = 2 << 20
"""Allocations are whole multiples of this, so that none shares a page with another: an IPC handle opens whole
pages."""


@dataclass(frozen=True)
class DeviceFacts:
    """Constants of a device, asked for once. capability: 90 for compute capability 9.0."""

    number: int
    capability: int
    processors: int
    l2_bytes: int
    bus_id: str


class Cuda:
    """One process's CUDA. ``runtime`` and ``driver`` are CuPy's modules, or stand in for them."""

    def __init__(self, runtime: Any, driver: Any) -> None:
        self.runtime = runtime
        self.driver = driver

    def facts(self, device: int) -> DeviceFacts:
        """Ask CUDA for the facts of ``device``."""
        ask = self.runtime.deviceGetAttribute
        capability = 10 * ask(CAPABILITY_MAJOR, device) + ask(CAPABILITY_MINOR, device)
        processors, l2_bytes = ask(PROCESSORS, device), ask(L2_CACHE_BYTES, device)
        return DeviceFacts(
            device,
            capability,
            processors,
            l2_bytes,
            str(self.runtime.deviceGetPCIBusId(device)),
        )

    def use(self, device: int) -> None:
        """Make ``device`` current; the first time, make its context."""
        self.runtime.setDevice(device)
        self.runtime.free(0)

    def use_for_launch(self, device: int) -> None:
        """Switch to a device that has its context, where another one is current."""
        if self.runtime.getDevice() != device:
            self.runtime.setDevice(device)

    def allocate(self, size_bytes: int) -> int:
        """Address of new memory on the current device; OutOfMemory says how much was asked."""
        whole = -(-max(size_bytes, 1) // ALLOCATION_BYTES) * ALLOCATION_BYTES
        with memory_or(f"the device has no {whole} bytes left"):
            return int(self.runtime.malloc(whole))

    def free(self, address: int) -> None:
        """Give back what ``allocate`` gave."""
        if address:
            self.runtime.free(address)

    def allocate_pinned(self, size_bytes: int) -> int:
        """Address of pinned memory of the host, the same for the host and for every device.

        Devices with unified addressing use the host's address (CUDA C++ Programming Guide, "Unified Virtual
        Address Space"); ``host_memory_refused`` tells whether all have it. OutOfMemory says how much was
        asked.
        """
        with memory_or(f"the host has no {size_bytes} bytes left that can be pinned"):
            return int(self.runtime.hostAlloc(max(size_bytes, 1), PINNED_PORTABLE_MAPPED))

    def free_pinned(self, address: int) -> None:
        """Give back what ``allocate_pinned`` gave."""
        if address:
            self.runtime.freeHost(address)

    def host_memory_refused(self, devices: Iterable[int]) -> str | None:
        """Reason why one of ``devices`` cannot address memory of the host, or None."""
        for device in devices:
            for attribute in (MAPS_HOST_MEMORY, UNIFIED_ADDRESSING):
                if not self.runtime.deviceGetAttribute(attribute, device):
                    return f"GPU {device} cannot address pinned memory of the host (no unified addressing)"
        return None

    def pair_without_access(self, devices: Sequence[int]) -> tuple[int, int] | None:
        """The first two of ``devices`` of which one cannot address the other's memory, or None."""
        pairs = ((device, peer) for device in devices for peer in devices if device != peer)
        return next(
            (pair for pair in pairs if not self.runtime.deviceCanAccessPeer(*pair)), None
        )

    def enable_peers(self, devices: Sequence[int]) -> tuple[int, int] | None:
        """Let every device of ``devices`` address every other one's memory; all must be able to.

        Returns the first pair that is one too many, or None: without NVSwitch a device has 8 peers at most
        (CUDA C++ Programming Guide, "Peer-to-Peer Memory Access").
        """
        for device in devices:
            self.use(device)
            for peer in devices:
                try:
                    if device != peer:
                        self.runtime.deviceEnablePeerAccess(peer)
                except Exception as error:  # noqa: PERF203 - a pair that is enabled must not end the others
                    status = getattr(error, "status", None)
                    if status == TOO_MANY_PEERS:
                        return device, peer
                    if status != PEER_ALREADY_ENABLED:
                        raise
        return None


@contextmanager
def memory_or(lacking: str) -> Iterator[None]:
    """Turn CUDA's error for too little memory into OutOfMemory with the sentence ``lacking``."""
    try:
        yield
    except Exception as error:
        if getattr(error, "status", None) == CUDA_OUT_OF_MEMORY:
            raise OutOfMemory(lacking) from None
        raise


@dataclass(frozen=True)
class Kernel:
    """A loaded kernel and how many blocks of ``lanes`` fit on a multiprocessor."""

    function: int
    lanes: int
    blocks_per_processor: int


@dataclass
class Loaded:
    """One module; blocks: lanes -> how many blocks of so many fit on a multiprocessor."""

    module: int
    function: int
    blocks: dict[int, int] = field(default_factory=dict)


class Modules:
    """Kernels loaded on one device: each module once whatever the number of lanes.

    Modules are known by what their code depends on; each takes some hundred KiB of the device.
    """

    def __init__(self, cuda: Cuda, facts: DeviceFacts) -> None:
        self._cuda = cuda
        self._facts = facts
        self._loaded: dict[str, Loaded] = {}

    @cached_property
    def compiler(self) -> Nvrtc:
        """The NVRTC for this device; MissingDependency or CompilationFailed where nothing here serves."""
        runtime = self._cuda.runtime
        cupy, driver = runtime.runtimeGetVersion() // 1000, runtime.driverGetVersion() // 1000
        return nvrtc(self._facts.capability, cupy, driver)

    def kernel(self, program: CompilerInput, lanes: int) -> Kernel:
        """The kernel of ``program``, compiled and loaded the first time."""
        self._cuda.use_for_launch(self._facts.number)
        digest, driver = program.digest, self._cuda.driver
        if digest not in self._loaded:
            architecture = architecture_for(self._facts.capability, self.compiler.architectures)
            cubin = compile_program(program, architecture, compiler=self.compiler)
            with memory_or(f"GPU {self._facts.number} has no memory left for a kernel"):
                module = driver.moduleLoadData(cubin)
            self._loaded[digest] = Loaded(module, driver.moduleGetFunction(module, GLOBAL_NAME))
        loaded = self._loaded[digest]
        if lanes not in loaded.blocks:
            ask = driver.occupancyMaxActiveBlocksPerMultiprocessor
            loaded.blocks[lanes] = ask(loaded.function, lanes, 0)
        return Kernel(loaded.function, lanes, loaded.blocks[lanes])

    def unload(self) -> None:
        """Unload everything."""
        self._cuda.use_for_launch(self._facts.number)
        modules = [program.module for program in self._loaded.values()]
        self._loaded.clear()
        do_all([partial(self._cuda.driver.moduleUnload, module) for module in modules])


def do_all(steps: Iterable[Callable[[], object]]) -> None:
    """Every step, whatever becomes of the others; then the first error."""
    first: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: PERF203 - other steps must come whatever went wrong
            first = first or error
    if first is not None:
        raise first


def open_cuda(own_kernels: bool = True) -> Cuda:
    """CuPy's CUDA with at least one device; no call of CUDA's may have come before.

    own_kernels: their modules are loaded eagerly: with lazy loading (the default since CUDA 12.2) the first
    launch of a kernel can wait for one that waits for it (CUDA C++ Programming Guide, "Lazy Loading"). What a
    library does is the user's to set.
    Raises MissingDependency without CuPy, CannotStart without a working driver or a device.
    """
    if own_kernels:
        os.environ["CUDA_MODULE_LOADING"] = "EAGER"
    try:
        from cupy.cuda import driver, runtime  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingDependency(
            f"CuPy cannot be imported ({error}); {cuda_install()}"
        ) from None
    cuda = Cuda(runtime, driver)
    device_count(cuda)
    return cuda


def with_cure(error: Exception, runtime: Any = None) -> str:
    """Words of an error that CUDA starts with; with the cures of a fabric and of a driver that are not ready.

    runtime: CuPy's, which tells the versions.
    """
    status = getattr(error, "status", None)
    if status == SYSTEM_NOT_READY:
        return f"{error}; the NVLink fabric is not ready: {RESTART_FABRIC_MANAGER}"
    if status != INSUFFICIENT_DRIVER or runtime is None:
        return str(error)
    cupy, installed = (
        f"{version // 1000}.{version % 1000 // 10}"
        for version in (runtime.runtimeGetVersion(), runtime.driverGetVersion())
    )
    newer = cupy.startswith("13.") and installed.startswith("12.")
    cure = CUDA_12_INSTEAD if newer else "install a newer driver"
    return (
        f"{error}; CuPy is of CUDA {cupy}, and the driver runs CUDA {installed} at most: {cure}"
    )


@contextmanager
def starting() -> Iterator[None]:
    """Turn whatever keeps a process from getting its devices into one sentence.

    BackendUnavailable for a device in exclusive mode, a driver of another version, no memory for flags.
    """
    try:
        yield
    except CcbenchError:
        raise
    except Exception as error:
        words = f"CUDA does not start: {type(error).__name__}: {with_cure(error)}"
        raise BackendUnavailable(words) from error


def device_uuid(device: int) -> str:
    """The UUID of a device, for MIG that of the instance; '' where the driver gives none."""
    handle, uuid = ctypes.c_int(), ctypes.create_string_buffer(16)
    try:
        library = ctypes.CDLL("libcuda.so.1")
        failed = library.cuDeviceGet(
            ctypes.byref(handle), device
        ) or library.cuDeviceGetUuid_v2(uuid, handle)
    except (OSError, AttributeError):  # no driver, or one before CUDA 11.4
        return ""
    return "" if failed else str(UUID(bytes=uuid.raw))


def device_count(cuda: Cuda) -> int:
    """Number of devices that this process may use; CannotStart when there is none."""
    try:
        count = int(cuda.runtime.getDeviceCount())
    except Exception as error:
        words = with_cure(error, cuda.runtime)
        raise CannotStart(f"CUDA does not start: {words}") from None
    if count == 0:
        raise CannotStart(
            "the driver shows no GPU to this process; look at CUDA_VISIBLE_DEVICES"
        )
    return count
