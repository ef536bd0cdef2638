"""The machine without its GPUs: cores, memory, clocks."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from ccbench.doctor.checks import Check, Surroundings, about
from ccbench.environment import Environment
from ccbench.units import format_seconds

SMALLEST_SHARED_MEMORY_BYTES = 1 << 30
"""Buffers of the cpu backend and of NCCL's shared-memory transport lie there; Docker gives 64 MiB."""

_OF_NCCL = (
    "NCCL in containers, and between GPUs without peer access, needs it too: docker run --shm-size=1g "
    "--ulimit memlock=-1, or --cap-add SYS_NICE (with which it allocates host memory by CUDA)"
)

SMALLEST_FREE_MEMORY_BYTES = 2 << 30
COARSEST_CLOCK_SECONDS = 1e-6
GOOD_CLOCK_SOURCES = ("tsc", "arch_sys_counter", "timebase")


def host_checks(seen: Environment, around: Surroundings) -> tuple[Check, ...]:
    """In the order a person would make them."""
    return (
        _cores(seen),
        _threads(seen),
        _governor(seen),
        _virtual(seen),
        _load(seen),
        _memory(seen),
        _swap(seen),
        _huge_pages(seen),
        _shared_memory(around),
        _clock_source(seen),
        _clock_resolution(around),
    )


def _cores(seen: Environment) -> Check:
    online, allowed, limit = seen.processor.cores, seen.processor.cores_allowed, seen.limits.cores
    if online is None:
        return Check("cores", "note", "the system does not tell", "give --ranks yourself")
    usable = min(online, allowed if allowed is not None else online)
    text = f"{online} online, {usable} allowed to this process"
    if limit is not None and limit < usable:
        return Check(
            "cores",
            "problem",
            f"{text}, but the container may use the time of {limit:g}",
            "ranks that wait would be put to sleep by the limit: start the container with whole cores "
            "(docker run --cpuset-cpus) or use no more ranks than the limit",
        )
    if usable < 2:
        return Check("cores", "problem", text, "two ranks need two cores; their times will be scheduling")
    if usable < online:
        return Check("cores", "note", text, "the rest belongs to somebody else, who may disturb a run")
    return Check("cores", "ok", text)


def _threads(seen: Environment) -> Check:
    if seen.processor.smt_active is None:
        return Check("SMT", "ok", "the system does not tell")
    if seen.processor.smt_active:
        advice = "two ranks on one core's threads share its arithmetic: use at most one rank a core"
        return Check("SMT", "note", f"on, {seen.processor.threads_per_core or 2} threads a core", advice)
    return Check("SMT", "ok", "off: every processor is a core of its own")


def _governor(seen: Environment) -> Check:
    governors = seen.processor.governors
    if not governors:
        return Check("governor", "ok", "not visible here (usual in a virtual machine)")
    text = ", ".join(f"{name} on {cores}" for name, cores in sorted(governors.items())) + " cores"
    if set(governors) == {"performance"}:
        return Check("governor", "ok", text)
    return Check(
        "governor", "note", text, "clocks may move under a run: cpupower frequency-set -g performance"
    )


def _virtual(seen: Environment) -> Check:
    words = [word for word in (seen.host.hypervisor, seen.host.product) if word]
    if seen.host.hypervisor is None:
        where = f"in a container ({seen.host.container})" if seen.host.container else "bare metal"
        return Check("virtual machine", "ok", where)
    return Check(
        "virtual machine",
        "note",
        ", ".join(words),
        "neighbours and core placement are invisible: compare only what was interleaved in one run",
    )


def _load(seen: Environment) -> Check:
    load, cores = seen.host.load_1_minute, seen.processor.cores or 1
    if load is None:
        return Check("load", "ok", "the system does not tell")
    text = f"{load:g} over the last minute on {cores} cores"
    if load > 0.25 * cores:
        return Check("load", "note", text, "something else is running: wait, or stop it, before measuring")
    return Check("load", "ok", text)


def _memory(seen: Environment) -> Check:
    available, limit = seen.memory.available_bytes, seen.limits.memory_bytes
    if available is None:
        return Check("memory", "ok", "the system does not tell")
    usable = available if limit is None else min(available, limit)
    text = f"{about(usable)} to use"
    if limit is not None:
        text += f" (the container's limit is {about(limit)})"
    if usable < SMALLEST_FREE_MEMORY_BYTES:
        return Check("memory", "problem", text, "large sizes will be refused: free memory or lower the sizes")
    return Check("memory", "ok", text)


def _swap(seen: Environment) -> Check:
    used = seen.memory.swap_used_bytes
    if not used:
        return Check("swap", "ok", "not in use" if used == 0 else "the system does not tell")
    return Check("swap", "note", f"{about(used)} in use", "pages may come from disk under a run: free memory")


def _huge_pages(seen: Environment) -> Check:
    private, shared = seen.memory.huge_pages, seen.memory.shared_memory_huge_pages
    if private is None:
        return Check("huge pages", "ok", "the system does not tell")
    text = f"{private} for private memory, {shared or 'unknown'} for shared memory"
    if shared in ("never", "deny"):
        advice = "large buffers use 4 KiB pages; for fewer misses: echo always as root to "
        return Check("huge pages", "note", text, advice + "/sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return Check("huge pages", "ok", text)


def _shared_memory(around: Surroundings) -> Check:
    try:
        size, free = around.space_bytes("/dev/shm")
    except OSError as error:
        advice = f"the cpu backend keeps its buffers there: mount a tmpfs on /dev/shm; {_OF_NCCL}"
        return Check("/dev/shm", "problem", error.strerror or "cannot be read", advice)
    text = f"{about(size)}, {about(free)} free"
    if free < SMALLEST_SHARED_MEMORY_BYTES:
        advice = (
            "the cpu backend will refuse large sizes: docker run --shm-size=8g, or remount /dev/shm larger; "
            f"{_OF_NCCL}"
        )
        return Check("/dev/shm", "problem", text, advice)
    return Check("/dev/shm", "ok", text)


def _clock_source(seen: Environment) -> Check:
    source = seen.processor.clock_source
    if source is None or source in (*GOOD_CLOCK_SOURCES, "kvm-clock"):
        return Check("clock source", "ok", source or "the system does not tell")
    advice = "reading this clock enters the kernel and is slow: boot with clocksource=tsc where it is stable"
    return Check("clock source", "note", source, advice)


def _clock_resolution(around: Surroundings) -> Check:
    tick = _smallest_tick_seconds(around.clock)
    if tick is None:
        return Check("clock", "problem", "stands still", "no sample can be taken with this clock")
    text = f"moves in steps of {format_seconds(tick)} or less"
    if tick > COARSEST_CLOCK_SECONDS:
        return Check("clock", "note", text, "short cases need more launches a sample to be told apart")
    return Check("clock", "ok", text)


def _smallest_tick_seconds(clock: Callable[[], float], readings: int = 2000) -> float | None:
    """The smallest step seen between readings in a row; None when the clock never moved."""
    times = [clock() for _ in range(readings)]
    steps = [later - earlier for earlier, later in itertools.pairwise(times) if later > earlier]
    return min(steps, default=None)


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
        return Check("results folder", "problem", f"{existing}: {error.strerror}", advice)
    made = "" if existing == results else ", will be made"
    return Check("results folder", "ok", f"{results}{made}")
