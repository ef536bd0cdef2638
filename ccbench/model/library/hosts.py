"""Which processors a box of accelerators has, from the words that name the box.

Their family decides how fast a proxy thread's flags travel, and which row of NCCL's tables counts.
"""

from __future__ import annotations

import re

from ccbench.model.library.system import Generation, Host

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
