"""Devices that are doubles have no clocks to wait for."""

from __future__ import annotations

import pytest

from ccbench.telemetry import watch


@pytest.fixture(autouse=True)
def no_blind_warming(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "BLIND_SECONDS", 0.0)
