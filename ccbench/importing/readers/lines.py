"""The lines of another tool's output without what launchers and terminals put around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ccbench.importing.log import Outcome
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
