"""Kernels on the doubles' devices are known by their text."""

from __future__ import annotations

import pytest

from ccbench.backends.cuda import modules
from tests.backends.cuda.emulated import FakeNvrtc, compiled_to_text


@pytest.fixture(autouse=True)
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "compile_program", compiled_to_text)
    monkeypatch.setattr(modules, "nvrtc", FakeNvrtc)
