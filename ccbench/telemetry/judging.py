"""What two looks at the devices say about the figures taken between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ccbench.machine.flags import DEVICE_FLAGS, Flag
from ccbench.telemetry.readings import DeviceReading, readings_from_json

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


def flags_of(before: Sequence[DeviceReading], after: Sequence[DeviceReading]) -> tuple[Flag, ...]:
    """The flags of a case between two looks at its devices, in the order of DEVICE_FLAGS."""
    earlier = {one.device: one for one in before}
    found = {
        flag for one in after if one.device in earlier for flag in _flags_of_device(earlier[one.device], one)
    }
    return tuple(flag for flag in DEVICE_FLAGS if flag in found)


def telling(texts: Sequence[str]) -> str:
    """Of the texts of a case's visits the one that has most to flag, of several the last."""
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
