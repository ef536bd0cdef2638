"""Building kernels for the CPU with g++: one library per ``.cu`` file, kept in a cache.

Every object is named by a digest of all it is made of (sources, options, compiler), so a cache is never
stale; ``ccbench.backends.kernels.cache`` sees to it that only what was built here is loaded.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ccbench.backends.kernels.cache import kept, private_folder
from ccbench.backends.kernels.compiling import compile_to, digest, found_compiler
from ccbench.backends.kernels.sources import kernel_folder
from ccbench.errors import MissingDependency, UsageError

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


@functools.lru_cache(maxsize=1)
def compiler() -> tuple[str, str]:
    """(path, version) of g++, or of what ``$CXX`` names. MissingDependency when there is none."""
    found = found_compiler("CXX", "g++")
    if found is None:
        name = os.environ.get("CXX", "g++")
        raise MissingDependency(
            f"backend cuda-host: no C++ compiler called {name!r} was found; "
            "install one (Debian and Ubuntu: apt-get install g++) or name another with CXX"
        )
    return found


def built(build: Build) -> Path:
    """The library (or, with ``sanitize``, the executable) of ``build``; compiled now unless the cache has it.

    Raises MissingDependency without a compiler, UsageError with the compiler's first error where the
    sources do not compile.
    """
    if not (build.sources / build.kernel_file).is_file():
        known = ", ".join(sorted(file.name for file in build.sources.glob("*.cu")))
        raise UsageError(f"{build.sources / build.kernel_file}: no such kernel file; one of {known}")
    folder = private_folder("host")
    # What ships does not change while a process runs, which may launch thousands of times.
    objects = (_objects if build.folder else _shipped_objects)(build, folder, *compiler())
    ending = "" if build.sanitize else ".so"
    name = f"{Path(build.kernel_file).stem}-{digest(*[file.name for file in objects])}{ending}"

    def link(target: Path) -> None:
        for file, source in objects.items():
            kept(file, partial(_compile, build, source))
        how = ["-fsanitize=thread"] if build.sanitize else ["-shared"]
        compile_to(target, compiler()[0], [*how, *(str(file) for file in objects), "-lpthread"], folder)

    return kept(folder / name, link)


def _engine_files(build: Build) -> tuple[str, ...]:
    return (*ENGINE_FILES, "main.cpp") if build.sanitize else ENGINE_FILES


def _headers_digest(folder: Path) -> str:
    files = sorted([*folder.glob("*.cuh"), *folder.glob("host/*.h")])
    return digest(*[part for file in files for part in (file.name, file.read_bytes())])


def _options(build: Build, instrumented: bool) -> tuple[str, ...]:
    common = ("-std=c++17", "-O2", "-g", "-fPIC", *WARNINGS)
    if not build.sanitize:
        return common
    return (*common, "-DCCB_TSAN", *(("-fsanitize=thread",) if instrumented else ()))


def _objects(build: Build, folder: Path, path: str, version: str) -> dict[Path, Path]:
    """Every object that ``build`` is linked of, by its place in the cache -> its source.

    path, version: of the compiler.
    """
    headers = _headers_digest(build.sources)
    sources = [build.sources / "host" / name for name in _engine_files(build)]
    sources.append(build.sources / build.kernel_file)
    found = {}
    for source in sources:
        options = _options(build, instrumented=source.suffix == ".cu")
        name = f"{source.stem}-{digest(source.read_bytes(), headers, *options, path, version)}.o"
        found[folder / name] = source
    return found


_shipped_objects = functools.lru_cache(_objects)


def _compile(build: Build, source: Path, target: Path) -> None:
    """Debugging information names the sources from the kernels' folder on: an object serves copies of them
    in any other place, and tells nobody where it was made."""
    kernel = source.suffix == ".cu"
    options = _options(build, instrumented=kernel)
    place = build.sources.resolve()
    words = [*options, f"-ffile-prefix-map={place}=kernels", *(("-x", "c++") if kernel else ())]
    compile_to(target, compiler()[0], [*words, "-c", str(source.relative_to(build.sources))], place)
