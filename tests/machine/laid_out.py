"""A healthy machine laid out below a folder, and what it may be changed into."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ccbench.machine.accelerators import DriverAbsent, Nvml
from ccbench.machine.doctor import Check, examine
from ccbench.machine.files import Files
from ccbench.machine.host import observe

CPU = "sys/devices/system/cpu"
GIB = 1 << 30


def lay_out(root: Path, files: Mapping[str, str | bytes | None]) -> Path:
    """The folder with these files in it; None for one that is not there."""
    for name, content in files.items():
        if content is not None:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root


HEALTHY = {
    f"{CPU}/online": "0-7\n",
    f"{CPU}/smt/active": "0\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    "proc/self/status": "Cpus_allowed_list:\t0-7\n",
    "proc/loadavg": "0.10 0.10 0.10 1/99 1\n",
    "proc/meminfo": "MemTotal: 33554432 kB\nMemAvailable: 16777216 kB\nSwapTotal: 8 kB\nSwapFree: 8 kB\n",
    "proc/cpuinfo": "model name : A\nflags : fpu\n",
    "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always [advise] never\n",
    "sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc\n",
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue\nGCC\n",
    "dev/nvidia0": "",
}


def absent() -> Nvml:
    raise DriverAbsent("no NVIDIA driver answers here")


class LaidOut(Files):
    """Files of a machine whose /dev/shm is large enough, wherever it is laid out."""

    def space_bytes(self, path: str) -> tuple[int, int] | None:
        return 32 * GIB, 31 * GIB


def examined(root: Path, driver: Callable[[], Nvml] = absent) -> dict[str, Check]:
    """Every check of the machine below ``root``, by name."""
    return {
        one.name: one for one in examine(observe(root, driver=driver), LaidOut(root), driver)
    }


def check(
    tmp_path: Path,
    name: str,
    changes: dict[str, str | None] | None = None,
    driver: Callable[[], Nvml] = absent,
) -> Check:
    """The check called ``name`` on the healthy machine after ``changes`` (None removes a file)."""
    return examined(lay_out(tmp_path / "root", {**HEALTHY, **(changes or {})}), driver)[name]
