"""The system around the processor."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ccbench.environment.files import Files, chosen
from ccbench.environment.variables import printable, without_names

KERNEL_OPTIONS = frozenset({
    "iommu", "intel_iommu", "amd_iommu", "iommu.passthrough", "iommu.strict", "pcie_aspm", "pci",
    "pcie_acs_override", "pci_acs_override", "isolcpus", "nohz_full", "rcu_nocbs", "mitigations", "nosmt",
    "idle", "processor.max_cstate", "intel_idle.max_cstate", "intel_pstate", "amd_pstate",
    "cpufreq.default_governor", "transparent_hugepage", "hugepages", "hugepagesz",
    "default_hugepagesz", "numa_balancing", "numa",
    "clocksource", "tsc", "nokaslr", "cgroup_disable", "systemd.unified_cgroup_hierarchy",
})  # fmt: skip
"""What changes how fast devices and processors are. The rest of a command line may hold names."""

_CONTAINER_GROUP = re.compile(r"docker|kubepods|containerd|libpod|lxc|garden|crio")


@dataclass(frozen=True)
class Host:
    """The system around the processor.

    container and hypervisor name the hint that was seen. kernel_options: those of KERNEL_OPTIONS that the
    kernel was booted with. aspm_policy: how PCIe links may sleep. numa_balancing: whether the kernel moves
    pages after their users.
    """

    name: str
    system: str
    kernel: str
    hypervisor: str | None
    container: str | None
    load_1_minute: float | None
    product: str | None
    kernel_options: Mapping[str, str] = field(default_factory=dict)
    aspm_policy: str | None = None
    numa_balancing: bool | None = None


def read_host(files: Files) -> Host:
    """What the system says of itself."""
    release = files.fields("/etc/os-release", "=")
    load = (files.text("/proc/loadavg") or "").split()
    vendor = files.text("/sys/class/dmi/id/sys_vendor")
    product = files.text("/sys/class/dmi/id/product_name")
    return Host(
        name=files.text("/proc/sys/kernel/hostname") or printable(platform.node()),
        system=release.get("PRETTY_NAME") or platform.system(),
        kernel=files.text("/proc/sys/kernel/osrelease") or platform.release(),
        hypervisor=_hypervisor(files),
        container=_container(files),
        load_1_minute=float(load[0]) if load and re.fullmatch(r"[0-9.]+", load[0]) else None,
        product=" ".join(word for word in (vendor, product) if word) or None,
        kernel_options=kernel_options(files),
        aspm_policy=chosen(files.text("/sys/module/pcie_aspm/parameters/policy")),
        numa_balancing=_switched(files.number("/proc/sys/kernel/numa_balancing")),
    )


def _hypervisor(files: Files) -> str | None:
    named = files.text("/sys/hypervisor/type")
    if named:
        return named
    features = files.fields("/proc/cpuinfo").get("flags", "").split()
    return "hypervisor flag of the processor" if "hypervisor" in features else None


def _container(files: Files) -> str | None:
    for marker in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"):
        if files.exists(marker):
            return marker
    found = _CONTAINER_GROUP.search(files.text("/proc/1/cgroup") or "")
    return f"control group names {found.group()}" if found else None


def kernel_options(files: Files) -> dict[str, str]:
    """Option -> value ("" where it has none), in the order booted with; of a repeated one the last."""
    words = (files.text("/proc/cmdline") or "").split()
    pairs = [word.partition("=") for word in words]
    return {name: without_names(value) for name, _, value in pairs if name in KERNEL_OPTIONS}


def _switched(number: int | None) -> bool | None:
    return None if number is None else number != 0
