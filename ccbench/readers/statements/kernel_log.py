"""Errors of GPUs, NVSwitches, PCIe and NICs in the kernel's log (dmesg, journalctl -k)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain
from ccbench.readers.statements import Statement

FORM = "kernel log"

_DEVICE = r"Xid \(PCI:(?:(?P<address>[0-9a-fA-F:]{5,16}(?:\.[0-7])?)|[^)]{0,20})\): "
"""A bus id that was shortened names no device."""

_FORMS = (
    (
        "xid",
        re.compile(rf"NVRM: {_DEVICE}(?P<code>\d{{1,4}}),?\s*(?P<rest>.{{0,120}})"),
    ),
    (
        "gpu_lost",
        re.compile(
            r"NVRM: .{0,80}?(?P<rest>fallen off the bus|NV_ERR_RESET_REQUIRED|NV_ERR_GPU_IS_LOST).{0,60}"
        ),
    ),
    (
        "sxid",
        re.compile(rf"S{_DEVICE}(?P<code>\d{{1,6}}),?\s*(?P<rest>.{{0,120}})"),
    ),
    (
        "pcie_corrected",
        re.compile(
            r"(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]).{0,40}"
            r"(?:PCIe Bus Error: severity=|AER: )(?:Multiple )?Correct(?:ed|able)"
        ),
    ),
    (
        "pcie_error",
        re.compile(
            r"(?P<address>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]).{0,40}"
            r"(?:PCIe Bus Error: severity=|AER: )(?:Multiple )?Uncorrect"
        ),
    ),
    (
        "nic_event",
        re.compile(
            r"mlx[45]_core (?P<address>[0-9a-f:.]{7,12}):? .{0,60}?"
            r"(?P<rest>Cable unplugged|Cable error|Link (?:down|up)|health (?:compromised|.{0,20}fail).{0,40})",
            re.IGNORECASE,
        ),
    ),
    (
        "amd_gpu_error",
        re.compile(
            r"amdgpu (?P<address>[0-9a-f:.]{7,12}): .{0,40}?"
            r"(?P<rest>ring \S{1,20} timeout|GPU reset.{0,40}|uncorrectable.{0,60})",
            re.IGNORECASE,
        ),
    ),
    (
        "oom_killed",
        re.compile(
            r"Out of memory: Killed process (?P<process>\d{1,10}) \((?P<rest>[^)]{1,40})\)|oom-kill"
        ),
    ),
)

OWNED = re.compile(
    r"NVRM: |SXid \(|nvidia-nvswitch|pcieport |PCIe Bus Error|AER: |mlx[45]_core |amdgpu |Out of memory: Killed"
    r"|^\[\s*\d+\.\d{6}\] "
)


def read(text: str) -> Iterator[Statement]:
    """Yield a statement of every line that reports an error."""
    text = plain(text)
    # Most logs have lines of no form, or of few: a text is searched much faster than its lines.
    forms = [(kind, form) for kind, form in _FORMS if form.search(text)]
    for number, line in enumerate(text.split("\n") if forms else (), start=1):
        for kind, form in forms:
            match = form.search(line[:600])
            if match:
                named = match.groupdict()
                yield Statement(kind, number, line, named, named.get("address") or "")
                break
