"""Machines that lack something in; what each backend needs, and the command, out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ccbench.backends import unavailable as said_unavailable
from ccbench.cases.capabilities import DECLARED, backend_names
from ccbench.machine.doctor import Check, backend_checks
from ccbench.machine.files import Files
from ccbench.machine.host import observe
from tests.machine.laid_out import HEALTHY, lay_out

NEEDS = {name: {need.name: need for need in DECLARED[name].needs} for name in backend_names()}
PARTS = {name: need for needs in NEEDS.values() for name, need in needs.items()}

OTHER_DEVICES = {"dev/kfd": ""}
"""AMD's and Ascend's, so that nothing is missing of any backend."""


class Backends:
    """What is said of every backend on the healthy machine."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path, self._patch = tmp_path, monkeypatch

    def __call__(
        self,
        changes: dict[str, str | None] | None = None,
        missing: tuple[str, ...] = (),
        programs: bool = True,
        unavailable: Callable[[str], str | None] = lambda name: None,
    ) -> dict[str, Check]:
        """By name, after ``changes``, without ``missing`` parts."""
        root = lay_out(self._path / "root", {**HEALTHY, **OTHER_DEVICES, **(changes or {})})
        hidden = {
            name
            for part in missing
            for name in (PARTS[part].module, *PARTS[part].distributions)
        }
        answers = {
            "has_module": lambda module: module not in hidden,
            "installed_version": lambda distribution: (
                None if distribution in hidden else "1.2.3"
            ),
            "shutil.which": lambda program: program if programs else None,
        }
        for name, answer in answers.items():
            self._patch.setattr(f"ccbench.machine.doctor.{name}", answer)
        found = backend_checks(observe(root, {}, self._path), Files(root), unavailable)
        return {one.name.removeprefix("backend "): one for one in found}


@pytest.fixture
def backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Backends:
    return Backends(tmp_path, monkeypatch)


V100, T4 = "0x1db6", "0x1eb8"


@pytest.mark.parametrize(
    ("driver", "device", "extra"),
    [("550.54.15", T4, "cuda12"), ("580.65.06", T4, "cuda13"), ("580.65.06", V100, "cuda12")],
)
def test_what_cuda_lacks_is_cured_by_one_command_that_suits_the_driver_and_the_gpus(
    backends: Backends, driver: str, device: str, extra: str
) -> None:
    gpu = "sys/bus/pci/devices/0000:3b:00.0"
    changes: dict[str, str | None] = {
        "proc/driver/nvidia/version": f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {driver}  Tue\n",
        f"{gpu}/class": "0x030200\n",
        f"{gpu}/vendor": "0x10de\n",
        f"{gpu}/device": f"{device}\n",
    }
    found = backends(changes, missing=("CuPy", "NVRTC", "NCCL"))
    for name, lacks in (("cuda", "needs CuPy, NVRTC"), ("nccl", "needs CuPy, NCCL")):
        assert (found[name].seen, found[name].advice) == (lacks, f"pip install '.[{extra}]'")


def test_the_systems_own_nccl_is_enough(backends: Backends) -> None:
    found = backends({"usr/lib64/libnccl.so.2.19.3": ""}, missing=("NCCL",))
    assert found["nccl"].seen == "works (CuPy 1.2.3, NCCL 2.19.3)"


@pytest.mark.parametrize(
    ("reason", "seen", "advice"),
    [
        ("no launcher: install one; or two", "no launcher", "install one; or two"),
        ("no launcher", "no launcher", "docs/backends.md"),
    ],
)
def test_what_only_the_backend_knows_is_said_in_its_words(
    backends: Backends, reason: str, seen: str, advice: str
) -> None:
    found = backends(unavailable=lambda name: reason if name == "mpi" else None)["mpi"]
    assert (found.status, found.seen) == ("note", seen)
    assert advice in found.advice


def test_every_backend_of_this_version_is_examined_on_this_machine() -> None:
    found = {
        check.name: check for check in backend_checks(observe(), Files(), said_unavailable)
    }
    for name in backend_names():
        assert found[f"backend {name}"].seen
    assert found["backend cpu"].status == "ok"


WITHOUT_PACKAGE = {"GPU", "AMD GPU", "C++ compiler"}


def test_every_need_can_be_asked_for() -> None:
    assert {name for name, need in PARTS.items() if not need.distributions} == WITHOUT_PACKAGE
