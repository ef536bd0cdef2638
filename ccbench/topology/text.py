"""Terminal text as tools print it and people paste it: colours, lines, and lists of CPUs or NUMA nodes."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Za-z0-9]|\[[0-9]{1,2}(?:;[0-9]{1,2})*m")
"""Terminal escapes, also those whose ESC byte was lost on the way through a web page (``[4m``)."""

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)


def plain_lines(text: str) -> list[str]:
    """Lines of ``text`` without terminal escapes and line ends; index + 1 is the line number."""
    return _COLOUR.sub("", text.replace("\r\n", "\n").replace("\r", "\n")).split("\n")


def ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """A Linux list such as ``0-13,28-41`` as (first, last) pairs; None where it is none.

    Ranges are not expanded, so that a damaged number cannot fill the memory.
    """
    found = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            return None
        found.append((first, last))
    return tuple(found)


def range_count(found: tuple[tuple[int, int], ...]) -> int:
    """How many numbers a list of ranges names, each once."""
    total, reached = 0, -1
    for first, last in sorted(found):
        total += max(0, last - max(first - 1, reached))
        reached = max(reached, last)
    return total


def overlap(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
    """Whether two lists of ranges name a number in common."""
    both = one + other
    return range_count(both) < range_count(one) + range_count(other)
