"""What the name of an accelerator says to the model: its generation, its NVLinks, its PCIe port.

Rates of links are topology's (nvlink_rates, nccl_rates, pci_tree); the number of links on boards is too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ccbench.model.library.system import Generation
from ccbench.topology.models import nvlinks_of_model
from ccbench.topology.nvlink_rates import OF_CAPABILITY
from ccbench.topology.pci_tree import CODING
from ccbench.topology.readers.nccl_rates import GENERATIONS, XGMI

_NAMES: tuple[tuple[Generation, str], ...] = (
    (Generation.PASCAL, r"(?:P100|P40|P4|GTX 10[0-9]{2}|TITAN XP?)(?:TI)?"),
    (Generation.VOLTA, r"(?:GV100|V100S?|TITAN V)"),
    (
        Generation.TURING,
        r"(?:T4G?|TITAN RTX|(?:RTX )?20[6-8]0|GTX 16[0-9]{2}|QUADRO RTX [0-9]{4}|RTX [68]000)(?! ADA)(?:TI)?",
    ),
    (
        Generation.AMPERE,
        r"(?:A100X?|A800|A30X?|A40|A10G?|A16|A2|(?:RTX )?A[0-9]{4}|(?:RTX )?30[5-9]0)(?:TI)?",
    ),
    (Generation.ADA, r"(?:L4|L40S?|L20|L2|(?:RTX )?40[5-9]0D?|RTX [2-6]0?[05]00 ADA)(?:TI)?"),
    (Generation.HOPPER, r"(?:G?H100|G?H200|H800|H20)"),
    (Generation.BLACKWELL, r"(?:G?B[123]00A?|GB10|(?:RTX )?50[5-9]0D?|RTX PRO [2-6][05]00)(?:TI)?"),
    (Generation.CDNA2, r"(?:MI210|MI250X?|GFX90A)"),
    (Generation.CDNA3, r"(?:MI3[0-9]{2}[AX]?|GFX9[45][0-9])"),
    (Generation.ASCEND, r"(?:ASCEND ?)?910[ABC]?[0-9]?"),
)
"""Oldest first within a maker. NVIDIA's and AMD's product names; MI350 and MI355 (CDNA 4) are taken as the
generation before, whose figures are the nearest that are known."""

_AFTER_A_NAME = r"(?=SXM|PCIE|[^A-Z0-9]|$)"
"""A form factor glued to it, or its end: A100 is no A10, and p4d is no P4."""

_CAPABILITIES: tuple[tuple[int, Generation], ...] = (
    (100, Generation.BLACKWELL),
    (90, Generation.HOPPER),
    (89, Generation.ADA),
    (80, Generation.AMPERE),
    (75, Generation.TURING),
    (70, Generation.VOLTA),
    (60, Generation.PASCAL),
)
"""Lowest compute capability x 10 of each generation (CUDA C++ Programming Guide, compute capabilities)."""

_NVLINK_CAPABILITY: Mapping[Generation, int] = {
    Generation.PASCAL: 60,
    Generation.VOLTA: 70,
    Generation.TURING: 75,
    Generation.AMPERE: 80,
    Generation.HOPPER: 90,
    Generation.BLACKWELL: 100,
}

_BRIDGED_CARDS: tuple[tuple[str, int], ...] = (
    (r"2080 ?TI|TITAN RTX|RTX [68]000(?! ADA)", 2),
    (r"2080|RTX 5000(?! ADA)", 1),
    (r"3090|A6000|A5500|A5000|A4500|A40|A30", 4),
    (r"GV100", 4),
)
"""Cards with a connector for an NVLink bridge -> links. NVIDIA's Turing (TU102: two, TU104: one) and GA102
(four) whitepapers; A30 and GV100 datasheets: 200 GB/s both ways."""

_AMPERE_BOARDS = re.compile(r"A100|A800|A30(?![0-9])", re.IGNORECASE)

_PCIE: Mapping[Generation, int] = {
    Generation.PASCAL: 3,
    Generation.VOLTA: 3,
    Generation.TURING: 3,
    Generation.AMPERE: 4,
    Generation.ADA: 4,
    Generation.HOPPER: 5,
    Generation.BLACKWELL: 5,
    Generation.CDNA2: 4,
    Generation.CDNA3: 5,
    Generation.ASCEND: 4,
}
"""The PCIe generation of a card's own port, from the makers' datasheets."""


def generations_in(words: str) -> tuple[Generation, ...]:
    """Every generation that the words name, oldest first; empty where they name none that is known."""
    upper = words.upper()
    return tuple(
        generation
        for generation, pattern in _NAMES
        if re.search(rf"(?<![A-Z0-9])(?:{pattern}){_AFTER_A_NAME}", upper)
    )


def generation_of_capability(capability: int) -> Generation:
    """Of a compute capability x 10, such as 90; UNKNOWN below the first that is known."""
    for lowest, generation in _CAPABILITIES:
        if capability >= lowest:
            return generation
    return Generation.UNKNOWN


def nvlink_rate(generation: Generation, model: str) -> float | None:
    """Bytes per second of one NVLink in one direction; None for what has none."""
    if generation is Generation.AMPERE and not _AMPERE_BOARDS.search(model):
        return OF_CAPABILITY[86]
    capability = _NVLINK_CAPABILITY.get(generation)
    return None if capability is None else OF_CAPABILITY[capability]


def nvlinks_of(model: str) -> int | None:
    """NVLinks of one GPU, of a board's module or of a card with a bridge; None where that is not known."""
    on_board = nvlinks_of_model(model)
    if on_board is not None:
        return on_board
    for pattern, links in _BRIDGED_CARDS:
        if re.search(rf"(?<![A-Z0-9])(?:{pattern})(?![0-9])", model.upper()):
            return links
    return None


def xgmi_rate(model: str, generation: Generation) -> tuple[float, str] | None:
    """Bytes per second of one Infinity Fabric link in one direction, and where that is from."""
    if re.search(r"MI35|GFX95", model.upper()):
        return XGMI["gfx95"]
    return {Generation.CDNA2: XGMI["gfx90a"], Generation.CDNA3: XGMI["gfx94"]}.get(generation)


def pcie_generation(generation: Generation) -> int | None:
    """Of the port of an accelerator of this generation."""
    return _PCIE.get(generation)


_OFF_PCIE = re.compile(r"G[HB][1-3]00|GB10(?![0-9])|MI300A")
"""Superchips and APUs, which reach NICs through their processor over NVLink-C2C or on the package."""


def nic_port(generation: Generation, model: str) -> tuple[float, str]:
    """Nominal bytes per second in one direction between one GPU and the NICs, and where that is from.

    Infinite where no port is known to limit: superchips, Ascend (whose NICs are on the chip: Atlas 800
    product pages), what is not known.
    """
    if _OFF_PCIE.search(model.upper()):
        return math.inf, "not limited: the GPU reaches NICs through its processor, not over PCIe"
    number = None if generation is Generation.ASCEND else pcie_generation(generation)
    rate = None if number is None else pcie_rate(number)
    if rate is None:
        return math.inf, f"not limited: the port of {generation.value} towards NICs is not known"
    return rate, f"PCIe {number} x16, the port of {generation.value} GPUs"


def pcie_rate(pcie: int, lanes: int = 16) -> float | None:
    """Bytes per second of a PCIe link in one direction, after its coding; None for a generation not known."""
    for gigatransfers, number in GENERATIONS.items():
        if number == pcie:
            return gigatransfers * 1e9 / 8 * lanes * CODING[gigatransfers]
    return None
