"""The PCIe tree of a Linux machine, read from ``/sys/bus/pci/devices``: who hangs below whom, how fast.

Each entry there leads to ``/sys/devices/pci<domain>:<bus>/<root port>/<upstream>/<downstream>/<device>``, so
the path itself is the tree. A function's speed and width are those of the link *above* it for devices and
upstream ports, and of the link *below* it for root and downstream ports.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ccbench.machine.files import Files
from ccbench.topology.pci import ADDRESS, normal_address

DEVICES = "/sys/bus/pci/devices"

NVIDIA, AMD, INTEL = 0x10DE, 0x1002, 0x8086
"""PCI vendor numbers (the PCI ID Repository, pci-ids.ucw.cz)."""

DISPLAY, ACCELERATOR = 0x03, 0x12
"""Base classes of GPUs (PCI Code and ID Assignment Specification)."""

_HOST_BRIDGE = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) GT/s(?: PCIe)?")

_PCI_TO_PCI = 0x0604
_EXTENDED_CAPABILITIES, _ACS_CAPABILITY = 0x100, 0x000D
_REQUEST_REDIRECT, _COMPLETION_REDIRECT = 0x04, 0x08
"""Bits of the ACS control register that send traffic between peers up to the root (PCI Express Base
Specification, Access Control Services; PCI_ACS_RR and PCI_ACS_CR of the Linux kernel's pci_regs.h)."""


@dataclass(frozen=True)
class Port:
    """Speed and width of one end of a PCIe link; None where the system does not say."""

    gigatransfers: float | None
    width: int | None


@dataclass(frozen=True)
class PciFunction:
    """One PCI function.

    bridges: addresses from the root port down to the bridge right above; empty for a device on the root bus.
    host_bridge: the root complex, such as ``pci0000:3a``. numa_node: -1 as the system says it.
    redirects: whether its ACS sends peer-to-peer traffic to the root; None where that cannot be read.
    virtual: whether it is a virtual function of another one.
    """

    address: str
    host_bridge: str
    bridges: tuple[str, ...]
    class_code: int
    vendor: int
    device: int
    numa_node: int | None
    current: Port
    maximum: Port
    redirects: bool | None
    virtual: bool

    @property
    def is_accelerator(self) -> bool:
        """Whether it is a GPU or the like, and not the picture of a management controller or a VM."""
        base = self.class_code >> 16
        if base == DISPLAY and self.vendor == INTEL:
            return bool(self.bridges)  # those on the root bus are built into the processor
        return base == ACCELERATOR or (base == DISPLAY and self.vendor in (NVIDIA, AMD))


def read_functions(files: Files) -> dict[str, PciFunction]:
    """Every PCI function by address; empty where ``/sys/bus/pci`` is not to be seen."""
    found = {}
    for entry in files.matching(DEVICES):
        class_code = files.number(f"{entry}/class")
        if class_code is None:
            continue
        address = normal_address(entry.rpartition("/")[2])
        folders = (files.target(entry) or entry).split("/")
        is_bridge = class_code >> 8 == _PCI_TO_PCI
        found[address] = PciFunction(
            address=address,
            host_bridge=next((folder for folder in folders if _HOST_BRIDGE.fullmatch(folder)), ""),
            bridges=tuple(normal_address(part) for part in folders[:-1] if ADDRESS.fullmatch(part)),
            class_code=class_code,
            vendor=files.number(f"{entry}/vendor") or 0,
            device=files.number(f"{entry}/device") or 0,
            numa_node=files.number(f"{entry}/numa_node"),
            current=_port(files, entry, "current"),
            maximum=_port(files, entry, "max"),
            redirects=redirects(files.content(f"{entry}/config")) if is_bridge else None,
            virtual=files.exists(f"{entry}/physfn"),
        )
    return found


def gpus_among(functions: Mapping[str, PciFunction]) -> list[PciFunction]:
    """NVIDIA's and AMD's GPUs."""
    return [one for one in functions.values() if one.is_accelerator and one.vendor in (NVIDIA, AMD)]


def _port(files: Files, entry: str, which: str) -> Port:
    speed = _SPEED.fullmatch(files.text(f"{entry}/{which}_link_speed") or "")
    width = files.number(f"{entry}/{which}_link_width")
    # A width of 0 or 255 is what the kernel reads from a device that does not say.
    return Port(float(speed[1]) if speed else None, width if width and 0 < width <= 32 else None)


def redirects(config: bytes) -> bool | None:
    """Whether ACS redirects requests or completions; None where the extended registers were not given.

    config: a function's configuration space, of which only a privileged reader sees more than 64 bytes.
    """
    if len(config) <= _EXTENDED_CAPABILITIES:
        return None
    at, seen = _EXTENDED_CAPABILITIES, set[int]()
    while at >= _EXTENDED_CAPABILITIES and at + 8 <= len(config) and at not in seen:
        seen.add(at)
        header = int.from_bytes(config[at : at + 4], "little")
        if header & 0xFFFF == _ACS_CAPABILITY:
            control = int.from_bytes(config[at + 6 : at + 8], "little")
            return bool(control & (_REQUEST_REDIRECT | _COMPLETION_REDIRECT))
        at = header >> 20
    return False


def nvidia_gpus(files: Files) -> list[PciFunction]:
    """NVIDIA's GPUs on the PCI bus, with a driver or without."""
    return [gpu for gpu in gpus_among(read_functions(files)) if gpu.vendor == NVIDIA]


def bridges_above(functions: Mapping[str, PciFunction], addresses: Iterable[str]) -> list[PciFunction]:
    """The bridges above the functions at ``addresses``, as far as they are to be seen."""
    above = {bridge for one in addresses if one in functions for bridge in functions[one].bridges}
    return [functions[bridge] for bridge in sorted(above) if bridge in functions]


def redirecting(bridges: Iterable[PciFunction]) -> list[str] | None:
    """Addresses of the bridges that send traffic between peers up to the root; None where none tells."""
    told = [one for one in bridges if one.redirects is not None]
    return [one.address for one in told if one.redirects] if told else None
