"""Building kernels for the CPU with g++: one library per ``.cu`` file, kept in a cache.

Every object is named by a digest of all it is made of (sources, options, compiler), so a cache is never
stale and several processes may fill it at once.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ccbench.errors import MissingDependency, UsageError
from ccbench.kernels.sources import kernel_folder

ENGINE_FILES = ("engine.cpp", "fibers.cpp", "threads.cpp", "arithmetic.cpp")

WARNINGS = ("-Wall", "-Wextra", "-Wno-unknown-pragmas")


@dataclass(frozen=True)
class Build:
    """What is to be built from one kernel file.

    folder: the kernels' folder; None: the shipped one.
    sanitize: an executable with the thread sanitizer instead of a library; its engine is not instrumented,
        because the switches between fibers would look like races.
    """

    kernel_file: str
    folder: Path | None = None
    sanitize: bool = False

    @property
    def sources(self) -> Path:
        """The folder that is compiled."""
        return self.folder or kernel_folder()


def cache_folder() -> Path:
    """Where builds are kept: ``$CCBENCH_CACHE``, or ``ccbench`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("CCBENCH_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ccbench"


@functools.lru_cache(maxsize=1)
def compiler() -> tuple[str, str]:
    """(path, version) of g++, or of what ``$CXX`` names. MissingDependency when there is none."""
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise MissingDependency(
            f"backend cuda-host: no C++ compiler called {name!r} was found; "
            "install one (Debian and Ubuntu: apt-get install g++) or name another with CXX"
        )
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return path, version.partition("\n")[0]


def built(build: Build) -> Path:
    """The library (or, with ``sanitize``, the executable) of ``build``; compiled now unless the cache has it.

    Raises MissingDependency without a compiler, UsageError with the compiler's first error where the
    sources do not compile.
    """
    if not (build.sources / build.kernel_file).is_file():
        known = ", ".join(sorted(file.name for file in build.sources.glob("*.cu")))
        raise UsageError(f"{build.sources / build.kernel_file}: no such kernel file; one of {known}")
    headers = _headers_digest(build.sources)
    objects = [_object(build, build.sources / "host" / name, headers) for name in _engine_files(build)]
    objects.append(_object(build, build.sources / build.kernel_file, headers))
    ending = "" if build.sanitize else ".so"
    name = f"{Path(build.kernel_file).stem}-{_digest(*[file.name for file in objects])}{ending}"
    target = cache_folder() / "host" / name
    if not target.is_file():
        how = ["-fsanitize=thread"] if build.sanitize else ["-shared"]
        _run([*how, *map(str, objects), "-lpthread"], target)
    return target


def _engine_files(build: Build) -> tuple[str, ...]:
    return (*ENGINE_FILES, "main.cpp") if build.sanitize else ENGINE_FILES


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else part)
        digest.update(b"\0")
    return digest.hexdigest()[:20]


def _headers_digest(folder: Path) -> str:
    files = sorted([*folder.glob("*.cuh"), *folder.glob("host/*.h")])
    return _digest(*[part for file in files for part in (file.name, file.read_bytes())])


def _options(build: Build, instrumented: bool) -> tuple[str, ...]:
    common = ("-std=c++17", "-O2", "-g", "-fPIC", *WARNINGS)
    if not build.sanitize:
        return common
    return (*common, "-DCCB_TSAN", *(("-fsanitize=thread",) if instrumented else ()))


def _object(build: Build, source: Path, headers: str) -> Path:
    kernel = source.suffix == ".cu"
    options = _options(build, instrumented=kernel)
    path, version = compiler()
    name = f"{source.stem}-{_digest(source.read_bytes(), headers, *options, path, version)}.o"
    target = cache_folder() / "host" / name
    if not target.is_file():
        _run([*options, *(("-x", "c++") if kernel else ()), "-c", str(source)], target)
    return target


def _run(words: Sequence[str], target: Path) -> None:
    """Run the compiler; ``target`` appears whole or not at all."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=target.name)
    except OSError as error:
        raise UsageError(
            f"{target.parent}: builds cannot be kept here ({error.strerror}); name a place with CCBENCH_CACHE"
        ) from None
    os.close(handle)
    try:
        done = subprocess.run(
            [compiler()[0], *words, "-o", temporary], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
            raise UsageError(f"{words[-1]}: g++ failed: {lines[0] if lines else 'it gave no reason'}")
        os.replace(temporary, target)
    finally:
        Path(temporary).unlink(missing_ok=True)
