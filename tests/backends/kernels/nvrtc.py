"""NVRTC by ctypes: compiles for GPUs that are not here. The library is the nvidia-cuda-nvrtc wheel's."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from ccbench.backends.kernels.sources import Program

ABSENT = "no NVRTC here: pip install nvidia-cuda-nvrtc-cu12"


@dataclass(frozen=True)
class Compiled:
    """What came out for one architecture. registers: per lane. ptx: the text that asm went through."""

    registers: int
    spill_bytes: int
    ptx: str
    cubin_bytes: int


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """NVRTC, of whichever wheel is installed, or None."""
    package = importlib.util.find_spec("nvidia")
    for root in (package.submodule_search_locations or []) if package else []:
        for found in sorted(Path(root).glob("*/lib/libnvrtc.so.*")):
            if re.fullmatch(r"libnvrtc\.so\.\d+", found.name):
                return ctypes.CDLL(str(found))
    return None


def compiled(program: Program, architecture: int) -> Compiled:
    """``program`` for sm_<architecture>; AssertionError with the compiler's log where it fails."""
    nvrtc = library()
    assert nvrtc is not None, ABSENT
    handle = ctypes.c_void_p()
    headers = [(name.encode(), text.encode()) for name, text in program.headers.items()]
    strings = ctypes.c_char_p * len(headers)
    made = nvrtc.nvrtcCreateProgram(
        ctypes.byref(handle),
        program.text.encode(),
        b"program.cu",
        len(headers),
        strings(*[text for _, text in headers]),
        strings(*[name for name, _ in headers]),
    )
    assert made == 0
    try:
        options = [*program.options, f"-arch=sm_{architecture}", "--ptxas-options=-v"]
        words = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
        result = nvrtc.nvrtcCompileProgram(handle, len(options), words)
        log = _text(nvrtc, handle, "ProgramLog")
        assert result == 0, log
        spills = [int(number) for number in re.findall(r"(\d+) bytes spill", log)]
        (registers,) = re.findall(r"Used (\d+) registers", log)
        cubin = ctypes.c_size_t()
        nvrtc.nvrtcGetCUBINSize(handle, ctypes.byref(cubin))
        return Compiled(int(registers), sum(spills), _text(nvrtc, handle, "PTX"), cubin.value)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(handle))


def _text(nvrtc: ctypes.CDLL, handle: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(handle, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(handle, buffer)
    return buffer.value.decode()
