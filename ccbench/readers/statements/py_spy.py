"""Stacks that 'py-spy dump' prints, one process after another."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ccbench.readers.lines import plain_lines
from ccbench.readers.statements import LONGEST_QUOTE, Statement

FORM = "py-spy"

OWNED = re.compile(r"^(?:Process \d+: |Python v\d|Thread (?:0x)?\w+ \(|    \S.* \(\S+:\d+\)$)")

_PROCESS = re.compile(r"^Process (?P<process>\d{1,10}): (?P<command>.{1,2000})")
_RANK = re.compile(
    r"(?:--|\b)(?:global[-_]?)?(?:node[-_]?)?(?:local[-_]?)?rank[= ](?P<rank>\d{1,7})\b",
    re.IGNORECASE,
)
_THREAD = re.compile(r'^Thread \S{1,40} \((?P<state>[\w+]{1,20})\): "(?P<name>[^"]{1,60})"')
_FRAME = re.compile(r"^    (?P<frame>\S.{0,120} \(\S{1,200}:\d{1,7}\))$")

WAITING = re.compile(
    r"\b(?:all_?reduce|all_?gather|reduce_scatter|broadcast|barrier|all_?to_?all|synchronize|wait|send|recv|item)\w* \("
)
"""Frames in which a rank waits for others; what stands above them is the library's."""


def read(text: str) -> Iterator[Statement]:
    """Yield a ``stack`` of the main thread of every process: the frames nearest to the top, innermost first."""
    process, rank, frames, first, main = "", "", list[str](), 0, False
    for number, line in enumerate([*plain_lines(text), "Process 0: end"], start=1):
        header, thread = _PROCESS.match(line), _THREAD.match(line)
        if (header or thread) and main and frames:
            values = {"process": process, "rank": rank, "frames": " < ".join(frames[:4])}
            yield Statement(
                "stack", first, f"{frames[0]}"[:LONGEST_QUOTE], values, rank or process
            )
        if header:
            named = _RANK.search(header["command"])
            process, rank, main = header["process"], named["rank"] if named else "", False
        elif thread:
            main, frames, first = thread["name"] == "MainThread", [], number
        elif main and (match := _FRAME.match(line)):
            frames.append(match["frame"])
