"""Kernels compiled: for the CPU with g++, one library per ``.cu`` file; for GPUs with NVRTC; and the cache.

Every object is named by a digest of all it is made of (sources, options, compiler), so a cache is never
stale. What lies there is loaded into this process, or run. So the folders belong to the user and nobody else
may enter them, and a file counts only if it is the user's own and ends with the SHA-256 of the rest: one that
was cut short, damaged or put there by somebody else is made anew. Linkers, loaders and CUDA's driver follow
the offsets in an ELF file's header and never see what comes behind it. Files are written under another name
and then renamed, so that several processes may fill a folder at once.

NVRTC needs neither a GPU nor a driver. The library comes from NVIDIA's wheel, or from a CUDA installation; it
is spoken to through ctypes (the NVRTC User Guide describes its functions).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ccbench.backends.kernels.sources import CompilerInput, kernel_folder
from ccbench.errors import CcbenchError, MissingDependency, UsageError
from ccbench.machine.accelerators import CUDA_12_INSTEAD, cuda_install
from ccbench.machine.files import cache_folder

DIGEST_BYTES = 32
FOLDER_MODE = 0o700
FILE_MODE = 0o700
"""Programs among them are run."""

_OTHERS_MAY_WRITE = 0o022


def private_folder(name: str) -> Path:
    """The folder ``name`` of the cache, made if need be, for nobody but the user.

    UsageError where it cannot be made or belongs to somebody else.
    """
    folder = cache_folder() / name
    try:
        cache_folder().mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        # Not stat: what a link leads to may be exchanged after it was looked at.
        status = folder.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
            if stat.S_IMODE(status.st_mode) != FOLDER_MODE:
                folder.chmod(FOLDER_MODE)
            return folder
    except OSError as error:
        raise _unusable(folder, error) from None
    raise UsageError(
        f"{folder}: is no folder of user {os.geteuid()} (owner: {status.st_uid}), and what lies there would "
        "be run; remove it or name a place of your own with CCBENCH_CACHE"
    )


def kept(path: Path, make: Callable[[Path], object]) -> Path:
    """``path``, filled by ``make`` unless it is there and intact.

    make: writes the file whose path it is given; what it raises is raised. UsageError where nothing can be
    written.
    """
    if content(path) is None:
        try:
            fill(path, make)
        except OSError as error:
            raise _unusable(path.parent, error) from None
    return path


def fill(path: Path, make: Callable[[Path], object]) -> None:
    """Write the file whole, whoever else writes or reads it at the time."""
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


def content(path: Path) -> bytes | None:
    """Bytes kept in ``path``; None where nothing is, or it is damaged or not the user's own."""
    try:
        # A link may lead to what somebody else exchanges.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            # Of the file that is open, not of the name: another could take its place in between.
            status = os.fstat(file.fileno())
            open_to_others = stat.S_IMODE(status.st_mode) & _OTHERS_MAY_WRITE
            if (
                not stat.S_ISREG(status.st_mode)
                or status.st_uid != os.geteuid()
                or open_to_others
            ):
                return None
            stored = file.read()
    except OSError:
        return None
    data = stored[:-DIGEST_BYTES]
    return data if hashlib.sha256(data).digest() == stored[-DIGEST_BYTES:] else None


DIGEST_LETTERS = 20


def found_compiler(variable: str, name: str) -> tuple[str, str] | None:
    """(path, first line of its version) of ``name``, or of what the environment's ``variable`` names."""
    path = shutil.which(os.environ.get(variable, name))
    if path is None:
        return None
    try:
        output = subprocess.run(
            [path, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return path, output.partition("\n")[0]


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
        [path, *words, "-o", str(target)],
        capture_output=True,
        text=True,
        check=False,
        cwd=place,
    )
    if done.returncode != 0:
        # Warnings come first in a compiler's output, and help nobody here.
        lines = [
            line for line in done.stderr.splitlines() if "error" in line
        ] or done.stderr.splitlines()
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
    installed = found_compiler("CXX", "g++")
    if installed is None:
        name = os.environ.get("CXX", "g++")
        raise MissingDependency(
            f"backend cuda-host: no C++ compiler called {name!r} was found; "
            "install one (Debian and Ubuntu: apt-get install g++) or name another with CXX"
        )
    return installed


def built(build: Build) -> Path:
    """The library (or, with ``sanitize``, the executable) of ``build``; compiled now unless the cache has it.

    Raises MissingDependency without a compiler, UsageError with the compiler's first error where the
    sources do not compile.
    """
    # What ships does not change while a process runs, which may launch thousands of times.
    return (_built if build.folder else _shipped_built)(build, private_folder("host"))


def _built(build: Build, folder: Path) -> Path:
    objects = _objects(build, folder, *compiler())
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
        compile_to(
            target, compiler()[0], [*how, *(str(file) for file in objects), "-lpthread"], folder
        )

    return kept(folder / name, link)


_shipped_built = functools.lru_cache(_built)


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
    sources = [
        *(build.sources / "host" / name for name in names),
        build.sources / build.kernel_file,
    ]
    objects = {}
    for source in sources:
        options = _options(build, source)
        name = (
            f"{source.stem}-{digest(source.read_bytes(), headers, *options, path, version)}.o"
        )
        objects[folder / name] = source
    return objects


_WHEEL_PATHS = (
    "nvidia/cu13/lib/libnvrtc.so.13",
    "nvidia/cuda_nvrtc/lib/libnvrtc.so.13",
    "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
)
_LIBRARY_NAMES = ("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so")


class CompilationFailed(CcbenchError):
    """NVRTC refused a kernel; the message is its first error."""


class Nvrtc:
    """One loaded NVRTC library."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"

    def _call(self, function: str, *arguments: object) -> None:
        result = getattr(self._library, function)(*arguments)
        if result != 0:
            reason = self._library.nvrtcGetErrorString(ctypes.c_int(result))
            raise CompilationFailed(f"NVRTC: {function}: {reason.decode()}")

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """Architectures that it compiles for, such as 90 for compute capability 9.0, ascending."""
        count = ctypes.c_int()
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        numbers = (ctypes.c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        return tuple(sorted(numbers))

    @functools.cached_property
    def full_version(self) -> str:
        """With patch level and build where NVRTC tells them, as in ``12.9.86 CL-36037853``.

        nvrtcVersion has two numbers only, but the PTX of any program begins with a comment that has all of
        them. An empty program takes a few milliseconds.
        """
        # Only PTX begins with that comment, and PTX is made for virtual architectures only.
        option = f"-arch=compute_{self.architectures[-1]}"
        ptx = self._compiled(CompilerInput("", {}, ()), (option,), "PTX")
        return version_in(ptx.decode(errors="replace")) or self.version

    def compile(self, program: CompilerInput, architecture: int) -> bytes:
        """The cubin of ``program`` for sm_``architecture``; CompilationFailed with the first error."""
        return self._compiled(program, (*program.options, f"-arch=sm_{architecture}"), "CUBIN")

    def _compiled(self, program: CompilerInput, options: tuple[str, ...], what: str) -> bytes:
        """Compile, and return the CUBIN or PTX as ``what`` asks."""
        texts = [text.encode() for text in program.headers.values()]
        names = [name.encode() for name in program.headers]
        handle = ctypes.c_void_p()
        self._call(
            "nvrtcCreateProgram",
            ctypes.byref(handle),
            ctypes.c_char_p(program.text.encode()),
            ctypes.c_char_p(b"ccbench.cu"),
            ctypes.c_int(len(texts)),
            (ctypes.c_char_p * len(texts))(*texts),
            (ctypes.c_char_p * len(names))(*names),
        )
        try:
            flags = [text.encode() for text in options]
            result = self._library.nvrtcCompileProgram(
                handle, ctypes.c_int(len(flags)), (ctypes.c_char_p * len(flags))(*flags)
            )
            if result != 0:
                log = (
                    self._text(handle, "ProgramLog")
                    .rstrip(b"\0")
                    .decode(errors="replace")
                    .strip()
                )
                (architecture,) = re.findall(r"-arch=(\w+)", " ".join(options))
                raise CompilationFailed(
                    f"NVRTC {self.version}, {architecture}: {first_error(log)}"
                )
            return self._text(handle, what)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(handle))

    def _text(self, handle: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", handle, buffer)
        return buffer.raw[: size.value]


def version_in(ptx: str) -> str:
    """Release with patch level, and build, from the comment that PTX begins with; empty where it has none."""
    release = re.search(r"^// Cuda compilation tools,.*\bV(\d+(?:\.\d+)+)", ptx, re.MULTILINE)
    build = re.search(r"^// Compiler Build ID: (\S+)", ptx, re.MULTILINE)
    return " ".join(match[1] for match in (release, build) if match)


def first_error(log: str) -> str:
    """The line of a compiler's log to show to a user."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    wrong = [line for line in lines if "error" in line.lower()]
    return (wrong or lines or ["it gave no reason"])[0]


@functools.lru_cache
def nvrtc(capability: int = 0, cupy: int = 0, driver: int = 0) -> Nvrtc:
    """The NVRTC to compile with, of those installed: of CuPy's CUDA where that serves, a wheel's first.

    capability: of the device, 90 for 9.0. cupy, driver: major version of the CUDA that CuPy is of, and of the
    newest that the driver runs. 0: nothing is known of it. A driver loads no cubin of a later major version
    (CUDA Compatibility, "Minor Version Compatibility"). MissingDependency with the install line,
    CompilationFailed where none that the driver runs compiles for the device.
    """
    refused: CcbenchError | None = None
    # Kernels are loaded beside CuPy's: the library of its own CUDA comes first.
    for path in sorted(candidates(), key=lambda path: f".so.{cupy}" not in path):
        try:
            library = Nvrtc(ctypes.CDLL(path))
        except (OSError, AttributeError):
            continue
        try:
            if driver and int(library.version.split(".")[0]) > driver:
                raise MissingDependency(
                    f"NVRTC {library.version} is too new for this driver, which runs CUDA {driver}; "
                    f"{cuda_install()}"
                )
            if capability:
                architecture_for(capability, library.architectures)
        except CcbenchError as error:
            refused = refused or error
            continue
        return library
    raise refused or MissingDependency(
        f"NVRTC, which compiles kernels, is not installed; {cuda_install()}"
    )


def candidates() -> list[str]:
    """Libraries to try: of wheels, of toolkits, and what the loader knows by name."""
    wheels = [Path(folder) / path for path in _WHEEL_PATHS for folder in sys.path if folder]
    toolkits = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    installed = [Path(folder) / "lib64" / "libnvrtc.so" for folder in toolkits if folder]
    return [
        *(str(path.resolve()) for path in (*wheels, *installed) if path.is_file()),
        *_LIBRARY_NAMES,
    ]


def architecture_for(capability: int, supported: tuple[int, ...]) -> int:
    """The architecture for a device of compute capability ``capability`` (90 for 9.0).

    A cubin runs on devices of the same major number and the same or a higher minor one (CUDA C++
    Programming Guide, "Binary Compatibility"). CompilationFailed where NVRTC has nothing that fits.
    """
    # Machine code of another major number does not run, PTX would need the driver's own compiler.
    fitting = [
        architecture
        for architecture in supported
        if architecture // 10 == capability // 10 and architecture <= capability
    ]
    if not fitting:
        newer = "pip install --upgrade nvidia-cuda-nvrtc-cu12 (of CUDA 13: nvidia-cuda-nvrtc)"
        raise CompilationFailed(
            f"NVRTC compiles for {', '.join(f'sm_{architecture}' for architecture in supported)}, not for "
            f"this device's sm_{capability}; {CUDA_12_INSTEAD if capability < min(supported) else newer}"
        )
    return max(fitting)


def compile_program(
    program: CompilerInput, architecture: int, compiler: Nvrtc | None = None
) -> bytes:
    """The cubin of ``program`` for sm_``architecture``, from the cache where it was compiled before.

    Raises MissingDependency and CompilationFailed.
    """
    compiler = compiler or nvrtc()
    # Patch levels of NVRTC make other code, so the whole version counts.
    key = "\1".join([program.digest, str(architecture), compiler.full_version])
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    with suppress(UsageError):
        cached = content(private_folder("cubins") / name)
        if cached is not None:
            return cached
    cubin = compiler.compile(program, architecture)
    with suppress(
        OSError, UsageError
    ):  # a folder that cannot be used costs only the time to compile again
        kept(private_folder("cubins") / name, lambda path: path.write_bytes(cubin))
    return cubin
