"""Check what makes figures doubtful on this machine, with what to change.

Then each backend: whether it works here, what it lacks, and the one command that cures it. Reads files, asks
the system and the GPUs' driver; changes nothing, loads no CUDA, MPI or torch library.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from ccbench.cases.capabilities import Requirement, backend_names, capabilities_of
from ccbench.machine.accelerators import (
    COMPATIBILITY,
    CUDA_12_INSTEAD,
    FIRST_DRIVER_OF_CUDA_13,
    Accelerators,
    GpuSettings,
    Nvml,
    before_cuda_13,
    cuda_install,
    nvidia_gpus,
    opened,
)
from ccbench.machine.files import Files
from ccbench.machine.host import Environment
from ccbench.machine.readings import THROTTLING, DeviceReading
from ccbench.machine.software import LIBRARY_FOLDERS, install_line, installed_version
from ccbench.machine.telemetry import read_devices
from ccbench.units import format_seconds

UNKNOWN = "the system does not tell"

SMALLEST_SHARED_MEMORY_BYTES = 1 << 30
"""NCCL's shared-memory transport, MPI and other libraries keep buffers there; Docker gives 64 MiB."""

SMALLEST_FREE_MEMORY_BYTES = 2 << 30
COARSEST_CLOCK_SECONDS = 1e-6
HIGHEST_LOAD = 0.25
"""Running processes, per processor, over the last minute."""

GOOD_CLOCK_SOURCES = ("tsc", "arch_sys_counter", "timebase", "kvm-clock")

OTHER_DEVICES = ("/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""NVIDIA's GPUs under Windows (WSL) and on boards (Jetson) have these instead of /dev/nvidia0."""

CUDA_PACKAGES = (
    *("cupy-cuda13x", "nvidia-cuda-nvrtc", "nvidia-nccl-cu13"),
    *("cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-nccl-cu12"),
)
"""CuPy, NVRTC and NCCL, whose CUDA the driver must know."""

_OF_NCCL = (
    "NCCL in containers, and between GPUs without peer access, needs it, ccbench's own buffers do not: "
    "docker run --shm-size=1g --ulimit memlock=-1, or --cap-add SYS_NICE (with which it allocates host memory by CUDA)"
)


@dataclass(frozen=True)
class Check:
    """One thing looked at.

    status: ``note`` may explain odd figures, ``problem`` keeps something from working.
    seen: what is there. advice: what to do; empty when nothing needs doing.
    """

    name: str
    status: Literal["ok", "note", "problem"]
    seen: str
    advice: str = ""


def check(name: str, text: str, advice: str = "", problem: bool = False) -> Check:
    """Return a check that is a note, or a problem, where there is advice."""
    return Check(name, "problem" if problem else "note" if advice else "ok", text, advice)


def examine(
    environment: Environment, files: Files, driver: Callable[[], Nvml] = opened
) -> tuple[Check, ...]:
    """Check the host, the GPUs and the way between them, in the order a person would look at them.

    environment, files: the machine's facts and files. driver: opens the NVIDIA driver.
    """
    devices = environment.accelerators
    source = environment.processor.clock_source
    quick = source in (None, *GOOD_CLOCK_SOURCES)
    slow = "reading this clock is slow: boot with clocksource=tsc where it is stable"
    checks = [
        *_processors(environment),
        *_memory(environment, files),
        check("clock source", source or UNKNOWN, "" if quick else slow),
        clock_resolution(time.perf_counter),
        _gpu(environment, files),
    ]
    if devices.pci_gpus or devices.gpus:
        checks += _between_gpus(environment, files)
    if devices.gpus:
        readings = read_devices([gpu.bus_id for gpu in devices.gpus], driver)
        for name, (fine, oddities) in SETTINGS.items():
            odd: dict[str, str] = {}
            for what, (has, advice) in oddities.items():
                bus_ids = [gpu.bus_id for gpu in devices.gpus if has(gpu)]
                if bus_ids:
                    every = len(bus_ids) == len(devices.gpus) > 1
                    odd[f"{what} ({'all GPUs' if every else ', '.join(bus_ids)})"] = advice
            text = "; ".join(odd) or f"{len(devices.gpus)} GPU(s): {fine}"
            checks.append(check(name, text, "; ".join(odd.values())))
        checks.append(_health(readings))
    return tuple(checks)


# -- the host ----------------------------------------------------------------------------------------------


def _processors(environment: Environment) -> Iterator[Check]:
    processor, host, limit = environment.processor, environment.host, environment.limits.cores
    # Online, allowed to this process, and what a container's quota leaves of them.
    if processor.cores is None:
        yield check("cores", UNKNOWN, "give --ranks yourself")
    else:
        usable = min(processor.cores, processor.cores_allowed or processor.cores)
        text, advice = f"{processor.cores} online, {usable} allowed to this process", ""
        short = limit is not None and limit < usable
        if short:
            text += f", but the container may use the time of {limit:g}"
            advice = (
                "ranks that wait would be put to sleep by the limit: start the container with whole cores "
                "(docker run --cpuset-cpus) or use no more ranks than the limit"
            )
        elif usable < 2:
            advice = "two ranks need two cores; their times will be scheduling"
        elif usable < processor.cores:
            advice = "other processes may use the rest and disturb a run"
        yield check("cores", text, advice, problem=short or usable < 2)

    text = f"on, {processor.threads_per_core or 2} threads a core"
    advice = "two ranks on one core's threads share its arithmetic: use at most one rank a core"
    if not processor.smt_active:
        text = (
            UNKNOWN
            if processor.smt_active is None
            else "off: every processor is a core of its own"
        )
    yield check("SMT", text, advice if processor.smt_active else "")

    # Virtual machines show no governors: that is no fault.
    governors = ", ".join(
        f"{name} on {cores}" for name, cores in sorted(processor.governors.items())
    )
    steady = set(processor.governors) <= {"performance"}
    yield check(
        "governor",
        f"{governors} cores" if governors else "not visible here (usual in a virtual machine)",
        "" if steady else "clocks may move under a run: cpupower frequency-set -g performance",
    )

    if host.hypervisor is None:
        where = f"in a container ({host.container})" if host.container else "bare metal"
        yield check("virtual machine", where)
    else:
        text = ", ".join(word for word in (host.hypervisor, host.product) if word)
        advice = "neighbours and core placement are invisible: compare only what was interleaved in one run"
        yield check("virtual machine", text, advice)

    load, cores = host.load_1_minute, processor.cores or 1
    busy = load is not None and load > HIGHEST_LOAD * cores
    yield check(
        "load",
        UNKNOWN if load is None else f"{load:g} over the last minute on {cores} cores",
        "something else is running: wait, or stop it, before measuring" if busy else "",
    )


def _memory(environment: Environment, files: Files) -> Iterator[Check]:
    memory, limit = environment.memory, environment.limits.memory_bytes
    if memory.available_bytes is None:
        yield check("memory", UNKNOWN)
    else:
        usable = memory.available_bytes if limit is None else min(memory.available_bytes, limit)
        text = f"{about(usable)} to use"
        text += f" (the container's limit is {about(limit)})" if limit is not None else ""
        short = usable < SMALLEST_FREE_MEMORY_BYTES
        advice = "large sizes will be refused: free memory or lower the sizes" if short else ""
        yield check("memory", text, advice, problem=short)

    used = memory.swap_used_bytes
    text = f"{about(used)} in use" if used else UNKNOWN if used is None else "not in use"
    advice = "pages may come from disk under a run: free memory" if used else ""
    yield check("swap", text, advice)

    private, shared = memory.huge_pages, memory.shared_memory_huge_pages
    advice = (
        "large buffers use 4 KiB pages; for fewer misses: echo always as root to "
        "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
    )
    text = f"{private} for private memory, {shared or 'unknown'} for shared memory"
    small = private is not None and shared in ("never", "deny")
    yield check("huge pages", UNKNOWN if private is None else text, advice if small else "")

    space = files.space_bytes("/dev/shm")
    text, cure = "there is none, or it cannot be read", "mount a tmpfs on /dev/shm"
    if space is not None:
        text = f"{about(space[0])}, {about(space[1])} free"
        cure = "docker run --shm-size=8g, or remount /dev/shm larger"
    short = space is None or space[1] < SMALLEST_SHARED_MEMORY_BYTES
    yield check(
        "/dev/shm", text, (f"MPI may not start: {cure}; {_OF_NCCL}" if short else ""), short
    )


def clock_resolution(clock: Callable[[], float], readings: int = 2000) -> Check:
    """Judge a clock, in seconds, by the smallest step that is seen between two readings in a row."""
    times = [clock() for _ in range(readings)]
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    tick = min((step for step in steps if step > 0), default=None)
    if tick is None:
        return check(
            "clock", "stands still", "no sample can be taken with this clock", problem=True
        )
    advice = "short cases need more launches a sample to be told apart"
    text = f"moves in steps of {format_seconds(tick)} or less"
    return check("clock", text, advice if tick > COARSEST_CLOCK_SECONDS else "")


# -- GPUs --------------------------------------------------------------------------------------------------


def sees_gpu(accelerators: Accelerators, files: Files) -> bool:
    """Return True if this process sees a device of NVIDIA's driver."""
    return bool(accelerators.device_files) or any(files.exists(path) for path in OTHER_DEVICES)


def _gpu(environment: Environment, files: Files) -> Check:
    devices, container = environment.accelerators, environment.host.container
    nvidia = nvidia_gpus(files)
    driver = files.exists("/proc/driver/nvidia/version")
    version = f"driver {devices.driver or 'version unknown'}"
    advice, problem = "", False
    # From what works down to nothing at all: what stands first explains what comes after.
    if sees_gpu(devices, files):
        text = f"{len(devices.device_files) or 1} NVIDIA device(s), {version}"
    elif driver and container:
        text = f"the host's driver {devices.driver or ''} is loaded, this container was given no device"
        advice = (
            "docker run --gpus all (needs the NVIDIA Container Toolkit on the host), or podman run --device "
            "nvidia.com/gpu=all"
        )
    elif driver and nvidia:
        text, problem = f"driver and {len(nvidia)} GPU(s), but no /dev/nvidia0", True
        advice = "make the device files as root: nvidia-modprobe -c 0 -u, or start nvidia-persistenced"
    elif driver:
        text, problem = "driver without any GPU on the PCI bus", True
        advice = (
            "the GPU has left the PCI bus or was never on it: lspci -d 10de:, "
            "dmesg | grep -i -e xid -e nvrm"
        )
    elif nvidia:
        text, problem = "an NVIDIA device without its driver", True
        advice = "install the NVIDIA driver" + (" on the host" if container else "")
    elif files.exists("/dev/kfd"):
        text, advice = (
            "an AMD GPU",
            "backend rccl is for it, and was never run; cpu and simulated work",
        )
    else:
        text = "none: no driver, no device"
        advice = "the cpu, simulated and cuda-host backends need none"
    return check("GPU", text, advice, problem)


def _between_gpus(environment: Environment, files: Files) -> Iterator[Check]:
    devices = environment.accelerators
    # The kernel's half of the driver and the programs' half must be of one version.
    paths = [
        path for folder in LIBRARY_FOLDERS for path in files.matching(folder, "libcuda.so.*.*")
    ]
    libraries = {path.rpartition(".so.")[2] for path in paths}
    text, apart = devices.driver or UNKNOWN, False
    if devices.driver and libraries:
        text = f"{text} in the kernel, libcuda is {', '.join(sorted(libraries))}"
        apart = devices.driver not in libraries
    advice = "the driver was updated under a running kernel: reboot, or reload its modules"
    yield check("driver versions", text, advice * apart, apart)
    yield _cuda(devices.driver, files)
    bridges = devices.redirecting_bridges
    if bridges is None:
        yield check("PCIe ACS", "not visible here: ask again as root (sudo ccbench doctor)")
    elif not bridges:
        yield check("PCIe ACS", "no bridge above a GPU sends peers' traffic up to the root")
    else:
        yield check(
            "PCIe ACS",
            f"{len(bridges)} bridge(s) above GPUs send peers' traffic up to the root: {', '.join(bridges[:4])}",
            "peer access and GPUDirect RDMA are slow or hang: turn ACS or VT-d off in the firmware, or as "
            f"root after each boot, for each bridge: setpci -s {bridges[0]} ECAP_ACS+6.w=0000 (never on a "
            "host of virtual machines, which it keeps apart)",
        )

    # Kinds of IOMMU groups whose accesses are translated; ``identity`` is not (Linux,
    # Documentation/ABI/testing/sysfs-kernel-iommu_groups).
    kind = devices.iommu
    if kind is None:
        yield check("IOMMU", "none for the GPUs, or not visible here")
    elif {"DMA", "DMA-FQ"} & set(kind.split(", ")) and environment.host.hypervisor is None:
        advice = "peers' traffic may go through the IOMMU: boot with iommu=pt, or turn it off in the firmware"
        yield check("IOMMU", f"translates the GPUs' accesses ({kind})", advice)
    else:
        yield check("IOMMU", f"GPUs' groups are of kind {kind}")

    # A network card reaches a GPU's memory by a module of its own, or by DMA-BUF with the open driver.
    cards = len(files.matching("/sys/class/infiniband"))
    copies = "gdrcopy (gdrdrv) loaded" if "gdrdrv" in devices.modules else "no gdrcopy"
    loaded = [name for name in ("nvidia_peermem", "nv_peer_mem") if name in devices.modules]
    text, advice = f"{cards} RDMA card(s), nvidia_peermem not loaded", ""
    if not cards:
        text = "no RDMA network card here"
    elif loaded:
        text = f"{loaded[0]} loaded for {cards} RDMA card(s), {copies}"
    elif devices.open_kernel_module:
        text = f"DMA-BUF of the open driver for {cards} card(s), {copies}"
    else:
        advice = (
            "NCCL would stage network traffic in host memory: modprobe nvidia_peermem as root"
        )
    yield check("GPUDirect RDMA", text, advice)


def _cuda(driver: str | None, files: Files) -> Check:
    versions = {name: version for name in CUDA_PACKAGES if (version := installed_version(name))}
    newer = any("12" not in name for name in versions)
    old = newer and before_cuda_13(driver) and not files.exists(COMPATIBILITY)
    seen = ", ".join([f"driver {driver or 'unknown'}", *map(" ".join, versions.items())])
    advice = f"CUDA 13 needs driver {FIRST_DRIVER_OF_CUDA_13}: {CUDA_12_INSTEAD}"
    return check("CUDA versions", seen, advice * old, old)


def _below(value: float | None, usual: float | None) -> bool:
    return value is not None and usual is not None and value < usual


SETTINGS: Mapping[str, tuple[str, Mapping[str, tuple[Callable[[GpuSettings], bool], str]]]] = {
    "GPU modes": (
        "persistence mode on, no MIG, ECC as it should be",
        {
            "MIG on": (
                lambda gpu: gpu.mig is True,
                "no peer access between instances: nvidia-smi -mig 0",
            ),
            "persistence mode off": (lambda gpu: gpu.persistence is False, "nvidia-smi -pm 1"),
            "ECC off": (
                lambda gpu: gpu.ecc is False,
                "errors go unseen: nvidia-smi -e 1, then reboot",
            ),
        },
    ),
    "GPU limits": (
        "power limits and clocks are not lowered, as far as GPUs tell",
        {
            "power limit below the default": (
                lambda gpu: _below(gpu.power_limit_watts, gpu.default_power_limit_watts),
                "nvidia-smi -pl with the default of nvidia-smi -q",
            ),
            "application clocks below the highest": (
                lambda gpu: _below(gpu.application_clock_mhz, gpu.highest_clock_mhz),
                "nvidia-smi -rac",
            ),
        },
    ),
}
"""Check -> what is said where all is well, and what is odd -> which GPUs have it, and what to do."""


def _health(readings: Sequence[DeviceReading]) -> Check:
    sick = []
    for reading in readings:
        ailments = (
            [f"does not answer ({reading.trouble})"] if reading.trouble is not None else []
        )
        ailments += [reason for reason in reading.clock_reasons or () if reason in THROTTLING]
        if errors := reading.ecc_uncorrected_volatile:
            ailments.append(f"{errors} uncorrected memory errors since the driver was loaded")
        if ailments:
            sick.append(f"{reading.bus_id}: {', '.join(ailments)}")
    if sick:
        advice = "figures of these GPUs are in doubt: look at cooling and supply, dmesg | grep -i xid"
        return check("GPU health", "; ".join(sick), advice, problem=True)
    heat = max((reading.temperature_celsius or 0 for reading in readings), default=0)
    warmest = f", the warmest at {heat:g} degrees Celsius" if heat else ""
    return check("GPU health", f"{len(readings)} GPU(s) answer{warmest}")


# -- folders and backends ----------------------------------------------------------------------------------


def results_folder(results: Path) -> Check:
    """Check that runs can be kept."""
    existing = results
    while not os.path.exists(existing) and existing != existing.parent:
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        advice = "runs cannot be kept: change to a folder you may write to, or use -o"
        return check("results folder", f"{existing}: {error.strerror}", advice, problem=True)
    made = "" if existing == results else ", will be made"
    return check("results folder", f"{results}{made}")


def backend_checks(
    environment: Environment, files: Files, unavailable: Callable[[str], str | None]
) -> tuple[Check, ...]:
    """Return one check for every backend: ``note`` where it cannot work, since others do.

    unavailable: what a backend says keeps it from working, None where nothing does.
    """

    def judged(name: str) -> Check:
        title, needs = f"backend {name}", capabilities_of(name).needs
        cures = {
            need.name: need.cure
            or (install_line(need.extra) if need.extra else cuda_install(files))
            for need in needs
            if not _there(need, environment, files)
        }
        if cures:
            # The packages of one extra come together, so their command is said once.
            return check(
                title,
                f"needs {', '.join(cures)}",
                "; then ".join(dict.fromkeys(cures.values())),
            )
        reason = unavailable(name)
        if reason is None:
            named = []
            for need in (need for need in needs if need.distributions):
                versions = list(filter(None, map(installed_version, need.distributions)))
                if need.library:
                    loadable = environment.software.loadable.items()
                    versions += [version for path, version in loadable if need.library in path]
                named.append(f"{need.name} {next(iter(versions), '(version unknown)')}")
            return check(title, f"works ({', '.join(named)})" if named else "works")
        # A backend's sentence is "what is missing; what to do" or "what is missing: what to do".
        what, *cure = re.split("; |: ", reason, maxsplit=1)
        return check(title, what, cure[0] if cure else "see docs/backends.md")

    return tuple(map(judged, backend_names()))


def _there(need: Requirement, environment: Environment, files: Files) -> bool:
    if need.name == "GPU":
        return sees_gpu(environment.accelerators, files)
    if need.device:
        return files.exists(need.device)
    if need.name == "C++ compiler":
        return shutil.which(os.environ.get("CXX", "g++")) is not None
    folders = map(Path, filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")))
    loadable = [
        *environment.software.loadable,
        *(str(path) for folder in folders for path in folder.glob("lib*.so*")),
    ]
    if need.library and any(f"{need.library}.so" in path for path in loadable):
        return True  # the system's own, or the user's
    if need.module:
        return has_module(need.module)
    return any(map(installed_version, need.distributions))


def has_module(name: str) -> bool:
    """Return True if a Python module could be imported."""
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # a parent package is missing, or half-installed
        return False


def about(size_bytes: int) -> str:
    """Return a size to one decimal of its unit; exact digits say nothing here."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"
