"""The NVIDIA driver's own answers, through the module ``pynvml`` of the package nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ccbench.topology.graph import Notice, Topology
from ccbench.topology.nvml import Missing, read_nvml

T = TypeVar("T")


class Driver:
    """The installed driver through ``pynvml``. Use as a context: it starts and ends the library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._handles: dict[int, Any] = {}

    def __enter__(self) -> Driver:
        self._library.nvmlInit()
        return self

    def __exit__(self, *ended: object) -> None:
        self._library.nvmlShutdown()

    def _ask(self, call: Callable[[], T]) -> T | Missing:
        library = self._library
        try:
            return call()
        except (library.NVMLError_NotSupported, library.NVMLError_InvalidArgument):
            return Missing.NOT_THERE
        except (library.NVMLError, AttributeError, TypeError, UnicodeDecodeError):
            # AttributeError: an older pynvml lacks the call; the driver's own errors are NVMLError.
            return Missing.NOT_VISIBLE

    def _handle(self, gpu: int) -> Any:
        if gpu not in self._handles:
            self._handles[gpu] = self._library.nvmlDeviceGetHandleByIndex(gpu)
        return self._handles[gpu]

    def driver_version(self) -> str | Missing:
        """See ``Nvml``; so for all that follow."""
        return self._ask(lambda: _text(self._library.nvmlSystemGetDriverVersion()))

    def gpu_count(self) -> int:
        """See ``Nvml``."""
        found = self._ask(lambda: int(self._library.nvmlDeviceGetCount()))
        return 0 if isinstance(found, Missing) else found

    def name(self, gpu: int) -> str | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: _text(self._library.nvmlDeviceGetName(self._handle(gpu))))

    def bus_id(self, gpu: int) -> str | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: _text(self._library.nvmlDeviceGetPciInfo(self._handle(gpu)).busId))

    def compute_capability(self, gpu: int) -> tuple[int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int]:
            major, minor = self._library.nvmlDeviceGetCudaComputeCapability(self._handle(gpu))
            return int(major), int(minor)

        return self._ask(call)

    def memory_bytes(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: int(self._library.nvmlDeviceGetMemoryInfo(self._handle(gpu)).total))

    def numa_nodes(self, gpu: int) -> tuple[int, ...] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, ...]:
            words = self._library.nvmlDeviceGetMemoryAffinity(self._handle(gpu), 16, 0)
            return tuple(
                64 * position + bit
                for position, word in enumerate(words)
                for bit in range(64)
                if int(word) >> bit & 1
            )

        return self._ask(call)

    def own_numa_node(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: int(self._library.nvmlDeviceGetNumaNodeId(self._handle(gpu))))

    def pcie(self, gpu: int) -> tuple[int, int, int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int, int, int]:
            library, handle = self._library, self._handle(gpu)
            return (
                int(library.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
                int(library.nvmlDeviceGetCurrPcieLinkWidth(handle)),
                int(library.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
                int(library.nvmlDeviceGetMaxPcieLinkWidth(handle)),
            )

        return self._ask(call)

    def performance_state(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: int(self._library.nvmlDeviceGetPerformanceState(self._handle(gpu))))

    def mig_enabled(self, gpu: int) -> bool | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: bool(self._library.nvmlDeviceGetMigMode(self._handle(gpu))[0]))

    def link_active(self, gpu: int, link: int) -> bool | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: bool(self._library.nvmlDeviceGetNvLinkState(self._handle(gpu), link)))

    def link_version(self, gpu: int, link: int) -> int | Missing:
        """See ``Nvml``."""
        return self._ask(lambda: int(self._library.nvmlDeviceGetNvLinkVersion(self._handle(gpu), link)))

    def link_remote_type(self, gpu: int, link: int) -> int | Missing:
        """See ``Nvml``."""
        library = self._library
        return self._ask(lambda: int(library.nvmlDeviceGetNvLinkRemoteDeviceType(self._handle(gpu), link)))

    def link_remote_bus_id(self, gpu: int, link: int) -> str | Missing:
        """See ``Nvml``."""
        library = self._library
        return self._ask(
            lambda: _text(library.nvmlDeviceGetNvLinkRemotePciInfo(self._handle(gpu), link).busId)
        )

    def common_ancestor(self, gpu: int, other: int) -> int | Missing:
        """See ``Nvml``."""
        library = self._library
        return self._ask(
            lambda: int(library.nvmlDeviceGetTopologyCommonAncestor(self._handle(gpu), self._handle(other)))
        )

    def peer_status(self, gpu: int, other: int, access: int) -> int | Missing:
        """See ``Nvml``."""
        # Plain numbers: NVML_P2P_CAPS_INDEX_READ of pynvml is a tuple, by a comma too many.
        library = self._library
        return self._ask(
            lambda: int(library.nvmlDeviceGetP2PStatus(self._handle(gpu), self._handle(other), access))
        )

    def fabric_state(self, gpu: int) -> tuple[int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int]:
            library = self._library
            answer = library.c_nvmlGpuFabricInfo_t()
            found = library.nvmlDeviceGetGpuFabricInfo(self._handle(gpu), answer) or answer
            return int(found.state), int(found.status)

        return self._ask(call)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def read_driver() -> Topology:
    """``read_nvml`` of the installed driver; without one, an empty topology whose notice says why."""
    try:
        import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional, untyped
    except ImportError:
        return _nothing(
            "NVLinks and peer access were not asked for: the Python module pynvml is missing "
            "(pip install nvidia-ml-py)"
        )
    try:
        with Driver(pynvml) as driver:
            return read_nvml(driver)
    except (pynvml.NVMLError, OSError) as error:
        return _nothing(f"no NVIDIA driver answers here ({error}): NVLinks and peer access are unknown")


def _nothing(text: str) -> Topology:
    return Topology("nvml", (), source="nvml", notices=(Notice("not_visible", text),))
