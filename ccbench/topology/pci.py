"""Meaning of PCI addresses, generations and device ids, wherever they are printed.

Model names of accelerators by PCI vendor and device id, for sources that print no name: only ids that were
seen beside their name, in what lspci -nn, nouveau's and vendors' own tables print in public repositories, or
in hwloc's files of such machines (15f9, 1db8). The list is short on purpose: an id that is not listed has no
name here, never a similar one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ccbench.topology.graph import Device

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


GENERATIONS: Mapping[float, int] = {speed: index + 1 for index, speed in enumerate(sorted(CODING))}
"""GT/s -> PCIe generation."""


def normal_address(text: str) -> str:
    """``00000000:0A:00.0`` -> ``0000:0a:00.0``: how sysfs spells it; the text itself if it is no address."""
    found = ADDRESS.fullmatch(text.strip())
    if found is None:
        return text.strip().lower()
    # Some tools pad the domain to eight digits; sysfs has four.
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}.{found[4]}"


def card_count(devices: Iterable[Device]) -> int:
    """Return how many cards ``devices`` are: those at one address, whatever their function, are one.

    Devices without an address (bonded, virtual and container interfaces) are none.
    """
    # The digit behind the dot is the function of a card.
    return len({(one.node, one.bus_id.rpartition(".")[0]) for one in devices if "." in one.bus_id})


def bytes_per_second(gigatransfers: float | None, width: int | None) -> float | None:
    """Return the rate of a PCIe link in one direction, less its coding; None where either is not known."""
    if gigatransfers is None or gigatransfers not in CODING or not width:
        return None
    return gigatransfers * 1e9 * CODING[gigatransfers] * width / 8


NVIDIA, AMD = "0x10de", "0x1002"

MODELS: Mapping[tuple[str, str], str] = {
    (NVIDIA, "0x15f7"): "Tesla P100-PCIE-12GB",
    (NVIDIA, "0x15f8"): "Tesla P100-PCIE-16GB",
    (NVIDIA, "0x15f9"): "Tesla P100-SXM2-16GB",
    (NVIDIA, "0x1db1"): "Tesla V100-SXM2-16GB",
    (NVIDIA, "0x1db6"): "Tesla V100-PCIE-32GB",
    (NVIDIA, "0x1db8"): "Tesla V100-SXM3-32GB",
    (NVIDIA, "0x1eb8"): "Tesla T4",
    (NVIDIA, "0x20b0"): "A100-SXM4-40GB",
    (NVIDIA, "0x20b2"): "A100-SXM4-80GB",
    (NVIDIA, "0x20b5"): "A100 80GB PCIe",
    (NVIDIA, "0x2204"): "GeForce RTX 3090",
    (NVIDIA, "0x2330"): "H100 80GB SXM5",
    (NVIDIA, "0x2331"): "H100 PCIe",
    (NVIDIA, "0x2684"): "GeForce RTX 4090",
    (NVIDIA, "0x26b9"): "L40S",
    (NVIDIA, "0x2901"): "B200",
    (NVIDIA, "0x2b85"): "GeForce RTX 5090",
    (AMD, "0x738c"): "Instinct MI100",
    (AMD, "0x7408"): "Instinct MI250X",
    (AMD, "0x740c"): "Instinct MI250X/MI250",
    (AMD, "0x740f"): "Instinct MI210",
    (AMD, "0x74a1"): "Instinct MI300X",
}
"""(vendor, device) -> name."""


def model_of(vendor: str, device: str) -> str | None:
    """The name of a device with these ids as files print them (``0x10de``); None when it is not listed."""
    return MODELS.get((vendor.strip().lower(), device.strip().lower()))
