"""What NVRTC tells of kernels that it compiles for GPUs that are not here."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass, replace

from ccbench.backends.kernels.building import Nvrtc, nvrtc
from ccbench.backends.kernels.sources import CompilerInput
from ccbench.errors import MissingDependency

ABSENT = "no NVRTC here: pip install nvidia-cuda-nvrtc-cu12"


@dataclass(frozen=True)
class Compiled:
    """What came out for one architecture. registers: per lane. ptx: the text that asm went through."""

    registers: int
    spill_bytes: int
    ptx: str
    cubin_bytes: int


class Telling(Nvrtc):
    """Keeps the log and the PTX of the program that it compiled last."""

    def _text(self, handle: ctypes.c_void_p, what: str) -> bytes:
        if what == "CUBIN":
            self.log, self.ptx = (
                super(Telling, self)._text(handle, section) for section in ("ProgramLog", "PTX")
            )
        return super()._text(handle, what)


def library() -> ctypes.CDLL | None:
    """NVRTC, or None."""
    try:
        return nvrtc()._library
    except MissingDependency:
        return None


def compiled(program: CompilerInput, architecture: int) -> Compiled:
    """``program`` for sm_<architecture>; CompilationFailed with the compiler's first error where it fails."""
    compiler = library()
    assert compiler is not None, ABSENT
    telling = Telling(compiler)
    program = replace(program, options=(*program.options, "--ptxas-options=-v"))
    cubin = telling.compile(program, architecture)
    log = telling.log.decode()
    (registers,) = re.findall(r"Used (\d+) registers", log)
    spills = map(int, re.findall(r"(\d+) bytes spill", log))
    return Compiled(int(registers), sum(spills), telling.ptx.rstrip(b"\0").decode(), len(cubin))
