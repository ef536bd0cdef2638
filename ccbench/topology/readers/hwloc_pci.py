"""What a PCI device in hwloc's output is: GPU, NVSwitch, network card, or nothing ccbench looks at."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ccbench.topology.graph import DeviceKind

NVIDIA = "10de"
AMD = "1002"
INTEL = "8086"

SLOWEST_GPU_GIGABYTES_PER_SECOND = 1.0
"""Below, an AMD "VGA" device is the management console's chip of a server board, not a GPU."""

_TYPE = re.compile(r"([0-9a-fA-F]{4}) \[([0-9a-fA-F]{4}):([0-9a-fA-F]{4})\]")
_COMPUTE = re.compile(r"(?:nvml|cuda|rsmi|hip|ze|levelzero)\d")


def parse_type(text: str) -> tuple[str, str, str]:
    """Class, vendor and device, in small hexadecimal digits, of hwloc's ``0302 [10de:1db8] [...]``; empty
    where the text is not one."""
    found = _TYPE.match(text[:40])
    return (found[1].lower(), found[2].lower(), found[3].lower()) if found else ("", "", "")


def kind_of(
    pci_class: str,
    vendor: str,
    subtype: str,
    names: Iterable[str],
    gigabytes_per_second: float | None,
) -> DeviceKind | None:
    """What a device is, by its class (``0302``), its vendor, hwloc's subtype and its operating system names.

    PCI classes (PCI Code and ID Assignment Specification): 02 network, 0300 VGA, 0302 3D controller, 0380
    other display, 0680 other bridge, 12 processing accelerator.
    """
    if subtype == "NVSwitch" or (pci_class == "0680" and vendor == NVIDIA):
        return DeviceKind.NVSWITCH
    if pci_class.startswith("02"):
        return DeviceKind.NIC
    if any(_COMPUTE.match(name) for name in names):
        return DeviceKind.GPU
    if pci_class.startswith("12") or pci_class == "0302" or (pci_class == "0300" and vendor == NVIDIA):
        return DeviceKind.GPU
    if pci_class == "0380" and vendor in {NVIDIA, AMD, INTEL}:
        return DeviceKind.GPU
    fast = (gigabytes_per_second or 0.0) > SLOWEST_GPU_GIGABYTES_PER_SECOND
    return DeviceKind.GPU if pci_class == "0300" and vendor == AMD and fast else None
