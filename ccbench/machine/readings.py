"""One look at one device, how two looks are kept in a row of a run, and the flags that they give."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ccbench.errors import RunFolderError
from ccbench.machine.flags import DEVICE_FLAGS, Flag
from ccbench.units import shown

SHARE_LIMIT = 0.01
"""Part of the time that clocks may be held back before a case is flagged; all differences of 1 % that a
comparison calls real would else be in doubt."""

CLOCK_DROP_LIMIT = 0.05
"""Part by which a clock may be lower after a case than before. GPUs step their clocks by 15 MHz or less,
about 1 %, with the temperature; 5 % is no such step."""

CLOCK_LOW_LIMIT = 0.10
"""Part by which the clock may be lower at the end of a case than the highest that was seen under load."""

THROTTLING = (
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "thermal",
)
"""Words of ``clock_reasons`` and ``held_back_seconds`` that mean heat or a failing supply, not a setting."""

CAPPING = ("sw_power_cap", "power", "board_limit")
IDLE = "gpu_idle"


@dataclass(frozen=True)
class LinkErrors:
    """Errors that one NVLink has counted since the driver was loaded: (what, how many), in a fixed order.

    What: replays, recoveries, crc (Hopper), crc_flits, crc_data (before Hopper), received_errors,
    effective_errors (Blackwell).
    """

    link: int
    counts: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class DeviceReading:
    """What a device said at one moment; None for what it does not tell.

    host: machine the device is in, "" where all are in one. at_seconds: time of the look, by a clock that
    only differences of mean anything on. reading_seconds, calls: what the look cost. trouble: why the device
    does not answer, such as a GPU that has fallen off the bus. performance_state: 0 is full speed.
    sm_clock_highest_mhz: highest that the process has seen while devices were made to work before a case.
    clock_reasons: why the clocks are not higher, words of ``telemetry.REASONS``. held_back_seconds: by
    reason, how long the clocks have been held back since the driver was loaded. energy_joules: since then,
    too. Counters of errors: *volatile* since the driver was loaded, *aggregate* over the device's life. xids:
    errors the driver reported of the device since the look before (numbers of NVIDIA's Xid catalog).
    pcie_replays: packets sent again.
    """

    bus_id: str
    vendor: str = ""
    model: str | None = None
    host: str = ""
    at_seconds: float = 0.0
    reading_seconds: float = 0.0
    calls: int = 0
    trouble: str | None = None
    performance_state: int | None = None
    sm_clock_mhz: int | None = None
    sm_clock_limit_mhz: int | None = None
    sm_clock_highest_mhz: int | None = None
    memory_clock_mhz: int | None = None
    memory_clock_limit_mhz: int | None = None
    clock_reasons: tuple[str, ...] | None = None
    held_back_seconds: Mapping[str, float] = field(default_factory=dict)
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    temperature_celsius: float | None = None
    memory_temperature_celsius: float | None = None
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    links: tuple[LinkErrors, ...] = ()
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    xids: tuple[int, ...] = ()

    @property
    def device(self) -> tuple[str, str]:
        """What tells the device from all others of a team."""
        return self.host, self.bus_id


_OF_THE_DEVICE = ("bus_id", "vendor", "model", "host")


def readings_json(before: Sequence[DeviceReading], after: Sequence[DeviceReading]) -> str:
    """The looks before and after a case as the text of the column ``device_readings``; "" for none.

    A list with one object per device: ``bus_id``, ``vendor``, ``model``, ``before``, ``after``, and
    ``host`` where there are several; what the device does not tell is left out, and so are error counts of
    links that are 0.
    """
    earlier = {one.device: one for one in before}
    later = {one.device: one for one in after}
    devices = []
    for device in dict.fromkeys([*earlier, *later]):
        first, last = earlier.get(device), later.get(device)
        either = last or first
        entry: dict[str, Any] = {name: getattr(either, name) for name in _OF_THE_DEVICE}
        if not entry["host"]:
            del entry["host"]
        devices.append(entry | {"before": _plain(first), "after": _plain(last)})
    return json.dumps(devices, separators=(",", ":")) if devices else ""


def _plain(reading: DeviceReading | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    found: dict[str, Any] = {}
    for one in fields(reading):
        value = getattr(reading, one.name)
        if one.name in _OF_THE_DEVICE or value is None or value == () or value == {}:
            continue
        found[one.name] = value
    if reading.clock_reasons is not None:
        found["clock_reasons"] = list(reading.clock_reasons)
    if reading.links:
        found["links"] = {
            str(link.link): {what: count for what, count in link.counts if count} for link in reading.links
        }
    return found


def readings_from_json(text: str) -> tuple[tuple[DeviceReading, ...], tuple[DeviceReading, ...]]:
    """What ``readings_json`` wrote: the looks before and after; RunFolderError for any other text.

    Keys that this version does not know are left out, so that newer runs can be read.
    """
    if not text:
        return (), ()
    try:
        devices = json.loads(text)
        looks = [
            tuple(_reading(one, one[when]) for one in devices if one.get(when) is not None)
            for when in ("before", "after")
        ]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(
            f"device_readings: {shown(text)} is not a list of devices with 'before' and 'after' ({error}); "
            "write the case again"
        ) from None
    return looks[0], looks[1]


def _reading(device: Mapping[str, Any], look: Mapping[str, Any]) -> DeviceReading:
    known = {one.name for one in fields(DeviceReading)}
    found = {name: value for name, value in look.items() if name in known}
    for name in _OF_THE_DEVICE:
        found[name] = device.get(name, "") if name == "host" else device[name]
    for name in ("clock_reasons", "xids"):
        if name in found:
            found[name] = tuple(found[name])
    if "links" in found:
        found["links"] = tuple(
            LinkErrors(int(link), tuple(counts.items())) for link, counts in found["links"].items()
        )
    return DeviceReading(**found)


def joined(texts: Sequence[str], hosts: Sequence[str] = ()) -> str:
    """The text of all processes of a team: every device once, in the order of ``texts``.

    hosts: the machine of each process, where there are several.
    """
    several = len(set(hosts)) > 1
    found: dict[tuple[str, str], tuple[DeviceReading | None, DeviceReading | None]] = {}
    for place, text in enumerate(texts):
        host = hosts[place] if several else ""
        looks = [[replace(one, host=host) for one in when] for when in readings_from_json(text)]
        first, last = ({one.device: one for one in when} for when in looks)
        for device in (*first, *last):
            found.setdefault(device, (first.get(device), last.get(device)))
    before = [one for one, _ in found.values() if one is not None]
    after = [one for _, one in found.values() if one is not None]
    return readings_json(before, after)


def flags_of(before: Sequence[DeviceReading], after: Sequence[DeviceReading]) -> tuple[Flag, ...]:
    """The flags of a case between two looks at its devices, in the order of DEVICE_FLAGS."""
    earlier = {one.device: one for one in before}
    found = {
        flag for one in after if one.device in earlier for flag in _flags_of_device(earlier[one.device], one)
    }
    return tuple(flag for flag in DEVICE_FLAGS if flag in found)


def telling(texts: Sequence[str]) -> str:
    """Of the texts of a case's rounds the one that has most to flag, of several the last."""
    return max(reversed(texts), key=lambda text: len(flags_of(*readings_from_json(text))), default="")


def _flags_of_device(before: DeviceReading, after: DeviceReading) -> Iterator[Flag]:
    if after.trouble is not None and before.trouble is None:
        yield Flag.DEVICE_LOST
    if _held_back(before, after, THROTTLING):
        yield Flag.THROTTLED
    if _held_back(before, after, CAPPING):
        yield Flag.POWER_CAPPED
    if _dropped(before, after):
        yield Flag.CLOCK_DROPPED
    if _low(after):
        yield Flag.CLOCK_LOW
    if _rose(before.ecc_corrected_volatile, after.ecc_corrected_volatile) or _rose(
        before.ecc_uncorrected_volatile, after.ecc_uncorrected_volatile
    ):
        yield Flag.ECC_ERRORS
    if _link_errors(before, after):
        yield Flag.LINK_ERRORS
    if after.xids:
        yield Flag.DEVICE_ERRORS


def _held_back(before: DeviceReading, after: DeviceReading, reasons: Sequence[str]) -> bool:
    if any(reason in (look.clock_reasons or ()) for look in (before, after) for reason in reasons):
        return True
    watched = after.at_seconds - before.at_seconds
    for reason in reasons:
        if reason in before.held_back_seconds and reason in after.held_back_seconds:
            held = after.held_back_seconds[reason] - before.held_back_seconds[reason]
            if watched > 0 and held / watched > SHARE_LIMIT:
                return True
    return False


def _dropped(before: DeviceReading, after: DeviceReading) -> bool:
    if IDLE in (after.clock_reasons or ()):
        return False  # the case is over, and the clocks rest
    pairs = (
        (before.sm_clock_mhz, after.sm_clock_mhz),
        (before.memory_clock_mhz, after.memory_clock_mhz),
    )
    return any(
        first is not None and last is not None and last < (1 - CLOCK_DROP_LIMIT) * first
        for first, last in pairs
    )


def _low(after: DeviceReading) -> bool:
    last, highest = after.sm_clock_mhz, after.sm_clock_highest_mhz
    if last is None or highest is None or IDLE in (after.clock_reasons or ()):
        return False
    return last < (1 - CLOCK_LOW_LIMIT) * highest


def _rose(before: int | None, after: int | None) -> bool:
    """A counter that fell was reset, with the driver: nothing is known of it."""
    return before is not None and after is not None and after > before


def _link_errors(before: DeviceReading, after: DeviceReading) -> bool:
    earlier = {link.link: dict(link.counts) for link in before.links}
    for link in after.links:
        if link.link not in earlier:
            continue
        known = earlier[link.link]
        # A count that is left out is 0, as in the text of a run.
        if any(_rose(known.get(what, 0), count) for what, count in link.counts):
            return True
    if after.trouble is None and len(after.links) < len(before.links):
        return True  # a link went down
    lanes_lost = _rose(after.pcie_width, before.pcie_width)
    return lanes_lost or _rose(before.pcie_replays, after.pcie_replays)
