"""Devices that are doubles have no clocks to wait for, and know a kernel by its text."""

from __future__ import annotations

import pytest

from ccbench.backends.cuda import runtime as modules
from ccbench.machine import telemetry
from tests.backends.cuda.emulated import FakeNvrtc, compiled_to_text


@pytest.fixture(autouse=True)
def doubles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(modules, "compile_program", compiled_to_text)
    monkeypatch.setattr(modules, "nvrtc", FakeNvrtc)
