"""What NCCL's own lines say between those of a torch script: versions, ranks, and how it chose."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ccbench.importing.log import DeviceLine
from ccbench.importing.readers.lines import Line

_VERSION = re.compile(r"\bNCCL version (\d[\w.]{0,20})(?:\+cuda(\d[\d.]{0,10}))?")
_COMPLETE = re.compile(
    r"(?:([\w.-]{1,200}):(\d{1,10}):\d{1,10} )?.{0,40}\brank (\d{1,7}) nranks \d{1,7} cudaDev (\d{1,4})"
    r"(?: nvmlDev \d{1,4})? busId ([0-9a-fA-F]{1,16})\b"
)
_SET = re.compile(r"\b(NCCL_[A-Z0-9_]{2,60}) set (?:by environment )?to (\S{1,200})")
_HINT = re.compile(
    r"NCCL INFO ((?:Using network|threadThresholds|\d+ coll channels|Channel \S+/\d+ :?|NVLS).{0,200})"
)

_MOST_HINTS = 20


def versions_of(lines: Iterable[Line]) -> dict[str, str]:
    """The first version of NCCL, with CUDA's where it is attached."""
    found = next((m for line in lines if (m := _VERSION.search(line.text))), None)
    if found is None:
        return {}
    return {"NCCL": found[1], **({"CUDA": found[2]} if found[2] else {})}


def devices_of(lines: Iterable[Line]) -> tuple[DeviceLine, ...]:
    """One for each rank that says that its communicator is complete, by rank."""
    found: dict[int, DeviceLine] = {}
    for line in lines:
        match = _COMPLETE.search(line.text) if "nranks" in line.text else None
        if match and "Init COMPLETE" in line.text:
            rank, process = int(match[3]), int(match[2]) if match[2] else None
            found.setdefault(
                rank, DeviceLine(rank, None, process, match[1] or "", int(match[4]), match[5].lower())
            )
    return tuple(found[rank] for rank in sorted(found))


def environment_of(lines: Iterable[Line]) -> dict[str, str]:
    """Variables that NCCL says it found set."""
    return {m[1]: m[2] for line in lines if (m := _SET.search(line.text))}


def hints_of(lines: Iterable[Line]) -> tuple[str, ...]:
    """Different lines from which NCCL's choice shows, without the process they come from."""
    found = {match[1].strip(): None for line in lines if (match := _HINT.search(line.text))}
    return tuple(found)[:_MOST_HINTS]
