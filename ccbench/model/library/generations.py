"""What the name of an accelerator says to the model: its generation, its NVLinks, its PCIe port.

Rates of links are topology's (classes, nccl_xml_tree, pci_tree); the number of links on boards is too.

The words that name a box also say which processors it has. Their family decides how fast a proxy thread's
flags travel, and which row of NCCL's tables counts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from ccbench.model.library.system import Generation, Host
from ccbench.topology.classes import OF_CAPABILITY, nvlinks_of_model
from ccbench.topology.pci import CODING
from ccbench.topology.readers.nccl_xml_tree import GENERATIONS, XGMI

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


_SHAPES: tuple[tuple[str, Host, str], ...] = (
    (r"\bEPYC\b|\bThreadripper\b", Host.AMD, "named"),
    (r"\bXeon\b|\b(?:Sky|Cascade|Ice) ?Lake\b|\b(?:Sapphire|Emerald) Rapids\b", Host.INTEL, "named"),
    (r"\bGrace\b|\bAmpere Altra\b|\bKunpeng\b|\bGraviton", Host.ARM, "named"),
    (r"GH200|GB200|GB300|\bGB10\b|a4x", Host.ARM, "NVIDIA Grace and its successors are ARM"),
    (r"POWER ?9|AC922|Summit|Sierra|Lassen", Host.POWER, "IBM Power AC922"),
    (r"Ascend|Atlas", Host.ARM, "Kunpeng: Atlas 800 product pages"),
    (r"DGX[ -]?A100", Host.AMD, "EPYC 7742: NVIDIA DGX A100 user guide"),
    (r"DGX[ -]?1|DGX[ -]?2H?\b", Host.INTEL, "Xeon: NVIDIA DGX-1 and DGX-2 user guides"),
    (r"DGX[ -]?[HB][12]00", Host.INTEL, "Xeon 8480C and 8570: NVIDIA DGX H100 and DGX B200 user guides"),
    (
        r"NDm?(?:96a[a-z]*)?[ _]?(?:A100[ _])?v4|ND96a[a-z]*_v4",
        Host.AMD,
        "EPYC 7V12: Azure ND A100 v4 series",
    ),
    (r"NC[0-9]*ads|NCads", Host.AMD, "EPYC: Azure NC A100 v4 and NCads H100 v5 series"),
    (r"NDv2|ND40rs", Host.INTEL, "Xeon 8168: Azure NDv2 series"),
    (r"ND[a-z0-9]*[ _]?(?:H100|H200|isr)", Host.INTEL, "Xeon: Azure ND H100 v5 and ND H200 v5 series"),
    (r"ND[a-z0-9]*[ _-]?MI300X", Host.INTEL, "Xeon: Azure ND MI300X v5 series"),
    (r"BM\.GPU\.(?:B4|A100|GPU4|A10)", Host.AMD, "EPYC: Oracle Cloud bare-metal GPU shapes"),
    (r"BM\.GPU\d?\.(?:H100|H200|B200|MI300X|L40S)", Host.INTEL, "Xeon: Oracle Cloud bare-metal GPU shapes"),
    (r"\bp4de?\b", Host.INTEL, "Xeon Cascade Lake: AWS EC2 P4 instances"),
    (r"\bp5en\b|\bp6-", Host.INTEL, "Xeon: AWS EC2 P5en and P6 instances"),
    (r"\bp5e?\b", Host.AMD, "EPYC 7R13: AWS EC2 P5 instances"),
    (r"\bp3(?:dn)?\b|\bg4dn\b", Host.INTEL, "Xeon: AWS EC2 P3 and G4dn instances"),
    (r"\bg5\b|\bg6e?\b", Host.AMD, "EPYC: AWS EC2 G5 and G6 instances"),
    (r"\ba2-|\ba3-|\ba4-|GCP|GKE", Host.INTEL, "Xeon: Google Cloud accelerator-optimised machine types"),
)
"""Words of published logs (any case) -> processors, first match counts; the makers' and clouds' own pages."""

_ASSUMED: dict[Generation, Host] = {
    Generation.PASCAL: Host.INTEL,
    Generation.VOLTA: Host.INTEL,
    Generation.HOPPER: Host.INTEL,
    Generation.BLACKWELL: Host.INTEL,
}
_ASSUMED_BOARDS: dict[Generation, Host] = {**_ASSUMED, Generation.AMPERE: Host.AMD}


def host_of(words: str, generation: Generation, is_board: bool) -> tuple[Host, str]:
    """The family of the processors and where that is from.

    words: whatever names the box. is_board: its accelerators are modules of a board with switches (HGX),
        for which makers mostly chose one family; cards go into any box and stay UNKNOWN.
    """
    for pattern, host, origin in _SHAPES:
        found = re.search(pattern, words, re.IGNORECASE)
        if found is not None:
            return host, f"{found[0]}: {origin}"
    if is_board and generation in _ASSUMED_BOARDS:
        host = _ASSUMED_BOARDS[generation]
        return host, f"assumed: most boards of {generation.value} modules sit beside {host.value}"
    return Host.UNKNOWN, "not stated"
