"""The PCIe tree of a Linux machine, read from ``/sys/bus/pci/devices``: who hangs below whom, how fast.

Each entry there leads to ``/sys/devices/pci<domain>:<bus>/<root port>/<upstream>/<downstream>/<device>``, so
the path itself is the tree. A function's speed and width are those of the link *above* it for devices and
upstream ports, and of the link *below* it for root and downstream ports.

Model names of accelerators by PCI vendor and device id, for sources that print no name.

Only ids that were seen beside their name: in what lspci -nn, nouveau's and vendors' own tables print in
public repositories, or in hwloc's files of such machines (15f9, 1db8). The list is short on purpose: an id
that is not listed has no name here, never a similar one.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ccbench.environment import Files

PCI_DEVICES = "/sys/bus/pci/devices"

_ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")
_HOST_BRIDGE = re.compile(r"pci[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}")
_SPEED = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?) GT/s(?: PCIe)?")

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

_ACS_CAPABILITY = 0x000D
_ACS_REDIRECT = 0b1100  # bits P2P Request Redirect and P2P Completion Redirect of the ACS control register


class DeviceFiles(Files):
    """``Files`` that can also follow links, below the same root."""

    def target(self, path: str) -> str | None:
        """Where ``path`` leads after all links, as the other methods take it; None when it leads nowhere."""
        root = os.path.realpath(self.root)
        try:
            real = os.path.realpath(Path(root) / path.lstrip("/"), strict=True)
        except OSError:
            return None
        return real[len(root.rstrip("/")) :] if real.startswith(root.rstrip("/") + "/") else None


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
    def is_bridge(self) -> bool:
        """Whether it is a PCI-to-PCI bridge: a root port or a port of a switch."""
        return self.class_code >> 8 == 0x0604


def normal_address(text: str) -> str:
    """``00000000:0A:00.0`` -> ``0000:0a:00.0``: how sysfs spells it; the text itself if it is no address."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None:
        return text.strip().lower()
    return f"{int(found[1], 16):04x}:{found[2].lower()}:{found[3].lower()}.{found[4]}"


def address_in(path: str) -> str | None:
    """The last PCI address among the folders of ``path``."""
    found = [part for part in path.split("/") if _ADDRESS.fullmatch(part)]
    return found[-1] if found else None


def bytes_per_second(gigatransfers: float | None, width: int | None) -> float | None:
    """What a PCIe link carries in one direction, line coding taken off; None where either is not known."""
    if gigatransfers is None or gigatransfers not in CODING or not width:
        return None
    return gigatransfers * 1e9 * CODING[gigatransfers] * width / 8


def read_functions(files: DeviceFiles) -> dict[str, PciFunction]:
    """Every PCI function by address; empty where ``/sys/bus/pci`` is not to be seen."""
    found = {}
    for entry in files.matching(PCI_DEVICES, "*"):
        function = _function(files, entry)
        if function is not None:
            found[function.address] = function
    return found


def _function(files: DeviceFiles, entry: str) -> PciFunction | None:
    address = normal_address(entry.rsplit("/", 1)[-1])
    folders = (files.target(entry) or entry).split("/")
    class_code = _hexadecimal(files, f"{entry}/class")
    if class_code is None:
        return None
    return PciFunction(
        address=address,
        host_bridge=next((folder for folder in folders if _HOST_BRIDGE.fullmatch(folder)), ""),
        bridges=tuple(normal_address(part) for part in folders[:-1] if _ADDRESS.fullmatch(part)),
        class_code=class_code,
        vendor=_hexadecimal(files, f"{entry}/vendor") or 0,
        device=_hexadecimal(files, f"{entry}/device") or 0,
        numa_node=files.number(f"{entry}/numa_node"),
        current=_port(files, entry, "current"),
        maximum=_port(files, entry, "max"),
        redirects=_redirects(files.content(f"{entry}/config")) if class_code >> 8 == 0x0604 else None,
        virtual=files.exists(f"{entry}/physfn"),
    )


def _hexadecimal(files: Files, path: str) -> int | None:
    text = files.text(path) or ""
    return int(text, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", text) else None


def _port(files: Files, entry: str, which: str) -> Port:
    speed = _SPEED.fullmatch(files.text(f"{entry}/{which}_link_speed") or "")
    width = files.number(f"{entry}/{which}_link_width")
    # A width of 0 or 255 is what the kernel reads from a device that does not say.
    return Port(float(speed[1]) if speed else None, width if width and 0 < width <= 32 else None)


def _redirects(config: bytes) -> bool | None:
    """Whether ACS redirects requests or completions; None where the extended registers were not given.

    Only a privileged reader sees more than the first 64 bytes of a function's configuration space.
    """
    if len(config) <= 0x100:
        return None
    for offset, kind in _extended_capabilities(config):
        if kind == _ACS_CAPABILITY and offset + 8 <= len(config):
            (control,) = struct.unpack_from("<H", config, offset + 6)
            return bool(control & _ACS_REDIRECT)
    return False


def _extended_capabilities(config: bytes) -> Iterator[tuple[int, int]]:
    offset, seen = 0x100, set[int]()
    while 0x100 <= offset <= len(config) - 4 and offset not in seen:
        seen.add(offset)
        (header,) = struct.unpack_from("<I", config, offset)
        if header in (0, 0xFFFFFFFF):
            return
        yield offset, header & 0xFFFF
        offset = header >> 20


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
