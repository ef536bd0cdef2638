"""Rates of the links that NCCL's and RCCL's topology files name but do not put a number on.

All are datasheet rates in bytes per second of one link in one direction; the lower constants with which NCCL
and RCCL search are what their protocols reach, not what the link is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ccbench.topology.nvlink_rates import OF_CAPABILITY
from ccbench.topology.pci_tree import CODING

XGMI: Mapping[str, tuple[float, str]] = {
    "gfx906": (24e9, "RCCL's constant for Vega, an effective rate"),
    "gfx908": (46e9, "23 GT/s x 16 lanes, ROCm documentation of the MI100"),
    "gfx90a": (50e9, "25 GT/s x 16 lanes, ROCm documentation of the MI250"),
    "gfx94": (64e9, "32 GT/s x 16 lanes: Linux, amdgpu_xgmi.h"),
    "gfx95": (76.8e9, "assumed: half of the 153.6 GB/s both ways that is told of the MI350X"),
}
"""Architecture, or how its name begins -> one xGMI link and where that is from. ROCm/rccl, src/graph/topo.h
searches with 24 (Vega), 36 (gfx90a) and 48 GB/s (gfx94x, gfx95x)."""

_OLD_NAMES = {"910": "gfx90a"}  # RCCL wrote the decimal version of the architecture until it wrote the name

ACCEPTED = frozenset(
    {f"{speed} GT/s" for speed in ("2.5", "5", "8", "16", "32")}
    | {f"{speed} GT/s PCIe" for speed in ("2.5", "5.0", "8.0", "16.0", "32.0", "64.0")}
)
"""Spellings that NCCL reads (kvDictPciGen in src/graph/topo.cc); it takes any other for 8 GT/s."""

GENERATIONS: Mapping[float, int] = {speed: index + 1 for index, speed in enumerate(sorted(CODING))}
"""GT/s -> PCIe generation."""

_SPEED = re.compile(r"\s*([0-9]{1,3}(?:\.[0-9]{1,3})?)\s*GT/s", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class PcieLink:
    """The link above a PCI device as its file prints it.

    gigatransfers: per second and lane; None where not stated. width: lanes; None where not stated.
    """

    speed_printed: str
    width_printed: str
    gigatransfers: float | None
    width: int | None

    @property
    def bytes_per_second(self) -> float | None:
        """One direction, after coding; None where speed or width is missing."""
        if self.gigatransfers is None or self.width is None:
            return None
        return self.gigatransfers * 1e9 * self.width / 8 * CODING[self.gigatransfers]

    @property
    def origin(self) -> str:
        """Where the rate is from."""
        if self.bytes_per_second is None:
            return "speed or width not stated"
        return f"stated: {self.speed_printed} x{self.width_printed}, less the coding"


def pcie_link(attributes: Mapping[str, str]) -> PcieLink:
    """Speed and width of a ``<pci>``; a width of 0 and a speed no PCIe has are as good as not stated."""
    speed, width = attributes.get("link_speed", ""), attributes.get("link_width", "")
    match = _SPEED.match(speed)
    value = float(match[1]) if match else None
    lanes = int(width) if re.fullmatch(r"[0-9]{1,2}", width, re.ASCII) else 0
    return PcieLink(speed, width, value if value in CODING else None, lanes if 1 <= lanes <= 32 else None)


def nvlink_rate(sm: str) -> tuple[float | None, str]:
    """Bytes per second of one NVLink of a GPU with ``sm`` as the file prints it, and its origin."""
    rate = OF_CAPABILITY.get(int(sm)) if re.fullmatch(r"[0-9]{2,3}", sm, re.ASCII) else None
    if rate is None:
        return None, "rate not stated"
    return rate, f"datasheet rate of one NVLink at compute capability {int(sm) / 10:.1f}"


def xgmi_rate(gcn: str) -> tuple[float | None, str]:
    """Bytes per second of one xGMI link of a GPU with ``gcn`` (``gfx942``, ``910``), and its origin."""
    name = _OLD_NAMES.get(gcn, gcn if gcn.startswith("gfx") else f"gfx{gcn}")
    for beginning, (rate, origin) in XGMI.items():
        if name.startswith(beginning):
            return rate, origin
    return None, "rate not stated"
