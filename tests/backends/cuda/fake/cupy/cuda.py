"""``cupy.cuda``: the modules that the cuda backend asks for, of one process of the emulation."""

from __future__ import annotations

import os

from ccbench.backends.cuda import runtime as modules
from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import found_compiler
from tests.backends.cuda.emulated import EmulatedRuntime, FakeNvrtc, compiled_to_text, module_of

vars(modules).update(
    compile_program=compiled_to_text, nvrtc=FakeNvrtc
)  # what runs is known by its text
if (
    "DOUBLES_CXX" in os.environ
):  # the machine that is stood in for may have no compiler, the emulation needs one
    vars(building)["compiler"] = lambda: found_compiler("DOUBLES_CXX", "g++")
_emulated = EmulatedRuntime(devices=int(os.environ.get("FAKE_GPUS", "1")), processors=64)


runtime = module_of("runtime", _emulated)
driver = module_of("driver", _emulated)
