"""Kernels compiled for GPUs at run time with NVRTC, which needs neither a GPU nor a driver.

The library comes from NVIDIA's wheel, or from a CUDA installation; it is spoken to through ctypes (the NVRTC
User Guide describes its functions). What was compiled is kept in a cache whose names are digests of all that
the code depends on, so it is never stale.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from ccbench.backends.kernels.building import content, kept, private_folder
from ccbench.backends.kernels.sources import Program
from ccbench.errors import CcbenchError, MissingDependency, UsageError
from ccbench.machine.accelerators import cuda_install
from ccbench.machine.software import install_line

CUDA_12_INSTEAD = (
    f"pip uninstall cupy-cuda13x nvidia-cuda-nvrtc nvidia-nccl-cu13, then {install_line('cuda12')}"
)
"""For GPUs before compute capability 7.5: CuPy's wheels for two CUDAs overwrite each other's files."""

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
        self._check(library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)), "nvrtcVersion")
        self.version = f"{major.value}.{minor.value}"

    def _check(self, result: int, what: str) -> None:
        if result != 0:
            reason = self._library.nvrtcGetErrorString(ctypes.c_int(result))
            raise CompilationFailed(f"NVRTC: {what}: {reason.decode()}")

    @functools.cached_property
    def architectures(self) -> tuple[int, ...]:
        """Architectures that it compiles for, such as 90 for compute capability 9.0, ascending."""
        count = ctypes.c_int()
        self._check(self._library.nvrtcGetNumSupportedArchs(ctypes.byref(count)), "nvrtcGetNumSupportedArchs")
        numbers = (ctypes.c_int * count.value)()
        self._check(self._library.nvrtcGetSupportedArchs(numbers), "nvrtcGetSupportedArchs")
        return tuple(sorted(numbers))

    @functools.cached_property
    def full_version(self) -> str:
        """With patch level and build where NVRTC tells them, as in ``12.9.86 CL-36037853``.

        nvrtcVersion has two numbers only, but the PTX of any program begins with a comment that has all of
        them. An empty program takes a few milliseconds.
        """
        # Only PTX begins with that comment, and PTX is made for virtual architectures only.
        option = f"-arch=compute_{self.architectures[-1]}"
        ptx = self._compiled(Program("", {}, ()), (option,), "PTX")
        return version_in(ptx.decode(errors="replace")) or self.version

    def compile(self, program: Program, architecture: int) -> bytes:
        """The cubin of ``program`` for sm_``architecture``; CompilationFailed with the first error."""
        return self._compiled(program, (*program.options, f"-arch=sm_{architecture}"), "CUBIN")

    def _compiled(self, program: Program, options: tuple[str, ...], what: str) -> bytes:
        """Compile, and return the CUBIN or PTX as ``what`` asks."""
        texts = [text.encode() for text in program.headers.values()]
        names = [name.encode() for name in program.headers]
        handle = ctypes.c_void_p()
        result = self._library.nvrtcCreateProgram(
            ctypes.byref(handle),
            ctypes.c_char_p(program.text.encode()),
            ctypes.c_char_p(b"ccbench.cu"),
            ctypes.c_int(len(texts)),
            (ctypes.c_char_p * len(texts))(*texts),
            (ctypes.c_char_p * len(names))(*names),
        )
        self._check(result, "nvrtcCreateProgram")
        try:
            given = [text.encode() for text in options]
            result = self._library.nvrtcCompileProgram(
                handle, ctypes.c_int(len(given)), (ctypes.c_char_p * len(given))(*given)
            )
            if result != 0:
                log = self._text(handle, "ProgramLog").rstrip(b"\0").decode(errors="replace").strip()
                (architecture,) = re.findall(r"-arch=(\w+)", " ".join(options))
                raise CompilationFailed(f"NVRTC {self.version}, {architecture}: {first_error(log)}")
            return self._text(handle, what)
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(handle))

    def _text(self, handle: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        function = getattr(self._library, f"nvrtcGet{what}Size")
        self._check(function(handle, ctypes.byref(size)), f"nvrtcGet{what}Size")
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._library, f"nvrtcGet{what}")(handle, buffer), f"nvrtcGet{what}")
        return buffer.raw[: size.value]


def version_in(ptx: str) -> str:
    """Release with patch level, and build, from the comment that PTX begins with; empty where it has none."""
    release = re.search(r"^// Cuda compilation tools,.*\bV(\d+(?:\.\d+)+)", ptx, re.MULTILINE)
    build = re.search(r"^// Compiler Build ID: (\S+)", ptx, re.MULTILINE)
    return " ".join(found[1] for found in (release, build) if found)


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
            found = Nvrtc(ctypes.CDLL(path))
        except (OSError, AttributeError):
            continue
        try:
            if driver and int(found.version.split(".")[0]) > driver:
                raise MissingDependency(
                    f"NVRTC {found.version} is too new for this driver, which runs CUDA {driver}; "
                    f"{cuda_install()}"
                )
            if capability:
                architecture_for(capability, found.architectures)
        except CcbenchError as error:
            refused = refused or error
            continue
        return found
    raise refused or MissingDependency(f"NVRTC, which compiles kernels, is not installed; {cuda_install()}")


def candidates() -> list[str]:
    """Libraries to try: of wheels, of toolkits, and what the loader knows by name."""
    wheels = [Path(folder) / path for path in _WHEEL_PATHS for folder in sys.path if folder]
    toolkits = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    installed = [Path(folder) / "lib64" / "libnvrtc.so" for folder in toolkits if folder]
    return [*(str(path.resolve()) for path in (*wheels, *installed) if path.is_file()), *_LIBRARY_NAMES]


def architecture_for(capability: int, supported: tuple[int, ...]) -> int:
    """The architecture for a device of compute capability ``capability`` (90 for 9.0).

    A cubin runs on devices of the same major number and the same or a higher minor one (CUDA C++
    Programming Guide, "Binary Compatibility"). CompilationFailed where NVRTC has nothing that fits.
    """
    # Machine code of another major number does not run, PTX would need the driver's own compiler.
    fitting = [one for one in supported if one // 10 == capability // 10 and one <= capability]
    if not fitting:
        newer = "pip install --upgrade nvidia-cuda-nvrtc-cu12 (of CUDA 13: nvidia-cuda-nvrtc)"
        raise CompilationFailed(
            f"NVRTC compiles for {', '.join(f'sm_{one}' for one in supported)}, not for this device's "
            f"sm_{capability}; {CUDA_12_INSTEAD if capability < min(supported) else newer}"
        )
    return max(fitting)


def compile_program(program: Program, architecture: int, compiler: Nvrtc | None = None) -> bytes:
    """The cubin of ``program`` for sm_``architecture``, from the cache where it was compiled before.

    Raises MissingDependency and CompilationFailed.
    """
    compiler = compiler or nvrtc()
    # Patch levels of NVRTC make other code, so the whole version counts.
    key = "\1".join([program.digest, str(architecture), compiler.full_version])
    name = f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.cubin"
    with suppress(UsageError):
        found = content(private_folder("cubins") / name)
        if found is not None:
            return found
    cubin = compiler.compile(program, architecture)
    with suppress(OSError, UsageError):  # a folder that cannot be used costs only the time to compile again
        kept(private_folder("cubins") / name, lambda path: path.write_bytes(cubin))
    return cubin
