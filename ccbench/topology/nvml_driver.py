"""The NVIDIA driver's own answers, through the module ``pynvml`` of the package nvidia-ml-py."""

from __future__ import annotations

from ccbench.nvidia import Missing, Session, text_of
from ccbench.topology.graph import Notice, Topology
from ccbench.topology.nvml import read_nvml


class Driver(Session):
    """The installed driver. Use as a context: it starts and ends the library."""

    def __enter__(self) -> Driver:
        self.open()
        return self

    def driver_version(self) -> str | Missing:
        """See ``Nvml``; so for all that follow."""
        return self.ask(lambda: text_of(self.library.nvmlSystemGetDriverVersion()))

    def gpu_count(self) -> int:
        """See ``Nvml``."""
        found = self.ask(lambda: int(self.library.nvmlDeviceGetCount()))
        return 0 if isinstance(found, Missing) else found

    def name(self, gpu: int) -> str | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: text_of(self.library.nvmlDeviceGetName(self.handle(gpu))))

    def bus_id(self, gpu: int) -> str | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: text_of(self.library.nvmlDeviceGetPciInfo(self.handle(gpu)).busId))

    def compute_capability(self, gpu: int) -> tuple[int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int]:
            major, minor = self.library.nvmlDeviceGetCudaComputeCapability(self.handle(gpu))
            return int(major), int(minor)

        return self.ask(call)

    def memory_bytes(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetMemoryInfo(self.handle(gpu)).total))

    def numa_nodes(self, gpu: int) -> tuple[int, ...] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, ...]:
            words = self.library.nvmlDeviceGetMemoryAffinity(self.handle(gpu), 16, 0)
            return tuple(
                64 * position + bit
                for position, word in enumerate(words)
                for bit in range(64)
                if int(word) >> bit & 1
            )

        return self.ask(call)

    def own_numa_node(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetNumaNodeId(self.handle(gpu))))

    def pcie(self, gpu: int) -> tuple[int, int, int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int, int, int]:
            library, handle = self.library, self.handle(gpu)
            return (
                int(library.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
                int(library.nvmlDeviceGetCurrPcieLinkWidth(handle)),
                int(library.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
                int(library.nvmlDeviceGetMaxPcieLinkWidth(handle)),
            )

        return self.ask(call)

    def performance_state(self, gpu: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetPerformanceState(self.handle(gpu))))

    def mig_enabled(self, gpu: int) -> bool | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: bool(self.library.nvmlDeviceGetMigMode(self.handle(gpu))[0]))

    def link_active(self, gpu: int, link: int) -> bool | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: bool(self.library.nvmlDeviceGetNvLinkState(self.handle(gpu), link)))

    def link_version(self, gpu: int, link: int) -> int | Missing:
        """See ``Nvml``."""
        return self.ask(lambda: int(self.library.nvmlDeviceGetNvLinkVersion(self.handle(gpu), link)))

    def link_remote_type(self, gpu: int, link: int) -> int | Missing:
        """See ``Nvml``."""
        library = self.library
        return self.ask(lambda: int(library.nvmlDeviceGetNvLinkRemoteDeviceType(self.handle(gpu), link)))

    def link_remote_bus_id(self, gpu: int, link: int) -> str | Missing:
        """See ``Nvml``."""
        library = self.library
        return self.ask(
            lambda: text_of(library.nvmlDeviceGetNvLinkRemotePciInfo(self.handle(gpu), link).busId)
        )

    def common_ancestor(self, gpu: int, other: int) -> int | Missing:
        """See ``Nvml``."""
        library = self.library
        return self.ask(
            lambda: int(library.nvmlDeviceGetTopologyCommonAncestor(self.handle(gpu), self.handle(other)))
        )

    def peer_status(self, gpu: int, other: int, access: int) -> int | Missing:
        """See ``Nvml``."""
        # Plain numbers: NVML_P2P_CAPS_INDEX_READ of pynvml is a tuple, by a comma too many.
        library = self.library
        return self.ask(
            lambda: int(library.nvmlDeviceGetP2PStatus(self.handle(gpu), self.handle(other), access))
        )

    def fabric_state(self, gpu: int) -> tuple[int, int] | Missing:
        """See ``Nvml``."""

        def call() -> tuple[int, int]:
            library = self.library
            answer = library.c_nvmlGpuFabricInfo_t()
            found = library.nvmlDeviceGetGpuFabricInfo(self.handle(gpu), answer) or answer
            return int(found.state), int(found.status)

        return self.ask(call)


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
