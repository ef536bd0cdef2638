"""What the name of a GPU model says: how many NVLinks it has, and whether it is a card or a board's module.

The one table of models: diagnosis compares machines with it, and the readers of nvidia-smi take from it
whether a bridge is optional.
"""

from __future__ import annotations

import re

MOST_LINKS = 18
"""NVLinks of the GPU with the most, up to Blackwell."""

_NVLINKS: tuple[tuple[str, int], ...] = (
    (r"P100", 4),
    (r"V100", 6),
    (r"A800", 8),
    (r"A100", 12),
    (r"H800", 8),
    (r"H100 NVL|H200 NVL|H100 PCIE", 12),
    (r"GH200|H200|H100|H20", MOST_LINKS),
    (r"GB200|GB300|B100|B200|B300", MOST_LINKS),
)
"""Name -> NVLinks, first match counts. NVIDIA's whitepapers of Pascal, Volta, Ampere, Hopper and Blackwell;
export models: 8 of 12 and of 18 links. Cards with PCIe connectors: three bridges of four links."""

_CARD = re.compile(
    r"PCIE|\bNVL\b|\bRTX\b|GEFORCE|QUADRO|TITAN|\bA[0-9]{4}\b|\bA(?:2|10|16|30|40)\b|\bL[0-9]{1,2}S?\b",
    re.IGNORECASE,
)

_MODULE = re.compile(
    r"SXM|DGXS|\bHBM3\b|\bG?B[123]00\b|\bG?H(?:100|200|800|20)\b",
    re.IGNORECASE,
)


def nvlinks_of_model(model: str) -> int | None:
    """NVLinks of one GPU of ``model`` (a driver's or a catalog's name); None where it is not known."""
    for pattern, links in _NVLINKS:
        if re.search(rf"(?<![A-Z0-9])(?:{pattern})(?![0-9])", model, re.IGNORECASE):
            return links
    return None


def is_card(model: str) -> bool:
    """Whether GPUs of ``model`` are cards, whose NVLinks all rest unless somebody plugs a bridge on."""
    return _CARD.search(model) is not None


def is_module(model: str) -> bool:
    """Whether GPUs of ``model`` are soldered or socketed on a board, whose traces their NVLinks are.

    SXM and its successors; False where the name does not say, as for cards.
    """
    return _MODULE.search(model) is not None and not is_card(model)
