"""Lines of another tool's output without what launchers and terminals put around them; printed figures.

A figure is its value and half a unit of its last digit, so that checks know the rounding.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ccbench.results.importers.log import ImportedRow, Outcome
from ccbench.topology.graph import Notice

LONGEST_LINE = 4000
"""Characters of a line that are looked at; no tool here prints a longer one."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# "[1,0]<stdout>:" of Open MPI, "[node-3:0]:" of Intel MPI's -prepend-rank and torchrun, "12: " of srun -l.
_TAG = re.compile(r"(?:\[\d+,\d+\]<std\w{2,8}>:|\[[\w.-]{1,200}:\d+\]:|\d{1,6}:(?= ))[ \t]?")


MOST_NOTICES = 100
"""Remarks that are kept of one text; whoever has more lines that do not fit has another form."""


@dataclass(frozen=True)
class Line:
    """One line. number: 1-based, of the source. text: without tags, colours and the end of the line.

    unfinished: it is the last line and has no end.
    """

    number: int
    text: str
    unfinished: bool = False


def source_lines(text: str) -> Iterator[Line]:
    """Every line that is not blank; longer ones than LONGEST_LINE are cut there."""
    lines = text.split("\n")
    for number, raw in enumerate(lines, 1):
        if not raw or raw.isspace():
            continue
        line = raw[:LONGEST_LINE].rstrip()
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        if ":" in line:
            line = _TAG.sub("", line, count=1) if _TAG.match(line) else line
        if not line.isspace() and line:  # nothing but a tag or a colour
            yield Line(number, line, number == len(lines))


def is_torn(line: Line, before: Line | None) -> bool:
    """Whether ``line`` is the last one, has no end, and is shorter than the row before it.

    Tables of these tools have columns of one width, so that such a row has lost digits of its last figure.
    """
    return line.unfinished and before is not None and len(line.text) < len(before.text)


def no_row(line: Line) -> Notice:
    """The remark that ``line`` stands where a row should and is none."""
    return Notice("damaged_line", f"no row of its table: {line.text.strip()[:80]!r}", line.number)


def torn_row(line: Line) -> Notice:
    """The remark that ``line`` is a row that has lost its end."""
    return Notice("truncated", "the last row has lost its end and was left out", line.number)


def capped(notices: Sequence[Notice]) -> tuple[Notice, ...]:
    """The first MOST_NOTICES of ``notices``, and how many more there were."""
    if len(notices) <= MOST_NOTICES:
        return tuple(notices)
    more = Notice("damaged_line", f"{len(notices) - MOST_NOTICES} more remarks like these were left out")
    return (*notices[:MOST_NOTICES], more)


_HUNG = ("watchdog caught collective", "timed out", "due to time limit", "exceeded the time limit")
_CRASHED = (
    "segmentation fault",
    "mpi_abort was invoked",
    "caught signal",
    "exited on signal",
    "bus error",
    "core dumped",
    "out of memory",
    "unhandled cuda error",
    "unhandled system error",
    "traceback (most recent call last)",
    "terminate called after",
)
_EXIT_CODE = re.compile(r"\bexit(?:ed|ing)?(?: with)?(?: exit)? (?:code|status)[ :=]{1,3}[1-9]")


def bad_ending(lines: Sequence[Line]) -> tuple[Outcome, str] | None:
    """The first line that reports a hang, else the first that reports a crash, with what it says."""
    crash: Line | None = None
    for line in lines:
        lowered = line.text.lower()
        if any(words in lowered for words in _HUNG):
            return Outcome.HUNG, _quoted(line)
        crashed = any(words in lowered for words in _CRASHED)
        if crash is None and (crashed or ("exit" in lowered and _EXIT_CODE.search(lowered))):
            crash = line
    return (Outcome.CRASHED, _quoted(crash)) if crash else None


def _quoted(line: Line) -> str:
    return f"line {line.number}: {line.text.strip()[:200]}"


GIBI = 2**30 / 1e9
"""A rate in 2^30 bytes per second times this is one in 1e9 bytes per second."""

LARGEST_SIZE = 2**62
"""Bytes; a larger figure is no size."""

_NUMBER = re.compile(r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII)


@dataclass(frozen=True)
class Figure:
    """A number as printed, times the unit it stands in."""

    value: float
    half_unit: float

    def times(self, factor: float) -> Figure:
        """The same figure in a unit that is ``factor`` times smaller."""
        return Figure(self.value * factor, self.half_unit * factor)

    def over(self, divisor: float) -> Figure:
        """The same figure in a unit ``divisor`` times larger: one rounding only, unlike times(1/divisor)."""
        return Figure(self.value / divisor, self.half_unit / divisor)


def figure(text: str) -> Figure | None:
    """The figure ``text`` is, None where it is none, negative, or too large for a float."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value = float(text)
    exponent = int(match[2] or 0) - len(match[1] or "")
    if not math.isfinite(value) or value < 0 or not -300 < exponent < 300:
        return None
    return Figure(value, 0.5 * 10.0**exponent)


def whole(text: str) -> int | None:
    """The size or count ``text`` is, None where it is no whole number from 0 to LARGEST_SIZE."""
    stripped = text.strip()
    if not (0 < len(stripped) <= 19 and stripped.isascii() and stripped.isdigit()):
        return None
    value = int(stripped)
    return value if value <= LARGEST_SIZE else None


def microseconds(text: str) -> Figure | None:
    """A figure in microseconds, in seconds."""
    found = figure(text)
    return found.over(1e6) if found else None


def rate_factor(points: Iterable[tuple[int, Figure, Figure]], default: float) -> float:
    """What printed rates are to be multiplied with to be in 1e9 bytes per second: 1 or GIBI.

    Some tools write GB/s for 2^30 bytes per second, and some changed their mind. points: (bytes, seconds,
    printed rate) of rows whose rate is bytes / seconds; those whose rounding leaves both open do not vote.
    default: where no row tells.
    """
    votes = {1.0: 0, GIBI: 0}
    for size_bytes, seconds, rate in points:
        if seconds.value <= 0:
            continue
        slack = rate.half_unit * 1.02 + rate.value * seconds.half_unit / seconds.value
        fits = [f for f in votes if abs(size_bytes / seconds.value / 1e9 / f - rate.value) <= slack]
        if len(fits) == 1:
            votes[fits[0]] += 1
    if votes[1.0] == votes[GIBI]:
        return default
    return max(votes, key=lambda factor: votes[factor])


def printed_row(
    line: int,
    size_bytes: int,
    seconds: Figure | None,
    algbw: Figure | None = None,
    busbw: Figure | None = None,
    **fields: Any,
) -> ImportedRow:
    """The row of ``line`` with these figures, and half a unit of the last digit of each."""
    values = [None if one is None else one.value for one in (seconds, algbw, busbw)]
    halves = [None if one is None else one.half_unit for one in (seconds, algbw, busbw)]
    return ImportedRow(
        size_bytes,
        seconds=values[0],
        algbw=values[1],
        busbw=values[2],
        half_units=(halves[0], halves[1], halves[2]),
        line=line,
        **fields,
    )
