"""Sick machines in, advice out."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from ccbench.machine.doctor import clock_resolution, examine, results_folder
from ccbench.machine.files import Files
from ccbench.machine.host import observe
from tests.machine.laid_out import CPU, GIB, HEALTHY, check, examined, lay_out


def test_a_healthy_machine_needs_nothing(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "root", HEALTHY)
    for one in examined(root).values():
        assert (one.status, one.advice) == ("ok", ""), one


ALLOWED = "proc/self/status"
GOVERNOR = f"{CPU}/cpu1/cpufreq/scaling_governor"
CLOCK = "sys/devices/system/clocksource/clocksource0/current_clocksource"
HUGE_PAGES = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
MEMORY = "proc/meminfo"
GUEST = "flags : fpu hypervisor\n"
SWAPPED = "MemAvailable: 16777216 kB\nSwapTotal: 4096 kB\nSwapFree: 0 kB\n"


def limited(**limits: str) -> dict[str, str | None]:
    """In a container with this limit."""
    files = {f"sys/fs/cgroup/{name.replace('_', '.')}": limit for name, limit in limits.items()}
    return {"proc/self/cgroup": "0::/\n", **files}


SICKNESSES: list[tuple[str, dict[str, str | None], str, str, str]] = [
    (
        "cores",
        limited(cpu_max="150000 100000\n"),
        "problem",
        "may use the time of 1.5",
        "cpuset",
    ),
    (
        "cores",
        {ALLOWED: "Cpus_allowed_list: 0\n"},
        "problem",
        "8 online, 1 allowed",
        "two cores",
    ),
    ("cores", {ALLOWED: "Cpus_allowed_list: 0-3\n"}, "note", "4 allowed", "other processes"),
    ("SMT", {f"{CPU}/smt/active": "1\n"}, "note", "on, 2 threads", "one rank a core"),
    (
        "governor",
        {GOVERNOR: "powersave\n"},
        "note",
        "performance on 1, powersave on 1",
        "cpupower",
    ),
    (
        "virtual machine",
        {"proc/cpuinfo": GUEST},
        "note",
        "hypervisor flag",
        "interleaved in one run",
    ),
    (
        "load",
        {"proc/loadavg": "2.5 0 0 1/1 1\n"},
        "note",
        "2.5 over the last minute on 8",
        "wait, or stop",
    ),
    (
        "memory",
        {MEMORY: "MemAvailable: 1048576 kB\n"},
        "problem",
        "1.0 GiB to use",
        "free memory",
    ),
    (
        "memory",
        limited(memory_max=str(GIB)),
        "problem",
        "container's limit is 1.0 GiB",
        "lower the sizes",
    ),
    ("swap", {MEMORY: SWAPPED}, "note", "4.0 MiB in use", "disk"),
    (
        "huge pages",
        {HUGE_PAGES: "always [never]\n"},
        "note",
        "never for shared memory",
        "shmem_enabled",
    ),
    ("clock source", {CLOCK: "hpet\n"}, "note", "hpet", "clocksource=tsc"),
]


@pytest.mark.parametrize(("name", "changes", "status", "seen", "advice"), SICKNESSES)
def test_a_sickness_is_named_with_its_cure(
    tmp_path: Path,
    name: str,
    changes: dict[str, str | None],
    status: str,
    seen: str,
    advice: str,
) -> None:
    found = check(tmp_path, name, changes)
    assert found.status == status
    assert seen in found.seen
    assert advice in found.advice


@pytest.mark.parametrize(
    ("step_seconds", "status"), [(1e-7, "ok"), (0.016, "note"), (0.0, "problem")]
)
def test_the_clock_is_judged_by_its_smallest_step(step_seconds: float, status: str) -> None:
    ticks = itertools.count()
    assert clock_resolution(lambda: next(ticks) * step_seconds).status == status


def test_a_results_folder_that_is_not_there_yet_is_fine_and_not_made(tmp_path: Path) -> None:
    results = tmp_path / "deep" / "results"
    folder = results_folder(results)
    assert folder.status == "ok"
    assert folder.seen.endswith("will be made")
    assert not results.parent.exists()


def test_a_results_folder_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    folder = results_folder(tmp_path / "results")
    assert folder.status == "problem"
    assert "-o" in folder.advice


def test_this_machine_can_be_examined() -> None:
    checks = examine(observe(), Files())
    assert len({one.name for one in checks}) == len(checks)
    assert all(one.seen for one in checks)
    assert all(one.advice for one in checks if one.status != "ok")
