"""PCI: addresses, rates of links, and model names by vendor and device id.

Model names are for sources that print no name: only ids that were seen beside their name, in what lspci -nn,
nouveau's and vendors' own tables print in public repositories, or in hwloc's files of such machines (15f9,
1db8). The list is short on purpose: an id that is not listed has no name here, never a similar one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ccbench.documents import read_installed

ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")

CODING: Mapping[float, float] = {
    2.5: 8 / 10,
    5.0: 8 / 10,
    8.0: 128 / 130,
    16.0: 128 / 130,
    32.0: 128 / 130,
    64.0: 242 / 256,
}
"""GT/s of each generation -> share of the bits that are data: 8b/10b, 128b/130b, and 242 of 256 bytes of a
PCIe 6.0 flit (PCI Express Base Specification 1.1, 3.0 and 6.0)."""


GENERATIONS: Mapping[float, int] = {
    speed: index + 1 for index, speed in enumerate(sorted(CODING))
}
"""GT/s -> PCIe generation."""


def normal_address(text: str) -> str:
    """``00000000:0A:00.0`` -> ``0000:0a:00.0``: how sysfs spells it; the text itself if it is no address."""
    match = ADDRESS.fullmatch(text.strip())
    if match is None:
        return text.strip().lower()
    # Some tools pad the domain to eight digits; sysfs has four.
    return f"{int(match[1], 16):04x}:{match[2].lower()}:{match[3].lower()}.{match[4]}"


def bytes_per_second(gigatransfers: float | None, width: int | None) -> float | None:
    """Return the rate of a PCIe link in one direction, less its coding; None where either is not known."""
    if gigatransfers is None or gigatransfers not in CODING or not width:
        return None
    return gigatransfers * 1e9 * CODING[gigatransfers] * width / 8


MODELS = Path(__file__).with_name("models.yaml")
"""Vendor -> device -> name."""


def model_of(vendor: str, device: str) -> str | None:
    """The name of a device with these ids as files print them (``0x10de``); None when it is not listed."""
    models: dict[str, dict[str, str]] = read_installed(MODELS)
    return models.get(vendor.strip().lower(), {}).get(device.strip().lower())
