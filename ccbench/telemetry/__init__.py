"""What the devices say of themselves before and after a case: clocks, heat, power, errors."""

from ccbench.telemetry.judging import flags_of, telling
from ccbench.telemetry.readings import (
    DeviceReading,
    LinkErrors,
    joined,
    readings_from_json,
    readings_json,
)
from ccbench.telemetry.watch import DeviceWatch, read_devices

__all__ = [
    "DeviceReading",
    "DeviceWatch",
    "LinkErrors",
    "flags_of",
    "joined",
    "read_devices",
    "readings_from_json",
    "readings_json",
    "telling",
]
