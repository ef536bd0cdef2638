"""Facts of the first GPU that no other program prints; one line each, and exit code 0 whatever they are.

    python -m benchmarks.gpu_facts

How long NVML takes for the reading that ccbench takes before and after each case, and whether a multicast
object can be made of one device (the way to in-switch reductions, NVLS).
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from ccbench.backends.cuda.runtime import open_cuda
from ccbench.errors import CcbenchError
from ccbench.machine.telemetry import DeviceWatch
from ccbench.units import format_seconds

DRIVER = "libcuda.so.1"
MULTICAST_SUPPORTED = 132
"""CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED of cuda.h, from CUDA 12.1 on."""

RECOMMENDED = 1
"""CU_MULTICAST_GRANULARITY_RECOMMENDED."""

READINGS = 20


class MulticastProperties(ctypes.Structure):
    """CUmulticastObjectProp of cuda.h 13.0. handle_types, flags: none."""

    _fields_ = (
        ("devices", ctypes.c_uint),
        ("size_bytes", ctypes.c_size_t),
        ("handle_types", ctypes.c_ulonglong),
        ("flags", ctypes.c_ulonglong),
    )


class Refused(Exception):
    """A call of the driver failed, or is not there."""


def called(driver: Any, name: str, *arguments: Any) -> None:
    """Call a function of the driver API; Refused with its name and CUresult."""
    function = getattr(driver, name, None)
    if function is None:
        raise Refused(f"{name} is not in this driver")
    status = function(*arguments)
    if status:
        raise Refused(f"{name}: CUresult {status}")


def multicast(load: Callable[[str], Any] = ctypes.CDLL) -> Iterator[str]:
    """Ask the driver about multicast: the device's attribute, and whether one device makes an object."""
    try:
        driver = load(DRIVER)
        supported, device = ctypes.c_int(), ctypes.c_int()
        called(driver, "cuInit", 0)
        called(driver, "cuDeviceGet", ctypes.byref(device), 0)
        called(
            driver, "cuDeviceGetAttribute", ctypes.byref(supported), MULTICAST_SUPPORTED, device
        )
        yield f"multicast supported by the device: {'yes' if supported.value else 'no'}"
        properties, granularity = MulticastProperties(devices=1), ctypes.c_size_t()
        words = ctypes.byref(granularity), ctypes.byref(properties), RECOMMENDED
        called(driver, "cuMulticastGetGranularity", *words)
        properties.size_bytes = granularity.value
        handle = ctypes.c_ulonglong()
        called(driver, "cuMulticastCreate", ctypes.byref(handle), ctypes.byref(properties))
        yield f"multicast object of one device: made, granularity {granularity.value} B"
        called(driver, "cuMulticastAddDevice", handle, device)
        yield "multicast object of one device: takes the device"
        called(driver, "cuMemRelease", handle)
    except (OSError, Refused) as error:
        yield f"multicast: {error}"


def reading_seconds(watch: DeviceWatch) -> tuple[float, list[float]]:
    """Return seconds of the first reading, which opens NVML, and of READINGS more; none without NVML."""
    seconds = []
    for _ in range(READINGS + 1):
        began = time.perf_counter()
        if not watch.read():
            return 0.0, []
        seconds.append(time.perf_counter() - began)
    return seconds[0], seconds[1:]


def readings() -> Iterator[str]:
    """Time NVML readings of the first GPU."""
    try:
        watch = DeviceWatch([open_cuda().facts(0).bus_id])
    except CcbenchError as error:
        yield f"NVML reading: not timed: {error}"
        return
    first, others = reading_seconds(watch)
    watch.close()
    if not others:
        yield "NVML reading: not timed: NVML does not answer"
        return
    median, longest = (format_seconds(one) for one in (statistics.median(others), max(others)))
    yield f"NVML reading: median {median}, longest {longest} of {READINGS}; the first {format_seconds(first)}"


def main() -> int:
    """Print every fact."""
    for facts in (readings(), multicast()):
        for fact in facts:
            print(fact, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
