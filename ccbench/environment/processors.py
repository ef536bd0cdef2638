"""Processors: how many, how they run, and which this process may use."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ccbench.environment.files import Files
from ccbench.environment.limits import control_group_limits


@dataclass(frozen=True)
class Cache:
    """One cache as core 0 sees it."""

    level: int
    kind: str
    size_bytes: int
    shared_by_cores: str


@dataclass(frozen=True)
class Processor:
    """Cores and how they run. ``governors``: name -> number of cores that use it."""

    model: str | None
    architecture: str
    cores: int | None
    cores_allowed: int | None
    sockets: int | None
    numa_nodes: int | None
    threads_per_core: int | None
    smt_active: bool | None
    governors: Mapping[str, int]
    boost: bool | None
    caches: tuple[Cache, ...]
    clock_source: str | None


def read_processor(files: Files) -> Processor:
    """What the kernel says of the processors."""
    cpu = "/sys/devices/system/cpu"
    described = files.fields("/proc/cpuinfo")
    allowed = files.fields("/proc/self/status").get("Cpus_allowed_list")
    siblings = files.text(f"{cpu}/cpu0/topology/thread_siblings_list")
    smt = files.number(f"{cpu}/smt/active")
    sockets = {files.text(path) for path in files.matching(cpu, "cpu[0-9]*/topology/physical_package_id")}
    return Processor(
        model=described.get("model name") or described.get("Model"),
        architecture=platform.machine(),
        cores=counted(files.text(f"{cpu}/online")) or os.cpu_count(),
        cores_allowed=counted(allowed),
        sockets=len(sockets) or None,
        numa_nodes=counted(files.text("/sys/devices/system/node/online")),
        threads_per_core=counted(siblings),
        smt_active=None if smt is None else smt == 1,
        governors=_governors(files, cpu),
        boost=_boost(files, cpu),
        caches=_caches(files, cpu),
        clock_source=files.text("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
    )


def counted(ranges: str | None) -> int | None:
    """How many numbers the kernel's list ``0-3,8`` holds (5); None where it is not such a list."""
    if not ranges or not re.fullmatch(r"[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*", ranges):
        return None
    total = 0
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        total += int(last or first) - int(first) + 1
    return total


def _governors(files: Files, cpu: str) -> dict[str, int]:
    seen: dict[str, int] = {}
    for path in files.matching(cpu, "cpu[0-9]*/cpufreq/scaling_governor"):
        name = files.text(path)
        if name:
            seen[name] = seen.get(name, 0) + 1
    return seen


def _boost(files: Files, cpu: str) -> bool | None:
    boost = files.number(f"{cpu}/cpufreq/boost")
    if boost is not None:
        return boost == 1
    no_turbo = files.number(f"{cpu}/intel_pstate/no_turbo")
    return None if no_turbo is None else no_turbo == 0


def _caches(files: Files, cpu: str) -> tuple[Cache, ...]:
    found = []
    for folder in files.matching(f"{cpu}/cpu0/cache", "index[0-9]*"):
        level = files.number(f"{folder}/level")
        size = re.fullmatch(r"([0-9]+)([KMG]?)", files.text(f"{folder}/size") or "")
        if level is not None and size:
            size_bytes = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
            kind = files.text(f"{folder}/type") or "unknown"
            shared = files.text(f"{folder}/shared_cpu_list") or "unknown"
            found.append(Cache(level, kind, size_bytes, shared))
    return tuple(found)


def allowed_cpus() -> list[int]:
    """Logical processors that this process may run on; empty where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def usable_cores(files: Files | None = None) -> int:
    """How many processes can run at once: allowed processors, or the control group's quota where less."""
    allowed = len(allowed_cpus()) or os.cpu_count() or 1
    quota = control_group_limits(files or Files()).cores
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def spread_over_cores(cpus: Sequence[int], files: Files | None = None) -> list[int]:
    """``cpus`` with one hardware thread of every core first, so that few ranks never share a core."""
    files = files or Files()

    def turn(cpu: int) -> tuple[int, int]:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings = [one for one in expanded(files.text(path)) if one in cpus]
        return (siblings.index(cpu) if cpu in siblings else 0, cpu)

    return sorted(cpus, key=turn)


def expanded(ranges: str | None) -> list[int]:
    """``0-1,8`` -> 0, 1, 8; empty for anything else."""
    found: list[int] = []
    for part in (ranges or "").strip().split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return []
        found += range(int(first), int(last or first) + 1)
    return found
