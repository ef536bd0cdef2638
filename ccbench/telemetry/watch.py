"""Who looks at the devices of a case, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ccbench.environment import Files
from ccbench.nvidia import DriverAbsent, Session, opened
from ccbench.telemetry.amd import is_amd, look_at
from ccbench.telemetry.judging import flags_of
from ccbench.telemetry.nvidia import NvidiaDevices
from ccbench.telemetry.readings import DeviceReading, readings_json
from ccbench.topology.pci_tree import normal_address


class DeviceWatch:
    """Looks at some devices before and after each case of one process; where no driver answers, does nothing.

    Call ``before`` after the buffers are allocated and before warming up, and when the last sample is taken
    ``ended``, or ``after`` at once; never between two samples. The first ``before`` opens the driver,
    which takes long on a machine with many GPUs, so it must be called in the process that measures.
    """

    def __init__(
        self,
        bus_ids: Sequence[str],
        files: Files | None = None,
        driver: Callable[[], Session] = opened,
    ) -> None:
        """bus_ids: PCI addresses as CUDA or HIP spell them; those of several ranks on one device once.

        files, driver: for tests, in place of this machine's.
        """
        self.bus_ids = tuple(dict.fromkeys(map(normal_address, bus_ids)))
        self._files = files or Files()
        self._driver = driver
        self._begun = False
        self._nvidia: NvidiaDevices | None = None
        self._amd: tuple[str, ...] = ()
        self._first: tuple[DeviceReading, ...] = ()
        self._last: tuple[DeviceReading, ...] = ()

    def before(self) -> None:
        """Look at the devices: a case begins."""
        if not self._begun:
            self._begin()
        self._first, self._last = self.read(), ()

    def ended(self) -> None:
        """Look again: the last sample is taken. For those who check the result before they ask for it all:
        devices cool while the host compares. Called again, it does nothing: checks may be many."""
        if self._first and not self._last:
            self._last = self.read()

    def after(self) -> tuple[str, tuple[str, ...]]:
        """(text of the column ``device_readings``, flags of the case); ("", ()) of no device.

        Looks again where ``ended`` has not.
        """
        first, last = self._first, self._last
        self._first, self._last = (), ()
        if first and not last:
            last = self.read()
        return readings_json(first, last), flags_of(first, last)

    def read(self) -> tuple[DeviceReading, ...]:
        """A look at every device, in the order of ``bus_ids``."""
        if not self._begun:
            self._begin()
        looks = {bus_id: look_at(self._files, bus_id) for bus_id in self._amd}
        if self._nvidia is not None:
            looks |= {one.bus_id: one for one in self._nvidia.read()}
        return tuple(looks[bus_id] for bus_id in self.bus_ids if bus_id in looks)

    def close(self) -> None:
        """Leave the driver; the watch may be begun again."""
        if self._nvidia is not None:
            self._nvidia.close()
        self._nvidia, self._amd, self._begun = None, (), False
        self._first, self._last = (), ()

    def _begin(self) -> None:
        self._begun = True
        self._amd = tuple(one for one in self.bus_ids if is_amd(self._files, one))
        others = [one for one in self.bus_ids if one not in self._amd]
        if others:
            try:
                self._nvidia = NvidiaDevices(self._driver(), others)
            except DriverAbsent:
                self._nvidia = None


def read_devices(
    bus_ids: Sequence[str], files: Files | None = None, driver: Callable[[], Session] = opened
) -> tuple[DeviceReading, ...]:
    """One look at the devices at these PCI addresses; those of no driver that answers are left out."""
    watch = DeviceWatch(bus_ids, files, driver)
    try:
        return watch.read()
    finally:
        watch.close()
