"""From the words with which logs are described to the machine family they were measured on."""

from __future__ import annotations

import re

_RULES: tuple[tuple[str, str, str], ...] = (
    ("gb200-nvl72", r"\bGB200\b", r""),
    ("gh200x4", r"\bGH200\b", r""),
    ("hgx-b200", r"\bB200\b", r""),
    ("hgx-h200", r"\bH200\b", r""),
    ("h800", r"\bH800\b", r""),
    ("hgx-h100", r"\bH100\b", r"nvswitch"),
    ("h100-pcie-bridge", r"\bH100\b.*PCIe", r"bridge"),
    ("dgx-a100", r"\bA100\b", r"nvswitch"),
    ("a100-pcie-bridge", r"\bA100\b.*PCIe", r"bridge"),
    ("dgx-2", r"\bV100\b", r"nvswitch"),
    ("dgx-1v", r"\bV100\b", r"cube-mesh"),
    ("mi300x", r"\bMI300X\b", r""),
    ("l40s", r"\bL40S\b", r""),
    ("rtx-pcie", r"\bRTX\b", r"pcie"),
)
"""Family (a name of the machine catalog), what the GPU's words and the interconnect's must hold."""


def family_of(gpu: str, interconnect: str) -> str:
    """``hgx-h100`` for ``H100 SXM`` joined by ``nvswitch3``; a name made of the GPU's words where none fits.

    Where the words name two kinds of GPU, or leave open which, no family of the catalog fits.
    """
    model = gpu.partition("(")[0].strip()
    if not re.search(r"\bor\b|\+|\band\b", model):
        for family, wanted, joined in _RULES:
            if re.search(wanted, model) and re.search(joined, interconnect):
                return family
    return re.sub(r"[^a-z0-9]+", "-", (model or gpu).lower()).strip("-") or "unknown"
