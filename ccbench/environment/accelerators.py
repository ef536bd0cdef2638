"""GPUs and the kernel's part in them: drivers, modules, modes, and what stands between two devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ccbench.environment.files import Files
from ccbench.environment.software import cuda_version, install_line
from ccbench.nvidia import DriverAbsent, Session, text_of

MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "nvidia_fs", "gdrdrv", "amdgpu", "amdkfd",
    "ib_core", "ib_uverbs", "mlx5_core", "mlx5_ib", "efa", "xpmem", "knem", "vfio_pci",
)  # fmt: skip
"""Kernel modules that drive GPUs and network cards, or let one reach the other's memory."""

VERSION_FILE = "/proc/driver/nvidia/version"
SM_CLOCK = 1
ACS_CAPABILITY = 0x000D
EXTENDED_CAPABILITIES = 0x100
PCI_TO_PCI_BRIDGE = "0x0604"
DISPLAY_CLASSES = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Class codes of GPUs: VGA, 3D, other display, accelerator (PCI Code and ID Assignment)."""

FIRST_DRIVER_OF_CUDA_13 = 580
"""Older drivers run CUDA 12 only (CUDA Toolkit release notes, table of driver versions)."""

FIRST_TURING = 0x1E00
"""NVIDIA's PCI device ids rise with the generations: Volta ends at 0x1df6, Turing (compute capability 7.5,
the first of CUDA 13) begins at 0x1e02 (the PCI ID Repository)."""

REQUEST_REDIRECT, COMPLETION_REDIRECT = 0x04, 0x08
"""Bits of the ACS control register that send traffic between peers up to the root (PCI Express Base
Specification, Access Control Services; PCI_ACS_RR and PCI_ACS_CR of the Linux kernel's pci_regs.h)."""


@dataclass(frozen=True)
class GpuSettings:
    """How one GPU is set; None for what it does not tell."""

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


def read_accelerators(files: Files, driver: Callable[[], Session] | None = None) -> Accelerators:
    """From files, and from the driver where ``driver`` opens one."""
    version = files.text(VERSION_FILE) or ""
    gpus = _pci_gpus(files)
    cuda, settings = _settings(driver) if driver else (None, ())
    return Accelerators(
        driver=_driver(files),
        open_kernel_module="Open Kernel Module" in version if version else None,
        cuda_driver=cuda,
        pci_gpus=gpus,
        device_files=tuple(files.matching("/dev", "nvidia[0-9]*")),
        modules=loaded_modules(files),
        iommu=_iommu(files, gpus),
        redirecting_bridges=redirecting_bridges(files, gpus),
        gpus=settings,
    )


def _driver(files: Files) -> str | None:
    number = re.search(r"Kernel Module.*?\s([0-9]+(?:\.[0-9]+)+)(?:\s|$)", files.text(VERSION_FILE) or "")
    return number[1] if number else files.text("/sys/module/nvidia/version")


def before_turing(files: Files, every: bool = False) -> bool:
    """Whether an NVIDIA GPU here, or every one, is too old for CUDA 13: of a compute capability below 7.5."""
    folders = [f"/sys/bus/pci/devices/{gpu}" for gpu in _pci_gpus(files)]
    ids = [files.text(f"{one}/device") or "" for one in folders if files.text(f"{one}/vendor") == "0x10de"]
    old = [int(one, 16) < FIRST_TURING for one in ids if re.fullmatch("0x[0-9a-f]{4}", one)]
    return any(old) and (all(old) or not every)


def cuda_install(files: Files | None = None) -> str:
    """The command that installs the packages of the CUDA that the driver and every GPU here can run."""
    files = files or Files()
    major = (_driver(files) or "").split(".")[0]
    if before_turing(files) or (major.isdecimal() and int(major) < FIRST_DRIVER_OF_CUDA_13):
        return install_line("cuda12")
    if major.isdecimal():
        return install_line("cuda13")
    otherwise = "cuda12 for drivers before 580 and for GPUs of compute capability below 7.5"
    return f"{install_line('cuda13')} ({otherwise})"


def loaded_modules(files: Files) -> dict[str, str]:
    """Those of MODULES that are loaded -> version, "" where they have none."""
    folders = {name: f"/sys/module/{name}" for name in MODULES}
    return {
        name: files.text(f"{folder}/version") or ""
        for name, folder in folders.items()
        if files.exists(folder)
    }


def _pci_gpus(files: Files) -> tuple[str, ...]:
    found = []
    for path in files.matching("/sys/bus/pci/devices", "*/class"):
        if (files.text(path) or "").startswith(DISPLAY_CLASSES):
            device = path.removesuffix("/class")
            # Boards' own graphics, such as ASPEED's, compute nothing.
            if files.text(f"{device}/vendor") in ("0x10de", "0x1002"):
                found.append(device.rpartition("/")[2])
    return tuple(found)


def _iommu(files: Files, gpus: tuple[str, ...]) -> str | None:
    kinds = [files.text(f"/sys/bus/pci/devices/{gpu}/iommu_group/type") for gpu in gpus]
    return ", ".join(sorted({kind for kind in kinds if kind})) or None


def redirecting_bridges(files: Files, gpus: tuple[str, ...]) -> tuple[str, ...] | None:
    """PCI bridges above ``gpus`` whose Access Control Services redirect; None where none can be read.

    The control register lies beyond the first 64 bytes of ``config``, which the kernel shows to root only.
    """
    found: set[str] = set()
    readable = False
    for gpu in gpus:
        for address in _above(files, gpu):
            device = f"/sys/bus/pci/devices/{address}"
            if not (files.text(f"{device}/class") or "").startswith(PCI_TO_PCI_BRIDGE):
                continue
            config = files.content(f"{device}/config")
            readable = readable or len(config) > EXTENDED_CAPABILITIES
            if acs_control(config) & (REQUEST_REDIRECT | COMPLETION_REDIRECT):
                found.add(address)
    return tuple(sorted(found)) if readable else None


def _above(files: Files, device: str) -> list[str]:
    """PCI addresses on the way from ``device`` up to its root port."""
    parts = files.real(f"/sys/bus/pci/devices/{device}").split("/")
    return [part for part in parts if re.fullmatch(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", part)][:-1]


def acs_control(config: bytes) -> int:
    """The ACS control register of a device's configuration space; 0 where it has none or it is not shown."""
    at, seen = EXTENDED_CAPABILITIES, set()
    while at >= EXTENDED_CAPABILITIES and at + 8 <= len(config) and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == ACS_CAPABILITY:
            return int.from_bytes(config[at + 6 : at + 8], "little")
        at = header >> 20
    return 0


def _settings(driver: Callable[[], Session]) -> tuple[str | None, tuple[GpuSettings, ...]]:
    try:
        session = driver()
    except DriverAbsent:
        return None, ()
    try:
        library = session.library
        number = session.answer(lambda: int(library.nvmlSystemGetCudaDriverVersion_v2()))
        count = session.answer(lambda: int(library.nvmlDeviceGetCount())) or 0
        found = tuple(_settings_of(session, gpu) for gpu in range(count))
        return None if number is None else cuda_version(number), found
    finally:
        session.answer(session.close)


def _settings_of(session: Session, gpu: int) -> GpuSettings:
    library = session.library

    def ask(name: str, *more: int) -> Any:
        return session.answer(lambda: getattr(library, name)(session.handle(gpu), *more))

    def first(pair: Any) -> bool | None:
        return None if pair is None else bool(pair[0])

    def watts(milliwatts: Any) -> float | None:
        return None if milliwatts is None else milliwatts / 1e3

    place = ask("nvmlDeviceGetPciInfo")
    model, persistence = ask("nvmlDeviceGetName"), ask("nvmlDeviceGetPersistenceMode")
    return GpuSettings(
        bus_id=str(gpu) if place is None else text_of(place.busId).lower(),
        model=None if model is None else text_of(model),
        ecc=first(ask("nvmlDeviceGetEccMode")),
        persistence=None if persistence is None else bool(persistence),
        mig=first(ask("nvmlDeviceGetMigMode")),
        power_limit_watts=watts(ask("nvmlDeviceGetEnforcedPowerLimit")),
        default_power_limit_watts=watts(ask("nvmlDeviceGetPowerManagementDefaultLimit")),
        application_clock_mhz=ask("nvmlDeviceGetApplicationsClock", SM_CLOCK),
        highest_clock_mhz=ask("nvmlDeviceGetMaxClockInfo", SM_CLOCK),
    )
