"""GPUs: whether they can be used, how they are set, and what stands between two of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ccbench.doctor.checks import Check, Surroundings
from ccbench.environment import Accelerators, Environment, Files, GpuSettings
from ccbench.telemetry import DeviceReading, read_devices
from ccbench.telemetry.judging import THROTTLING

OTHER_DEVICES = ("/dev/dxg", "/dev/nvhost-gpu", "/dev/nvgpu")
"""NVIDIA's GPUs under Windows (WSL) and on boards (Jetson) have these instead of /dev/nvidia0."""

TRANSLATING = ("DMA", "DMA-FQ")
"""Kinds of IOMMU groups whose accesses are translated (Linux, Documentation/ABI/testing/
sysfs-kernel-iommu_groups); ``identity`` is not."""

PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")


def gpu_checks(seen: Environment, files: Files, around: Surroundings) -> tuple[Check, ...]:
    """Whether there are GPUs; where there are, how they are set and what they say of themselves."""
    found = seen.accelerators
    checks = [_gpu(seen, files)]
    if not found.pci_gpus and not found.gpus:
        return tuple(checks)
    checks += [_versions(found, files), _bridges(found), _translation(seen), _network_memory(found, files)]
    if found.gpus:
        readings = read_devices([gpu.bus_id for gpu in found.gpus], around.driver)
        checks += [_settings(found.gpus), _power(found.gpus), _health(readings)]
    return tuple(checks)


def visible(found: Accelerators, files: Files) -> bool:
    """Whether this process sees a device of NVIDIA's driver."""
    return bool(found.device_files) or any(files.exists(path) for path in OTHER_DEVICES)


def _gpu(seen: Environment, files: Files) -> Check:
    found = seen.accelerators
    nvidia = [one for one in found.pci_gpus if files.text(f"/sys/bus/pci/devices/{one}/vendor") == "0x10de"]
    driver = files.text("/proc/driver/nvidia/version") or ""
    if visible(found, files):
        version = f"driver {found.driver}" if found.driver else "driver version unknown"
        return Check("GPU", "ok", f"{len(found.device_files) or 1} NVIDIA device(s), {version}")
    if driver and seen.host.container:
        return Check(
            "GPU",
            "note",
            f"the host's driver {found.driver or ''} is loaded, this container was given no device".replace(
                "  ", " "
            ),
            "docker run --gpus all (needs the NVIDIA Container Toolkit on the host), or podman run --device "
            "nvidia.com/gpu=all",
        )
    if driver and nvidia:
        advice = "make the device files as root: nvidia-modprobe -c 0 -u, or start nvidia-persistenced"
        return Check("GPU", "problem", f"driver and {len(nvidia)} GPU(s), but no /dev/nvidia0", advice)
    if driver:
        advice = (
            "the GPU has left the PCI bus or was never on it: lspci -d 10de:, dmesg | grep -i -e xid -e nvrm"
        )
        return Check("GPU", "problem", "driver without any GPU on the PCI bus", advice)
    if nvidia:
        where = " on the host" if seen.host.container else ""
        return Check(
            "GPU", "problem", "an NVIDIA device without its driver", f"install the NVIDIA driver{where}"
        )
    if files.exists("/dev/kfd"):
        return Check("GPU", "note", "an AMD GPU", "ccbench has no backend for it; cpu and simulated work")
    return Check(
        "GPU", "note", "none: no driver, no device", "the cpu, simulated and cuda-host backends need none"
    )


def _versions(found: Accelerators, files: Files) -> Check:
    """The kernel's half of the driver and the programs' half must be of one version."""
    libraries = {
        path.rpartition(".so.")[2]
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64")
        for path in files.matching(folder, "libcuda.so.*.*")
    }
    if found.driver is None or not libraries:
        return Check("driver versions", "ok", found.driver or "the system does not tell")
    if found.driver in libraries:
        return Check("driver versions", "ok", f"{found.driver} in the kernel and in libcuda")
    others = ", ".join(sorted(libraries))
    advice = "the driver was updated under a running kernel: reboot, or reload its modules"
    return Check("driver versions", "problem", f"{found.driver} in the kernel, libcuda is {others}", advice)


def _bridges(found: Accelerators) -> Check:
    bridges = found.redirecting_bridges
    if bridges is None:
        return Check("PCIe ACS", "ok", "not visible here: ask again as root (sudo ccbench doctor)")
    if not bridges:
        return Check("PCIe ACS", "ok", "no bridge above a GPU sends peers' traffic up to the root")
    shown = ", ".join(bridges[:4]) + (f" and {len(bridges) - 4} more" if len(bridges) > 4 else "")
    return Check(
        "PCIe ACS",
        "note",
        f"{len(bridges)} bridge(s) above GPUs send peers' traffic up to the root: {shown}",
        "peer access and GPUDirect RDMA are slow or hang: turn ACS or VT-d off in the firmware, or as root "
        f"after each boot, for each bridge: setpci -s {bridges[0]} ECAP_ACS+6.w=0000 (never on a host of "
        "virtual machines, which it keeps apart)",
    )


def _translation(seen: Environment) -> Check:
    kind = seen.accelerators.iommu
    if kind is None:
        return Check("IOMMU", "ok", "none for the GPUs, or not visible here")
    if any(word in TRANSLATING for word in kind.split(", ")) and seen.host.hypervisor is None:
        advice = "peers' traffic may go through the IOMMU: boot with iommu=pt, or turn it off in the firmware"
        return Check("IOMMU", "note", f"translates the GPUs' accesses ({kind})", advice)
    return Check("IOMMU", "ok", f"GPUs' groups are of kind {kind}")


def _network_memory(found: Accelerators, files: Files) -> Check:
    """How a network card reaches a GPU's memory: a module of its own, or DMA-BUF with the open driver."""
    cards = [path.rpartition("/")[2] for path in files.matching("/sys/class/infiniband", "*")]
    copies = "gdrcopy (gdrdrv) loaded" if "gdrdrv" in found.modules else "no gdrcopy"
    loaded = [name for name in PEER_MEMORY if name in found.modules]
    if not cards:
        return Check("GPUDirect RDMA", "ok", "no RDMA network card here")
    if loaded:
        return Check("GPUDirect RDMA", "ok", f"{loaded[0]} loaded for {len(cards)} RDMA card(s), {copies}")
    if found.open_kernel_module:
        return Check("GPUDirect RDMA", "ok", f"DMA-BUF of the open driver for {len(cards)} card(s), {copies}")
    advice = "NCCL would stage network traffic in host memory: modprobe nvidia_peermem as root"
    return Check("GPUDirect RDMA", "note", f"{len(cards)} RDMA card(s), nvidia_peermem not loaded", advice)


def _settings(gpus: Sequence[GpuSettings]) -> Check:
    odd: list[tuple[str, str]] = [
        *_those(
            gpus, lambda gpu: gpu.mig is True, "MIG on", "no peer access between instances: nvidia-smi -mig 0"
        ),
        *_those(gpus, lambda gpu: gpu.persistence is False, "persistence mode off", "nvidia-smi -pm 1"),
        *_those(
            gpus, lambda gpu: gpu.ecc is False, "ECC off", "errors go unseen: nvidia-smi -e 1, then reboot"
        ),
    ]
    if not odd:
        return Check(
            "GPU modes", "ok", f"{len(gpus)} GPU(s): persistence mode on, no MIG, ECC as it should be"
        )
    return Check(
        "GPU modes", "note", "; ".join(seen for seen, _ in odd), "; ".join(advice for _, advice in odd)
    )


def _power(gpus: Sequence[GpuSettings]) -> Check:
    def capped(gpu: GpuSettings) -> bool:
        limit, usual = gpu.power_limit_watts, gpu.default_power_limit_watts
        return limit is not None and usual is not None and limit < usual

    def slowed(gpu: GpuSettings) -> bool:
        clock, highest = gpu.application_clock_mhz, gpu.highest_clock_mhz
        return clock is not None and highest is not None and clock < highest

    odd = [
        *_those(
            gpus, capped, "power limit below the default", "nvidia-smi -pl with the default of nvidia-smi -q"
        ),
        *_those(gpus, slowed, "application clocks below the highest", "nvidia-smi -rac"),
    ]
    if not odd:
        return Check("GPU limits", "ok", "power limits and clocks are not lowered, as far as GPUs tell")
    return Check(
        "GPU limits", "note", "; ".join(seen for seen, _ in odd), "; ".join(advice for _, advice in odd)
    )


def _those(
    gpus: Sequence[GpuSettings], odd: Callable[[GpuSettings], bool], what: str, advice: str
) -> Iterator[tuple[str, str]]:
    found = [gpu.bus_id for gpu in gpus if odd(gpu)]
    if found:
        which = "all GPUs" if len(found) == len(gpus) and len(gpus) > 1 else ", ".join(found)
        yield f"{what} ({which})", advice


def _health(readings: Sequence[DeviceReading]) -> Check:
    sick = [f"{one.bus_id}: {', '.join(found)}" for one in readings if (found := list(_ailments(one)))]
    if sick:
        advice = "figures of these GPUs are in doubt: look at cooling and supply, dmesg | grep -i xid"
        return Check("GPU health", "problem", "; ".join(sick), advice)
    heat = [one.temperature_celsius for one in readings if one.temperature_celsius is not None]
    warmest = f", the warmest at {max(heat):g} degrees Celsius" if heat else ""
    return Check("GPU health", "ok", f"{len(readings)} GPU(s) answer{warmest}")


def _ailments(one: DeviceReading) -> Iterator[str]:
    if one.trouble is not None:
        yield f"does not answer ({one.trouble})"
    yield from (reason for reason in one.clock_reasons or () if reason in THROTTLING)
    if one.ecc_uncorrected_volatile:
        yield f"{one.ecc_uncorrected_volatile} uncorrected memory errors since the driver was loaded"
