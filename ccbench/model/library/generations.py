"""What the name of an accelerator says to the model: its generation, its NVLinks, its PCIe port.

``generations.yaml`` has the words and their sources; rates of links, and links of boards, are topology's.
The words that name a box also say which processors it has. Their family decides how fast a proxy thread's
flags travel, and which row of NCCL's tables counts.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from ccbench.model.library import Generation, Host
from ccbench.model.library.constants import FOLDER, read_table
from ccbench.topology.classes import OF_CAPABILITY, XGMI, nvlinks_of_model
from ccbench.topology.pci import CODING, GENERATIONS

_AFTER_A_NAME = r"(?=SXM|PCIE|[^A-Z0-9]|$)"
"""A form factor glued to it, or its end: A100 is no A10, and p4d is no P4."""

_AMPERE_BOARDS = re.compile(r"A100|A800|A30(?![0-9])", re.IGNORECASE)
"""Ampere's other GPUs have the NVLinks of graphics cards (GA102 whitepaper)."""


@cache
def _words() -> dict[str, Any]:
    found: dict[str, Any] = read_table(FOLDER / "generations.yaml")
    return found


def _row(generation: Generation) -> dict[str, Any]:
    found: dict[str, Any] = _words()["generations"].get(generation.value, {})
    return found


def generations_in(words: str) -> tuple[Generation, ...]:
    """Every generation that the words name, oldest first; empty where they name none that is known."""
    # Names end at a word's end: A100 is no A10, and p4d.24xlarge is no P4.
    upper = words.upper()
    return tuple(
        Generation(name)
        for name, row in _words()["generations"].items()
        if re.search(rf"(?<![A-Z0-9])(?:{row['names']}){_AFTER_A_NAME}", upper)
    )


def generation_of_capability(capability: int) -> Generation:
    """Of a compute capability x 10, such as 90; UNKNOWN below the first that is known."""
    rows = _words()["generations"].items()
    lowest = {row["capability"]: Generation(name) for name, row in rows if "capability" in row}
    reached = [one for one in lowest if one <= capability]
    return lowest[max(reached)] if reached else Generation.UNKNOWN


def nvlink_rate(generation: Generation, model: str) -> float | None:
    """Bytes per second of one NVLink in one direction; None for what has none."""
    if generation is Generation.AMPERE and not _AMPERE_BOARDS.search(model):
        return OF_CAPABILITY[86]
    row = _row(generation)
    return OF_CAPABILITY[row["capability"]] if row.get("nvlink") else None


def nvlinks_of(model: str) -> int | None:
    """NVLinks of one GPU, of a board's module or of a card with a bridge; None where that is not known."""
    on_board = nvlinks_of_model(model)
    if on_board is not None:
        return on_board
    for pattern, links in _words()["bridged_cards"].items():
        if re.search(rf"(?<![A-Z0-9])(?:{pattern})(?![0-9])", model.upper()):
            return int(links)
    return None


def xgmi_rate(model: str, generation: Generation) -> tuple[float, str] | None:
    """Bytes per second of one Infinity Fabric link in one direction, and where that is from."""
    if re.search(r"MI35|GFX95", model.upper()):
        return XGMI["gfx95"]
    return {Generation.CDNA2: XGMI["gfx90a"], Generation.CDNA3: XGMI["gfx94"]}.get(generation)


def pcie_generation(generation: Generation) -> int | None:
    """Of the port of an accelerator of this generation."""
    return _row(generation).get("pcie")


def nic_port(generation: Generation, model: str) -> tuple[float, str]:
    """Nominal bytes per second in one direction between one GPU and the NICs, and where that is from.

    Infinite where no port is known to limit: superchips, Ascend (whose NICs are on the chip: Atlas 800
    product pages), what is not known.
    """
    if re.search(_words()["off_pcie"], model.upper()):
        return math.inf, "not limited: the GPU reaches NICs through its processor, not over PCIe"
    # Ascend's NICs are on the chip.
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


def host_of(words: str, generation: Generation, is_board: bool) -> tuple[Host, str]:
    """The family of the processors and where that is from.

    words: whatever names the box. is_board: its accelerators are modules of a board with switches (HGX),
        for which makers mostly chose one family; cards go into any box and stay UNKNOWN.
    """
    for pattern, host, origin in _words()["boxes"]:
        found = re.search(pattern, words, re.IGNORECASE)
        if found is not None:
            return Host(host), f"{found[0]}: {origin}"
    assumed = _row(generation).get("board_host")
    if is_board and assumed:
        return Host(assumed), f"assumed: most boards of {generation.value} modules sit beside {assumed}"
    return Host.UNKNOWN, "not stated"
