"""Text as tools print it and people paste it: lines, and numbers with their rounding."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_TERMINAL = re.compile(
    r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b[()][A-Za-z0-9]"
    r"|\[[0-9]{1,2}(?:;[0-9]{1,2})*m"  # colours whose ESC byte was lost on the way through a web page
    r"|[\x00-\x08\x0b\x0e-\x1f\x7f]"
)

_TAG = re.compile(
    r"\([^()\n]{0,120}pid=\d{1,10}[^()\n]{0,60}\)\s?"  # Ray
    r"|\[[^\]\s\d,][^\]\s,]{0,60}[,:]\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # Open MPI 5
    r"|\[\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # mpirun --tag-output
    r"|\[[\w.-]{1,200}:\d{1,9}\]:\s?"  # Intel MPI's -prepend-rank, torchrun
    r"|\[default\d{1,6}\]:\s?"  # torchrun
    r"|\[pod/[^\]\s]{1,200}\]\s?"  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s"  # --timestamps
    r"|\s{0,6}\d{1,7}:\s"  # srun --label
    r"|\[\d{1,7}\]\s(?=\s{0,9}#|\s{0,16}\d[\d_]{0,20}\s{1,40}\d)"  # mpiexec -l, before a table's lines
    r"|[A-Za-z][\w.-]{0,80}(?::|\s{1,4}\|)\s(?=\s{0,8}#|\s{0,16}\d{1,20}\s{1,16}\d{1,20}\s)"  # pdsh, compose
    r"|>\s"  # a quotation
)
_MOST_TAGS = 5

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII
)


def plain(text: str) -> str:
    """Return ``text`` without terminal escapes and other control characters, its lines ended by ``\\n``."""
    return _TERMINAL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``plain(text)``; index + 1 is the line number."""
    return plain(text).split("\n")


def without_tags(line: str) -> str:
    """Return ``line`` without what launchers wrote before it: ranks, hosts, pods, time stamps."""
    # Launchers start each other, so a line may carry the tags of several.
    for _ in range(_MOST_TAGS):
        match = _TAG.match(line)
        if match is None:
            break
        line = line[match.end() :]
    return line


def whole(text: str) -> int | None:
    """Return the whole number that ``text`` spells in at most 18 digits; None for anything else."""
    return int(text) if _WHOLE.fullmatch(text) else None


@dataclass(frozen=True)
class PrintedFigure:
    """A number as printed, times its unit; ``half_unit`` is what rounding may have changed it by."""

    value: float
    half_unit: float

    def times(self, factor: float) -> PrintedFigure:
        """Return the same figure in a unit that is ``factor`` times smaller."""
        return PrintedFigure(self.value * factor, self.half_unit * factor)

    def over(self, divisor: float) -> PrintedFigure:
        """Return the same figure in a larger unit: rounded once only, unlike ``times(1 / divisor)``."""
        return PrintedFigure(self.value / divisor, self.half_unit / divisor)


def figure(text: str) -> PrintedFigure | None:
    """Return the figure that ``text`` spells; None for none, a negative one, and one too large to hold."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value, exponent = float(text), int(match[2] or 0) - len(match[1] or "")
    if not math.isfinite(value) or value < 0 or not -300 < exponent < 300:
        return None
    # Half a unit of the last digit: 10.50 is known to 0.005, 1e3 to 500.
    return PrintedFigure(value, 0.5 * 10.0**exponent)


def decimal(text: str) -> float | None:
    """Return the value of ``figure(text)``."""
    number = figure(text)
    return number.value if number else None


def one_or_all(values: Sequence[Any]) -> Any:
    """Return the value that all of ``values`` are, all where they differ, None where there is none."""
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else list(values)


def ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return a Linux list such as ``0-13,28-41`` as (first, last) pairs; None where it is none.

    Ranges are not expanded, so that a damaged number cannot fill the memory.
    """
    pairs = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        pairs.append((int(match[1]), int(match[2] or match[1])))
    return tuple(pairs)


def overlap(
    first_list: tuple[tuple[int, int], ...], second_list: tuple[tuple[int, int], ...]
) -> bool:
    """Return whether two lists of ranges name a number in common."""
    # By their beginning: a range overlaps what the other side has reached before it.
    reached = [-1, -1]
    sides = [(*pair, 0) for pair in first_list] + [(*pair, 1) for pair in second_list]
    for first, last, side in sorted(sides):
        if first <= reached[1 - side]:
            return True
        reached[side] = max(reached[side], last)
    return False
