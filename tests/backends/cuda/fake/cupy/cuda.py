"""``cupy.cuda``: the modules that the cuda backend asks for, of one process of the emulation."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from ccbench.backends.cuda import modules
from tests.backends.cuda.emulated import EmulatedRuntime, FakeNvrtc, compiled_to_text

vars(modules).update(compile_program=compiled_to_text, nvrtc=FakeNvrtc)  # what runs is known by its text
_emulated = EmulatedRuntime(devices=int(os.environ.get("FAKE_GPUS", "1")), processors=64)


def _module(name: str) -> ModuleType:
    made = ModuleType(f"cupy.cuda.{name}")
    made.__getattr__ = lambda attribute: getattr(_emulated, attribute)  # type: ignore[method-assign]
    sys.modules[made.__name__] = made
    return made


runtime = _module("runtime")
driver = _module("driver")
