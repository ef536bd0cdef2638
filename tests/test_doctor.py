"""Sick machines in, advice out."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ccbench import doctor
from ccbench.backends import backend_names
from ccbench.doctor import Check, Surroundings, examine

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
    "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX 550.1\nGCC\n",
    "dev/nvidia0": "",
}


def ticking(step_seconds: float) -> Callable[[], float]:
    ticks = itertools.count()
    return lambda: next(ticks) * step_seconds


def healthy_surroundings() -> Surroundings:
    return Surroundings(
        space_bytes=lambda path: (32 * GIB, 31 * GIB),
        has_module=lambda name: True,
        version=lambda name: "1.2.3",
        clock=ticking(1e-7),
        finds_program=lambda name: True,
    )


def check(tmp_path: Path, name: str, changes: dict[str, str | None] | None = None, **around: object) -> Check:
    """The check called ``name`` on the healthy machine after ``changes`` (None removes a file)."""
    files = {**HEALTHY, **(changes or {})}
    root = lay_out(tmp_path / "root", {path: text for path, text in files.items() if text is not None})
    surroundings = replace(healthy_surroundings(), **around)  # type: ignore[arg-type] # test doubles
    found = {one.name: one for one in examine(root, tmp_path / "results", surroundings)}
    return found[name]


def test_a_healthy_machine_needs_nothing(tmp_path: Path) -> None:
    root = lay_out(tmp_path / "root", HEALTHY)
    for one in examine(root, tmp_path / "results", healthy_surroundings()):
        assert (one.status, one.advice) == ("ok", ""), one


SICKNESSES: list[tuple[str, dict[str, str | None], str, str, str]] = [
    (
        "cores",
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
        "problem",
        "may use the time of 1.5",
        "cpuset",
    ),
    ("cores", {"proc/self/status": "Cpus_allowed_list: 0\n"}, "problem", "8 online, 1 allowed", "two cores"),
    ("cores", {"proc/self/status": "Cpus_allowed_list: 0-3\n"}, "note", "4 allowed", "somebody else"),
    ("SMT", {f"{CPU}/smt/active": "1\n"}, "note", "on, 2 threads", "one rank a core"),
    (
        "governor",
        {f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave\n"},
        "note",
        "performance on 1, powersave on 1",
        "cpupower",
    ),
    (
        "virtual machine",
        {"proc/cpuinfo": "flags : fpu hypervisor\n"},
        "note",
        "hypervisor flag",
        "interleaved in one run",
    ),
    ("load", {"proc/loadavg": "2.5 0 0 1/1 1\n"}, "note", "2.5 over the last minute on 8", "wait, or stop"),
    ("memory", {"proc/meminfo": "MemAvailable: 1048576 kB\n"}, "problem", "1.0 GiB to use", "free memory"),
    (
        "memory",
        {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": str(GIB)},
        "problem",
        "the container's limit is 1.0 GiB",
        "lower the sizes",
    ),
    (
        "swap",
        {"proc/meminfo": "MemAvailable: 16777216 kB\nSwapTotal: 4096 kB\nSwapFree: 0 kB\n"},
        "note",
        "4.0 MiB in use",
        "disk",
    ),
    (
        "huge pages",
        {"sys/kernel/mm/transparent_hugepage/shmem_enabled": "always advise [never]\n"},
        "note",
        "never for shared memory",
        "shmem_enabled",
    ),
    (
        "clock source",
        {"sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n"},
        "note",
        "hpet",
        "clocksource=tsc",
    ),
    ("GPU", {"dev/nvidia0": None}, "problem", "driver without devices", "--gpus all"),
    (
        "GPU",
        {
            "dev/nvidia0": None,
            "proc/driver/nvidia/version": None,
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n",
        },
        "problem",
        "without its driver",
        "install the NVIDIA driver",
    ),
    ("GPU", {"dev/nvidia0": None, "proc/driver/nvidia/version": None}, "note", "none", "need none"),
    (
        "GPU",
        {"dev/nvidia0": None, "proc/driver/nvidia/version": None, "dev/kfd": ""},
        "note",
        "AMD",
        "no backend",
    ),
]


@pytest.mark.parametrize(("name", "changes", "status", "seen", "advice"), SICKNESSES)
def test_a_sickness_is_named_with_its_cure(
    tmp_path: Path, name: str, changes: dict[str, str | None], status: str, seen: str, advice: str
) -> None:
    found = check(tmp_path, name, changes)
    assert found.status == status
    assert seen in found.seen
    assert advice in found.advice


def test_a_machine_that_tells_nothing_is_still_examined(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    checks = examine(tmp_path / "root", tmp_path / "results", healthy_surroundings())
    assert {"cores", "SMT", "memory", "load", "GPU"} <= {one.name for one in checks}
    assert all(one.seen for one in checks)


def test_a_small_shared_memory_is_a_problem(tmp_path: Path) -> None:
    found = check(tmp_path, "/dev/shm", space_bytes=lambda path: (64 << 20, 64 << 20))
    assert found.status == "problem"
    assert found.seen == "64.0 MiB, 64.0 MiB free"
    assert "--shm-size" in found.advice


def test_a_missing_shared_memory_is_a_problem(tmp_path: Path) -> None:
    def absent(path: str) -> tuple[int, int]:
        raise FileNotFoundError(2, "No such file or directory", path)

    found = check(tmp_path, "/dev/shm", space_bytes=absent)
    assert (found.status, found.seen) == ("problem", "No such file or directory")


@pytest.mark.parametrize(("step_seconds", "status"), [(1e-7, "ok"), (0.016, "note"), (0.0, "problem")])
def test_the_clock_is_judged_by_its_smallest_step(tmp_path: Path, step_seconds: float, status: str) -> None:
    assert check(tmp_path, "clock", clock=ticking(step_seconds)).status == status


@pytest.mark.parametrize("name", doctor.LIBRARIES)
def test_a_library_that_a_backend_lacks_comes_with_its_install_line(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "backend_names", lambda: ("cpu", "cuda", "mpi", "nccl", "torch"))
    found = check(tmp_path, name, has_module=lambda module: False, version=lambda distribution: None)
    assert (found.status, found.seen) == ("note", "not installed")
    assert "pip install " in found.advice


def test_a_missing_compiler_keeps_only_the_emulation_from_working(tmp_path: Path) -> None:
    found = check(tmp_path, "C++ compiler", finds_program=lambda name: False)
    assert (found.status, found.seen) == ("note", "not found")
    assert "cuda-host" in found.advice


def test_nobody_is_advised_to_install_what_no_backend_uses() -> None:
    looked_at = {one.name for one in examine()}
    for name, (backend, *_) in doctor.LIBRARIES.items():
        assert (name in looked_at) == (backend in backend_names())


def test_a_results_folder_that_is_not_there_yet_is_fine_and_not_made(tmp_path: Path) -> None:
    results = tmp_path / "deep" / "results"
    found = {one.name: one for one in examine(results=results)}["results folder"]
    assert found.status == "ok"
    assert found.seen.endswith("will be made")
    assert not results.parent.exists()


def test_a_results_folder_that_is_a_file_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("")
    found = {one.name: one for one in examine(results=tmp_path / "results")}["results folder"]
    assert found.status == "problem"
    assert "-o" in found.advice


def test_this_machine_can_be_examined() -> None:
    checks = examine()
    assert len({one.name for one in checks}) == len(checks)
    assert all(one.seen for one in checks)
    assert all(one.advice for one in checks if one.status != "ok")
