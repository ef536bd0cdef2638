"""``cupy.cuda``: the modules that ccbench asks for, of one process of the double."""

from __future__ import annotations

import os

from ccbench.backends.cuda import runtime as modules
from ccbench.backends.nccl import library, overlap
from ccbench.backends.nccl.dialects import NCCL
from ccbench.machine import telemetry
from tests.backends.cuda.emulated import FakeNvrtc, compiled_to_text, module_of
from tests.backends.nccl.computing import FakeBlas
from tests.backends.nccl.double import Process, World

vars(modules).update(
    compile_program=compiled_to_text, nvrtc=FakeNvrtc
)  # what runs is known by its text
telemetry.LEAST_SECONDS = 0.0
overlap.MATRIX_EDGE, overlap.STREAM_BYTES = 64, 1 << 16


process = Process(World(devices=int(os.environ.get("FAKE_GPUS", "4")), version=22809))
# Nothing has to be compiled for a blocking kernel where GPUs cannot address pinned memory.
process.runtime.maps_host_memory = False
library.open_by_cupy.__defaults__ = (NCCL, lambda path: process.native, None)


runtime = module_of("runtime", process.runtime)
driver = module_of("driver", process.runtime)
nccl = module_of("nccl", process.module)

blas = FakeBlas(process.runtime)
cublas = module_of("cublas", blas)
ExternalStream = blas.on_stream
