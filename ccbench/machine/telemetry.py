"""Looks at the GPUs of a case before and after it, through NVML; every question may go without an answer."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ccbench.machine.accelerators import (
    MEMORY_CLOCK,
    MOST_LINKS,
    SM_CLOCK,
    DriverAbsent,
    Nvml,
    opened,
    scaled,
)
from ccbench.machine.readings import DeviceReading, flags_of, readings_json
from ccbench.topology.pci import normal_address

REASONS: Mapping[int, str] = {
    0x001: "gpu_idle",
    0x002: "applications_clocks_setting",
    0x004: "sw_power_cap",
    0x008: "hw_slowdown",
    0x010: "sync_boost",
    0x020: "sw_thermal_slowdown",
    0x040: "hw_thermal_slowdown",
    0x080: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h, nvmlClocksEventReason*)."""

GPU_SENSOR = 0
XID_EVENT = 8  # nvmlEventTypeXidCriticalError
MOST_EVENTS = 64

ENERGY_MILLIJOULES = (83, 0)
ERROR_COUNTERS: Mapping[tuple[int, int], str] = {
    (3, 0): "ecc_corrected_volatile",
    (4, 0): "ecc_uncorrected_volatile",
    (94, 0): "pcie_replays",
}
"""Field (number, scope) of nvml.h's NVML_FI_DEV_* -> what it is in a reading."""

HELD_BACK = {
    (74, 0): "power",
    (75, 0): "thermal",
    (77, 0): "board_limit",
    (79, 0): "reliability",
}
"""NVML_FI_DEV_PERF_POLICY_*, in nanoseconds. The newer counters of single slowdowns are not asked for: their
numbers have been 251 to 253 in the headers of CUDA 12 and are 269 to 271 in those of CUDA 13."""

FIELDS = (*ERROR_COUNTERS, ENERGY_MILLIJOULES, *HELD_BACK)

SETTLED_SECONDS, LEAST_SECONDS, MOST_SECONDS = 0.01, 0.05, 0.1
"""Clocks that have not risen for so long rise no more; how long devices work at least, as clocks may begin to
rise late, and where no driver tells them; and at most."""

NEAR = 0.98
"""Part of the highest clock that was seen at which a device need not be waited for: a step or two below."""


def link_fields(link: int) -> dict[tuple[int, int], str]:
    """Return field (number, scope) -> what it counts, of all generations; a device has those of one.

    Numbers of nvml.h: NVLINK_COUNT_* of Blackwell and later (209 and up), NVLINK_ERROR_DL_* of Hopper, and
    NVLINK_*_ERROR_COUNT_L0 to L11 of the devices before, which have at most 12 links.
    """
    counted = {
        (208, link): "received_errors",
        (215, link): "recoveries",
        (219, link): "effective_errors",
        (161, link): "replays",
        (162, link): "recoveries",
        (163, link): "crc",
    }
    if link < 12:
        first, place = ((32, 39, 46, 53), link) if link < 6 else ((96, 102, 108, 114), link - 6)
        names = ("crc_flits", "crc_data", "replays", "recoveries")
        counted |= {
            (number + place, 0): name for number, name in zip(first, names, strict=True)
        }
    return counted


@dataclass(frozen=True)
class _Gpu:
    """A GPU and what does not change. fields, links: those that it answers, the latter by link."""

    handle: Any
    fields: tuple[tuple[int, int], ...]
    model: str | None
    sm_clock_limit_mhz: int | None
    memory_clock_limit_mhz: int | None
    links: Mapping[int, Mapping[tuple[int, int], str]]


class NvidiaDevices:
    """GPUs of a session by PCI address. What no GPU answers is asked once, not at every look."""

    def __init__(
        self, nvml: Nvml, bus_ids: Sequence[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nvml = nvml
        self._clock = clock
        self._bus_ids = bus_ids
        self._gpus: dict[str, _Gpu] = {}
        self._lost: dict[str, DeviceReading] = {}
        for bus_id in bus_ids:
            try:
                handle = nvml.library.nvmlDeviceGetHandleByPciBusId(bus_id)
            except nvml.library.NVMLError as error:  # noqa: PERF203  (one GPU that is lost leaves the others)
                self._lost[bus_id] = DeviceReading(bus_id, "nvidia", trouble=str(error))
            else:
                self._gpus[bus_id] = self._met(handle)
        self._events = nvml.answer("EventSetCreate")
        if self._events is not None:
            for gpu in self._gpus.values():
                nvml.ask("DeviceRegisterEvents", gpu.handle, XID_EVENT, self._events)

    def close(self) -> None:
        """End the session."""
        if self._events is not None:
            self._nvml.ask("EventSetFree", self._events)
        self._nvml.close()

    def _met(self, handle: Any) -> _Gpu:
        """Ask a GPU for what does not change, and which fields it answers."""
        nvml = self._nvml

        def answered(fields: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
            values = nvml.field_values(handle, fields)
            if not values:  # some drivers refuse all for one that they lack
                values = {field: 0 for field in fields if nvml.field_values(handle, [field])}
            return tuple(field for field in fields if field in values)

        links = {}
        for link in range(MOST_LINKS):
            active = nvml.answer("DeviceGetNvLinkState", handle, link)
            if active is None:
                break  # there are no more
            fields = link_fields(link) if active else {}
            counted = answered(tuple(fields))
            if counted:
                links[link] = {counter: fields[counter] for counter in counted}
        return _Gpu(
            handle,
            answered(FIELDS),
            nvml.answer("DeviceGetName", handle),
            nvml.answer("DeviceGetMaxClockInfo", handle, SM_CLOCK),
            nvml.answer("DeviceGetMaxClockInfo", handle, MEMORY_CLOCK),
            links,
        )

    def read(self) -> tuple[DeviceReading, ...]:
        """Look at every GPU, in the order they were given."""
        clocks = (
            self.sm_clocks()
        )  # of all GPUs before anything else: they fall when the load is over
        xids: dict[str, list[int]] = {}
        for _ in range(MOST_EVENTS if self._events is not None else 0):
            event = self._nvml.answer("EventSetWait", self._events, 0)
            if event is None:
                break  # waiting for no time ended without an event
            if int(event.eventType) & XID_EVENT:
                bus_id = self._nvml.bus_id("DeviceGetPciInfo", event.device) or ""
                xids.setdefault(bus_id, []).append(int(event.eventData))
        looks = self._lost | {
            bus_id: replace(
                self._look(bus_id, gpu, clocks.get(bus_id)), xids=tuple(xids.get(bus_id, ()))
            )
            for bus_id, gpu in self._gpus.items()
        }
        return tuple(looks[bus_id] for bus_id in self._bus_ids)

    def sm_clocks(self) -> dict[str, int]:
        """Return PCI address -> clock of the processors in MHz, of the GPUs that tell it: a call for each."""
        clocks = {
            bus_id: self._nvml.answer("DeviceGetClockInfo", gpu.handle, SM_CLOCK)
            for bus_id, gpu in self._gpus.items()
        }
        return {bus_id: mhz for bus_id, mhz in clocks.items() if mhz is not None}

    def _look(self, bus_id: str, gpu: _Gpu, sm_clock: int | None) -> DeviceReading:
        """Look at one GPU."""
        library = self._nvml.library
        reading = DeviceReading(bus_id, "nvidia", gpu.model, at_seconds=self._clock())
        try:
            state = int(library.nvmlDeviceGetPerformanceState(gpu.handle))
            reading = replace(reading, performance_state=state)
        except library.NVMLError_NotSupported:
            pass
        except library.NVMLError as error:
            # A GPU that has fallen off the bus answers nothing else either.
            return replace(reading, trouble=str(error))
        answer = self._nvml.asking(gpu.handle)
        reasons = answer("CurrentClocksEventReasons")
        if reasons is None:  # drivers before 535 know only the older name
            reasons = answer("CurrentClocksThrottleReasons")
        fields = (*gpu.fields, *(count for counts in gpu.links.values() for count in counts))
        values = self._nvml.field_values(gpu.handle, fields)
        links: dict[int, dict[str, int]] = {}
        for link, names in gpu.links.items():
            for counter, what in names.items():
                if counter in values:  # fields of two generations may count the same
                    links.setdefault(link, {}).setdefault(what, int(values[counter]))
        errors: dict[str, Any] = {
            name: int(values[counter])
            for counter, name in ERROR_COUNTERS.items()
            if counter in values
        }
        return replace(
            reading,
            sm_clock_mhz=sm_clock,
            sm_clock_limit_mhz=gpu.sm_clock_limit_mhz,
            memory_clock_mhz=answer("ClockInfo", MEMORY_CLOCK),
            memory_clock_limit_mhz=gpu.memory_clock_limit_mhz,
            clock_reasons=None if reasons is None else in_words(int(reasons)),
            power_watts=scaled(answer("PowerUsage"), 1e3),
            power_limit_watts=scaled(answer("EnforcedPowerLimit"), 1e3),
            temperature_celsius=answer("Temperature", GPU_SENSOR),
            energy_joules=scaled(values.get(ENERGY_MILLIJOULES), 1e3),
            held_back_seconds={
                word: values[counter] / 1e9
                for counter, word in HELD_BACK.items()
                if counter in values
            },
            links=links,
            pcie_generation=answer("CurrPcieLinkGeneration"),
            pcie_width=answer("CurrPcieLinkWidth"),
            **errors,
        )


def in_words(reasons: int) -> tuple[str, ...]:
    """Return the words of a mask of clock reasons; a bit that has none is shown as hexadecimal."""
    words = [word for bit, word in REASONS.items() if reasons & bit]
    unknown = reasons & ~sum(REASONS)
    return (*words, hex(unknown)) if unknown else tuple(words)


def _higher(clocks: Mapping[str, int], others: Mapping[str, int]) -> dict[str, int]:
    """The higher clock of each device."""
    return {
        name: max(clocks.get(name, 0), others.get(name, 0)) for name in {**clocks, **others}
    }


class DeviceWatch:
    """Looks at some devices before and after each case of one process; where no driver answers, does nothing.

    Call ``before`` right before warming up, and when the last sample is taken ``ended``, or ``after`` at
    once; never between two samples. The first ``before`` opens the driver, which takes long on a machine with
    many GPUs, so it must be called in the process that measures.
    """

    def __init__(
        self,
        bus_ids: Sequence[str],
        driver: Callable[[], Nvml] = opened,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """bus_ids: PCI addresses as CUDA spells them; those of several ranks on one device once.

        driver, clock: for tests, in place of this machine's.
        """
        self.bus_ids = tuple(dict.fromkeys(map(normal_address, bus_ids)))
        self._driver = driver
        self._clock = clock
        self._begun = False
        self._nvidia: NvidiaDevices | None = None
        self._highest_mhz: dict[str, int] = {}
        self._first: tuple[DeviceReading, ...] = ()
        self._last: tuple[DeviceReading, ...] = ()

    def before(self, work: Callable[[], None] | None = None) -> None:
        """Look at the devices: a case begins. work: keeps all of them busy for about a millisecond.

        Devices that rested come to their clocks under load only, so ``work`` is repeated until these rise no
        more, and the highest is remembered.
        """
        self._begin()
        if work is not None:
            self.raise_clocks(work)
        self._first, self._last = self.read(), ()

    def raise_clocks(self, work: Callable[[], None]) -> None:
        """Repeat ``work`` until clocks rise no more, and remember the highest."""
        began = risen = self._clock()
        highest: dict[str, int] = {}
        while True:
            work()
            now, clocks = self._clock(), self._nvidia.sm_clocks() if self._nvidia else {}
            if any(mhz > highest.get(device, 0) for device, mhz in clocks.items()):
                risen = now
            highest = _higher(highest, clocks)
            # As high as ever seen is high enough; else until they have not risen for a while.
            if clocks and all(
                mhz >= NEAR * self._highest_mhz.get(device, math.inf)
                for device, mhz in clocks.items()
            ):
                break
            rising = clocks and now - risen < SETTLED_SECONDS
            if now - began >= (MOST_SECONDS if rising else LEAST_SECONDS):
                break
        self._highest_mhz = _higher(self._highest_mhz, highest)

    def ended(self) -> None:
        """Look again: the last sample is taken. For those who check the result before they ask for it all:
        devices cool while the host compares. Called again, it does nothing: checks may be many."""
        if self._first and not self._last:
            self._last = self.read()

    def after(self) -> tuple[str, tuple[str, ...]]:
        """Return (text of the column ``device_readings``, flags of the case); ("", ()) of no device.

        Looks again where ``ended`` has not.
        """
        self.ended()
        first, last = self._first, self._last
        self._first, self._last = (), ()
        return readings_json(first, last), flags_of(first, last)

    def read(self) -> tuple[DeviceReading, ...]:
        """Look at every device, in the order of ``bus_ids``."""
        self._begin()
        looks = self._nvidia.read() if self._nvidia is not None else ()
        return tuple(
            replace(look, sm_clock_highest_mhz=self._highest_mhz.get(look.bus_id))
            for look in looks
        )

    def close(self) -> None:
        """Leave the driver; the watch may be begun again."""
        if self._nvidia is not None:
            self._nvidia.close()
        self._nvidia, self._begun = None, False
        self._first, self._last = (), ()

    def _begin(self) -> None:
        begun, self._begun = self._begun, True
        if self.bus_ids and not begun:
            with suppress(DriverAbsent):
                self._nvidia = NvidiaDevices(self._driver(), self.bus_ids, self._clock)


def read_devices(
    bus_ids: Sequence[str], driver: Callable[[], Nvml] = opened
) -> tuple[DeviceReading, ...]:
    """Look at the devices at these PCI addresses; none where no driver answers."""
    watch = DeviceWatch(bus_ids, driver)
    try:
        return watch.read()
    finally:
        watch.close()
