"""The lines of another tool's output without what launchers and terminals put around them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ccbench.importing.log import Outcome

LONGEST_LINE = 4000
"""Characters of a line that are looked at; no tool here prints a longer one."""

_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# "[1,0]<stdout>:" of Open MPI, "[node-3:0]:" of Intel MPI's -prepend-rank and torchrun, "12: " of srun -l.
_TAG = re.compile(r"(?:\[\d+,\d+\]<std\w{2,8}>:|\[[\w.-]{1,200}:\d+\]:|\d{1,6}:(?= ))[ \t]?")


@dataclass(frozen=True)
class Line:
    """One line. number: 1-based, of the source. text: without tags, colours and the end of the line."""

    number: int
    text: str


def source_lines(text: str) -> Iterator[Line]:
    """Every line that is not blank; longer ones than LONGEST_LINE are cut there."""
    for number, raw in enumerate(text.split("\n"), 1):
        if not raw or raw.isspace():
            continue
        line = raw[:LONGEST_LINE].rstrip()
        if "\x1b" in line:
            line = _COLOUR.sub("", line)
        yield Line(number, _TAG.sub("", line, count=1) if _TAG.match(line) else line)


def is_torn(text: str, line: Line, before: Line | None) -> bool:
    """Whether ``line`` is the last one, has no end, and is shorter than the row before it.

    Tables of these tools have columns of one width, so that such a row has lost digits of its last figure.
    """
    if text.endswith("\n") or before is None or line.number != text.count("\n") + 1:
        return False
    return len(line.text) < len(before.text)


_ENDINGS: tuple[tuple[Outcome, str], ...] = (
    (Outcome.HUNG, r"watchdog caught collective|timed out|DUE TO TIME LIMIT|exceeded the time limit"),
    (
        Outcome.CRASHED,
        r"segmentation fault|MPI_ABORT was invoked|caught signal|exited on signal|bus error|core dumped|"
        r"exit(?:ed with|ing with|) (?:code|status)[ :]+[1-9]|out of memory|unhandled \w+ error|"
        r"^Traceback \(most recent|ABORTING|terminate called",
    ),
)
_ENDING_WORDS = tuple((outcome, re.compile(words, re.IGNORECASE)) for outcome, words in _ENDINGS)


def bad_ending(lines: Sequence[Line]) -> tuple[Outcome, str] | None:
    """The first line that reports a hang, else the first that reports a crash, with what it says."""
    for outcome, words in _ENDING_WORDS:
        for line in lines:
            if words.search(line.text):
                return outcome, f"line {line.number}: {line.text.strip()[:200]}"
    return None
