"""Looks at AMD GPUs through the files of their driver.

Documentation/gpu/amdgpu/thermal.rst of the Linux kernel says what lies below ``hwmon``,
Documentation/gpu/amdgpu/ras.rst what lies below ``ras``.
"""

from __future__ import annotations

import re
import time
from typing import Any

from ccbench.environment import Files
from ccbench.telemetry.readings import DeviceReading

VENDOR = "0x1002"
_GENERATIONS = {"2.5": 1, "5": 2, "8": 3, "16": 4, "32": 5, "64": 6}
"""GT/s of a PCIe lane -> generation."""


def is_amd(files: Files, bus_id: str) -> bool:
    """Whether the device at this PCI address is AMD's."""
    return files.text(f"/sys/bus/pci/devices/{bus_id}/vendor") == VENDOR


def look_at(files: Files, bus_id: str) -> DeviceReading:
    """One look at one GPU."""
    begun = time.monotonic()
    device = f"/sys/bus/pci/devices/{bus_id}"
    found: dict[str, Any] = {}
    for monitor in files.matching(f"{device}/hwmon", "hwmon*"):
        found |= _monitored(files, monitor)
    errors = _memory_errors(files, device)
    return DeviceReading(
        bus_id=bus_id,
        vendor="amd",
        model=files.text(f"{device}/product_name"),
        at_seconds=begun,
        trouble=None if files.exists(device) else "no such PCI device",
        pcie_generation=_generation(files.text(f"{device}/current_link_speed")),
        pcie_width=files.number(f"{device}/current_link_width"),
        pcie_replays=files.number(f"{device}/pcie_replay_count"),
        ecc_corrected_volatile=errors.get("ce"),
        ecc_uncorrected_volatile=errors.get("ue"),
        reading_seconds=time.monotonic() - begun,
        **found,
    )


def _monitored(files: Files, monitor: str) -> dict[str, Any]:
    """Temperatures are in 1/1000 degrees, power in microwatts, clocks in Hz, each with a label beside it."""
    found: dict[str, Any] = {}
    heat = {
        files.text(path): files.number(path.replace("_label", "_input"))
        for path in files.matching(monitor, "temp*_label")
    }
    core = heat.get("junction") or heat.get("edge")
    found["temperature_celsius"] = _scaled(core, 1e3)
    found["memory_temperature_celsius"] = _scaled(heat.get("mem"), 1e3)
    power = files.number(f"{monitor}/power1_average")
    if power is None:
        power = files.number(f"{monitor}/power1_input")
    found["power_watts"] = _scaled(power, 1e6)
    found["power_limit_watts"] = _scaled(files.number(f"{monitor}/power1_cap"), 1e6)
    for path in files.matching(monitor, "freq*_label"):
        hertz = files.number(path.replace("_label", "_input"))
        name = {"sclk": "sm_clock_mhz", "mclk": "memory_clock_mhz"}.get(files.text(path) or "")
        if name and hertz is not None:
            found[name] = hertz // 1_000_000
    return found


def _scaled(number: int | None, unit: float) -> float | None:
    return None if number is None else number / unit


def _memory_errors(files: Files, device: str) -> dict[str, int]:
    """``ue`` and ``ce`` of the memory controller."""
    table = files.fields(f"{device}/ras/umc_err_count")
    return {name: int(text) for name, text in table.items() if text.isdecimal()}


def _generation(speed: str | None) -> int | None:
    """``16.0 GT/s PCIe`` -> 4."""
    found = re.match(r"([0-9]+(?:\.[0-9]+)?) GT/s", speed or "")
    return _GENERATIONS.get(f"{float(found[1]):g}") if found else None
