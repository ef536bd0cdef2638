"""Each backend: whether it works here, what it lacks, and the one command that cures it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ccbench.doctor.checks import Check, Surroundings
from ccbench.doctor.gpus import visible
from ccbench.environment import Environment, Files, cuda_install, install_line


@dataclass(frozen=True)
class Part:
    """Something a backend needs that is installed as Python packages.

    module: '' for one that is never imported by name; its distributions tell. install: '' for the extra of
    ccbench that suits the driver.
    """

    module: str
    distributions: tuple[str, ...]
    install: str = ""


PARTS: Mapping[str, Part] = {
    "CuPy": Part("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy")),
    "NVRTC": Part("", ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")),
    "NCCL": Part("", ("nvidia-nccl-cu13", "nvidia-nccl-cu12")),
    "mpi4py": Part("mpi4py", ("mpi4py",), install_line("mpi")),
    "torch": Part("torch", ("torch",), install_line("gloo")),
}

NEEDS: Mapping[str, tuple[str, ...]] = {
    "cuda": ("GPU", "CuPy", "NVRTC"),
    "cuda-ipc": ("GPU", "CuPy", "NVRTC"),
    "nccl": ("GPU", "CuPy", "NCCL"),
    "nccl-processes": ("GPU", "CuPy", "NCCL"),
    "mpi": ("mpi4py",),
    "mpi-cuda": ("GPU", "CuPy", "mpi4py"),
    "gloo": ("torch",),
    "cuda-host": ("C++ compiler",),
}
"""Backend -> what it needs, in the order in which to get it. Others say themselves what is missing."""


def backend_checks(
    names: Sequence[str], seen: Environment, files: Files, around: Surroundings
) -> tuple[Check, ...]:
    """One check for every backend: ``note`` where it cannot work, since others do."""
    return tuple(_backend(name, seen, files, around) for name in names)


def _backend(name: str, seen: Environment, files: Files, around: Surroundings) -> Check:
    title = f"backend {name}"
    lacking = list(_lacking(name, seen, files, around))
    if lacking:
        what = ", ".join(need for need, _ in lacking)
        # The packages of one extra come together, so their command is said once.
        return Check(
            title, "note", f"needs {what}", "; then ".join(dict.fromkeys(cure for _, cure in lacking))
        )
    reason = around.unavailable(name)
    if reason is None:
        versions = [_version(need, seen, around) for need in NEEDS.get(name, ()) if need in PARTS]
        return Check(title, "ok", " ".join(["works", *([f"({', '.join(versions)})"] if versions else [])]))
    # A backend's sentence is "what is missing; what to do" or "what is missing: what to do".
    what, split, cure = _SPLIT.split(reason, maxsplit=1) if _SPLIT.search(reason) else (reason, "", "")
    return Check(title, "note", what, cure if split else "see the section Backends of README.md")


_SPLIT = re.compile(r"(; |: )")


def _lacking(name: str, seen: Environment, files: Files, around: Surroundings) -> Iterator[tuple[str, str]]:
    """(what is missing, the command that cures it)."""
    for need in NEEDS.get(name, ()):
        if need in PARTS:
            if not _there(need, seen, around):
                yield need, PARTS[need].install or cuda_install(files)
        elif not _ASKED[need](seen, files, around):
            yield need, _CURES[need]


def _there(need: str, seen: Environment, around: Surroundings) -> bool:
    part = PARTS[need]
    if need == "NCCL" and any("libnccl" in path for path in seen.software.loadable):
        return True  # the system's own
    if part.module:
        return around.has_module(part.module)
    return any(around.version(one) is not None for one in part.distributions)


def _version(need: str, seen: Environment, around: Surroundings) -> str:
    versions = [around.version(one) for one in PARTS[need].distributions]
    if need == "NCCL":
        versions += [version for path, version in seen.software.loadable.items() if "libnccl" in path]
    return f"{need} {next((one for one in versions if one is not None), '(version unknown)')}"


def _sees_gpu(seen: Environment, files: Files, around: Surroundings) -> bool:
    return visible(seen.accelerators, files)


def _has_compiler(seen: Environment, files: Files, around: Surroundings) -> bool:
    return around.finds_program(os.environ.get("CXX", "g++"))


_ASKED: Mapping[str, Callable[[Environment, Files, Surroundings], bool]] = {
    "GPU": _sees_gpu,
    "C++ compiler": _has_compiler,
}
_CURES = {
    "GPU": "a machine with an NVIDIA GPU (see the check GPU)",
    "C++ compiler": "apt-get install g++, or name a compiler with CXX",
}
