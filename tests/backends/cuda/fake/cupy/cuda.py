"""``cupy.cuda``: the modules that the cuda backend asks for, of one process of the emulation."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from ccbench.backends.cuda import runtime as modules
from ccbench.backends.kernels import building
from ccbench.backends.kernels.building import found_compiler
from tests.backends.cuda.emulated import EmulatedRuntime, FakeNvrtc, compiled_to_text

vars(modules).update(
    compile_program=compiled_to_text, nvrtc=FakeNvrtc
)  # what runs is known by its text
if (
    "DOUBLES_CXX" in os.environ
):  # the machine that is stood in for may have no compiler, the emulation needs one
    vars(building)["compiler"] = lambda: found_compiler("DOUBLES_CXX", "g++")
_emulated = EmulatedRuntime(devices=int(os.environ.get("FAKE_GPUS", "1")), processors=64)


def _module(name: str) -> ModuleType:
    made = ModuleType(f"cupy.cuda.{name}")
    made.__getattr__ = lambda attribute: getattr(_emulated, attribute)  # type: ignore[method-assign]
    sys.modules[made.__name__] = made
    return made


runtime = _module("runtime")
driver = _module("driver")
