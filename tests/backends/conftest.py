"""Devices that are doubles have no clocks to wait for."""

from __future__ import annotations

import pytest

from ccbench.machine import telemetry


@pytest.fixture(autouse=True)
def no_waiting_for_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "LEAST_SECONDS", 0.0)
