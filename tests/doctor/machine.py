"""A healthy machine laid out below a folder, and what it may be changed into."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ccbench.doctor import Check, Surroundings, examine
from ccbench.nvidia import DriverAbsent, Session

CPU = "sys/devices/system/cpu"
GIB = 1 << 30


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
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


def absent() -> Session:
    raise DriverAbsent("no NVIDIA driver answers here")


def ticking(step_seconds: float) -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) * step_seconds


def healthy_surroundings(**changes: object) -> Surroundings:
    healthy = Surroundings(
        space_bytes=lambda path: (32 * GIB, 31 * GIB),
        has_module=lambda name: True,
        version=lambda name: "1.2.3",
        clock=ticking(1e-7),
        finds_program=lambda name: True,
        driver=absent,
        unavailable=lambda backend: None,
    )
    return replace(healthy, **changes)  # type: ignore[arg-type] # test doubles


def check(tmp_path: Path, name: str, changes: dict[str, str | None] | None = None, **around: object) -> Check:
    """The check called ``name`` on the healthy machine after ``changes`` (None removes a file)."""
    files = {**HEALTHY, **(changes or {})}
    root = lay_out(tmp_path / "root", {path: text for path, text in files.items() if text is not None})
    found = {one.name: one for one in examine(root, tmp_path / "results", healthy_surroundings(**around))}
    return found[name]
