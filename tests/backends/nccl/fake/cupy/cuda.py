"""``cupy.cuda``: the modules that ccbench asks for, of one process of the double."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

from ccbench.backends.cuda import runtime as modules
from ccbench.backends.nccl import library, overlap
from ccbench.backends.nccl.dialects import NCCL
from ccbench.machine import telemetry
from tests.backends.cuda.emulated import FakeNvrtc, compiled_to_text
from tests.backends.nccl.computing import FakeBlas
from tests.backends.nccl.double import Process, World

vars(modules).update(
    compile_program=compiled_to_text, nvrtc=FakeNvrtc
)  # what runs is known by its text
telemetry.LEAST_SECONDS = 0.0
overlap.MATRIX_EDGE, overlap.STREAM_BYTES = 64, 1 << 16


class FakeProcess(Process):
    """GPUs that cannot address pinned memory, so that nothing has to be compiled for a blocking kernel."""


process = FakeProcess(World(devices=int(os.environ.get("FAKE_GPUS", "4")), version=22809))
_attribute = process.runtime.deviceGetAttribute
_HOST_MEMORY = (19, 41)


def _without_host_memory(attribute: int, device: int) -> int:
    return 0 if attribute in _HOST_MEMORY else int(_attribute(attribute, device))


process.runtime.deviceGetAttribute = _without_host_memory  # type: ignore[method-assign]
library.open_by_cupy.__defaults__ = (NCCL, lambda path: process.native, None)


def _module(name: str, stand_in: Any) -> ModuleType:
    made = ModuleType(f"cupy.cuda.{name}")
    made.__getattr__ = lambda attribute: getattr(stand_in, attribute)  # type: ignore[method-assign]
    sys.modules[made.__name__] = made
    return made


runtime = _module("runtime", process.runtime)
driver = _module("driver", process.runtime)
nccl = _module("nccl", process.module)

blas = FakeBlas(process.runtime)
cublas = _module("cublas", blas)
ExternalStream = blas.on_stream
