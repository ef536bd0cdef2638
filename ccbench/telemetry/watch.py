"""Who looks at the devices of a case, and when."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from ccbench.nvidia import DriverAbsent, Session, opened
from ccbench.telemetry.judging import flags_of
from ccbench.telemetry.nvidia import NvidiaDevices
from ccbench.telemetry.readings import DeviceReading, readings_json
from ccbench.topology.pci_tree import normal_address

SETTLED_SECONDS, LEAST_SECONDS, MOST_SECONDS = 0.01, 0.05, 0.1
"""Clocks that have not risen for so long rise no more; how long devices work at least, as clocks may begin to
rise late, and where no driver tells them; and at most."""

NEAR = 0.98
"""Part of the highest clock that was seen at which a device need not be waited for: a step or two below."""


class DeviceWatch:
    """Looks at some devices before and after each case of one process; where no driver answers, does nothing.

    Call ``before`` right before warming up, and when the last sample is taken ``ended``, or ``after`` at
    once; never between two samples. The first ``before`` opens the driver, which takes long on a machine with
    many GPUs, so it must be called in the process that measures.
    """

    def __init__(
        self,
        bus_ids: Sequence[str],
        driver: Callable[[], Session] = opened,
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
        if not self._begun:
            self._begin()
        if work is not None:
            self._raise_clocks(work)
        self._first, self._last = self._with_highest(self.read(begins=True)), ()

    def _raise_clocks(self, work: Callable[[], None]) -> None:
        began = risen = self._clock()
        highest: dict[str, int] = {}
        while True:
            work()
            now, clocks = self._clock(), self._nvidia.sm_clocks() if self._nvidia else {}
            if any(mhz > highest.get(device, 0) for device, mhz in clocks.items()):
                risen = now
            highest |= {device: max(mhz, highest.get(device, 0)) for device, mhz in clocks.items()}
            known, waited = self._highest_mhz, now - began
            if clocks and all(mhz >= NEAR * known.get(device, math.inf) for device, mhz in clocks.items()):
                break
            rising = clocks and now - risen < SETTLED_SECONDS
            if waited >= (MOST_SECONDS if rising else LEAST_SECONDS):
                break
        for device, mhz in highest.items():
            self._highest_mhz[device] = max(mhz, self._highest_mhz.get(device, 0))

    def _with_highest(self, looks: Sequence[DeviceReading]) -> tuple[DeviceReading, ...]:
        return tuple(replace(one, sm_clock_highest_mhz=self._highest_mhz.get(one.bus_id)) for one in looks)

    def ended(self) -> None:
        """Look again: the last sample is taken. For those who check the result before they ask for it all:
        devices cool while the host compares. Called again, it does nothing: checks may be many."""
        if self._first and not self._last:
            self._last = self._with_highest(self.read())

    def after(self) -> tuple[str, tuple[str, ...]]:
        """(text of the column ``device_readings``, flags of the case); ("", ()) of no device.

        Looks again where ``ended`` has not.
        """
        first, last = self._first, self._last
        self._first, self._last = (), ()
        if first and not last:
            last = self._with_highest(self.read())
        return readings_json(first, last), flags_of(first, last)

    def read(self, begins: bool = False) -> tuple[DeviceReading, ...]:
        """A look at every device, in the order of ``bus_ids``. begins: a case does."""
        if not self._begun:
            self._begin()
        return self._nvidia.read(begins) if self._nvidia is not None else ()

    def close(self) -> None:
        """Leave the driver; the watch may be begun again."""
        if self._nvidia is not None:
            self._nvidia.close()
        self._nvidia, self._begun = None, False
        self._first, self._last = (), ()

    def _begin(self) -> None:
        self._begun = True
        if self.bus_ids:
            with suppress(DriverAbsent):
                self._nvidia = NvidiaDevices(self._driver(), self.bus_ids, self._clock)


def read_devices(bus_ids: Sequence[str], driver: Callable[[], Session] = opened) -> tuple[DeviceReading, ...]:
    """One look at the devices at these PCI addresses; none where no driver answers."""
    watch = DeviceWatch(bus_ids, driver)
    try:
        return watch.read()
    finally:
        watch.close()
