"""Looks at the machine the way a person does before believing its figures, and says what to change.

Reads files, asks the system and the GPUs' driver; changes nothing, loads no CUDA, MPI or torch library.
"""

from __future__ import annotations

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ccbench.machine.accelerators import Accelerators, GpuSettings, Nvml, opened
from ccbench.machine.environment import Environment
from ccbench.machine.files import Files
from ccbench.machine.pci import nvidia_gpus
from ccbench.machine.readings import THROTTLING, DeviceReading
from ccbench.machine.software import LIBRARY_FOLDERS
from ccbench.machine.telemetry import read_devices
from ccbench.units import format_seconds

UNKNOWN = "the system does not tell"

SMALLEST_SHARED_MEMORY_BYTES = 1 << 30
"""Buffers of the cpu backend and of NCCL's shared-memory transport lie there; Docker gives 64 MiB."""

SMALLEST_FREE_MEMORY_BYTES = 2 << 30
COARSEST_CLOCK_SECONDS = 1e-6
HIGHEST_LOAD = 0.25
"""Running processes, per processor, over the last minute."""

GOOD_CLOCK_SOURCES = ("tsc", "arch_sys_counter", "timebase", "kvm-clock")

OTHER_DEVICES = ("/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""NVIDIA's GPUs under Windows (WSL) and on boards (Jetson) have these instead of /dev/nvidia0."""

TRANSLATING = ("DMA", "DMA-FQ")
"""Kinds of IOMMU groups whose accesses are translated (Linux, Documentation/ABI/testing/
sysfs-kernel-iommu_groups); ``identity`` is not."""

PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")

_OF_NCCL = (
    "NCCL in containers, and between GPUs without peer access, needs it too: docker run --shm-size=1g "
    "--ulimit memlock=-1, or --cap-add SYS_NICE (with which it allocates host memory by CUDA)"
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


def check(name: str, seen: str, advice: str = "", problem: bool = False) -> Check:
    """A check that is a note, or a problem, where there is advice."""
    return Check(name, "problem" if problem else "note" if advice else "ok", seen, advice)


def examine(seen: Environment, files: Files, driver: Callable[[], Nvml] = opened) -> tuple[Check, ...]:
    """The host, the GPUs and the way between them, in the order a person would look at them.

    seen, files: the machine's facts and files. driver: opens the NVIDIA driver.
    """
    host = (
        _cores(seen),
        _threads(seen),
        _governor(seen),
        _virtual(seen),
        _load(seen),
        _memory(seen),
        _swap(seen),
        _huge_pages(seen),
        _shared_memory(files),
        _clock_source(seen),
        clock_resolution(time.perf_counter),
    )
    found = seen.accelerators
    checks = [*host, _gpu(seen, files)]
    if found.pci_gpus or found.gpus:
        checks += [_versions(found, files), _bridges(found), _iommu(seen), _network_memory(found, files)]
    if found.gpus:
        readings = read_devices([gpu.bus_id for gpu in found.gpus], driver)
        checks += [*(_settings(name, found.gpus) for name in SETTINGS), _health(readings)]
    return tuple(checks)


def _cores(seen: Environment) -> Check:
    online, allowed, limit = seen.processor.cores, seen.processor.cores_allowed, seen.limits.cores
    if online is None:
        return check("cores", UNKNOWN, "give --ranks yourself")
    usable = min(online, allowed if allowed is not None else online)
    text = f"{online} online, {usable} allowed to this process"
    if limit is not None and limit < usable:
        return check(
            "cores",
            f"{text}, but the container may use the time of {limit:g}",
            "ranks that wait would be put to sleep by the limit: start the container with whole cores "
            "(docker run --cpuset-cpus) or use no more ranks than the limit",
            problem=True,
        )
    if usable < 2:
        return check("cores", text, "two ranks need two cores; their times will be scheduling", problem=True)
    advice = "the rest belongs to somebody else, who may disturb a run"
    return check("cores", text, advice if usable < online else "")


def _threads(seen: Environment) -> Check:
    if not seen.processor.smt_active:
        known = seen.processor.smt_active is not None
        return check("SMT", "off: every processor is a core of its own" if known else UNKNOWN)
    advice = "two ranks on one core's threads share its arithmetic: use at most one rank a core"
    return check("SMT", f"on, {seen.processor.threads_per_core or 2} threads a core", advice)


def _governor(seen: Environment) -> Check:
    governors = seen.processor.governors
    if not governors:
        return check("governor", "not visible here (usual in a virtual machine)")
    text = ", ".join(f"{name} on {cores}" for name, cores in sorted(governors.items())) + " cores"
    steady = set(governors) == {"performance"}
    advice = "clocks may move under a run: cpupower frequency-set -g performance"
    return check("governor", text, "" if steady else advice)


def _virtual(seen: Environment) -> Check:
    if seen.host.hypervisor is None:
        where = f"in a container ({seen.host.container})" if seen.host.container else "bare metal"
        return check("virtual machine", where)
    return check(
        "virtual machine",
        ", ".join(word for word in (seen.host.hypervisor, seen.host.product) if word),
        "neighbours and core placement are invisible: compare only what was interleaved in one run",
    )


def _load(seen: Environment) -> Check:
    load, cores = seen.host.load_1_minute, seen.processor.cores or 1
    if load is None:
        return check("load", UNKNOWN)
    advice = "something else is running: wait, or stop it, before measuring"
    text = f"{load:g} over the last minute on {cores} cores"
    return check("load", text, advice if load > HIGHEST_LOAD * cores else "")


def _memory(seen: Environment) -> Check:
    available, limit = seen.memory.available_bytes, seen.limits.memory_bytes
    if available is None:
        return check("memory", UNKNOWN)
    usable = available if limit is None else min(available, limit)
    text = f"{about(usable)} to use"
    if limit is not None:
        text += f" (the container's limit is {about(limit)})"
    if usable >= SMALLEST_FREE_MEMORY_BYTES:
        return check("memory", text)
    return check("memory", text, "large sizes will be refused: free memory or lower the sizes", problem=True)


def _swap(seen: Environment) -> Check:
    used = seen.memory.swap_used_bytes
    if not used:
        return check("swap", "not in use" if used == 0 else UNKNOWN)
    return check("swap", f"{about(used)} in use", "pages may come from disk under a run: free memory")


def _huge_pages(seen: Environment) -> Check:
    private, shared = seen.memory.huge_pages, seen.memory.shared_memory_huge_pages
    if private is None:
        return check("huge pages", UNKNOWN)
    small = shared in ("never", "deny")
    advice = "large buffers use 4 KiB pages; for fewer misses: echo always as root to "
    return check(
        "huge pages",
        f"{private} for private memory, {shared or 'unknown'} for shared memory",
        advice + "/sys/kernel/mm/transparent_hugepage/shmem_enabled" if small else "",
    )


def _shared_memory(files: Files) -> Check:
    space = files.space_bytes("/dev/shm")
    if space is None:
        advice = f"the cpu backend keeps its buffers there: mount a tmpfs on /dev/shm; {_OF_NCCL}"
        return check("/dev/shm", "there is none, or it cannot be read", advice, problem=True)
    size, free = space
    text = f"{about(size)}, {about(free)} free"
    if free >= SMALLEST_SHARED_MEMORY_BYTES:
        return check("/dev/shm", text)
    cure = "docker run --shm-size=8g, or remount /dev/shm larger"
    advice = f"the cpu backend will refuse large sizes: {cure}; {_OF_NCCL}"
    return check("/dev/shm", text, advice, problem=True)


def _clock_source(seen: Environment) -> Check:
    source = seen.processor.clock_source
    if source is None or source in GOOD_CLOCK_SOURCES:
        return check("clock source", source or UNKNOWN)
    advice = "reading this clock enters the kernel and is slow: boot with clocksource=tsc where it is stable"
    return check("clock source", source, advice)


def clock_resolution(clock: Callable[[], float], readings: int = 2000) -> Check:
    """Judge a clock, in seconds, by the smallest step that is seen between two readings in a row."""
    times = [clock() for _ in range(readings)]
    steps = [later - earlier for earlier, later in itertools.pairwise(times)]
    tick = min((step for step in steps if step > 0), default=None)
    if tick is None:
        return check("clock", "stands still", "no sample can be taken with this clock", problem=True)
    advice = "short cases need more launches a sample to be told apart"
    text = f"moves in steps of {format_seconds(tick)} or less"
    return check("clock", text, advice if tick > COARSEST_CLOCK_SECONDS else "")


def sees_gpu(found: Accelerators, files: Files) -> bool:
    """Whether this process sees a device of NVIDIA's driver."""
    return bool(found.device_files) or any(files.exists(path) for path in OTHER_DEVICES)


def _gpu(seen: Environment, files: Files) -> Check:
    found = seen.accelerators
    nvidia = nvidia_gpus(files)
    if sees_gpu(found, files):
        version = f"driver {found.driver}" if found.driver else "driver version unknown"
        return check("GPU", f"{len(found.device_files) or 1} NVIDIA device(s), {version}")
    driver = files.exists("/proc/driver/nvidia/version")
    if driver and seen.host.container:
        version = f"driver {found.driver}" if found.driver else "driver"
        return check(
            "GPU",
            f"the host's {version} is loaded, this container was given no device",
            "docker run --gpus all (needs the NVIDIA Container Toolkit on the host), or podman run --device "
            "nvidia.com/gpu=all",
        )
    if driver and nvidia:
        advice = "make the device files as root: nvidia-modprobe -c 0 -u, or start nvidia-persistenced"
        return check("GPU", f"driver and {len(nvidia)} GPU(s), but no /dev/nvidia0", advice, problem=True)
    if driver:
        look = "lspci -d 10de:, dmesg | grep -i -e xid -e nvrm"
        advice = f"the GPU has left the PCI bus or was never on it: {look}"
        return check("GPU", "driver without any GPU on the PCI bus", advice, problem=True)
    if nvidia:
        advice = "install the NVIDIA driver" + " on the host" * bool(seen.host.container)
        return check("GPU", "an NVIDIA device without its driver", advice, problem=True)
    if files.exists("/dev/kfd"):
        return check("GPU", "an AMD GPU", "ccbench has no backend for it; cpu and simulated work")
    return check("GPU", "none: no driver, no device", "the cpu, simulated and cuda-host backends need none")


def _versions(found: Accelerators, files: Files) -> Check:
    """The kernel's half of the driver and the programs' half must be of one version."""
    paths = [path for folder in LIBRARY_FOLDERS for path in files.matching(folder, "libcuda.so.*.*")]
    libraries = {path.rpartition(".so.")[2] for path in paths}
    if found.driver is None or not libraries:
        return check("driver versions", found.driver or UNKNOWN)
    if found.driver in libraries:
        return check("driver versions", f"{found.driver} in the kernel and in libcuda")
    text = f"{found.driver} in the kernel, libcuda is {', '.join(sorted(libraries))}"
    advice = "the driver was updated under a running kernel: reboot, or reload its modules"
    return check("driver versions", text, advice, problem=True)


def _bridges(found: Accelerators) -> Check:
    bridges = found.redirecting_bridges
    if bridges is None:
        return check("PCIe ACS", "not visible here: ask again as root (sudo ccbench doctor)")
    if not bridges:
        return check("PCIe ACS", "no bridge above a GPU sends peers' traffic up to the root")
    shown = ", ".join(bridges[:4]) + (f" and {len(bridges) - 4} more" if len(bridges) > 4 else "")
    return check(
        "PCIe ACS",
        f"{len(bridges)} bridge(s) above GPUs send peers' traffic up to the root: {shown}",
        "peer access and GPUDirect RDMA are slow or hang: turn ACS or VT-d off in the firmware, or as root "
        f"after each boot, for each bridge: setpci -s {bridges[0]} ECAP_ACS+6.w=0000 (never on a host of "
        "virtual machines, which it keeps apart)",
    )


def _iommu(seen: Environment) -> Check:
    kind = seen.accelerators.iommu
    if kind is None:
        return check("IOMMU", "none for the GPUs, or not visible here")
    if any(word in TRANSLATING for word in kind.split(", ")) and seen.host.hypervisor is None:
        advice = "peers' traffic may go through the IOMMU: boot with iommu=pt, or turn it off in the firmware"
        return check("IOMMU", f"translates the GPUs' accesses ({kind})", advice)
    return check("IOMMU", f"GPUs' groups are of kind {kind}")


def _network_memory(found: Accelerators, files: Files) -> Check:
    """How a network card reaches a GPU's memory: a module of its own, or DMA-BUF with the open driver."""
    cards = len(files.matching("/sys/class/infiniband"))
    copies = "gdrcopy (gdrdrv) loaded" if "gdrdrv" in found.modules else "no gdrcopy"
    loaded = [name for name in PEER_MEMORY if name in found.modules]
    if not cards:
        return check("GPUDirect RDMA", "no RDMA network card here")
    if loaded:
        return check("GPUDirect RDMA", f"{loaded[0]} loaded for {cards} RDMA card(s), {copies}")
    if found.open_kernel_module:
        return check("GPUDirect RDMA", f"DMA-BUF of the open driver for {cards} card(s), {copies}")
    advice = "NCCL would stage network traffic in host memory: modprobe nvidia_peermem as root"
    return check("GPUDirect RDMA", f"{cards} RDMA card(s), nvidia_peermem not loaded", advice)


def _below(value: float | None, usual: float | None) -> bool:
    return value is not None and usual is not None and value < usual


SETTINGS: Mapping[str, tuple[str, Mapping[str, tuple[Callable[[GpuSettings], bool], str]]]] = {
    "GPU modes": (
        "persistence mode on, no MIG, ECC as it should be",
        {
            "MIG on": (lambda gpu: gpu.mig is True, "no peer access between instances: nvidia-smi -mig 0"),
            "persistence mode off": (lambda gpu: gpu.persistence is False, "nvidia-smi -pm 1"),
            "ECC off": (lambda gpu: gpu.ecc is False, "errors go unseen: nvidia-smi -e 1, then reboot"),
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


def _settings(name: str, gpus: Sequence[GpuSettings]) -> Check:
    fine, oddities = SETTINGS[name]
    found: dict[str, str] = {}
    for what, (has, advice) in oddities.items():
        bus_ids = [gpu.bus_id for gpu in gpus if has(gpu)]
        if bus_ids:
            every = len(bus_ids) == len(gpus) > 1
            found[f"{what} ({'all GPUs' if every else ', '.join(bus_ids)})"] = advice
    return check(name, "; ".join(found) or f"{len(gpus)} GPU(s): {fine}", "; ".join(found.values()))


def _health(readings: Sequence[DeviceReading]) -> Check:
    sick = [f"{one.bus_id}: {', '.join(found)}" for one in readings if (found := list(_ailments(one)))]
    if sick:
        advice = "figures of these GPUs are in doubt: look at cooling and supply, dmesg | grep -i xid"
        return check("GPU health", "; ".join(sick), advice, problem=True)
    heat = [one.temperature_celsius for one in readings if one.temperature_celsius is not None]
    warmest = f", the warmest at {max(heat):g} degrees Celsius" if heat else ""
    return check("GPU health", f"{len(readings)} GPU(s) answer{warmest}")


def _ailments(one: DeviceReading) -> Iterator[str]:
    if one.trouble is not None:
        yield f"does not answer ({one.trouble})"
    yield from (reason for reason in one.clock_reasons or () if reason in THROTTLING)
    if one.ecc_uncorrected_volatile:
        yield f"{one.ecc_uncorrected_volatile} uncorrected memory errors since the driver was loaded"


def results_folder(results: Path) -> Check:
    """Whether runs can be kept."""
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


def about(size_bytes: int) -> str:
    """A size to one decimal of its unit; exact digits say nothing here."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}"
    return f"{size_bytes} B"
