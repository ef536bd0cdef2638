"""Lines of a log that NCCL or RCCL writes, freed of whatever stands in front of them.

A line may carry the process (``host0:1000:1001 [3] NCCL INFO``), a tag of mpirun (``[1,0]<stdout>:``), a time
stamp, colours, an indentation, or nothing at all when an author removed the prefixes. Ranks interleave, so
what belongs together is found by who speaks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

MOST_CHARACTERS_OF_A_LINE = 100_000
"""Longer lines are cut: the longest line NCCL writes, a path table of a large node, has some 20,000."""

_MOST_CHARACTERS_OF_A_PREFIX = 120
_MARKERS = ("NCCL INFO", "NCCL TRACE", "NCCL WARN")
_COLOUR = re.compile(r"\x1b?\[[0-9;]{0,8}m")
_SPEAKER = re.compile(r"(?:([\w.\-]+):(\d+):(\d+))?\s{0,9}(?:\[(\d{1,6})\])?\s{0,9}$")
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?")


@dataclass(frozen=True)
class Entry:
    """One line. ``body`` is what follows ``NCCL INFO`` (the whole line where that is missing).

    number: 1-based line of the log.
    speaker: what names the process (host, pid, tid and device); empty where the line does not say.
    host: its host as printed; empty where the line does not say.
    marked: whether the line says that NCCL wrote it.
    """

    number: int
    speaker: str
    host: str
    marked: bool
    body: str


def entries(text: str) -> Iterator[Entry]:
    """Every line of ``text`` that is not blank, in order."""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line[:MOST_CHARACTERS_OF_A_LINE]
        if "m" in line and "[" in line:
            line = _COLOUR.sub("", line)
        line = line.expandtabs().rstrip()
        if line:
            yield _entry(number, line)


def _entry(number: int, line: str) -> Entry:
    for marker in _MARKERS:
        start = line.find(marker)
        if start >= 0:
            break
    else:
        return Entry(number, "", "", False, line)
    prefix = line[max(0, start - _MOST_CHARACTERS_OF_A_PREFIX) : start].rstrip()
    body = line[start + len(marker) :]
    found = _SPEAKER.search(prefix)
    host, process, thread, device = found.groups() if found else (None, None, None, None)
    speaker = f"{host}:{process}:{thread}" if host else ""
    if device is not None:
        speaker += f"[{device}]"
    # One blank belongs to the marker; more are the indentation of the graph.
    return Entry(number, speaker, host or "", True, body[1:] if body.startswith(" ") else body)


def decimal(text: str) -> float | None:
    """The finite number that ``text`` spells in plain digits; None for anything else."""
    if _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def whole(text: str) -> int | None:
    """The whole number that ``text`` spells in at most 18 digits; None for anything else."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
