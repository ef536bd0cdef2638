"""Load of the machine beside the case that was measured, and when it makes the figures doubtful."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ccbench.cases import Conditions
from ccbench.machine.files import Files
from ccbench.machine.flags import LOAD_FLAGS, Flag
from ccbench.machine.host import siblings

FOREIGN_CPU_LIMIT = 0.10
STEAL_LIMIT = 0.05
CORE_LATENCY_RATIO_LIMIT = 2.0
"""Beyond these a case is flagged. On virtual machines the distance between two cores changes by a factor of
four when the hypervisor moves one, which changes a 1 MiB all_reduce by up to six."""


TICKS_NEEDED = 10
"""Clock ticks, over all processors, below which load is not judged."""


@dataclass(frozen=True)
class CpuTimes:
    """Seconds summed over all processors since boot."""

    busy_seconds: float
    steal_seconds: float
    total_seconds: float


def read_cpu_times(files: Files | None = None) -> CpuTimes | None:
    """Return the machine's processor times, None where the system has no /proc/stat."""
    first = (files or Files()).content("/proc/stat", 256).split(b"\n")[0].split()
    # Guests' time (the two words after these eight) is part of user and nice (proc_stat(5)).
    ticks = [int(word) for word in first[1:9] if word.isdigit()]
    if len(ticks) < 8:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    busy = user + nice + system + irq + softirq
    second = os.sysconf("SC_CLK_TCK")
    return CpuTimes(busy / second, steal / second, (busy + idle + iowait + steal) / second)


def queued_seconds(files: Files | None = None) -> float | None:
    """Return the time that this process's first thread has waited for a processor while it could run.

    Stopped and sleeping threads do not wait for one (Linux, Documentation/scheduler/sched-stats.rst). None
    where the system does not tell.
    """
    words = (files or Files()).content("/proc/self/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else None


def watched(before: CpuTimes, after: CpuTimes, own_cpu_seconds: float) -> Conditions:
    """Return the load on the processors between two readings besides ``own_cpu_seconds`` of ours."""
    total = after.total_seconds - before.total_seconds
    if total <= 0:
        return Conditions()
    # Ours are among the busy ones; what is left is other programs'.
    foreign = after.busy_seconds - before.busy_seconds - own_cpu_seconds
    steal = after.steal_seconds - before.steal_seconds
    return Conditions(other_cpu_share=foreign / total, steal_share=steal / total, watched_cpu_seconds=total)


def worst_of_hosts(hosts: Sequence[Conditions]) -> Conditions:
    """Return the conditions of several hosts as those of one, the first's with the largest shares of all."""

    def largest(shares: Iterable[float | None]) -> float | None:
        return max((share for share in shares if share is not None), default=None)

    return replace(
        hosts[0],
        other_cpu_share=largest(one.other_cpu_share for one in hosts),
        steal_share=largest(one.steal_share for one in hosts),
        watched_cpu_seconds=max(one.watched_cpu_seconds for one in hosts),
    )


def over_all(before: Conditions, now: Conditions) -> Conditions:
    """Return the conditions of two rounds as those of one: shares over both, all flags."""
    seconds = before.watched_cpu_seconds + now.watched_cpu_seconds

    def share(earlier: float | None, newest: float | None) -> float | None:
        if earlier is None or newest is None or seconds == 0:
            return newest if earlier is None else earlier
        return (earlier * before.watched_cpu_seconds + newest * now.watched_cpu_seconds) / seconds

    # Flags of load are judged anew over both; a flag of either round stays.
    moved = [flag for flag in (*before.flags, *now.flags) if flag not in LOAD_FLAGS]
    both = replace(
        now,
        core_latency_before_seconds=before.core_latency_before_seconds,
        other_cpu_share=share(before.other_cpu_share, now.other_cpu_share),
        steal_share=share(before.steal_share, now.steal_share),
        watched_cpu_seconds=seconds,
    )
    return replace(both, flags=tuple(dict.fromkeys((*_load_flags(both), *moved))))


def flagged(conditions: Conditions) -> Conditions:
    """Return the conditions of one round with their flags."""
    found = list(_load_flags(conditions))
    before, after = conditions.core_latency_before_seconds, conditions.core_latency_after_seconds
    if before and after and not 1 / CORE_LATENCY_RATIO_LIMIT <= after / before <= CORE_LATENCY_RATIO_LIMIT:
        found.append(Flag.CORE_DISTANCE_CHANGED)
    if conditions.oversubscribed:
        found.append(Flag.OVERSUBSCRIBED)
    if share_a_core(conditions.binding):
        found.append(Flag.SHARED_CORE)
    return replace(conditions, flags=tuple(found))


@lru_cache(maxsize=64)
def share_a_core(binding: tuple[int, ...], files: Files | None = None) -> bool:
    """Return True if two of these processors are hardware threads of one core and share its units.

    binding: the processor of each rank; two ranks on one processor are something else, ``oversubscribed``.
    What the system does not tell is not judged.
    """
    processors = set(binding)
    return any((set(siblings(files or Files(), cpu)) - {cpu}) & processors for cpu in processors)


def _load_flags(conditions: Conditions) -> Iterator[Flag]:
    if conditions.watched_cpu_seconds < TICKS_NEEDED / os.sysconf("SC_CLK_TCK"):
        return
    if conditions.other_cpu_share is not None and conditions.other_cpu_share > FOREIGN_CPU_LIMIT:
        yield Flag.OTHER_LOAD
    if conditions.steal_share is not None and conditions.steal_share > STEAL_LIMIT:
        yield Flag.STEAL
