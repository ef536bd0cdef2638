"""Building kernels for the CPU with g++, one library per ``.cu`` file, and the cache of all that is compiled.

Every object is named by a digest of all it is made of (sources, options, compiler), so a cache is never
stale. What lies there is loaded into this process, or run. So the folders belong to the user and nobody else
may enter them, and a file counts only if it is the user's own and ends with the SHA-256 of the rest: one that
was cut short, damaged or put there by somebody else is made anew. Linkers, loaders and CUDA's driver follow
the offsets in an ELF file's header and never see what comes behind it. Files are written under another name
and then renamed, so that several processes may fill a folder at once.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ccbench.backends.kernels.sources import kernel_folder
from ccbench.errors import MissingDependency, UsageError

DIGEST_BYTES = 32
FOLDER_MODE = 0o700
FILE_MODE = 0o700
"""Programs among them are run."""

_OTHERS_MAY_WRITE = 0o022

_INTACT: dict[Path, tuple[int, ...]] = {}
"""What this process has read already, with what would have changed if the file had."""


def cache_folder() -> Path:
    """Folder of builds: ``$CCBENCH_CACHE``, or ``ccbench`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    named = os.environ.get("CCBENCH_CACHE")
    if named:
        return Path(named)
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "ccbench"


def private_folder(name: str) -> Path:
    """The folder ``name`` of the cache, made if need be, for nobody but the user.

    UsageError where it cannot be made or belongs to somebody else.
    """
    folder = cache_folder() / name
    try:
        cache_folder().mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        # Not stat: what a link leads to may be exchanged after it was looked at.
        seen = folder.lstat()
        if stat.S_ISDIR(seen.st_mode) and seen.st_uid == os.geteuid():
            if stat.S_IMODE(seen.st_mode) != FOLDER_MODE:
                folder.chmod(FOLDER_MODE)
            return folder
    except OSError as error:
        raise _unusable(folder, error) from None
    raise UsageError(
        f"{folder}: is no folder of user {os.geteuid()} (owner: {seen.st_uid}), and what lies there would "
        "be run; remove it or name a place of your own with CCBENCH_CACHE"
    )


def kept(path: Path, make: Callable[[Path], object]) -> Path:
    """``path``, filled by ``make`` unless it is there and intact.

    make: writes the file whose path it is given; what it raises is raised. UsageError where nothing can be
    written.
    """
    if not intact(path):
        try:
            _fill(path, make)
        except OSError as error:
            raise _unusable(path.parent, error) from None
    return path


def _fill(path: Path, make: Callable[[Path], object]) -> None:
    # In the same folder, because a rename is atomic within one file system only.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    os.close(handle)
    temporary = Path(name)
    try:
        make(temporary)
        made = temporary.read_bytes()
        with temporary.open("ab") as file:
            file.write(hashlib.sha256(made).digest())
        temporary.chmod(FILE_MODE)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{folder}: builds cannot be kept here ({error.strerror}); name a place with CCBENCH_CACHE"
    )


def intact(path: Path) -> bool:
    """True if ``path`` is a file that this user wrote and that is as it was written."""
    try:
        seen = path.lstat()
        # Reading and hashing again is spared while nothing about the file has changed.
        facts = (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        if not _is_own(seen):
            return False
        if _INTACT.get(path) == facts:
            return True
        if content(path) is None:
            return False
    except OSError:
        return False
    _INTACT[path] = facts
    return True


def content(path: Path) -> bytes | None:
    """Bytes kept in ``path``; None where nothing is, or it is damaged or not the user's own."""
    try:
        with path.open("rb") as file:
            # Of the file that is open, not of the name: another could take its place in between.
            if not _is_own(os.fstat(file.fileno())):
                return None
            stored = file.read()
    except OSError:
        return None
    found = stored[:-DIGEST_BYTES]
    return found if hashlib.sha256(found).digest() == stored[-DIGEST_BYTES:] else None


def _is_own(seen: os.stat_result) -> bool:
    return (
        stat.S_ISREG(seen.st_mode)
        and seen.st_uid == os.geteuid()
        and not stat.S_IMODE(seen.st_mode) & _OTHERS_MAY_WRITE
    )


DIGEST_LETTERS = 20


def found_compiler(variable: str, name: str) -> tuple[str, str] | None:
    """(path, first line of its version) of ``name``, or of what the environment's ``variable`` names."""
    path = shutil.which(os.environ.get(variable, name))
    if path is None:
        return None
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return path, said.partition("\n")[0]


def digest(*parts: str | bytes) -> str:
    """A short name for all that a file is made of: sources, options, compiler."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() if isinstance(part, str) else part)
        whole.update(b"\0")
    return whole.hexdigest()[:DIGEST_LETTERS]


def compile_to(target: Path, path: str, words: Sequence[str], place: Path) -> None:
    """Run the compiler ``path`` in ``place``; the last word is the source.

    UsageError with the compiler's first error where it fails.
    """
    done = subprocess.run(
        [path, *words, "-o", str(target)], capture_output=True, text=True, check=False, cwd=place
    )
    if done.returncode != 0:
        # Warnings come first in a compiler's output, and help nobody here.
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()
        reason = lines[0] if lines else "it gave no reason"
        raise UsageError(f"{place / words[-1]}: {Path(path).name} failed: {reason}")


ENGINE_FILES = ("engine.cpp", "fibers.cpp", "threads.cpp", "arithmetic.cpp")

WARNINGS = ("-Wall", "-Wextra", "-Wno-unknown-pragmas")


@dataclass(frozen=True)
class Build:
    """Product of one kernel file.

    folder: the kernels' folder; None: the shipped one.
    sanitize: an executable with the thread sanitizer instead of a library.
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
        place = build.sources.resolve()
        for file, source in objects.items():
            # Debugging information names the sources from the kernels' folder on: an object serves copies of
            # them in any other place, and tells nobody where it was made.
            words = [*_options(build, source), f"-ffile-prefix-map={place}=kernels"]
            words += ["-x", "c++"] if source.suffix == ".cu" else []
            words += ["-c", str(source.relative_to(build.sources))]
            kept(file, partial(compile_to, path=compiler()[0], words=words, place=place))
        how = ["-fsanitize=thread"] if build.sanitize else ["-shared"]
        compile_to(target, compiler()[0], [*how, *(str(file) for file in objects), "-lpthread"], folder)

    return kept(folder / name, link)


def _options(build: Build, source: Path) -> tuple[str, ...]:
    common = ("-std=c++17", "-O2", "-g", "-fPIC", *WARNINGS)
    if not build.sanitize:
        return common
    # The engine is not instrumented: its switches between fibers would look like races.
    return (*common, "-DCCB_TSAN", *(("-fsanitize=thread",) if source.suffix == ".cu" else ()))


def _objects(build: Build, folder: Path, path: str, version: str) -> dict[Path, Path]:
    """Every object that ``build`` is linked of, by its place in the cache -> its source.

    path, version: of the compiler.
    """
    files = sorted([*build.sources.glob("*.cuh"), *build.sources.glob("host/*.h")])
    headers = digest(*[part for file in files for part in (file.name, file.read_bytes())])
    names = (*ENGINE_FILES, "main.cpp") if build.sanitize else ENGINE_FILES
    sources = [*(build.sources / "host" / name for name in names), build.sources / build.kernel_file]
    found = {}
    for source in sources:
        options = _options(build, source)
        name = f"{source.stem}-{digest(source.read_bytes(), headers, *options, path, version)}.o"
        found[folder / name] = source
    return found


_shipped_objects = functools.lru_cache(_objects)
