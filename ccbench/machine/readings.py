"""Load of the machine and looks at its devices beside a case, and the flags by which they put it in doubt."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ccbench.cases.measurement import Conditions
from ccbench.columns import merge
from ccbench.errors import RunFolderError
from ccbench.flags import DEVICE_FLAGS, LOAD_FLAGS, Flag
from ccbench.machine.files import Files
from ccbench.machine.host import siblings
from ccbench.units import shown

FOREIGN_CPU_LIMIT = 0.10
STEAL_LIMIT = 0.05
CORE_LATENCY_RATIO_LIMIT = 2.0
"""Beyond these a case is flagged. On virtual machines the distance between two cores changes by a factor of
four when the hypervisor moves one, which changes a 1 MiB all_reduce by up to six."""


MEDIAN, QUARTILE = 1 / 2, 1 / 4
"""Shares of samples that must be undisturbed, so that their median or lower quartile is."""

TICKS_NEEDED = 10
"""Clock ticks, over all processors, below which load is not judged."""


CLOCK_SPEED_LIMIT = 0.10
"""Far more than clocks are slewed by (500 ppm, adjtimex(2)) and than a tick is of WATCHED_SECONDS."""

WATCHED_SECONDS = 1.0

OLDEST_DATE_SECONDS = 1_735_689_600.0
"""2025-01-01 UTC: no release of ccbench is older."""

LATE_SECONDS = 86_400.0
"""Seconds by which files may be of the future: local time taken for UTC when they were packed."""


class ClockWatch:
    """The clock that times samples beside the kernel's uptime, which no library can change for a process."""

    def __init__(self, files: Files | None = None) -> None:
        self._files = files or Files()
        self._last = self._look()
        self._is_off = False

    def _look(self) -> tuple[float, float] | None:
        """Return (uptime, clock) in seconds, None where the system has no /proc/uptime."""
        words = (self._files.text("/proc/uptime") or "").split()
        return (float(words[0]), time.perf_counter()) if words else None

    def flags(self) -> tuple[Flag, ...]:
        """Return CLOCK_WRONG where speed or date are; the speed is that of the last second or longer."""
        now = self._look()
        if now and self._last and now[0] - self._last[0] >= WATCHED_SECONDS:
            speed = (now[1] - self._last[1]) / (now[0] - self._last[0])
            self._is_off, self._last = abs(speed - 1) > CLOCK_SPEED_LIMIT, now
        newest = max(OLDEST_DATE_SECONDS, Path(__file__).stat().st_mtime - LATE_SECONDS)
        return (Flag.CLOCK_WRONG,) if self._is_off or time.time() < newest else ()


@dataclass(frozen=True)
class CpuTimes:
    """Seconds summed over all processors since boot."""

    busy_seconds: float
    steal_seconds: float
    total_seconds: float


def read_cpu_times(files: Files | None = None) -> CpuTimes | None:
    """Return the machine's processor times, None where the system has no /proc/stat."""
    first = (files or Files()).content("/proc/stat", 256).split(b"\n")[0].split()
    # Guests' time (the two words after these eight) is part of user and nice (proc_stat(5)).
    ticks = [int(word) for word in first[1:9] if word.isdigit()]
    if len(ticks) < 8:
        return None
    user, nice, system, idle, iowait, irq, softirq, steal = ticks
    busy = user + nice + system + irq + softirq
    second = os.sysconf("SC_CLK_TCK")
    return CpuTimes(busy / second, steal / second, (busy + idle + iowait + steal) / second)


def queued_seconds(files: Files | None = None) -> float | None:
    """Return the time that this process's first thread has waited for a processor while it could run.

    Stopped and sleeping threads do not wait for one (Linux, Documentation/scheduler/sched-stats.rst). None
    where the system does not tell.
    """
    words = (files or Files()).content("/proc/self/schedstat").split()
    return int(words[1]) / 1e9 if len(words) > 1 and words[1].isdigit() else None


def watched(before: CpuTimes, after: CpuTimes, own_cpu_seconds: float) -> Conditions:
    """Return the load on the processors between two readings besides ``own_cpu_seconds`` of ours."""
    total = after.total_seconds - before.total_seconds
    if total <= 0:
        return Conditions()
    # Ours are among the busy ones; what is left is other programs'.
    foreign = after.busy_seconds - before.busy_seconds - own_cpu_seconds
    steal = after.steal_seconds - before.steal_seconds
    return Conditions(
        other_cpu_share=foreign / total, steal_share=steal / total, watched_cpu_seconds=total
    )


def contention_limit(processors: int) -> float:
    """Return the share of others up to which half of the samples are undisturbed.

    A sample that needs ``processors`` at once is undisturbed where others use none of them: with a share of
    s in (1 - s) ^ processors of all samples. Others that come and go count as if independent.
    """
    return max(FOREIGN_CPU_LIMIT, 1 - math.exp(math.log(0.5) / max(processors, 1)))


def worst_of_hosts(hosts: Sequence[Conditions]) -> Conditions:
    """Return the conditions of several hosts as those of one, the first's with the largest shares of all."""

    def largest(name: str) -> float | None:
        shares = (getattr(host, name) for host in hosts)
        return max((share for share in shares if share is not None), default=None)

    return replace(
        hosts[0],
        other_cpu_share=largest("other_cpu_share"),
        steal_share=largest("steal_share"),
        watched_cpu_seconds=max(host.watched_cpu_seconds for host in hosts),
    )


def over_all(before: Conditions, now: Conditions) -> Conditions:
    """Return the conditions of two rounds as those of one: shares over both, all flags."""
    seconds = before.watched_cpu_seconds + now.watched_cpu_seconds

    def share(earlier: float | None, newest: float | None) -> float | None:
        if earlier is None or newest is None or seconds == 0:
            return newest if earlier is None else earlier
        return (
            earlier * before.watched_cpu_seconds + newest * now.watched_cpu_seconds
        ) / seconds

    # Flags of load are judged anew over both; a flag of either round stays.
    moved = [flag for flag in (*before.flags, *now.flags) if flag not in LOAD_FLAGS]
    both = merge(before, now, {"share": share})
    return replace(both, flags=tuple(dict.fromkeys((*_load_flags(both), *moved))))


def flagged(conditions: Conditions) -> Conditions:
    """Return the conditions of one round with their flags."""
    flags = list(_load_flags(conditions))
    before, after = (
        conditions.core_latency_before_seconds,
        conditions.core_latency_after_seconds,
    )
    if (
        before
        and after
        and not 1 / CORE_LATENCY_RATIO_LIMIT <= after / before <= CORE_LATENCY_RATIO_LIMIT
    ):
        flags.append(Flag.CORE_DISTANCE_CHANGED)
    if conditions.oversubscribed:
        flags.append(Flag.OVERSUBSCRIBED)
    if share_a_core(conditions.binding):
        flags.append(Flag.SHARED_CORE)
    return replace(conditions, flags=tuple(flags))


@lru_cache(maxsize=64)
def share_a_core(binding: tuple[int, ...], files: Files | None = None) -> bool:
    """Return True if two of these processors are hardware threads of one core and share its units.

    binding: the processor of each rank; two ranks on one processor are something else, ``oversubscribed``.
    What the system does not tell is not judged.
    """
    processors = set(binding)
    return any(
        (set(siblings(files or Files(), cpu)) - {cpu}) & processors for cpu in processors
    )


def _load_flags(conditions: Conditions) -> Iterator[Flag]:
    if conditions.watched_cpu_seconds < TICKS_NEEDED / os.sysconf("SC_CLK_TCK"):
        return
    if (
        conditions.other_cpu_share is not None
        and conditions.other_cpu_share > FOREIGN_CPU_LIMIT
    ):
        yield Flag.OTHER_LOAD
    if conditions.steal_share is not None and conditions.steal_share > STEAL_LIMIT:
        yield Flag.STEAL
    # A rank that is bound waits for its processor; one that is not moves to another that is free.
    taken = (conditions.other_cpu_share or 0.0) + (conditions.steal_share or 0.0)
    if taken > contention_limit(len(set(conditions.binding))):
        yield Flag.CPU_CONTENTION


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
class DeviceReading:
    """Answers of a device at one moment; None for what it does not tell.

    host: machine the device is in, "" where all are in one. at_seconds: time of the look, by a clock that
    only differences of mean anything on. trouble: why the device
    does not answer, such as a GPU that has fallen off the bus. performance_state: 0 is full speed.
    sm_clock_highest_mhz: highest that the process has seen while devices were made to work before a case.
    clock_reasons: why the clocks are not higher, words of ``telemetry.REASONS``. held_back_seconds: by
    reason, how long the clocks have been held back since the driver was loaded. energy_joules: since then,
    too. Counters of errors: *volatile* since the driver was loaded. xids:
    errors the driver reported of the device since the look before (numbers of NVIDIA's Xid catalog).
    pcie_replays: packets sent again. links: errors that each NVLink has counted since the driver was loaded:
    replays, recoveries, crc (Hopper), crc_flits, crc_data (before Hopper), received_errors, effective_errors
    (Blackwell).
    """

    bus_id: str
    vendor: str = ""
    model: str | None = None
    host: str = ""
    at_seconds: float = 0.0
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
    ecc_corrected_volatile: int | None = None
    ecc_uncorrected_volatile: int | None = None
    links: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    pcie_replays: int | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    xids: tuple[int, ...] = ()

    @property
    def device(self) -> tuple[str, str]:
        """Host and PCI address, which tell the device from all others of a team."""
        return self.host, self.bus_id


_OF_THE_DEVICE = ("bus_id", "vendor", "model", "host")


def readings_json(before: Sequence[DeviceReading], after: Sequence[DeviceReading]) -> str:
    """Return the looks before and after a case as the text of the column ``device_readings``; "" for none.

    A list with one object per device: ``bus_id``, ``vendor``, ``model``, ``before``, ``after``, and
    ``host`` where there are several; what the device does not tell is left out, and so are error counts of
    links that are 0.
    """
    # A device that was lost, or came back, has a look on one side only.
    earlier = {look.device: look for look in before}
    later = {look.device: look for look in after}
    devices = []
    for device in dict.fromkeys([*earlier, *later]):
        first, last = earlier.get(device), later.get(device)
        either = last or first
        entry: dict[str, Any] = {name: getattr(either, name) for name in _OF_THE_DEVICE}
        if not entry["host"]:
            del entry["host"]
        devices.append(entry | {"before": _plain(first), "after": _plain(last)})
    return _text(devices)


def _plain(reading: DeviceReading | None) -> dict[str, Any] | None:
    if reading is None:
        return None
    counts = {
        link: {what: n for what, n in errors.items() if n}
        for link, errors in reading.links.items()
    }
    return {
        name: value
        for name, value in asdict(replace(reading, links=counts)).items()
        # No reason for low clocks is an answer; any other empty value means that there was none.
        if name not in _OF_THE_DEVICE
        and value is not None
        and (name == "clock_reasons" or value not in ((), {}))
    }


def readings_from_json(
    text: str,
) -> tuple[tuple[DeviceReading, ...], tuple[DeviceReading, ...]]:
    """Return the looks before and after that ``readings_json`` wrote; RunFolderError for any other text.

    Keys that this version does not know are left out, so that newer runs can be read.
    """
    if not text:
        return (), ()

    names = {field.name for field in fields(DeviceReading)}

    def reading(told: Mapping[str, Any]) -> DeviceReading:
        values = {name: value for name, value in told.items() if name in names}
        for name in {"clock_reasons", "xids"} & values.keys():
            values[name] = tuple(values[name])
        # JSON has no numbers for keys.
        links = values.get("links", {}).items()
        values["links"] = {
            int(link): {what: int(n) for what, n in counts.items() if n is not None}
            for link, counts in links
        }
        return DeviceReading(**values)

    try:
        devices = json.loads(text)
        before, after = (
            tuple(
                reading(device | device[when])
                for device in devices
                if device.get(when) is not None
            )
            for when in ("before", "after")
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunFolderError(
            f"device_readings: {shown(text)} is not a list of devices with 'before' and 'after' ({error}); "
            "write the case again"
        ) from None
    return before, after


def joined(texts: Sequence[str], hosts: Sequence[str] = ()) -> str:
    """Return the text of all processes of a team: every device once, in the order of ``texts``.

    hosts: the machine of each process, where there are several.
    """
    several = len(set(hosts)) > 1
    by_device: dict[tuple[str, str], dict[str, Any]] = {}
    for place, text in enumerate(texts):
        host = hosts[place] if several else ""
        for device in json.loads(text) if text else ():
            by_device.setdefault(
                (host, device["bus_id"]), device | ({"host": host} if several else {})
            )
    return _text(list(by_device.values()))


def _text(devices: Sequence[Mapping[str, Any]]) -> str:
    return json.dumps(devices, separators=(",", ":")) if devices else ""


def flags_of(
    before: Sequence[DeviceReading], after: Sequence[DeviceReading]
) -> tuple[Flag, ...]:
    """Return the flags of a case between two looks at its devices, in the order of DEVICE_FLAGS."""
    earlier = {look.device: look for look in before}
    pairs = [(earlier[last.device], last) for last in after if last.device in earlier]
    return tuple(
        flag
        for flag in DEVICE_FLAGS
        if any(_RAISED[flag](first, last) for first, last in pairs)
    )


def telling(texts: Sequence[str]) -> str:
    """Return the text of a case's rounds that has most to flag, of several the last."""
    return max(
        reversed(texts), key=lambda text: len(flags_of(*readings_from_json(text))), default=""
    )


def _fell(before: int | None, after: int | None, part: float) -> bool:
    return before is not None and after is not None and after < (1 - part) * before


def _rose(before: int | None, after: int | None) -> bool:
    # A counter that fell was reset, with the driver: nothing is known of it.
    return before is not None and after is not None and after > before


def _held_back(before: DeviceReading, after: DeviceReading, reasons: Sequence[str]) -> bool:
    if any(
        reason in (look.clock_reasons or ()) for look in (before, after) for reason in reasons
    ):
        return True
    watched = after.at_seconds - before.at_seconds
    first, last = before.held_back_seconds, after.held_back_seconds
    held = (
        last[reason] - first[reason] for reason in reasons if reason in first and reason in last
    )
    return watched > 0 and any(seconds / watched > SHARE_LIMIT for seconds in held)


def _link_errors(before: DeviceReading, after: DeviceReading) -> bool:
    counted = any(
        # A count that is left out is 0, as in the text of a run.
        count > before.links[link].get(what, 0)
        for link, counts in after.links.items()
        if link in before.links
        for what, count in counts.items()
    )
    went_down = after.trouble is None and len(after.links) < len(before.links)
    lanes_lost = _rose(after.pcie_width, before.pcie_width)
    return counted or went_down or lanes_lost or _rose(before.pcie_replays, after.pcie_replays)


_RAISED: Mapping[Flag, Callable[[DeviceReading, DeviceReading], bool]] = {
    Flag.DEVICE_LOST: lambda before, after: (
        after.trouble is not None and before.trouble is None
    ),
    Flag.THROTTLED: lambda before, after: _held_back(before, after, THROTTLING),
    Flag.POWER_CAPPED: lambda before, after: _held_back(before, after, CAPPING),
    # When the case is over the clocks rest: then their fall says nothing.
    Flag.CLOCK_DROPPED: lambda before, after: (
        IDLE not in (after.clock_reasons or ())
        and (
            _fell(before.sm_clock_mhz, after.sm_clock_mhz, CLOCK_DROP_LIMIT)
            or _fell(before.memory_clock_mhz, after.memory_clock_mhz, CLOCK_DROP_LIMIT)
        )
    ),
    Flag.CLOCK_LOW: lambda _, after: (
        IDLE not in (after.clock_reasons or ())
        and _fell(after.sm_clock_highest_mhz, after.sm_clock_mhz, CLOCK_LOW_LIMIT)
    ),
    Flag.ECC_ERRORS: lambda before, after: (
        _rose(before.ecc_corrected_volatile, after.ecc_corrected_volatile)
        or _rose(before.ecc_uncorrected_volatile, after.ecc_uncorrected_volatile)
    ),
    Flag.LINK_ERRORS: _link_errors,
    Flag.DEVICE_ERRORS: lambda before, after: bool(after.xids),
}
"""Flag -> the looks before and after that raise it."""
