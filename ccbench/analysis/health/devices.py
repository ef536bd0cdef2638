"""Which devices are behind the flags of cases, by their own readings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from ccbench.errors import RunFolderError
from ccbench.machine.flags import DEVICE_FLAGS
from ccbench.machine.readings import flags_of, readings_from_json

UNNAMED = "a device"
"""What a flag is laid to where no reading tells whose it is."""


def flagged_devices(
    cases: Iterable[tuple[Collection[str], str]], flags: Collection[str] = DEVICE_FLAGS
) -> list[tuple[str, str, int]]:
    """(flag, device, number of cases), the most frequent first.

    cases: of each its flags and the text of its readings. flags: those that count.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for found, readings in cases:
        for flag in set(found) & set(flags):
            counts.update((flag, device) for device in devices_with(readings, flag) or [UNNAMED])
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(flag, device, count) for (flag, device), count in ordered]


def devices_with(readings: str, flag: str) -> list[str]:
    """Host, bus id and model of the devices that gave ``flag``; nothing where the readings do not tell."""
    try:
        before, after = readings_from_json(readings)
    except RunFolderError:
        return []
    later = {one.device: one for one in after}
    return [
        " ".join(word for word in (*one.device, one.model) if word)
        for one in before
        if one.device in later and flag in flags_of((one,), (later[one.device],))
    ]
