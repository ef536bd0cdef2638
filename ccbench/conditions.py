"""What else the machine did while a case was measured, and which of it makes the figures doubtful."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

FOREIGN_CPU_LIMIT = 0.10
STEAL_LIMIT = 0.05
CORE_LATENCY_RATIO_LIMIT = 2.0
"""Beyond these a case is flagged. On virtual machines the distance between two cores changes by a factor of
four when the hypervisor moves one, which changes a 1 MiB all_reduce by up to six."""


@dataclass(frozen=True)
class CpuTimes:
    """Seconds summed over all processors since boot."""

    busy_seconds: float
    steal_seconds: float
    total_seconds: float


def read_cpu_times(path: Path = Path("/proc/stat")) -> CpuTimes | None:
    """The machine's processor times, None where the system has no /proc/stat."""
    try:
        first = path.read_text().split("\n", 1)[0].split()
        ticks = [int(word) for word in first[1:9]]
    except (OSError, ValueError):
        return None
    if len(ticks) < 8:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    busy = user + nice + system + irq + softirq
    second = os.sysconf("SC_CLK_TCK")
    return CpuTimes(busy / second, steal / second, (busy + idle + iowait + steal) / second)


def shares(before: CpuTimes, after: CpuTimes, own_cpu_seconds: float) -> tuple[float, float] | None:
    """(foreign share, steal share) of the machine's processor time between two readings.

    None when too few clock ticks passed to tell (ten ticks over all processors).
    """
    total = after.total_seconds - before.total_seconds
    if total < 10 / os.sysconf("SC_CLK_TCK"):
        return None
    foreign = after.busy_seconds - before.busy_seconds - own_cpu_seconds
    steal = after.steal_seconds - before.steal_seconds
    return max(0.0, foreign / total), max(0.0, steal / total)


def flags(
    core_latency_before_seconds: float | None,
    core_latency_after_seconds: float | None,
    foreign_cpu_share: float | None,
    steal_share: float | None,
    oversubscribed: bool,
) -> tuple[str, ...]:
    """Names of what makes a case untrustworthy: other_load, steal, core_distance_changed, oversubscribed."""
    found = []
    if foreign_cpu_share is not None and foreign_cpu_share > FOREIGN_CPU_LIMIT:
        found.append("other_load")
    if steal_share is not None and steal_share > STEAL_LIMIT:
        found.append("steal")
    if core_latency_before_seconds and core_latency_after_seconds:
        ratio = core_latency_after_seconds / core_latency_before_seconds
        if not 1 / CORE_LATENCY_RATIO_LIMIT <= ratio <= CORE_LATENCY_RATIO_LIMIT:
            found.append("core_distance_changed")
    if oversubscribed:
        found.append("oversubscribed")
    return tuple(found)
