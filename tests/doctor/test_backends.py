"""Machines that lack something in; what each backend needs, and the command, out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ccbench.capabilities import DECLARED, backend_names
from ccbench.doctor import Check, examine
from ccbench.doctor.backends import backend_checks
from ccbench.environment import Files, observe
from tests.doctor.machine import HEALTHY, healthy_surroundings, lay_out

NEEDS = {name: {need.name: need for need in DECLARED[name].needs} for name in backend_names()}
PARTS = {name: need for needs in NEEDS.values() for name, need in needs.items()}


def backends(
    tmp_path: Path,
    changes: dict[str, str | None] | None = None,
    missing: tuple[str, ...] = (),
    programs: bool = True,
    unavailable: Callable[[str], str | None] = lambda name: None,
) -> dict[str, Check]:
    """What is said of every backend on the healthy machine, after ``changes``, without ``missing`` parts."""
    files = {**HEALTHY, **(changes or {})}
    root = lay_out(tmp_path / "root", {path: text for path, text in files.items() if text is not None})
    hidden = {name for part in missing for name in (PARTS[part].module, *PARTS[part].distributions)}
    around = healthy_surroundings(
        has_module=lambda module: module not in hidden,
        version=lambda distribution: None if distribution in hidden else "1.2.3",
        finds_program=lambda program: programs,
        unavailable=unavailable,
    )
    found = backend_checks(backend_names(), observe(root, {}, tmp_path), Files(root), around)
    return {one.name.removeprefix("backend "): one for one in found}


def test_where_nothing_is_missing_every_backend_works_and_tells_its_parts(tmp_path: Path) -> None:
    found = backends(tmp_path)
    assert {one.status for one in found.values()} == {"ok"}
    assert found["cpu"].seen == "works"
    assert found["nccl"].seen == "works (CuPy 1.2.3, NCCL 1.2.3)"


@pytest.mark.parametrize("name", [name for name, needs in NEEDS.items() if "GPU" in needs])
def test_without_a_gpu_its_backends_say_so_and_the_others_work(tmp_path: Path, name: str) -> None:
    found = backends(tmp_path, {"dev/nvidia0": None, "proc/driver/nvidia/version": None})
    assert (found[name].status, found[name].seen) == ("note", "needs GPU")
    assert "NVIDIA GPU" in found[name].advice
    assert found["cpu"].status == found["gloo"].status == found["cuda-host"].status == "ok"


V100, T4 = "0x1db6", "0x1eb8"


@pytest.mark.parametrize(
    ("driver", "device", "extra"),
    [("550.54.15", T4, "cuda12"), ("580.65.06", T4, "cuda13"), ("580.65.06", V100, "cuda12")],
)
def test_what_cuda_lacks_is_cured_by_one_command_that_suits_the_driver_and_the_gpus(
    tmp_path: Path, driver: str, device: str, extra: str
) -> None:
    gpu = "sys/bus/pci/devices/0000:3b:00.0"
    changes: dict[str, str | None] = {
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue\n",
        f"{gpu}/class": "0x030200\n",
        f"{gpu}/vendor": "0x10de\n",
        f"{gpu}/device": f"{device}\n",
    }
    found = backends(tmp_path, changes, missing=("CuPy", "NVRTC", "NCCL"))
    assert (found["cuda"].seen, found["cuda"].advice) == (
        "needs CuPy, NVRTC",
        f"pip install '.[{extra}]'",
    )
    assert (found["nccl"].seen, found["nccl"].advice) == (
        "needs CuPy, NCCL",
        f"pip install '.[{extra}]'",
    )


def test_the_systems_own_nccl_is_enough(tmp_path: Path) -> None:
    found = backends(tmp_path, {"usr/lib64/libnccl.so.2.19.3": ""}, missing=("NCCL",))
    assert found["nccl"].seen == "works (CuPy 1.2.3, NCCL 2.19.3)"


@pytest.mark.parametrize(
    ("name", "part", "command"),
    [("mpi", "mpi4py", "pip install '.[mpi]'"), ("gloo", "torch", "pip install '.[gloo]'")],
)
def test_a_missing_library_comes_with_its_command(tmp_path: Path, name: str, part: str, command: str) -> None:
    found = backends(tmp_path, missing=(part,))[name]
    assert (found.status, found.seen, found.advice) == ("note", f"needs {part}", command)


def test_a_missing_compiler_keeps_only_the_emulation_from_working(tmp_path: Path) -> None:
    found = backends(tmp_path, programs=False)
    assert [name for name, one in found.items() if one.status != "ok"] == ["cuda-host"]
    assert "g++" in found["cuda-host"].advice


@pytest.mark.parametrize(
    ("reason", "seen", "advice"),
    [
        (
            "no launcher was found; apt-get install openmpi-bin",
            "no launcher was found",
            "apt-get install openmpi-bin",
        ),
        ("no launcher: install one; or two", "no launcher", "install one; or two"),
        ("no launcher", "no launcher", "README.md"),
    ],
)
def test_what_only_the_backend_knows_is_said_in_its_words(
    tmp_path: Path, reason: str, seen: str, advice: str
) -> None:
    found = backends(tmp_path, unavailable=lambda name: reason if name == "mpi" else None)["mpi"]
    assert (found.status, found.seen) == ("note", seen)
    assert advice in found.advice


def test_every_backend_of_this_version_is_examined_on_this_machine() -> None:
    found = {one.name: one for one in examine()}
    for name in backend_names():
        assert found[f"backend {name}"].seen
    assert found["backend cpu"].status == "ok"


def test_every_need_can_be_asked_for() -> None:
    assert {name for name, need in PARTS.items() if not need.distributions} == {"GPU", "C++ compiler"}
