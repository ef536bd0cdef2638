"""GPUs and what the kernel and NVIDIA's driver tell of them: PCI functions, NVML, modules, modes.

Each entry of ``/sys/bus/pci/devices`` leads to ``/sys/devices/pci<domain>:<bus>/<root port>/<upstream>/
<downstream>/<device>``, so the path itself is the PCIe tree. A function's speed and width are those of the
link *above* it for devices and upstream ports, and of the link *below* it for root and downstream ports.

The one seam to the driver is NVML, through ``pynvml`` of the package nvidia-ml-py. An answer may be missing
in two ways that must not be mixed up: the device has no such thing (``NOT_THERE``), or it could not be asked
(``NOT_VISIBLE``). NVML makes no CUDA context and takes no memory of a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from ccbench.machine.files import Files
from ccbench.machine.software import cuda_version, install_line
from ccbench.topology.pci import ADDRESS, normal_address

# -- functions on the PCI bus -------------------------------------------------------------------------------

DEVICES = "/sys/bus/pci/devices"

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
"""PCI vendor numbers (the PCI ID Repository, pci-ids.ucw.cz)."""

DISPLAY, ACCELERATOR = 0x03, 0x12
"""Base classes of GPUs (PCI Code and ID Assignment Specification)."""

_HOST_BRIDGE = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) GT/s(?: PCIe)?")

_PCI_TO_PCI = 0x0604
_EXTENDED_CAPABILITIES, _ACS_CAPABILITY = 0x100, 0x000D
_REQUEST_REDIRECT, _COMPLETION_REDIRECT = 0x04, 0x08
"""Bits of the ACS control register that send traffic between peers up to the root (PCI Express Base
Specification, Access Control Services; PCI_ACS_RR and PCI_ACS_CR of the Linux kernel's pci_regs.h)."""


@dataclass(frozen=True)
class Port:
    """Speed and width of one end of a PCIe link; None where the system does not say."""

    gigatransfers: float | None
    width: int | None


@dataclass(frozen=True)
class PciFunction:
    """One PCI function.

    bridges: addresses from the root port down to the bridge right above; empty for a device on the root bus.
    host_bridge: the root complex, such as ``pci0000:3a``. numa_node: -1 as the system says it.
    redirects: whether its ACS sends peer-to-peer traffic to the root; None where that cannot be read.
    virtual: whether it is a virtual function of another one.
    """

    address: str
    host_bridge: str
    bridges: tuple[str, ...]
    class_code: int
    vendor: int
    device: int
    numa_node: int | None
    current: Port
    maximum: Port
    redirects: bool | None
    virtual: bool

    @property
    def is_accelerator(self) -> bool:
        """True if it is a GPU or the like, and not the picture of a management controller or a VM."""
        # Management controllers and hypervisors have pictures of class DISPLAY, too: the maker tells.
        base = self.class_code >> 16
        if base == DISPLAY and self.vendor == INTEL:
            return bool(self.bridges)  # those on the root bus are built into the processor
        return base == ACCELERATOR or (base == DISPLAY and self.vendor in (NVIDIA, AMD))


def read_functions(files: Files) -> dict[str, PciFunction]:
    """Return every PCI function by address; empty where ``/sys/bus/pci`` is not to be seen."""
    functions = {}
    for entry in files.matching(DEVICES):
        class_code = files.number(f"{entry}/class")
        if class_code is None:
            continue
        address = normal_address(entry.rpartition("/")[2])
        folders = (files.target(entry) or entry).split("/")
        is_bridge = class_code >> 8 == _PCI_TO_PCI
        functions[address] = PciFunction(
            address=address,
            host_bridge=next(
                (folder for folder in folders if _HOST_BRIDGE.fullmatch(folder)), ""
            ),
            bridges=tuple(
                normal_address(part) for part in folders[:-1] if ADDRESS.fullmatch(part)
            ),
            class_code=class_code,
            vendor=files.number(f"{entry}/vendor") or 0,
            device=files.number(f"{entry}/device") or 0,
            numa_node=files.number(f"{entry}/numa_node"),
            current=_port(files, entry, "current"),
            maximum=_port(files, entry, "max"),
            redirects=redirects(files.content(f"{entry}/config")) if is_bridge else None,
            virtual=files.exists(f"{entry}/physfn"),
        )
    return functions


def gpus_among(functions: Mapping[str, PciFunction]) -> list[PciFunction]:
    """Return NVIDIA's and AMD's GPUs."""
    return [
        function
        for function in functions.values()
        if function.is_accelerator and function.vendor in (NVIDIA, AMD)
    ]


def _port(files: Files, entry: str, which: str) -> Port:
    speed = _SPEED.fullmatch(files.text(f"{entry}/{which}_link_speed") or "")
    width = files.number(f"{entry}/{which}_link_width")
    # A width of 0 or 255 is what the kernel reads from a device that does not say.
    return Port(
        float(speed[1]) if speed else None, width if width and 0 < width <= 32 else None
    )


def redirects(config: bytes) -> bool | None:
    """Return True if ACS redirects requests or completions; None where the extended registers were not given.

    config: a function's configuration space, of which only a privileged reader sees more than 64 bytes.
    """
    if len(config) <= _EXTENDED_CAPABILITIES:
        return None
    # A chain of capabilities: number in the low 16 bits, the next one's place in the high 12. A broken one
    # may lead in a circle.
    at, visited = _EXTENDED_CAPABILITIES, set[int]()
    while at >= _EXTENDED_CAPABILITIES and at + 8 <= len(config) and at not in visited:
        visited.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            control = int.from_bytes(config[at + 6 : at + 8], "little")
            return bool(control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT))
        at = header >> 20
    return False


def nvidia_gpus(files: Files) -> list[PciFunction]:
    """Return NVIDIA's GPUs on the PCI bus, with a driver or without."""
    return [gpu for gpu in gpus_among(read_functions(files)) if gpu.vendor == NVIDIA]


def bridges_above(
    functions: Mapping[str, PciFunction], addresses: Iterable[str]
) -> list[PciFunction]:
    """Return the bridges above the functions at ``addresses``, as far as they are to be seen."""
    above = {
        bridge
        for address in addresses
        if address in functions
        for bridge in functions[address].bridges
    }
    return [functions[bridge] for bridge in sorted(above) if bridge in functions]


def redirecting(bridges: Iterable[PciFunction]) -> list[str] | None:
    """Return addresses of the bridges that send peers' traffic up to the root; None where none tells."""
    readable = [bridge for bridge in bridges if bridge.redirects is not None]
    return [bridge.address for bridge in readable if bridge.redirects] if readable else None


# -- the driver ---------------------------------------------------------------------------------------------

FIELDS_A_CALL = 100
"""Most fields asked for at once; a device with 18 NVLinks has about 90 worth asking."""

MOST_LINKS = 36
"""NVLINK_MAX_LINKS of nvml.h, driver 580 and later; 18 before."""

SM_CLOCK, MEMORY_CLOCK = 1, 2
"""nvmlClockType_t of nvml.h."""


class Missing(Enum):
    """Reason for no answer."""

    NOT_THERE = "not_there"
    NOT_VISIBLE = "not_visible"


class DriverAbsent(Exception):
    """No driver answers here; the text says which part is missing."""


class Nvml:
    """The driver through ``library``, which is pynvml; ``opened`` starts it, leaving the context ends it."""

    def __init__(self, library: Any) -> None:
        self.library = library

    def __enter__(self) -> Nvml:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def close(self) -> None:
        """End the library; errors of the driver are of no matter then."""
        self.ask("Shutdown")

    def ask(self, question: str, *arguments: Any) -> Any:
        """Return the answer of ``nvml`` + ``question``, or why there is none; never an error of the driver.

        A Missing among the arguments, such as the handle of a GPU that does not answer, is the answer.
        """
        missing = next(
            (argument for argument in arguments if isinstance(argument, Missing)), None
        )
        return missing or self.attempt(
            lambda: getattr(self.library, f"nvml{question}")(*arguments)
        )

    def answer(self, question: str, *arguments: Any) -> Any:
        """Return as ``ask`` does, with None for both kinds of no answer."""
        reply = self.ask(question, *arguments)
        return None if isinstance(reply, Missing) else reply

    def asking(self, handle: Any) -> Callable[..., Any]:
        """Return what asks one GPU, as ``answer`` does: for ``Name`` of ``DeviceGetName``."""
        return lambda question, *arguments: self.answer(
            f"DeviceGet{question}", handle, *arguments
        )

    def attempt(self, call: Callable[[], Any]) -> Any:
        """Return what ``call`` returns, or why it does not."""
        library = self.library
        try:
            result = call()
        except (library.NVMLError_NotSupported, library.NVMLError_InvalidArgument):
            return Missing.NOT_THERE
        except (library.NVMLError, AttributeError, TypeError):
            # AttributeError: an older pynvml lacks the call; the driver's own errors are NVMLError.
            return Missing.NOT_VISIBLE
        return result.decode("utf-8", "replace") if isinstance(result, bytes) else result

    def handles(self) -> list[Any]:
        """Return a handle, or Missing, for every GPU that the driver shows to this process, in its order."""
        count = self.answer("DeviceGetCount") or 0
        return [self.ask("DeviceGetHandleByIndex", gpu) for gpu in range(count)]

    def bus_id(self, question: str, *arguments: Any) -> str | None:
        """Return the PCI address in what a question such as ``DeviceGetPciInfo`` is answered with."""
        place = self.answer(question, *arguments)
        text = b"" if place is None else place.busId
        return (
            normal_address(text.decode("ascii", "replace") if isinstance(text, bytes) else text)
            or None
        )

    def fabric_state(self, handle: Any) -> tuple[int, int] | None:
        """Return (state, status) of the GPU in its NVLink fabric; 3 is completed, 0 is success."""

        def call() -> tuple[int, int]:
            room = self.library.c_nvmlGpuFabricInfo_t()
            state = self.library.nvmlDeviceGetGpuFabricInfo(handle, room) or room
            return int(state.state), int(state.status)

        state = self.attempt(call)
        return None if isinstance(state, Missing) else state

    def field_values(
        self, handle: Any, fields: Sequence[tuple[int, int]]
    ) -> Mapping[tuple[int, int], int | float]:
        """Return the values of those of ``fields`` (number, scope) that the device has.

        The scope is the NVLink for fields of a link, else 0. Numbers are nvml.h's NVML_FI_DEV_*.
        """
        values_of: dict[tuple[int, int], int | float] = {}
        # One call for many: each enters the kernel, and looks must cost little.
        for begin in range(0, len(fields), FIELDS_A_CALL):
            some = fields[begin : begin + FIELDS_A_CALL]
            values = self.answer("DeviceGetFieldValues", handle, list(some))
            for scoped_field, value in zip(some, values or (), strict=False):
                number = field_number(value)
                if number is not None:
                    values_of[scoped_field] = number
        return values_of


_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
"""Member of nvmlValue_t by nvmlValueType_t."""


def field_number(value: Any) -> int | float | None:
    """Return the number of a c_nvmlFieldValue_t; None where the device has none."""
    if value.nvmlReturn != 0 or not 0 <= value.valueType < len(_MEMBERS):
        return None
    number: int | float = getattr(value.value, _MEMBERS[value.valueType])
    return number


DEVICE_FILES = Path("/dev")
"""Folder of the driver's device files."""


def opened(library: Any = None) -> Nvml:
    """Return the driver, ready to be asked; DriverAbsent says what is missing.

    library: in place of the module pynvml.
    """
    if library is None:
        try:
            import pynvml  # type: ignore[import-untyped,import-not-found,unused-ignore]  # optional, untyped
        except ImportError:
            # Without the driver's devices the module would help nobody.
            devices = any(DEVICE_FILES.glob("nvidia[0-9]*"))
            raise DriverAbsent(
                "the Python module pynvml is missing (pip install nvidia-ml-py)"
                if devices
                else "this machine has no NVIDIA driver"
            ) from None
        library = pynvml
    try:
        library.nvmlInit()
    except (library.NVMLError, OSError) as error:
        raise DriverAbsent(f"no NVIDIA driver answers here ({error})") from None
    return Nvml(library)


def count_gpus() -> int:
    """Return how many GPUs the driver counts, 0 where it cannot be asked."""
    try:
        with opened() as nvml:
            return nvml.answer("DeviceGetCount") or 0
    except DriverAbsent:
        return 0


# -- GPUs of this machine -----------------------------------------------------------------------------------

MODULES = (
    "nvidia",
    "nvidia_uvm",
    "nvidia_peermem",
    "nv_peer_mem",
    "nvidia_fs",
    "gdrdrv",
    "amdgpu",
    "amdkfd",
    "ib_core",
    "ib_uverbs",
    "mlx5_core",
    "mlx5_ib",
    "efa",
    "xpmem",
    "knem",
    "vfio_pci",
)
"""Kernel modules that drive GPUs and network cards, or let one reach the other's memory."""

COMPATIBILITY = "/usr/local/cuda/compat"
"""Folder of the package cuda-compat, with which older drivers run newer CUDA ("CUDA Compatibility")."""

VERSION_FILE = "/proc/driver/nvidia/version"
FIRST_DRIVER_OF_CUDA_13 = 580
"""Older drivers run CUDA 12 only (CUDA Toolkit release notes, table of driver versions)."""

FIRST_TURING = 0x1E00
"""NVIDIA's PCI device ids rise with the generations: Volta ends at 0x1df6, Turing (compute capability 7.5,
the first of CUDA 13) begins at 0x1e02 (the PCI ID Repository)."""


@dataclass(frozen=True)
class GpuSettings:
    """Settings of one GPU; None for what it does not tell."""

    bus_id: str
    model: str | None
    ecc: bool | None
    persistence: bool | None
    mig: bool | None
    power_limit_watts: float | None
    default_power_limit_watts: float | None
    application_clock_mhz: int | None
    highest_clock_mhz: int | None


@dataclass(frozen=True)
class Accelerators:
    """GPUs of this machine and the way between them.

    driver: NVIDIA's version, from the kernel's files. cuda_driver: newest CUDA the driver knows. pci_gpus:
    PCI addresses of NVIDIA's and AMD's GPUs. device_files: /dev files of NVIDIA GPUs. modules: those of
    MODULES that are loaded, with their version where they have one. iommu: how the GPUs' memory accesses are
    translated (``DMA``, ``DMA-FQ``, ``identity``), None where there is no IOMMU. redirecting_bridges: PCI
    bridges above a GPU that send traffic between peers up to the root, None where that cannot be read (only
    root can).
    """

    driver: str | None = None
    open_kernel_module: bool | None = None
    cuda_driver: str | None = None
    pci_gpus: tuple[str, ...] = ()
    device_files: tuple[str, ...] = ()
    modules: Mapping[str, str] = field(default_factory=dict)
    iommu: str | None = None
    redirecting_bridges: tuple[str, ...] | None = None
    gpus: tuple[GpuSettings, ...] = ()


def read_accelerators(files: Files, driver: Callable[[], Nvml] | None = None) -> Accelerators:
    """Read from files, and from the driver where ``driver`` opens one."""
    version, functions = files.text(VERSION_FILE) or "", read_functions(files)
    gpus = gpus_among(functions)
    cuda: str | None = None
    settings: tuple[GpuSettings, ...] = ()
    if driver is not None:
        with suppress(DriverAbsent), driver() as nvml:
            number = nvml.answer("SystemGetCudaDriverVersion_v2")
            cuda = number and cuda_version(number)
            settings = tuple(
                _settings_of(nvml, gpu, handle) for gpu, handle in enumerate(nvml.handles())
            )
    kinds = {files.text(f"{DEVICES}/{gpu.address}/iommu_group/type") for gpu in gpus}
    redirects = redirecting(bridges_above(functions, (gpu.address for gpu in gpus)))
    return Accelerators(
        driver=driver_version(files),
        open_kernel_module="Open Kernel Module" in version if version else None,
        cuda_driver=cuda,
        pci_gpus=tuple(gpu.address for gpu in gpus),
        device_files=tuple(files.matching("/dev", "nvidia[0-9]*")),
        modules={
            name: files.text(f"/sys/module/{name}/version") or ""
            for name in MODULES
            if files.exists(f"/sys/module/{name}")
        },
        iommu=", ".join(sorted(filter(None, kinds))) or None,
        redirecting_bridges=None if redirects is None else tuple(redirects),
        gpus=settings,
    )


def driver_version(files: Files) -> str | None:
    """Return the version of NVIDIA's kernel module, from its files."""
    number = re.search(
        r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)(?:\s|$)", files.text(VERSION_FILE) or ""
    )
    return number[1] if number else files.text("/sys/module/nvidia/version")


def before_turing(files: Files, every: bool = False) -> bool:
    """Return True if an NVIDIA GPU here, or every one, is too old for CUDA 13: older than Turing."""
    old = [gpu.device < FIRST_TURING for gpu in nvidia_gpus(files) if gpu.device]
    return any(old) and (all(old) or not every)


CUDA_12_INSTEAD = f"pip uninstall cupy-cuda13x nvidia-cuda-nvrtc nvidia-nccl-cu13, then {install_line('cuda12')}"
"""For older GPUs and drivers: CuPy's wheels for two CUDAs overwrite each other's files."""


def before_cuda_13(driver: str | None) -> bool:
    """Return True if a driver of this version is known to run CUDA 12 at most."""
    major = (driver or "").split(".")[0]
    return major.isdecimal() and int(major) < FIRST_DRIVER_OF_CUDA_13


def cuda_install(files: Files | None = None) -> str:
    """Return the command that installs a CUDA that the driver and every GPU here can run."""
    files = files or Files()
    driver = driver_version(files)
    if before_turing(files) or before_cuda_13(driver):
        return install_line("cuda12")
    if driver:
        return install_line("cuda13")
    otherwise = "cuda12 for drivers before 580 and for GPUs of compute capability below 7.5"
    return f"{install_line('cuda13')} ({otherwise})"


def scaled(number: float | None, unit: float) -> float | None:
    """Return ``number`` in another unit, None for None."""
    return None if number is None else number / unit


def _settings_of(nvml: Nvml, gpu: int, handle: Any) -> GpuSettings:
    """Ask one GPU; a mode is told as it is now, or as it is now and after the next start."""
    answer = nvml.asking(handle)
    modes = {}
    for name in ("Ecc", "Persistence", "Mig"):
        mode = answer(f"{name}Mode")
        now = mode[0] if isinstance(mode, list | tuple) else mode
        modes[name.lower()] = None if now is None else bool(now)
    return GpuSettings(
        bus_id=nvml.bus_id("DeviceGetPciInfo", handle) or str(gpu),
        model=answer("Name"),
        power_limit_watts=scaled(answer("EnforcedPowerLimit"), 1e3),
        default_power_limit_watts=scaled(answer("PowerManagementDefaultLimit"), 1e3),
        application_clock_mhz=answer("ApplicationsClock", SM_CLOCK),
        highest_clock_mhz=answer("MaxClockInfo", SM_CLOCK),
        **modes,
    )
